"""Limits in which one penalty becomes another, and the closed forms of the paper's penalty."""

import pytest
import torch
from examples_of_penalties import coefficients

import torch_halo as th

W = torch.linspace(-2, 2, 24, dtype=torch.float64).reshape(6, 2, 2) + 0.01


def everything(penalty, lam=()):
    grad = torch.zeros_like(W)
    penalty.add_gradients_(W, lam, grad)
    return penalty.cost(W, *lam), grad, penalty.prox(W, 0.2, lam)


def assert_same(penalty, other, lam=(), other_lam=()):
    for got, wanted in zip(everything(penalty, lam), everything(other, other_lam), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)


def test_mcp_with_infinite_gamma_is_l1():
    assert_same(th.MCP(0.3, 1e9), th.L1(0.3))


def test_scad_with_infinite_a_is_l1():
    assert_same(th.SCAD(0.3, 1e9), th.L1(0.3))


def test_bridge_with_q_1_is_l1():
    assert_same(th.Bridge(0.3, 1), th.L1(0.3))


def test_halo_with_coefficients_1_is_l1():
    assert_same(th.HALO(0.3), th.L1(0.3), th.HALO(0.3).start(W))


def test_weighted_l1_is_halo_at_fixed_coefficients():
    lam = coefficients(th.HALO(0.3), W)
    assert_same(th.WeightedL1(0.3, {}), th.HALO(0.3), (lam[0] ** -2,), lam)


@pytest.mark.parametrize("inner", [th.L1(0.3), th.MCP(0.5, 3.0), th.SCAD(0.4), th.Bridge(0.2, 0.5), th.HALO(0.3)])
def test_singleton_groups_are_elementwise(inner):
    flat = W.reshape(6, 4)  # a matrix's kernels are its entries
    lam = coefficients(inner, flat)
    grouped = th.Grouped(inner, "kernel")
    torch.testing.assert_close(grouped.value(flat, lam), inner.value(flat, lam))
    torch.testing.assert_close(grouped.prox(flat, 0.2, lam), inner.prox(flat, 0.2, lam))


def test_shalo_1_on_singletons_is_halo():
    flat = W.reshape(6, 4)
    lam = coefficients(th.HALO(0.3), flat)
    shalo = th.SHALO(0.3, 0.1, groups="kernel")
    torch.testing.assert_close(shalo.value(flat, lam), th.HALO(0.3, 0.1).value(flat, lam))


@pytest.mark.parametrize("k", [1, 2, 3.5])
def test_best_coefficient_and_bridge_profile(k):
    """λ* = (kξ|w|/ψ)^(1/(k+1)), and HALO there is ψ(1+1/k)(kξ|w|/ψ)^(1/(k+1))."""
    xi, psi = 0.3, 0.2
    halo = th.HALO(xi, psi, th.InversePower(k))
    w = torch.tensor([0.01, 0.5, -2.0], dtype=torch.float64)
    best = (k * xi * w.abs() / psi) ** (1 / (k + 1))
    grad, lam_grad = torch.zeros_like(w), torch.zeros_like(w)
    halo.add_gradients_(w, (best,), grad, (lam_grad,))
    halo.add_prior_gradients_((best,), (lam_grad,))
    torch.testing.assert_close(lam_grad, torch.zeros_like(w), rtol=0, atol=1e-12)
    bridge = th.Bridge(psi * (1 + 1 / k) * (k * xi / psi) ** (1 / (k + 1)), 1 / (k + 1))
    torch.testing.assert_close(halo.value(w, best), bridge.value(w))
    bridge_grad = torch.zeros_like(w)
    bridge.add_gradients_(w, (), bridge_grad)
    torch.testing.assert_close(grad, bridge_grad)
