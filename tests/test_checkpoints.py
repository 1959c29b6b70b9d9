"""λ and its momentum travel in the optimizer's own state_dict."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from examples_of_penalties import PENALTIES, named
from small import adamw, assert_same, batches, network, sgd, train

import torch_halo as th

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "sgd-plain": lambda p: torch.optim.SGD(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "adam-amsgrad": lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "radam": lambda p: torch.optim.RAdam(p),
    "adamax": lambda p: torch.optim.Adamax(p),
    "adafactor": lambda p: torch.optim.Adafactor(p),
    "asgd": lambda p: torch.optim.ASGD(p),
    "rprop": lambda p: torch.optim.Rprop(p),
}


def started(make, penalty, dtype=torch.float64):
    model = network(dtype)
    optimizer = make(model.parameters())
    return model, optimizer, th.Shrinkage(model, penalty, optimizer, ramp_steps=8)


def resumed(make, penalty, saved, order, dtype=torch.float64):
    model = network(dtype, seed=7)
    optimizer = make(model.parameters())
    model.load_state_dict(saved["model"])
    if order == "attach, load":
        shrink = th.Shrinkage(model, penalty, optimizer, ramp_steps=8)
        optimizer.load_state_dict(saved["optimizer"])
    else:
        optimizer.load_state_dict(saved["optimizer"])
        shrink = th.Shrinkage(model, penalty, optimizer, ramp_steps=8)
    return model, optimizer, shrink


def save_and_load(model, optimizer, path):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("order", ["attach, load", "load, attach"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_five_steps_saved_and_five_more_are_ten(name, order, tmp_path):
    make, penalty, dtype = OPTIMIZERS[name], th.HALO(1e-3), torch.float32
    data = list(batches(10, dtype))
    whole, optimizer, shrink = started(make, penalty, dtype)
    train(whole, optimizer, data)
    half, half_optimizer, _ = started(make, penalty, dtype)
    train(half, half_optimizer, data[:5])
    saved = save_and_load(half, half_optimizer, tmp_path / "checkpoint.pt")
    train(half, half_optimizer, data[:3])  # what follows must not reach into what was saved
    again, again_optimizer, again_shrink = resumed(make, penalty, saved, order, dtype)
    train(again, again_optimizer, data[5:])
    assert_same(again, whole)
    torch.testing.assert_close(again_shrink.coefficients, shrink.coefficients, rtol=0, atol=0)


@pytest.mark.parametrize("penalty", [p for p in PENALTIES if not isinstance(p, th.WeightedL1)], ids=named)
def test_every_penalty_resumes(penalty, tmp_path):
    data = list(batches(6))
    make = OPTIMIZERS["sgd"]
    whole, optimizer, _ = started(make, penalty)
    train(whole, optimizer, data)
    half, half_optimizer, _ = started(make, penalty)
    train(half, half_optimizer, data[:3])
    saved = save_and_load(half, half_optimizer, tmp_path / "checkpoint.pt")
    again, again_optimizer, _ = resumed(make, penalty, saved, "attach, load")
    train(again, again_optimizer, data[3:])
    assert_same(again, whole)


SCRIPT = """
import sys, torch, torch_halo as th
from small import batches, network, sgd, train
path, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = network(torch.float32)
optimizer = sgd(model)
shrink = th.Shrinkage(model, th.HALO(1e-3), optimizer)
if first:
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
train(model, optimizer, list(batches(last, torch.float32))[first:])
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
"""


def test_a_fresh_process_goes_on_to_the_bit(tmp_path):
    def run(path, first, last):
        command = [sys.executable, "-c", SCRIPT, str(path), str(first), str(last)]
        subprocess.run(command, check=True, cwd=Path(__file__).parent)

    run(tmp_path / "whole.pt", 0, 10)
    run(tmp_path / "parts.pt", 0, 5)
    run(tmp_path / "parts.pt", 5, 10)
    whole, parts = (torch.load(tmp_path / name, weights_only=True) for name in ("whole.pt", "parts.pt"))
    torch.testing.assert_close(parts, whole, rtol=0, atol=0)
    assert "halo_coefficient" in whole["optimizer"]["state"][0]


@pytest.mark.parametrize("make", [sgd, adamw])
def test_bfloat16_weights_keep_their_float32_lambda(make, tmp_path):
    data, dtype = list(batches(10, torch.bfloat16)), torch.bfloat16
    make_ = lambda p: make(torch.nn.ParameterList(p))  # noqa: E731
    whole, optimizer, shrink = started(make_, th.HALO(1e-3), dtype)
    train(whole, optimizer, data)
    half, half_optimizer, _ = started(make_, th.HALO(1e-3), dtype)
    train(half, half_optimizer, data[:5])
    saved = save_and_load(half, half_optimizer, tmp_path / "checkpoint.pt")
    again, again_optimizer, again_shrink = resumed(make_, th.HALO(1e-3), saved, "attach, load", dtype)
    lam = again_shrink.coefficients["0.weight"]
    assert lam.dtype == torch.float32
    assert again_optimizer.state[again[0].weight]["halo_coefficient"] is lam
    train(again, again_optimizer, data[5:])
    assert_same(again, whole)
    torch.testing.assert_close(again_shrink.coefficients, shrink.coefficients, rtol=0, atol=0)
    with pytest.warns(UserWarning, match=r"was rounded to torch\.bfloat16 when the state was loaded"):
        resumed(make_, th.HALO(1e-3), saved, "load, attach", dtype)


def test_the_learning_rate_lambda_started_from_is_remembered(tmp_path):
    model, optimizer, _ = started(OPTIMIZERS["adamw"], th.HALO(1e-3))
    optimizer.param_groups[0]["lr"] = 1e-5  # decayed since
    train(model, optimizer, batches(2))
    saved = save_and_load(model, optimizer, tmp_path / "checkpoint.pt")
    for order in ("attach, load", "load, attach"):
        _, again, _ = resumed(OPTIMIZERS["adamw"], th.HALO(1e-3), saved, order)
        assert again.param_groups[0]["halo_first_lr_0"] == 1e-3
        assert again.param_groups[0]["halo_step_0"] == 2


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_state_without_lambda_is_refused_and_nothing_changes(name):
    plain = network()
    optimizer = OPTIMIZERS[name](plain.parameters())
    train(plain, optimizer, batches(2))
    model, attached, shrink = started(OPTIMIZERS[name], th.HALO(1e-3))
    train(model, attached, batches(3, seed=4))
    before = {name: lam.clone() for name, lam in shrink.coefficients.items()}
    step = attached.state_dict()["param_groups"]
    with pytest.raises(ValueError, match=r"state of 0\.weight lacks λ \('halo_coefficient'\)"):
        attached.load_state_dict(optimizer.state_dict())
    assert attached.state_dict()["param_groups"] == step
    torch.testing.assert_close(shrink.coefficients, before, rtol=0, atol=0)


def test_a_state_of_an_l1_run_is_refused_when_attaching_after_loading():
    model, optimizer, _ = started(OPTIMIZERS["sgd"], th.L1(1e-3))
    train(model, optimizer, batches(2))
    fresh = network()
    other = OPTIMIZERS["sgd"](fresh.parameters())
    other.load_state_dict(optimizer.state_dict())
    with pytest.raises(ValueError, match=r"state of 0\.weight lacks λ"):
        th.Shrinkage(fresh, th.HALO(1e-3), other)


def test_a_state_with_other_shapes_is_refused():
    model, optimizer, _ = started(OPTIMIZERS["sgd"], th.HALO(1e-3))
    train(model, optimizer, batches(2))
    _, other, _ = started(OPTIMIZERS["sgd"], th.SHALO(1e-3))
    with pytest.raises(ValueError, match=r"of shape \(4, 2, 3, 3\); this penalty needs \(4, 1, 1, 1\)"):
        other.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_never_stepped_state_starts_anew(name):
    _, fresh, _ = started(OPTIMIZERS[name], th.HALO(1e-3))
    model, optimizer, shrink = started(OPTIMIZERS[name], th.HALO(1e-3))
    train(model, optimizer, batches(3))
    optimizer.load_state_dict(fresh.state_dict())
    assert all(torch.equal(lam, torch.ones_like(lam)) for lam in shrink.coefficients.values())
    assert optimizer.param_groups[0]["halo_step_0"] == 0


def test_attaching_in_the_middle_of_a_training_starts_anew():
    model = network()
    optimizer = adamw(model)
    train(model, optimizer, batches(3))
    shrink = th.Shrinkage(model, th.HALO(1e-3), optimizer)
    assert float(shrink.coefficients["0.weight"].min()) == 1.0
    train(model, optimizer, batches(3))
    assert float(shrink.coefficients["0.weight"].min()) < 1.0


def test_a_state_of_an_l1_run_is_refused_even_by_an_optimizer_without_state():
    model, optimizer, _ = started(OPTIMIZERS["sgd-plain"], th.L1(1e-3))
    train(model, optimizer, batches(2))
    _, other, _ = started(OPTIMIZERS["sgd-plain"], th.HALO(1e-3))
    with pytest.raises(ValueError, match="the optimizer state lacks λ: it was saved with a penalty that learns none"):
        other.load_state_dict(optimizer.state_dict())


def test_a_state_of_a_halo_run_under_l1_forgets_lambda():
    model, optimizer, _ = started(OPTIMIZERS["sgd"], th.HALO(1e-3))
    train(model, optimizer, batches(2))
    _, other, _ = started(OPTIMIZERS["sgd"], th.L1(1e-3))
    other.load_state_dict(optimizer.state_dict())
    assert all(set(entry) == {"momentum_buffer"} for entry in other.state.values())


def test_adagrads_state_before_the_first_step():
    model, optimizer, _ = started(OPTIMIZERS["adagrad"], th.HALO(1e-3))
    optimizer.load_state_dict(optimizer.state_dict())
    plain = OPTIMIZERS["adagrad"](network().parameters())
    optimizer.load_state_dict(plain.state_dict())
    train(model, optimizer, batches(2))
    assert optimizer.param_groups[0]["halo_step_0"] == 2


def test_a_state_saved_right_after_attaching_in_the_middle():
    model = network()
    optimizer = adamw(model)
    train(model, optimizer, batches(1))
    shrink = th.Shrinkage(model, th.HALO(1e-3), optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.state[model[0].weight]["halo_coefficient"] is shrink.coefficients["0.weight"]


@pytest.mark.parametrize("order", ["attach, load", "load, attach"])
def test_sws_resumes_when_a_weight_has_never_had_a_gradient(order):
    def build():
        model = torch.nn.ModuleDict({"used": torch.nn.Linear(4, 3), "unused": torch.nn.Linear(3, 3)})
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    model, optimizer = build()
    shrink = th.Shrinkage(model, th.SWS(1e-2), optimizer)
    for _ in range(20):
        optimizer.zero_grad()
        model["used"](torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
    lam = float(shrink.coefficients["used.weight"])
    assert lam != 1.0
    again, other = build()
    if order == "attach, load":
        resumed_ = th.Shrinkage(again, th.SWS(1e-2), other)
        other.load_state_dict(optimizer.state_dict())
    else:
        other.load_state_dict(optimizer.state_dict())
        resumed_ = th.Shrinkage(again, th.SWS(1e-2), other)
    assert {float(part) for part in resumed_.coefficients.values()} == {lam}


def test_a_model_cast_before_loading_resumes_exactly():
    data = list(batches(6))
    whole, optimizer, _ = started(OPTIMIZERS["sgd"], th.HALO(1e-2))
    train(whole, optimizer, data)
    half, half_optimizer, _ = started(OPTIMIZERS["sgd"], th.HALO(1e-2))
    train(half, half_optimizer, data[:3])
    again, again_optimizer, _ = started(OPTIMIZERS["sgd"], th.HALO(1e-2), torch.float32)
    again.double()
    again.load_state_dict(half.state_dict())
    again_optimizer.load_state_dict(half_optimizer.state_dict())
    train(again, again_optimizer, data[3:])
    assert_same(again, whole)
