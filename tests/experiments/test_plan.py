"""Which runs an experiment needs, what it chooses, and what its cells say: by results made by hand."""

from dataclasses import replace

import pytest
from stored import finished

from torch_halo.experiments.catalogue import EXPERIMENTS, SCALES
from torch_halo.experiments.grids import GRIDS
from torch_halo.experiments.plan import Job, Plan
from torch_halo.experiments.show import tables_of
from torch_halo.experiments.spec import Spec, describe, read_spec, saved_specs
from torch_halo.experiments.store import Store
from torch_halo.methods import METHODS, kind_of, method_of
from torch_halo.models import MODELS
from torch_halo.training.config import Config


def plan(tmp_path, *methods, sparsities=(0.9, 0.95), seeds=2, **more):
    spec = Spec("table1", methods=methods, sparsities=sparsities, seeds=seeds, epochs=3, **more)
    return Plan(spec, Store(tmp_path))


SIZE = len(GRIDS["mnist", "small"]["l1"])


def row(plan, method):
    return next(row for row in plan.rows if row.method == method)


def trials(plan):
    return [job for job in plan.jobs() if job.config.data.validation]


def finals(plan):
    return [job for job in plan.jobs() if not job.config.data.validation]


@pytest.mark.parametrize("grids", GRIDS.values(), ids=map(" ".join, GRIDS))
def test_grids_are_of_one_size_or_none(grids):
    assert list(grids) == list(METHODS)
    assert len({len(grid) for grid in grids.values()} - {1}) == 1
    assert all(len(set(map(describe, grid))) == len(grid) for grid in grids.values())
    assert {name for name, grid in grids.items() if len(grid) == 1} - {"gmp", "rigl"} == {
        "dense", "random-init", "random-init-b", "lottery", "lottery-iterative", "grasp", "snip", "halo-target",
    }  # fmt: skip


def test_a_network_may_have_grids_of_its_own():
    sizes = {
        name: len(row(Plan(Spec("table1", models=(name,)), None), "l1").grid) for name in ("lenet-300-100", "lenet-5")
    }
    assert sizes == {"lenet-300-100": 4, "lenet-5": 3}
    assert {key[2] for key in GRIDS if len(key) == 3} <= set(MODELS)


def test_trials_may_be_shorter(tmp_path):
    now = Plan(Spec("table2", methods=("l1",)), Store(tmp_path))
    assert {(job.config.training.epochs, job.config.data.validation) for job in now.jobs()} == {(6, 0.1)}
    assert now.spec.setup(now.spec.subjects()[0], seed=0).training.epochs == 15
    # Two fifths of the steps, so two and a half times the strength; the final runs have the grid's own.
    assert [job.config.penalty.xi for job in now.jobs()] == [5e-5, 1e-4, 2e-4]
    for job in trials(now):
        finished(now.store, job, lambda s: 80.0, lambda s: 80.0)
    assert [job.config.penalty.xi for job in finals(now)] == [2e-5]
    assert Spec("table2", epochs=3).trial_epochs == 3  # not longer than what they are for
    assert Spec("table2", trial_epochs=2).trial_epochs == 2
    assert Spec("table1", epochs=7).trial_epochs == 7


def test_a_steered_penalty_has_its_target_in_its_settings(tmp_path):
    found = plan(tmp_path, "halo-target").jobs()
    assert sorted(job.config.shrinking.target_sparsity for job in found) == [0.9, 0.9, 0.95, 0.95]
    assert {job.levels for job in found} == {(0.9,), (0.95,)}
    assert {kind_of(job.config) for job in found} == {"halo-target"}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_can_be_planned(name, scale, tmp_path):
    spec = Spec(name, scale)
    assert spec.rows()
    for subject in spec.subjects():
        setup = spec.setup(subject, seed=1)
        assert Config.from_dict(setup.as_dict()) == setup
    assert len(Plan(spec, Store(tmp_path)).jobs()) > 0 or name == "time"


def test_full_is_the_papers_setting():
    spec = Spec("table1", "full")
    assert [subject.name for subject in spec.subjects()] == [
        "lenet-300-100 on mnist", "lenet-5-caffe on mnist", "lenet-5 on mnist",
    ]  # fmt: skip
    assert (spec.epochs, spec.seeds, spec.sparsities) == (250, 5, (0.9, 0.95, 0.97, 0.98, 0.99))
    setup = spec.setup(spec.subjects()[0], seed=0)
    assert (setup.schedule.every, setup.schedule.unit, setup.training.batch_size) == (25_000, "batch", 100)
    half = Spec("table1", "full", epochs=125)
    assert half.setup(half.subjects()[0], seed=0).schedule.every == 12_500
    spec = Spec("table2", "full")
    assert len(spec.subjects()) == 4
    assert spec.setup(spec.subjects()[0], seed=0).schedule.milestones == (80, 120)


