"""`halo deploy`, `halo export` and `halo bench inference`, on a run of digits."""

import json

import onnxruntime
import pytest
import torch

import torch_halo as th
from torch_halo.cli import main
from torch_halo.deployment.compressed import is_compressed
from torch_halo.experiments.inference import Inference, read_inference
from torch_halo.models import MODELS
from torch_halo.report.runs import read_runs, runs_html


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("deploy") / "run"
    flags = ["--sparsity", "0.95", "--epochs", "8", "--batch-size", "64", "--out", str(path)]
    assert main(["train", *flags]) == 0
    return path


def said(capsys, *arguments):
    code = main([*map(str, arguments)])
    found = capsys.readouterr()
    return code, found.out, found.err


def accuracies(out):
    lines = out.splitlines()
    first = next(i for i, line in enumerate(lines) if line.strip() == "test accuracy")
    return [line.split()[-2] for line in lines[first + 1 : first + 4]]


def test_deploy_writes_a_small_file_that_is_as_good(run, tmp_path, capsys):
    path = tmp_path / "small.safetensors"
    code, out, err = said(capsys, "deploy", run, "-o", path, "--batch", 64, "--threads", 1)
    assert (code, err) == (0, "")
    assert len(set(accuracies(out))) == 1
    assert "zeros 95.00%" in out
    assert is_compressed(path)
    assert 12 * path.stat().st_size < 4 * 50_610
    _, told, _ = said(capsys, "eval", path)
    assert f"{accuracies(out)[0]} %" in told
    model = th.load_compressed(path, MODELS["lenet-300-100"]((1, 8, 8), 10))
    assert th.sparsity(model).sparsity == pytest.approx(0.95, abs=1e-4)
    code, _, _ = said(capsys, "deploy", path, "-o", tmp_path / "again.safetensors", "--engine", "dense")
    assert code == 0
    assert (tmp_path / "again.safetensors").stat().st_size == path.stat().st_size


def test_deploy_can_prune_and_round(run, tmp_path, capsys):
    path = tmp_path / "small.safetensors"
    flags = ["--sparsity", 0.98, "--values", "float16", "--no-zstd", "--engine", "numba"]
    code, out, _ = said(capsys, "deploy", run, "-o", path, *flags)
    assert code == 0
    assert "zeros 98.00%" in out
    assert "numba" in out


@pytest.mark.parametrize("flags", [["--format", "onnx"], ["--format", "onnx", "--sparse"], ["--format", "torch"]])
def test_export(run, tmp_path, capsys, flags):
    path = tmp_path / ("network.pt2" if "torch" in flags else "network.onnx")
    code, out, _ = said(capsys, "export", run, "-o", path, *flags)
    assert code == 0
    assert "parameters 50,610 -> " in out
    assert f"written: {path}: {path.stat().st_size:,} bytes" in out
    if "onnx" in flags:
        assert onnxruntime.InferenceSession(path).get_inputs()[0].shape[1:] == [1, 8, 8]
    else:
        assert torch.export.load(path).module()(torch.zeros(3, 1, 8, 8)).shape == (3, 10)


def test_bench_inference_is_kept_and_reported(run, capsys):
    flags = ["--batch", 1, 4, "--threads", 1, "--rounds", 3]
    code, out, _ = said(capsys, "bench", "inference", run, *flags)
    assert code == 0
    assert "lenet-300-100 on digits (run), 95.00% zeros" in out
    assert len(json.loads((run / "inference.json").read_text())["networks"][0]["times"]) == 2
    page = runs_html(*read_runs([run]))
    assert "<h3>Inference</h3>" in page
    assert "compressed, without zstd" in page
    (run / "inference.json").write_text("{")
    assert "left out (" in runs_html(*read_runs([run]))
    (run / "inference.json").unlink()
    assert "<h3>Inference</h3>" not in runs_html(*read_runs([run]))


def test_bench_inference_prunes_anew_each_time(run, tmp_path, capsys, monkeypatch):
    def quick(about, model, sample, batches, threads, rounds):
        yield Inference(about, th.sparsity(model).sparsity, {"dense": 1})

    monkeypatch.setattr("torch_halo.cli.inference.measured", quick)
    for name, about in ((run, "lenet-300-100 on digits (run)"), ("lenet-300-100", "LeNet-300-100")):
        flags = ["--sparsity", 0.98, 0.96, "-o", tmp_path / "i.json"]
        assert said(capsys, "bench", "inference", name, *flags)[0] == 0
        found = read_inference(tmp_path / "i.json")
        assert [(each.about, round(each.sparsity, 2)) for each in found] == [(about, 0.98), (about, 0.96)]


def test_ctrl_c_leaves_nothing(run, tmp_path, capsys, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("torch_halo.cli.deploy.deploy", stopped)
    code, _, err = said(capsys, "deploy", run, "-o", tmp_path / "x.safetensors")
    assert (code, err) == (130, "\nstopped; nothing was written\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["deploy", "RUN", "-o", "x.bin"], 1, "the output must end in .safetensors; received x.bin"),
        (["deploy", "RUN", "-o", "no/x.safetensors"], 1, "cannot write no/x.safetensors"),
        (["deploy", "nowhere", "-o", "x.safetensors"], 1, "nowhere: no such run or file"),
        (["deploy", "RUN", "-o", "x.safetensors", "--batch", "0"], 1, "--batch must be a whole number, at least 1"),
        (["deploy", "RUN", "-o", "x.safetensors", "--engin", "csr"], 2, "unknown flag --engin; did you mean --engine"),
        (["deploy", "RUN", "-o", "x.safetensors", "--threads", "0"], 1, "--threads must be a whole number"),
        (["deploy", "RUN", "-o", "x.safetensors", "--sparsity", "95"], 1, "sparsity must be a finite number"),
        (["export", "RUN", "-o", "x.txt"], 1, "a file of format onnx must end in .onnx; received x.txt"),
        (["export", "RUN", "-o", "x.onnx", "--batch", "0"], 1, "--batch must be a whole number, at least 1"),
        (["export", "RUN", "-o", "x.pt2", "--format", "torch", "--sparse"], 1, "sparse is for ONNX files"),
        (["bench", "inference", "vgg61"], 1, "vgg61: no such run or file, nor one of lenet-300-100, vgg16"),
        (["bench", "inference", "RUN", "--rounds", "0"], 1, "--rounds must be a whole number, at least 1"),
        (["bench", "inference", "RUN", "--batch", "-1"], 1, "--batch must be a whole number, at least 1"),
        (["bench", "inference", "RUN", "--sparsity", "1"], 1, "--sparsity must be a finite number above 0 and below 1"),
    ],
)
def test_bad_input(arguments, code, message, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found, _, err = said(capsys, *(run if each == "RUN" else each for each in arguments))
    assert found == code
    assert message in err
    assert not list(tmp_path.iterdir())
