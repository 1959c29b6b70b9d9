"""Stored runs in order: by network and data set, by method with its settings, by seed."""

import math
import statistics
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch_halo.experiments.catalogue import Subject
from torch_halo.experiments.spec import describe
from torch_halo.experiments.store import Run
from torch_halo.experiments.tables import MISSING, NEAR
from torch_halo.methods import METHODS, Method, kind_of, method_of
from torch_halo.methods.base import target_of, without_method
from torch_halo.training.config import Config


@dataclass(frozen=True)
class Values:
    """What several runs measured."""

    of: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        """NaN if there are none."""
        return statistics.fmean(self.of) if self.of else math.nan

    @property
    def spread(self) -> float:
        """Their standard deviation; 0 if there is but one."""
        return statistics.stdev(self.of) if len(self.of) > 1 else 0.0

    def text(self, digits: int = 2) -> str:
        """98.40 ± 0.10; one value has no spread."""
        if not self.of:
            return MISSING
        spread = f" ± {self.spread:.{digits}f}" if len(self.of) > 1 else ""
        return f"{self.mean:.{digits}f}{spread}"


def figure(found: Any, *path: str) -> float | None:
    """A number somewhere in stored data; None if it is not there: older results lack some."""
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    is_number = isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found)
    return float(found) if is_number else None


def figures(found: Iterable[Any], *path: str) -> Values:
    """The same number of several."""
    return Values(tuple(x for each in found if (x := figure(each, *path)) is not None))


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed, by seed."""

    runs: tuple[Run, ...]

    @property
    def config(self) -> Config:
        """The first seed's."""
        return self.runs[0].config

    @cached_property
    def method(self) -> Method:
        """With its settings."""
        return method_of(self.config)

    @property
    def target(self) -> float | None:
        """The sparsity that it trains towards, if it does."""
        return target_of(self.config) if self.method.has_target else None

    @property
    def epochs(self) -> int:
        """Trained to get there, those of the runs before included."""
        return self.method.total_epochs(self.config)

    @property
    def asked(self) -> set[float]:
        """The sparsities at which it was measured."""
        return {level["asked"] for run in self.runs for level in run.result["pruned"] if level["asked"] > 0}

    def at(self, sparsity: float) -> list[dict[str, Any]]:
        """What the runs measured at a sparsity, those that did; at 0: unpruned, if they ever were."""
        if sparsity == 0:
            return [] if self.target is not None else [run.result for run in self.runs]
        return [level for run in self.runs if (level := run.at(sparsity) or self._trained_to(run, sparsity))]

    def _trained_to(self, run: Run, sparsity: float) -> dict[str, Any] | None:
        """The network as trained, if that is where its training led."""
        has_it = self.target == sparsity and abs((figure(run.result, "sparsity") or 0.0) - sparsity) < NEAR
        return run.result if has_it else None


@dataclass(frozen=True)
class Curve:
    """A method with its settings: one group; or, of a method that trains towards a target, one for each target."""

    groups: tuple[Group, ...]
    label: str = ""

    @property
    def kind(self) -> str:
        """The method's name."""
        return kind_of(self.groups[0].config)

    @property
    def settings(self) -> str:
        """What the label says of them, or else those of the method that are not as usual."""
        return self.label.removeprefix(self.kind).strip() or describe(self.groups[0].method)

    @property
    def runs(self) -> list[Run]:
        """All of its groups'."""
        return [run for group in self.groups for run in group.runs]

    @property
    def levels(self) -> list[float]:
        """The sparsities at which it was measured; its targets, if it was measured at none."""
        asked = set[float]().union(*(group.asked for group in self.groups))
        return sorted(asked or {group.target for group in self.groups if group.target})

    def group_at(self, sparsity: float) -> Group | None:
        """The group that was measured at a sparsity: of several the one that aimed nearest to it."""
        there = [group for group in self.groups if group.at(sparsity)]
        return min(there, key=lambda group: abs((group.target or 0.0) - sparsity), default=None)

    def at(self, sparsity: float, *path: str) -> Values:
        """A figure at a sparsity, by seed."""
        group = self.group_at(sparsity)
        return Values() if group is None else figures(group.at(sparsity), *path)


@dataclass(frozen=True)
class Section:
    """A network on a data set: what was trained on all data, and what was tried on less of it to choose settings."""

    title: str
    finals: tuple[Curve, ...]
    trials: tuple[Curve, ...]

    @property
    def pictured(self) -> tuple[Curve, ...]:
        """The finals; the trials if there are no others."""
        return self.finals or self.trials

    @property
    def split(self) -> str:
        """What the pictures' accuracies are measured on: test data have no say in choosing."""
        return "test" if self.finals else "validation"


