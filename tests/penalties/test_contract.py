"""What holds for every penalty of the table."""

import pytest
import torch
from examples_of_penalties import EXAMPLES, PENALTIES, SHAPES, coefficients, named

import torch_halo as th

every = pytest.mark.parametrize("penalty", PENALTIES, ids=named)
shaped = pytest.mark.parametrize("shape", SHAPES, ids=str)


def weight(shape):
    """Away from zero, where the penalties have kinks."""
    w = torch.randn(shape, dtype=torch.float64)
    return w + 0.05 * w.sign()


def test_every_penalty_has_an_example():
    assert list(EXAMPLES) == list(th.PENALTIES)
    for name, examples in EXAMPLES.items():
        assert all(type(example) is th.PENALTIES[name] for example in examples)


@every
@shaped
def test_gradients_are_those_of_the_value(penalty, shape):
    w = weight(shape).requires_grad_()
    lam = tuple(part.requires_grad_() for part in coefficients(penalty, w.detach()))
    value = penalty.value(w, lam)
    assert value.shape == ()
    inputs = (w, *lam) if penalty.learned else (w,)
    expected = torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True)
    grads = tuple(torch.zeros_like(part) for part in inputs)
    with torch.no_grad():
        penalty.add_gradients_(w, lam, grads[0], grads[1:])
        if penalty.learned:
            penalty.add_prior_gradients_(lam, grads[1:])
    for got, wanted in zip(grads, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)


@every
def test_gradients_agree_with_finite_differences(penalty):
    w = weight((3, 2)).requires_grad_()
    lam = tuple(part.requires_grad_() for part in coefficients(penalty, w.detach()))
    assert torch.autograd.gradcheck(lambda w, *lam: penalty.value(w, lam), (w, *lam))


@every
def test_gradients_accumulate_with_their_scales(penalty):
    w = weight((4, 3, 2))
    lam = coefficients(penalty, w)
    once, lam_once = torch.zeros_like(w), tuple(map(torch.zeros_like, lam))
    penalty.add_gradients_(w, lam, once, lam_once if penalty.learned else ())
    grad = torch.randn_like(w)
    lam_grads = tuple(torch.randn_like(part) for part in lam)
    expected = grad + 5 * once
    lam_expected = [a + 3 * b for a, b in zip(lam_grads, lam_once, strict=True)]
    penalty.add_gradients_(w, lam, grad, lam_grads if penalty.learned else (), scale=5.0, lam_scale=3.0)
    torch.testing.assert_close(grad, expected)
    if penalty.learned:
        torch.testing.assert_close(lam_grads, tuple(lam_expected))


@every
def test_zero_weights_have_no_gradient_and_stay(penalty):
    w = torch.zeros(4, 3, 2, dtype=torch.float64)
    lam = coefficients(penalty, w)
    grad = torch.zeros_like(w)
    penalty.add_gradients_(w, lam, grad)
    assert not grad.any()
    assert not penalty.prox(w, 0.1, lam).any()
    leaf = w.clone().requires_grad_()
    (by_autograd,) = torch.autograd.grad(penalty.value(leaf, lam), leaf)
    assert not by_autograd.any()


@every
def test_zero_weights_cost_nothing_but_the_prior(penalty):
    w = torch.zeros(4, 3, dtype=torch.float64)
    if isinstance(penalty, th.SHALO) and penalty.inner == "halo":
        pytest.skip("its coefficients of single weights count in the cost")
    lam = coefficients(penalty, w)
    assert float(penalty.cost(w, *lam)) == 0.0


@every
def test_even_in_w(penalty):
    w = weight((4, 3, 2))
    lam = coefficients(penalty, w)
    torch.testing.assert_close(penalty.value(w, lam), penalty.value(-w, lam))
    plus, minus = torch.zeros_like(w), torch.zeros_like(w)
    penalty.add_gradients_(w, lam, plus)
    penalty.add_gradients_(-w, lam, minus)
    torch.testing.assert_close(plus, -minus)
    torch.testing.assert_close(penalty.prox(-w, 0.1, lam), -penalty.prox(w, 0.1, lam))


