"""Tables: ours beside the paper's, in all formats, each cell with its runs."""

import csv
import io
from dataclasses import replace
from functools import partial

import pytest
from stored import finished

from torch_halo.experiments.paper import SECONDS, TABLES
from torch_halo.experiments.plan import Plan
from torch_halo.experiments.show import results_page, tables_of
from torch_halo.experiments.spec import Spec, note_path
from torch_halo.experiments.store import Store
from torch_halo.experiments.tables import FORMATS, percent
from torch_halo.methods import METHODS
from torch_halo.models import MODELS


def accuracy(seed, less, sparsity):
    return 98.0 + seed - (sparsity + less if sparsity else 0.0)


@pytest.fixture
def plan(tmp_path):
    """Dense 98, 99; lottery at s: 98.5 − s of each seed; L1 the same less 1; DST leaves 97 % zeros."""
    methods, levels = ("dense", "lottery", "l1", "dst"), (0.9, 0.95)
    plan = Plan(Spec("table1", methods=methods, sparsities=levels, seeds=2, epochs=3), Store(tmp_path))
    for _ in range(2):  # trials, then final runs
        for job in plan.jobs():
            if plan.is_done(job):
                continue
            seed, less = job.config.training.seed, 1.0 if job.config.penalty else 0.0
            own = 0.93 if job.config.method and job.config.method["kind"] == "dst" else None
            finished(plan.store, job, partial(accuracy, seed, less), lambda s: 90.0, own=own)
    return plan


def test_the_text(plan):
    (sheet,) = tables_of(plan.spec, plan.store)
    assert FORMATS["text"]([sheet], False).splitlines() == [
        "lenet-300-100 on mnist: test accuracy in percent by sparsity, 3 epochs, 2 seeds, mean ± sd",
        "method   epochs  0 %           90 %           95 %           at baseline  paper         difference  "
        "paper's baseline",
        "dense    3       98.50 ± 0.71  97.60 ± 0.71   97.55 ± 0.71   < 90 %       98.57 ± 0.04  -0.07       65.42 %",
        "lottery  6                     97.60 ± 0.71   97.55 ± 0.71   < 90 %       98.44 ± 0.13  -0.89       95 %",
        "l1       3                     96.60 ± 0.71   96.55 ± 0.71   < 90 %       98.29 ± 0.04  -1.74       90 %",
        "dst      3                     97.60 ± 0.71*  97.55 ± 0.71*  < 90 %",
        "* dst at 90 % has 93.00% zeros, more than were asked for",
        "* dst at 95 % left 93.00% zeros by itself; the threshold cut the rest",
    ]


def test_a_method_that_trains_many_times_has_one_seed_at_one_sparsity(tmp_path):
    spec = Spec("table1", methods=("dense", "lottery-iterative"), seeds=3, epochs=3)
    plan = Plan(spec, Store(tmp_path))
    for job in plan.jobs():
        finished(plan.store, job, partial(accuracy, job.config.training.seed, 0.0))
    # 20 % of what is left at a time: 14 times, and the dense network before.
    assert len(plan.jobs()) == 3 + 14
    (sheet,) = tables_of(spec, plan.store)
    assert sheet.body[1][:5] == ("lottery-iterative", "45", "", "97.05", "")
    assert sheet.notes == ("lottery-iterative: one seed, at 95 % only: it trains many times",)
    assert [source.level for source in sheet.sources] == ["0 %", "95 %", "98 %", "99 %", "95 %"]
    (sheet,) = tables_of(replace(spec, seeds=1), plan.store)
    assert sheet.notes == ("lottery-iterative: one seed, at 95 % only: it trains many times",)
    full = Spec("table1", "full", methods=("lottery-iterative",))
    assert {(row.seeds, row.sparsities) for row in full.rows()} == {(5, full.sparsities)}


def test_every_cell_names_its_runs(plan):
    (sheet,) = tables_of(plan.spec, plan.store)
    assert len(sheet.sources) == 1 + 4 * 2
    for source in sheet.sources:
        assert len(source.runs) == 2
        for seed, name in enumerate(source.runs):
            run = next(run for run in map(plan.store.run, (job.config for job in plan.jobs())) if run.path.name == name)
            assert run.config.training.seed == seed
            assert run.config.data.validation == 0
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"]([sheet], True))))
    assert [row["runs"].split() for row in rows] == [list(source.runs) for source in sheet.sources]
    assert rows[5]["settings"] == "xi=5e-05"
    names = ("method", "sparsity", "mean", "sd", "epochs", "paper", "difference")
    assert [rows[6][name] for name in names] == ["l1", "0.95", "96.5500", "0.7071", "3", "98.29", "-1.74"]
    assert FORMATS["csv"]([sheet, sheet], False).count("table,method") == 1
    for form in ("text", "markdown", "latex"):
        text = FORMATS[form]([sheet], True)
        assert all(name in text for source in sheet.sources for name in source.runs)


