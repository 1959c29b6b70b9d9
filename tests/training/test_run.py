"""A run: the loop against one written by hand, what it records, and how it goes on."""

import json
import os
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_runs import SMALL, Silent, changed, outcome, ran
from torch.nn import functional as F

import torch_halo as th
from torch_halo.data import batches, load
from torch_halo.models import MODELS
from torch_halo.training.fabric import launch
from torch_halo.training.optimizers import OPTIMIZERS, SGD, AdamW
from torch_halo.training.schedules import SCHEDULES, Cosine, Steps
from torch_halo.training.session import initial_network, start
from torch_halo.training.settings import Compute, Data, Pruning, Shrinking, Training
from torch_halo.training.signals import Stopped

# Runs this short cut at random, and λ has no time.
pytestmark = pytest.mark.filterwarnings("ignore:.*would have lost every weight", "ignore:λ lies between")
STOPPED = r"stopped at epoch (1|2) of 3, batch \d+ of 21; all of it is kept in"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "finished"
    return folder, ran(folder)


def by_hand(epochs=3):
    """What SMALL does, written down as a user's loop."""
    data = load("digits", validation=0.1, label_noise=0.1)
    torch.manual_seed(0)
    model = MODELS["lenet-300-100"](data.input_shape, data.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, fused=True)
    shrink = th.Shrinkage(model, th.HALO(1e-4), optimizer, coefficient_weight_decay=0.05)
    rows, step = [], 0  # of 63
    for epoch in range(epochs):
        losses, correct = torch.full((len(data.train.labels),), torch.nan), 0
        for inputs, labels, index in batches(data, data.train, 64, seed=0, epoch=epoch):
            optimizer.param_groups[0]["lr"] = 0.1 * [1, 0.1, 0.1 * 0.1][(step >= 32) + (step >= 47)]
            optimizer.zero_grad()
            scores = model(inputs)
            loss = F.cross_entropy(scores, labels, reduction="none")
            losses[index] = loss.detach()
            correct += int((scores.argmax(1) == labels).sum())
            loss.mean().backward()
            optimizer.step()
            step += 1
        rows.append((losses, 100 * correct / len(losses), float(shrink.value())))
    return model, shrink, data, rows


def accuracy(model, data, split):
    with torch.no_grad():
        return 100 * float((model(data.normalise(split.inputs)).argmax(1) == split.labels).double().mean())


def test_the_loop_does_what_a_loop_by_hand_does(finished):
    folder, _ = finished
    model, shrink, data, expected = by_hand()
    for name, value in load_file(folder / "model.safetensors").items():
        assert torch.equal(value, model.state_dict()[name]), name
    rows, result, _ = outcome(folder)
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    for row, (losses, train_accuracy, penalty) in zip(rows, expected, strict=True):
        assert row["train"]["loss"] == pytest.approx(float(losses.mean()), rel=1e-5)
        assert row["train"]["accuracy"] == pytest.approx(train_accuracy)
        assert row["penalty"] == pytest.approx(penalty, rel=1e-6)
        stored = np.load(folder / "losses" / f"epoch-{row['epoch']:04d}.npy")
        np.testing.assert_array_equal(stored, losses.numpy().astype(np.float16))
    for split in ("validation", "test"):
        assert result[split]["accuracy"] == pytest.approx(accuracy(model, data, getattr(data, split)))
        assert rows[-1][split] == result[split]
    assert result["train"] == rows[-1]["train"]
    assert rows[0]["lr"] == 0.1
    assert rows[-1]["lr"] == pytest.approx(0.001)
    lam = torch.cat([part.flatten() for part in shrink.coefficients.values()]).sort().values
    quantiles = [float(lam[0]), float(lam[round((len(lam) - 1) / 2)]), float(lam[-1])]
    assert [rows[-1]["coefficients"][q] for q in ("0", "0.5", "1")] == pytest.approx(quantiles, rel=1e-6)
    weights = torch.cat([p.detach().flatten() for p in model.parameters() if p.ndim == 2])
    assert rows[-1]["near_zero"] == pytest.approx(float((weights.abs() < 1e-3).double().mean()))


def test_the_result_tells_what_pruning_cost(finished):
    folder, _ = finished
    result = json.loads((folder / "result.json").read_text())
    model, _, data, _ = by_hand()
    for found, level in zip(result["pruned"], (0.9, 0.5), strict=True):
        model, *_ = by_hand()
        th.prune_(model, sparsity=level)
        assert found["sparsity"] == pytest.approx(level, abs=1e-5)
        assert found["test"]["accuracy"] == pytest.approx(accuracy(model, data, data.test))
        assert [layer["zeros"] for layer in found["layers"]] == [x.zeros for x in th.sparsity(model).layers]
        assert found["recalibrated"] is None
        if level == 0.9:
            stored = load_file(folder / "pruned.safetensors")
            assert all(torch.equal(stored[name], value) for name, value in model.state_dict().items())


