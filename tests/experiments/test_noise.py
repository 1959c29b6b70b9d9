"""Trainings with wrong labels: real ones, of digits."""

import json

import pytest

from torch_halo.experiments.catalogue import EXPERIMENTS, NOISES, SCALES
from torch_halo.experiments.noise import HEADER, noise_sheets
from torch_halo.experiments.plan import Plan
from torch_halo.experiments.show import tables_of
from torch_halo.experiments.spec import Spec
from torch_halo.experiments.store import Store
from torch_halo.experiments.suspicion import read_suspects
from torch_halo.experiments.work import do


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    spec = Spec("digits", methods=("dense",), sparsities=(0.9,), seeds=2, epochs=8, label_noise=(0.0, 0.4))
    plan = Plan(spec, Store(tmp_path_factory.mktemp("noise")))
    for job in plan.jobs():
        do(job, plan.store.path, None)
    return Plan(spec, Store(plan.store.path))


def test_a_table_of_what_was_learned_by_heart(plan):
    (sheet,) = noise_sheets(plan)
    assert sheet.header == HEADER
    clean, noisy = sheet.body
    assert clean[:2] == ("dense", "0")
    assert (clean[5], *clean[-2:]) == ("–", "–", "–")  # no label is wrong
    runs = plan.cell(plan.rows[1], 0.9).runs
    results = [json.loads((run.path / "result.json").read_text()) for run in runs]
    train = [result["train"]["accuracy"] for result in results]
    test = [result["test"]["accuracy"] for result in results]
    assert noisy[2].split(" ± ")[0] == f"{sum(train) / 2:.2f}"
    assert noisy[4].split(" ± ")[0] == f"{(sum(train) - sum(test)) / 2:.2f}"
    assert noisy[5].split(" ± ")[0] == f"{sum(result['memorised'] for result in results) / 2:.1f}"
    assert float(noisy[7].split(" ± ")[0]) > 0.9
    assert [len(source.runs) for source in sheet.sources] == [2, 2]


def test_suspects_are_kept_with_what_the_final_network_says(plan):
    for run in plan.cell(plan.rows[1], 0.9).runs:
        found = read_suspects(run.path)
        assert found["epochs"] == 8
        assert 0.3 * 1437 < found["flips"] < 0.5 * 1437
        assert found["auroc"] > 0.9
        assert 0.5 < found["final"]["auroc"] < 1
        assert len(found["first"]) == 36


def test_networks_without_noise_keep_no_losses(plan):
    for run in plan.cell(plan.rows[0], 0.9).runs:
        assert not (run.path / "losses").exists()
        assert "memorised" not in run.result


@pytest.mark.parametrize("scale", list(SCALES))
def test_the_experiment_chooses_settings_for_each_share(scale, tmp_path):
    spec = Spec("label-noise", scale)
    plan = Plan(spec, Store(tmp_path))
    assert sorted({row.subject.noise for row in plan.rows}) == sorted(NOISES)
    names = {job.config.name: job.config for job in plan.jobs()}
    finals = [config for config in names.values() if not config.data.validation]
    # Those without settings to choose: dense and halo-target.
    assert len(finals) == 2 * len(spec.subjects()) * spec.seeds
    assert {config.training.sample_losses for config in finals if config.data.label_noise} == {True}
    trials = [config for config in names.values() if config.data.validation]
    assert {config.data.label_noise for config in trials} == set(NOISES)
    assert not any(config.training.sample_losses for config in trials)
    sheets = tables_of(spec, Store(tmp_path))
    assert len(sheets) == len({subject.data for subject in spec.subjects()})
    for sheet in sheets:
        assert len(sheet.body) == len(NOISES) * len(EXPERIMENTS["label-noise"].scales[scale].methods)


def test_a_damaged_file_of_suspects(tmp_path):
    (tmp_path / "suspects.json").write_text('{"flips": 3')
    with pytest.raises(ValueError, match=r"suspects\.json: expected suspicious labels; found a damaged file"):
        read_suspects(tmp_path)
