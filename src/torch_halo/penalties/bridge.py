"""The bridge penalty |w|^q and its proximal map."""

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from torch_halo.checks import number
from torch_halo.penalties.base import LATER, Proximal, Scalar, Separable, Strength, soft_threshold


@dataclass(frozen=True)
class Bridge(Separable):
    """The bridge penalty: Ω = ξ Σ|w_j|^q, q > 0 (q = 1 is the Lasso, q = 2 ridge).

    Frank & Friedman, "A statistical view of some chemometrics regression tools", Technometrics
    1993. For q < 1 the slope at zero is infinite: the gradient there is taken as 0, and the
    proximal map is the sound way to train.

    >>> Bridge(xi=1.0, q=0.5).value(torch.tensor([4.0, -9.0]))
    tensor(5.)
    """

    xi: Strength
    q: Annotated[float, "the power"]
    proximal: Proximal = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        object.__setattr__(self, "xi", number("Bridge: xi", self.xi, at_least=0))
        object.__setattr__(self, "q", number("Bridge: q", self.q, above=0))

    @property
    def can_be_steered(self) -> bool:  # type: ignore[override]  # beyond q = 1 there are no zeros
        return self.q <= 1

    def rho(self, a: Tensor, *lam: Tensor) -> Tensor:
        # For q < 1 autograd's derivative at 0 is infinite times 0; both branches must avoid it.
        positive = a > 0
        return torch.where(positive, self.xi * torch.where(positive, a, 1.0).pow(self.q), 0.0)

    def slopes(self, a: Tensor, *lam: Tensor) -> tuple[Tensor, ...]:
        return ((self.xi * self.q * a.pow(self.q - 1)).masked_fill(a == 0, 0.0),)

    def shrink(self, a: Tensor, step: Scalar, *lam: Tensor) -> Tensor:
        tau = torch.as_tensor(step * self.xi, dtype=a.dtype, device=a.device)
        if self.q == 1:
            return soft_threshold(a, tau)
        if self.q == 2:
            return a / (1 + 2 * tau)
        return _shrink_convex(a, tau.expand_as(a), self.q) if self.q > 1 else _shrink_concave(a, tau, self.q)


def _shrink_concave(a: Tensor, tau: Tensor, q: float) -> Tensor:
    """q < 1: zero up to a threshold, beyond it the larger root of x − a + τq·x^(q−1).

    At the threshold the root is x̄ = (2τ(1−q))^(1/(2−q)) and costs as much as zero does
    (Marjanovic & Solo, "On lq optimization and matrix completion", 2012).
    """
    survives = _survives(a, tau, q)
    if a.device.type != "cpu" or torch.compiler.is_compiling():
        return torch.where(survives, _larger_root(torch.where(survives, a, 1.0), tau, q), 0.0)
    # On a CPU the roots of the survivors alone: the sparser, the faster.
    index = survives.flatten().nonzero().squeeze(1)
    x = torch.zeros(a.numel(), dtype=a.dtype)
    x[index] = _larger_root(a.flatten()[index], tau.expand_as(a).flatten()[index] if tau.ndim else tau, q)
    return x.view(a.shape)


def _survives(a: Tensor, tau: Tensor, q: float) -> Tensor:
    if q == 1 / 2 and torch.compiler.is_compiling():
        # The same without τ's power, which would be taken once for each weight.
        return torch.gt(a * a.sqrt(), 1.5**1.5 * tau)
    least = (2 * tau * (1 - q)).pow(1 / (2 - q))
    return a > least * (2 - q) / (2 * (1 - q))


def _larger_root(a: Tensor, tau: Tensor, q: float) -> Tensor:
    if q == 1 / 2:
        root = _half_root(a, tau)
    elif q == 2 / 3:
        root = _two_thirds_root(a, tau)
    else:
        # The function is convex and positive at a, right of the root: Newton descends to it.
        root = _newton(a, a, tau, q)
    return torch.minimum(root, a)  # rounding must not let a weight grow


def _half_root(a: Tensor, tau: Tensor) -> Tensor:
    """q = 1/2: half-thresholding (Xu et al., "L1/2 regularization", 2012), a cubic in √x.

    With x = a·t² it is t³ − t + u = 0, u = τ/(2a^1.5), where u ≤ 0.2722 beyond the threshold. The
    polynomial (least squares, right to 6e-5 there) starts Newton: no cosine, and one pass when compiled.
    """
    u = tau / 2 / (a * a.sqrt()).clamp(min=torch.finfo(a.dtype).tiny)
    t = 1 - u * (0.50018 + u * (0.35736 + u * (0.89092 + u * (-2.28834 + 10.33577 * u))))
    for _ in range(2 if a.dtype == torch.float64 else 1):
        square = t.square()
        t = (2 * square * t - u) / (3 * square - 1)
    return a * t.square()


def _two_thirds_root(a: Tensor, tau: Tensor) -> Tensor:
    """q = 2/3 (Cao et al., "Fast image deconvolution using closed-form thresholding formulas", 2013).

    With x = y³, y⁴ − a·y + 2τ/3 = 0; the resolvent cubic's real root is t², by hyperbolic cosine.
    """
    kappa = 8 * tau / 9
    ratio = a.square() / 2 * kappa.pow(-1.5)
    t = (2 * kappa.sqrt() * torch.cosh(torch.arccosh(ratio.clamp(min=1)) / 3)).sqrt()
    y = (t + (2 * a / t - t.square()).clamp(min=0).sqrt()) / 2
    # No shrinkage, or none that the dtype could show.
    return torch.where(ratio.isfinite(), y.pow(3), a)


def _shrink_convex(a: Tensor, tau: Tensor, q: float) -> Tensor:
    """q > 1: the only root of x − a + τq·x^(q−1), which is 0 at a = 0 alone."""
    positive = a > 0
    y = torch.where(positive, a, 1.0)
    # For q < 2 the function is concave, and Newton climbs from any point left of the root: here
    # neither term exceeds a/2. For q > 2 it is convex, and Newton descends from a.
    left = torch.minimum(y / 2, (y / (2 * q * tau)).pow(1 / (q - 1)))
    return torch.where(positive, _newton(left if q < 2 else y, y, tau, q), 0.0)


def _newton(x: Tensor, a: Tensor, tau: Tensor, q: float) -> Tensor:
    """Newton's method for x − a + τq·x^(q−1) = 0, all entries at once."""
    for _ in range(100):
        value = x - a + tau * q * x.pow(q - 1)
        slope = 1 + tau * q * (q - 1) * x.pow(q - 2)
        new = x - value / slope
        if not bool(((new - x).abs() > torch.finfo(x.dtype).eps * x).any()):
            return new
        x = new
    return x
