"""Which of a run's training labels may be wrong, kept in its folder: by the losses of all its epochs."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from torch_halo.analysis import Suspects, suspects
from torch_halo.files import write_whole
from torch_halo.training.subject import Subject

FILE = "suspects.json"
FIRST = 36  # of the most suspicious, which a report shows


def rank_suspects(path: Path, run: Subject) -> tuple[Suspects, dict[str, Any]]:
    """A run's training samples, the most suspicious first, and how well flips were found, if any are known."""
    losses = _losses(path)
    found = suspects(run.module if losses is None else losses, run.data, model=run.module)
    flips = int(run.data.flipped.sum())
    told: dict[str, Any] = {"flips": flips, "epochs": 0 if losses is None else len(losses)}
    if flips:
        told |= found.found(run.data.flipped)
        # Beside it, what the final network alone would say.
        told["final"] = suspects(run.module, run.data).found(run.data.flipped)
    write_whole(path / FILE, json.dumps({**told, "first": first_rows(found, FIRST)}) + "\n")
    return found, told


def read_suspects(path: Path) -> dict[str, Any] | None:
    """What `rank_suspects` has kept in a run's folder; None if it has not."""
    if not (path / FILE).exists():
        return None
    try:
        found = json.loads((path / FILE).read_text())
        found["flips"], found["first"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path / FILE}: expected suspicious labels; found a damaged file ({error})") from error
    assert isinstance(found, dict)
    return found


def first_rows(found: Suspects, count: int) -> list[tuple[str, ...]]:
    """The most suspicious, as texts: index, given label, likely label, score."""
    parts = [part[:count] for part in (found.index, found.given, found.likely, found.score)]
    return [(str(i), str(a), str(b), f"{score:.4g}") for i, a, b, score in zip(*parts, strict=True)]


def _losses(path: Path) -> np.ndarray[Any, Any] | None:
    """Of each epoch and sample, if the run has kept them."""
    files = sorted((path / "losses").glob("epoch-*.npy"))
    try:
        return np.stack([np.load(file) for file in files]) if files else None
    except ValueError as error:
        raise ValueError(f"{path / 'losses'}: expected an array an epoch; found damaged ones ({error})") from error
