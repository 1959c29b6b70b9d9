"""λ of one weight: how it moves, and how it travels in the optimizer's state."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

from torch_halo.fused import LEAST_TENSOR, fused_move_, fused_shrink_, fused_threshold_
from torch_halo.penalties import Coefficients, Penalty, Scalar, Separable, at_least_float32
from torch_halo.weights import Weight, distributed_like, local, stacked, sum_shards

MOMENTUM = 0.9
# λ never falls below this: h(λ) = 1/λ² then multiplies the strength by at most a million, and all
# stays finite in float32. Learned jointly, λ settles above it (at about 0.02, LeNet-300-100 on MNIST
# at ξ = 1e-6), because a weight that jumps about zero pushes it up again.
FLOOR = 1e-3
KEYS = ("halo_coefficient", "halo_inner_coefficient")
MOMENTUM_KEYS = ("halo_momentum", "halo_inner_momentum")
# Entries a piece, about 1 MB: temporaries stay in the cache, which makes the step 3 to 4 times faster.
PIECE = 2**18
LEAST_SPREAD = 0.01


class Rates(NamedTuple):
    """How far one step goes: the penalty's share of its full strength, λ's learning rate and decay."""

    strength: float
    lr: float
    decay: float


@dataclass
class Attached:
    """A weight with its penalty, its λ, and λ's momentum (none where λ is given, not learned)."""

    weight: Weight
    penalty: Penalty
    lam: Coefficients
    momentum: Coefficients
    is_fused: bool = False  # whether its step may be compiled

    @classmethod
    def to(cls, weight: Weight, penalty: Penalty) -> "Attached":
        """A weight at the start of training."""
        bound = penalty.on(weight)
        lam = tuple(_like(part, weight.parameter) for part in bound.start(weight.parameter.detach()))
        momentum = tuple(torch.zeros_like(part) for part in lam) if bound.learned else ()
        return cls(weight, bound, lam, momentum)

    def value(self) -> Tensor:
        """Ω of what this process holds; without the prior where λ is shared."""
        lam = tuple(map(local, self.lam))
        cost = self.penalty.cost(self.weight.local, *lam)
        return (cost if self.penalty.shared else cost + self.penalty.prior(*lam)) / self.penalty.copies

    def faults(self) -> Tensor:
        """Whether the weight, λ or Ω has a number that is not finite: three zeros or ones."""
        w, lam = self.weight.local, tuple(map(local, self.lam))
        finite = [w.isfinite().all(), torch.stack([part.isfinite().all() for part in lam] or [w.new_ones(())]).all()]
        return (~torch.stack([*finite, self.value().isfinite()])).long()

    def shrink_(self, grad: Tensor, scale: Scalar, rates: Rates) -> None:
        """Add scale·∂Ω/∂w to `grad` and take λ's SGD step, both from the same w and λ."""
        w, lam, momentum = self._local()
        constants = MOMENTUM, FLOOR
        if self._can_fuse(self.penalty) and fused_shrink_(
            self.penalty, w, local(grad), lam, momentum, scale, rates, constants
        ):
            return
        for w, part, lam, momentum in self._pieces(local(grad)):
            self._accelerate_(lam, momentum, rates)
            self.penalty.add_gradients_(w, lam, part, momentum, scale, rates.strength)
            _descend_(lam, momentum, rates.lr)

    def _local(self) -> tuple[Tensor, Coefficients, Coefficients]:
        """The weight, λ and λ's momentum, what this process holds of them."""
        return self.weight.local, tuple(map(local, self.lam)), tuple(map(local, self.momentum))

    def _can_fuse(self, penalty: Penalty) -> TypeGuard[Separable]:
        is_large = self.weight.local.numel() >= LEAST_TENSOR
        return self.is_fused and is_large and isinstance(penalty, Separable) and not penalty.shared

    def move_(self, rates: Rates) -> None:
        """Take λ's SGD step alone, before a proximal map; λ of a weight that is zero rests, and costs nothing."""
        if self._can_fuse(self.penalty) and fused_move_(self.penalty, *self._local(), rates, (MOMENTUM, FLOOR)):
            return
        for w, _, lam, momentum in self._pieces(self.weight.local):
            alive = w.nonzero(as_tuple=True)
            if len(alive[0]) == w.numel() or not isinstance(self.penalty, Separable):
                self._move_(w, lam, momentum, rates)
                continue
            w_, lam_, momentum_ = w[alive], tuple(x[alive] for x in lam), tuple(x[alive] for x in momentum)
            self._move_(w_, lam_, momentum_, rates)
            for whole, part in zip((*lam, *momentum), (*lam_, *momentum_), strict=True):
                whole[alive] = part

    def _move_(self, w: Tensor, lam: Coefficients, momentum: Coefficients, rates: Rates) -> None:
        self._accelerate_(lam, momentum, rates)
        self.penalty.add_gradients_(w, lam, torch.zeros_like(w), momentum, 0.0, rates.strength)
        _descend_(lam, momentum, rates.lr)

    def threshold_(self, step: Scalar) -> None:
        """Replace the weight by its proximal map."""
        w, lam, _ = self._local()
        if self._can_fuse(self.penalty) and fused_threshold_(self.penalty, w, step, lam):
            return
        for part in self._parts():
            cut = step[part] if isinstance(step, Tensor) and step.ndim else step
            w[part].copy_(self.penalty.proximal_map(w[part], cut, *_cut(lam, part)))

    def shrink_shared_(self, grad: Tensor, scale: Scalar, rates: Rates) -> Tensor:
        """Add scale·∂Ω/∂w to `grad`; returns this weight's part of a shared λ's gradient, on this process."""
        partial = torch.zeros_like(self.lam[0])
        for w, part, lam, _ in self._pieces(local(grad)):
            self.penalty.add_gradients_(w, lam, part, (partial,), scale, rates.strength)
        return partial / self.penalty.copies

    def move_shared_(self, gradient: Tensor, rates: Rates) -> None:
        """Take the SGD step of a shared λ, whose gradient from all weights is `gradient`."""
        self._accelerate_(self.lam, self.momentum, rates)
        self.momentum[0].add_(gradient)
        _descend_(self.lam, self.momentum, rates.lr)

    def _accelerate_(self, lam: Coefficients, momentum: Coefficients, rates: Rates) -> None:
        """momentum ← 0.9·momentum + δλ + ∂prior/∂λ; the weights' part of the gradient is added next."""
        for part, velocity in zip(lam, momentum, strict=False):
            velocity.mul_(MOMENTUM).add_(part, alpha=rates.decay)
        if momentum:
            self.penalty.add_prior_gradients_(lam, momentum, rates.strength)

    def _pieces(self, grad: Tensor) -> Iterator[tuple[Tensor, Tensor, Coefficients, Coefficients]]:
        """(w, its gradient, λ, λ's momentum), cut along the first axis where entries are independent."""
        w, lam, momentum = self._local()
        for part in self._parts():
            yield w[part], grad[part], _cut(lam, part), _cut(momentum, part)

    def _parts(self) -> Iterator[EllipsisType | slice]:
        """Where to cut along the first axis."""
        w = self.weight.local
        if not isinstance(self.penalty, Separable) or w.numel() <= PIECE:
            yield ...
            return
        rows = max(1, PIECE * w.shape[0] // w.numel())
        for first in range(0, w.shape[0], rows):
            yield slice(first, first + rows)

    def follow(self) -> None:
        """Bring λ to its weight's device and dtype."""
        like = self.weight.parameter.device, at_least_float32(self.weight.parameter.dtype)
        if any((part.device, part.dtype) != like for part in self.lam):
            self.lam = tuple(part.to(*like) for part in self.lam)
            self.momentum = tuple(part.to(*like) for part in self.momentum)

    def entries(self) -> dict[str, Tensor]:
        """What goes into the optimizer's state of this weight."""
        if not self.momentum:
            return {}
        return dict(zip(KEYS, self.lam, strict=False)) | dict(zip(MOMENTUM_KEYS, self.momentum, strict=False))

    def check(self, saved: Mapping[str, Any]) -> None:
        """Raise unless `saved`, an optimizer's state of this weight, is empty or holds a fitting λ."""
        for key, own in self.entries().items() if _stepped(saved) else ():
            if key not in saved:
                raise ValueError(
                    f"the optimizer state of {self.weight.name} lacks λ ({key!r}): it was saved without this "
                    f"penalty; it holds {', '.join(map(str, saved))}"
                )
            if saved[key].shape != own.shape:
                raise ValueError(
                    f"the optimizer state of {self.weight.name} holds {key!r} of shape {tuple(saved[key].shape)}; "
                    f"this penalty needs {tuple(own.shape)}"
                )

    def restore(self, saved: Mapping[str, Any], *, warn: bool = False) -> None:
        """Take λ and its momentum from `saved`, or begin anew where it has none."""
        if KEYS[0] not in saved:
            for lam, momentum in zip(self.lam, self.momentum, strict=False):
                lam.fill_(1.0)
                momentum.zero_()
            return
        for key, own in self.entries().items():
            if warn and saved[key].dtype != own.dtype:
                warnings.warn(
                    f"{key} of {self.weight.name} was rounded to {saved[key].dtype} when the state was loaded; "
                    "attach Shrinkage before loading to resume exactly",
                    stacklevel=4,
                )
            own.copy_(distributed_like(saved[key], own))


def _stepped(saved: Mapping[str, Any]) -> bool:
    # Adagrad makes its state, with step 0, before the first step.
    return bool(saved) and (KEYS[0] in saved or "step" not in saved or float(saved["step"]) > 0)


def share(attached: Sequence[Attached]) -> None:
    """Let all weights have the same λ, where the penalty has one for the whole model."""
    for one in attached if attached[0].penalty.shared else ():
        one.lam, one.momentum = attached[0].lam, attached[0].momentum


def follow(attached: Sequence[Attached]) -> None:
    """Bring λ to the weights' device and dtype, if the model was moved or cast."""
    for one in attached:
        one.follow()
    share(attached)


def check_finite(attached: Sequence[Attached], step: int, lr: float) -> None:
    """Raise if a weight, λ or the penalty is not finite, naming the layer."""
    # One wait for the device for all layers, and the same verdict on all processes.
    faults = stacked(sum_shards([one.faults() for one in attached], [one.weight for one in attached]))
    if not bool(faults.any()):
        return
    layer, kind = faults.nonzero()[0].tolist()
    what = ("weight", "coefficient λ", "penalty")[kind]
    raise FloatingPointError(
        f"{attached[layer].weight.name}: the {what} is not finite at step {step}, learning rate {lr:g}; "
        "lower it or the strength"
    )


def warn_if_equal(attached: Sequence[Attached], step: int) -> None:
    """Warn if λ is about the same everywhere."""
    values = [local(one.lam[0]).flatten() for one in attached]
    count = max(sum(v.numel() for v in values), 1)
    mean = sum(float(v.sum()) for v in values) / count
    spread = (sum(float((v - mean).square().sum()) for v in values) / count) ** 0.5
    if count > 1 and spread < LEAST_SPREAD * mean:
        warnings.warn(
            f"after {step} steps λ's spread is {spread / mean:.2%} of its mean, and so far the penalty is an ordinary "
            "Lasso; unless the training is long, raise coefficient_weight_decay, coefficient_lr or xi",
            stacklevel=2,
        )


def _descend_(lam: Coefficients, momentum: Coefficients, lr: float) -> None:
    for part, velocity in zip(lam, momentum, strict=False):
        part.add_(velocity, alpha=-lr).clamp_(min=FLOOR)


def _like(lam: Tensor, parameter: Tensor) -> Tensor:
    """λ on its weight's device, in at least float32, sharded as the weight is if it has its shape."""
    lam = lam.detach().to(parameter.device, at_least_float32(parameter.dtype))
    return distributed_like(lam, parameter) if lam.shape == parameter.shape else lam


def _cut(tensors: Coefficients, part: EllipsisType | slice) -> Coefficients:
    return tuple(tensor[part] if tensor.ndim else tensor for tensor in tensors)
