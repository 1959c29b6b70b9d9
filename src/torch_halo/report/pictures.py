"""The report's pictures: small SVGs that take the page's colours and stand beside each other in it."""

import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# At least 3.2 : 1 against white and against the page's dark background. The first is for what others are compared to.
COLOURS = ("#808080", "#2f7fe0", "#d9730d", "#2a9d4a", "#9a5cf0", "#dc3f49", "#0d94a0", "#d6409f", "#a07a2c")
MARKERS = "osDv^X<P>*hd"
DASHES = ("-", "--", "-.", ":")
TOGETHER = 8  # more lines in one picture cannot be told apart
WIDTH, HEIGHT = 4.5, 3.1  # inches: at 72 dots each as wide as a phone, so that letters keep their size there
INK = "#010203"  # becomes the page's own colour of text
ROWS = 30  # names that can be read below each other
POINTS = 80  # of a line: more cannot be seen at this size
ALWAYS = (0.0, 0.5, 0.75, 0.9)  # ticks, where there is room: they show that the scale is not even

Marked = int | tuple[int, int]  # every how many points a marker is, and from which on


@dataclass(frozen=True)
class Style:
    """How a line is drawn: no two alike, in colour or without."""

    colour: str
    marker: str
    dash: str


def style(place: int) -> Style:
    """The style of the n-th of many."""
    turn, colours = place // len(COLOURS), len(COLOURS)
    return Style(COLOURS[place % colours], MARKERS[(place + turn) % len(MARKERS)], DASHES[turn % len(DASHES)])


@dataclass(frozen=True)
class Line:
    """A method's means and spreads over what is on the other axis."""

    style: Style
    places: Sequence[float]
    means: Sequence[float]
    spreads: Sequence[float]


def by_sparsity(lines: Sequence[Line], levels: Iterable[float], limits: tuple[float, float]) -> str:
    """Figures against sparsity, on a scale on which each halving of what is left is as wide."""
    with looks():
        figure, axes = picture()
        for line in lines:
            _draw(axes, line, [_left(x) for x in line.places])
        ticks = _apart(levels, axes.get_xlim())
        axes.set_xticks([_left(x) for x in ticks], [f"{100 * x:.4g}" for x in ticks])
        axes.set(xlabel="sparsity, %", ylim=limits)
        return as_svg(figure)


