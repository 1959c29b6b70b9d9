"""Which of a run's training labels may be wrong, kept in its folder: by the losses of all its epochs."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from torch_halo.analysis import Suspects, suspects
from torch_halo.analysis.ranks import Array
from torch_halo.data.sets import cut_places
from torch_halo.files import write_json
from torch_halo.training.subject import Subject

FILE, SHEET = "suspects.json", "suspects.png"  # in a run's folder; the second has the first images
FIRST = 36  # of the most suspicious, which a report shows


@dataclass(frozen=True)
class Ranked:
    """A run's training samples: as they are in what it trained on, and as they are in the whole training set."""

    own: Suspects
    whole: Suspects
    flips: int
    epochs: int  # whose losses counted; 0: the final network's
    judged: dict[str, float]  # AUROC and precision, if flips are known


def rank_suspects(path: Path, run: Subject) -> Ranked:
    """A run's training samples, the most suspicious first; what is found is kept in its folder, too."""
    count = len(run.data.train.labels)
    losses = _losses(path, count)
    final = suspects(run.module, run.data)
    found = final if losses is None else _by_history(losses, run, final)
    settings, flips = run.config.data, int(run.data.flipped.sum())
    places, _ = cut_places(count + len(run.data.validation.labels), settings.validation, settings.data_seed)
    whole = replace(found, index=places.numpy()[found.index])
    judged = found.found(run.data.flipped) if flips else {}
    told: dict[str, Any] = {"flips": flips, "epochs": 0 if losses is None else len(losses), **judged}
    if flips:  # beside it, what the final network alone would say
        told["final"] = final.found(run.data.flipped)
    write_json(path / FILE, {**told, "first": first_rows(whole, FIRST)})
    return Ranked(found, whole, flips, told["epochs"], judged)


def _by_history(losses: Array, run: Subject, final: Suspects) -> Suspects:
    """Ranked by the losses of all epochs, with the likely labels of the final network, which has been asked."""
    found = suspects(losses, run.data)
    likely = np.empty_like(final.likely)
    likely[final.index] = final.likely
    return replace(found, likely=likely[found.index])


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


def _losses(path: Path, samples: int) -> Array | None:
    """Of each epoch and sample, if the run has kept them."""
    found = []
    for file in sorted((path / "losses").glob("epoch-*.npy")):
        try:
            losses = np.load(file, allow_pickle=False)
        except (EOFError, ValueError) as error:
            raise ValueError(f"{file}: expected an array of losses; found a damaged file") from error
        if losses.shape != (samples,):
            raise ValueError(f"{file}: expected {samples} losses; found an array of shape {losses.shape}")
        found.append(losses)
    return np.stack(found) if found else None
