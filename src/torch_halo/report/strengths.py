"""How much a strength matters: accuracies of runs that differ in it, and in their seed, and in nothing else."""

from dataclasses import dataclass, replace

from torch_halo.report.groups import Curve, Section, Values, figure, figures, settings_by_path, told_apart
from torch_halo.report.pictures import Line, style

FEW = 3  # strengths make a curve
# What may differ beside ξ: where a run was measured; and what follows ξ, as ψ/ξ and the knots γξ and aξ say.
FREE = ("penalty.xi", "penalty.psi", "penalty.gamma", "penalty.a", "pruning.sparsity")


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
        named = told_apart([curve for curve, _ in there], FREE)
        found += [Strengths(f"{c.label}, {split}", v) for c, (_, v) in zip(named, there, strict=True)]
    return found


def _besides(curve: Curve) -> tuple[object, ...]:
    """All settings that a strength leaves alone."""
    found = settings_by_path(curve)
    rest = [f"{key}={value!r}" for key, value in sorted(found.items()) if key not in FREE]
    xi, psi = found["penalty.xi"], found.get("penalty.psi")
    knots = [xi * value for key in ("penalty.gamma", "penalty.a") if (value := found.get(key)) is not None]
    return curve.kind, *rest, *(f"{value:.6g}" for value in (psi / xi if psi and xi else 0.0, *knots))


def _accuracies(curves: dict[float, Curve], sparsity: float, split: str) -> dict[float, Values]:
    found = {xi: _of(curves[xi], sparsity, split) for xi in sorted(curves)}
    return {xi: values for xi, values in found.items() if values.of}


def _of(curve: Curve, sparsity: float, split: str) -> Values:
    group = curve.group_at(sparsity)
    levels = [] if group is None else group.at(sparsity)
    return figures([level.get("recalibrated") or level for level in levels], split, "accuracy")