def test_a_folder_has_what_the_contract_says(finished):
    folder, _ = finished
    names = {path.name for path in folder.iterdir()}
    wanted = {"config.json", "metrics.jsonl", "checkpoint", "result.json", "model.safetensors", "pruned.safetensors"}
    assert wanted | {"losses", "tensorboard"} <= names
    assert not [name for name in names if name.startswith(".") and name != ".lock"]
    assert json.loads((folder / "config.json").read_text()) == json.loads(json.dumps(SMALL.as_dict()))


def test_tensorboard_reads_the_curves(finished):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, display = finished
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    curve = [(event.step, event.value) for event in events.Scalars("test/accuracy")]
    assert curve == [(row["epoch"], pytest.approx(row["test"]["accuracy"])) for row in display.rows]
    assert {"penalty", "near_zero", "coefficients/0.5", "train/loss", "lr"} <= set(events.Tags()["scalars"])


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_and_saves_and_the_run_goes_on(finished, tmp_path, signum):
    before = signal.getsignal(signum)
    steps = {7: lambda: os.kill(os.getpid(), signum), 21: lambda: os.kill(os.getpid(), signum)}
    for place in ((0, 0), (0, 8)):
        display = Silent(steps)
        with pytest.raises(Stopped, match=STOPPED) as stop:
            ran(tmp_path / "run", display=display)
        assert stop.value.signum == signum
        assert display.begins == [place]
    assert signal.getsignal(signum) == before
    assert not (tmp_path / "run" / "result.json").exists()
    assert ran(tmp_path / "run").begins == [(1, 1)]
    assert outcome(tmp_path / "run") == outcome(finished[0])


def test_saving_at_every_step_changes_nothing(finished, tmp_path):
    ran(tmp_path / "run", save_every=0)
    assert outcome(tmp_path / "run") == outcome(finished[0])


@pytest.mark.parametrize("stop", [3, 4, 8])
@pytest.mark.parametrize(
    "config",
    [
        changed(optimizer=AdamW(), schedule=Cosine(warmup=1)),
        changed(penalty=th.SWS(1e-4), schedule=Steps(coefficient_lr_decay=(0.5,))),
        changed(penalty=th.SHALO(1e-4, inner="halo", groups="in")),
        changed(penalty=th.L1(1e-4), shrinking=Shrinking(biases=True, select=("!5",))),
        changed(penalty=None),
    ],
    ids=["adamw", "sws", "shalo", "biases", "dense"],
)
def test_every_kind_goes_on_to_the_bit(config, stop, tmp_path):
    config = changed(
        penalty=config.penalty,
        optimizer=config.optimizer,
        schedule=config.schedule,
        shrinking=config.shrinking,
        training=Training(epochs=2, batch_size=300),
    )
    ran(tmp_path / "whole", config)
    with pytest.raises(Stopped):
        ran(tmp_path / "parts", config, Silent({stop - 1: lambda: os.kill(os.getpid(), signal.SIGINT)}))
    ran(tmp_path / "parts", config)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")