def by_epoch(lines: Sequence[Line], *, is_log: bool = False, from_share: float = 0.0) -> str:
    """Figures by epoch; the lowest share of them may fall below the picture."""
    with looks():
        figure, axes = picture()
        for i, line in enumerate(map(_thinned, lines)):
            every = max(1, len(line.places) // 6)
            # Side by side, so that where lines meet no marker hides all others.
            _draw(axes, line, line.places, marked=(i * every // len(lines), every))
        means = sorted(x for line in lines for x in line.means)
        if is_log and means and 0 < 10 * means[0] < means[-1]:
            _make_log(axes)
        elif from_share and means:
            bottom = means[int(from_share * len(means))]
            axes.set_ylim(bottom - 0.1 * (means[-1] - bottom or 1), means[-1] + 0.1 * (means[-1] - bottom or 1))
        axes.locator_params(axis="x", integer=True)
        axes.set(xlabel="epoch")
        return as_svg(figure)


def by_strength(lines: Sequence[Line]) -> str:
    """Figures over strengths."""
    with looks():
        figure, axes = picture()
        draw_strengths(axes, lines)
        return as_svg(figure)


def draw_strengths(axes: "Axes", lines: Sequence[Line], labels: Sequence[str] = ()) -> None:
    """Figures over strengths, each decade as wide; with a legend beside them, if there are labels."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for line in lines:
        _draw(axes, line, line.places)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, place: f"{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="ξ")
    if labels:
        axes.legend(axes.get_lines(), labels, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def by_layer(lines: Sequence[Line], names: Sequence[str]) -> str:
    """Figures by layer, from top to bottom; a line's places are layers' numbers."""
    with looks():
        figure, axes = picture(height=row_height(len(names)), left=0.3)
        for line in lines:
            _draw(axes, line, line.places, across=True)
        name_rows(axes, names)
        axes.set(xlabel="weights that are zero, %")
        return as_svg(figure)


def row_height(rows: int) -> float:
    """Of a picture with so many rows, in inches."""
    return 1.2 + 0.22 * min(max(rows, 5), ROWS)


def name_rows(axes: "Axes", names: Sequence[str]) -> None:
    """A name for each row, from top to bottom, or for as many as can be read."""
    shown, short = range(0, len(names), -(-len(names) // ROWS)), shortened(names)
    axes.set_yticks([*shown], [short[i] for i in shown])
    axes.set_ylim(len(names) - 0.5, -0.5)


@cache
def key(how: Style) -> str:
    """A line's sample for a list of what is drawn how."""
    from matplotlib.figure import Figure

    with looks():
        figure = Figure(figsize=(0.5, 0.2))
        axes = figure.add_axes((0, 0, 1, 1), frameon=False, xticks=[], yticks=[], xlim=(0, 2), ylim=(-1, 1))
        axes.plot([0.1, 1, 1.9], [0, 0, 0], color=how.colour, linestyle=how.dash, marker=how.marker, markevery=[1])
        return as_svg(figure)


def with_names(svg: str, number: int) -> str:
    """An SVG whose names do not meet those of others on the page."""
    svg = re.sub(r'\bid="', f'id="p{number}-', svg)
    return re.sub(r'(url\(|href=")#', rf"\1#p{number}-", svg)


def looks() -> AbstractContextManager[None]:
    """How all pictures look, while they are drawn."""
    import matplotlib

    return matplotlib.rc_context(
        {
            "axes.edgecolor": INK,
            "axes.grid": True,
            "axes.labelcolor": INK,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "font.size": 11,
            "grid.alpha": 0.15,
            "grid.color": INK,
            "lines.linewidth": 1.8,
            "lines.markersize": 5.5,
            "svg.fonttype": "none",  # letters stay letters: readable, to be found, and small
            "svg.hashsalt": "halo",  # the same runs make the same file
            "text.color": INK,
            "text.parse_math": False,  # names are not formulas
            "xtick.color": INK,
            "ytick.color": INK,
        }
    )


def picture(height: float = HEIGHT, left: float = 0.15) -> "tuple[Figure, Axes]":
    """An empty one."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height))
    axes = figure.subplots()
    figure.subplots_adjust(left=left, right=0.96, top=1 - 0.12 / height, bottom=0.5 / height)
    return figure, axes


def _draw(axes: "Axes", line: Line, places: Sequence[float], marked: Marked = 1, across: bool = False) -> None:
    """A line and its band, from left to right; or from top to bottom, with the figures across."""
    low = [mean - spread for mean, spread in zip(line.means, line.spreads, strict=True)]
    high = [mean + spread for mean, spread in zip(line.means, line.spreads, strict=True)]
    fill: Callable[..., object] = axes.fill_betweenx if across else axes.fill_between
    if any(line.spreads):
        fill(places, low, high, color=line.style.colour, alpha=0.18, linewidth=0)
    drawn = (line.means, places) if across else (places, line.means)
    how = line.style
    axes.plot(*drawn, color=how.colour, linestyle=how.dash, marker=how.marker, markevery=marked)


def _left(sparsity: float) -> float:
    """How often what is left was halved."""
    return -math.log2(max(1 - sparsity, 1e-5))


def _apart(levels: Iterable[float], limits: tuple[float, float]) -> list[float]:
    """Ticks whose labels do not meet, the highest first."""
    found: list[float] = []
    for tick in (*sorted(levels, reverse=True), *ALWAYS):
        place, room = _left(tick), 0.085 * (limits[1] - limits[0])
        if limits[0] <= place <= limits[1] and all(abs(_left(other) - place) > room for other in found):
            found.append(tick)
    return found


def _thinned(line: Line) -> Line:
    """No more points than can be seen, the last among them."""
    every = -(-len(line.places) // POINTS)
    kept = range((len(line.places) - 1) % every, len(line.places), every) if line.places else range(0)
    parts = ([values[i] for i in kept] for values in (line.places, line.means, line.spreads))
    return Line(line.style, *parts)


def _make_log(axes: "Axes") -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log", nonpositive="clip")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda x, place: f"{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def shortened(names: Sequence[str], most: int = 16) -> list[str]:
    """Names that have room beside a picture."""
    if any(len(name) > most for name in names):
        names = [name.removesuffix(".weight") for name in names]
    return [name if len(name) <= most else f"…{name[1 - most :]}" for name in names]


def as_svg(figure: "Figure") -> str:
    """An SVG to stand in a page: without a size, fonts and rules of its own."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r"<style.*?</style>", "", text, count=1)  # it would hold for the whole page
    text = re.sub(r" ?font-family: [^;\"]*;?", "", text)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    return re.sub(r' (d|x|y|transform)="[^"]*"', lambda found: _rounded(found[0]), text)


def _rounded(attribute: str) -> str:
    return re.sub(r"(\.\d\d)\d+", r"\1", attribute)  # thousandths of a dot cannot be seen
