"""What a penalty is: a value, its gradients, its proximal map."""

from abc import ABC, abstractmethod
from typing import Annotated, TypeAlias

import torch
from torch import Tensor

from torch_halo.weights import Weight

Coefficients: TypeAlias = tuple[Tensor, ...]
Scalar: TypeAlias = float | Tensor
# Fields with what they mean, which the command line shows as their help.
Strength: TypeAlias = Annotated[float, "the strength ξ"]
PriorStrength: TypeAlias = Annotated[float, "ψ, the strength on λ itself (xi)"]
Proximal: TypeAlias = Annotated[bool, "exact zeros: the proximal map after each step, instead of the gradient in it"]
# Of a field that came later than others: it is not stored while it has its default, so that runs keep their names.
LATER = {"is_stored_if_default": False}


class Penalty(ABC):
    """A penalty Ω(w, λ) on one weight tensor w, with coefficients λ if it has any.

    Objects are frozen dataclasses: the object is the configuration. Coefficients are handed in, as
    a tensor, or as a tuple where a penalty has several; None stands for those at the start of
    training.
    """

    # Whether training ends each step with the proximal map, instead of adding the gradient to it.
    proximal: bool = False

    # Whether a target sparsity can set its strength: it has exact zeros, whatever the strength.
    can_be_steered: bool = False

    @property
    def learned(self) -> bool:
        """Whether λ is learned with the weights; it then stays positive."""
        return False

    @property
    def shared(self) -> bool:
        """Whether one λ serves the whole model, so that its prior counts once."""
        return False

    @property
    def copies(self) -> int:
        """On how many processes the cost of the same entries is computed (shards that cut groups)."""
        return 1

    def value(self, w: Tensor, coefficients: Tensor | Coefficients | None = None) -> Tensor:
        """Ω(w, λ), differentiable in both: what the analytic gradients are tested against."""
        lam = self._coefficients(w, coefficients)
        return self.cost(w, *lam) + self.prior(*lam)

    def prox(self, w: Tensor, step: Scalar, coefficients: Tensor | Coefficients | None = None) -> Tensor:
        """argmin over x of ½‖x − w‖² + step·Ω(x, λ), with λ held fixed."""
        return self.proximal_map(w, step, *self._coefficients(w, coefficients))

    @abstractmethod
    def cost(self, w: Tensor, *lam: Tensor) -> Tensor:
        """The part of Ω that w takes part in."""

    def prior(self, *lam: Tensor) -> Tensor | float:
        """The part of Ω that is λ's alone."""
        return 0.0

    def add_prior_gradients_(self, lam: Coefficients, lam_grads: Coefficients, scale: Scalar = 1.0) -> None:
        """Add scale·∂prior/∂λ to `lam_grads`."""
        return

    @abstractmethod
    def add_gradients_(
        self,
        w: Tensor,
        lam: Coefficients,
        grad: Tensor,
        lam_grads: Coefficients = (),
        scale: Scalar = 1.0,
        lam_scale: float = 1.0,
    ) -> None:
        """Add scale·∂cost/∂w to `grad` (0 where w = 0) and lam_scale·∂cost/∂λ to `lam_grads` if given.

        The scales differ where a loss scaler has multiplied `grad` alone.
        """

    @abstractmethod
    def proximal_map(self, w: Tensor, step: Scalar, *lam: Tensor) -> Tensor:
        """`prox` with λ spelled out."""

    def start(self, w: Tensor) -> Coefficients:
        """λ at the start of training: like w, or a plain tensor where w is one."""
        return ()

    def steered(self) -> "Penalty":
        """This penalty, for a strength that a target sparsity sets."""
        return self

    def trained(self, decay: float) -> "Penalty":
        """What training uses in this one's stead, where λ has weight decay `decay`."""
        return self

    def on(self, weight: Weight) -> "Penalty":
        """This penalty, fitted to one weight of a model (its name, its axes, its shards)."""
        return self

    def _coefficients(self, w: Tensor, given: Tensor | Coefficients | None) -> Coefficients:
        if given is None:
            return self.start(w)
        return (given,) if isinstance(given, Tensor) else given


class Separable(Penalty):
    """Ω = Σ_j ρ(|w_j|, λ_j) (+ prior): each magnitude a = |w_j| for itself."""

    @abstractmethod
    def rho(self, a: Tensor, *lam: Tensor) -> Tensor:
        """ρ(a, λ), elementwise, for a ≥ 0."""

    @abstractmethod
    def slopes(self, a: Tensor, *lam: Tensor) -> tuple[Tensor, ...]:
        """∂ρ/∂a, then ∂ρ/∂λ if λ is learned; elementwise; any shape that broadcasts to a's."""

    @abstractmethod
    def shrink(self, a: Tensor, step: Scalar, *lam: Tensor) -> Tensor:
        """argmin over x ≥ 0 of ½(x − a)² + step·ρ(x, λ), elementwise."""

    def cost(self, w: Tensor, *lam: Tensor) -> Tensor:
        return self.rho(magnitude(w), *lam).sum()

    def add_gradients_(
        self,
        w: Tensor,
        lam: Coefficients,
        grad: Tensor,
        lam_grads: Coefficients = (),
        scale: Scalar = 1.0,
        lam_scale: float = 1.0,
    ) -> None:
        slope, *lam_slopes = self.slopes(magnitude(w), *lam)
        if isinstance(scale, Tensor):
            slope, scale = slope * scale, 1.0
        grad.addcmul_(slope, w.sign(), value=scale)
        for total, part in zip(lam_grads, lam_slopes, strict=False):
            total.add_(part.sum_to_size(total.shape), alpha=lam_scale)

    def proximal_map(self, w: Tensor, step: Scalar, *lam: Tensor) -> Tensor:
        return w.sign() * self.shrink(magnitude(w), step, *lam).to(w.dtype)


def magnitude(w: Tensor) -> Tensor:
    """|w| in at least float32: a sum of many bfloat16 numbers would lose most of them."""
    return w.to(at_least_float32(w.dtype)).abs()


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype to compute in, and of λ."""
    return torch.promote_types(dtype, torch.float32)


def soft_threshold(a: Tensor, threshold: Scalar) -> Tensor:
    """max(a − threshold, 0): the proximal map of the absolute value, on magnitudes."""
    return (a - threshold).clamp(min=0)