def test_fashion_mnist_is_trained_like_mnist():
    spec = Spec("label-noise", label_noise=(0.4,))
    digits, clothes = (spec.setup(subject, seed=0) for subject in spec.subjects())
    assert replace(clothes, data=digits.data) == digits
    assert clothes.data == replace(digits.data, name="fashion-mnist")
    grids = {row.subject.data: row.grid for row in spec.rows() if row.method == "l1"}
    assert grids["mnist"] == grids["fashion-mnist"]


def test_a_penalty_is_tried_once_for_all_sparsities_on_part_of_the_training_set(tmp_path):
    found = plan(tmp_path, "dense", "l1").jobs()
    tried = [job for job in found if job.config.penalty is not None]
    assert len(tried) == SIZE
    assert {job.config.data.validation for job in tried} == {0.1}
    assert {job.config.training.seed for job in tried} == {0}
    assert {job.levels for job in tried} == {(0.9, 0.95)}
    dense = [job for job in found if job.config.penalty is None]
    assert [(job.config.training.seed, job.config.data.validation) for job in dense] == [(0, 0), (1, 0)]


def test_a_method_with_a_target_is_tried_for_each(tmp_path):
    found = plan(tmp_path, "gmp").jobs()
    assert sorted(job.config.method["sparsity"] for job in found) == [0.9] * SIZE + [0.95] * SIZE
    assert {job.levels for job in found} == {(0.9,), (0.95,)}


def test_the_lotterys_runs_before_are_the_dense_runs(tmp_path):
    found = plan(tmp_path, "lottery", "dense", "random-init").jobs()
    dense = [job for job in found if job.config.method is None]
    assert len(dense) == 2
    assert dense[0].levels == (0.9, 0.95)  # for its own row
    assert len([job for job in found if job.config.method]) == 2 * 2 * 2
    names = [job.name for job in found]
    assert all(names.index(job.before.name) < names.index(job.name) for job in found if job.before)


def test_settings_are_chosen_by_sparsity(tmp_path):
    now = plan(tmp_path, "l1")
    strengths = [method.penalty.xi for method in row(now, "l1").grid]
    # The weakest is best at 90 %, the second and the third, alike, at 95 %.
    best = {0.9: dict(zip(strengths, (98, 97, 96, 95), strict=True))}
    best[0.95] = dict(zip(strengths, (90, 97, 97, 95), strict=True))
    for number, job in enumerate(trials(now)):
        assert now.chosen(row(now, "l1"), 0.9) is None
        assert len(list(now.unknown())) == 2
        assert len(finals(now)) == 0
        xi = job.config.penalty.xi
        finished(now.store, job, lambda s: 50.0, lambda s, xi=xi: best[s][xi] if s else 99.0)
        assert number < SIZE
    assert now.chosen(row(now, "l1"), 0.9).penalty.xi == strengths[0]
    assert now.chosen(row(now, "l1"), 0.95).penalty.xi == strengths[1]
    assert not list(now.unknown())
    assert sorted((job.config.penalty.xi, job.config.training.seed) for job in finals(now)) == [
        (strengths[0], 0), (strengths[0], 1), (strengths[1], 0), (strengths[1], 1),
    ]  # fmt: skip
    assert {job.levels for job in finals(now)} == {(0.9, 0.95)}


def test_a_setting_that_fails_is_no_candidate(tmp_path):
    now = plan(tmp_path, "l1")
    jobs = trials(now)
    for job in jobs[1:]:
        finished(now.store, job, lambda s: 50.0, lambda s, job=job: 90.0 + jobs.index(job))
    assert now.chosen(row(now, "l1"), 0.9) is None
    now.store.note_failure(jobs[0].config, "FloatingPointError: the loss is nan")
    assert now.chosen(row(now, "l1"), 0.9).penalty.xi == jobs[-1].config.penalty.xi
    for job in jobs[1:]:
        now.store.note_failure(job.config, "lost")  # a result that is there counts all the same
    assert now.chosen(row(now, "l1"), 0.9) is not None


def test_cells_have_mean_spread_and_runs(tmp_path):
    now = plan(tmp_path, "dense", "lottery", seeds=3)
    for job in now.jobs():
        accuracy = 97.0 + job.config.training.seed
        finished(now.store, job, lambda s, a=accuracy: a - 10 * s)
    cell = now.cell(row(now, "dense"), 0.0)
    assert (cell.mean, cell.spread, len(cell.runs), cell.epochs) == (98.0, 1.0, 3, 3)
    cell = now.cell(row(now, "lottery"), 0.95)
    assert (cell.mean, cell.spread, cell.epochs) == (pytest.approx(88.5), 1.0, 6)
    assert [run.config.training.seed for run in cell.runs] == [0, 1, 2]
    assert cell.reached == pytest.approx(0.95)


