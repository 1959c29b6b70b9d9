"""The optimizers by name, with their settings."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import torch
from torch import nn

from torch_halo.checks import Table, number
from torch_halo.weights import is_sharded


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum; the paper's choice."""

    lr: Annotated[float, "the learning rate at the start"] = 0.1
    momentum: Annotated[float, "of the weights; λ's is always 0.9"] = 0.9
    weight_decay: Annotated[float, "added to the gradient"] = 5e-4

    def __post_init__(self) -> None:
        _check(self, above=("lr",), at_least=("momentum", "weight_decay"))
        number("momentum", self.momentum, below=1)

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The torch optimizer."""
        given = list(parameters)
        return torch.optim.SGD(
            given, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, fused=_fused(given)
        )


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay."""

    lr: Annotated[float, "the learning rate at the start"] = 1e-3
    beta1: Annotated[float, "of the average of gradients"] = 0.9
    beta2: Annotated[float, "of the average of their squares"] = 0.999
    weight_decay: Annotated[float, "decoupled from the gradient"] = 1e-2

    def __post_init__(self) -> None:
        _check(self, above=("lr",), at_least=("beta1", "beta2", "weight_decay"))
        for name in ("beta1", "beta2"):
            number(name, getattr(self, name), below=1)

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The torch optimizer."""
        given, betas = list(parameters), (self.beta1, self.beta2)
        return torch.optim.AdamW(given, lr=self.lr, betas=betas, weight_decay=self.weight_decay, fused=_fused(given))


OptimizerSettings: TypeAlias = SGD | AdamW
OPTIMIZERS: Table[type[OptimizerSettings]] = Table("optimizer", {"sgd": SGD, "adamw": AdamW})


def _fused(parameters: list[nn.Parameter]) -> bool:
    """One kernel for the whole step where there is one: on a CPU it takes half the time."""
    # Not in bfloat16, in which torch 2.13's fused SGD computes something else on a CPU.
    dtypes, devices = {p.dtype for p in parameters}, {p.device.type for p in parameters}
    plain = not any(is_sharded(p) for p in parameters)
    return plain and dtypes <= {torch.float32, torch.float64} and devices <= {"cpu", "cuda"}


def _check(settings: OptimizerSettings, above: tuple[str, ...], at_least: tuple[str, ...]) -> None:
    for name in above:
        object.__setattr__(settings, name, number(name, getattr(settings, name), above=0))
    for name in at_least:
        object.__setattr__(settings, name, number(name, getattr(settings, name), at_least=0))
