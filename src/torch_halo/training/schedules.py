"""Learning-rate schedules: pure functions of the step's number, so that there is no state to resume."""

import bisect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

from torch_halo.checks import Table, number, whole

Factor: TypeAlias = Callable[[int], float]  # of the learning rate at the start, by step


class Schedule(ABC):
    """How the learning rate changes over `total` steps, of which an epoch has `per_epoch`."""

    @abstractmethod
    def factor(self, per_epoch: int, total: int) -> Factor:
        """The factor for each step."""

    def coefficient_factor(self, per_epoch: int, total: int) -> Factor | None:
        """The factor of λ's learning rate, where it has one of its own."""
        return None

    def stretched(self, factor: float) -> "Schedule":
        """The schedule of a training `factor` times as long, which changes at the same shares of it."""
        return self


@dataclass(frozen=True)
class Constant(Schedule):
    """The learning rate stays as it is."""

    def factor(self, per_epoch: int, total: int) -> Factor:
        return lambda step: 1.0


@dataclass(frozen=True)
class Steps(Schedule):
    """The learning rate is multiplied at milestones, or every so many epochs or batches."""

    milestones: Annotated[tuple[float, ...] | None, "when to multiply the learning rate (0.5 0.75)"] = None
    every: Annotated[int | None, "multiply every so many epochs or batches, instead of at milestones"] = None
    unit: Annotated[Literal["training", "epoch", "batch"], "milestones are shares of the training, epochs, batches"] = (
        "training"
    )
    lr_decay: Annotated[tuple[float, ...], "what to multiply by: one number, or one for each milestone"] = (0.1,)
    coefficient_lr_decay: Annotated[tuple[float, ...] | None, "the same for λ's learning rate (as the weights')"] = None

    def __post_init__(self) -> None:
        if self.unit not in ("training", "epoch", "batch"):
            raise ValueError(f"unit must be training, epoch or batch; received {self.unit!r}")
        if self.milestones and self.every is not None:
            received = f"milestones {_listed(self.milestones)} and every {self.every}"
            raise ValueError(f"give one of milestones and every; received {received}")
        if self.milestones is None and self.every is None and self.unit != "training":
            raise ValueError(f"unit {self.unit} needs milestones, or every")
        default = (0.5, 0.75) if self.every is None else ()
        given = default if self.milestones is None else self.milestones
        object.__setattr__(self, "milestones", tuple(number("milestones", m, at_least=0) for m in given))
        self._check()

    def _check(self) -> None:
        assert self.milestones is not None
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"milestones must rise; received {_listed(self.milestones)}")
        if self.unit == "training" and any(m > 1 for m in self.milestones):
            raise ValueError(
                f"milestones must be shares of the training, from 0 to 1; received {_listed(self.milestones)} "
                "(--unit epoch or --unit batch counts otherwise)"
            )
        if self.every is not None:
            whole("every", self.every, at_least=1)
            if self.unit == "training":
                raise ValueError("every counts epochs or batches; give --unit epoch or --unit batch")
        for name in ("lr_decay", "coefficient_lr_decay"):
            self._check_lr_decay(name)

    def _check_lr_decay(self, name: str) -> None:
        given = getattr(self, name)
        if given is None:
            return
        numbers = tuple(number(name, factor, at_least=0) for factor in given)
        wanted = (1,) if self.every is not None else (1, len(self.milestones or ()))
        if len(numbers) not in wanted:
            raise ValueError(f"{name} needs one number, or one for each milestone; received {_listed(numbers)}")
        object.__setattr__(self, name, numbers)

    def factor(self, per_epoch: int, total: int) -> Factor:
        return self._factor(self.lr_decay, per_epoch, total)

    def coefficient_factor(self, per_epoch: int, total: int) -> Factor | None:
        decay = self.coefficient_lr_decay
        return None if decay is None else self._factor(decay, per_epoch, total)

    def stretched(self, factor: float) -> Schedule:
        if factor == 1 or self.unit == "training":
            return self
        milestones = tuple(round(milestone * factor, 6) for milestone in self.milestones or ())
        every = None if self.every is None else max(1, round(self.every * factor))
        return replace(self, milestones=milestones, every=every)

    def _factor(self, decay: Sequence[float], per_epoch: int, total: int) -> Factor:
        unit = {"training": total, "epoch": per_epoch, "batch": 1}[self.unit]
        if self.every is not None:
            every = self.every * unit
            return lambda step: decay[0] ** (step // every)
        steps = [round(milestone * unit) for milestone in self.milestones or ()]
        factors = list(decay) * (len(steps) if len(decay) == 1 else 1)
        passed = [math.prod(factors[:n]) for n in range(len(steps) + 1)]
        return lambda step: passed[bisect.bisect_right(steps, step)]


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from the learning rate at the start down to `floor` times it, after a linear warm-up.

    Loshchilov & Hutter, "SGDR: stochastic gradient descent with warm restarts", 2017, without restarts.
    """

    floor: Annotated[float, "the share of the learning rate at the end"] = 0.0
    warmup: Annotated[float, "epochs over which the learning rate first rises"] = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "floor", number("floor", self.floor, at_least=0))
        object.__setattr__(self, "warmup", number("warmup", self.warmup, at_least=0))

    def factor(self, per_epoch: int, total: int) -> Factor:
        rising = round(self.warmup * per_epoch)

        def at(step: int) -> float:
            if step < rising:
                return (step + 1) / rising
            share = (step - rising) / max(total - rising, 1)
            return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * share)) / 2

        return at


SCHEDULES: Table[type[Schedule]] = Table("schedule", {"steps": Steps, "cosine": Cosine, "constant": Constant})


def _listed(numbers: Sequence[float]) -> str:
    return " ".join(f"{x:g}" for x in numbers) or "none"
