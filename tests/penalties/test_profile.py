"""HALO with λ at its best value: the bridge penalty."""

import pytest
import torch

import torch_halo as th

W = torch.tensor([0.01, -0.3, 0.7, -2.0], dtype=torch.float64)


def best(objective, low=1e-4, high=1e3):
    """min over λ of a unimodal function, elementwise, by golden section in log λ."""
    a, b = torch.full_like(W, low).log(), torch.full_like(W, high).log()
    for _ in range(200):
        c, d = b - 0.618033988749895 * (b - a), a + 0.618033988749895 * (b - a)
        left = objective(c.exp()) < objective(d.exp())
        a, b = torch.where(left, a, c), torch.where(left, d, b)
    return ((a + b) / 2).exp()


@pytest.mark.parametrize("k", [1, 2, 3.5])
@pytest.mark.parametrize(("xi", "psi"), [(0.3, 0.3), (0.2, 0.05)])
def test_the_profile_is_the_joint_penalty_at_its_best_coefficients(k, xi, psi):
    joint = th.HALO(xi, psi, th.InversePower(k))
    lam = best(lambda lam: xi * W.abs() * lam**-k + psi * lam)
    torch.testing.assert_close(lam, (k * xi * W.abs() / psi) ** (1 / (k + 1)), rtol=1e-6, atol=0)
    profile = joint.profile()
    assert profile.q == 1 / (k + 1)
    torch.testing.assert_close(profile.value(W), joint.value(W, lam), rtol=1e-9, atol=0)
    # The envelope: at the best λ the joint gradient in w is the profile's.
    by_joint, by_profile = torch.zeros_like(W), torch.zeros_like(W)
    by_lam = torch.zeros_like(W)
    joint.add_gradients_(W, (lam,), by_joint, (by_lam,))
    joint.add_prior_gradients_((lam,), (by_lam,))
    profile.add_gradients_(W, (), by_profile)
    torch.testing.assert_close(by_profile, by_joint, rtol=1e-6, atol=0)
    assert by_lam.abs().max() < 1e-6


@pytest.mark.parametrize("k", [1, 2, 3.5])
@pytest.mark.parametrize("decay", [5e-4, 0.1])
def test_with_weight_decay_on_the_coefficients(k, decay):
    xi, psi = 0.3, 0.0
    lam = best(lambda lam: xi * W.abs() * lam**-k + decay / 2 * lam**2)
    profile = th.HALO(xi, psi, th.InversePower(k)).profile(decay)
    assert profile.q == pytest.approx(2 / (k + 2))
    expected = (xi * W.abs() * lam**-k + decay / 2 * lam**2).sum()
    torch.testing.assert_close(profile.value(W), expected, rtol=1e-9, atol=0)


def test_for_k_2_it_is_a_square_root():
    profile = th.HALO(0.3).profile(0.01)
    assert (profile.xi, profile.q, profile.proximal) == (pytest.approx((2 * 0.01 * 0.3) ** 0.5), 0.5, True)


def test_standing_alone_it_is_its_profile():
    halo = th.HALO(0.3, 0.1, solve="profile")
    profile = halo.profile()
    assert halo.proximal
    assert not halo.learned
    assert halo.start(W) == ()
    torch.testing.assert_close(halo.value(W), profile.value(W))
    torch.testing.assert_close(halo.prox(W, 0.1), profile.prox(W, 0.1))
    one, other = torch.zeros_like(W), torch.zeros_like(W)
    halo.add_gradients_(W, (), one)
    profile.add_gradients_(W, (), other)
    assert torch.equal(one, other)


def test_bad_settings():
    with pytest.raises(ValueError, match="solve must be joint or profile; received 'fast'"):
        th.HALO(0.1, solve="fast")
    with pytest.raises(ValueError, match=r"solve='profile' needs h = InversePower\(k\)"):
        th.HALO(0.1, h=th.LogSquared(), solve="profile")
    with pytest.raises(ValueError, match="needs psi or a weight decay on λ; received 0 for both"):
        th.HALO(0.1, 0.0, solve="profile").profile()
