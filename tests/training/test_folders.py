"""Folders, checkpoints and disks that are not as they should be: a clear error, and nothing lost."""

import json
import os
import pickle
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from processes import ENVIRONMENT
from safetensors.torch import save_file
from small_runs import SMALL, Silent, changed, outcome, ran

from torch_halo.files import locked
from torch_halo.training.config import Config
from torch_halo.training.folder import RunFolder, config_in, write_weights
from torch_halo.training.settings import Training

pytestmark = pytest.mark.filterwarnings("ignore:.*would have lost every weight", "ignore:λ lies between")


class Stop(Exception):
    pass


def stop():
    raise Stop


def crashed(folder, step=30):
    """A run that died after a step, with a checkpoint of the step before."""
    with pytest.raises(Stop):
        ran(folder, display=Silent({step: stop}), save_every=0)
    return folder / "checkpoint" / "last.pt"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "finished"
    ran(folder)
    return folder


def test_a_crash_goes_on_from_the_last_checkpoint(finished, tmp_path):
    crashed(tmp_path / "run")
    display = ran(tmp_path / "run")
    assert display.begins == [(1, 8)]
    assert outcome(tmp_path / "run") == outcome(finished)


def test_a_folder_of_another_configuration_is_refused(tmp_path):
    checkpoint = crashed(tmp_path / "run")
    before = checkpoint.read_bytes()
    message = r"holds a run of another configuration \(training.epochs: 3 there, 5 here\); name another"
    with pytest.raises(ValueError, match=message):
        ran(tmp_path / "run", changed(training=Training(epochs=5, batch_size=64, sample_losses=True)))
    assert checkpoint.read_bytes() == before


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(FileExistsError, match="holds other files and no run; name another folder"):
        ran(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(NotADirectoryError, match=r"thesis.tex is a file; a run needs a folder"):
        ran(tmp_path / "thesis.tex")


def test_a_folder_in_use_is_refused(tmp_path):
    crashed(tmp_path / "run")
    with (
        locked(tmp_path / "run"),
        pytest.raises(BlockingIOError, match=r"another process is at work in .*run; wait for it, or stop it"),
    ):
        ran(tmp_path / "run")


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path):
    other = crashed(tmp_path / "other")
    config = changed(training=Training(epochs=5, batch_size=64, sample_losses=True))
    with pytest.raises(Stop):
        ran(tmp_path / "run", config, Silent({5: stop}), save_every=0)
    os.replace(other, tmp_path / "run" / "checkpoint" / "last.pt")
    with pytest.raises(ValueError, match=r"last.pt is a checkpoint of another configuration, digits-.*, not digits-"):
        ran(tmp_path / "run", config)


def test_a_checkpoint_cut_short_is_refused(tmp_path):
    checkpoint = crashed(tmp_path / "run")
    whole = checkpoint.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        checkpoint.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"last.pt: expected a checkpoint; found a damaged or unsafe one"):
            ran(tmp_path / "run")
        assert checkpoint.stat().st_size == size
    checkpoint.write_bytes(whole)
    ran(tmp_path / "run")


class Hostile:
    def __reduce__(self):
        return os.system, ("touch executed",)


def test_a_hostile_checkpoint_is_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint = crashed(tmp_path / "run")
    for write in (lambda: checkpoint.write_bytes(pickle.dumps(Hostile())), lambda: torch.save(Hostile(), checkpoint)):
        write()
        with pytest.raises(ValueError, match=r"last.pt: expected a checkpoint; found a damaged or unsafe one"):
            ran(tmp_path / "run")
    for other in ({"format": 7}, {"format": 1}, [1]):
        torch.save(other, checkpoint)
        with pytest.raises(ValueError, match=r"expected a checkpoint of format 1; found something else"):
            ran(tmp_path / "run")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda state: state["model"].update({"1.weight": torch.zeros(2)}), "the checkpoint does not fit the model"),
        (lambda state: state["model"].pop("1.weight"), "the checkpoint does not fit the model"),
        (lambda state: state["progress"].pop("epoch"), "the checkpoint is damaged: KeyError 'epoch'"),
        (lambda state: state.update(rng=[]), "the checkpoint is damaged: IndexError"),
        (lambda state: state.update(optimizer=3), "the checkpoint is damaged: TypeError"),
    ],
)
def test_a_checkpoint_that_does_not_fit(spoil, message, tmp_path):
    checkpoint = crashed(tmp_path / "run", step=3)
    state = torch.load(checkpoint, weights_only=True)
    spoil(state)
    torch.save(state, checkpoint)
    with pytest.raises(ValueError, match=message):
        ran(tmp_path / "run")


