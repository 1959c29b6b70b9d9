"""Which pictures a section has, and what is drawn in them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from torch_halo.analysis import history
from torch_halo.experiments.tables import percent
from torch_halo.report.groups import Curve, Group, Section, Values, figure, figures
from torch_halo.report.pictures import TOGETHER, Line, Style, by_epoch, by_layer, by_sparsity, by_strength, style
from torch_halo.report.strengths import strengths

NEAR_BEST = 5.0  # points below the best: where methods that work are told apart


@dataclass(frozen=True)
class Picture:
    """An SVG, and what it shows."""

    title: str
    svg: str


@dataclass(frozen=True)
class Panel:
    """Pictures of the same few curves, with one legend."""

    legend: tuple[tuple[str, Style], ...]
    pictures: tuple[Picture, ...]


@dataclass(frozen=True)
class Block:
    """Panels that show the same of all curves."""

    title: str
    text: str
    panels: tuple[Panel, ...]


Styles = Mapping[str, Style]
Draw = Callable[[Sequence[Curve]], list[Picture]]


def styles(sections: Iterable[Section]) -> dict[str, Style]:
    """A style for each label, the same in all sections; grey is for dense networks."""
    curves = [curve for section in sections for curve in section.pictured]
    first = 0 if any(curve.kind == "dense" for curve in curves) else 1
    ordered = sorted(curves, key=lambda curve: curve.kind != "dense")
    return {label: style(first + i) for i, label in enumerate(dict.fromkeys(curve.label for curve in ordered))}


def blocks_of(section: Section, drawn: Styles) -> list[Block]:
    """The pictures of a section: accuracy by sparsity, training by epoch, sparsity by layer."""
    level, lacking = _common_level(section.pictured)
    found = [
        _accuracy(section, drawn),
        _strengths(section, level),
        _training(section, drawn, level),
        _layers(section, drawn, level, lacking),
    ]
    return [block for block in found if block is not None and block.panels]


def _block(title: str, text: str, curves: Sequence[Curve], drawn: Styles, draw: Draw) -> Block:
    parts = _parts(curves)
    panels = [Panel(tuple((c.label, drawn[c.label]) for c in part), tuple(draw(part))) for part in parts]
    return Block(title, text, tuple(panel for panel in panels if panel.pictures))


def _parts(curves: Sequence[Curve]) -> list[list[Curve]]:
    """As many parts as it takes for a picture of each to be readable; a method stays together, if it can."""
    parts: list[list[Curve]] = [[]]
    for _, of_kind in groupby(curves, key=lambda curve: curve.kind):
        own = list(of_kind)
        while own:
            room = TOGETHER - len(parts[-1])
            if room < min(len(own), TOGETHER):
                parts.append([])
                room = TOGETHER
            parts[-1] += own[:room]
            own = own[room:]
    return parts


def _accuracy(section: Section, drawn: Styles) -> Block | None:
    curves = [curve for curve in section.pictured if curve.levels]
    if not curves:
        return None
    title, path = f"{section.split} accuracy in percent", (section.split, "accuracy")
    ways: dict[str, tuple[str, ...]] = {title: path}
    if any(curve.at(level, "recalibrated", *path).of for curve in curves for level in curve.levels):
        ways[f"{title}, batch norm recalibrated"] = ("recalibrated", *path)
    levels = sorted({level for curve in curves for level in curve.levels})
    text = "Mean over seeds, the band ± a standard deviation. Each halving of the weights left takes the same width."

    def draw(part: Sequence[Curve]) -> list[Picture]:
        found = []
        for name, way in ways.items():
            lines = [_by_level(curve, way, drawn) for curve in part]
            for which, limits in _ranges([_by_level(curve, way, drawn) for curve in curves]).items():
                svg = by_sparsity(lines, levels, limits)
                found.append(Picture(f"{name.capitalize()} by sparsity{which}", svg))
        return found

    return _block("Accuracy against sparsity", text, curves, drawn, draw)


def _strengths(section: Section, level: float | None) -> Block | None:
    """Accuracy over ξ, of the methods that were trained with several, or tried with them."""
    found = strengths(section, level or 0.0)
    if not found:
        return None
    lines = [each.line(place) for place, each in enumerate(found)]
    legend = tuple((each.label, line.style) for each, line in zip(found, lines, strict=True))
    at = f"at {percent(level)}" if level else "unpruned"
    picture = Picture(f"Accuracy in percent by strength ξ, {at}", by_strength(lines))
    text = (
        "How much the strength matters: a broad top needs no tuning. Mean over seeds, the band ± a standard deviation; "
        "where there is batch norm, its statistics are those of the cut network."
    )
    return Block("Accuracy over strengths", text, (Panel(legend, (picture,)),))


def _ranges(lines: Iterable[Line]) -> dict[str, tuple[float, float]]:
    """What to show of the accuracies: all, and where they fall far also those near the best."""
    means = [mean for line in lines for mean in line.means] or [0.0]
    low, high = min(means), max(means)
    margin = 0.06 * (high - low) or 0.5
    found = {"": (low - margin, high + margin)}
    if high - low > 2 * NEAR_BEST:
        found[f": the {NEAR_BEST:g} points below the best"] = (high - NEAR_BEST, high + 0.1 * NEAR_BEST)
    return found


def _by_level(curve: Curve, path: Sequence[str], drawn: Styles) -> Line:
    """Where the networks are, which need not be where they were asked to be."""
    found = {}
    for level in (0.0, *curve.levels):
        accuracy, zeros = curve.at(level, *path), curve.at(level, "sparsity")
        if accuracy.of:
            found[round(zeros.mean if zeros.of else level, 4)] = accuracy
    ordered = sorted(found.items())
    values = [each for _, each in ordered]
    return Line(drawn[curve.label], [x for x, _ in ordered], [v.mean for v in values], [v.spread for v in values])


def _training(section: Section, drawn: Styles, level: float | None) -> Block:
    def draw(part: Sequence[Curve]) -> list[Picture]:
        chosen = [(curve, _nearest(curve, level or 1.0)) for curve in part]

        def lines(*path: str, factor: float = 1) -> list[Line]:
            return [_by_epoch(c, group, drawn, *path, factor=factor) for c, group in chosen]

        found = []
        if _has_points(accuracy := lines(section.split, "accuracy")):
            name = f"{section.split} accuracy in percent by epoch".capitalize()
            found.append(Picture(name, by_epoch(accuracy, from_share=0.1)))
        has_noise = any(group.config.data.label_noise for _, group in chosen)
        if has_noise and _has_points(learned := lines("train", "accuracy")):
            found.append(Picture("Train accuracy in percent by epoch, wrong labels among them", by_epoch(learned)))
        if _has_points(loss := lines("train", "loss")):
            found.append(Picture("Train loss by epoch", by_epoch(loss, is_log=True)))
        zeros = lines("sparsity", factor=100)
        if any(mean > 0 for line in zeros for mean in line.means):
            found.append(Picture("Weights that are zero, in percent, by epoch", by_epoch(zeros)))
        if level and _has_points(small := [_history(c, group, drawn, level) for c, group in chosen]):
            name = f"Weights under the threshold that leaves {percent(level)} zeros in the end, in percent, by epoch"
            found.append(Picture(name, by_epoch(small)))
        return found

    targets = [group.target for curve in section.pictured for group in curve.groups if group.target]
    which = (
        f" Methods that train towards a target: towards {percent(level)}, or the nearest." if targets and level else ""
    )
    text = f"Mean over seeds, the band ± a standard deviation.{which}"
    return _block("Training", text, section.pictured, drawn, draw)


def _has_points(lines: Iterable[Line]) -> bool:
    return any(line.places for line in lines)


def _history(curve: Curve, group: Group, drawn: Styles, level: float) -> Line:
    """The share of small weights after each epoch; older runs did not count them."""
    try:
        found = [100 * history(run.epochs, level) for run in group.runs]
    except (TypeError, ValueError):
        return Line(drawn[curve.label], [], [], [])
    values = [Values(tuple(map(float, shares))) for shares in zip(*found, strict=True)]
    places = [float(place) for place in range(1, len(values) + 1)]
    return Line(drawn[curve.label], places, [v.mean for v in values], [v.spread for v in values])


def _nearest(curve: Curve, level: float) -> Group:
    """Of the groups that train towards targets the one that comes nearest to a sparsity."""
    return min(curve.groups, key=lambda group: abs((group.target or 0.0) - level))


def _by_epoch(curve: Curve, group: Group, drawn: Styles, *path: str, factor: float = 1) -> Line:
    """A figure of each epoch that has it."""
    found: list[tuple[float, float, float]] = []
    for rows in zip(*(run.epochs for run in group.runs), strict=False):
        values = figures(rows, *path)
        if values.of:
            found.append((figure(rows[0], "epoch") or len(found) + 1, factor * values.mean, factor * values.spread))
    places, means, spreads = ([row[i] for row in found] for i in range(3))
    return Line(drawn[curve.label], places, means, spreads)


def _layers(section: Section, drawn: Styles, level: float | None, lacking: Sequence[str]) -> Block | None:
    if level is None:
        return None
    curves = [curve for curve in section.pictured if _zeros_by_layer(curve, level)]
    names = list(dict.fromkeys(name for curve in curves for name in _zeros_by_layer(curve, level)))

    def draw(part: Sequence[Curve]) -> list[Picture]:
        lines = []
        for curve in part:
            found = _zeros_by_layer(curve, level)
            ordered = [(i, *found[name]) for i, name in enumerate(names) if name in found]
            lines.append(Line(drawn[curve.label], *([row[i] for row in ordered] for i in range(3))))
        return [Picture(f"By layer, at {percent(level)} overall", by_layer(lines, names))]

    why = (
        f"the highest sparsity that most were measured at; not {', '.join(lacking)}"
        if lacking
        else "the highest sparsity that all were measured at"
    )
    text = f"At {percent(level)} overall, {why}. Mean over seeds; layers from input to output."
    return _block("Sparsity by layer", text, curves, drawn, draw)


def _common_level(curves: Sequence[Curve]) -> tuple[float | None, list[str]]:
    """The highest sparsity at which all, or else most, have figures by layer; and the labels of those that have not."""
    levels = sorted({level for curve in curves for level in curve.levels})
    there = {level: [curve for curve in curves if _zeros_by_layer(curve, level)] for level in levels}
    best = max(levels, key=lambda level: (len(there[level]), level), default=None)
    if best is None or not there[best]:
        return None, []
    return best, [curve.label for curve in curves if curve not in there[best]]


def _zeros_by_layer(curve: Curve, level: float) -> dict[str, tuple[float, float]]:
    """Mean and spread over seeds, in percent."""
    group = curve.group_at(level)
    found: dict[str, list[dict[str, float]]] = {}
    for each in group.at(level) if group else ():
        for layer in each.get("layers", ()):
            found.setdefault(layer["name"], []).append(layer)
    values = {name: figures(layers, "sparsity") for name, layers in found.items()}
    return {name: (100 * each.mean, 100 * each.spread) for name, each in values.items() if each.of}
