import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_halo as th
from torch_halo import cli
from torch_halo.data import load
from torch_halo.experiments import demo
from torch_halo.models import lenet_300_100
from torch_halo.report import demo_table

HALO = [sys.executable, "-c", "import sys; from torch_halo.cli import main; sys.exit(main())"]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(demo, "EPOCHS", 2)
    monkeypatch.setattr(demo.run_demo, "__defaults__", (2, print))


def test_one_seed_shows_what_the_penalties_do():
    rows = {row.method: row.accuracies() for row in demo.run_demo(1, done=lambda what: None)}
    assert list(rows) == list(demo.METHODS)
    at = {level: {name: row[i][0] for name, row in rows.items()} for i, level in enumerate(demo.SPARSITIES)}
    assert min(at[0.0].values()) > 95
    for level, gap in ((0.95, 2), (0.98, 15), (0.99, 30)):
        assert at[level]["L1"] > at[level]["dense"] + gap
        assert at[level]["HALO"] > at[level]["dense"] + gap
        assert at[level]["HALO"] > 95


def test_the_command_prints_a_table_and_writes_whole_files(quick, tmp_path, capsys):
    page, data = tmp_path / "page.html", tmp_path / "data.json"
    assert cli.main(["demo", "--seeds", "2", "--out", str(page), "--json", str(data)]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("method", "dense", "L1", "HALO", "99%", "page.html"))
    text = page.read_text()
    assert text.count("<svg") == 1
    assert text.rstrip().endswith("</html>")
    rows = demo.from_json(data.read_text())
    assert [len(row.runs) for row in rows] == [2, 2, 2]
    assert json.loads(data.read_text())["torch"] == torch.__version__
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.json", "page.html"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["demo", "--out", "missing/page.html"], 1, "halo: cannot write missing/page.html: missing is not a writable"),
        (["demo", "--out", "."], 1, "halo: . is a directory; a file is needed"),
        (["demo", "--seeds", "0"], 2, "must be a whole number, at least 1; received '0'"),
        (["demo", "--sedes", "2"], 2, "halo: unknown flag --sedes; did you mean --seeds?"),
        (["dmeo"], 2, "halo: unknown command 'dmeo'; known: demo, train, "),
        ([], 2, "the following arguments are required: COMMAND"),
    ],
)
def test_bad_arguments(arguments, code, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        found = cli.main(arguments)
    except SystemExit as stop:
        found = stop.code
    assert found == code
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_help_tells_a_newcomer(capsys):
    with pytest.raises(SystemExit):
        cli.main(["demo", "--help"])
    printed = capsys.readouterr().out
    assert "digits" in printed
    assert "(default: 3)" in printed


def test_ctrl_c_leaves_nothing(tmp_path):
    process = subprocess.Popen(
        [*HALO, "demo"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    assert process.stdout.readline() == "trained dense (1 of 15)\n"
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped; nothing was written" in errors
    assert not list(tmp_path.iterdir())


def test_a_missing_extra_is_named(tmp_path):
    (tmp_path / "jinja2.py").write_text("raise ModuleNotFoundError(\"No module named 'jinja2'\", name='jinja2')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = subprocess.run([*HALO, "demo"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert found.stderr.strip() == "halo: the demo needs jinja2: pip install 'torch-halo[demo]'"


def accuracy_at_95(make, seed, epochs=100):
    torch.manual_seed(seed)
    data = load("digits", validation=0.25).normalised()
    model = lenet_300_100(data.input_shape, data.classes)
    optimizer = make(model.parameters())
    th.Shrinkage(model, th.HALO(xi=1e-4), optimizer)
    for _ in range(epochs):
        for index in torch.randperm(len(data.train.labels)).split(64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(data.train.inputs[index]), data.train.labels[index]).backward()
            optimizer.step()
    th.prune_(model, sparsity=0.95)
    with torch.no_grad():
        return 100 * float((model(data.validation.inputs).argmax(1) == data.validation.labels).float().mean())


def test_adamw_with_default_arguments_reaches_what_sgd_reaches():
    by_adamw = accuracy_at_95(torch.optim.AdamW, 0)
    assert by_adamw > 97
    assert by_adamw > accuracy_at_95(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 0) - 0.6


def test_the_readmes_table_is_the_stored_one():
    root = Path(__file__).parents[2]
    header, body = demo_table(demo.from_json((root / "results/demo.json").read_text()))
    readme = (root / "README.md").read_text()
    for row in [header, *body]:
        assert "| " + " | ".join([row[0], *row[2:]]) + " |" in readme
