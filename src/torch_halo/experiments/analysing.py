"""What a run's network looks like, as plain data that is kept in the run's folder."""

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from torch_halo.analysis import best_coefficients, coefficients, history, layers, overlap, spectrum
from torch_halo.analysis.overlap import Shared
from torch_halo.analysis.ranks import Array
from torch_halo.analysis.spectrum import Positions
from torch_halo.checks import Table
from torch_halo.coefficients import KEYS
from torch_halo.deployment import remove_dead
from torch_halo.files import write_json
from torch_halo.penalties import HALO
from torch_halo.pruning import prune_
from torch_halo.recalibration import recalibrate_
from torch_halo.shrinkage import default_decay
from torch_halo.training import checkpoint
from torch_halo.training.folder import RunFolder
from torch_halo.training.optimizers import SGD
from torch_halo.training.pruned import calibration_inputs
from torch_halo.training.subject import Subject

FILE = "analysis.json"
BATCH = 500
POINTS = 60  # of a curve: more cannot be seen


@dataclass(frozen=True)
class Case:
    """A run to be looked at, at a sparsity."""

    path: Path
    subject: Subject
    sparsity: float
    positions: Positions = "all"
    images: int = 10_000  # of the training set, for the spectrum

    @cached_property
    def pruned(self) -> nn.Module:
        """The network with that many zeros, and batch-norm statistics of its own, as experiments judge it."""
        model, run = copy.deepcopy(self.subject.module), self.subject
        prune_(model, sparsity=self.sparsity, scope=self.scope, select=self.select)
        return recalibrate_(model, calibration_inputs(model, run.config, run.data)).eval()

    @property
    def scope(self) -> Literal["global", "layer"]:
        """What a threshold is for."""
        return self.subject.config.pruning.scope

    @property
    def select(self) -> tuple[str, ...] | None:
        """Which weights count."""
        return self.subject.config.shrinking.select

    def batches(self) -> Iterator[Tensor]:
        """Inputs of the training set, as they are without augmentation."""
        data = self.subject.data
        inputs = data.train.inputs[: self.images]
        return (data.normalise(inputs[start : start + BATCH]) for start in range(0, len(inputs), BATCH))


def _coefficients(case: Case) -> dict[str, Any]:
    found = coefficients(
        case.subject.module, _learned(case), sparsity=case.sparsity, scope=case.scope, select=case.select
    )
    data: dict[str, Any] = {
        "magnitudes": _short(found.magnitudes),
        "coefficients": _short(found.coefficients),
        "threshold": found.threshold,
        "correlation": found.correlation,
        "among_survivors": found.among_survivors,
        "text": str(found),
    }
    with suppress(ValueError):  # not every h, ψ and decay has a best λ
        data["best"] = _best(case, found.magnitudes)
    return data


def _best(case: Case, magnitudes: Array) -> dict[str, list[float]]:
    """The curve of λ*."""
    config = case.subject.config
    decay, optimizer = config.shrinking.coefficient_weight_decay, config.optimizer
    if decay is None:
        decay = default_decay(isinstance(optimizer, SGD), optimizer.weight_decay)
    assert isinstance(config.penalty, HALO)
    places = np.geomspace(max(magnitudes.min(), 1e-6), max(magnitudes.max(), 1e-6), POINTS)
    return {"magnitudes": _short(places), "coefficients": _short(best_coefficients(places, config.penalty, decay))}


def _learned(case: Case) -> dict[str, Tensor]:
    """λ by parameter name, out of the run's checkpoint."""
    folder = RunFolder(case.path)
    if not folder.checkpoint.exists():
        raise ValueError(f"{case.path} has no checkpoint, where λ is kept")
    state = checkpoint.read(folder.checkpoint, case.subject.config.name)["optimizer"]["state"]
    names = [name for name, _ in case.subject.module.named_parameters()]
    return {names[i]: entry[KEYS[0]] for i, entry in state.items() if KEYS[0] in entry}


def _layers(case: Case) -> list[dict[str, Any]]:
    found = layers(case.pruned, select=case.select)
    return [{**asdict(layer.figures), "is_smaller": layer.is_smaller} for layer in found]


def _spectrum(case: Case) -> list[dict[str, Any]]:
    found = spectrum(case.pruned, case.batches(), positions=case.positions, select=case.select)
    return [
        {
            "name": layer.name,
            "features": layer.features,
            "samples": layer.samples,
            "effective_rank": layer.effective_rank,
            # So many points of the curve, each (share of the directions, share of the variance).
            "cumulative": _thinned(layer.cumulative),
            "note": layer.note,
        }
        for layer in found
    ]


def _history(case: Case) -> list[float]:
    if case.scope == "layer":
        raise ValueError("with a threshold for each layer there is none for all")
    return _short(history(RunFolder(case.path).epochs(), case.sparsity))


def _dead(case: Case) -> dict[str, Any]:
    found = remove_dead(copy.deepcopy(case.pruned).cpu(), next(case.batches())[:1].cpu())
    return {
        "parameters": list(found.parameters),
        "flops": list(found.flops),
        "layers": {name: [list(before), list(after)] for name, (before, after) in found.layers.items()},
        "gone": list(found.gone),
    }


ANALYSES: Table[Callable[[Case], Any]] = Table(
    "analysis",
    {"coefficients": _coefficients, "layers": _layers, "spectrum": _spectrum, "history": _history, "dead": _dead},
)


def analyse(case: Case, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The analyses that a run can have, and why it cannot have the others."""
    found: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for name in names:
        try:
            found[name] = ANALYSES[name](case)
        except (OSError, ValueError) as error:
            problems[name] = str(error)
    return found, problems


def overlaps(cases: Sequence[Case]) -> dict[Path, list[dict[str, Any]]]:
    """How far each two runs have cut the same weights."""
    found: dict[Path, list[dict[str, Any]]] = {case.path: [] for case in cases}
    for one, two in combinations(cases, 2):
        if one.select != two.select:
            raise ValueError(f"{one.path} and {two.path} count other weights: their --select differs")
        both = overlap(one.pruned, two.pruned, select=one.select)
        by_layer = [{"name": layer.name, **_shares(layer)} for layer in both.layers]
        for case, other in ((one, two), (two, one)):
            found[case.path].append({"other": other.path.name, **_shares(both), "layers": by_layer})
    return found


def _shares(found: Shared) -> dict[str, float]:
    return {name: getattr(found, name) for name in ("jaccard", "by_chance", "kept", "kept_by_chance")}


def write_analysis(case: Case, found: Mapping[str, Any]) -> None:
    """Keep analyses in a run's folder, beside those that are there of the same sparsity."""
    known = read_analysis(case.path) or {}
    known = known if known.get("sparsity") == case.sparsity else {}
    write_json(case.path / FILE, {**known, "sparsity": case.sparsity, **found})


def read_analysis(path: Path) -> dict[str, Any] | None:
    """A run's analyses, if it has any."""
    if not (path / FILE).exists():
        return None
    try:
        found = json.loads((path / FILE).read_text())
    except ValueError as error:
        raise ValueError(f"{path / FILE}: expected JSON; found a damaged file ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path / FILE}: expected analyses by name; found {type(found).__name__}")
    return found


def _short(values: Any) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def _thinned(values: Any) -> list[list[float]]:
    kept = sorted({round(i) for i in np.linspace(0, len(values) - 1, min(POINTS, len(values)))})
    return [_short(((i + 1) / len(values), values[i])) for i in kept]
