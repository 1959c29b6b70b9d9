"""The compiled step: the numbers of the one in pieces, one graph for all shapes and rates, and a way on without it."""

import warnings

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import torch_halo as th
from torch_halo import coefficients, fused

STEPS = 5


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 5, 1), nn.Flatten(), nn.Linear(5 * 36, 7))


def trained(penalty, *, compiled, layout=torch.contiguous_format):
    """A few steps with a falling learning rate; the optimizer's state with λ, and the weights."""
    model = network().to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    shrink = th.Shrinkage(model, penalty, optimizer, compiled=compiled)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
        inputs = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return {**model.state_dict(), **shrink.coefficients}


def trained_compiled(penalty):
    with warnings.catch_warnings(record=True) as caught:
        found = trained(penalty, compiled=True)
    if any("not compiled" in str(warning.message) for warning in caught):
        pytest.skip("no compiler here")
    return found


@pytest.fixture
def small_is_large(monkeypatch):
    monkeypatch.setattr(coefficients, "LEAST_TENSOR", 1)
    monkeypatch.setattr(fused, "_compiled", {})


@pytest.mark.parametrize(
    "penalty",
    [th.HALO(1e-2), th.HALO(1e-2, proximal=True), th.HALO(1e-4, solve="profile")],
    ids=["joint", "proximal", "profile"],
)
def test_the_compiled_step_is_the_same(penalty, small_is_large):
    expected = trained(penalty, compiled=False)
    before = counters["stats"]["unique_graphs"]
    found = trained_compiled(penalty)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=2e-5, atol=1e-7)
    if penalty.proximal:
        assert all(torch.equal(found[name] == 0, value == 0) for name, value in expected.items())
    graphs = 2 if penalty.proximal and penalty.learned else 1  # λ's step, and the map
    assert counters["stats"]["unique_graphs"] - before == graphs  # for three shapes and five learning rates
    if not penalty.proximal:
        again = trained(penalty, compiled=True, layout=torch.channels_last)
        for name, value in expected.items():
            torch.testing.assert_close(again[name], value, rtol=1e-4, atol=1e-6)


def test_without_a_compiler_it_goes_on_and_says_so(small_is_large, monkeypatch):
    def broken(function, **options):
        def run(*arguments):
            raise RuntimeError("backend raised:\n  no C++ compiler\nmore about it")

        return run

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.warns(
        UserWarning, match=r"^HALO's step is not compiled, and slower: backend raised: no C\+\+ compiler$"
    ) as caught:
        found = trained(th.HALO(1e-2), compiled=True)
    assert len(caught) == 1
    expected = trained(th.HALO(1e-2), compiled=False)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_penalty_with_tensors_of_its_own(small_is_large):
    weights = {name: torch.rand_like(p) for name, p in network().named_parameters()}
    penalty = th.WeightedL1(1e-2, weights)
    expected, found = trained(penalty, compiled=False), trained_compiled(penalty)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=2e-5, atol=1e-7)


def test_a_compiler_that_fails_later(small_is_large, monkeypatch):
    """The limit on recompilations, say."""
    calls = []

    def flaky(function, **options):
        def run(*arguments):
            calls.append(1)
            if len(calls) > 4:
                raise RuntimeError("too many graphs")
            function(*arguments)

        return run

    monkeypatch.setattr(torch, "compile", flaky)
    with pytest.warns(UserWarning, match="not compiled, and slower: too many graphs"):
        found = trained(th.HALO(1e-2), compiled=True)
    expected = trained(th.HALO(1e-2), compiled=False)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=2e-5, atol=1e-7)


@pytest.fixture
def compilations(monkeypatch):
    """What torch.compile is asked for."""
    found = []

    def asked(function, **options):
        found.append(function.__name__)
        return function

    monkeypatch.setattr(torch, "compile", asked)
    return found


def test_small_models_need_no_compiler(compilations):
    trained(th.HALO(1e-2), compiled=None)
    assert compilations == []


def test_only_penalties_by_entry_are_compiled(small_is_large, compilations):
    for penalty in (th.SWS(1e-3), th.Grouped(th.L1(1e-3), "out"), th.SHALO(1e-3)):
        trained(penalty, compiled=True)
    assert compilations == []
    trained(th.L1(1e-3), compiled=True)
    trained(th.L1(1e-3, proximal=True), compiled=True)
    assert compilations == ["_shrink_", "_threshold_"]
