"""Proximal maps: against a brute-force grid, and as solvers against reference implementations."""

import pytest
import torch
from examples_of_penalties import PENALTIES, coefficients, named
from sklearn.linear_model import Lasso

import torch_halo as th
from torch_halo.penalties import Separable

SEPARABLE = [penalty for penalty in PENALTIES if isinstance(penalty, Separable)]
BRIDGES = [th.Bridge(0.4, q) for q in (0.1, 0.3, 0.5, 2 / 3, 0.9, 0.99, 1, 1.01, 1.2, 1.5, 1.99, 2, 3, 4.5)]


@pytest.mark.parametrize("penalty", SEPARABLE + BRIDGES, ids=named)
@pytest.mark.parametrize("step", [0.05, 0.7, 1.3])
def test_proximal_map_minimises_on_a_grid(penalty, step):
    w = torch.linspace(-3, 3, 61, dtype=torch.float64)
    lam = tuple(part.expand_as(w) for part in coefficients(penalty, w))
    grid = torch.arange(-12000, 12001, dtype=torch.float64) / 4000
    rho = torch.stack([penalty.rho(grid.abs(), *(part[i] for part in lam)) for i in range(len(w))])
    best = (0.5 * (grid - w[:, None]) ** 2 + step * rho).min(1).values
    x = penalty.prox(w, step, lam)
    reached = 0.5 * (x - w) ** 2 + step * penalty.rho(x.abs(), *lam)
    assert (reached <= best + 1e-12).all()
    assert (reached >= best - 1e-5).all()  # the grid is this fine


@pytest.mark.parametrize("penalty", BRIDGES, ids=named)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bridge_roots_are_stationary_over_many_scales(penalty, dtype):
    w = torch.logspace(-8, 4, 97, dtype=dtype)
    for step in (1e-6, 1e-2, 1.0, 1e3):
        x = penalty.prox(w, step)
        assert (x >= 0).all()
        assert (x <= w).all()
        residual = ((x - w + step * penalty.slopes(x)[0]) / w)[x > 1e-30]  # smaller ones have too few digits left
        tolerance = 2e-5 if dtype == torch.float32 else 1e-10
        torch.testing.assert_close(residual, torch.zeros_like(residual), rtol=0, atol=tolerance)


@pytest.mark.parametrize("groups", ["out", "in", "kernel"])
@pytest.mark.parametrize("inner", [th.L1(0.5), th.MCP(0.5, 3.0), th.SCAD(0.4), th.Bridge(0.4, 0.5)], ids=named)
def test_group_map_shrinks_each_norm_and_keeps_directions(inner, groups):
    w = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    dims = {"out": (1, 2, 3), "in": (0, 2, 3), "kernel": (2, 3)}[groups]
    norms = w.square().sum(dims, keepdim=True).sqrt()
    expected = w / norms * inner.shrink(norms, 0.9)
    torch.testing.assert_close(th.Grouped(inner, groups).prox(w, 0.9), expected)


def test_group_soft_threshold_by_hand():
    w = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    torch.testing.assert_close(th.Grouped(th.L1(1.0), "out").prox(w, 1.0), torch.tensor([[2.4, 3.2], [0.0, 0.0]]))


def test_steps_that_have_no_map_are_refused():
    with pytest.raises(ValueError, match=r"step below gamma = 2; received 2"):
        th.MCP(0.1, 2.0).prox(torch.ones(2), 2.0)
    with pytest.raises(ValueError, match=r"step below a - 1 = 1\.5; received 3"):
        th.SCAD(0.1, 2.5).prox(torch.ones(3), torch.tensor([0.1, 3.0, 3.0]))


@pytest.mark.parametrize("penalty", [th.MCP(0.1, 2.0), th.SCAD(0.1, 3.0)])
def test_steps_by_entry_that_are_too_long_are_cut_short(penalty):
    steps = torch.tensor([0.1, 0.1, 1e9])
    found = penalty.prox(torch.full((3,), 0.15), steps)
    assert found[:2].tolist() == penalty.prox(torch.full((2,), 0.15), 0.1).tolist()
    assert 0 <= float(found[2]) < float(found[0])


@pytest.mark.parametrize("groups", ["out", "in"])
def test_group_map_with_steps_by_entry_is_stationary(groups):
    """x − w + τ∘ξ·x/‖x‖ = 0 for a group that survives, ‖w/τ‖ ≤ ξ for one that does not."""
    w, step = torch.randn(4, 5, dtype=torch.float64), torch.rand(4, 5, dtype=torch.float64) + 0.1
    w[0], w[:, 0] = w[0] * 0.05, w[:, 0] * 0.05
    x = th.Grouped(th.L1(0.7), groups).prox(w, step)
    norms = x.norm(dim=1 if groups == "out" else 0, keepdim=True).expand_as(x)
    alive = norms > 0
    assert 0 < int(alive.sum()) < x.numel()
    residual = x - w + step * 0.7 * x / norms.clamp(min=1e-300)
    torch.testing.assert_close(residual[alive], torch.zeros_like(residual[alive]), rtol=0, atol=1e-12)
    dead = torch.where(alive, 0.0, w / step).norm(dim=1 if groups == "out" else 0)
    assert float(dead.max()) <= 0.7
    with pytest.raises(ValueError, match="steps by entry, as Adam's, inner must be L1 or HALO"):
        th.Grouped(th.MCP(0.1, 9), groups).prox(w, step)


def regression():
    x = torch.randn(100, 12, dtype=torch.float64)
    w = torch.tensor([3.0, -2.0, 1.5] + [0.0] * 9, dtype=torch.float64)
    return x, x @ w + 0.5 * torch.randn(100, dtype=torch.float64)


def proximal_gradient(penalty, x, y, steps=5000):
    """argmin of ‖y − Xw‖²/(2n) + Ω(w)."""
    step = len(y) / float(torch.linalg.matrix_norm(x, 2)) ** 2
    w = torch.zeros(x.shape[1], dtype=x.dtype)
    for _ in range(steps):
        w = penalty.prox(w - step * x.T @ (x @ w - y) / len(y), step)
    return w


def test_l1_solves_scikit_learns_lasso():
    x, y = regression()
    reference = Lasso(alpha=0.2, fit_intercept=False, tol=1e-12, max_iter=100000).fit(x, y)
    w = proximal_gradient(th.L1(0.2), x, y)
    torch.testing.assert_close(w, torch.from_numpy(reference.coef_), rtol=0, atol=1e-8)
    assert 0 < int((w == 0).sum()) < 12


def test_mcp_solves_skglms():
    skglm = pytest.importorskip("skglm")
    x, y = regression()
    reference = skglm.MCPRegression(alpha=0.2, gamma=3.0, fit_intercept=False, tol=1e-10).fit(x.numpy(), y.numpy())
    w = proximal_gradient(th.MCP(0.2, 3.0), x, y)
    torch.testing.assert_close(w, torch.from_numpy(reference.coef_), rtol=0, atol=1e-6)
    assert 0 < int((w == 0).sum()) < 12
