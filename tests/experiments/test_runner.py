"""The runner: what is missing is run, what is unfinished goes on, what is there is left; in processes and on Ray."""

import json
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from examples_of_methods import example
from processes import ENVIRONMENT
from stored import Here, Nothing

from torch_halo.data.idx import FILES
from torch_halo.experiments import engines
from torch_halo.experiments.engines import Local, OnRay
from torch_halo.experiments.plan import Job, Plan, is_done, must_train
from torch_halo.experiments.runner import Runner, state_of
from torch_halo.experiments.show import keep
from torch_halo.experiments.spec import Spec
from torch_halo.experiments.store import Store, find_runs
from torch_halo.experiments.work import do, encoded
from torch_halo.files import locked
from torch_halo.methods import METHODS
from torch_halo.models import read_weights
from torch_halo.training.runs import run as train_run
from torch_halo.training.signals import Stopped

SPEC = Spec("digits", methods=("dense", "lottery", "gmp"), sparsities=(0.9,), seeds=1, epochs=1)
MNIST = Spec("table1", methods=("dense",), sparsities=(0.9,), seeds=1, epochs=1)


def broken(folder):
    """Data that cannot be read."""
    (folder / "data" / "mnist").mkdir(parents=True)
    for name in FILES:
        (folder / "data" / "mnist" / name).write_bytes(b"nonsense" * 4)
    return folder / "data"


def ran(spec, folder, **options):
    store = Store(folder)
    runner, show = Runner(Plan(spec, store), Here(store, **options)), Nothing()
    failed = runner.run(show)
    return runner, show, failed


def weights(store, config):
    return read_weights(store.folder(config) / "model.safetensors")


def test_what_is_missing_is_run_and_what_is_there_is_left(tmp_path):
    runner, show, failed = ran(SPEC, tmp_path)
    assert not failed
    assert len(runner.engine.done) == 1 + 1 + 4 + 1
    assert show.states[-1].done == show.states[-1].jobs == 7
    assert show.states[0].jobs == 7  # the final run of GMP is counted before its settings are known
    assert show.states[-1].share == 1
    assert [problem for _, problem in show.ends] == [None] * 7
    plan = runner.plan
    for row in plan.rows:
        cell = plan.cell(row, 0.9)
        assert cell.mean > 30
        assert cell.reached == pytest.approx(0.9, abs=1e-5)
        assert round(cell.reached * 50_200) == 45_180
    again, _, _ = ran(SPEC, tmp_path)
    assert again.engine.done == []
    assert not list(tmp_path.rglob("last.pt"))


def test_runs_that_were_kept_without_weights_are_trained_again_where_these_are_needed(tmp_path):
    dense = Spec("digits", methods=("dense",), sparsities=(0.5, 0.9), seeds=1, epochs=1)
    first, _, _ = ran(dense, tmp_path / "runs")
    (job,) = first.plan.jobs()
    before = json.loads((tmp_path / "runs" / job.name / "result.json").read_text())
    keep(dense, first.plan.store, tmp_path / "kept")
    assert ran(dense, tmp_path / "kept")[0].engine.done == []  # nobody needs them
    more = replace(dense, methods=("dense", "lottery"), sparsities=(0.9,))
    second, _, failed = ran(more, tmp_path / "kept")
    assert not failed
    assert [done.name for done in second.engine.done] == [job.name, *(j.name for j in second.plan.jobs()[1:])]
    after = json.loads((tmp_path / "kept" / job.name / "result.json").read_text())
    assert {level["asked"]: level["test"] for level in after["pruned"]} == {
        level["asked"]: level["test"] for level in before["pruned"]
    }
    assert ran(more, tmp_path / "kept")[0].engine.done == []


def test_a_kept_run_is_trained_again_to_be_measured_elsewhere(tmp_path):
    dense = Spec("digits", methods=("dense",), sparsities=(0.9,), seeds=1, epochs=1)
    keep(dense, ran(dense, tmp_path / "runs")[0].plan.store, tmp_path / "kept")
    wider, _, failed = ran(replace(dense, sparsities=(0.5, 0.9)), tmp_path / "kept")
    assert not failed
    assert [level["asked"] for level in wider.plan.cell(wider.plan.rows[0], 0.5).runs[0].result["pruned"]] == [0.9, 0.5]


