import pytest
import torch
from small import adamw, batches, network, sgd, train
from torch import nn

import torch_halo as th

OPTIMIZERS = {
    "sgd": sgd,
    "nesterov": lambda m: sgd(m, nesterov=True),
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=1e-2, weight_decay=0.1),
    "adamw": lambda m: adamw(m, weight_decay=0.1),
    "adamw-fused": lambda m: adamw(m, fused=True),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-2, momentum=0.9),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=1e-2),
}


@pytest.mark.parametrize("penalty", [None, th.HALO(1e-2), th.SHALO(1e-2), th.L1(1e-2)], ids=str)
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_zeros_stay_zero(make, penalty):
    model = network()
    optimizer = make(model)
    train(model, optimizer, batches(5))
    masks = th.prune_(model, sparsity=0.7)
    masks.hold(optimizer)
    for name, mask in masks.items():
        cleared = [v for v in optimizer.state[model.get_parameter(name)].values() if v.shape == mask.shape]
        assert all(not entry[~mask].any() for entry in cleared)
    if penalty is not None:
        th.Shrinkage(model, penalty, optimizer)
    kept = model[0].weight.detach().clone()
    for x, y in batches(10, seed=3):
        train(model, optimizer, [(x, y)])
        for name, mask in masks.items():
            weight = model.get_parameter(name)
            assert torch.equal(weight == 0, ~mask)
            state = optimizer.state[weight]
            assert all(not v[~mask].any() for k, v in state.items() if v.shape == mask.shape and "halo" not in k)
    assert not torch.equal(kept, model[0].weight)
    if isinstance(penalty, th.HALO):
        lam = optimizer.state[model[0].weight]["halo_coefficient"]
        assert lam.isfinite().all()
        assert (lam > 0).all()


def test_without_hold_they_come_back():
    model = network()
    optimizer = sgd(model)
    masks = th.prune_(model, sparsity=0.7)
    handle = masks.hold(optimizer)
    train(model, optimizer, batches(2))
    handle.remove()
    train(model, optimizer, batches(2))
    assert th.sparsity(model).sparsity < 0.1


def test_masks_are_a_mapping_and_travel():
    model = network()
    masks = th.prune_(model, sparsity=0.7)
    assert list(masks) == ["0.weight", "4.weight"]
    assert len(masks) == 2
    assert repr(masks) == "Masks(2 weights, sparsity 0.7008)"
    again = th.Masks(masks.state_dict())
    other = network(seed=3)
    assert again.apply_(other).sparsity == masks.sparsity
    assert torch.equal(other[0].weight != 0, masks["0.weight"])
    again.hold(sgd(other))


def test_masks_clear_state_that_is_not_finite():
    model = nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.Adam(model.parameters())
    masks = th.prune_(model, 0.5)
    masks.hold(optimizer)
    model.weight.grad = torch.where(masks["weight"], 0.0, torch.inf)
    optimizer.step()
    entries = [v for v in optimizer.state[model.weight].values() if v.shape == model.weight.shape]
    assert all(not entry[~masks["weight"]].any() for entry in entries)


def test_masks_compare():
    masks = th.prune_(network(), sparsity=0.5)
    assert masks == th.prune_(network(), sparsity=0.5)
    assert masks != th.prune_(network(), sparsity=0.6)
    assert masks != {"0.weight": masks["0.weight"]}


def test_masks_zero_what_is_not_finite():
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[torch.inf, 1.0]]))
    th.Masks({"weight": torch.tensor([[False, True]])}).apply_(model)
    assert model.weight.tolist() == [[0.0, 1.0]]


def test_bad_masks_change_nothing():
    model = network()
    before = model[0].weight.detach().clone()
    good = {"0.weight": torch.zeros(4, 2, 3, 3, dtype=torch.bool)}
    with pytest.raises(ValueError, match=r"the model has no parameter 9\.weight; it has: 0\.weight"):
        th.Masks({**good, "9.weight": torch.ones(2, dtype=torch.bool)}).apply_(model)
    with pytest.raises(ValueError, match=r"the mask of 4\.weight has shape \(2,\); the parameter has \(3, 64\)"):
        th.Masks({**good, "4.weight": torch.ones(2, dtype=torch.bool)}).apply_(model)
    with pytest.raises(TypeError, match=r"the mask of 0\.weight must be a bool tensor; received torch\.float32"):
        th.Masks({"0.weight": torch.ones(2)})
    with pytest.raises(ValueError, match=r"belong to no model yet; call apply_\(model\) first"):
        th.Masks(good).hold(sgd(model))
    with pytest.raises(ValueError, match=r"the optimizer does not hold 0\.weight"):
        th.prune_(model, sparsity=0.0).hold(sgd(nn.Linear(2, 2)))
    assert torch.equal(model[0].weight, before)


def test_sparsity_prints_a_table_and_gives_the_same_as_data():
    model = network()
    th.prune_(model, sparsity=0.5, scope="layer")
    figures = th.sparsity(model)
    assert str(figures).splitlines() == [
        "layer     shape    weights  zeros  sparsity",
        "-------------------------------------------",
        "0.weight  4×2×3×3       72     36    50.00%",
        "4.weight  3×64         192     96    50.00%",
        "-------------------------------------------",
        "total                  264    132    50.00%",
    ]
    assert figures.as_dict() == {
        "weights": 264,
        "zeros": 132,
        "sparsity": 0.5,
        "layers": [
            {"name": "0.weight", "shape": (4, 2, 3, 3), "weights": 72, "zeros": 36, "sparsity": 0.5},
            {"name": "4.weight", "shape": (3, 64), "weights": 192, "zeros": 96, "sparsity": 0.5},
        ],
    }


def test_recalibration_gives_the_statistics_of_the_batches():
    model = network()
    data = list(batches(4))
    train(model, sgd(model), data)
    th.prune_(model, sparsity=0.8, scope="layer")
    norm = model[1]
    model.train()
    model[2].eval()
    modes = [m.training for m in model.modules()]
    weights = [p.clone() for p in model.parameters()]
    assert th.recalibrate_(model, data) is model
    with torch.no_grad():
        outputs = [model[0](x) for x, _ in data]
    mean = torch.stack([out.mean((0, 2, 3)) for out in outputs]).mean(0)
    var = torch.stack([out.var((0, 2, 3)) for out in outputs]).mean(0)
    torch.testing.assert_close(norm.running_mean, mean)
    torch.testing.assert_close(norm.running_var, var)
    assert norm.momentum == 0.1
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))


@pytest.mark.parametrize("batch", [[], [torch.ones(1, 5)], [3]], ids=["none", "wrong shape", "wrong kind"])
def test_recalibration_that_fails_restores_the_statistics(batch):
    model = network()
    train(model, sgd(model), batches(2))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        th.recalibrate_(model, batch)
    torch.testing.assert_close(dict(model.named_buffers()), before, rtol=0, atol=0)
    assert model[1].momentum == 0.1


def test_recalibration_without_batch_norm_does_nothing():
    model = nn.Linear(2, 2)
    assert th.recalibrate_(model, []) is model
