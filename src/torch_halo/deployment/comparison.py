"""What a model returns, before and after."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the largest output; else 2e-2


@dataclass(frozen=True)
class Difference:
    """The largest one, and how large it may be."""

    largest: float
    allowed: float

    @property
    def too_large(self) -> bool:
        """Whether it is no rounding error any more."""
        return not self.largest <= self.allowed

    def __str__(self) -> str:
        return f"{self.largest:.3g}, where {self.allowed:.3g} is allowed"


def as_inputs(example: Any) -> tuple[Any, ...]:
    """An example as a model's arguments: a tensor is the only one, a tuple is all of them."""
    inputs = example if isinstance(example, tuple) else (example,)
    if not any(isinstance(x, Tensor) for x in inputs):
        raise TypeError(f"the example must be a tensor, or a tuple of a model's arguments; received {example!r}")
    return inputs


@torch.no_grad()
def outputs(model: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    """All tensors that a model returns for some inputs, which it may change."""
    leaves, _ = tree_flatten(model(*copy.deepcopy(inputs)))
    return [leaf.clone() for leaf in leaves if isinstance(leaf, Tensor)]


def difference(found: list[Tensor], wanted: list[Tensor]) -> Difference:
    """Between what two models returned; infinite if it is not even of the same shape."""
    if [x.shape for x in found] != [x.shape for x in wanted]:
        return Difference(float("inf"), 0.0)
    largest, allowed = 0.0, 0.0
    for x, y in zip(found, wanted, strict=True):
        if not y.is_floating_point():
            largest = max(largest, float("inf") if not torch.equal(x, y) else 0.0)
        elif y.numel():
            largest = max(largest, float((x.double() - y.double()).abs().nan_to_num(nan=float("inf")).max()))
            allowed = max(allowed, TOLERANCE.get(y.dtype, 2e-2) * (1e-6 + float(y.double().abs().max())))
    return Difference(largest, allowed)
