"""`halo experiment`, with results made by hand."""

import json

import pytest
from stored import finished

from torch_halo.cli import main
from torch_halo.experiments.catalogue import EXPERIMENTS, SCALES
from torch_halo.experiments.plan import Plan
from torch_halo.experiments.runner import Runner
from torch_halo.experiments.spec import Spec, saved_specs
from torch_halo.experiments.store import Store
from torch_halo.training.signals import Stopped

FLAGS = ["--methods", "dense", "lottery", "--sparsities", "0.9", "--seeds", "1", "--epochs", "2"]


@pytest.fixture
def plan(tmp_path):
    spec = Spec("digits", methods=("dense", "lottery"), sparsities=(0.9,), seeds=1, epochs=2)
    plan = Plan(spec, Store(tmp_path / "runs"))
    for job in plan.jobs():
        finished(plan.store, job, lambda s: 97.0 - s)
    spec.save(plan.store.path)
    return plan


def said(capsys, *arguments):
    code = main(["experiment", *map(str, arguments)])
    found = capsys.readouterr()
    return code, found.out, found.err


def test_running_what_is_there_shows_it(plan, capsys):
    code, out, err = said(capsys, "digits", *FLAGS, "--runs", plan.store.path)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "2 of 2 runs are there"
    assert out.splitlines()[-1].split() == ["lottery", "4", "96.10", "<", "90", "%"]


