"""Penalties that learn their coefficients: HALO, one λ per weight, and SWS, one λ for all."""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from torch_halo.checks import number
from torch_halo.penalties.base import (
    LATER,
    Coefficients,
    Penalty,
    PriorStrength,
    Proximal,
    Scalar,
    Separable,
    Strength,
    at_least_float32,
    magnitude,
    soft_threshold,
)
from torch_halo.penalties.bridge import Bridge
from torch_halo.penalties.functions import CoefficientFunction, InversePower, check_function, evaluate

AUTO = "xi is auto: give it a number, e.g. HALO(xi=1e-6), or Shrinkage a target_sparsity"


class Hierarchical(Separable):
    """ρ(a, λ) = ξ h(λ) a, with λ learned under a prior of its own."""

    xi: float

    @property
    def learned(self) -> bool:
        return True

    @property
    @abstractmethod
    def function(self) -> CoefficientFunction:
        """h: what a coefficient does to the slope."""

    def rho(self, a: Tensor, *lam: Tensor) -> Tensor:
        return self.xi * self.function(*lam) * a

    def slopes(self, a: Tensor, *lam: Tensor) -> tuple[Tensor, ...]:
        h, dh = evaluate(self.function, *lam)
        return self.xi * h, self.xi * dh * a

    def shrink(self, a: Tensor, step: Scalar, *lam: Tensor) -> Tensor:
        return soft_threshold(a, step * self.xi * self.function(*lam))

    def add_gradients_(
        self,
        w: Tensor,
        lam: Coefficients,
        grad: Tensor,
        lam_grads: Coefficients = (),
        scale: Scalar = 1.0,
        lam_scale: float = 1.0,
    ) -> None:
        if not self.learned:
            super().add_gradients_(w, lam, grad, lam_grads, scale, lam_scale)
            return
        # What `slopes` gives, with the factors folded into the additions: a third fewer passes.
        h, dh = evaluate(self.function, *lam)
        if isinstance(scale, Tensor):
            h, scale = h * scale, 1.0
        grad.addcmul_(h, w.sign(), value=self.xi * scale)
        for total in lam_grads:
            a = magnitude(w)
            if total.shape == a.shape:
                total.addcmul_(dh, a, value=self.xi * lam_scale)
            else:
                total.add_(dh * a.sum_to_size(total.shape), alpha=self.xi * lam_scale)


