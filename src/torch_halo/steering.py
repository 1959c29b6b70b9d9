"""Steering a penalty's strength towards a target sparsity, and freezing the zeros that are left."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torch_halo.coefficients import Attached
from torch_halo.hooks import gradient
from torch_halo.masks import clear_
from torch_halo.pruning import prune_
from torch_halo.state import State
from torch_halo.stepsizes import Size
from torch_halo.target import Target, factor
from torch_halo.weights import Weight, local, sum_shards

FIRST = 1e-3  # the share of weights that the first map cuts
SAMPLE = 10_000  # entries of a weight, looked at for the first strength
LOWEST, HIGHEST = 1e-3, 1e12  # of the first strength, at the same learning rate: beyond, it would only wind up
TRACE = 1e-7  # far below any weight that a proximal map leaves
# From this share of the training on, and after a few steps, so far from what is wanted is worth a warning.
EARLY, FEW, FAR = 0.1, 100, 0.1
NEAR = 0.02  # from the target, when the zeros are frozen


class Steering:
    """The strength of a penalty with exact zeros, one for all weights, as a target has it step by step.

    Biases and other weights of one axis are shrunk with the others, but not counted; they neither rest nor freeze.
    What a resumed training needs is in the optimizer's groups; the masks are made from the zeros.
    """

    def __init__(self, target: Target, model: nn.Module, attached: Sequence[Attached], state: State) -> None:
        self.target, self._model, self._state = target, model, state
        self._counted = [one for one in attached if one.weight.parameter.ndim > 1] or list(attached)
        self._ids = {id(one.weight.parameter) for one in self._counted}
        self._is_warned = False
        self._resting: list[tuple[Weight, Tensor]] = []  # which entries are zero before a step, and stay so
        self._held: RemovableHandle | None = None

    @property
    def is_frozen(self) -> bool:
        """Whether the zeros are held."""
        return self._held is not None

    def now(self, optimizer: Optimizer) -> float | None:
        """The strength; None before the end of the first step."""
        found = [float(group.get(self._state.strength, 0)) for group in optimizer.param_groups]
        return max(found) or None

    def forget(self) -> None:
        """Forget a step that failed."""
        self._resting = []

    def strength(self, optimizer: Optimizer) -> float | None:
        """The strength for the step that begins; None if nothing is to be shrunk."""
        groups = self._state.groups(optimizer)
        step = max(int(group[self._state.step]) for group in groups)
        if self.target.is_frozen(step):
            self._freeze(optimizer, groups)
            return None
        strength = self.now(optimizer)
        if strength is None:
            return 0.0
        is_due, is_resting = self._is_due(groups, step), self.target.is_resting(step)
        zero = [one.weight.local == 0 for one in self._counted] if is_due or is_resting else []
        if is_due:
            strength = self._updated(strength, groups, step, self._share(zero))
        _put(groups, self._state.strength, strength)
        missing, start = (float(groups[0].get(key, 0)) for key in (self._state.missing, self._state.first_zeros))
        if not is_resting or self.target.is_far_over(step, start, missing):
            return strength
        self._resting = [(one.weight, entries) for one, entries in zip(self._counted, zero, strict=True)]
        return strength if missing > 0 else None  # None: there are enough zeros, and they stay

    def keep_zeros(self, optimizer: Optimizer) -> None:
        """End a step: what rests has not moved."""
        for weight, zero in self._resting:
            clear_(optimizer, weight, zero)
        self._resting = []

    def _is_due(self, groups: Sequence[dict[str, Any]], step: int) -> bool:
        """Whether to look at the strength: never in a step in which nothing moves, which is not counted."""
        moves = _lr(groups) > 0 and any(one.weight.parameter.grad is not None for one in self._counted)
        return moves and self.target.is_due(step)

    def _updated(self, strength: float, groups: Sequence[dict[str, Any]], step: int, zeros: float) -> float:
        start, effect = (float(groups[0][key]) for key in (self._state.first_zeros, self._state.first_effect))
        self._warn_if_far(step, zeros, start)
        missing, lr = self.target.wanted(step, start) - zeros, _lr(groups)
        _put(groups, self._state.missing, missing)
        return min(max(strength * factor(missing), LOWEST * effect / lr), HIGHEST * effect / lr)

    def begin(self, optimizer: Optimizer, due: Sequence[tuple[Attached, Size]]) -> float:
        """The first strength: with the sizes of the optimizer's own first step, the maps cut a thousandth."""
        groups, zeros = self._state.groups(optimizer), self._zeros()
        low, high = 1e-30, 1e30
        for _ in range(60):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if _cut_share(due, middle) > FIRST else (middle, high)
        _put(groups, self._state.strength, low)
        _put(groups, self._state.first_effect, low * _lr(groups))
        _put(groups, self._state.first_zeros, zeros)
        return low

    def let_go(self) -> None:
        """Hold the zeros no more: the penalty is taken off, or another state was loaded."""
        if self._held is not None:
            self._held.remove()
        self._held, self._is_warned, self._resting = None, False, []

    def _zeros(self) -> float:
        """The share of zeros."""
        return self._share([one.weight.local == 0 for one in self._counted])

    def _share(self, zero: Sequence[Tensor]) -> float:
        weights = [one.weight for one in self._counted]
        counts = sum_shards([entries.sum() for entries in zero], weights)
        return sum(map(int, counts)) / sum(weight.parameter.numel() for weight in weights)

    def _warn_if_far(self, step: int, zeros: float, start: float) -> None:
        wanted, total = self.target.wanted(step, start), self.target.total_steps
        if self._is_warned or step < max(EARLY * total, FEW) or abs(wanted - zeros) < FAR:
            return
        self._is_warned = True
        advice = "train longer, or check the learning rate" if zeros < wanted else "check the learning rate"
        warnings.warn(
            f"after {step} of {total} steps {zeros:.1%} of the weights are zero where {wanted:.1%} were to be: the "
            f"target of {self.target.sparsity:.1%} may be missed, or cost much; {advice}",
            stacklevel=2,
        )

    def _freeze(self, optimizer: Optimizer, groups: Sequence[dict[str, Any]]) -> None:
        """Make the count of zeros exact, and hold them; a training that goes on has them already."""
        if self.is_frozen:
            return
        found, sparsity = self._zeros(), self.target.sparsity
        if groups[0].get(self._state.was_frozen):
            sparsity = found
        elif abs(found - sparsity) > NEAR:
            warnings.warn(
                f"{found:.1%} of the weights are zero where {sparsity:.1%} were to be; train longer, or ask for less",
                stacklevel=2,
            )
        if found > sparsity:
            self._revive()
        masks = prune_(self._model, sparsity, select=lambda name, parameter: id(parameter) in self._ids)
        self._held = masks.hold(optimizer)
        _put(groups, self._state.was_frozen, 1.0)

    def _revive(self) -> None:
        """Give zeros a trace of the way that they would go: of too many, those that would go farthest come back."""
        for one in self._counted:
            if (grad := gradient(one.weight)) is not None:
                w, g = one.weight.local, local(grad)
                w.copy_(torch.where(w == 0, -TRACE * g / (1 + g.abs()), w))


def _put(groups: Sequence[dict[str, Any]], key: str, value: float) -> None:
    for group in groups:
        group[key] = value


def _lr(groups: Sequence[dict[str, Any]]) -> float:
    return max(float(group["lr"]) for group in groups)


def _cut_share(due: Sequence[tuple[Attached, Size]], strength: float) -> float:
    """The share of a sample's non-zero weights that the maps would cut."""
    cut, total = [], []
    for one, size in due:
        w, every = one.weight.local.flatten(), 1 + one.weight.local.numel() // SAMPLE
        size = size.flatten()[::every] if isinstance(size, Tensor) else size
        lam = tuple(local(part).flatten()[::every] for part in one.lam)
        left = one.penalty.proximal_map(w[::every], size * strength, *lam)
        cut.append(((left == 0) & (w[::every] != 0)).sum() * every)
        total.append((w[::every] != 0).sum() * every)
    weights = [one.weight for one, _ in due]
    counts = [sum(map(int, sum_shards(found, weights))) for found in (cut, total)]
    return counts[0] / max(counts[1], 1)
