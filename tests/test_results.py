"""The README's figures of training are those of the stored runs."""

import json
import re
import statistics
from pathlib import Path

import pytest
from steering import VARIANTS  # of benchmarks

from torch_halo.cli.display import table
from torch_halo.experiments.analysing import read_analysis
from torch_halo.experiments.inference import read_inference, size_rows, summary_row, time_rows
from torch_halo.experiments.overhead import CASES, overhead_rows, read_overhead
from torch_halo.experiments.plan import Plan
from torch_halo.experiments.show import results_page, tables_of
from torch_halo.experiments.spec import read_spec, saved_specs
from torch_halo.experiments.store import Store
from torch_halo.experiments.summary import summary
from torch_halo.experiments.suspicion import read_suspects
from torch_halo.experiments.tables import FORMATS
from torch_halo.training.folder import RunFolder

ROOT = Path(__file__).parents[1]
MNIST = sorted((ROOT / "results/mnist-lenet-300-100-halo").iterdir())


def test_three_seeds_reach_98_3_at_95_percent():
    assert [folder.name for folder in MNIST] == ["seed0", "seed1", "seed2"]
    for seed, folder in enumerate(MNIST):
        config = json.loads((folder / "config.json").read_text())
        assert config["training"]["seed"] == seed
        assert config["training"]["epochs"] == 30
        assert (config["penalty"]["xi"], config["penalty"]["psi"]) == (1e-6, 1e-6)
        assert config["optimizer"]["weight_decay"] == 5e-4  # λ's too
        result = json.loads((folder / "result.json").read_text())
        assert result["pruned"][0]["sparsity"] == 0.95
        assert result["pruned"][0]["test"]["accuracy"] >= 98.3


def test_the_stronger_run():
    result = json.loads((ROOT / "results/mnist-lenet-300-100-halo-1e-5/seed0/result.json").read_text())
    found = [f"{x['accuracy']:.2f}" for x in (result["test"], *(level["test"] for level in result["pruned"]))]
    assert found == ["98.20", "98.20", "98.20", "98.19", "98.02"]


@pytest.mark.parametrize("folder", MNIST, ids=lambda folder: folder.name)
def test_the_readme_has_the_stored_figures(folder):
    result = json.loads((folder / "result.json").read_text())
    found = [result["test"], *(level["test"] for level in result["pruned"])]
    row = " | ".join([folder.name.removeprefix("seed"), *(f"{figures['accuracy']:.2f}" for figures in found)])
    assert f"| {row} |" in (ROOT / "README.md").read_text()
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["epoch"] == 30
    assert last["test"] == result["test"]


def test_the_page_of_results_is_made_from_the_stored_runs():
    store = Store(ROOT / "results")
    assert (ROOT / "docs/results.md").read_text() == results_page(store), "make results"
    assert not store.problems


def test_every_stored_run_is_of_a_table_or_is_spoken_of():
    store = Store(ROOT / "results")
    plans = [Plan(spec, store) for spec in saved_specs(store.path) if spec.name != "time"]
    needed = {job.name for plan in plans for job in plan.jobs()}
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "results/experiments").glob("*.md")]
    told = "".join(page.read_text() for page in pages)
    runs = {path.parent.name for path in store.path.glob("*/config.json")}
    assert len(runs) > 100
    assert [name for name in sorted(runs - needed) if name not in told] == []


def test_what_is_said_of_a_table_has_its_figures():
    store, notes = Store(ROOT / "results"), sorted((ROOT / "results/experiments").glob("*.md"))
    assert notes
    for note in notes:
        text = FORMATS["markdown"](tables_of(read_spec(note.with_suffix(".json")), store), True)
        accuracies = re.findall(r"\d{2}\.\d{2}", note.read_text())
        assert [x for x in accuracies if x not in text] == []


def test_the_overheads_are_those_that_were_measured():
    page = (ROOT / "docs/method.md").read_text()
    networks = read_overhead(ROOT / "results/overhead.json")
    assert len(networks) == len(CASES)
    for found in networks:
        lines = [f"{found.case}: {found.weights:,} weights, {found.threads} threads, {len(found.rounds)} rounds"]
        assert "\n".join([*lines, *table(overhead_rows(found))]) in page


def test_the_readme_has_the_comparison_at_a_glance():
    assert "\n".join(summary(Store(ROOT / "results"))) in (ROOT / "README.md").read_text()


def test_the_readmes_tables_are_those_of_the_stored_runs():
    store, readme = Store(ROOT / "results"), (ROOT / "README.md").read_text()
    for name in ("target", "time"):
        specs = [spec for spec in saved_specs(store.path) if spec.name == name]
        assert FORMATS["text"]([sheet for spec in specs for sheet in tables_of(spec, store)], False) in readme


def test_the_inferences_are_those_that_were_measured():
    page, readme = (ROOT / "docs/deployment.md").read_text(), (ROOT / "README.md").read_text()
    paths = sorted((ROOT / "results").glob("**/inference*.json"))
    assert len(paths) >= 4
    for found in (each for path in paths for each in read_inference(path)):
        text = [f"{found.about}, {found.sparsity:.2%} zeros", *table(size_rows(found)), "", *table(time_rows(found))]
        assert "\n".join(text) in page
        if round(found.sparsity, 2) == 0.95:
            assert f"| {' | '.join(summary_row(found))} |" in readme


