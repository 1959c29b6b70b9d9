"""`halo analyse` and `halo suspects`, on runs of digits."""

import csv
import json
import shutil

import numpy as np
import pytest

import torch_halo as th
from torch_halo.analysis import best_coefficients
from torch_halo.cli import main
from torch_halo.data import load
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
    assert found["history"][-1] == pytest.approx(0.95, abs=1e-4)
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
    flags = ["--what", "spectrum", "--images", 20, "--positions", "one"]
    said(capsys, "analyse", runs / "dense", *flags, "--sparsity", 0.5)
    found = read_analysis(runs / "dense")
    assert set(found) == {"sparsity", "layers", "spectrum"}
    assert found["spectrum"][0]["note"] == "20 samples for 300 features: at most 19 directions can be seen"


def test_another_sparsity_begins_anew(runs, capsys):
    said(capsys, "analyse", runs / "dense", "--what", "layers", "--sparsity", 0)
    found = read_analysis(runs / "dense")
    assert set(found) == {"sparsity", "layers"}
    assert found["sparsity"] == sum(layer["zeros"] for layer in found["layers"]) == 0


def test_pictures_are_files(runs, tmp_path, capsys):
    code, _, _ = said(capsys, "analyse", runs / "dense", "--what", "layers", "--pictures", tmp_path / "pictures")
    assert code == 0
    assert (tmp_path / "pictures" / "dense-layers.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "file").write_text("x")
    code, _, err = said(capsys, "analyse", runs / "dense", "--pictures", tmp_path / "file")
    assert code == 1
    assert "File exists" in err


@pytest.mark.filterwarnings("ignore:λ lies between")
def test_strengths_are_compared_without_weights(runs, tmp_path, capsys):
    for xi in ("1e-4", "1e-3", "1e-2"):
        flags = ["--penalty", "l1", "--xi", xi, "--epochs", "1", "--sparsity", "0.9"]
        assert main(["train", *flags, "--out", str(tmp_path / "runs" / xi)]) == 0
        (tmp_path / "runs" / xi / "model.safetensors").unlink()
    what = ["--what", "strengths", "--sparsity", 0.9]
    capsys.readouterr()
    code, out, err = said(capsys, "analyse", tmp_path / "runs", *what, "--pictures", tmp_path / "pictures")
    assert (code, err) == (0, "")
    results = [json.loads((tmp_path / "runs" / xi / "result.json").read_text()) for xi in ("1e-4", "1e-3", "1e-2")]
    accuracies = [f"{result['pruned'][0]['test']['accuracy']:.2f}" for result in results]
    assert [line.split() for line in out.splitlines()[2:]] == [
        ["l1,", "test", xi, accuracy] for xi, accuracy in zip(("0.0001", "0.001", "0.01"), accuracies, strict=True)
    ]
    (picture,) = (tmp_path / "pictures").iterdir()
    assert picture.name == "lenet-300-100-on-digits-strengths.png"
    code, _, err = said(capsys, "analyse", tmp_path / "runs" / "1e-4", runs / "halo", *what)
    assert code == 1
    assert "3 or more runs that differ in nothing but xi, with psi; among 2 runs there are none" in err


def test_damaged_analyses(runs, tmp_path, capsys):
    shutil.copytree(runs / "dense", tmp_path / "run")
    (tmp_path / "run" / "analysis.json").write_text("{")
    code, _, err = said(capsys, "analyse", tmp_path / "run")
    assert code == 1
    assert "analysis.json: expected JSON; found a damaged file" in err
    for text in ("{", '{"dead": {"layers": []}, "layers": [{}], "spectrum": 3}'):
        (tmp_path / "run" / "analysis.json").write_text(text)
        (tmp_path / "run" / "suspects.json").write_text("[]")
        page = runs_html(*read_runs([tmp_path]))
        assert "Left out" in page


@pytest.mark.parametrize("content", [b"", b"garbage", "short"], ids=str)
def test_damaged_losses(runs, tmp_path, content, capsys):
    shutil.copytree(runs / "halo", tmp_path / "run")
    file = tmp_path / "run" / "losses" / "epoch-0002.npy"
    if content == "short":
        np.save(file, np.ones(3))
    else:
        file.write_bytes(content)
    code, _, err = said(capsys, "suspects", tmp_path / "run", "-o", tmp_path / "suspects.csv")
    assert code == 1
    assert "epoch-0002.npy: expected" in err
    assert not (tmp_path / "suspects.csv").exists()


FLAGS = {
    "validation": ["--validation", "0.2", "--label-noise", "0.3"],
    "layer": ["--scope", "layer", "--select", "!5"],
    "adamw": ["--optimizer", "adamw"],
    "log": ["--h", "log_squared", "--epochs", "2"],
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # so short a training leaves λ alike, and layers empty
@pytest.mark.parametrize("way", list(FLAGS))
def test_runs_of_other_settings(way, tmp_path, capsys):
    flags = [*HALO, "--epochs", "2", "--sample-losses", *FLAGS[way]]
    assert main(["train", *flags, "--out", str(tmp_path / "run")]) == 0
    code, _, err = said(capsys, "analyse", tmp_path / "run")
    assert code == 0
    found = read_analysis(tmp_path / "run")
    assert ("best" in found["coefficients"]) == (way != "log")
    assert ("history" in found) == (way != "layer")
    assert ("no history of run: with a threshold for each layer there is none for all" in err) == (way == "layer")
    code, _, _ = said(capsys, "suspects", tmp_path / "run", "-o", tmp_path / "suspects.csv")
    rows = list(csv.DictReader((tmp_path / "suspects.csv").read_text().splitlines()))
    whole = load("digits").train.labels
    places = [int(row["index"]) for row in rows]
    given = [int(row["given label"]) for row in rows]
    same = np.mean(whole.numpy()[places] == given)
    assert same == 1 if way != "validation" else 0.6 < same < 0.8  # the others were flipped
    assert len(set(places)) == len(places) == round(len(whole) * (0.8 if way == "validation" else 1))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_curve_has_the_decay_that_lambda_had(tmp_path, capsys):
    for name, flags in {"sgd": ["--weight-decay", "0"], "adamw": ["--optimizer", "adamw"]}.items():
        halo = ["--penalty", "halo", "--xi", "1e-4", "--epochs", "1"]
        assert main(["train", *halo, *flags, "--out", str(tmp_path / name)]) == 0
        assert said(capsys, "analyse", tmp_path / name, "--what", "coefficients")[0] == 0
        best = read_analysis(tmp_path / name)["coefficients"]["best"]
        expected = best_coefficients(np.array(best["magnitudes"]), th.HALO(xi=1e-4), 5e-4)
        np.testing.assert_allclose(best["coefficients"], expected, rtol=1e-3)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_runs_of_different_networks(runs, tmp_path, capsys):
    assert (
        main(["train", "--model", "lenet-300-100", "--epochs", "1", "--select", "!5", "--out", str(tmp_path / "other")])
        == 0
    )
    code, _, err = said(capsys, "analyse", runs / "dense", tmp_path / "other")
    assert code == 0
    assert "no overlap: " in err
    code, _, err = said(capsys, "analyse", runs / "dense", tmp_path / "other", "--what", "overlap")
    assert code == 1
    assert "their --select differs" in err


def test_what_a_run_does_not_have_is_said(runs, capsys):
    code, _, err = said(capsys, "analyse", runs / "dense")
    assert code == 0
    assert "no coefficients of dense: there is no λ for each weight: train with HALO" in err
    code, out, err = said(capsys, "analyse", runs / "dense", "--what", "coefficients", "layers")
    assert code == 1
    assert "no coefficients of dense" in err
    assert "weights   zeros" in out  # the rest is done


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing"], "no such run; a run is a folder"),
        (["dense", "--what", "overlap"], "overlap compares runs; name two or more"),
        (["dense", "--sparsity", "1"], "--sparsity must be"),
        (["dense", "dense"], "a run is named twice"),
        (["dense", "--images", "0"], "--images must be a whole number, at least 1"),
    ],
)
def test_bad_arguments(runs, arguments, message, capsys):
    arguments = [runs / each if each in ("dense", "missing") else each for each in arguments]
    code, _, err = said(capsys, "analyse", *arguments)
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
