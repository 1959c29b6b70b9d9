"""h: how a coefficient λ turns into a strength h(λ)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from torch_halo.checks import Table, number


@runtime_checkable
class Differentiable(Protocol):
    """A function of λ that brings its own derivative."""

    def __call__(self, lam: Tensor, /) -> Tensor: ...

    def with_derivative(self, lam: Tensor, /) -> tuple[Tensor, Tensor]:
        """h(λ) and h′(λ), which share their work."""


CoefficientFunction: TypeAlias = Differentiable | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class InversePower:
    """h(λ) = 1/λ^k, k > 0: small coefficients shrink hard. The paper's choice is k = 2."""

    k: Annotated[float, "the power in 1/λ^k"] = 2.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", number("InversePower: k", self.k, above=0))

    def __call__(self, lam: Tensor) -> Tensor:
        return lam.pow(-self.k)

    def with_derivative(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        h = lam.pow(-self.k)
        return h, (h / lam).mul_(-self.k)


@dataclass(frozen=True)
class LogSquared:
    """h(λ) = (log|λ|)², the paper's other choice (its appendix); no shrinkage at λ = 1, the start."""

    def __call__(self, lam: Tensor) -> Tensor:
        return lam.abs().log().square()

    def with_derivative(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        log = lam.abs().log()
        return log.square(), 2 * log / lam


def check_function(penalty: str, h: object) -> None:
    """Raise unless h can be evaluated, with its derivative."""
    if not callable(h):
        raise TypeError(f"{penalty}: h must be a callable of λ; received {h!r}")
    evaluate(h, torch.ones(2))


def evaluate(h: CoefficientFunction, lam: Tensor) -> tuple[Tensor, Tensor]:
    """h(λ) and h′(λ); a plain callable's derivative is taken by autograd, of h alone."""
    if isinstance(h, Differentiable):
        return h.with_derivative(lam)
    with torch.enable_grad():
        x = lam.detach().requires_grad_()
        value = h(x)
        if not isinstance(value, Tensor) or value.shape != x.shape or not value.requires_grad:
            raise ValueError(f"h must be an elementwise, differentiable function of λ; received {h!r}")
        (slope,) = torch.autograd.grad(value.sum(), x)
    return value.detach(), slope


FUNCTIONS: Table[type[InversePower | LogSquared]] = Table(
    "h", {"inverse_power": InversePower, "log_squared": LogSquared}
)