@pytest.mark.parametrize("network", ["mnist-lenet-300-100", "cifar10-vgg16"])
def test_the_analyses_are_those_that_were_made(network):
    page = (ROOT / "docs/analysis.md").read_text()
    runs = sorted(path.parent for path in (ROOT / "results").glob(f"{network}-*/analysis.json"))
    assert len(runs) == 2
    found, store = [read_analysis(run) for run in runs], Store(ROOT / "results")
    accuracies = [store.run(RunFolder(run).config()).accuracy(0.95) for run in runs]
    assert " % and ".join(f"{accuracy:.2f}" for accuracy in accuracies) in page
    rows = [
        [f"{each['coefficients']['among_survivors']:.3f}" for each in found],
        [f"{each['coefficients']['correlation']:.3f}" for each in found],
        [", ".join(f"{100 * x['zeros'] / x['weights']:.2f} %" for x in each["layers"]) for each in found],
        [", ".join(f"{x['effective_rank']:.1f}" for x in each["spectrum"]) for each in found],
        [f"{each['dead']['parameters'][1]:,}" for each in found],
        [f"{x['jaccard']:.3f} ({x['by_chance']:.3f})" for each in found for x in each["overlap"]],
        [f"{x['kept']:.3f} ({x['kept_by_chance']:.3f})" for each in found for x in each["overlap"]],
    ]
    for row in rows:
        assert f"| {' | '.join(row)} |" in page
    assert all(each["coefficients"]["among_survivors"] >= 0.9 for each in found)


def test_the_suspects_are_those_that_were_found():
    page, store = (ROOT / "docs/analysis.md").read_text(), Store(ROOT / "results")
    plan = Plan(read_spec(ROOT / "results/experiments/label-noise-small-lenet-300-100.json"), store)
    found = {(row.subject.data, row.label): _suspicions(plan.cell(row, 0.95)) for row in plan.rows}
    cleanlab = json.loads((ROOT / "results/cleanlab.json").read_text())
    judged = {
        "HALO, mean loss over training": lambda data: found[data, "halo"],
        "HALO, loss of the final network": lambda data: [each["final"] for each in found[data, "halo"]],
        "L1, mean loss over training": lambda data: found[data, "l1"],
        "dense, mean loss over training": lambda data: found[data, "dense"],
        "dense, loss of the final network": lambda data: [each["final"] for each in found[data, "dense"]],
        "cleanlab, dense networks, five folds": lambda data: [
            each for each in cleanlab if f" on {data}," in each["data"] and each["weight_decay"] == 1e-4
        ],
    }
    for name, of in judged.items():
        assert f"| {name} | {_means(of('mnist'))} | {_means(of('fashion-mnist'))} |" in page
    readme = " ".join((ROOT / "README.md").read_text().split())
    for name, words in {
        "HALO": "{} on MNIST and {} on",
        "dense": "with {} and {}",
        "cleanlab": "with {} and {}",
    }.items():
        of = next(judged[key] for key in judged if key.startswith(name))
        aurocs = [statistics.fmean(each["auroc"] for each in of(data)) for data in ("mnist", "fashion-mnist")]
        assert words.format(*(f"{auroc:.3f}" for auroc in aurocs)) in readme
    decayed = [each for each in cleanlab if each["weight_decay"] == 5e-4]
    first, second = (f"{each['auroc']:.4f}, {each['precision']:.4f}" for each in decayed)
    assert f"has {first} on MNIST and {second} on Fashion-MNIST" in page


def _suspicions(cell):
    return [read_suspects(run.path) for run in cell.runs]


def _means(figures):
    assert len(figures) == 3
    values = ([each[name] for each in figures] for name in ("auroc", "precision"))
    return ", ".join(f"{statistics.fmean(value):.4f} ± {statistics.stdev(value):.4f}" for value in values)


def test_what_analyses_cost_is_what_was_measured():
    page, found = (ROOT / "docs/analysis.md").read_text(), json.loads((ROOT / "results/analyses.json").read_text())
    few, many = found["spectrum"]
    assert few["images"] * 50 == many["images"] == 50_000
    assert f"held {many['megabytes']} MB at most" in page
    assert many["megabytes"] <= 1.1 * few["megabytes"]  # bounded: it does not grow with the images
    assert f"weights took {found['overlap']['seconds']:.2f} s" in page


def test_the_parts_of_the_steering_are_those_that_were_measured():
    page = (ROOT / "docs/method.md").read_text()
    found = json.loads((ROOT / "results/steering.json").read_text())
    mean = {
        name: f"{statistics.fmean(row['validation'] for row in found if row['variant'] == name):.2f}"
        for name in VARIANTS
    }
    assert f"rest from 0.3·N on | {mean['as it is']} | {mean['frozen later']} |" in page
    assert f"never rest | {mean['zeros never rest']} | {mean['frozen later, zeros never rest']} |" in page