@pytest.mark.parametrize(
    "spec",
    [
        *(Spec(name, scale) for name in EXPERIMENTS for scale in SCALES),
        Spec("table1", models=("lenet-5",), methods=("dense", "l1"), sparsities=(0.9, 0.995), seeds=1, epochs=15),
        Spec("table2", epochs=3),
        Spec("table2", epochs=20, trial_epochs=10),
        Spec("label-noise", label_noise=(0.4,)),
    ],
    ids=lambda spec: spec.command,
)
def test_the_command_of_an_experiment_asks_for_it(spec, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(Runner, "run", lambda self, show: {})
    monkeypatch.setattr("torch_halo.cli.experiment.find", lambda name, root: root)
    monkeypatch.setattr("torch_halo.cli.experiment.measure_times", lambda *arguments: None)
    halo, command, *arguments = spec.command.split()
    assert (halo, command) == ("halo", "experiment")
    assert said(capsys, *arguments, "--runs", tmp_path)[0] == 0
    assert saved_specs(tmp_path) == [spec]


def test_the_command_has_what_is_not_as_usual():
    assert Spec("table1").command == "halo experiment table1"
    assert Spec("table2", "full").command == "halo experiment table2 --scale full"
    short = Spec("table1", methods=("dense", "l1"), sparsities=(0.9,), epochs=3, trial_epochs=2)
    assert short.command == "halo experiment table1 --methods dense l1 --sparsities 0.9 --epochs 3 --trial-epochs 2"


def test_show_remembers_what_was_asked_for(plan, capsys):
    _, out, _ = said(capsys, "show", "digits", "--runs", plan.store.path)
    assert "lenet-300-100 on digits: test accuracy in percent by sparsity, 2 epochs, 1 seed" in out
    _, out, _ = said(capsys, "show", "digits", "--runs", plan.store.path, "--methods", "dense")
    assert "lottery" not in out
    _, out, _ = said(capsys, "show", "--runs", plan.store.path, "--trace")
    assert plan.jobs()[1].name in out
    _, out, _ = said(capsys, "show", "--runs", plan.store.path, "--format", "markdown")
    assert out.startswith("# Results\n")
    for form in ("csv", "latex", "markdown"):
        code, out, _ = said(capsys, "show", "digits", "--format", form, "--runs", plan.store.path)
        assert code == 0
        assert "96.10" in out


def test_show_has_each_choice_of_networks(capsys, tmp_path):
    for models in (("lenet-300-100",), ("lenet-5",), ("lenet-300-100", "lenet-5")):
        Spec("table1", models=models, methods=("dense",), sparsities=(0.9,), seeds=1).save(tmp_path)
    _, out, _ = said(capsys, "show", "table1", "--runs", tmp_path)
    assert [line.split(" on ")[0] for line in out.splitlines() if " on mnist" in line] == [
        "lenet-300-100", "lenet-300-100", "lenet-5", "lenet-5"
    ]  # fmt: skip
    _, out, _ = said(capsys, "show", "table1", "--models", "lenet-5", "--runs", tmp_path)
    assert out.count(" on mnist") == 1
    _, out, _ = said(capsys, "show", "--format", "markdown", "--runs", tmp_path)
    assert [line for line in out.splitlines() if line.startswith("## ")][1:] == [
        "## Accuracy by sparsity on MNIST (the paper's table 1), scale small"  # once, after all at a glance
    ]


def test_a_corrupted_result_is_named_and_left_out(plan, capsys):
    folder = plan.store.folder(plan.jobs()[1].config)
    (folder / "result.json").write_text((folder / "result.json").read_text()[:100])
    code, out, err = said(capsys, "show", "digits", "--runs", plan.store.path)
    assert code == 0
    assert out.splitlines()[-1].split() == ["lottery", "–", "–", "–"]
    assert f"left out: {folder}/result.json: expected JSON; found a damaged file" in err
    _, out, err = said(capsys, "status", "digits", "--runs", plan.store.path)
    assert "1 of 2 runs are finished" in out
    assert "left out" in err


def test_a_stop_says_how_to_go_on(plan, capsys, monkeypatch):
    def stopped(self, show):
        raise Stopped("stopped; all runs are saved and will go on", 2)

    monkeypatch.setattr(Runner, "run", stopped)
    monkeypatch.setattr("sys.argv", ["halo", "experiment", "digits", "--seeds", "1"])
    code, _, err = said(capsys, "digits", *FLAGS, "--runs", plan.store.path)
    assert code == 130
    assert err.splitlines() == [
        "stopped; all runs are saved and will go on",
        "to go on: halo experiment digits --seeds 1",
    ]


def test_status(plan, capsys):
    lottery = plan.jobs()[1].config
    folder = plan.store.folder(lottery)
    (folder / "result.json").unlink()
    plan.store.note_failure(lottery, "ValueError: no")
    _, out, _ = said(capsys, "status", "digits", "--runs", plan.store.path)
    lines = out.splitlines()
    assert lines[0].split() == ["runs", "finished", "unfinished", "failed"]
    assert lines[1].split()[-4:] == ["1", "1", "0", "0"]
    assert lines[2].split()[-4:] == ["1", "0", "1", "1"]
    assert lines[3].startswith("1 of 2 runs are finished")
    assert lines[4] == f"failed: {lottery.name}: ValueError: no"


def test_status_counts_what_was_kept_without_its_weights_where_these_are_needed(plan, capsys):
    dense, lottery = (plan.store.folder(job.config) for job in plan.jobs())
    (dense / "model.safetensors").unlink()
    _, out, _ = said(capsys, "status", "digits", "--runs", plan.store.path)
    assert out.splitlines()[-1] == "2 of 2 runs are finished"
    (lottery / "result.json").unlink()
    (lottery / "metrics.jsonl").unlink()
    _, out, _ = said(capsys, "status", "digits", "--runs", plan.store.path)
    lines = out.splitlines()
    assert lines[1].split()[-4:] == ["1", "0", "1", "0"]
    assert lines[3] == "0 of 2 runs are finished, about 8 s left one at a time"


def test_keep_copies_results_without_weights(plan, capsys, tmp_path):
    code, out, _ = said(capsys, "keep", "digits", "--runs", plan.store.path, "--to", tmp_path / "kept")
    assert (code, out) == (0, f"lenet-300-100: 2 runs are in {tmp_path / 'kept'}\n")
    _, ours, _ = said(capsys, "show", "digits", "--runs", plan.store.path)
    _, kept, _ = said(capsys, "show", "digits", "--runs", tmp_path / "kept")
    assert ours == kept


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["tabel1"], 2, "digits, show, status, keep; did you mean table1"),
        (["show", "tabel1"], 2, "unknown experiment 'tabel1'; known: table1"),
        (["digits", "--methods", "hallo"], 1, "unknown method 'hallo'; known: dense, random-init"),
        (["digits", "--models", "vgg16"], 1, "digits has no model 'vgg16'; it has lenet-300-100"),
        (["digits", "--sparsities", "95"], 1, "sparsities must be a finite number above 0 and below 1; received 95.0"),
        (["digits", "--seeds", "0"], 1, "--seeds must be a whole number, at least 1; received 0"),
        (["digits", "--jobs", "0"], 1, "jobs must be a whole number, at least 1; received 0"),
        (["digits", "--address", "here"], 1, "--address is for --engine ray"),
        (["digits", "--sparsitys", "0.9"], 2, "unknown flag --sparsitys; did you mean --sparsities"),
        (["show", "--methods", "dense"], 1, "--methods is for one experiment; name it: table1"),
        (["show", "--format", "markdown"], 1, "runs has no experiments; name one: table1"),
        (["time", "--jobs", "2"], 2, "unknown flag --jobs"),
        (["show", "--runs", "nowhere"], 1, "nowhere has no experiments; name one: table1"),
    ],
)  # fmt: skip
def test_bad_input(arguments, code, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, _, err = said(capsys, *arguments)
    assert found == code
    assert message in err
    assert not list(tmp_path.iterdir())


def test_help(capsys):
    for arguments in (["--help"], ["table1", "--help"], ["show", "--help"]):
        with pytest.raises(SystemExit) as stopped:
            main(["experiment", *arguments])
        assert stopped.value.code == 0
        assert "experiment" in capsys.readouterr().out


def test_a_store_that_remembers_nonsense(plan, capsys):
    path = plan.store.path / "experiments" / "digits-small-lenet-300-100.json"
    path.write_text(json.dumps({"name": "digits", "colour": "red"}))
    code, _, err = said(capsys, "show", "digits", "--runs", plan.store.path)
    assert code == 1
    assert "digits-small-lenet-300-100.json: expected an experiment as it was asked for" in err
