"""Two processes through the same command: DDP, FSDP2, fabric's launcher and torchrun."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from processes import ENVIRONMENT, HALO
from safetensors.torch import load_file

FLAGS = ["--penalty", "halo", "--xi", "1e-4", "--coefficient-weight-decay", "0.05", "--batch-size", "64"]
SHORT = [*FLAGS, "--epochs", "3", "--sparsity", "0.8", "--validation", "0.1", "--sample-losses"]
TRAIN = [*HALO, "train"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "torch_halo", "train"]


def begin(command, folder, *more):
    arguments = [*command, *more, "--out", str(folder)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(arguments, env=ENVIRONMENT, start_new_session=True, **pipes)


def finish(process):
    out, error = process.communicate(timeout=300)
    return process.returncode, out, error


WAYS = {
    "one": (TRAIN, []),
    "ddp": (TORCHRUN, ["--devices", "2", "--strategy", "ddp"]),
    "fsdp": (TRAIN, ["--devices", "2", "--strategy", "fsdp"]),
}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """The folder of the same run on one process, or on two in each way, once it is asked for."""
    root = tmp_path_factory.mktemp("runs")

    def made(way):
        command, more = WAYS[way]
        if not (root / way).exists():
            code, out, error = finish(begin(command, root / way, *SHORT, *more))
            assert code == 0, error
            assert out.count("epoch 3/3") == 1  # one process speaks
            assert "halo: " not in error.replace("halo: warning", "")
        return root / way

    return made


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_two_processes_take_the_steps_of_one(folder_of, name):
    expected, found = (load_file(folder_of(way) / "model.safetensors") for way in ("one", name))
    # Rounding may turn the sign of a weight that is about to pass zero, and so its penalty.
    far = sum(int((~torch.isclose(found[key], value, 1e-3, 1e-5)).sum()) for key, value in expected.items())
    assert far <= 4
    for one, two in zip(rows(folder_of("one")), rows(folder_of(name)), strict=True):
        assert two["train"] == pytest.approx(one["train"], rel=1e-4)
        assert two["test"]["accuracy"] == pytest.approx(one["test"]["accuracy"], abs=0.5)
        assert two["coefficients"] == pytest.approx(one["coefficients"], rel=1e-4)
        assert two["near_zero"] == pytest.approx(one["near_zero"], abs=1e-3)
    results = [json.loads((folder_of(way) / "result.json").read_text())["pruned"][0] for way in ("one", name)]
    assert results[0]["zeros"] == results[1]["zeros"]
    masks = [load_file(folder_of(way) / "pruned.safetensors") for way in ("one", name)]
    differ = sum(int(((masks[0][key] == 0) != (masks[1][key] == 0)).sum()) for key in expected)
    assert differ <= 4  # weights that rounding puts on the other side of the threshold


def stopped_and_gone_on(command, folder, strategy):
    """A run of two processes, of which the first is asked to stop after its first save."""
    more = [*SHORT, "--devices", "2", "--strategy", strategy, "--save-every", "0"]
    process = begin(command, folder, *more)
    while not (folder / "checkpoint" / "last.pt").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGTERM)  # to the first process alone: all must stop at the same step
    code, _, error = finish(process)
    assert code == 128 + signal.SIGTERM, error
    assert error.count("stopped at epoch") == 1
    assert error.count("to go on: halo train") == 1
    assert not (folder / "result.json").exists()
    code, _, error = finish(begin(command, folder, *more))
    assert code == 0, error


def assert_same(one, two):
    for name in ("model.safetensors", "pruned.safetensors"):
        expected, found = load_file(one / name), load_file(two / name)
        assert all(torch.equal(value, found[key]) for key, value in expected.items())
    for first, second in zip(rows(one), rows(two), strict=True):
        assert {**first, "seconds": 0} == {**second, "seconds": 0}
    results = [json.loads((folder / "result.json").read_text()) for folder in (one, two)]
    assert results[0]["pruned"] == results[1]["pruned"]


def test_a_stopped_launch_goes_on_to_the_bit(folder_of, tmp_path):
    """Also, fabric's launcher and torchrun do the same."""
    stopped_and_gone_on(TRAIN, tmp_path / "run", "ddp")
    assert_same(folder_of("ddp"), tmp_path / "run")


def test_batch_norm_and_dropout_go_on_to_the_bit_under_fsdp(tmp_path):
    command = [sys.executable, str(Path(__file__).with_name("with_batch_norm.py")), "train"]
    code, _, error = finish(begin(command, tmp_path / "whole", *SHORT, "--devices", "2", "--strategy", "fsdp"))
    assert code == 0, error
    stopped_and_gone_on(command, tmp_path / "parts", "fsdp")
    assert_same(tmp_path / "whole", tmp_path / "parts")
    assert json.loads((tmp_path / "whole" / "result.json").read_text())["pruned"][0]["recalibrated"] is not None


def test_an_error_of_the_first_process_is_said_once(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "thesis.tex").write_text("x")
    code, _, error = finish(begin(TRAIN, folder, *SHORT, "--devices", "2"))
    assert code == 1
    assert error.count("halo: ") == 1
    assert "holds other files and no run" in error
