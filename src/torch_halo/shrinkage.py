"""Shrinkage: a penalty attached to a model and its optimizer."""

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from torch_halo.checks import number, whole
from torch_halo.coefficients import Attached, Rates, check_finite, follow, share, warn_if_equal
from torch_halo.fused import LEAST_MODEL
from torch_halo.hooks import after_update, base_optimizer, before_update, check_held, gradient
from torch_halo.penalties import HALO, PENALTIES, Penalty
from torch_halo.penalties.halo import AUTO
from torch_halo.selection import Select, select_weights
from torch_halo.state import State
from torch_halo.steering import Steering
from torch_halo.stepsizes import check_optimizer, step_size
from torch_halo.target import Target
from torch_halo.weights import Weight, stacked, sum_shards

CHECK_EVERY = 50
SPREAD_AFTER = 1000
RAMP = 0.4  # the share of the training over which a profile's strength grows, unless told otherwise

# Those attached to each optimizer that is still in use.
_live: "weakref.WeakKeyDictionary[Optimizer, list[Shrinkage]]" = weakref.WeakKeyDictionary()


class Shrinkage:
    """A penalty attached to a model's weights: from now on `optimizer.step()` also shrinks them.

    The penalty's gradient is added to the weights' gradients inside the step, once, untouched by
    clipping and accumulation; a `proximal` penalty's map follows the step instead, and gives exact
    zeros. Learned coefficients λ start at 1 and move by SGD with momentum 0.9
    and weight decay, whatever the weights' optimizer; λ and its momentum live in `optimizer.state`,
    so that the optimizer's own `state_dict` resumes them exactly.

    `coefficient_lr` is λ's learning rate at the start (default: the group's own for SGD, else 0.1);
    it follows the group's learning rate from step to step, unless `coefficient_schedule` gives the
    factor for each step's number. `coefficient_weight_decay` defaults to the group's own for SGD if
    positive, else 5e-4: at the paper's strengths it is what moves λ at all. Over the first
    `ramp_steps` steps the penalty grows from 0 to its full strength (default: at once; 0.4 of
    `total_steps`, if given, for `solve="profile"`); from `until_step` on it acts no more, and λ rests.

    With `target_sparsity` and `total_steps`, the length of the whole training, the strength is set and
    steered so that the share of zeros rises to the target (see `Target`): `HALO()` and no other
    number. It needs a penalty with exact zeros. For the last third of the training the zeros are
    frozen and the others go on without a penalty, unless `freeze` is False: then it is steered to the
    end, and `prune_` makes the count exact.

    The step of a model of a million weights and more is compiled, so that it reads memory once; where
    there is no compiler a warning says so, and it is slower. `compiled` says yes or no to it.

    >>> model = nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> shrink = Shrinkage(model, PENALTIES["halo"](xi=1e-6), optimizer)
    >>> list(shrink.coefficients)
    ['weight']
    """

    def __init__(
        self,
        model: nn.Module,
        penalty: Penalty,
        optimizer: Optimizer,
        *,
        select: Select = None,
        coefficient_lr: float | None = None,
        coefficient_weight_decay: float | None = None,
        coefficient_schedule: Callable[[int], float] | None = None,
        ramp_steps: int | None = None,
        until_step: int | None = None,
        target_sparsity: float | None = None,
        total_steps: int | None = None,
        freeze: bool = True,
        compiled: bool | None = None,
    ) -> None:
        if not isinstance(penalty, Penalty):
            raise TypeError(f"penalty must be a penalty object ({', '.join(PENALTIES)}); received {penalty!r}")
        target = _target(penalty, target_sparsity, total_steps, ramp_steps, until_step, freeze)
        self.penalty = penalty = penalty if target is None else penalty.steered()
        self._lr = _optional("coefficient_lr", coefficient_lr)
        self._decay = _optional("coefficient_weight_decay", coefficient_weight_decay)
        self._schedule = coefficient_schedule
        self._ramp_steps = _ramp(penalty, ramp_steps, total_steps)
        self._until_step = None if until_step is None else whole("until_step", until_step, at_least=0)
        optimizer = base_optimizer(optimizer)
        weights = select_weights(model, select)
        check_held(optimizer, weights)
        _check_free(weights)
        if penalty.proximal:
            check_optimizer(optimizer)
            if penalty.shared:
                raise ValueError("a penalty with one λ for the whole model has no proximal training")
        decays = {id(p): self._decay_in(optimizer, group) for group in optimizer.param_groups for p in group["params"]}
        self._attached = [Attached.to(w, penalty.trained(decays[id(w.parameter)])) for w in weights]
        total = sum(w.parameter.numel() for w in weights)
        for attached in self._attached:
            attached.is_fused = total >= LEAST_MODEL if compiled is None else compiled
        self._due: list[tuple[Attached, dict[str, Any], float]] = []  # proximal maps at the end of this step
        share(self._attached)
        self._by_id = {id(attached.weight.parameter): attached for attached in self._attached}
        self._state = State(self._attached, optimizer, is_steered=target is not None)
        self._steering = None if target is None else Steering(target, model, self._attached, self._state)
        self._handles = [before_update(optimizer, self._shrink), *self._state.hooks(optimizer)]
        if self._steering is not None:
            let_go = self._steering.let_go
            self._handles.append(optimizer.register_load_state_dict_post_hook(lambda optimizer: let_go()))
        if penalty.proximal:
            self._handles.append(after_update(optimizer, self._threshold))
        # Weakly, so that an optimizer that nobody uses any more sets its parameters free.
        self._optimizer = weakref.ref(optimizer)
        _live.setdefault(optimizer, []).append(self)

    @property
    def coefficients(self) -> dict[str, Tensor]:
        """λ by parameter name (SHALO-2: of its groups; that of single weights under `name:inner`)."""
        follow(self._attached)
        return {
            attached.weight.name + suffix: lam
            for attached in self._attached
            for suffix, lam in zip(("", ":inner"), attached.lam, strict=False)
        }

    @torch.no_grad()
    def value(self) -> Tensor:
        """The penalty of the whole model now: at full strength, or at the strength that a target has set."""
        follow(self._attached)
        parts = [attached.value() for attached in self._attached]
        total = stacked(sum_shards(parts, [attached.weight for attached in self._attached])).sum()
        total = total + self.penalty.prior(*self._attached[0].lam) if self.penalty.shared else total
        return total if self._steering is None else total * self._steered()

    def _steered(self) -> float:
        """The strength that the target has set: 1 before the first step, 0 when the zeros are frozen."""
        optimizer, steering = self._optimizer(), self._steering
        assert steering is not None
        if steering.is_frozen:
            return 0.0
        now = None if optimizer is None else steering.now(optimizer)
        return 1.0 if now is None else now

    def detach(self) -> None:
        """Take the penalty off: the optimizer is as it was before, and λ is kept here only."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._steering is not None:
            self._steering.let_go()
        optimizer = self._optimizer()
        if optimizer is None or self not in _live.get(optimizer, []):
            return
        _live[optimizer].remove(self)
        self._state.remove(optimizer)

    @torch.no_grad()
    def _shrink(self, optimizer: Optimizer) -> None:
        self._due.clear()  # of a step that failed
        if self._steering is not None:
            self._steering.forget()
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            # A fused optimizer under a GradScaler skips such a step inside its kernel.
            return
        follow(self._attached)
        self._state.mark(optimizer)  # the user may have made new groups
        grad_scale = getattr(optimizer, "grad_scale", None)  # set where gradients are still scaled
        steered = None if self._steering is None else self._steering.strength(optimizer)
        shared: list[tuple[Attached, Tensor, Rates]] = []  # each weight's part of one λ's gradient
        for group in optimizer.param_groups:
            members = self._members(group)
            rates = self._begin_step(optimizer, group, [one for one, _ in members], steered) if members else None
            if rates is None:
                continue
            scale = rates.strength * (-1.0 if group.get("maximize") else 1.0)
            scale = scale if grad_scale is None else scale * grad_scale
            for attached, grad in members:
                if self.penalty.proximal:
                    if self.penalty.learned:
                        attached.move_(rates)
                    self._due.append((attached, group, rates.strength))
                elif self.penalty.shared:
                    shared.append((attached, attached.shrink_shared_(grad, scale, rates), rates))
                else:
                    attached.shrink_(grad, scale, rates)
        if shared:
            members_, partial, all_rates = zip(*shared, strict=True)
            totals = sum_shards(partial, [attached.weight for attached in members_])
            members_[0].move_shared_(stacked(totals).sum(), all_rates[0])

    @torch.no_grad()
    def _threshold(self, optimizer: Optimizer) -> None:
        """End a step with the penalty's proximal map."""
        due = [(one, step_size(optimizer, group, one.weight.parameter)) for one, group, _ in self._due]
        strengths = [strength for _, _, strength in self._due]
        if due and self._steering is not None and self._steering.now(optimizer) is None:
            strengths = [self._steering.begin(optimizer, due)] * len(due)
        for (attached, size), strength in zip(due, strengths, strict=True):
            attached.threshold_(size * strength)
        self._due.clear()
        if self._steering is not None:
            self._steering.keep_zeros(optimizer)

    def _members(self, group: dict[str, Any]) -> list[tuple[Attached, Tensor]]:
        """The group's weights that have a gradient; none if the learning rate is 0: nothing changes then."""
        found = [self._by_id[id(p)] for p in group["params"] if id(p) in self._by_id and p.requires_grad]
        if not found or float(group["lr"]) == 0:
            return []
        grads = [gradient(attached.weight) for attached in found]
        return [(attached, grad) for attached, grad in zip(found, grads, strict=True) if grad is not None]

    def _begin_step(
        self, optimizer: Optimizer, group: dict[str, Any], members: list[Attached], steered: float | None
    ) -> Rates | None:
        """Count the step, look at the numbers from time to time, and say how far to go (None: it is over)."""
        step = group[self._state.step]
        if step % CHECK_EVERY == 0:
            check_finite(members, step, float(group["lr"]))
        self._state.count(group)
        if step == SPREAD_AFTER and self.penalty.learned and not self.penalty.shared:
            warn_if_equal(members, step)
        if self._steering is not None:
            return None if steered is None else self._rates(optimizer, group, step, steered)
        if self._until_step is not None and step >= self._until_step:
            return None
        ramp = min(1.0, step / self._ramp_steps) if self._ramp_steps else 1.0
        return self._rates(optimizer, group, step, ramp)

    def _rates(self, optimizer: Optimizer, group: dict[str, Any], step: int, strength: float) -> Rates:
        lr, first = float(group["lr"]), group[self._state.first_lr]
        start = first if isinstance(optimizer, SGD) else 0.1
        return Rates(
            strength=strength,
            lr=(start if self._lr is None else self._lr) * (self._schedule(step) if self._schedule else lr / first),
            decay=self._decay_in(optimizer, group),
        )

    def _decay_in(self, optimizer: Optimizer, group: dict[str, Any]) -> float:
        """λ's weight decay for the weights of a group."""
        if self._decay is not None:
            return self._decay
        return default_decay(isinstance(optimizer, SGD), float(group.get("weight_decay", 0.0)))