def test_a_kept_run_that_is_trained_again_is_as_it_was_until_it_is_finished(tmp_path, monkeypatch):
    dense = Spec("digits", methods=("dense",), sparsities=(0.5, 0.9), seeds=1, epochs=1)
    first = ran(dense, tmp_path / "runs")[0].plan
    keep(dense, first.store, tmp_path / "kept")
    job = replace(first.jobs()[0], levels=(0.9,), needs_weights=True)
    before = Store(tmp_path / "kept").run(job.config)

    def fails(*arguments, **more):
        raise OSError("no data")

    with monkeypatch.context() as patch:
        patch.setattr("torch_halo.experiments.work.run", fails)
        for _ in range(2):
            with pytest.raises(OSError, match="no data"):
                do(job, tmp_path / "kept", None)
    store = Store(tmp_path / "kept")
    assert store.run(job.config).result == before.result
    assert not is_done(store, job)
    assert must_train(store, job)
    assert find_runs([tmp_path / "kept"])[0] == []  # nobody takes it for a run of its own
    do(job, tmp_path / "kept", None)  # all that it had is measured again, also what is not asked for here
    store = Store(tmp_path / "kept")
    assert is_done(store, job)
    assert [level["asked"] for level in store.run(job.config).result["pruned"]] == [0.5, 0.9]
    assert list((tmp_path / "kept" / "replaced").iterdir()) == []


def test_a_run_whose_weights_are_there_is_measured_without_those_of_the_run_before(tmp_path):
    both = Spec("digits", methods=("dense", "lottery"), sparsities=(0.9,), seeds=1, epochs=1)
    plan = ran(both, tmp_path / "runs")[0].plan
    dense, lottery = plan.jobs()
    plan.store.folder(dense.config).joinpath("model.safetensors").unlink()
    result = plan.store.folder(lottery.config) / "result.json"
    result.write_text(json.dumps({**json.loads(result.read_text()), "pruned": []}))
    again, _, failed = ran(both, tmp_path / "runs")
    assert not failed
    assert [job.name for job in again.engine.done] == [lottery.name]


@pytest.mark.filterwarnings("ignore:λ lies between", "ignore:.*of the weights are zero where")  # one epoch is little
def test_only_final_runs_with_a_coefficient_for_each_weight_keep_their_checkpoint(tmp_path):
    spec = Spec("digits", methods=("halo", "halo-profile", "halo-target", "sws"), sparsities=(0.9,), seeds=1, epochs=1)
    runner, _, failed = ran(spec, tmp_path)
    assert not failed
    (row,) = [row for row in runner.plan.rows if row.method == "halo"]
    (final,) = runner.plan.cell(row, 0.9).runs
    (kept,) = tmp_path.rglob("last.pt")
    assert kept == final.path / "checkpoint" / "last.pt"


def test_another_sparsity_of_a_dense_run_is_measured_not_trained(tmp_path):
    spec = Spec("digits", methods=("dense",), sparsities=(0.9,), seeds=1, epochs=1)
    ran(spec, tmp_path)
    (job,) = Plan(spec, Store(tmp_path)).jobs()
    before = (tmp_path / job.name / "model.safetensors").stat().st_mtime_ns
    wider = Spec("digits", methods=("dense",), sparsities=(0.5, 0.9), seeds=1, epochs=1)
    runner, _, _ = ran(wider, tmp_path)
    assert [job.levels for job in runner.engine.done] == [(0.5, 0.9)]
    assert (tmp_path / job.name / "model.safetensors").stat().st_mtime_ns == before
    levels = json.loads((tmp_path / job.name / "result.json").read_text())["pruned"]
    assert [level["asked"] for level in levels] == [0.9, 0.5]


def test_a_failed_run_stops_what_needs_it_and_nothing_else(tmp_path):
    runner, show, failed = ran(SPEC, tmp_path, fails=("dense",))
    assert [name.split("-")[4] for name in failed] == ["dense"]
    assert len(runner.engine.done) == 1 + 4 + 1  # no lottery without its dense run
    assert show.states[-1].failed == 1
    plan = runner.plan
    assert plan.cell(plan.rows[1], 0.9).mean is None
    assert plan.cell(plan.rows[2], 0.9).mean is not None
    assert plan.store.failure(plan.jobs()[0].config) == "ValueError: it was made to fail"
    # The next time it is tried again.
    again, _, failed = ran(SPEC, tmp_path)
    assert not failed
    assert len(again.engine.done) == 2
    assert plan.store.failure(plan.jobs()[0].config) is None


def test_a_run_that_leaves_no_result_has_failed(tmp_path):
    class Lazy(Here):
        def start(self, job):
            self._ended[job.name] = None

    store = Store(tmp_path)
    spec = Spec("digits", methods=("dense",), sparsities=(0.9,), seeds=1, epochs=1)
    failed = Runner(Plan(spec, store), Lazy(store)).run(Nothing())
    assert list(failed.values()) == ["it ended without a result"]


