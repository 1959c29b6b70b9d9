"""Penalties on groups of weights: whole output channels, input channels, kernels."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, TypeAlias

import torch
from torch import Tensor

from torch_halo.checks import Table, number
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
from torch_halo.penalties.functions import CoefficientFunction, InversePower, check_function, evaluate
from torch_halo.penalties.halo import HALO
from torch_halo.penalties.lasso import L1, WeightedL1
from torch_halo.weights import Axes, Weight, reduced

GroupName: TypeAlias = Literal["out", "in", "kernel"]
GROUPS_HELP = "what a group is: an output channel, an input channel, a kernel"

# The channel axes that tell groups apart, from the output and the input axis.
GROUPS: Table[Callable[[int, int], tuple[int, ...]]] = Table(
    "groups",
    {
        "out": lambda out, into: (out,),
        "in": lambda out, into: (into,),
        "kernel": lambda out, into: (out, into),
    },
)


@dataclass(frozen=True)
class Partition:
    """A weight's entries put into groups: sums over each group, kept as axes of length 1."""

    groups: GroupName
    axes: Axes = Axes()

    def kept(self) -> tuple[int, ...]:
        """The axes of the weight along which groups differ."""
        return GROUPS[self.groups](self.axes.out, 1 - self.axes.out)

    def view(self, w: Tensor) -> Tensor:
        """w, with an axis in front for the convolution's own groups where channels repeat in each."""
        if w.ndim < 2:
            raise ValueError(f"groups={self.groups!r} needs weights of two or more axes; received {tuple(w.shape)}")
        groups = self.axes.conv_groups
        return w.view(groups, w.shape[0] // groups, *w.shape[1:]) if self._repeats() else w

    def summed(self, w: Tensor) -> tuple[int, ...]:
        """The axes of `view(w)` that are summed over."""
        shift = int(self._repeats())
        kept = {axis + shift for axis in self.kept()} | ({0} if shift else set())
        return tuple(axis for axis in range(w.ndim + shift) if axis not in kept)

    def sum(self, x: Tensor, w: Tensor) -> Tensor:
        """Group sums of x, an elementwise result of `view(w)`, over all shards."""
        dims = self.summed(w)
        return self.axes.add_shards(x.sum(dims, keepdim=True) if dims else x)

    def ones(self, w: Tensor) -> Tensor:
        """A one for each group, laid out like w."""
        ones = torch.ones_like(self.view(w), dtype=at_least_float32(w.dtype), requires_grad=False)
        dims = self.summed(w)
        return reduced(ones.sum(dims, keepdim=True)).fill_(1.0) if dims else ones

    def _repeats(self) -> bool:
        # Rows (axis 0) are told apart by themselves; the other channel axis starts anew in each
        # of the convolution's groups.
        return self.axes.conv_groups > 1 and 0 not in self.kept()


class OverGroups(Penalty):
    """A penalty on groups of weights; `on` tells it how to read a model's weight."""

    groups: GroupName
    axes: Axes

    @property
    def copies(self) -> int:
        return self.axes.copies

    @property
    def partition(self) -> Partition:
        """The groups."""
        return Partition(self.groups, self.axes)

    def on(self, weight: Weight) -> Penalty:
        kept = Partition(self.groups, weight.axes).kept()
        cut = [axis for axis in range(weight.parameter.ndim) if axis not in kept]
        return replace(self, axes=weight.with_shards(cut).axes)  # type: ignore[type-var]  # a dataclass below


@dataclass(frozen=True)
class Grouped(OverGroups):
    """A penalty on the norms of groups: Ω = inner(‖w_1‖₂, ‖w_2‖₂, …), which empties whole groups.

    `inner` is any elementwise penalty: `Grouped(L1(xi), "out")` is the group Lasso by output
    channel (without the factor √p_g), `Grouped(MCP(…), "in")` group MCP, `Grouped(HALO(xi), …)`
    learns a coefficient a group. Yuan & Lin, "Model selection and estimation in regression with
    grouped variables", JRSS B 2006.

    >>> Grouped(L1(xi=1.0), "out").value(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor(5.)
    """

    inner: Annotated[Separable, "the penalty on the groups' norms"]
    groups: Annotated[GroupName, GROUPS_HELP]
    proximal: Proximal = field(default=False, metadata=LATER)
    axes: Axes = field(default=Axes(), kw_only=True, repr=False)  # set by `on`

    def __post_init__(self) -> None:
        if not isinstance(self.inner, Separable) or isinstance(self.inner, WeightedL1):
            raise TypeError(
                "Grouped: inner must be an elementwise penalty other than WeightedL1 (whose coefficients are of "
                f"single weights, not of groups); received {self.inner!r}"
            )
        GROUPS[self.groups]
        if getattr(self.inner, "xi", None) == "auto" or getattr(self.inner, "solve", "joint") != "joint":
            raise ValueError(f"Grouped: inner must have a strength, and learn its λ jointly; received {self.inner!r}")

    @property
    def learned(self) -> bool:
        return self.inner.learned

    @property
    def shared(self) -> bool:
        return self.inner.shared

    def start(self, w: Tensor) -> Coefficients:
        return self.inner.start(self.partition.ones(w))

    def cost(self, w: Tensor, *lam: Tensor) -> Tensor:
        return self.inner.rho(self._norms(w), *lam).sum()

    def prior(self, *lam: Tensor) -> Tensor | float:
        return self.inner.prior(*lam)

    def add_prior_gradients_(self, lam: Coefficients, lam_grads: Coefficients, scale: Scalar = 1.0) -> None:
        self.inner.add_prior_gradients_(lam, lam_grads, scale)

    def add_gradients_(
        self,
        w: Tensor,
        lam: Coefficients,
        grad: Tensor,
        lam_grads: Coefficients = (),
        scale: Scalar = 1.0,
        lam_scale: float = 1.0,
    ) -> None:
        norms = self._norms(w)
        slope, *lam_slopes = self.inner.slopes(norms, *lam)
        # ∂‖w_g‖/∂w = w/‖w_g‖, and 0 for a group of zeros.
        direction = torch.where(norms > 0, slope / norms, 0.0)
        self.partition.view(grad).addcmul_(self.partition.view(w), direction * scale)
        for total, part in zip(lam_grads, lam_slopes, strict=False):
            total.add_(part.sum_to_size(total.shape), alpha=lam_scale)

    def proximal_map(self, w: Tensor, step: Scalar, *lam: Tensor) -> Tensor:
        norms = self._norms(w)
        if isinstance(step, Tensor) and step.ndim:
            return self._map_by_entry(w, norms, self.partition.view(step), *lam)
        factor = torch.where(norms > 0, self.inner.shrink(norms, step, *lam) / norms, 0.0)
        return (self.partition.view(w) * factor).to(w.dtype).reshape(w.shape)

    def _map_by_entry(self, w: Tensor, norms: Tensor, step: Tensor, *lam: Tensor) -> Tensor:
        """The map with a step τ_j of each entry's own (Adam's), where the slope s of the inner penalty is constant.

        x_j = w_j·r/(r + τ_j·s) with r = ‖x‖, so that Σ w_j²/(r + τ_j·s)² = 1: zero if the sum is below 1
        at r = 0, else Newton's method for (sum)^(−1/2) = 1, which is nearly linear in r.
        """
        if not isinstance(self.inner, (L1, HALO)):
            raise ValueError(
                f"Grouped: with steps by entry, as Adam's, inner must be L1 or HALO; received {self.inner!r}"
            )
        slope, *_ = self.inner.slopes(norms, *lam)
        squares, far = self.partition.view(magnitude(w)).square(), step * slope
        tiny = torch.finfo(norms.dtype).tiny

        def sums(r: Tensor, power: int) -> Tensor:
            return self.partition.sum(squares / (r + far).clamp(min=tiny).pow(power), w)

        survives, r = sums(torch.zeros_like(norms), 2) > 1, norms / 2
        for _ in range(20):
            total = torch.where(survives, sums(r, 2), 1.0)
            r = (r + total * (total.sqrt() - 1) / torch.where(survives, sums(r, 3), 1.0)).clamp(min=tiny)
        factor = torch.where(survives, r / (r + far), 0.0)
        return (self.partition.view(w) * factor).to(w.dtype).reshape(w.shape)

    def _norms(self, w: Tensor) -> Tensor:
        squares = self.partition.sum(self.partition.view(magnitude(w)).square(), w)
        positive = squares > 0  # √ has no derivative at 0
        return torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0)


