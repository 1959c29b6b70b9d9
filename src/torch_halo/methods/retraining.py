"""Methods that train, prune, and train what is left again from the beginning."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import nn

from torch_halo.checks import number, whole
from torch_halo.data import DataSet
from torch_halo.masks import Masks
from torch_halo.methods.base import Method, State, target_of, without_method
from torch_halo.methods.scores import keep_largest
from torch_halo.selection import select_weights
from torch_halo.training.config import Config
from torch_halo.training.session import Session
from torch_halo.training.sparsifier import Sparsifier

MOST = 2.0  # scratch-B trains at most so many times as long


@dataclass(frozen=True)
class RandomInit(Method):
    """Magnitude pruning, and the survivors trained again from random values, σ = √(2/n) of the n left a unit.

    Liu et al., "Rethinking the value of network pruning", ICLR 2019, at the level of weights (their
    code has n of the inputs' fan: under batch norm the two differ by a factor that it takes away).
    scratch-E trains as many epochs again, scratch-B as many floating-point operations (counted as
    the share of weights left), at most twice the epochs.
    """

    budget: Literal["E", "B"] = "E"
    dense_epochs: int | None = None  # of the training before, set by `config`

    kind: ClassVar[str] = "random-init"

    def __post_init__(self) -> None:
        if self.budget not in ("E", "B"):
            raise ValueError(f"budget must be E or B; received {self.budget!r}")

    def config(self, setup: Config, sparsity: float) -> Config:
        epochs = setup.training.epochs
        known = super(RandomInit, replace(self, dense_epochs=epochs)).config(setup, sparsity)
        factor = self._factor(sparsity)
        training = replace(setup.training, epochs=round(factor * epochs))
        return replace(known, training=training, schedule=setup.schedule.stretched(factor))

    def before(self, config: Config) -> Config:
        training = replace(config.training, epochs=_dense_epochs(config))
        schedule = config.schedule.stretched(1 / self._factor(target_of(config)))
        return replace(without_method(config), training=training, schedule=schedule)

    def _factor(self, sparsity: float) -> float:
        """How many times as long the second training is."""
        return min(MOST, 1 / (1 - sparsity)) if self.budget == "B" else 1.0

    def begin(self, network: nn.Module, data: DataSet, config: Config, before: State | None) -> Sparsifier:
        masks = _largest(network, config, before, target_of(config))
        generator = torch.Generator().manual_seed(config.training.seed + 1)  # not the values it had
        for weight in select_weights(network, config.shrinking.select):
            units = weight.parameter.shape[weight.axes.out]
            left = int(masks[weight.name].sum()) / units  # for each unit or filter
            values = torch.randn(weight.parameter.shape, generator=generator) * math.sqrt(2 / max(left, 1))
            weight.parameter.data.copy_(values)
        return Sparsifier(masks)

    def total_epochs(self, config: Config) -> int:
        return config.training.epochs + _dense_epochs(config)


@dataclass(frozen=True)
class Lottery(Method):
    """Magnitude pruning, and the survivors trained again from the values that they began with.

    Frankle & Carbin, "The lottery ticket hypothesis", ICLR 2019. One-shot, or with `share` (0.2)
    iterative: that much of what remains goes after each training. With `rewind_step` the survivors
    go back to what they were after so many steps of the dense training, not to the very beginning
    (Frankle et al., "Stabilizing the lottery ticket hypothesis", 2019).
    """

    share: float | None = None
    rewind_step: int = 0

    kind: ClassVar[str] = "lottery"

    def __post_init__(self) -> None:
        if self.share is not None:
            number("share", self.share, above=0, below=1)
        whole("rewind_step", self.rewind_step, at_least=0)

    def before(self, config: Config) -> Config:
        plain, earlier = without_method(config), self._earlier(target_of(config))
        return plain if earlier == 0 else self.config(plain, earlier)

    def begin(self, network: nn.Module, data: DataSet, config: Config, before: State | None) -> Sparsifier:
        masks = _largest(network, config, before, target_of(config))
        # The seed gives the network the values that it began with, and the batches their order, so that
        # after so many steps it is what the dense one was.
        return _Rewound(masks, self.rewind_step) if self.rewind_step else Sparsifier(masks)

    def total_epochs(self, config: Config) -> int:
        rounds, earlier = 2, self._earlier(target_of(config))
        while earlier:
            rounds, earlier = rounds + 1, self._earlier(earlier)
        return rounds * config.training.epochs

    def _earlier(self, sparsity: float) -> float:
        """The sparsity of the round before: 1 − (1 − share)^r for the last r that is below."""
        if self.share is None:
            return 0.0
        rounds, found = 0, [0.0]
        while found[-1] < sparsity - 1e-9:
            rounds += 1
            found.append(round(1 - (1 - self.share) ** rounds, 9))
        return found[-2] if len(found) > 1 else 0.0


class _Rewound(Sparsifier):
    """Trains densely up to a step, and cuts there."""

    def __init__(self, masks: Masks, step: int) -> None:
        super().__init__()
        self._later, self._step = masks, step

    def act(self, session: Session) -> bool:
        if self._step >= session.total:
            raise ValueError(f"rewind_step must be below the training's {session.total} steps; received {self._step}")
        if session.step + 1 != self._step:
            return False
        session.optimizer.step()
        session.torch_optimizer.state.clear()  # momentum begins anew, as the training does
        session.hold(self._later)
        return True


def _dense_epochs(config: Config) -> int:
    assert config.method is not None
    return int(config.method["dense_epochs"])


def _largest(network: nn.Module, config: Config, before: State | None, sparsity: float) -> Masks:
    """The masks of the largest weights that the run before left."""
    assert before is not None
    weights = select_weights(network, config.shrinking.select)
    return keep_largest({weight.name: before[weight.name].abs() for weight in weights}, sparsity)