def test_a_damaged_result_is_not_overwritten(tmp_path):
    spec = Spec("digits", methods=("dense",), sparsities=(0.9,), seeds=1, epochs=1)
    runner, _, _ = ran(spec, tmp_path)
    path = tmp_path / runner.plan.jobs()[0].name / "result.json"
    path.write_text(path.read_text()[:50])
    with pytest.raises(ValueError, match=r"result\.json: expected JSON; .*; remove .* to have it run again"):
        ran(spec, tmp_path)
    assert len(path.read_text()) == 50


def test_a_trial_that_was_killed_is_no_verdict(tmp_path):
    spec = Spec("digits", methods=("gmp",), sparsities=(0.9,), seeds=1, epochs=1)
    first = Plan(spec, Store(tmp_path)).jobs()[0]
    runner, _, failed = ran(spec, tmp_path, fails=(first.name,))
    assert list(failed) == [first.name]
    assert len(runner.engine.done) == 4  # no final run without a fair choice
    assert runner.plan.chosen(runner.plan.rows[0], 0.9) is None
    runner.plan.store.note_failure(first.config, "FloatingPointError: the loss is nan")
    assert runner.plan.chosen(runner.plan.rows[0], 0.9) is not None


def test_what_another_runner_works_on_is_waited_for(tmp_path):
    spec = Spec("digits", methods=("dense",), sparsities=(0.9,), seeds=1, epochs=1)
    store = Store(tmp_path)
    (job,) = Plan(spec, store).jobs()
    store.folder(job.config).mkdir()
    engine = Here(store)

    class Other(Nothing):
        def state(self, state):
            super().state(state)
            if len(self.states) == 1:
                assert engine.done == []
                lock.close()  # the other one is done with it

    lock = ExitStack()
    lock.enter_context(locked(store.folder(job.config)))
    assert store.is_busy(job.config)
    assert Runner(Plan(spec, store), engine).run(Other()) == {}
    assert [job.name for job in engine.done] == [job.name]


class Interrupted(Exception):
    pass


@pytest.mark.filterwarnings("ignore:λ lies between")  # two epochs are few
@pytest.mark.parametrize("name", METHODS)
def test_every_method_goes_on_to_the_same_bits(name, tmp_path, monkeypatch):
    spec = Spec("digits", methods=("dense",), sparsities=(0.9,), seeds=1, epochs=2)
    setup = spec.setup(spec.subjects()[0], seed=0)
    job = Job(example(name).config(setup, 0.9), (0.9,))
    chain = [job]
    while chain[0].before is not None:
        chain.insert(0, Job(chain[0].before))
    chain = chain[-2:]  # of an iterative lottery the last round will do
    if chain[0].before is not None:
        pytest.skip("the iterative lottery's rounds are lotteries")
    for place in ("left alone", "interrupted"):
        for each in chain[:-1]:
            do(each, tmp_path / place, None)
    do(job, tmp_path / "left alone", None)

    def killed_after_seven_steps(config, path, display, inputs, begin):
        def stepped(session):
            if session.step == 7:
                raise Interrupted

        display.stepped = stepped
        return train_run(config, path, display, inputs, save_every=0, begin=begin)

    monkeypatch.setattr("torch_halo.experiments.work.run", killed_after_seven_steps)
    with pytest.raises(Interrupted):
        do(job, tmp_path / "interrupted", None)
    monkeypatch.undo()
    do(job, tmp_path / "interrupted", None)
    one, other = (weights(Store(tmp_path / place), job.config) for place in ("left alone", "interrupted"))
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert one.keys() == other.keys()
    zeros = sum(int((value == 0).sum()) for key, value in one.items() if "weight" in key)
    level = json.loads((tmp_path / "interrupted" / job.name / "result.json").read_text())["pruned"][0]
    assert level["zeros"] == max(45_180, zeros)


# Processes


def command(folder):
    spec = ["--methods", "dense", "--sparsities", "0.9", "--seeds", "1", "--epochs", "40"]
    return [sys.executable, "-m", "torch_halo", "experiment", "digits", *spec, "--runs", str(folder)]


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.02)


def test_ctrl_c_stops_the_engine(tmp_path):
    store = Store(tmp_path)

    class Interrupted(Here):
        stopped = False

        def start(self, job):
            signal.raise_signal(signal.SIGINT)

        def stop(self):
            self.stopped = True

    engine = Interrupted(store)
    with pytest.raises(Stopped, match="all runs are saved and will go on"):
        Runner(Plan(SPEC, store), engine).run(Nothing())
    assert engine.stopped


