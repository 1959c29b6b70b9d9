"""Seconds an epoch: in turns, kept round by round."""

import json

import pytest
import torch

from torch_halo.experiments import timing
from torch_halo.experiments.show import keep, tables_of
from torch_halo.experiments.spec import Spec
from torch_halo.experiments.store import Store
from torch_halo.experiments.timing import Times, measure_times, read_times, timing_path

SPEC = Spec("digits", methods=("dense", "l1", "halo"), seeds=1, epochs=1)


def test_methods_train_in_turns_and_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "ROUNDS", 4)
    turns = []
    honest = timing._Timed._steps

    def noted(self, session, first, last):
        turns.append((session.config.penalty.__class__.__name__, first, last))
        return honest(self, session, first, last)

    monkeypatch.setattr(timing._Timed, "_steps", noted)
    rounds = []
    measure_times(SPEC, tmp_path, None, lambda name, n, of: rounds.append((n, of)))
    assert rounds == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert turns[:3] == [("NoneType", 0, 2), ("L1", 0, 2), ("HALO", 0, 2)]  # warm up
    assert turns[3:9] == [
        ("NoneType", 0, 5), ("L1", 0, 5), ("HALO", 0, 5), ("L1", 5, 11), ("HALO", 5, 11), ("NoneType", 5, 11),
    ]  # fmt: skip
    path = timing_path(SPEC, SPEC.subjects()[0], tmp_path)
    times = read_times(path)
    assert (times.steps, len(times.rounds), times.threads) == (23, 4, torch.get_num_threads())
    assert all(0 < seconds < 1 for each in times.rounds for seconds in each.values())
    measure_times(SPEC, tmp_path, None, lambda *told: pytest.fail("it was there"))


def test_part_of_an_epoch_is_timed():
    timed = timing._Timed(timing.configs(SPEC, SPEC.subjects()[0]), None, share=2 * timing.ROUNDS / 23)
    spans = []
    timed._steps = lambda session, first, last: spans.append((first, last)) or 0.1
    for number in range(timing.ROUNDS):
        timed.round(number)
    assert spans[::3] == [(2 * n, 2 * n + 2) for n in range(timing.ROUNDS)]


def test_a_method_is_timed_at_its_work(tmp_path):
    spec = Spec("digits", methods=("dense", "dst", "rigl"), seeds=1, epochs=1)
    timed = timing._Timed(timing.configs(spec, spec.subjects()[0]), None)
    assert "1.threshold" in timed._sessions["dst"].module.state_dict()
    assert timed._sessions["rigl"].masks.sparsity == pytest.approx(0.95, abs=1e-4)
    with pytest.raises(ValueError, match="lottery trains twice"):
        timing.configs(Spec("digits", methods=("dense", "lottery")), spec.subjects()[0])


def test_times_beside_the_papers(tmp_path):
    spec = Spec("time", models=("vgg16",), methods=("dense", "l1", "sws", "halo"))
    path = timing_path(spec, spec.subjects()[0], tmp_path)
    path.parent.mkdir()
    rounds = [
        {"dense": 0.1, "l1": 0.11, "sws": 0.12, "halo": 0.13},
        {"dense": 0.2, "l1": 0.22, "sws": 0.32, "halo": 0.24},
    ]
    path.write_text(json.dumps({"threads": 2, "steps": 782, "rounds": rounds}))
    (sheet,) = tables_of(spec, Store(tmp_path))
    assert sheet.title == "vgg16 on cifar10: seconds an epoch, 2 of 40 rounds in turns, 2 threads"
    assert sheet.body == (
        ("dense", "117.3", "1.00 (1.00 to 1.00)", "1.00"),
        ("l1", "129.0", "1.10 (1.10 to 1.10)", "1.26"),
        ("sws", "172.0", "1.40 (1.30 to 1.50)", "1.36"),
        ("halo", "144.7", "1.25 (1.22 to 1.28)", "1.66"),
    )
    assert keep(spec, Store(tmp_path), tmp_path / "kept") == 1
    assert tables_of(spec, Store(tmp_path / "kept")) == [sheet]
    path.write_text("{")
    store = Store(tmp_path)
    assert tables_of(spec, store)[0].body[0] == ("dense", "–", "–", "1.00")
    assert "expected times by method" in store.problems[path]


def test_other_threads_are_not_mixed(tmp_path):
    path = timing_path(SPEC, SPEC.subjects()[0], tmp_path)
    path.parent.mkdir()
    path.write_text(json.dumps({"threads": 77, "steps": 23, "rounds": []}))
    with pytest.raises(ValueError, match="was begun with 77 threads"):
        measure_times(SPEC, tmp_path, None, lambda *told: None)
    assert Times(1, 10, ({"dense": 2.0, "l1": 3.0},)).ratio("l1") == "1.50"
