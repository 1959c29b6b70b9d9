"""Imports go one way, and importing the package needs torch and numpy only."""

import ast
import subprocess
import sys
from pathlib import Path

import torch_halo

ROOT = Path(torch_halo.__file__).parent
# From left to right: a room may use those to its left, and its own files.
ROOMS = [
    {"checks", "files", "weights"},
    {"penalties", "selection", "models", "data"},
    {
        "hooks",
        "fused",
        "coefficients",
        "state",
        "ranking",
        "shrinkage",
        "masks",
        "pruning",
        "figures",
        "recalibration",
        "stepsizes",
        "target",
        "steering",
    },
    {"training"},
    {"methods"},
    {"experiments"},
    {"report"},
    {"cli"},
    {"__main__"},
]
SIDE = {"analysis", "deployment", "integrations", "linear"}  # may use what is left of training
# Files of one room, in the order in which they may use each other.
ORDER = [
    "stepsizes",
    "target",
    "hooks",
    "fused",
    "coefficients",
    "state",
    "ranking",
    "masks",
    "pruning",
    "steering",
    "shrinkage",
    "figures",
    "recalibration",
]


def place(room):
    if room in SIDE:
        return 3 - 0.5
    return next(i for i, rooms in enumerate(ROOMS) if room in rooms)


def imports():
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).with_suffix("").parts[0]
        if room == "__init__":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: relative import"
                names = [node.module]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in names:
                if name == "torch_halo" or name.startswith("torch_halo."):
                    yield path, room, [*name.split("."), "__init__"][1]


def allowed(room, used):
    if room == used:
        return True
    if used in SIDE:
        return room in ("experiments", "report", "cli")
    if place(used) == place(room):
        return room in ORDER and used in ORDER and ORDER.index(used) < ORDER.index(room)
    return place(used) < place(room)


def test_imports_go_one_way():
    found = list(imports())
    assert len(found) > 20
    wrong = [f"{path.relative_to(ROOT)} imports {used}" for path, room, used in found if not allowed(room, used)]
    assert not wrong


def test_no_room_for_odds_and_ends():
    names = {path.stem for path in ROOT.rglob("*.py")}
    assert not names & {"utils", "common", "helpers", "core"}


def test_importing_needs_torch_and_numpy_only():
    extras = ["sklearn", "rich", "matplotlib", "jinja2", "lightning", "lightning_fabric", "tensorboard"]
    extras += ["safetensors", "transformers", "skglm", "ray", "zstandard", "numba", "onnx", "onnxruntime"]
    code = f"import sys, torch_halo; print([m for m in {extras} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
