"""Every snippet of the README runs, and so do the examples and the benchmark."""

import importlib.util
import re
from pathlib import Path

import pytest

import torch_halo as th

ROOT = Path(__file__).parents[1]


def test_the_readmes_snippets_run_in_order(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(snippets) == 4
    names = {}
    for snippet in snippets:
        exec(snippet, names)
    assert "total" in capsys.readouterr().out
    assert abs(names["masks"].sparsity - 0.95) < 1e-3


def test_the_snippets_of_deployment_run(tmp_path, monkeypatch, capsys):
    first, reader = re.findall(r"```python\n(.*?)```", (ROOT / "docs/deployment.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(first, names)
    assert "times smaller" in capsys.readouterr().out
    exec(reader, names)
    for zstd in (True, False):
        th.compress(names["model"], "small.safetensors", zstd=zstd)
        for name, value in names["model"].state_dict().items():
            assert (names["read"]("small.safetensors")[name] == value.numpy()).all()


PAGES = ["README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    folder = (ROOT / page).parent
    for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        path, _, place = link.partition("#")
        assert link.startswith("https://") or (folder / path).exists(), link
        if place:
            heads = re.findall(r"^#+ (.+)$", (folder / path if path else ROOT / page).read_text(), re.M)
            assert place in [re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads], link


@pytest.mark.filterwarnings("ignore:.*would have lost every weight")  # two epochs are few
@pytest.mark.parametrize("name", ["plain_loop", "mixed_precision", "transformer"])
def test_examples(name, capsys):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.main(epochs=2)
    assert th.sparsity(model, select="!head" if name == "transformer" else None).sparsity == pytest.approx(
        0.95, abs=1e-3
    )
    assert "%" in capsys.readouterr().out


def test_every_example_is_tested():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {"plain_loop", "mixed_precision", "transformer"}