def default_decay(is_sgd: bool, decay: float) -> float:
    """λ's weight decay where none is given: the weights' for SGD where positive."""
    return decay if is_sgd and decay > 0 else 5e-4


def _target(
    penalty: Penalty, sparsity: float | None, total: int | None, ramp: int | None, until: int | None, freeze: bool
) -> Target | None:
    if sparsity is None:
        if getattr(penalty, "xi", None) == "auto":
            raise ValueError(AUTO)
        return None
    if not penalty.can_be_steered:
        raise ValueError(f"target_sparsity steers HALO, L1 and bridge penalties with q ≤ 1; received {penalty}")
    if total is None:
        raise ValueError("target_sparsity needs total_steps, the number of steps of the whole training")
    if not penalty.steered().proximal:
        raise ValueError(f"target_sparsity needs exact zeros: a penalty with proximal=True; received {penalty}")
    if ramp or until is not None:
        raise ValueError("target_sparsity steers the strength; it goes without ramp_steps and until_step")
    return Target(sparsity, total, freeze)


def _ramp(penalty: Penalty, given: int | None, total: int | None) -> int:
    """A profile is steepest for the smallest weights: it must not kill them before they have learned."""
    if total is not None:
        whole("total_steps", total, at_least=1)
    if given is not None:
        return whole("ramp_steps", given, at_least=0)
    is_profile = isinstance(penalty, HALO) and penalty.solve == "profile"
    return round(RAMP * total) if is_profile and total is not None else 0


def _optional(what: str, value: float | None) -> float | None:
    return None if value is None else number(what, value, at_least=0)


def _check_free(weights: Sequence[Weight]) -> None:
    if _taken(weights):
        gc.collect()  # an optimizer that only cycles of references keep alive does not count
    if names := _taken(weights):
        raise ValueError(
            f"{', '.join(names)} would be shrunk twice: another Shrinkage has them; call its detach() first"
        )


def _taken(weights: Sequence[Weight]) -> list[str]:
    held = {key for attached in _live.values() for shrink in attached for key in shrink._by_id}
    return [weight.name for weight in weights if id(weight.parameter) in held]