def test_a_lost_row_of_metrics_is_told(tmp_path):
    crashed(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text("[]\n")
    with pytest.warns(UserWarning, match=r"metrics.jsonl has 0 of the 1 epochs before; the rest is lost"):
        ran(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["epochs"] == 3


def test_a_result_that_is_none(finished):
    whole = (finished / "result.json").read_text()
    (finished / "result.json").write_text('{"name": 1}')
    with pytest.raises(ValueError, match=r"result.json: expected a run's result; found only name"):
        RunFolder(finished).result()
    (finished / "result.json").write_text(whole)


def test_damaged_json_is_named(tmp_path):
    crashed(tmp_path / "run")
    damaged = {"{": "expected JSON; found a damaged file", "[]": "expected a JSON object; found list"}
    for content, message in damaged.items():
        (tmp_path / "run" / "config.json").write_text(content)
        with pytest.raises(ValueError, match=f"config.json: {message}"):
            ran(tmp_path / "run")


def test_what_a_killed_save_left_is_removed(finished, tmp_path):
    checkpoint = crashed(tmp_path / "run")
    for left in ("checkpoint/.last.pt.abcd1234", ".result.json.abcd1234", "losses/.epoch-0001.npy.abcd1234"):
        (tmp_path / "run" / left).write_bytes(b"half")
    ran(tmp_path / "run")
    assert checkpoint.exists()
    assert [path.name for path in (tmp_path / "run").rglob(".*")] == [".lock"]
    assert outcome(tmp_path / "run") == outcome(finished)


def test_a_full_disk_keeps_the_last_good_checkpoint(finished, tmp_path):
    checkpoint = crashed(tmp_path / "run")
    before = checkpoint.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    message = r"cannot save the checkpoint .*last.pt \(.+\); the last good checkpoint is kept"
    try:
        # As on a full disk, writing fails in the middle of the file.
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
        with pytest.raises(OSError, match=message):
            ran(tmp_path / "run", save_every=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert checkpoint.read_bytes() == before
    assert [path.name for path in checkpoint.parent.iterdir()] == ["last.pt"]
    ran(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(finished)


def test_a_full_disk_at_the_end_leaves_the_run_unfinished(finished, tmp_path):
    ran(tmp_path / "run")
    for name in ("result.json", "model.safetensors", "pruned.safetensors"):
        (tmp_path / "run" / name).unlink()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        with pytest.raises(OSError, match=r"cannot save|too large"):
            ran(tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not [p.name for p in (tmp_path / "run").iterdir() if p.suffix == ".safetensors" or p.name == "result.json"]
    ran(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(finished)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        ran(tmp_path / "run")


def test_weights_tell_what_they_are(finished, tmp_path):
    assert config_in(finished / "model.safetensors") == SMALL
    write_weights(tmp_path / "w.safetensors", {"x": torch.zeros(2, 2).T}, Config())
    assert config_in(tmp_path / "w.safetensors") == Config()
    assert config_in(Path("weights.pt")) is None
    for number, found in enumerate(("{", "[]", '{"schema": 1, "data": "x"}', '{"schema": 1, "data": {"kind": "x"}}')):
        path = tmp_path / f"{number}.safetensors"
        save_file({"x": torch.zeros(1)}, path, {"halo": found})
        with pytest.raises(ValueError, match=rf"{number}.safetensors: its configuration cannot be read \("):
            config_in(path)
    (tmp_path / "bad.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"bad.safetensors: expected a safetensors file; found a damaged one"):
        config_in(tmp_path / "bad.safetensors")


def test_a_run_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no run: there is no config.json"):
        RunFolder(tmp_path).config()


def test_kills_at_random_moments():
    """The script with fewer kills; 20 take some minutes."""
    script = Path(__file__).parents[2] / "benchmarks" / "kills.py"
    command = [sys.executable, str(script), "--kills", "2", "--epochs", "8"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("bitwise the same weights, metrics and losses\n")


def test_results_are_json(finished):
    assert json.loads((finished / "result.json").read_text())["name"] == SMALL.name
