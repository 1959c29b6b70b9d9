"""Proximal penalties: the right fixed point under every optimizer, exact zeros, and what is refused."""

import pytest
import torch
from small import assert_same, batches, network, sgd, train
from torch import nn

import torch_halo as th
from torch_halo.training.config import Config

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9),
    "dampened": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, dampening=0.5),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.0),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.004, alpha=0.9),
    "rmsprop with momentum": lambda p: torch.optim.RMSprop(p, lr=0.003, alpha=0.9, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.5),
}


class Points(nn.Module):
    """Numbers that want to be 1, −1, 0.2 and 2."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[0.5, -0.5, 0.1, 0.5]]))
        self.register_buffer("wanted", torch.tensor([[1.0, -1.0, 0.2, 2.0]], dtype=torch.float64))

    def loss(self):
        return 0.5 * (self.layer.weight - self.wanted).square().sum()


def balanced(wanted, x=2.0):
    """The larger root of x + 0.15/√x = wanted."""
    for _ in range(100):
        x = wanted - 0.15 * x**-0.5
    return x


def settled(penalty, optimizer, steps=800, **options):
    model = Points()
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    th.Shrinkage(model, penalty, optimizer, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        model.loss().backward()
        optimizer.step()
    return model.layer.weight.detach().flatten().tolist()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_it_ends_where_loss_and_penalty_balance(optimizer):
    found = settled(th.L1(0.3, proximal=True), optimizer)
    assert found == pytest.approx([0.7, -0.7, 0.0, 1.7], abs=5e-3)
    assert found[2] == 0.0


@pytest.mark.parametrize(
    ("penalty", "expected"),
    [
        (th.MCP(0.3, 3.0, proximal=True), [1.0, -1.0, 0.0, 2.0]),  # flat from 0.9 on
        (th.SCAD(0.3, 3.0, proximal=True), [1.0, -1.0, 0.0, 2.0]),
        (th.Bridge(0.3, 0.5, proximal=True), [balanced(1.0), -balanced(1.0), 0.0, balanced(2.0)]),
        (th.Grouped(th.L1(0.3), "in", proximal=True), [0.7, -0.7, 0.0, 1.7]),
    ],
)
def test_other_penalties(penalty, expected):
    assert settled(penalty, "momentum") == pytest.approx(expected, abs=1e-4)


def test_joint_halo_gives_exact_zeros_at_its_coefficients():
    model = Points()
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    shrink = th.Shrinkage(model, th.HALO(0.05, 0.05, proximal=True), optimizer, coefficient_weight_decay=0.0)
    for _ in range(1500):
        optimizer.zero_grad()
        model.loss().backward()
        optimizer.step()
    w, lam = model.layer.weight.detach().flatten(), shrink.coefficients["layer.weight"].flatten()
    large = w.abs() > 0.5
    assert large.tolist() == [True, True, False, True]
    assert float(w[2]) == 0.0
    # Stationary in w and in λ: w = w* − ξ/λ², λ³ = 2ξ|w|/ψ.
    torch.testing.assert_close(lam[large] ** 3, 2 * w[large].abs(), rtol=1e-3, atol=0)
    wanted = model.wanted.flatten()[large]
    torch.testing.assert_close(w[large], wanted - wanted.sign() * 0.05 / lam[large] ** 2, rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("inner", "optimizer"),
    [(th.L1(0.3), "momentum"), (th.L1(0.3), "adam"), (th.L1(0.3), "adagrad"), (th.HALO(0.3, 0.0), "adam")],
)
def test_groups_end_where_loss_and_penalty_balance(inner, optimizer):
    """A group of four: x = w*·(1 − 0.3/‖w*‖), with λ at 1."""
    found = torch.tensor(settled(th.Grouped(inner, "out", proximal=True), optimizer, coefficient_lr=0.0))
    wanted = torch.tensor([1.0, -1.0, 0.2, 2.0])
    torch.testing.assert_close(found, wanted * (1 - 0.3 / wanted.norm()), rtol=0, atol=2e-3)


def test_groups_of_one_weight_learn_their_coefficients_when_some_are_zero():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    th.Shrinkage(model, th.Grouped(th.HALO(0.1), "kernel", proximal=True), optimizer)
    with torch.no_grad():
        model.weight[0] = 0.0
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()
    assert bool(model.weight.isfinite().all())


def test_a_dead_weights_coefficient_rests():
    model = Points()
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    shrink = th.Shrinkage(model, th.HALO(0.05, 0.05, proximal=True), optimizer)
    rested = []
    for _ in range(300):
        optimizer.zero_grad()
        model.loss().backward()
        is_dead, before = bool(model.layer.weight[0, 2] == 0), shrink.coefficients["layer.weight"].clone()
        optimizer.step()
        after = shrink.coefficients["layer.weight"]
        assert (after[0, 2] == before[0, 2]) == is_dead
        assert after[0, 0] != before[0, 0]  # while others move
        rested.append(is_dead)
    assert sum(rested) > 100


def test_the_profile_ends_where_the_joint_objective_is_stationary():
    xi = psi = 0.05
    found = torch.tensor(settled(th.HALO(xi, psi, solve="profile"), "momentum", coefficient_weight_decay=0.0))
    assert float(found[2]) == 0.0
    for w, wanted in zip(found.tolist(), (1.0, -1.0, 0.2, 2.0), strict=True):
        if w:
            lam = (2 * xi * abs(w) / psi) ** (1 / 3)
            assert w + (1 if w > 0 else -1) * xi / lam**2 == pytest.approx(wanted, abs=1e-4)


def test_the_profile_keeps_no_coefficients():
    model = network()
    optimizer = sgd(model)
    shrink = th.Shrinkage(model, th.HALO(1e-3, solve="profile"), optimizer)
    train(model, optimizer, batches(5))
    assert shrink.coefficients == {}
    assert all(set(entry) <= {"momentum_buffer"} for entry in optimizer.state.values())
    assert float(shrink.value()) > 0


def test_the_ramp_scales_the_map():
    first, second = network(), network()
    for model, options in ((first, {"ramp_steps": 10**9}), (second, {})):
        optimizer = sgd(model)
        th.Shrinkage(model, th.L1(0.1 if options else 0.0, proximal=True), optimizer, **options)
        train(model, optimizer, batches(1))
    assert_same(first, second)


def test_zeros_are_many_and_exact():
    model = network()
    optimizer = sgd(model)
    th.Shrinkage(model, th.HALO(1e-2, solve="profile"), optimizer)
    train(model, optimizer, batches(200))
    assert th.sparsity(model).sparsity > 0.3


def test_what_is_refused():
    model = network()
    with pytest.raises(
        ValueError, match=r"a proximal penalty needs one of the optimizers SGD, AdamW, .*; received Adadelta"
    ):
        th.Shrinkage(model, th.L1(0.1, proximal=True), torch.optim.Adadelta(model.parameters()))
    with pytest.raises(ValueError, match="one λ for the whole model has no proximal training"):
        th.Shrinkage(model, th.Grouped(th.SWS(0.1), "out", proximal=True), sgd(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    shrink = th.Shrinkage(model, th.MCP(0.1, 3.0, proximal=True), optimizer)
    with pytest.raises(ValueError, match="MCP: the proximal map needs a step below gamma = 3; received 5"):
        train(model, optimizer, batches(1))
    shrink.detach()


def test_runs_keep_their_names():
    plain = Config(penalty=th.HALO(1e-6))
    assert "proximal" not in plain.as_dict()["penalty"]
    assert "solve" not in plain.as_dict()["penalty"]
    other = Config(penalty=th.HALO(1e-6, solve="profile"))
    assert other.as_dict()["penalty"]["solve"] == "profile"
    assert Config.from_dict(other.as_dict()) == other
    assert other.name != plain.name