def usable(runs: Iterable[Run]) -> tuple[list[Run], dict[Path, str]]:
    """Each run once, those whose method is known; and what was left out with the reason."""
    found: dict[str, Run] = {}
    problems: dict[Path, str] = {}
    # Of copies the one that was measured at most sparsities: more may have been added to it.
    for run in sorted(runs, key=lambda run: -len(run.result["pruned"])):
        try:
            Group((run,)).epochs, Group((run,)).target
        except (KeyError, TypeError, ValueError) as error:
            problems[run.path] = f"{run.path / 'config.json'}: its method cannot be read ({error})"
            continue
        first = found.setdefault(run.name, run)
        if first is not run:
            problems[run.path] = f"{run.path}: the same run as {first.path}"
    return list(found.values()), problems


def sections(runs: Iterable[Run]) -> list[Section]:
    """The runs by network and data set, in the order of their names."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(_title(run.config), []).append(run)
    return [_section(title, own) for title, own in sorted(found.items())]


def _title(config: Config) -> str:
    noise = f", label noise {config.data.label_noise:g}" if config.data.label_noise else ""
    return Subject(config.data.name, config.model).name + noise


def _section(title: str, runs: Sequence[Run]) -> Section:
    finals = [run for run in runs if not run.config.data.validation]
    trials = [run for run in runs if run.config.data.validation]
    return Section(title, _curves(finals), _curves(trials))


def _curves(runs: Iterable[Run]) -> tuple[Curve, ...]:
    groups: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.config.training.seed):
        groups.setdefault(_seedless(run.config).name, []).append(run)
    curves: dict[tuple[str, str], list[Group]] = {}
    for group in (Group(tuple(own)) for own in groups.values()):
        key = repr(group.method), _seedless(_plain(group.config)).name
        curves.setdefault(key, []).append(group)
    found = [Curve(tuple(sorted(own, key=lambda group: group.target or 0.0))) for own in curves.values()]
    return _labelled(sorted(found, key=_place))


def _seedless(config: Config) -> Config:
    return replace(config, training=replace(config.training, seed=0))


def _plain(config: Config) -> Config:
    """The plain training at the beginning of a method's, which is the same for all of its targets."""
    before = method_of(config).before(config)
    return without_method(config) if before is None else _plain(before)


def _place(curve: Curve) -> tuple[int, list[float]]:
    """In the order of the methods' table, then of the settings' numbers."""
    kinds = list(METHODS)
    numbers = [float(value) for value in settings_by_path(curve).values() if isinstance(value, int | float)]
    return kinds.index(curve.kind) if curve.kind in kinds else len(kinds), numbers


def _labelled(curves: Sequence[Curve]) -> tuple[Curve, ...]:
    """Each with a label of its own, no longer than needed: the method, its settings, other settings that differ."""
    return told_apart([replace(curve, label=_with_settings(curve, curves)) for curve in curves])


def told_apart(curves: Sequence[Curve], besides: Container[str] = ()) -> tuple[Curve, ...]:
    """Labels that are alike with the settings that differ, but for some."""
    return tuple(replace(c, label=_told_apart(c, curves, besides)) if _like(c, curves) > 1 else c for c in curves)


def _with_settings(curve: Curve, curves: Iterable[Curve]) -> str:
    settings = {other.settings for other in curves if other.kind == curve.kind}
    return f"{curve.kind} {curve.settings or '(usual)'}" if len(settings) > 1 else curve.kind


def _like(curve: Curve, curves: Iterable[Curve]) -> int:
    return sum(other.label == curve.label for other in curves)


def _told_apart(curve: Curve, curves: Iterable[Curve], besides: Container[str]) -> str:
    same = [settings_by_path(other) for other in curves if other.label == curve.label]
    own = {key: value for key, value in settings_by_path(curve).items() if key not in besides}
    differing = [key for key, value in own.items() if any(other.get(key, _LEFT_OUT) != value for other in same)]
    return " ".join([curve.label, *(f"{key.split('.')[-1]}={_short(own[key])}" for key in differing)])


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_short, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)[:20]  # a checksum is long


def settings_by_path(curve: Curve) -> dict[str, Any]:
    """A curve's settings by their path; seed and target are not among them."""
    found = _by_path(curve.groups[0].config.as_dict())
    return {key: value for key, value in found.items() if key not in _NOT_SETTINGS}


_LEFT_OUT = object()  # a setting that is as usual need not be in a configuration
_NOT_SETTINGS = ("training.seed", "method.sparsity", "shrinking.target_sparsity")


def _by_path(found: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for key, value in found.items():
        paths |= _by_path(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return paths
