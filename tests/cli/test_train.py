"""`halo train`, `halo eval` and `halo prune` as they are typed."""

import json
import os
import re
import signal
import subprocess
import time

import pytest
import torch
from processes import ENVIRONMENT, HALO
from safetensors.torch import load_file, save_file

import torch_halo as th
from torch_halo import cli
from torch_halo.cli.flags import REQUIRED
from torch_halo.cli.form import TABLES, Form
from torch_halo.data import DATASETS
from torch_halo.models import MODELS
from torch_halo.training.config import Config
from torch_halo.training.optimizers import AdamW
from torch_halo.training.schedules import Cosine, Steps
from torch_halo.training.settings import Model

pytestmark = pytest.mark.filterwarnings("ignore:.*would have lost every weight", "ignore:λ lies between")
ABSENT = "mps" if torch.cuda.is_available() else "cuda"  # no machine has both
SHORT = ["train", "--penalty", "halo", "--xi", "1e-4", "--epochs", "2", "--sparsity", "0.9", "0.5"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert cli.main([*SHORT, "--out", str(folder)]) == 0
    return folder


def config(*arguments):
    form = Form(arguments)
    options = cli._options(["train", *arguments])
    return form.config(vars(options))


def test_flags_become_settings():
    assert config() == Config()
    flags = """--data mnist --validation 0.1 --model vgg16 --width 0.25 --penalty halo --xi 1e-6 --k 3
        --optimizer adamw --lr 0.01 --schedule cosine --warmup 2 --epochs 5 --batch-size 32 --seed 7
        --select !classifier features --coefficient-weight-decay 1e-3 --sparsity 0.9 0.95 --scope layer
        --sample-losses --precision bf16-mixed"""
    found = config(*flags.split())
    assert found.penalty == th.HALO(1e-6, h=th.InversePower(3))
    assert found.optimizer == AdamW(lr=0.01)
    assert found.schedule == Cosine(warmup=2)
    assert found.model == Model("vgg16", {"width": 0.25})
    assert (found.data.name, found.data.validation) == ("mnist", 0.1)
    assert (found.training.epochs, found.training.batch_size, found.training.seed) == (5, 32, 7)
    assert found.training.sample_losses
    assert found.shrinking.select == ("!classifier", "features")
    assert found.shrinking.coefficient_weight_decay == 1e-3
    assert (found.pruning.sparsity, found.pruning.scope) == ((0.9, 0.95), "layer")
    assert found.compute.precision == "bf16-mixed"


def test_a_sparsity_alone_is_enough():
    found = config("--sparsity", "0.95")
    assert (found.penalty, found.shrinking.target_sparsity) == (th.HALO(), 0.95)
    assert found.pruning.sparsity == (0.95,)
    assert found.schedule == Cosine()  # unless another is named
    assert config("--sparsity", "0.95", "--schedule", "steps").schedule == Steps()
    assert Config.from_dict(found.as_dict()) == found
    found = config("--penalty", "l1", "--xi", "1e-4", "--proximal", "--target-sparsity", "0.9")
    assert (found.penalty, found.shrinking.target_sparsity) == (th.L1(1e-4, proximal=True), 0.9)
    assert found.pruning.sparsity == (0.9,)  # where it is measured too
    found = config("--preset", "authors-code", "--data", "cifar10", "--model", "vgg16", "--sparsity", "0.9")
    assert (found.penalty, found.shrinking.target_sparsity, found.pruning.of) == (th.HALO(), 0.9, "all")
    for flags in ("--penalty none --sparsity 0.9", "--penalty halo --xi 1e-6 --sparsity 0.9"):
        assert config(*flags.split()).shrinking.target_sparsity is None


def test_a_run_towards_a_sparsity(tmp_path, capsys):
    run = tmp_path / "run"
    assert cli.main(["train", "--sparsity", "0.9", "--epochs", "8", "--out", str(run)]) == 0
    assert "90.00% zeros" in capsys.readouterr().out
    result = json.loads((run / "result.json").read_text())
    assert result["sparsity"] == pytest.approx(0.9, abs=1e-5)
    assert result["pruned"][0]["test"] == result["test"]  # the threshold had nothing left to cut
    assert result["test"]["accuracy"] > 85


@pytest.mark.parametrize(
    ("flags", "penalty"),
    [
        ("--penalty none", None),
        ("--penalty l1 --xi 0.1", th.L1(0.1)),
        ("--penalty bridge --xi 0.1 --q 0.5", th.Bridge(0.1, 0.5)),
        ("--penalty mcp --xi 0.1 --gamma 3", th.MCP(0.1, 3)),
        ("--penalty scad --xi 0.1", th.SCAD(0.1)),
        ("--penalty sws --xi 0.1 --psi 0.2", th.SWS(0.1, 0.2)),
        ("--penalty halo --xi 0.1 --psi 0.2", th.HALO(0.1, 0.2)),
        ("--penalty halo --xi 0.1 --h log_squared", th.HALO(0.1, h=th.LogSquared())),
        ("--penalty grouped --inner l1 --xi 0.1 --groups in", th.Grouped(th.L1(0.1), "in")),
        (
            "--penalty grouped --inner halo --xi 0.1 --k 1 --groups out",
            th.Grouped(th.HALO(0.1, h=th.InversePower(1)), "out"),
        ),
        ("--penalty shalo --xi 0.1 --inner halo --groups kernel", th.SHALO(0.1, inner="halo", groups="kernel")),
    ],
)
def test_every_penalty_has_flags(flags, penalty):
    assert config(*flags.split()).penalty == penalty


def test_the_flags_cover_the_table_of_penalties():
    tested = {mark.args[1][i][0].split()[1] for mark in test_every_penalty_has_flags.pytestmark for i in range(11)}
    assert tested == {"none", *th.PENALTIES} - {"weighted_l1"}


@pytest.mark.parametrize("penalty", sorted({"none", *th.PENALTIES} - {"weighted_l1"}))
def test_every_flag_has_a_help(penalty):
    for schedule in TABLES["schedule"]:
        form = Form(["--penalty", penalty, "--schedule", schedule, "--inner", "l1", "--model", "vgg16"])
        for part in form.parts.values():
            for flag, default in part.all_flags():
                assert flag.help or flag.name in ("name", "weights", "masks"), flag
                assert default is not REQUIRED or flag.name in ("xi", "q", "gamma", "groups"), flag


def test_help_groups_the_flags_and_shows_defaults(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["train", "--penalty", "halo", "--preset", "paper", "--data", "mnist", "--help"])
    shown = capsys.readouterr().out
    for words in ("the penalty:", "--xi X", "where it runs:", "--epochs N", "(250)", "(paper, authors-code)"):
        assert words in shown.replace("paper, authors-code", "(paper, authors-code)"), words
    with pytest.raises(SystemExit, match="0"):
        cli.main(["train", "--help"])
    assert "choose one to see its own flags" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("trian", 2, "unknown command 'trian'; known: demo, train, "),
        ("train --epoch 3", 2, "unknown flag --epoch; did you mean --epochs?"),
        ("train --epochs=3 --lrr=1", 2, "unknown flag --lrr; did you mean --lr?"),
        ("train --gamma 3 --penalty halo --xi 1", 2, "unknown flag --gamma: it belongs to --penalty mcp"),
        ("train --width 0.5", 2, "unknown flag --width: it belongs to --model vgg16"),
        ("train mnist", 2, "unexpected argument 'mnist'"),
        ("train --data minst", 2, "unknown data set 'minst'; known: digits, mnist,"),
        ("train --model lenet", 2, "unknown model 'lenet'; known: lenet-300-100, "),
        ("train --penalty hallo", 2, "unknown penalty 'hallo'; known: l1, bridge"),
        ("train --optimizer adam", 2, "unknown optimizer 'adam'; known: sgd, adamw; did you mean adamw?"),
        ("train --schedule step", 2, "unknown schedule 'step'; known: steps, cosine, constant; did you mean steps"),
        ("train --preset papr", 2, "unknown preset 'papr'; known: paper, authors-code; did you mean paper?"),
        ("train --preset paper", 2, "unknown data set of the paper 'digits'; known: mnist, cifar10, cifar100"),
        ("train --penalty weighted_l1", 2, "WeightedL1 takes weights, which no flag can give; it is for Python only"),
        ("train --penalty grouped", 2, "--inner is needed: the penalty on the groups' norms, one of l1,"),
        ("train --penalty l1", 1, "--xi is needed: the strength ξ"),
        ("train --penalty halo", 1, "--xi is needed: the strength ξ; or one --sparsity above 0 to train"),
        ("train --sparsity 0.9 0.95", 1, "--xi is needed: the strength ξ; or one --sparsity above 0"),
        ("train --sparsity 0", 1, "--xi is needed: the strength ξ; or one --sparsity above 0 to train"),
        ("train --penalty none --target-sparsity 0.5", 1, "--target-sparsity 0.5 needs a penalty; received --penalty"),
        ("train --sparsity 0.5 --psi 0.1", 1, "HALO: psi needs a number for xi, too; received psi 0.1 and xi auto"),
        ("train --target-sparsity 1", 1, "target_sparsity must be a finite number above 0 and below 1; received 1"),
        ("train --penalty l1 --xi 1 --target-sparsity 0.5", 1, "target_sparsity needs exact zeros"),
        ("train --penalty grouped --inner grouped", 2, "unknown inner penalty 'grouped'; known: l1, bridge, mcp"),
        ("train --penalty grouped --inner shalo", 2, "unknown inner penalty 'shalo'"),
        ("train --select nowhere", 1, "select: 'nowhere' matches no weight"),
        ("train --select", 1, "select must name at least one layer; received none"),
        ("train --save-every nan", 1, "--save-every must be a finite number at least 0; received nan"),
        (f"train --accelerator {ABSENT}", 1, f"cannot run with Compute(accelerator='{ABSENT}'"),
        ("train --every 5 --unit epoch --milestones 1 2", 1, "give one of milestones and every"),
        ("train --penalty halo --xi -1", 1, "HALO: xi must be a finite number at least 0; received -1.0"),
        ("train --label-noise 1.5", 1, "label_noise must be a probability, from 0 to 1; received 1.5"),
        ("train --sparsity 95", 1, "sparsity must be a finite number at least 0 and below 1; received 95.0"),
        ("train --weights gone.safetensors", 1, "gone.safetensors: no such file"),
        ("train --select nowhere --penalty l1 --xi 1", 1, "select: 'nowhere' matches no weight"),
        ("train --model vgg16", 1, "vgg16 needs images of 32×32 pixels; received (1, 8, 8)"),
        (
            "prune gone --sparsity 0.5 -o /proc/x.safetensors",
            1,
            "cannot write /proc/x.safetensors: /proc is",
        ),
        ("eval gone", 1, "gone: no such run or file"),
        ("eval .", 1, ". holds no run: there is no config.json"),
        ("prune gone --sparsity 0.5 -o x.safetensors", 1, "gone: no such run or file"),
        ("prune gone --sparsity 0.5 -o x.txt", 1, "the output must end in .safetensors; received x.txt"),
        ("prune gone --sparsity 0.5 -o missing/x.safetensors", 1, "cannot write missing/x.safetensors"),
    ],
)
def test_bad_input_says_what_and_leaves_nothing(arguments, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments.split()) == code
    assert f"halo: {message}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_wrong_kinds_of_values(capsys):
    for arguments, message in (
        (["train", "--lr", "fast"], "argument --lr: invalid float value: 'fast'"),
        (["train", "--epochs", "1.5"], "argument --epochs: invalid int value: '1.5'"),
        (["train", "--scope", "local"], "argument --scope: invalid choice: 'local'"),
    ):
        with pytest.raises(SystemExit, match="2"):
            cli.main(arguments)
        assert message in capsys.readouterr().err