def test_a_finished_training_without_a_result_only_finishes(finished, tmp_path):
    ran(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    assert ran(tmp_path / "run").rows == []
    assert outcome(tmp_path / "run") == outcome(finished[0])


def test_metrics_that_a_crash_left_are_repeated(finished, tmp_path):
    with pytest.raises(Stopped):
        ran(tmp_path / "run", display=Silent({30: lambda: os.kill(os.getpid(), signal.SIGINT)}))
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "test": 5}\n{"epoch": 3, "te')
    ran(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(finished[0])


def test_masks_are_held_and_weights_are_started_from(finished, tmp_path):
    pruned = finished[0] / "pruned.safetensors"
    config = changed(training=Training(epochs=2, batch_size=64, weights="a", masks="b"), pruning=Pruning())
    stopping = Silent({5: lambda: os.kill(os.getpid(), signal.SIGINT)})
    with pytest.raises(Stopped):
        ran(tmp_path / "run", config, stopping, weights=pruned, masks=pruned)
    display = ran(tmp_path / "run", config, weights=pruned, masks=pruned)
    assert display.begins == [(0, 6)]
    before, after = load_file(pruned), load_file(tmp_path / "run" / "model.safetensors")
    for name in ("1.weight", "3.weight", "5.weight"):
        assert torch.equal(before[name] == 0, after[name] == 0)
        assert not torch.equal(before[name], after[name])
    assert display.rows[0]["train"]["loss"] < 1.2  # a fresh network begins at about 2.3


def test_masks_of_another_network_are_refused(tmp_path):
    save_file({"conv.weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"other.safetensors has no 1.weight to take a mask from; it has: conv.weight"):
        ran(tmp_path / "run", masks=tmp_path / "other.safetensors")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_precisions(precision, tmp_path):
    config = changed(compute=Compute(precision=precision))
    display = ran(tmp_path / "run", config)
    assert display.rows[-1]["test"]["accuracy"] > 85
    with pytest.raises(Stopped):
        ran(tmp_path / "parts", config, Silent({30: lambda: os.kill(os.getpid(), signal.SIGINT)}))
    ran(tmp_path / "parts", config)
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "run")


def test_batch_norm_is_recalibrated_after_pruning(tmp_path, monkeypatch):
    def network(input_shape, classes):
        nn = torch.nn
        layers = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, classes)]
        return nn.Sequential(*layers)

    monkeypatch.setitem(MODELS, "lenet-300-100", network)
    ran(tmp_path / "run")
    cut = json.loads((tmp_path / "run" / "result.json").read_text())["pruned"][0]
    assert cut["recalibrated"]["test"]["loss"] != cut["test"]["loss"]
    stored = load_file(tmp_path / "run" / "pruned.safetensors")
    final = load_file(tmp_path / "run" / "model.safetensors")
    assert torch.equal(stored["1.running_mean"], final["1.running_mean"])  # as trained


def test_a_sparsity_of_what_is_not_zero(finished, tmp_path):
    pruned = finished[0] / "pruned.safetensors"
    config = changed(training=Training(epochs=0, weights="a"), pruning=Pruning((0.5,), of="nonzero"), penalty=None)
    ran(tmp_path / "run", config, weights=pruned)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["pruned"][0]["sparsity"] == pytest.approx(0.95, abs=1e-4)
    assert result["epochs"] == 0


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_optimizer_and_schedule_trains(name, schedule, tmp_path):
    config = changed(
        optimizer=OPTIMIZERS[name](), schedule=SCHEDULES[schedule](), training=Training(epochs=2, batch_size=64)
    )
    assert ran(tmp_path / "run", config).rows[-1]["test"]["accuracy"] > 80


def test_biases_are_shrunk_where_asked():
    data = load("digits")
    config = changed(shrinking=Shrinking(select=("!5",), biases=True))
    session = start(config, launch(Compute()), data, initial_network(config, data), None)
    assert list(session.shrink.coefficients) == ["1.weight", "1.bias", "3.weight", "3.bias"]


@pytest.mark.parametrize(
    ("save_every", "message"),
    [
        (0, r"3.weight is not finite after step 10 \(epoch 1\), learning rate 0.1; the last good checkpoint is kept"),
        (60, r"the loss is (nan|inf) at step 10 \(epoch 1\), learning rate 0.1; layer 3 \(Linear\): its weight is not"),
    ],
)
def test_what_is_not_finite_stops_the_training_and_is_not_saved(save_every, message, tmp_path):
    def spoil():
        with torch.no_grad():
            display.session.module[3].weight[0, 0] = torch.inf

    display = Silent({10: spoil})
    with pytest.raises(FloatingPointError, match=message):
        ran(tmp_path / "run", display=display, save_every=save_every)
    checkpoint = tmp_path / "run" / "checkpoint" / "last.pt"
    assert checkpoint.exists() == (save_every == 0)
    if save_every == 0:
        state = torch.load(checkpoint, weights_only=True)
        assert state["progress"]["position"] == 10 - 1
        assert all(bool(value.isfinite().all()) for value in state["model"].values())


def test_an_exploding_training_says_where(tmp_path):
    with pytest.raises(FloatingPointError, match=r"step \d+.*learning rate 1e\+08"):
        ran(tmp_path / "run", changed(optimizer=SGD(lr=1e8)))


def test_a_batch_size_that_is_larger_than_the_set(tmp_path):
    config = changed(training=Training(epochs=1, batch_size=5000))
    assert [row["step"] for row in ran(tmp_path / "run", config).rows] == [1]


def test_the_data_may_have_no_validation_part(tmp_path):
    config = changed(data=Data("digits"), training=Training(epochs=1))
    assert ran(tmp_path / "run", config).rows[0]["validation"] is None


def test_a_lambda_that_never_spread_is_told_at_the_end(tmp_path):
    config = changed(penalty=th.HALO(1e-6), shrinking=Shrinking(), training=Training(epochs=2))
    with pytest.warns(UserWarning, match=r"λ lies between 0.9\d+ and 0.9\d+ for 90 % of the weights: the penalty was"):
        ran(tmp_path / "run", config)