@every
def test_gradients_make_no_graph(penalty):
    w = weight((4, 3)).requires_grad_()
    lam = coefficients(penalty, w.detach())
    grad, lam_grads = torch.zeros(4, 3, dtype=torch.float64), tuple(map(torch.zeros_like, lam))
    with torch.no_grad():
        penalty.add_gradients_(w, lam, grad, lam_grads if penalty.learned else ())
    assert grad.grad_fn is None
    assert not any(part.requires_grad for part in (grad, *lam_grads))


@every
def test_bfloat16_weights_are_computed_in_float32(penalty):
    w = weight((4, 3)).to(torch.bfloat16)
    lam = tuple(part.float() for part in coefficients(penalty, w.float()))
    exact = penalty.value(w.double(), tuple(part.double() for part in lam))
    torch.testing.assert_close(penalty.value(w, lam).double(), exact, rtol=1e-5, atol=0)
    grad = torch.zeros_like(w)
    penalty.add_gradients_(w, lam, grad)
    wanted = torch.zeros(4, 3)
    penalty.add_gradients_(w.float(), lam, wanted)
    torch.testing.assert_close(grad, wanted.bfloat16())
    assert penalty.prox(w, 0.1, lam).dtype == torch.bfloat16


@every
def test_frozen_and_hashable_as_a_configuration(penalty):
    with pytest.raises(AttributeError):
        penalty.anything = 1
    assert penalty == type(penalty)(**{f: getattr(penalty, f) for f in penalty.__dataclass_fields__})


def test_values_by_hand():
    w = torch.tensor([[0.5, -2.0]])
    assert th.L1(2.0).value(w) == pytest.approx(5.0)
    assert th.Bridge(1.0, 2).value(w) == pytest.approx(4.25)
    assert th.MCP(1.0, 2.0).value(w) == pytest.approx(0.5 - 0.25 / 4 + 1.0)  # γξ²/2 beyond γξ = 2
    assert th.SCAD(1.0, 3.0).value(w) == pytest.approx(0.5 + (2 * 3 * 2 - 4 - 1) / 4)
    lam = torch.tensor([[2.0, 0.5]])
    assert th.HALO(1.0, 0.1).value(w, lam) == pytest.approx(0.5 / 4 + 2 / 0.25 + 0.1 * 2.5)
    assert th.SWS(1.0, 0.1).value(w, torch.tensor(2.0)) == pytest.approx(2.5 / 4 + 0.4)
    assert th.Grouped(th.L1(1.0), "out").value(w) == pytest.approx(4.25**0.5)
    assert th.SHALO(1.0, 0.1).value(w, torch.tensor([[2.0]])) == pytest.approx(2.5 / 4 + 0.2)
    both = (torch.tensor([[2.0]]), lam)
    assert th.SHALO(1.0, 0.1, inner="halo").value(w, both) == pytest.approx((0.5 / 4 + 8 + 2.5) / 4 + 0.2)
    log = torch.log(torch.tensor(2.0)) ** 2
    assert th.HALO(1.0, 0.0, th.LogSquared()).value(w, lam) == pytest.approx(float(log * 2.5))


def test_mcp_is_continuous_at_its_knot():
    mcp = th.MCP(1.0, 2.0)
    at = [mcp.value(torch.tensor([2.0 + e], dtype=torch.float64)) for e in (-1e-7, 1e-7)]
    assert float(at[1] - at[0]) == pytest.approx(0.0, abs=1e-12)


def test_adaptive_weights_come_from_a_first_fit():
    fitted = torch.nn.Linear(3, 2)
    weights = th.adaptive_weights(fitted, gamma=0.5, epsilon=1e-3)
    torch.testing.assert_close(weights["weight"], (fitted.weight.detach().abs() + 1e-3) ** -0.5)
    assert set(weights) == {"weight", "bias"}


def test_psi_defaults_to_xi():
    assert th.HALO(0.2).psi == th.SWS(0.2).psi == th.SHALO(0.2).psi == 0.2
