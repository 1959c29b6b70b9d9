"""Masks: which weights live, and zeros that stay zero."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torch_halo.coefficients import KEYS, MOMENTUM_KEYS
from torch_halo.hooks import after_update, base_optimizer, check_held
from torch_halo.weights import Weight, distributed_like, local, reduced, unwrapped


class Masks(Mapping[str, Tensor]):
    """Which weights live: parameter name → bool tensor, True where the weight is kept."""

    def __init__(self, masks: Mapping[str, Tensor]) -> None:
        for name, mask in masks.items():
            if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
                raise TypeError(f"the mask of {name} must be a bool tensor; received {getattr(mask, 'dtype', mask)!r}")
        self._masks = dict(masks)
        self._weights: list[Weight] = []  # what `apply_` tied the masks to

    def __getitem__(self, name: str) -> Tensor:
        return self._masks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._masks)

    def __len__(self) -> int:
        return len(self._masks)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping) or self.keys() != other.keys():
            return False
        return all(torch.equal(local(mask), local(other[name])) for name, mask in self.items())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Masks({len(self)} weights, sparsity {self.sparsity:.4f})"

    @property
    def sparsity(self) -> float:
        """The fraction of weights that are zero."""
        zeros = sum(int(local(reduced((~mask).sum()))) for mask in self._masks.values())
        return zeros / max(sum(mask.numel() for mask in self._masks.values()), 1)

    def state_dict(self) -> dict[str, Tensor]:
        """The masks as a plain dict; `Masks(state)` makes them again."""
        return dict(self._masks)

    @torch.no_grad()
    def apply_(self, model: nn.Module) -> "Masks":
        """Set the weights under the masks to zero, and tie the masks to this model's parameters."""
        parameters = dict(unwrapped(model).named_parameters(remove_duplicate=False))
        for name, mask in self._masks.items():
            if name not in parameters:
                raise ValueError(f"the model has no parameter {name}; it has: {', '.join(parameters)}")
            wanted = tuple(parameters[name].shape)
            if wanted != tuple(mask.shape):
                raise ValueError(f"the mask of {name} has shape {tuple(mask.shape)}; the parameter has {wanted}")
        self._masks = {name: distributed_like(mask, parameters[name]) for name, mask in self._masks.items()}
        self._weights = [Weight(name, parameters[name]) for name in self._masks]
        self._zero_()
        return self

    def hold(self, optimizer: Optimizer) -> RemovableHandle:
        """Keep the zeros through every further step, whatever the optimizer does to them.

        Its state under the masks (momentum, averages) is cleared, now and after each step. The
        handle's `remove()` lets go again.
        """
        if not self._weights:
            raise ValueError("these masks belong to no model yet; call apply_(model) first")
        optimizer = base_optimizer(optimizer)
        check_held(optimizer, self._weights)
        self._clear_(optimizer)
        return after_update(optimizer, self._clear_)

    @torch.no_grad()
    def _clear_(self, optimizer: Optimizer) -> None:
        for weight in self._weights:
            clear_(optimizer, weight, ~self._on_device(weight))

    def _zero_(self) -> None:
        for weight in self._weights:
            _zero_(weight.local, ~self._on_device(weight))

    def _on_device(self, weight: Weight) -> Tensor:
        mask = self._masks[weight.name]
        if mask.device != weight.parameter.device:
            mask = self._masks[weight.name] = mask.to(weight.parameter.device)
        return local(mask)


def clear_(optimizer: Optimizer, weight: Weight, cut: Tensor) -> None:
    """Set a weight to zero where it is cut, and the optimizer's state of it (momentum, averages; not λ)."""
    _zero_(weight.local, cut)
    for key, entry in optimizer.state.get(weight.parameter, {}).items():
        if key not in KEYS + MOMENTUM_KEYS and _is_like(entry, weight.parameter):
            _zero_(local(entry), cut)


def _zero_(values: Tensor, cut: Tensor) -> None:
    # Not a product: 0·∞ and 0·NaN are no zeros. Not masked_fill_: on a CPU it takes half as long again.
    torch.where(cut, values.new_zeros(()), values, out=values)


def _is_like(entry: Any, parameter: Tensor) -> bool:
    return isinstance(entry, Tensor) and entry.is_floating_point() and entry.shape == parameter.shape
