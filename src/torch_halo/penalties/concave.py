"""Concave penalties that leave large weights alone: MCP and SCAD."""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from torch_halo.checks import number
from torch_halo.penalties.base import LATER, Proximal, Scalar, Separable, Strength, soft_threshold

LONGEST = 0.9  # of the longest step with a map


@dataclass(frozen=True)
class MCP(Separable):
    """The minimax concave penalty: Ω = Σ ξ|w| − w²/(2γ) while |w| ≤ γξ, then γξ²/2.

    Zhang, "Nearly unbiased variable selection under minimax concave penalty", Annals of Statistics
    2010. The HALO paper prints w²/γ, which would jump at |w| = γξ; this is the continuous one. For
    networks γξ belongs between about 0.01 and 0.5: a smaller knot touches almost no weight.

    >>> MCP(xi=1.0, gamma=2.0).value(torch.tensor([1.0, 5.0]))
    tensor(1.7500)
    """

    xi: Strength
    gamma: Annotated[float, "γ: no slope beyond |w| = γξ"]
    proximal: Proximal = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        object.__setattr__(self, "xi", number("MCP: xi", self.xi, at_least=0))
        object.__setattr__(self, "gamma", number("MCP: gamma", self.gamma, above=0))

    def rho(self, a: Tensor, *lam: Tensor) -> Tensor:
        a = a.clamp(max=self.gamma * self.xi)
        return self.xi * a - a.square() / (2 * self.gamma)

    def slopes(self, a: Tensor, *lam: Tensor) -> tuple[Tensor, ...]:
        return ((self.xi - a / self.gamma).clamp(min=0),)

    def shrink(self, a: Tensor, step: Scalar, *lam: Tensor) -> Tensor:
        """The firm threshold; it exists while the step is below γ."""
        step = _checked_step("MCP", "gamma", self.gamma, step)
        inner = soft_threshold(a, step * self.xi) / (1 - step / self.gamma)
        return torch.where(a <= self.gamma * self.xi, inner, a)


@dataclass(frozen=True)
class SCAD(Separable):
    """The smoothly clipped absolute deviation, knots at ξ and aξ, a > 2.

    Ω = Σ ξ|w|; (2aξ|w| − w² − ξ²)/(2(a−1)) beyond ξ; ξ²(a+1)/2 beyond aξ. Fan & Li, "Variable
    selection via nonconcave penalized likelihood", JASA 2001. For networks aξ belongs between
    about 0.01 and 0.5.

    >>> SCAD(xi=1.0, a=3.0).value(torch.tensor([0.5, 5.0]))
    tensor(2.5000)
    """

    xi: Strength
    a: Annotated[float, "no slope beyond |w| = aξ"] = 3.7
    proximal: Proximal = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        object.__setattr__(self, "xi", number("SCAD: xi", self.xi, at_least=0))
        object.__setattr__(self, "a", number("SCAD: a", self.a, above=2))

    def rho(self, a: Tensor, *lam: Tensor) -> Tensor:
        middle = a.clamp(max=self.a * self.xi)
        bent = (2 * self.a * self.xi * middle - middle.square() - self.xi**2) / (2 * (self.a - 1))
        return torch.where(a <= self.xi, self.xi * a, bent)

    def slopes(self, a: Tensor, *lam: Tensor) -> tuple[Tensor, ...]:
        return (((self.a * self.xi - a) / (self.a - 1)).clamp(min=0, max=self.xi),)

    def shrink(self, a: Tensor, step: Scalar, *lam: Tensor) -> Tensor:
        """Soft threshold, then a steeper line, then the weight itself; for steps below a − 1."""
        step = _checked_step("SCAD", "a - 1", self.a - 1, step)
        soft = soft_threshold(a, step * self.xi)
        bent = ((self.a - 1) * a - step * self.a * self.xi) / (self.a - 1 - step)
        below = torch.where(a <= (1 + step) * self.xi, soft, bent)
        return torch.where(a <= self.a * self.xi, below, a)


def _checked_step(penalty: str, field: str, limit: float, step: Scalar) -> Scalar:
    usual = float(step.median()) if isinstance(step, Tensor) else step
    if usual >= limit:
        raise ValueError(f"{penalty}: the proximal map needs a step below {field} = {limit:g}; received {usual:g}")
    # Of steps by entry, as Adam's, some are long because their weights have next to no gradient: those are cut short.
    return step.clamp(max=LONGEST * limit) if isinstance(step, Tensor) and step.ndim else step
