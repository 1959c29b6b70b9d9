"""How much a strength matters: accuracies of runs that differ in it, and in their seed, and in nothing else."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch_halo.report.groups import Curve, Section, Values, figure, settings_by_path, told_apart
from torch_halo.report.pictures import Line, style

FEW = 3  # strengths make a curve
# ψ and the knots of MCP and SCAD follow ξ.
WITH_IT = ("penalty.xi", "penalty.psi", "penalty.gamma", "penalty.a")


@dataclass(frozen=True)
class Strengths:
    """A method's accuracies in percent, by ξ: on test data; of runs that were tried, on validation data."""

    label: str
    accuracies: dict[float, Values]

    def line(self, place: int) -> Line:
        """To be drawn as one of several."""
        values = list(self.accuracies.values())
        return Line(style(1 + place), list(self.accuracies), [v.mean for v in values], [v.spread for v in values])


def strengths(section: Section, sparsity: float) -> list[Strengths]:
    """Of all methods that were trained with several; batch norm's statistics are those of the cut network."""
    found = []
    for curves, split in ((section.finals, "test"), (section.trials, "validation")):
        alike: dict[tuple[object, ...], dict[float, Curve]] = {}
        for curve in curves:
            if (xi := figure(curve.groups[0].config.as_dict(), "penalty", "xi")) is not None:
                alike.setdefault(_besides(curve), {})[xi] = curve
        own = [(next(iter(each.values())), _accuracies(each, sparsity, split)) for each in alike.values()]
        there = [(replace(curve, label=curve.kind), values) for curve, values in own if len(values) >= FEW]
        named = told_apart([curve for curve, _ in there], WITH_IT)
        found += [Strengths(f"{c.label}, {split}", v) for c, (_, v) in zip(named, there, strict=True)]
    return found


def _besides(curve: Curve) -> tuple[object, ...]:
    """All settings that a strength leaves alone."""
    rest = {key: value for key, value in settings_by_path(curve).items() if key not in WITH_IT}
    return curve.kind, *map(repr, sorted(rest.items()))


def _accuracies(curves: dict[float, Curve], sparsity: float, split: str) -> dict[float, Values]:
    found = {xi: _of(curves[xi], sparsity, split) for xi in sorted(curves)}
    return {xi: values for xi, values in found.items() if values.of}


def _of(curve: Curve, sparsity: float, split: str) -> Values:
    group = curve.group_at(sparsity)
    accuracies: Iterable[float | None] = (run.accuracy(sparsity, split) for run in group.runs) if group else ()
    return Values(tuple(accuracy for accuracy in accuracies if accuracy is not None))
