"""Sparsity that changes while a network trains: when, and how far."""

import math

import torch
from torch import Tensor


def cubic(step: int, *, begin: int, end: int, final: float, initial: float = 0.0) -> float:
    """s_f + (s_i − s_f)(1 − p)³, p the share of the way from `begin` to `end`.

    Zhu & Gupta, "To prune, or not to prune", 2017: fast at first, when much can go, then slower.

    >>> [round(cubic(step, begin=0, end=10, final=0.8), 3) for step in (0, 5, 10, 20)]
    [0.0, 0.7, 0.8, 0.8]
    """
    share = min(max((step - begin) / max(end - begin, 1), 0.0), 1.0)
    return final + (initial - final) * (1 - share) ** 3


def cosine_fraction(step: int, *, end: int, start: float = 0.3) -> float:
    """α/2·(1 + cos(πt/T)): the share of its weights that RigL exchanges at a step; none from `end` on.

    Evci et al., "Rigging the lottery: making all tickets winners", ICML 2020.
    """
    return start / 2 * (1 + math.cos(math.pi * step / end)) if step < end else 0.0


def drop_and_grow(weight: Tensor, gradient: Tensor, mask: Tensor, fraction: float) -> Tensor:
    """RigL's new mask: the smallest living weights go, and where the gradient is largest weights come.

    As many as before live afterwards. A weight that was just dropped may come back at once (Evci et
    al. choose among all that do not live after the drop). New ones are to start from zero.
    """
    count = round(fraction * int(mask.sum()))
    alive = mask.flatten().clone()
    size = weight.detach().abs().flatten().masked_fill(~alive, torch.inf)
    alive[size.argsort(stable=True)[:count]] = False
    slope = gradient.detach().abs().flatten().masked_fill(alive, -1.0)
    room = min(count, int((~alive).sum()))
    alive[slope.argsort(descending=True, stable=True)[:room]] = True
    return alive.view(mask.shape)
