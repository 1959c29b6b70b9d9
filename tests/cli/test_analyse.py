"""`halo analyse` and `halo suspects`, on runs of digits."""

import csv
import json

import numpy as np
import pytest

from torch_halo.cli import main
from torch_halo.experiments.analysing import read_analysis
from torch_halo.report.runs import read_runs, runs_html

SHORT = ["--epochs", "6", "--batch-size", "64", "--label-noise", "0.2", "--sample-losses"]
HALO = ["--penalty", "halo", "--xi", "1e-4", "--coefficient-weight-decay", "0.02"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("analyse")
    ways = {"halo": [*HALO, *SHORT], "again": [*HALO, *SHORT, "--seed", "1"], "dense": ["--epochs", "2"]}
    for name, flags in ways.items():
        assert main(["train", *flags, "--out", str(root / name)]) == 0
    return root


def said(capsys, *arguments):
    code = main([*map(str, arguments)])
    found = capsys.readouterr()
    return code, found.out, found.err


def test_two_runs_are_looked_at_compared_and_reported(runs, capsys):
    code, out, err = said(capsys, "analyse", runs / "halo", runs / "again")
    assert (code, err) == (0, "")
    assert out.count("rank correlation of λ and |w|") == 2
    found = read_analysis(runs / "halo")
    assert set(found) == {"sparsity", "coefficients", "layers", "spectrum", "history", "dead", "overlap"}
    assert sum(layer["zeros"] for layer in found["layers"]) == round(0.95 * sum(x["weights"] for x in found["layers"]))
    assert [x["features"] for x in found["spectrum"]] == [300, 100, 10]
    assert all(x["samples"] == found["spectrum"][0]["samples"] > 1000 for x in found["spectrum"])
    assert len(found["history"]) == 6
    assert found["history"][-1] == pytest.approx(0.95, abs=0.01)
    assert found["dead"]["parameters"][1] < found["dead"]["parameters"][0]
    (shared,) = found["overlap"]
    assert shared["other"] == "again"
    assert 0.5 < shared["by_chance"] < 1
    best = found["coefficients"]["best"]["coefficients"]
    assert best == sorted(best)
    page = runs_html(*read_runs([runs]))
    for title in ("λ against |w|", "Sparsity by layer", "Spectra", "Under the final threshold", "Zeros shared"):
        assert title in page


def test_one_analysis_is_kept_beside_others(runs, capsys):
    code, out, _ = said(capsys, "analyse", runs / "dense", "--what", "layers", "--sparsity", 0.5)
    assert code == 0
    assert "weights   zeros" in out
    said(capsys, "analyse", runs / "dense", "--what", "spectrum", "--images", 20, "--positions", "one")
    found = read_analysis(runs / "dense")
    assert {"layers", "spectrum"} <= set(found)
    assert found["spectrum"][0]["note"] == "20 samples for 300 features: at most 19 directions can be seen"


def test_what_a_run_does_not_have_is_said(runs, capsys):
    code, _, err = said(capsys, "analyse", runs / "dense")
    assert code == 0
    assert "no coefficients: there is no λ for each weight: train with HALO" in err
    code, _, err = said(capsys, "analyse", runs / "dense", "--what", "coefficients")
    assert code == 1
    assert "coefficients of" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing"], "no such run; a run is a folder"),
        (["dense", "--what", "overlap"], "overlap compares runs; name two or more"),
        (["dense", "--sparsity", "1.5"], "--sparsity must be"),
        (["dense", "--images", "0"], "--images must be a whole number, at least 1"),
    ],
)
def test_bad_arguments(runs, arguments, message, capsys):
    code, _, err = said(capsys, "analyse", runs / arguments[0], *arguments[1:])
    assert code == 1
    assert message in err


def test_suspects_are_ranked_and_judged(runs, tmp_path, capsys):
    code, out, err = said(capsys, "suspects", runs / "halo", "-o", tmp_path / "suspects.csv")
    assert (code, err) == (0, "")
    rows = list(csv.DictReader((tmp_path / "suspects.csv").read_text().splitlines()))
    losses = np.stack([np.load(path) for path in sorted((runs / "halo" / "losses").iterdir())])
    assert len(rows) == losses.shape[1]
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert int(rows[0]["index"]) == losses.astype(float).mean(0).argmax()
    assert float(out.split("AUROC ")[1].split(",")[0]) > 0.95
    data = json.loads((runs / "halo" / "suspects.json").read_text())
    assert data["auroc"] > 0.95
    assert "Suspicious labels" in runs_html(*read_runs([runs]))


def test_suspects_without_losses_or_flips(runs, tmp_path, capsys):
    code, out, err = said(capsys, "suspects", runs / "dense", "-o", tmp_path / "suspects.csv", "--count", 5)
    assert code == 0
    assert "has no losses by sample" in err
    assert "no flips are known" in out
    assert len((tmp_path / "suspects.csv").read_text().splitlines()) == 6
    code, _, err = said(capsys, "suspects", runs / "dense", "-o", tmp_path / "no" / "suspects.csv")
    assert code == 1
    assert "cannot write" in err
