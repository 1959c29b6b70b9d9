"""What a run's network looks like, as plain data that is kept in the run's folder."""

import copy
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from torch_halo.analysis import best_coefficients, coefficients, history, layers, overlap, spectrum
from torch_halo.analysis.overlap import Shared
from torch_halo.analysis.spectrum import Positions
from torch_halo.checks import Table
from torch_halo.coefficients import KEYS
from torch_halo.deployment import remove_dead
from torch_halo.files import write_whole
from torch_halo.penalties import HALO
from torch_halo.pruning import prune_
from torch_halo.training import checkpoint
from torch_halo.training.folder import RunFolder
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
    images: int | None = None  # of the training set, for the spectrum; all if None

    @cached_property
    def pruned(self) -> nn.Module:
        """The network with that many zeros."""
        config, model = self.subject.config, copy.deepcopy(self.subject.module)
        prune_(model, sparsity=self.sparsity, scope=config.pruning.scope, select=config.shrinking.select)
        return model.eval()

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
    config, model = case.subject.config, case.subject.module
    found = coefficients(model, _learned(case), sparsity=case.sparsity, select=case.select)
    data: dict[str, Any] = {
        "magnitudes": _short(found.magnitudes),
        "coefficients": _short(found.coefficients),
        "threshold": found.threshold,
        "correlation": found.correlation,
        "among_survivors": found.among_survivors,
        "text": str(found),
    }
    if isinstance(config.penalty, HALO):
        decay = config.shrinking.coefficient_weight_decay
        decay = getattr(config.optimizer, "weight_decay", 0.0) if decay is None else decay
        places = np.geomspace(max(found.magnitudes.min(), 1e-6), found.magnitudes.max(), POINTS)
        data["best"] = {
            "magnitudes": _short(places),
            "coefficients": _short(best_coefficients(places, config.penalty, decay)),
        }
    return data


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
    weights = np.concatenate([w.numpy().ravel() for w in _magnitudes(case)])
    threshold = float(np.partition(weights, round(case.sparsity * len(weights)))[round(case.sparsity * len(weights))])
    return _short(history(RunFolder(case.path).epochs(), threshold))


def _magnitudes(case: Case) -> list[Tensor]:
    names = [layer.figures.name for layer in layers(case.subject.module, select=case.select)]
    return [case.subject.module.get_parameter(name).detach().abs().cpu() for name in names]


def _dead(case: Case) -> dict[str, Any]:
    example = next(case.batches())[:1]
    found = remove_dead(case.pruned.cpu(), example.cpu())
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
        except ValueError as error:
            problems[name] = str(error)
    return found, problems


def overlaps(cases: Sequence[Case]) -> dict[Path, list[dict[str, Any]]]:
    """How far each two runs have cut the same weights."""
    found: dict[Path, list[dict[str, Any]]] = {case.path: [] for case in cases}
    for one, two in combinations(cases, 2):
        both = overlap(one.pruned, two.pruned, select=one.select)
        by_layer = [{"name": layer.name, **_shares(layer)} for layer in both.layers]
        for case, other in ((one, two), (two, one)):
            found[case.path].append({"other": other.path.name, **_shares(both), "layers": by_layer})
    return found


def _shares(found: Shared) -> dict[str, float]:
    return {name: getattr(found, name) for name in ("jaccard", "by_chance", "kept", "kept_by_chance")}


def write_analysis(path: Path, found: Mapping[str, Any]) -> None:
    """Keep analyses in a run's folder, beside those that are there."""
    known = read_analysis(path) or {}
    write_whole(path / FILE, json.dumps(_finite({**known, **found})) + "\n")


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


def _finite(data: Any) -> Any:
    """With null for what is no number: JSON has no NaN."""
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
