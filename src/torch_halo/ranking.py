"""Exact thresholds: the k smallest magnitudes of many tensors, ties included, shards or not."""

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_halo.weights import Weight, each_shard, stacked, sum_shards

DIGIT = 11  # bits a round: three rounds for float32, six for float64


def smallest(magnitudes: Sequence[Tensor], weights: Sequence[Weight], count: int) -> list[Tensor]:
    """For each tensor, which entries are among the `count` smallest of all; ties go to those that come first.

    `magnitudes` are non-negative, one tensor a weight (the entries that this process holds), all of
    one dtype; +inf stands for an entry that is never chosen. A radix selection: the bits of a
    non-negative float order like the number, so histograms of digits, summed over shards, find the
    threshold in a few rounds without sorting or gathering anything.
    """
    keys = [_bits(m) for m in magnitudes]
    threshold, ties = _threshold(keys, weights, count)
    starts = _starts([(key == threshold).sum() for key in keys], weights)
    chosen = []
    for key, start in zip(keys, starts, strict=True):
        tied = key == threshold
        rank = start.to(key.device) + tied.flatten().cumsum(0).view(key.shape)  # 1 for the first tie of all
        chosen.append((key < threshold) | (tied & (rank <= ties)))
    return chosen


def _bits(magnitude: Tensor) -> Tensor:
    return magnitude.contiguous().view(torch.int64 if magnitude.dtype == torch.float64 else torch.int32)


def _threshold(keys: Sequence[Tensor], weights: Sequence[Weight], count: int) -> tuple[int, int]:
    """The `count`-th smallest key, and how many keys equal to it are among the `count` smallest."""
    if count == 0:
        return -1, 0
    bits = 64 if keys[0].dtype == torch.int64 else 32
    left, prefix, remaining = bits, 0, count
    candidates = [key.flatten() for key in keys]
    while left > 0:
        width = min(DIGIT, left)
        left -= width
        digits = [(key >> left) & (2**width - 1) for key in candidates]
        local = [torch.bincount(digit, minlength=2**width) for digit in digits]
        below = stacked(sum_shards(local, weights)).sum(0).cumsum(0)
        digit = int(torch.searchsorted(below, remaining))
        remaining -= int(below[digit - 1]) if digit else 0
        prefix = (prefix << width) | digit
        candidates = [key[d == digit] for key, d in zip(candidates, digits, strict=True)]
    return prefix, remaining


def _starts(equal: Sequence[Tensor], weights: Sequence[Weight]) -> list[Tensor]:
    """How many ties come before this process's part of each weight: of earlier weights and earlier shards."""
    by_shard = each_shard(equal, weights)
    totals = by_shard.sum(1)
    before = totals.cumsum(0) - totals
    return [
        start + row[: weight.shard_index()].sum() for start, row, weight in zip(before, by_shard, weights, strict=True)
    ]
