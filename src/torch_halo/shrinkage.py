"""Shrinkage: a penalty attached to a model and its optimizer."""

import gc
import warnings
import weakref
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from torch_halo.checks import number, whole
from torch_halo.coefficients import Attached, Rates, saved_states
from torch_halo.hooks import after_update, base_optimizer, before_update, check_held, gradient
from torch_halo.penalties import PENALTIES, Penalty
from torch_halo.selection import Select, select_weights
from torch_halo.weights import local, sum_shards

# Kept in the optimizer's param_groups: state beside the parameters' own breaks distributed checkpoints.
STEP, FIRST_LR = "halo_step", "halo_first_lr"
CHECK_EVERY = 50
SPREAD_AFTER, LEAST_SPREAD = 1000, 0.01

_owners: Any = WeakIdKeyDictionary()  # parameter → the optimizer that shrinks it, weakly


class Shrinkage:
    """A penalty attached to a model's weights: from now on `optimizer.step()` also shrinks them.

    The penalty's gradient is added to the weights' gradients inside the step, once, untouched by
    clipping and accumulation. Learned coefficients λ start at 1 and move by SGD with momentum 0.9
    and weight decay, whatever the weights' optimizer; λ and its momentum live in `optimizer.state`,
    so that the optimizer's own `state_dict` resumes them exactly.

    `coefficient_lr` is λ's learning rate at the start (default: the group's own for SGD, else 0.1);
    it follows the group's learning rate from step to step. `coefficient_weight_decay` defaults to
    the group's own for SGD if positive, else 5e-4: at the paper's strengths it is what moves λ at
    all. Over the first `ramp_steps` steps the penalty grows from 0 to its full strength; from
    `until_step` on it acts no more, and λ rests.

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
        ramp_steps: int = 0,
        until_step: int | None = None,
    ) -> None:
        if not isinstance(penalty, Penalty):
            raise TypeError(f"penalty must be a penalty object ({', '.join(PENALTIES)}); received {penalty!r}")
        self.penalty = penalty
        self._lr = _optional("coefficient_lr", coefficient_lr)
        self._decay = _optional("coefficient_weight_decay", coefficient_weight_decay)
        self._ramp_steps = whole("ramp_steps", ramp_steps, at_least=0)
        self._until_step = None if until_step is None else whole("until_step", until_step, at_least=0)
        optimizer = base_optimizer(optimizer)
        weights = select_weights(model, select)
        check_held(optimizer, weights)
        _check_free([weight.parameter for weight in weights])
        self._attached = [Attached.to(weight, penalty) for weight in weights]
        self._by_id = {id(attached.weight.parameter): attached for attached in self._attached}
        self._share()
        self._adopt(optimizer)
        self._loading: dict[int, Mapping[str, Any]] = {}
        self._hook(optimizer)

    @property
    def coefficients(self) -> dict[str, Tensor]:
        """λ by parameter name (SHALO-2: of its groups; that of single weights under `name:inner`)."""
        return {
            attached.weight.name + suffix: lam
            for attached in self._attached
            for suffix, lam in zip(("", ":inner"), attached.lam, strict=False)
        }

    @torch.no_grad()
    def value(self) -> Tensor:
        """The penalty of the whole model now, at full strength."""
        parts = [attached.value() for attached in self._attached]
        total = torch.stack(sum_shards(parts, [attached.weight for attached in self._attached])).sum()
        return total + self.penalty.prior(*self._attached[0].lam) if self.penalty.shared else total

    def detach(self) -> None:
        """Take the penalty off: the optimizer is as it was before, and λ is kept here only."""
        for handle in self._handles:
            handle.remove()
        for attached in self._attached:
            _owners.pop(attached.weight.parameter, None)
        optimizer = self._optimizer()
        if optimizer is None:
            return
        for attached in self._attached:
            for key in attached.entries():
                optimizer.state.get(attached.weight.parameter, {}).pop(key, None)
        for group in optimizer.param_groups:
            group.pop(STEP, None)
            group.pop(FIRST_LR, None)

    # Attaching, saving and loading

    def _hook(self, optimizer: Optimizer) -> None:
        # Weakly, so that an optimizer that nobody uses any more sets its parameters free.
        self._optimizer = weakref.ref(optimizer)
        for attached in self._attached:
            _owners[attached.weight.parameter] = self._optimizer
        self._handles = [
            before_update(optimizer, self._shrink),
            after_update(optimizer, self._store),
            optimizer.register_load_state_dict_pre_hook(self._before_load),
            optimizer.register_load_state_dict_post_hook(self._after_load),
        ]

    def _share(self) -> None:
        if self.penalty.shared:
            for attached in self._attached:
                attached.lam, attached.momentum = self._attached[0].lam, self._attached[0].momentum

    def _adopt(self, optimizer: Optimizer) -> None:
        """Take λ over from a state that was loaded before attaching."""
        stepped = any(group.get(STEP) for group in optimizer.param_groups)
        states = [optimizer.state.get(attached.weight.parameter, {}) for attached in self._attached]
        if stepped:
            for attached, state in zip(self._attached, states, strict=True):
                attached.check(state)
            for attached, state in zip(self._attached, states, strict=True):
                attached.restore(state, warn=True)
        self._mark(optimizer)

    def _mark(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            if any(id(p) in self._by_id for p in group["params"]):
                group.setdefault(STEP, 0)
                # A warm-up may have begun already: schedulers keep the rate that they start from.
                group.setdefault(FIRST_LR, float(max(group["lr"], group.get("initial_lr", 0), group.get("max_lr", 0))))

    def _store(self, optimizer: Optimizer) -> None:
        """Put λ beside the optimizer's own state, after it has made that (Adam tests whether it is empty)."""
        if not self.penalty.learned:
            return
        for p in chain.from_iterable(group["params"] for group in optimizer.param_groups):
            if p.grad is not None:
                # Distributed checkpoints want all parameters to have an entry if one has, be it empty.
                entry = optimizer.state.setdefault(p, {})
                if id(p) in self._by_id:
                    entry.update(self._by_id[id(p)].entries())

    def _before_load(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        self._loading = saved_states(optimizer, state_dict)
        for key, attached in self._by_id.items():
            attached.check(self._loading.get(key, {}))

    def _after_load(self, optimizer: Optimizer) -> None:
        # torch has cast λ to the weights' dtype; take it from the state as it was saved.
        for key, attached in self._by_id.items():
            saved = self._loading.get(key, {})
            attached.restore(saved)
            if saved:
                optimizer.state[attached.weight.parameter].update(attached.entries())
        self._loading = {}
        self._mark(optimizer)

    # One step

    @torch.no_grad()
    def _shrink(self, optimizer: Optimizer) -> None:
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and bool(found_inf):
            # A fused optimizer under a GradScaler skips such a step inside its kernel.
            return
        self._follow_model()
        grad_scale = getattr(optimizer, "grad_scale", None)  # set where gradients are still scaled
        moved: list[tuple[Attached, Rates]] = []
        for group in optimizer.param_groups:
            members = self._members(group)
            rates = self._begin_step(optimizer, group, [attached for attached, _ in members]) if members else None
            if rates is None:
                continue
            scale = rates.strength * (-1.0 if group.get("maximize") else 1.0)
            for attached, grad in members:
                attached.shrink_(grad, scale if grad_scale is None else scale * grad_scale, rates)
                moved.append((attached, rates))
        if moved and self.penalty.shared:
            self._move_shared([attached for attached, _ in moved], moved[0][1])

    def _members(self, group: dict[str, Any]) -> list[tuple[Attached, Tensor]]:
        """The group's weights that have a gradient; none if the learning rate is 0: nothing changes then."""
        if float(group["lr"]) == 0:
            return []
        found = [self._by_id[id(p)] for p in group["params"] if id(p) in self._by_id]
        grads = [gradient(attached.weight) for attached in found]
        return [(attached, grad) for attached, grad in zip(found, grads, strict=True) if grad is not None]

    def _begin_step(self, optimizer: Optimizer, group: dict[str, Any], members: list[Attached]) -> Rates | None:
        """Count the step, look at the numbers from time to time, and say how far to go (None: it is over)."""
        step = group[STEP]
        if step % CHECK_EVERY == 0:
            _check_finite(members, step)
        if step == SPREAD_AFTER and self.penalty.learned and not self.penalty.shared:
            _warn_if_equal(members)
        group[STEP] = step + 1
        if self._until_step is not None and step >= self._until_step:
            return None
        return self._rates(optimizer, group, step)

    def _rates(self, optimizer: Optimizer, group: dict[str, Any], step: int) -> Rates:
        sgd, lr = isinstance(optimizer, SGD), float(group["lr"])
        group[FIRST_LR] = group[FIRST_LR] or lr
        start = group[FIRST_LR] if sgd else 0.1
        decay = float(group["weight_decay"]) if sgd and group["weight_decay"] > 0 else 5e-4
        return Rates(
            strength=min(1.0, step / self._ramp_steps) if self._ramp_steps else 1.0,
            lr=(start if self._lr is None else self._lr) * lr / group[FIRST_LR],
            decay=decay if self._decay is None else self._decay,
        )

    def _move_shared(self, members: list[Attached], rates: Rates) -> None:
        partial = [attached.taken_partial() for attached in members]
        totals = sum_shards(partial, [attached.weight for attached in members])
        members[0].move_shared_(torch.stack(totals).sum(), rates)

    def _follow_model(self) -> None:
        """Bring λ to the weights' device and dtype, if the model was moved or cast."""
        for attached in self._attached:
            attached.follow()
        self._share()


def _optional(what: str, value: float | None) -> float | None:
    return None if value is None else number(what, value, at_least=0)


def _check_free(parameters: Sequence[nn.Parameter]) -> None:
    if any(_owner(p) is not None for p in parameters):
        gc.collect()  # an optimizer that only cycles of references keep alive does not count
    if any(_owner(p) is not None for p in parameters):
        raise ValueError(
            "these parameters have a Shrinkage already, which would shrink them twice; call its detach() first"
        )


def _owner(parameter: nn.Parameter) -> Optimizer | None:
    reference = _owners.get(parameter)
    return None if reference is None else reference()


def _check_finite(members: list[Attached], step: int) -> None:
    finite = torch.stack([attached.value().isfinite() for attached in members])
    if bool(finite.all()):  # one wait for the device, for all layers
        return
    attached = members[int(finite.logical_not().nonzero()[0])]
    what = "penalty"
    if not bool(attached.weight.local.isfinite().all()):
        what = "weight"
    elif not all(bool(local(lam).isfinite().all()) for lam in attached.lam):
        what = "coefficient λ"
    raise FloatingPointError(
        f"{attached.weight.name}: the {what} is not finite at step {step}; lower the learning rate or the strength"
    )


def _warn_if_equal(members: list[Attached]) -> None:
    values = [local(attached.lam[0]).flatten() for attached in members]
    count, mean = sum(v.numel() for v in values), sum(float(v.sum()) for v in values)
    mean = mean / max(count, 1)
    spread = (sum(float((v - mean).square().sum()) for v in values) / max(count, 1)) ** 0.5
    if count > 1 and spread < LEAST_SPREAD * mean:
        warnings.warn(
            f"after {SPREAD_AFTER} steps λ's spread is {spread / mean:.2%} of its mean: HALO is still an ordinary "
            "Lasso; raise coefficient_lr or coefficient_weight_decay, or the strength",
            stacklevel=2,
        )