def test_a_run_is_named_by_its_settings_and_not_repeated(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(SHORT) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    lines = capsys.readouterr().out.splitlines()
    assert folder.name.startswith("digits-lenet-300-100-halo-seed0-")
    assert lines[0] == f"runs/{folder.name}: begins"
    assert lines[1].startswith("epoch 1/2  train ")
    assert "λ " in lines[1]
    assert lines[-1].endswith(f"All of it: runs/{folder.name}")
    before = (folder / "result.json").read_bytes()
    assert cli.main(SHORT) == 0
    again = capsys.readouterr().out.splitlines()
    assert again[0] == f"runs/{folder.name} is finished:"
    assert again[1:] == lines[3:-1]
    assert (folder / "result.json").read_bytes() == before
    assert cli.main([*SHORT, "--seed", "1"]) == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_a_finished_folder_of_another_configuration_is_refused(run, capsys):
    assert cli.main([*SHORT, "--seed", "1", "--out", str(run)]) == 1
    assert "holds a run of another configuration (training.seed: 0 there, 1 here)" in capsys.readouterr().err


def test_eval_measures_a_run_and_its_files(run, capsys):
    result = json.loads((run / "result.json").read_text())
    accuracies = [result["test"]["accuracy"], *(level["test"]["accuracy"] for level in result["pruned"])]
    assert cli.main(["eval", str(run), "--sparsity", "0.9", "0.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-2] for line in lines[1:]] == [f"{accuracy:.2f}" for accuracy in accuracies]
    assert cli.main(["eval", str(run / "pruned.safetensors")]) == 0
    assert f"{accuracies[1]:.2f} %" in capsys.readouterr().out


def test_eval_of_a_file_that_does_not_tell_what_it_is(run, tmp_path, capsys):
    plain = tmp_path / "plain.safetensors"
    save_file(load_file(run / "model.safetensors"), plain)
    torch.save(load_file(run / "model.safetensors"), tmp_path / "plain.pt")
    assert cli.main(["eval", str(plain)]) == 1
    assert "plain.safetensors does not tell what it is; give --data and --model" in capsys.readouterr().err
    accuracy = json.loads((run / "result.json").read_text())["test"]["accuracy"]
    for path in (plain, tmp_path / "plain.pt"):
        assert cli.main(["eval", str(path), "--data", "digits", "--model", "lenet-300-100"]) == 0
        assert f"{accuracy:.2f} %" in capsys.readouterr().out
    assert cli.main(["eval", str(plain), "--data", "digits", "--model", "lenet-5"]) == 1
    assert cli.main(["eval", str(plain), "--data", "cifar10", "--model", "vgg16", "--widht", "0.5"]) == 2
    assert "unknown flag --widht; did you mean --width?" in capsys.readouterr().err


@pytest.mark.parametrize("scope", ["global", "layer"])
def test_prune_writes_a_file_and_tells_the_cost(run, scope, tmp_path, capsys):
    out = tmp_path / "out.safetensors"
    assert cli.main(["prune", str(run), "--sparsity", "0.7", "--scope", scope, "-o", str(out)]) == 0
    shown = capsys.readouterr().out
    model = MODELS["lenet-300-100"]((1, 8, 8), 10)
    model.load_state_dict(load_file(run / "model.safetensors"))
    th.prune_(model, sparsity=0.7, scope=scope)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in load_file(out).items())
    assert str(th.sparsity(model)) in shown
    accuracy = json.loads((run / "result.json").read_text())["test"]["accuracy"]
    assert f"before        {accuracy:.2f} %" in shown
    assert "recalibration" not in shown  # there is no batch norm
    assert cli.main(["prune", str(run), "--sparsity", "0.7", "--recalibrate", "-o", str(out)]) == 1
    assert "lenet-300-100 has no batch norm to recalibrate" in capsys.readouterr().err


def test_ctrl_c_saves_and_tells_how_to_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "--epochs", "3000", "--out", "run"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*HALO, *arguments], cwd=tmp_path, env=ENVIRONMENT, **pipes)
    while not (tmp_path / "run" / "metrics.jsonl").exists() or not (tmp_path / "run" / "metrics.jsonl").read_text():
        assert process.poll() is None
        time.sleep(0.05)
    # While it trains, a second one is refused.
    assert cli.main(arguments) == 1
    assert capsys.readouterr().err == "halo: another process is at work in run; wait for it, or stop it\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.startswith("stopped at epoch ")
    assert error.endswith("to go on: halo train --epochs 3000 --out run\n")
    assert (tmp_path / "run" / "checkpoint" / "last.pt").exists()
    # An unfinished run can be measured.
    assert cli.main(["eval", "run"]) == 0
    found = capsys.readouterr()
    assert found.err == "run is not finished: measuring its last checkpoint\n"
    assert "test" in found.out


