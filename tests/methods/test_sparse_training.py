"""Densities, schedules, RigL's exchange and learned thresholds, by hand."""

import math

import pytest
import torch

from torch_halo.methods.densities import DENSITIES, kept_counts
from torch_halo.methods.gradual import cosine_fraction, cubic, drop_and_grow
from torch_halo.methods.thresholds import Step, masked_by_threshold, soft_threshold_by
from torch_halo.models import MODELS
from torch_halo.selection import select_weights

LENET = {"1.weight": (300, 784), "3.weight": (100, 300), "5.weight": (10, 100)}


@pytest.mark.parametrize("how", DENSITIES)
@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9, 0.95, 0.987])
@pytest.mark.parametrize("name", MODELS)
def test_the_count_is_exact(how, sparsity, name):
    model = MODELS[name]((3, 32, 32), 10)
    shapes = {weight.name: tuple(weight.parameter.shape) for weight in select_weights(model)}
    total = sum(math.prod(shape) for shape in shapes.values())
    try:
        counts = kept_counts(shapes, sparsity, how)
    except ValueError:
        first = math.prod(next(iter(shapes.values())))
        assert how == "uniform"
        assert first > total - round(sparsity * total)
        return
    assert sum(counts.values()) == total - round(sparsity * total)
    assert all(0 <= counts[key] <= math.prod(shape) for key, shape in shapes.items())


def test_erdos_renyi_by_hand():
    # ε(300 + 784), ε(100 + 300), ε(10 + 100) weights, 26,620 in all: ε = 16.70; the last has room for 1,000.
    counts = kept_counts(LENET, 0.9)
    left = 26_620 - 1_000
    assert counts["5.weight"] == 1_000
    assert counts["1.weight"] == pytest.approx(left * 1084 / 1484, abs=1)
    assert counts["3.weight"] == pytest.approx(left * 400 / 1484, abs=1)


def test_uniform_keeps_the_first_layer():
    counts = kept_counts({"a": (3, 10), "b": (10, 10), "c": (10, 10)}, 0.5, "uniform")
    assert counts == {"a": 30, "b": 43, "c": 42}
    with pytest.raises(ValueError, match="23 weights are not enough to keep a whole; lower the sparsity"):
        kept_counts({"a": (3, 10), "b": (10, 10), "c": (10, 10)}, 0.9, "uniform")


def test_gmps_schedule():
    found = [cubic(step, begin=100, end=300, final=0.9, initial=0.1) for step in (0, 100, 150, 200, 300, 999)]
    assert found == pytest.approx([0.1, 0.1, 0.9 - 0.8 * 0.75**3, 0.8, 0.9, 0.9])


def test_rigls_fraction():
    found = [cosine_fraction(step, end=100) for step in (0, 50, 99, 100, 200)]
    assert found == pytest.approx([0.3, 0.15, 0.15 * (1 + math.cos(0.99 * math.pi)), 0, 0])


def test_rigl_exchanges_the_smallest_for_the_steepest():
    weight = torch.tensor([[0.5, -0.1, 0.3], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True], [False, False, False]])
    gradient = torch.tensor([[9.0, 0.2, 9.0], [0.1, -0.7, 0.3]])
    assert drop_and_grow(weight, gradient, mask, 1 / 3).tolist() == [[True, False, True], [False, True, False]]
    # Its gradient brings a dropped weight back.
    gradient[0, 1] = 5.0
    assert drop_and_grow(weight, gradient, mask, 1 / 3).tolist() == mask.tolist()
    assert drop_and_grow(weight, gradient, mask, 0.0).tolist() == mask.tolist()
    assert int(drop_and_grow(weight, gradient, mask, 1.0).sum()) == 3


def test_dsts_step_and_its_derivative():
    x = torch.tensor([-1.5, -1.0, -0.7, -0.4, -0.1, 0.0, 0.1, 0.4, 0.41, 1.0, 1.01], requires_grad=True)
    y = Step.apply(x)
    assert y.tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1]
    (slope,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(slope, torch.tensor([0, 0.4, 0.4, 0.4, 1.6, 2, 1.6, 0.4, 0.4, 0.4, 0]))


def test_dst_masks_by_output_channel():
    weight = torch.tensor([[0.5, -0.2], [0.5, -0.2]], requires_grad=True)
    threshold = torch.tensor([0.1, 0.3], requires_grad=True)
    out = masked_by_threshold(weight, threshold[:, None])
    assert out.tolist() == [[0.5, pytest.approx(-0.2)], [0.5, 0.0]]
    by_weight, by_threshold = torch.autograd.grad(out.sum(), [weight, threshold])
    # ∂/∂w = 1[|w| > t] + w·sign(w)·slope(|w| − t); ∂/∂t = −Σ w·slope(|w| − t).
    torch.testing.assert_close(by_weight, torch.tensor([[1 + 0.5 * 0.4, 1 + 0.2 * 1.6], [1 + 0.5 * 1.2, 0.2 * 1.6]]))
    torch.testing.assert_close(by_threshold, -torch.tensor([0.5 * 0.4 - 0.2 * 1.6, 0.5 * 1.2 - 0.2 * 1.6]))


def test_strs_soft_threshold():
    weight, s = torch.tensor([0.9, -0.6, 0.2], requires_grad=True), torch.tensor(0.0, requires_grad=True)
    out = soft_threshold_by(weight, s)
    torch.testing.assert_close(out, torch.tensor([0.4, -0.1, 0.0]))
    by_weight, by_s = torch.autograd.grad(out.sum(), [weight, s])
    torch.testing.assert_close(by_weight, torch.tensor([1.0, 1.0, 0.0]))
    torch.testing.assert_close(by_s, torch.tensor(0.0))  # +1 and −1 times −σ′(0)
