import math

import pytest
import torch
from small import network
from torch import nn
from torch.nn.utils import prune as torch_prune

import torch_halo as th
from torch_halo.ranking import smallest
from torch_halo.weights import Weight


def flat(model):
    return torch.cat([m.weight.detach().flatten() for m in model if hasattr(m, "weight") and m.weight.ndim > 1])


def layers(*weights, dtype=torch.float32):
    model = nn.Sequential(*[nn.Linear(len(w[0]), len(w), bias=False, dtype=dtype) for w in weights])
    with torch.no_grad():
        for layer, values in zip(model, weights, strict=True):
            layer.weight.copy_(torch.tensor(values))
    return model


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("sparsity", [0.0, 0.1, 0.5, 0.77, 0.95])
def test_the_count_is_exact_and_the_smallest_go(sparsity, dtype):
    model = network(dtype)
    before = flat(model).abs()
    masks = th.prune_(model, sparsity=sparsity, allow_empty=True)
    after = flat(model).abs()
    count = round(sparsity * before.numel())
    assert int((after == 0).sum()) == count
    assert masks.sparsity == count / before.numel()
    if count > 0:
        assert before[after == 0].max() <= before[after > 0].min()
    assert th.sparsity(model).zeros == count


def test_the_same_as_torchs_global_pruning():
    ours, theirs = network(), network()
    masks = th.prune_(ours, sparsity=0.6)
    torch_prune.global_unstructured(
        [(theirs[0], "weight"), (theirs[4], "weight")], torch_prune.L1Unstructured, amount=0.6
    )
    assert torch.equal(masks["0.weight"], theirs[0].weight_mask.bool())
    assert torch.equal(masks["4.weight"], theirs[4].weight_mask.bool())


def test_ties_by_hand():
    model = layers([[1.0, -1.0], [1.0, 2.0]], [[-1.0, 1.0]])
    th.prune_(model, sparsity=0.5)
    assert model[0].weight.tolist() == [[0.0, 0.0], [0.0, 2.0]]
    assert model[1].weight.tolist() == [[-1.0, 1.0]]


def test_all_equal_weights_still_give_the_exact_count():
    model = layers([[1.0] * 10] * 10)
    assert th.prune_(model, sparsity=0.37).sparsity == 0.37


def test_existing_zeros_count():
    model = layers([[0.0, 0.0, 3.0, 4.0, 5.0], [1.0, 2.0, 6.0, 7.0, 8.0]])
    th.prune_(model, sparsity=0.3)
    assert model[0].weight.tolist() == [[0.0, 0.0, 3.0, 4.0, 5.0], [0.0, 2.0, 6.0, 7.0, 8.0]]
    masks = th.prune_(model, sparsity=0.1)  # more are zero already
    assert masks.sparsity == 0.3


def test_layer_scope():
    model = layers([[1.0, 2.0, 3.0, 4.0]], [[10.0], [20.0], [30.0], [40.0]])
    th.prune_(model, sparsity=0.5, scope="layer")
    assert model[0].weight.tolist() == [[0.0, 0.0, 3.0, 4.0]]
    assert model[1].weight.flatten().tolist() == [0.0, 0.0, 30.0, 40.0]


def test_threshold_cuts_what_is_not_above_it():
    model = layers([[0.1, -0.2, 0.3]])
    masks = th.prune_(model, threshold=0.2)
    assert masks["0.weight"].tolist() == [[False, False, True]]
    assert th.prune_(layers([[1.0, 2.0]]), threshold=0.0).sparsity == 0.0


def test_a_layer_keeps_its_largest_weight_and_the_total_stays_exact():
    weights = [[0.1, -0.3, 0.2]], [[1.0], [2.0], [3.0], [4.0], [5.0], [6.0], [7.0]]
    model = layers(*weights)
    with pytest.warns(UserWarning, match=r"^0\.weight would have lost every weight; the largest was kept"):
        masks = th.prune_(model, sparsity=0.5)
    assert torch.allclose(model[0].weight, torch.tensor([[0.0, -0.3, 0.0]]))
    assert masks.sparsity == 0.5
    assert model[1].weight.flatten().tolist() == [0, 0, 0, 4, 5, 6, 7]
    model = layers(*weights)
    assert th.prune_(model, sparsity=0.5, allow_empty=True).sparsity == 0.5
    assert not model[0].weight.any()
    with pytest.warns(UserWarning, match=r"0\.weight"):
        assert th.prune_(layers(*weights), threshold=0.5).sparsity == 0.2