@dataclass(frozen=True)
class SHALO(OverGroups):
    """Structured HALO: Ω = ξ Σ_g h(λ_g) Ω_inner(w_g) + ψ Σ_g|λ_g|, a coefficient for each group.

    The paper's appendix. `inner="l1"` is SHALO-1, Ω_inner = Σ_j|w_gj|; `inner="halo"` is SHALO-2,
    Ω_inner = Σ_j h(λ_gj)|w_gj| + |λ_gj|, with a coefficient for each weight as well (the paper
    prints another Σ_j around it, which would repeat it p_g times). Coefficients: λ_g, then λ_gj.

    >>> SHALO(xi=1.0).value(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor(10.)
    """

    xi: Strength
    psi: PriorStrength = None  # type: ignore[assignment]  # xi
    inner: Annotated[Literal["l1", "halo"], "the penalty inside a group"] = "l1"
    groups: Annotated[GroupName, GROUPS_HELP] = "out"
    h: Annotated[CoefficientFunction, "how λ turns into a strength"] = InversePower(2)
    axes: Axes = field(default=Axes(), kw_only=True, repr=False)  # set by `on`

    def __post_init__(self) -> None:
        object.__setattr__(self, "xi", number("SHALO: xi", self.xi, at_least=0))
        psi = self.xi if self.psi is None else self.psi
        object.__setattr__(self, "psi", number("SHALO: psi", psi, at_least=0))
        check_function("SHALO", self.h)
        _INNER[self.inner]
        GROUPS[self.groups]

    @property
    def learned(self) -> bool:
        return True

    def start(self, w: Tensor) -> Coefficients:
        return (self.partition.ones(w), *self._inner().start(w))

    def cost(self, w: Tensor, *lam: Tensor) -> Tensor:
        return (self.xi * self.h(lam[0]) * self._sizes(w, *lam[1:])).sum()

    def prior(self, *lam: Tensor) -> Tensor:
        return self.psi * lam[0].abs().sum()

    def add_gradients_(
        self,
        w: Tensor,
        lam: Coefficients,
        grad: Tensor,
        lam_grads: Coefficients = (),
        scale: Scalar = 1.0,
        lam_scale: float = 1.0,
    ) -> None:
        view = self.partition.view
        of_group, of_weight = lam[0], lam[1:]
        h, dh = evaluate(self.h, of_group)
        slope, *inner_slopes = self._inner().slopes(view(magnitude(w)), *map(view, of_weight))
        view(grad).addcmul_(self.xi * scale * h * slope, view(w).sign())
        if not lam_grads:
            return
        lam_grads[0].add_(self.xi * dh * self._sizes(w, *of_weight), alpha=lam_scale)
        for total, part in zip(lam_grads[1:], inner_slopes, strict=True):
            view(total).add_(self.xi * h * (part + 1), alpha=lam_scale)

    def add_prior_gradients_(self, lam: Coefficients, lam_grads: Coefficients, scale: Scalar = 1.0) -> None:
        lam_grads[0].add_(scale * self.psi)  # λ > 0, as in HALO

    def proximal_map(self, w: Tensor, step: Scalar, *lam: Tensor) -> Tensor:
        view = self.partition.view
        slope, *_ = self._inner().slopes(view(magnitude(w)), *map(view, lam[1:]))
        shrunk = soft_threshold(view(magnitude(w)), step * self.xi * self.h(lam[0]) * slope)
        return w.sign() * shrunk.to(w.dtype).reshape(w.shape)

    def _inner(self) -> Separable:
        return _INNER[self.inner](self.h)

    def _sizes(self, w: Tensor, *of_weight: Tensor) -> Tensor:
        """Ω_inner of each group."""
        view = self.partition.view
        parts = self._inner().rho(view(magnitude(w)), *map(view, of_weight))
        for lam in of_weight:
            parts = parts + view(lam).abs()
        return self.partition.sum(parts, w)


_INNER: Table[Callable[[CoefficientFunction], Separable]] = Table(
    "inner penalty of SHALO", {"l1": lambda h: L1(1.0), "halo": lambda h: HALO(1.0, 1.0, h)}
)
