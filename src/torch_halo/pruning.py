"""Pruning: the smallest weights become zero."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from torch_halo.checks import Table, number
from torch_halo.masks import Masks
from torch_halo.ranking import smallest
from torch_halo.selection import Select, select_weights
from torch_halo.weights import Weight, each_shard, sharded_like, sum_shards

# Which entries to cut, from magnitudes, their weights, and how many layers have an entry spared.
Rule: TypeAlias = Callable[[Sequence[Tensor], Sequence[Weight], int], list[Tensor]]
# The weights that share a threshold, as slices of the list of all.
SCOPES: Table[Callable[[int], list[slice]]] = Table(
    "scope",
    {"global": lambda count: [slice(None)], "layer": lambda count: [slice(i, i + 1) for i in range(count)]},
)


@torch.no_grad()
def prune_(
    model: nn.Module,
    sparsity: float | None = None,
    *,
    threshold: float | None = None,
    scope: Literal["global", "layer"] = "global",
    select: Select = None,
    allow_empty: bool = False,
) -> Masks:
    """Set the smallest weights to zero, in place, and return the masks.

    With `sparsity`, exactly round(sparsity·N) of the N selected weights are zero afterwards (those
    that were zero before included; more, if more were), over the whole model (`scope="global"`) or
    in each layer (`"layer"`). With `threshold`, all weights of at most that magnitude are. A layer
    that would be emptied keeps its largest weight, and a warning names it, unless `allow_empty`;
    the total is kept all the same, as long as it leaves one weight a layer.

    >>> prune_(nn.Linear(4, 5), sparsity=0.75)
    Masks(1 weights, sparsity 0.7500)
    """
    if (sparsity is None) == (threshold is None):
        raise ValueError(f"give one of sparsity and threshold; received sparsity={sparsity}, threshold={threshold}")
    rule: Rule
    if sparsity is not None:
        rule = partial(_fewest, number("sparsity", sparsity, at_least=0, below=1))
    else:
        rule = partial(_below, number("threshold", threshold, at_least=0))
    parts = SCOPES[scope]
    weights = select_weights(model, select)
    magnitudes = _magnitudes(weights)
    kept: list[Tensor] = []
    for part in parts(len(weights)):
        kept += _kept(magnitudes[part], weights[part], rule, allow_empty)
    masks = {weight.name: sharded_like(mask, weight.parameter) for weight, mask in zip(weights, kept, strict=True)}
    return Masks(masks).apply_(model)


def _magnitudes(weights: Sequence[Weight]) -> list[Tensor]:
    """|w| of each weight's part on this process, in one dtype, checked to be finite."""
    double = any(weight.parameter.dtype == torch.float64 for weight in weights)
    found = [weight.local.abs().to(torch.float64 if double else torch.float32) for weight in weights]
    bad = sum_shards([(~m.isfinite()).sum() for m in found], weights)
    names = [weight.name for weight, count in zip(weights, bad, strict=True) if int(count)]
    if names:
        raise ValueError(f"cannot prune: {', '.join(names)} has weights that are not finite")
    return found


def _below(threshold: float, magnitudes: Sequence[Tensor], weights: Sequence[Weight], spared: int) -> list[Tensor]:
    return [m <= threshold for m in magnitudes]


def _fewest(sparsity: float, magnitudes: Sequence[Tensor], weights: Sequence[Weight], spared: int) -> list[Tensor]:
    total = sum(weight.parameter.numel() for weight in weights)
    return smallest(magnitudes, weights, min(round(sparsity * total), total - spared))


def _kept(magnitudes: Sequence[Tensor], weights: Sequence[Weight], rule: Rule, allow_empty: bool) -> list[Tensor]:
    """Which entries survive, with a layer's largest kept where it would be emptied."""
    ranked = list(magnitudes)  # with +inf for what must be kept
    spared: list[str] = []
    while True:
        cut = rule(ranked, weights, len(spared))
        kept = [~c & (m > 0) for c, m in zip(cut, magnitudes, strict=True)]
        empty = [] if allow_empty else _emptied(kept, magnitudes, weights)
        if not empty:
            break
        for i in empty:
            ranked[i] = _spare_largest(ranked[i], weights[i])
            spared.append(weights[i].name)
    if spared:
        warnings.warn(
            f"{', '.join(spared)} would have lost every weight; the largest was kept (allow_empty=True lets layers go)",
            stacklevel=3,
        )
    return kept


def _emptied(kept: Sequence[Tensor], magnitudes: Sequence[Tensor], weights: Sequence[Weight]) -> list[int]:
    """The layers that have weights and would have none."""
    before = sum_shards([(m > 0).sum() for m in magnitudes], weights)
    after = sum_shards([k.sum() for k in kept], weights)
    return [i for i in range(len(weights)) if int(before[i]) and not int(after[i])]


def _spare_largest(magnitude: Tensor, weight: Weight) -> Tensor:
    """The magnitudes with the largest (of all shards; the last, if several are) set to +inf."""
    largest = magnitude.max() if magnitude.numel() else magnitude.new_full((), -1.0)
    (by_shard,) = each_shard([largest], [weight])
    owner = int((by_shard == by_shard.max()).nonzero()[-1])
    if owner != weight.shard_index():
        return magnitude
    spared = magnitude.flatten().clone()
    spared[int((spared == largest).nonzero()[-1])] = torch.inf
    return spared.view(magnitude.shape)
