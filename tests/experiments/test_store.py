"""Stored runs are read with care: what is half-written or foreign is named and left out."""

import json
import shutil

import pytest
from stored import finished

from torch_halo.experiments.plan import Plan
from torch_halo.experiments.spec import Spec
from torch_halo.experiments.store import Store, find_runs, read_run


@pytest.fixture
def plan(tmp_path):
    plan = Plan(Spec("table1", methods=("dense",), sparsities=(0.9, 0.95), seeds=3, epochs=2), Store(tmp_path))
    for job in plan.jobs():
        finished(plan.store, job, lambda s: 97.0)
    return plan


def change(path, act):
    found = json.loads(path.read_text())
    act(found)
    path.write_text(json.dumps(found))


def cut_short(folder):
    path = folder / "result.json"
    path.write_text(path.read_text()[:-30])


BROKEN = {
    "half-written": (cut_short, r"result\.json: expected JSON; found a damaged file"),
    "a list": (lambda f: (f / "result.json").write_text("[]"), "expected a JSON object; found list"),
    "not a result": (lambda f: (f / "result.json").write_text('{"a": 1}'), "expected a run's result; found only a"),
    "no accuracy": (
        lambda f: change(f / "result.json", lambda r: r["pruned"][1].pop("test")),
        r"result\.json: there is no 'test'",
    ),
    "not a number": (
        lambda f: change(f / "result.json", lambda r: r["test"].update(accuracy="high")),
        "the test accuracy must be a finite number",
    ),
    "no seconds": (
        lambda f: change(f / "result.json", lambda r: r.update(seconds="fast")),
        "seconds must be a finite number",
    ),
    "another run's": (lambda f: change(f / "result.json", lambda r: r.update(name="mine")), "of another run, mine"),
    "another configuration": (
        lambda f: change(f / "config.json", lambda c: c["training"].update(seed=7)),
        "of another run",
    ),
    "no configuration": (lambda f: (f / "config.json").unlink(), r"there is no config\.json"),
    "an epoch lost": (
        lambda f: (f / "metrics.jsonl").write_text((f / "metrics.jsonl").read_text().splitlines()[0] + "\n"),
        r"metrics\.jsonl: it has 1 epochs, not 2",
    ),
    "broken metrics": (lambda f: (f / "metrics.jsonl").write_text("{\n{\n"), r"metrics\.jsonl: "),
    "no metrics": (lambda f: (f / "metrics.jsonl").unlink(), r"metrics\.jsonl: "),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_run_is_named_and_left_out(how, plan):
    act, message = BROKEN[how]
    job = plan.jobs()[1]
    folder = plan.store.folder(job.config)
    act(folder)
    cell = plan.cell(plan.rows[0], 0.95)
    assert [run.config.training.seed for run in cell.runs] == [0, 2]
    (problem,) = plan.store.problems.values()
    assert folder.name in problem
    with pytest.raises((ValueError, OSError), match=message):
        read_run(folder)
    assert not plan.is_done(job)  # so that it is run again
    runs, problems = find_runs([plan.store.path])
    assert len(runs) == 2
    assert list(problems) == [folder]


def test_foreign_files_are_named(plan, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    unfinished = tmp_path / "unfinished"
    shutil.copytree(plan.store.folder(plan.jobs()[0].config), unfinished)
    (unfinished / "result.json").unlink()
    runs, problems = find_runs([tmp_path])
    assert len(runs) == 3
    assert {path.name: reason.partition(": ")[2] for path, reason in problems.items()} == {
        "notes.txt": "not a run's folder",
        "empty": "it is empty",
        "unfinished": "it is not finished",
    }
    with pytest.raises(FileNotFoundError, match="no such run or folder of runs"):
        find_runs([tmp_path / "nowhere"])


def test_a_run_is_found_once(plan, tmp_path):
    runs, _ = find_runs([tmp_path, plan.store.folder(plan.jobs()[0].config)])
    assert len(runs) == 3


def test_a_run_in_anothers_folder_is_left_out(plan):
    first, second = (plan.store.folder(job.config) for job in plan.jobs()[:2])
    shutil.rmtree(second)
    shutil.copytree(first, second)
    assert len(plan.cell(plan.rows[0], 0.95).runs) == 2
    assert "it is of another run" in plan.store.problems[second]


def test_what_is_kept_has_no_weights(plan, tmp_path):
    jobs = plan.jobs()
    (plan.store.folder(jobs[0].config) / "model.safetensors").write_bytes(b"large")
    runs = [plan.store.run(job.config) for job in jobs]
    other = Store(tmp_path / "results")
    assert plan.store.keep(runs, other.path) == 3
    assert [path.name for path in sorted(other.folder(jobs[0].config).iterdir())] == [
        "config.json", "metrics.jsonl", "result.json",
    ]  # fmt: skip
    assert Plan(plan.spec, other).cell(plan.rows[0], 0.95).mean == 97.0


def test_failures_are_remembered(plan):
    config = plan.jobs()[0].config
    assert plan.store.failure(config) is None
    plan.store.note_failure(config, "ValueError: no")
    assert plan.store.failure(config) == "ValueError: no"
    plan.store.note_failure(config, None)
    assert plan.store.failure(config) is None


def test_a_trial_needs_its_validation_accuracy(tmp_path):
    plan = Plan(Spec("table1", methods=("l1",), sparsities=(0.9,), seeds=1, epochs=2), Store(tmp_path))
    folder = finished(plan.store, plan.jobs()[0], lambda s: 97.0, lambda s: 97.0)
    assert plan.store.run(plan.jobs()[0].config) is not None
    change(folder / "result.json", lambda r: r["pruned"][0].update(validation=None))
    with pytest.raises(ValueError, match=r"result\.json: "):
        read_run(folder)


def test_runs_are_not_kept_where_they_are(plan):
    with pytest.raises(ValueError, match="is where the runs are; name another folder"):
        plan.store.keep([], plan.store.path)