def test_a_kill_leaves_runs_that_go_on(tmp_path):
    spec = Spec("digits", methods=("dense",), sparsities=(0.9,), seeds=1, epochs=40)
    plan = Plan(spec, Store(tmp_path / "killed"))
    dense = plan.jobs()[0].config
    process = subprocess.Popen(command(tmp_path / "killed"), stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    wait_for(lambda: plan.store.epochs_done(dense) > 0 or process.poll() is not None)
    process.kill()
    process.wait()
    # A run whose runner was killed notices it, saves itself and ends.
    wait_for(lambda: "stopped at epoch" in plan.store.log(dense).read_text())
    assert plan.store.run(dense) is None
    done = subprocess.run(command(tmp_path / "killed"), capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr
    assert "0 of 1 runs are there" in done.stdout
    assert f"{dense.name} is done" in done.stdout
    for job in plan.jobs():
        do(job, tmp_path / "left alone", None)
        one, other = weights(plan.store, job.config), weights(Store(tmp_path / "left alone"), job.config)
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_process_that_fails_says_why(tmp_path):
    store = Store(tmp_path)
    job = Plan(MNIST, store).jobs()[0]
    engine = Local(1, store, broken(tmp_path))
    engine.start(job)
    assert not engine.has_room()
    found = {}
    wait_for(lambda: found.update(engine.ended(0.1)) or found)
    assert found[job.name].startswith("ValueError: ")
    assert "expected idx images" in found[job.name]


def test_a_process_that_dies_is_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr(engines.sys, "executable", "/bin/sleep")
    store = Store(tmp_path)
    job = Plan(SPEC, store).jobs()[0]
    engine = Local(2, store, None)
    engine.start(job)  # `sleep -m …` ends with a complaint of its own
    found = {}
    wait_for(lambda: found.update(engine.ended(0.1)) or found)
    assert found[job.name]


def test_jobs_must_be_a_number(tmp_path):
    with pytest.raises(ValueError, match="jobs must be a whole number, at least 1"):
        Local(0, Store(tmp_path), None)


def test_what_a_process_is_told(tmp_path):
    job = Plan(SPEC, Store(tmp_path)).jobs()[0]
    told = json.loads(encoded(job, tmp_path, None))
    assert told["store"] == str(tmp_path)
    assert told["config"] == job.config.as_dict()
    assert (told["levels"], told["parent"]) == ([0.9], None)


# Estimates


def test_the_estimate_counts_what_is_left_by_kind(tmp_path):
    store = Store(tmp_path)
    plan = Plan(SPEC, store)
    assert state_of(plan, {}).seconds_left is None
    ran(Spec("digits", methods=("dense",), sparsities=(0.9,), seeds=1, epochs=1), tmp_path)
    seconds = store.run(plan.jobs()[0].config).result["seconds"]
    state = state_of(plan, {}, width=2, besides=3.0)
    assert (state.jobs, state.done, state.epochs, state.epochs_done) == (7, 1, 7, 1)
    assert state.seconds_left == pytest.approx(6 * (seconds + 3.0) / 2)


# Ray


def test_the_same_runs_on_ray(tmp_path):
    pytest.importorskip("ray")
    spec = Spec("digits", methods=("dense",), sparsities=(0.9,), seeds=1, epochs=1)
    store = Store(tmp_path / "ray")
    engine = OnRay(None, 1, store, broken(tmp_path))
    assert engine.width == 1
    stop, engine.stop = engine.stop, lambda: None  # the same cluster for both
    assert Runner(Plan(spec, store), engine).run(Nothing()) == {}
    (reason,) = Runner(Plan(MNIST, store), engine).run(Nothing()).values()
    assert "ValueError: " in reason
    assert "expected idx images" in reason
    stop()
    for job in Plan(spec, store).jobs():
        do(job, tmp_path / "here", None)
        one, other = weights(store, job.config), weights(Store(tmp_path / "here"), job.config)
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_an_address_without_a_cluster(tmp_path):
    pytest.importorskip("ray")
    store = Store(tmp_path)
    with pytest.raises(ConnectionError, match="no Ray cluster at"):
        OnRay("127.0.0.1:1", None, store, None)


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"--engine ray needs ray: pip install 'torch-halo\[ray\]'"):
        OnRay(None, None, Store(tmp_path), None)
