"""What a model returns, before and after."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # of an output's largest entry; else 2e-2
SCALES = (1.0, -1.0, 100.0)  # of the example: what depends on its size or sign shows


class Difference(NamedTuple):
    """The largest one of an output, and how large it may be."""

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
    return copy.deepcopy(inputs)


def own_copy(model: nn.Module) -> nn.Module:
    """A copy for inference, with which anything can be done."""
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError("the model is TorchScript, whose layers cannot be exchanged; give the model before scripting")
    try:
        return copy.deepcopy(model).eval()
    except RuntimeError as error:
        hint = "what torch.nn.utils.prune has masked must be made permanent first, by prune.remove(module, 'weight')"
        raise ValueError(f"the model cannot be copied ({hint}): {error}") from error


def answers(model: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    """All tensors that a model returns for some inputs, and for the same scaled and negated."""
    scaled = [tuple(_scaled(x, scale) for x in inputs) for scale in SCALES]
    is_same = not any(isinstance(x, Tensor) and x.is_floating_point() for x in inputs)
    return [found for each in scaled[: 1 if is_same else None] for found in outputs(model, each)]


@torch.no_grad()
def outputs(model: nn.Module, inputs: tuple[Any, ...]) -> list[Tensor]:
    """All tensors that a model returns for some inputs, which it may change."""
    found = [leaf.clone() for leaf in _leaves(model(*copy.deepcopy(inputs)))]
    if not found:
        raise ValueError("the model returns no tensor that could be compared")
    return found


def difference(found: list[Tensor], wanted: list[Tensor]) -> Difference:
    """Between what two models returned: that of the output that differs most; infinite if it is of another kind."""
    if [(x.shape, x.dtype) for x in found] != [(x.shape, x.dtype) for x in wanted]:
        return Difference(float("inf"), 0.0)
    each = [_between(x, y) for x, y in zip(found, wanted, strict=True)]
    return max(each, key=lambda one: (one.too_large, one.largest))


def _between(x: Tensor, y: Tensor) -> Difference:
    if not y.is_floating_point():
        return Difference(0.0 if torch.equal(x, y) else float("inf"), 0.0)
    finite = y.isfinite()
    if (
        not torch.equal(x[~finite].nan_to_num(nan=0.5), y[~finite].nan_to_num(nan=0.5))
        or not x[finite].isfinite().all()
    ):
        return Difference(float("inf"), 0.0)
    if not finite.any():
        return Difference(0.0, 0.0)
    size = 1e-6 + float(y[finite].double().abs().max())
    return Difference(float((x[finite].double() - y[finite].double()).abs().max()), TOLERANCE.get(y.dtype, 2e-2) * size)


def _scaled(x: Any, scale: float) -> Any:
    return x * scale if isinstance(x, Tensor) and x.is_floating_point() and scale != 1 else x


def _leaves(output: Any) -> Iterator[Tensor]:
    """The tensors in whatever a model returns."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _leaves(value)
    elif isinstance(output, (tuple, list)):
        for value in output:
            yield from _leaves(value)
    elif is_dataclass(output):
        for each in fields(output):
            yield from _leaves(getattr(output, each.name))
