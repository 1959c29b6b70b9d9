"""What Shrinkage keeps in the optimizer, so that its own state_dict resumes everything."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torch_halo.coefficients import KEYS, MOMENTUM_KEYS, Attached, follow
from torch_halo.hooks import after_update


class State:
    """λ and its momentum beside the parameters' own state; a step counter and the first learning rate in param_groups.

    (Not in `optimizer.state` under keys of their own, which would break distributed checkpoints.)
    `step` and `first_lr` are the keys, made from the place of the first weight in the optimizer, so
    that several Shrinkages on it count for themselves and are found again in any order.
    """

    def __init__(self, attached: Sequence[Attached], optimizer: Optimizer, *, is_steered: bool = False) -> None:
        places = {id(p): i for i, p in enumerate(_parameters(optimizer.param_groups))}
        first = min(places[id(one.weight.parameter)] for one in attached)
        self.step, self.first_lr = f"halo_step_{first}", f"halo_first_lr_{first}"
        # Where a target steers it: the strength, the first one times the learning rate, the zeros at the start, the
        # share of zeros that was missing at the last update, and whether their count has been made exact.
        self.strength, self.first_effect = f"halo_strength_{first}", f"halo_first_effect_{first}"
        self.first_zeros, self.missing = f"halo_first_zeros_{first}", f"halo_missing_{first}"
        self.was_frozen = f"halo_was_frozen_{first}"
        # There from the start, as zeros: a distributed checkpoint fills only what is there.
        steering = (self.strength, self.first_effect, self.first_zeros, self.missing, self.was_frozen)
        self._steering = steering if is_steered else ()
        self._attached = list(attached)
        self._penalty = attached[0].penalty
        self._by_id = {id(one.weight.parameter): one for one in attached}
        self._loading: dict[int, Mapping[str, Any]] = {}
        self._adopt(optimizer)

    def hooks(self, optimizer: Optimizer) -> list[RemovableHandle]:
        """Register what stores and loads."""
        return [
            after_update(optimizer, self._store),
            optimizer.register_load_state_dict_pre_hook(self._before_load),
            optimizer.register_load_state_dict_post_hook(self._after_load),
        ]

    def remove(self, optimizer: Optimizer) -> None:
        """Leave the optimizer as it was."""
        for attached in self._attached:
            _drop(optimizer.state.get(attached.weight.parameter, {}))
        for p in _parameters(optimizer.param_groups):
            if optimizer.state.get(p) == {}:
                del optimizer.state[p]
        for group in optimizer.param_groups:
            for key in (self.step, self.first_lr, *self._steering):
                group.pop(key, None)

    def groups(self, optimizer: Optimizer) -> list[dict[str, Any]]:
        """The groups of our weights."""
        return [group for group in optimizer.param_groups if self.step in group]

    def mark(self, optimizer: Optimizer) -> None:
        """Give the groups of our weights a step counter and the learning rate that they start from."""
        groups = [
            group
            for group in optimizer.param_groups
            if self.step not in group and any(id(p) in self._by_id for p in group["params"])
        ]
        if any(group["lr"] is None for group in groups):
            name = type(optimizer).__name__
            raise ValueError(f"{name} has lr=None; λ's learning rate follows the weights', so give it one")
        for group in groups:
            group[self.step], group[self.first_lr] = 0, _base_lr(group)
            group.update(dict.fromkeys(self._steering, 0.0))

    def count(self, group: dict[str, Any]) -> None:
        """Count a step of the group."""
        if group[self.step] == 0:  # a scheduler may have come since the group was marked
            group[self.first_lr] = max(group[self.first_lr], _base_lr(group))
        group[self.step] += 1

    def _adopt(self, optimizer: Optimizer) -> None:
        """Take λ over from a state that was loaded before attaching."""
        states = [optimizer.state.get(one.weight.parameter, {}) for one in self._attached]
        if any(KEYS[0] in state for state in states) or any(group.get(self.step) for group in optimizer.param_groups):
            self._check(optimizer.param_groups, states)
            self._restore(states, warn=True)
        self.mark(optimizer)
        for one, state in zip(self._attached, states, strict=True):
            if state:
                state.update(one.entries())

    def _store(self, optimizer: Optimizer) -> None:
        """Put λ beside the optimizer's own state, after it has made that (Adam tests whether it is empty)."""
        if not self._penalty.learned:
            return
        for p in _parameters(optimizer.param_groups):
            if p.grad is not None:
                # Distributed checkpoints want all parameters to have an entry if one has, be it empty.
                optimizer.state.setdefault(p, {})
            if id(p) in self._by_id and (p.grad is not None or optimizer.state.get(p)):
                optimizer.state[p].update(self._by_id[id(p)].entries())

    def _before_load(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        saved, own = _parameters(state_dict["param_groups"]), _parameters(optimizer.param_groups)
        # Lengths that differ are torch's to report.
        self._loading = {id(p): state_dict["state"].get(i, {}) for i, p in zip(saved, own, strict=False)}
        self._check(state_dict["param_groups"], self._loaded())

    def _after_load(self, optimizer: Optimizer) -> None:
        # torch has cast λ to the weights' dtype; take it from the state as it was saved.
        follow(self._attached)
        self._restore(self._loaded())
        for one, saved in zip(self._attached, self._loaded(), strict=True):
            if saved:
                _drop(optimizer.state[one.weight.parameter])  # of another penalty
                optimizer.state[one.weight.parameter].update(one.entries())
        self._loading = {}
        self.mark(optimizer)

    def _loaded(self) -> list[Mapping[str, Any]]:
        return [self._loading.get(key, {}) for key in self._by_id]

    def _check(self, groups: Sequence[Mapping[str, Any]], states: Sequence[Mapping[str, Any]]) -> None:
        """Raise unless λ can be taken from the states, or they are of an optimizer that never stepped."""
        for one, state in zip(self._attached, states, strict=True):
            one.check(state)
        stepped = any(group.get(self.step) for group in groups)
        if stepped and self._penalty.learned and not any(KEYS[0] in state for state in states):
            raise ValueError("the optimizer state lacks λ: it was saved with a penalty that learns none")

    def _restore(self, states: Sequence[Mapping[str, Any]], *, warn: bool = False) -> None:
        attached = self._attached
        if self._penalty.shared:  # one λ for all: from whichever weight has it
            attached, states = attached[:1], [next((state for state in states if KEYS[0] in state), {})]
        for one, state in zip(attached, states, strict=True):
            one.restore(state, warn=warn)


def _parameters(groups: Sequence[Mapping[str, Any]]) -> list[Any]:
    return list(chain.from_iterable(group["params"] for group in groups))


def _base_lr(group: Mapping[str, Any]) -> float:
    """The learning rate that a schedule starts from, or rises to, even if its warm-up has begun."""
    return float(max(group["lr"], group.get("initial_lr", 0), group.get("max_lr", 0)))


def _drop(entry: dict[str, Any]) -> None:
    for key in KEYS + MOMENTUM_KEYS:
        entry.pop(key, None)