@dataclass(frozen=True)
class HALO(Hierarchical):
    """The hierarchical adaptive Lasso: Ω = ξ Σ h(λ_j)|w_j| + ψ Σ|λ_j|.

    Seto, Wells, Zhang, "HALO: Learning to Prune Neural Networks with Shrinkage", SDM 2021. `psi`
    defaults to `xi`, as in all of the paper's experiments. `h` is 1/λ² unless another is given:
    any callable of λ, whose derivative is found by autograd unless it has `with_derivative`.

    For fixed w and h = 1/λ^k the best coefficient is λ* = (kξ|w|/ψ)^(1/(k+1)): it rises with |w|,
    so that large weights go free. `solve="profile"` puts it in λ's place at every step: there is no
    λ to store, the penalty is a bridge (see `profile`), and training is proximal, with exact zeros.
    `proximal` alone gives exact zeros with λ learned jointly. `HALO()` leaves the strength to
    Shrinkage's `target_sparsity`, and is solved by profile.

    >>> HALO(xi=0.5).value(torch.tensor([1.0, -3.0]), torch.tensor([1.0, 2.0]))
    tensor(2.3750)
    """

    xi: Strength = "auto"  # type: ignore[assignment]  # which a target sparsity sets
    psi: PriorStrength = None  # type: ignore[assignment]  # xi
    h: Annotated[CoefficientFunction, "how λ turns into a strength"] = InversePower(2)
    proximal: Proximal = field(default=False, metadata=LATER)
    solve: Annotated[Literal["joint", "profile"], "λ learned with the weights, or at its best value always"] = field(
        default="joint", metadata=LATER
    )

    can_be_steered = True

    def __post_init__(self) -> None:
        if self.solve not in ("joint", "profile"):
            raise ValueError(f"HALO: solve must be joint or profile; received {self.solve!r}")
        if isinstance(self.xi, str):
            if self.xi != "auto":
                raise ValueError(f"HALO: xi must be a number, e.g. HALO(xi=1e-6), or auto; received {self.xi!r}")
            if self.psi is not None:
                raise ValueError(f"HALO: psi needs a number for xi, too; received psi {self.psi!r} and xi auto")
            return
        object.__setattr__(self, "xi", number("HALO: xi", self.xi, at_least=0))
        psi = self.xi if self.psi is None else self.psi
        object.__setattr__(self, "psi", number("HALO: psi", psi, at_least=0))
        check_function("HALO", self.h)
        if self.solve == "profile":
            object.__setattr__(self, "proximal", True)
            if not isinstance(self.h, InversePower):
                raise ValueError(f"HALO: solve='profile' needs h = InversePower(k); received {self.h!r}")

    @property
    def learned(self) -> bool:
        return self.solve == "joint"

    @property
    def function(self) -> CoefficientFunction:
        return self.h

    def value(self, w: Tensor, coefficients: Tensor | Coefficients | None = None) -> Tensor:
        self._check_strength()
        return super().value(w, coefficients)

    def prox(self, w: Tensor, step: Scalar, coefficients: Tensor | Coefficients | None = None) -> Tensor:
        self._check_strength()
        return super().prox(w, step, coefficients)

    def _check_strength(self) -> None:
        if self.xi == "auto":  # type: ignore[comparison-overlap]
            raise ValueError(AUTO)

    def steered(self) -> Penalty:
        if self.xi != "auto":  # type: ignore[comparison-overlap]
            return self
        return replace(self, xi=1.0, solve="profile")  # the strength is the target's to set

    def profile(self, decay: float = 0.0) -> Bridge:
        """The bridge penalty that is left when λ is at its best value for each weight, h = 1/λ^k.

        min over λ of ξ|w|/λ^k + ψλ is ψ(1 + 1/k)·(kξ|w|/ψ)^(1/(k+1)). With weight decay δ on λ the
        term (δ/2)λ² stands in ψλ's place (with both there is no power law; ψ is below it at the
        authors' strengths): (1 + k/2)·(ξ|w|)^(2/(k+2))·(δ/k)^(k/(k+2)), √(2δξ|w|) for k = 2.
        """
        if not isinstance(self.h, InversePower):
            raise ValueError(f"only h = 1/λ^k has a profile; this one is {self.h!r}")
        k = self.h.k
        if decay > 0:
            q = 2 / (k + 2)
            return Bridge((1 + k / 2) * self.xi**q * (decay / k) ** (1 - q), q, proximal=True)
        if self.psi == 0:
            raise ValueError("HALO: solve='profile' needs psi or a weight decay on λ; received 0 for both")
        q = 1 / (k + 1)
        return Bridge(self.psi * (1 + 1 / k) * (k * self.xi / self.psi) ** q, q, proximal=True)

    def trained(self, decay: float) -> Penalty:
        return self if self.learned else self.profile(decay)

    def rho(self, a: Tensor, *lam: Tensor) -> Tensor:
        return super().rho(a, *lam) if self.learned else self.profile().rho(a)

    def slopes(self, a: Tensor, *lam: Tensor) -> tuple[Tensor, ...]:
        return super().slopes(a, *lam) if self.learned else self.profile().slopes(a)

    def shrink(self, a: Tensor, step: Scalar, *lam: Tensor) -> Tensor:
        return super().shrink(a, step, *lam) if self.learned else self.profile().shrink(a, step)

    def prior(self, *lam: Tensor) -> Tensor | float:
        return self.psi * lam[0].abs().sum() if lam else 0.0

    def add_prior_gradients_(self, lam: Coefficients, lam_grads: Coefficients, scale: Scalar = 1.0) -> None:
        # λ > 0 (Shrinkage's floor), so |λ|′ = 1.
        for total in lam_grads:
            total.add_(scale * self.psi)

    def start(self, w: Tensor) -> Coefficients:
        if not self.learned:
            return ()
        return (torch.ones_like(w, dtype=at_least_float32(w.dtype), requires_grad=False),)


@dataclass(frozen=True)
class SWS(Hierarchical):
    """One learned coefficient for the whole network: Ω = ξ h(λ) Σ|w_j| + ψλ², h = 1/λ².

    The paper's comparison after Strawderman, Wells, Schifano, "Hierarchical Bayes, maximum a
    posteriori estimators, and minimax concave penalized likelihood estimation", 2013. ψλ² counts
    once for the model. `psi` defaults to `xi`.

    >>> SWS(xi=0.5).value(torch.tensor([1.0, -3.0]), torch.tensor(2.0))
    tensor(2.5000)
    """

    xi: Strength
    psi: PriorStrength = None  # type: ignore[assignment]  # xi

    def __post_init__(self) -> None:
        object.__setattr__(self, "xi", number("SWS: xi", self.xi, at_least=0))
        psi = self.xi if self.psi is None else self.psi
        object.__setattr__(self, "psi", number("SWS: psi", psi, at_least=0))

    @property
    def shared(self) -> bool:
        return True

    @property
    def function(self) -> CoefficientFunction:
        return _INVERSE_SQUARE

    def prior(self, *lam: Tensor) -> Tensor:
        return self.psi * lam[0].square().sum()

    def add_prior_gradients_(self, lam: Coefficients, lam_grads: Coefficients, scale: Scalar = 1.0) -> None:
        lam_grads[0].add_(2 * scale * self.psi * lam[0])

    def start(self, w: Tensor) -> Coefficients:
        return (torch.ones((), dtype=at_least_float32(w.dtype), device=w.device),)


_INVERSE_SQUARE = InversePower(2)
