"""Scores at initialisation: by hand, against double backward, and against finite differences."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from torch_halo.data import load
from torch_halo.methods.scores import class_batch, grasp, keep_largest, snip

SHAPES = {"0.weight": (4, 3), "2.weight": (3, 4)}


@pytest.fixture
def tiny():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    return model, torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])


def loss_of(model, x, y, temperature=1.0):
    """The loss as a function of the selected weights, laid out in one vector."""

    def loss(vector):
        parts = vector.split([12, 12])
        weights = {name: part.view(shape) for (name, shape), part in zip(SHAPES.items(), parts, strict=True)}
        return F.cross_entropy(functional_call(model, weights, (x,)) / temperature, y)

    return loss, torch.cat([model[0].weight.detach().flatten(), model[2].weight.detach().flatten()])


def flat(scores):
    return torch.cat([scores[name].flatten() for name in SHAPES])


def test_snip_is_the_weight_times_its_slope_by_finite_differences(tiny):
    loss, w = loss_of(*tiny)
    h = 1e-6 * torch.eye(24, dtype=torch.float64)
    slopes = torch.stack([(loss(w + step) - loss(w - step)) / 2e-6 for step in h])
    torch.testing.assert_close(flat(snip(*tiny)), (w * slopes).abs(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("temperature", [1.0, 200.0])
def test_grasp_is_the_weight_times_the_hessian_times_the_gradient(tiny, temperature):
    loss, w = loss_of(*tiny, temperature)
    gradient = torch.autograd.functional.jacobian(loss, w)
    hessian = torch.autograd.functional.hessian(loss, w)
    found = flat(grasp(*tiny, temperature=temperature))
    torch.testing.assert_close(found, w * (hessian @ gradient), rtol=1e-8, atol=1e-14)


def test_grasp_by_finite_differences(tiny):
    loss, w = loss_of(*tiny)
    slope = partial(torch.autograd.functional.jacobian, loss)
    g, h = slope(w), 1e-6
    hg = (slope(w + h * g) - slope(w - h * g)) / (2 * h)
    torch.testing.assert_close(flat(grasp(*tiny, temperature=1.0)), w * hg, rtol=1e-5, atol=1e-9)


def test_snip_by_hand():
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    # At x = (1, 0) the outputs are (1, 0): softmax (0.731, 0.269), and the slope of w is (p − y)xᵀ.
    scores = snip(model, torch.tensor([[1.0, 0.0]]), torch.tensor([0]))["weight"]
    torch.testing.assert_close(scores, torch.tensor([[0.26894143, 0.0], [0.0, 0.0]]))


def test_scores_leave_the_model_as_it_was(tiny):
    model, x, y = tiny
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for score in (snip, grasp):
        assert {name: tuple(found.shape) for name, found in score(model, x, y).items()} == SHAPES
        assert list(score(model, x, y, select="2")) == ["2.weight"]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_keep_largest_cuts_the_exact_count():
    scores = {"a": torch.tensor([[5.0, -3.0], [4.0, 2.0]]), "b": torch.tensor([-1.0, 9.0, 7.0, 8.0])}
    masks = keep_largest(scores, 0.5)
    assert masks["a"].tolist() == [[True, False], [False, False]]
    assert masks["b"].tolist() == [False, True, True, True]
    assert keep_largest(scores, 0.0).sparsity == 0


def test_a_layers_best_weight_is_kept():
    scores = {"a": torch.tensor([1.0, 2.0]), "b": torch.arange(10.0, 18.0)}
    masks = keep_largest(scores, 0.8)
    assert masks["a"].tolist() == [False, True]
    assert int(masks["b"].sum()) == 1
    assert keep_largest(scores, 0.9).sparsity == 0.9  # one weight for two layers: the best of all
    equal = keep_largest({"a": torch.zeros(6)}, 0.5)["a"]
    assert int(equal.sum()) == 3


def test_bad_scores():
    with pytest.raises(ValueError, match="sparsity must be a finite number at least 0 and below 1; received 1"):
        keep_largest({"a": torch.ones(3)}, 1)
    with pytest.raises(ValueError, match="the scores are not finite"):
        keep_largest({"a": torch.tensor([1.0, torch.nan])}, 0.5)


def test_a_batch_of_every_class():
    data = load("digits")
    inputs, labels = class_batch(data, 10, seed=3)
    assert torch.equal(labels.bincount(), torch.full((10,), 10))
    assert inputs.shape == (100, 1, 8, 8)
    assert inputs.dtype == torch.float32
    assert torch.equal(inputs, class_batch(data, 10, seed=3)[0])
    assert not torch.equal(inputs, class_batch(data, 10, seed=4)[0])
