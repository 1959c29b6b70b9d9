"""λ against |w|: whether large weights go free (the paper's "monotonic" figure)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from torch_halo.analysis.ranks import Array, rank_correlation
from torch_halo.checks import number, whole
from torch_halo.penalties import HALO, InversePower
from torch_halo.pruning import SCOPES
from torch_halo.selection import Select, select_weights
from torch_halo.shrinkage import Shrinkage
from torch_halo.weights import gathered, local

SAMPLE = 10_000  # weights, as in the paper


@dataclass(frozen=True)
class CoefficientTrend:
    """A sample of |w| and λ, and how much one rises with the other."""

    magnitudes: Array
    coefficients: Array
    threshold: float  # the smallest |w| that survives somewhere
    correlation: float  # of ranks, over all weights
    among_survivors: float  # of ranks, over those that survive

    def __str__(self) -> str:
        return (
            f"rank correlation of λ and |w|: {self.among_survivors:.3f} among the weights that survive "
            f"(|w| ≥ {self.threshold:.3g}), {self.correlation:.3f} among all"
        )


def coefficients(
    model: nn.Module,
    learned: Shrinkage | Mapping[str, Tensor],
    *,
    sparsity: float = 0.95,
    scope: Literal["global", "layer"] = "global",
    sample: int = SAMPLE,
    seed: int = 0,
    select: Select = None,
) -> CoefficientTrend:
    """How λ goes with |w|, over the selected weights that have one λ each; a sample of them is returned.

    `learned` is the Shrinkage, or λ by parameter name. Those survive that are not zero and among the
    largest of the model, or of their layer, as `prune_` would have it at `sparsity`.
    Weights near zero are shaken by the noise of training more than by the penalty, so over all
    weights the correlation is lower.
    """
    sparsity, sample = number("sparsity", sparsity, at_least=0, below=1), whole("sample", sample, at_least=1)
    lams = learned.coefficients if isinstance(learned, Shrinkage) else learned
    pairs = [
        (_flat(weight.parameter), _flat(lams[weight.name]))
        for weight in select_weights(model, select, frozen=True)
        if weight.name in lams and lams[weight.name].shape == weight.parameter.shape
    ]
    if not pairs:
        raise ValueError(
            "there is no λ for each weight: train with HALO, solve joint, without a target sparsity; "
            "its profile, SWS, L1 and dense networks have none"
        )
    w, lam = (np.concatenate(part) for part in zip(*pairs, strict=True))
    SCOPES[scope]  # which must be known
    parts = [w] if scope == "global" else [part for part, _ in pairs]
    survives = np.concatenate([_largest(part, sparsity) for part in parts])
    chosen = np.random.default_rng(seed).choice(len(w), min(sample, len(w)), replace=False)
    return CoefficientTrend(
        w[chosen],
        lam[chosen],
        float(w[survives].min(initial=np.inf)),
        rank_correlation(w, lam),
        rank_correlation(w[survives], lam[survives]),
    )


def best_coefficients(magnitudes: Array, penalty: HALO, decay: float = 0.0) -> Array:
    """λ*(|w|), which minimises ξ|w|/λ^k + ψλ + δλ²/2 for a weight decay δ of λ; by bisection.

    >>> best_coefficients(np.array([0.0, 0.5, 4.0]), HALO(xi=0.1)).round(6).tolist()
    [0.0, 1.0, 2.0]
    """
    if not isinstance(penalty.h, InversePower):
        raise ValueError(f"λ* has a formula for h = 1/λ^k only; received {penalty.h!r}")
    k, xi, psi = penalty.h.k, penalty.xi, penalty.psi
    if not xi or not (psi or decay):
        raise ValueError(f"λ* needs xi above 0, and psi or a weight decay; received xi {xi:g}, psi {psi:g}, {decay:g}")
    low, high = np.zeros_like(magnitudes, dtype=float), np.full_like(magnitudes, 1e6, dtype=float)
    for _ in range(200):
        middle = (low + high) / 2
        is_below = k * xi * magnitudes > (psi + decay * middle) * middle ** (k + 1)
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    found: Array = (low + high) / 2
    return found


def _largest(w: Array, sparsity: float) -> Array:
    """Which of the magnitudes are not zero and not among the smallest."""
    place = min(round(sparsity * len(w)), len(w) - 1)
    found: Array = (w >= np.partition(w, place)[place]) & (w > 0)
    return found


def _flat(x: Tensor) -> Array:
    found: Array = local(gathered(x.detach())).abs().flatten().to("cpu", torch.float32).numpy()
    return found
