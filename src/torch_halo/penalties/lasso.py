"""The Lasso, and the Lasso with given coefficients."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from torch_halo.checks import number
from torch_halo.penalties.base import (
    LATER,
    Coefficients,
    Penalty,
    Proximal,
    Scalar,
    Separable,
    Strength,
    soft_threshold,
)
from torch_halo.weights import Weight, local, unwrapped


@dataclass(frozen=True)
class L1(Separable):
    """The Lasso: Ω = ξ Σ|w_j|.

    Tibshirani, "Regression shrinkage and selection via the lasso", JRSS B 1996.

    >>> L1(xi=0.5).value(torch.tensor([1.0, -3.0]))
    tensor(2.)
    """

    xi: Strength
    proximal: Proximal = field(default=False, metadata=LATER)

    can_be_steered = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "xi", number("L1: xi", self.xi, at_least=0))

    def rho(self, a: Tensor, *lam: Tensor) -> Tensor:
        return self.xi * a

    def slopes(self, a: Tensor, *lam: Tensor) -> tuple[Tensor, ...]:
        return (a.new_full((), self.xi),)

    def shrink(self, a: Tensor, step: Scalar, *lam: Tensor) -> Tensor:
        return soft_threshold(a, step * self.xi)


@dataclass(frozen=True)
class WeightedL1(Separable):
    """The weighted Lasso with given coefficients: Ω = ξ Σ λ_j|w_j|.

    `weights` maps parameter names to λ, each shaped like its parameter and not negative;
    `adaptive_weights` makes those of the adaptive Lasso from a first fit. Standing alone, `value`
    needs λ as its second argument.

    >>> WeightedL1(xi=1.0, weights={}).value(torch.tensor([1.0, -3.0]), torch.tensor([2.0, 1.0]))
    tensor(5.)
    """

    xi: Strength
    weights: Mapping[str, Tensor] = field(repr=False)
    name: str | None = field(default=None, kw_only=True)  # set by `on`

    def __post_init__(self) -> None:
        object.__setattr__(self, "xi", number("WeightedL1: xi", self.xi, at_least=0))
        if not isinstance(self.weights, Mapping):
            raise TypeError(
                f"WeightedL1: weights must map parameter names to tensors; received {type(self.weights).__name__}"
            )
        for name, lam in self.weights.items():
            if not isinstance(lam, Tensor):
                raise TypeError(f"WeightedL1: weights[{name!r}] must be a tensor; received {type(lam).__name__}")
            if not bool((torch.isfinite(local(lam)) & (local(lam) >= 0)).all()):
                raise ValueError(f"WeightedL1: weights[{name!r}] must be finite and not negative")

    def rho(self, a: Tensor, *lam: Tensor) -> Tensor:
        return self.xi * lam[0] * a

    def slopes(self, a: Tensor, *lam: Tensor) -> tuple[Tensor, ...]:
        return (self.xi * lam[0],)

    def shrink(self, a: Tensor, step: Scalar, *lam: Tensor) -> Tensor:
        return soft_threshold(a, step * self.xi * lam[0])

    def start(self, w: Tensor) -> Coefficients:
        if self.name is None:
            raise ValueError("WeightedL1 standing alone needs its coefficients as an argument")
        return (self.weights[self.name],)

    def on(self, weight: Weight) -> Penalty:
        lam = self.weights.get(weight.name)
        if lam is None:
            raise ValueError(f"WeightedL1: no weights for {weight.name}; given: {', '.join(self.weights) or 'none'}")
        if lam.shape != weight.parameter.shape:
            raise ValueError(
                f"WeightedL1: weights[{weight.name!r}] has shape {tuple(lam.shape)}; "
                f"the parameter has {tuple(weight.parameter.shape)}"
            )
        return WeightedL1(self.xi, {weight.name: lam}, name=weight.name)


def adaptive_weights(
    fitted: nn.Module | Mapping[str, Tensor], *, gamma: float = 1.0, epsilon: float = 1e-3
) -> dict[str, Tensor]:
    """The adaptive Lasso's coefficients λ_j = 1/(|ŵ_j| + ε)^γ from a first fit ŵ.

    Zou, "The adaptive lasso and its oracle properties", JASA 2006. ε keeps a weight that the first
    fit set to zero from an infinite coefficient.
    """
    gamma = number("adaptive_weights: gamma", gamma, above=0)
    epsilon = number("adaptive_weights: epsilon", epsilon, above=0)
    named: Mapping[str, Tensor]
    if isinstance(fitted, nn.Module):
        named = dict(unwrapped(fitted).named_parameters(remove_duplicate=False))
    else:
        named = fitted
    return {name: (w.detach().abs() + epsilon).pow(-gamma) for name, w in named.items()}