def test_runs_that_are_missing_are_not_made_up(tmp_path):
    now = plan(tmp_path, "dense", seeds=3)
    finished(now.store, now.jobs()[1], lambda s: 97.0)
    cell = now.cell(row(now, "dense"), 0.95)
    assert (cell.mean, cell.spread, len(cell.runs), cell.row.seeds) == (97.0, None, 1, 3)
    assert now.cell(row(now, "dense"), 0.9).runs[0].name == now.jobs()[1].name
    # Another sparsity of the same runs is measured, not trained: the run is known, the level is not.
    wider = plan(tmp_path, "dense", seeds=3, sparsities=(0.5, 0.95))
    assert wider.cell(row(wider, "dense"), 0.5).mean is None
    assert not wider.is_done(wider.jobs()[1])
    assert [job.name for job in wider.jobs()] == [job.name for job in now.jobs()]


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [({0.9: 98.0, 0.95: 97.9}, 0.95), ({0.9: 97.9, 0.95: 97.84}, 0.9), ({0.9: 97.0, 0.95: 97.0}, None)],
)
def test_sparsity_at_baseline(accuracies, expected, tmp_path):
    now = plan(tmp_path, "dense", "lottery", seeds=1)
    for job in now.jobs():
        is_dense = job.config.method is None
        finished(now.store, job, lambda s, d=is_dense: 98.0 if d and not s else accuracies.get(s, 0.0))
    assert now.at_baseline(row(now, "lottery")) == expected


def test_batch_norm_is_estimated_anew_before_a_network_counts(tmp_path):
    now = plan(tmp_path, "dense", "l1", sparsities=(0.9,), seeds=1)
    strengths = [method.penalty.xi for method in row(now, "l1").grid]
    again = dict(zip(strengths, (60.0, 80.0, 70.0, 10.0), strict=True))
    for job in trials(now):  # all at chance as cut, so that the first would win
        finished(now.store, job, lambda s: 10.0, lambda s: 10.0, recalibrated=again[job.config.penalty.xi])
    assert now.chosen(row(now, "l1"), 0.9).penalty.xi == strengths[1]
    for job in finals(now):
        finished(now.store, job, lambda s: 79.8 if s else 90.0, recalibrated=80.0 if job.config.penalty else 79.0)
    assert [now.cell(each, 0.9).mean for each in now.rows] == [79.0, 80.0]
    assert now.dense(now.rows[0].subject).mean == 90.0
    (sheet,) = tables_of(now.spec, now.store)
    how = "batch norm's statistics are estimated anew after pruning, on training images"
    assert sheet.notes == (f"{how}; without that: dense at 90 % 79.80",)


def test_the_grid_of_strengths_has_a_row_for_each(tmp_path):
    now = Plan(Spec("strength-grid", epochs=1), Store(tmp_path))
    labels = [row.label.split()[1] for row in now.rows if row.method == "halo"]
    assert labels == ["xi=3e-07", "xi=1e-06", "xi=3e-06", "xi=1e-05"]
    assert len(now.jobs()) == SIZE * len(now.spec.methods)
    assert not trials(now)


def test_what_was_asked_for_is_remembered(tmp_path):
    spec = Spec("table1", methods=("dense", "l1"), sparsities=(0.95, 0.9), seeds=1, epochs=2)
    spec.save(tmp_path)
    other = Spec("table1", models=("lenet-5",), seeds=1)
    other.save(tmp_path)
    again = Spec("table1", methods=("dense",), seeds=1, epochs=2)
    assert saved_specs(tmp_path) == [spec, other]
    again.save(tmp_path)
    assert saved_specs(tmp_path) == [again, other]
    assert spec.sparsities == (0.9, 0.95)
    path = tmp_path / "experiments" / "table1-small-lenet-300-100.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"table1-small-lenet-300-100\.json: expected an experiment"):
        read_spec(path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "table3"}, "unknown experiment 'table3'; known: table1, table2, target, .*did you mean table"),
        ({"methods": ("dense", "hallo")}, "unknown method 'hallo'; known: dense, .*did you mean halo"),
        ({"models": ("vgg16",)}, "table1 has no model 'vgg16'; it has lenet-300-100, lenet-5-caffe, lenet-5"),
        ({"scale": "tiny"}, "unknown scale 'tiny'; known: full, small"),
        ({"sparsities": (1.0,)}, "sparsities must be a finite number above 0 and below 1; received 1.0"),
        ({"seeds": -1}, "seeds must be a whole number, at least 1"),
        ({"epochs": -1}, "epochs must be a whole number, at least 1"),
    ],
)
def test_bad_specs(settings, message):
    with pytest.raises(ValueError, match=message):
        Spec(**{"name": "table1", **settings})


def test_models_that_the_scale_leaves_out_can_be_named():
    assert [s.name for s in Spec("table1", models=("lenet-5", "lenet-300-100")).subjects()] == [
        "lenet-300-100 on mnist", "lenet-5 on mnist",
    ]  # fmt: skip
    assert [s.name for s in Spec("table2", models=("vgg16", "resnet")).subjects()] == [
        "vgg16 width 0.25 on cifar10", "resnet depth 20 on cifar10",
    ]  # fmt: skip


def test_an_experiments_penalised_run_is_the_run_that_halo_train_makes(tmp_path):
    now = plan(tmp_path, "l1")
    job = trials(now)[0]
    assert job.config.method is None
    assert method_of(job.config) == row(now, "l1").grid[0]
    assert Job(job.config).before is None