def test_sparing_one_layer_may_endanger_another():
    model = layers([[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0, 7.0, 8.0]])
    with pytest.warns(UserWarning, match=r"0\.weight, 1\.weight"):
        masks = th.prune_(model, sparsity=0.625)
    assert masks.sparsity == 0.625
    assert [int(mask.sum()) for mask in masks.values()] == [1, 1, 1]


def test_a_sparsity_that_leaves_less_than_one_a_layer_leaves_one():
    model = layers([[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]])
    with pytest.warns(UserWarning, match=r"0\.weight, 1\.weight, 2\.weight would have lost every weight"):
        assert th.prune_(model, sparsity=0.85).sparsity == 0.5
    assert th.prune_(model, sparsity=0.85, allow_empty=True).sparsity == pytest.approx(5 / 6)
    small = nn.Sequential(nn.Linear(8, 10), nn.Linear(10, 1))
    with pytest.warns(UserWarning, match=r"^1\.weight would have lost"):
        masks = th.prune_(small, 0.95, scope="layer")
    assert [int(mask.sum()) for mask in masks.values()] == [4, 1]


def test_the_floor_in_channels_last():
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)).to(memory_format=torch.channels_last)
    with torch.no_grad():
        model[0].weight.mul_(1e-3)
    largest = model[0].weight.detach().abs().max()
    with pytest.warns(UserWarning, match=r"^0\.weight would have lost"):
        assert th.prune_(model, 0.6).sparsity == round(0.6 * 1152) / 1152
    assert float(model[0].weight.detach().abs().max()) == float(largest)


def test_a_tied_weight_under_its_second_name():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    model[1].weight = model[0].weight
    assert list(th.prune_(model, 0.5, select=nn.Linear)) == ["1.weight"]
    assert int((model[0].weight == 0).sum()) == 10


def test_a_layer_of_zeros_is_not_at_stake():
    model = layers([[0.0, 0.0]], [[1.0, 2.0]])
    assert th.prune_(model, sparsity=0.75).sparsity == 0.75


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give one of sparsity and threshold; received sparsity=None, threshold=None"),
        ({"sparsity": 0.5, "threshold": 0.1}, "give one of sparsity and threshold"),
        ({"sparsity": 1.0}, "sparsity must be a finite number at least 0 and below 1; received 1.0"),
        ({"sparsity": -0.1}, "sparsity must be a finite number at least 0 and below 1"),
        ({"sparsity": math.nan}, "sparsity must be a finite number"),
        ({"sparsity": "95%"}, "sparsity must be a finite number"),
        ({"threshold": -1.0}, "threshold must be a finite number at least 0"),
        ({"sparsity": 0.5, "scope": "model"}, "unknown scope 'model'; known: global, layer"),
    ],
)
def test_bad_input_changes_nothing(options, message):
    model = network()
    before = flat(model).clone()
    with pytest.raises((ValueError, TypeError), match=message):
        th.prune_(model, **options)
    assert torch.equal(flat(model), before)


def test_weights_that_are_not_finite_are_refused():
    model = network()
    with torch.no_grad():
        model[4].weight[0, 0] = math.nan
    with pytest.raises(ValueError, match=r"4\.weight has weights that are not finite"):
        th.prune_(model, sparsity=0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_radix_selection_agrees_with_sorting(dtype):
    generator = torch.Generator().manual_seed(3)
    parts = [torch.rand(shape, generator=generator, dtype=dtype).mul(20).round() for shape in ((30, 7), (0, 3), (55,))]
    parts.append(torch.rand(4, 4, 4, generator=generator, dtype=dtype) * 1e-30)
    weights = [Weight(str(i), nn.Parameter(part)) for i, part in enumerate(parts)]
    everything = torch.cat([part.flatten() for part in parts])
    for count in (0, 1, 17, 64, 65, 200, everything.numel()):
        chosen = torch.cat([c.flatten() for c in smallest(parts, weights, count)])
        expected = torch.zeros_like(chosen)
        expected[everything.argsort(stable=True)[:count]] = True
        assert torch.equal(chosen, expected)