def test_a_bar_on_a_terminal(tmp_path):
    import pty

    main, terminal = pty.openpty()
    arguments = [*HALO, "train", "--epochs", "2", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(arguments, stdout=terminal, stderr=terminal, env={**ENVIRONMENT, "TERM": "xterm"})
    os.close(terminal)
    shown = b""
    while True:
        try:
            block = os.read(main, 65536)
        except OSError:  # the other end is closed
            break
        shown += block
        if not block:
            break
    os.close(main)
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert "training" in text
    assert "30/30 steps" in text
    assert "epoch 2/2" in text


def test_choices_come_from_the_tables(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["train", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for table in (DATASETS, MODELS, [name for name in th.PENALTIES if name != "weighted_l1"]):
        assert ", ".join(table) in shown


@pytest.mark.parametrize("command", ["bf16-true", "64-true", "bf16-mixed"])
def test_a_loss_that_is_not_finite_is_explained_in_every_precision(command, tmp_path, capsys):
    flags = ["--precision", command, "--lr", "1e200" if command == "64-true" else "1e30", "--epochs", "1"]
    assert cli.main(["train", *flags, "--out", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert "is not finite" in error
    assert "learning rate 1e+" in error


def test_a_reader_that_has_enough_does_not_end_the_training(tmp_path):
    command = " ".join([*HALO, "train", "--epochs", "20", "--out", "run", "| head -n 1"])
    subprocess.run(command, shell=True, cwd=tmp_path, env=ENVIRONMENT, check=True, capture_output=True)
    assert (tmp_path / "run" / "result.json").exists()


def test_a_run_tells_its_own_data(run, capsys):
    assert cli.main(["eval", str(run), "--data", "mnist", "--model", "lenet-5"]) == 1
    assert "is a run and tells its own data and model; --data and --model are for files" in capsys.readouterr().err
    assert cli.main(["eval", str(run / "model.safetensors"), "--data", "digits"]) == 0


def test_a_preset_gives_way_to_what_follows_from_a_flag():
    code = ["--preset", "authors-code", "--data", "cifar10", "--model", "vgg16", "--penalty", "halo"]
    assert config(*code).penalty == th.HALO(1e-8)
    assert config(*code, "--xi", "1e-6").penalty == th.HALO(1e-6, 1e-6)
    found = config("--preset", "paper", "--data", "mnist", "--milestones", "1", "--unit", "epoch")
    assert found.schedule == Steps((1,), unit="epoch")
    assert config("--every", "5", "--unit", "epoch").schedule == Steps(every=5, unit="epoch")


def test_an_explicit_flag_wins_over_the_preset():
    found = config(*["--preset", "paper", "--data", "mnist", "--penalty", "halo", "--xi", "1e-6", "--epochs", "3"])
    assert found.training.epochs == 3
    assert found.training.batch_size == 100
    assert found.schedule == Steps((), every=25_000, unit="batch")