def test_markdown_and_latex(plan):
    (sheet,) = tables_of(plan.spec, plan.store)
    lines = FORMATS["markdown"]([sheet], False).splitlines()
    assert lines[2].startswith("| method | epochs | 0 % | 90 % | 95 % | at baseline | paper |")
    assert lines[3] == "|" + " --- |" * 9
    latex = FORMATS["latex"]([sheet], False)
    assert r"\begin{tabular}{lrrrrrrrr}" in latex
    assert r"lottery & 6 &  & 97.60 $\pm$ 0.71 & 97.55 $\pm$ 0.71 & $<$ 90 \% & 98.44 $\pm$ 0.13" in latex
    body = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert {line.count("&") for line in body} == {8}


def test_nothing_there_is_a_dash(tmp_path):
    spec = Spec("table1", methods=("dense", "l1"), sparsities=(0.95,), seeds=2, epochs=3)
    (sheet,) = tables_of(spec, Store(tmp_path))
    assert sheet.body[1] == ("l1", "–", "", "–", "–", "98.29 ± 0.04", "–", "90 %")


def test_seeds_that_are_missing_are_told(plan):
    plan.store.forget(plan.jobs()[0].name)
    (plan.store.folder(plan.jobs()[0].config) / "result.json").unlink()
    (sheet,) = tables_of(plan.spec, plan.store)
    assert sheet.body[0][2] == "99.00 (1 of 2)"


def test_a_choice_from_fewer_settings_is_told(tmp_path):
    plan = Plan(Spec("table1", methods=("l1",), sparsities=(0.9,), seeds=1, epochs=3), Store(tmp_path))
    first, *others = plan.jobs()
    plan.store.note_failure(first.config, "FloatingPointError: the loss is nan")
    for job in others:
        finished(plan.store, job, lambda s: 97.0, lambda s: 97.0)
    (sheet,) = tables_of(plan.spec, plan.store)
    assert sheet.sources[0].settings == "xi=0.0001 (chosen from 3 of 4)"


def test_the_papers_figures_are_not_for_smaller_networks(tmp_path):
    (sheet,) = tables_of(Spec("table2"), Store(tmp_path))
    assert sheet.header[-2:] == ("98 %", "at baseline")
    assert {len(row) for row in sheet.body} == {len(sheet.header)}
    (sheet,) = tables_of(Spec("table2", "full", models=("resnet",)), Store(tmp_path))[:1]
    assert sheet.body[-1][-3:] == ("90.71 ± 0.17", "–", "55 %")


@pytest.mark.parametrize(
    ("network", "note"),
    [("lenet-5", "under the name LeNet-5-Caffe"), ("lenet-5-caffe", "the paper names this network")],
)
def test_which_lenet_5_the_papers_figures_are_of(network, note, tmp_path):
    (sheet,) = tables_of(Spec("table1", models=(network,), methods=("dense", "halo")), Store(tmp_path))
    assert [row[-3] for row in sheet.body] == ["99.24 ± 0.08", "99.12 ± 0.21"]
    assert note in sheet.notes[-1]
    (sheet,) = tables_of(Spec("table1", models=(network,), methods=("halo-target",)), Store(tmp_path))
    assert sheet.notes == ()  # nothing of the paper's stands beside it


def test_failures_are_told(plan):
    plan.store.note_failure(plan.jobs()[1].config, "ValueError: no")
    (sheet,) = tables_of(plan.spec, plan.store)
    assert f"failed: {plan.jobs()[1].name}: ValueError: no" in sheet.notes


def test_the_page_of_results(plan):
    plan.spec.save(plan.store.path)
    page = results_page(plan.store)
    assert page.startswith("# Results\n")
    assert "## Accuracy by sparsity on MNIST (the paper's table 1), scale small" in page
    assert "Where each figure comes from" in page
    note_path(plan.spec, plan.store.path).write_text("*What it shows.* Little.\n")
    assert results_page(plan.store) == f"{page}\n*What it shows.* Little.\n"
    folder = plan.store.folder(plan.jobs()[0].config)
    (folder / "result.json").write_text("{")
    page = results_page(Store(plan.store.path))
    assert "## Left out" in page
    assert f"{folder.name}/result.json: expected JSON; found a damaged file" in page


def test_the_papers_figures_are_of_known_methods():
    for (_, model), rows in TABLES.items():
        assert model in MODELS
        assert set(rows) <= set(METHODS)
        assert rows["dense"].sparsity == 0
        assert max(row.accuracy for row in rows.values()) == rows["dense"].accuracy
    assert {name: round(seconds / SECONDS["dense"], 2) for name, seconds in SECONDS.items()} == {
        "dense": 1.0, "l1": 1.26, "sws": 1.36, "halo": 1.66,
    }  # fmt: skip


@pytest.mark.parametrize(("share", "text"), [(0.0, "0 %"), (0.95, "95 %"), (0.995, "99.5 %"), (0.6542, "65.42 %")])
def test_percent(share, text):
    assert percent(share) == text
