"""Bad input: a clear error."""

import math

import pytest
import torch

import torch_halo as th

STRENGTHS = {
    "l1": lambda xi: th.L1(xi),
    "bridge": lambda xi: th.Bridge(xi, 0.5),
    "weighted_l1": lambda xi: th.WeightedL1(xi, {}),
    "mcp": lambda xi: th.MCP(xi, 3.0),
    "scad": lambda xi: th.SCAD(xi),
    "sws": lambda xi: th.SWS(xi),
    "halo": lambda xi: th.HALO(xi),
    "grouped": lambda xi: th.Grouped(th.L1(xi), "out"),
    "shalo": lambda xi: th.SHALO(xi),
}


def test_every_penalty_is_here():
    assert list(STRENGTHS) == list(th.PENALTIES)


@pytest.mark.parametrize("make", STRENGTHS.values(), ids=STRENGTHS)
@pytest.mark.parametrize("xi", [-1e-6, math.nan, math.inf, torch.ones(2), [0.1], None, True], ids=repr)
def test_strengths(make, xi):
    with pytest.raises((ValueError, TypeError), match=r"xi must be a finite number at least 0; received"):
        make(xi)


@pytest.mark.parametrize("make", [th.HALO, th.SWS, th.SHALO])
def test_psi(make):
    with pytest.raises(ValueError, match=r"psi must be a finite number at least 0; received -1"):
        make(0.1, -1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: th.MCP(0.1, 0), "MCP: gamma must be a finite number above 0; received 0"),
        (lambda: th.SCAD(0.1, 2), "SCAD: a must be a finite number above 2; received 2"),
        (lambda: th.Bridge(0.1, 0), "Bridge: q must be a finite number above 0; received 0"),
        (lambda: th.InversePower(0), "InversePower: k must be a finite number above 0; received 0"),
        (lambda: th.HALO("strong"), "xi must be a number, e.g. HALO"),
        (lambda: th.HALO("auto", 1e-6), "psi needs a number for xi, too; received psi 1e-06 and xi auto"),
        (lambda: th.HALO().value(torch.ones(2)), "xi is auto: give it a number, e.g. HALO"),
        (lambda: th.HALO().prox(torch.ones(2), 0.1), "xi is auto: give it a number, e.g. HALO"),
        (lambda: th.Grouped(th.HALO(), "out"), "inner must have a strength, and learn its λ jointly"),
        (lambda: th.HALO(0.1, h=3), "h must be a callable of λ; received 3"),
        (lambda: th.Grouped(th.SHALO(0.1), "out"), "inner must be an elementwise penalty"),
        (lambda: th.Grouped(th.WeightedL1(0.1, {}), "out"), "inner must be an elementwise penalty other than"),
        (lambda: th.Grouped(th.L1(0.1), "row"), "unknown groups 'row'; known: out, in, kernel"),
        (lambda: th.SHALO(0.1, groups="row"), "unknown groups 'row'; known: out, in, kernel"),
        (lambda: th.SHALO(0.1, inner="l2"), "unknown inner penalty of SHALO 'l2'; known: l1, halo"),
        (lambda: th.WeightedL1(0.1, 3), "weights must map parameter names to tensors"),
        (lambda: th.WeightedL1(0.1, {"a": -torch.ones(2)}), "must be finite and not negative"),
        (lambda: th.WeightedL1(0.1, {}).value(torch.ones(2)), "needs its coefficients"),
        (lambda: th.Grouped(th.L1(0.1), "out").value(torch.ones(3)), "needs weights of two or more axes"),
        (lambda: th.adaptive_weights({}, gamma=0), "gamma must be a finite number above 0"),
        (lambda: th.PENALTIES["hallo"], "unknown penalty 'hallo'; known: l1, bridge"),
    ],
)
def test_fields(make, message):
    with pytest.raises((ValueError, TypeError), match=message.replace("(", r"\(")):
        make()


@pytest.mark.parametrize("make", [th.HALO, th.SHALO])
@pytest.mark.parametrize("h", [lambda lam: lam.sum(), lambda lam: 3.0, lambda lam: torch.ones(2)])
def test_own_h_must_be_elementwise(make, h):
    with pytest.raises(ValueError, match="elementwise, differentiable function"):
        make(0.1, h=h)
