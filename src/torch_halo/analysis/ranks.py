"""Ranks, and what is computed from them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def ranks(x: Array) -> Array:
    """Each number's rank from 1 on; equal ones share the mean of theirs.

    >>> ranks(np.array([0.3, 0.1, 0.3])).tolist()
    [2.5, 1.0, 2.5]
    """
    order = np.argsort(x, kind="stable")
    ordered = x[order]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(x) else np.zeros(0, int)
    counts = np.diff(np.r_[first, len(x)])
    found = np.empty(len(x))
    found[order] = np.repeat(first + (counts + 1) / 2, counts)
    return found


def rank_correlation(x: Array, y: Array) -> float:
    """Spearman's: 1 if y rises with x throughout; NaN if one of them does not vary, or has NaN."""
    if np.isnan(x).any() or np.isnan(y).any():
        return float("nan")
    a, b = ranks(x), ranks(y)
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale else float("nan")


def auroc(scores: Array, is_positive: Array) -> float:
    """How likely a positive has a higher score than a negative; 0.5 is chance, NaN if there is but one kind."""
    positives, negatives = int(is_positive.sum()), int((~is_positive).sum())
    if not positives or not negatives:
        return float("nan")
    return float(ranks(scores)[is_positive].sum() - positives * (positives + 1) / 2) / (positives * negatives)


def precision_at(scores: Array, is_positive: Array, count: int) -> float:
    """The share of positives among the `count` highest scores."""
    return float(is_positive[np.argsort(-scores, kind="stable")[:count]].mean()) if count else float("nan")
