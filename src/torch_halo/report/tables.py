"""The report's tables: accuracies by method and sparsity, time and memory."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch_halo.experiments.tables import MISSING, NEAR, percent
from torch_halo.report.groups import Curve, Section, Values, figures

Path = tuple[str, ...]  # to a figure in what a run measured at a sparsity


@dataclass(frozen=True)
class Cell:
    """A text; and a bar under it, as a share of the column's longest."""

    text: str
    bar: float | None = None


@dataclass(frozen=True)
class Row:
    """A method's figures."""

    curve: Curve
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """A table to be read."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


def tables_of(section: Section) -> list[Table]:
    """A section's tables, those that there is something for."""
    final = ("test", "accuracy")
    found = [_accuracies("Test accuracy in percent by sparsity", section.finals, final)]
    again = ("recalibrated", *final)
    if any(curve.at(level, *again).of for curve in section.finals for level in curve.levels):
        caption = "Test accuracy in percent by sparsity, batch norm recalibrated after pruning"
        found.append(_accuracies(caption, section.finals, again))
    caption = "Trials, trained on less data to choose settings: validation accuracy in percent by sparsity"
    found.append(_accuracies(caption, section.trials, ("validation", "accuracy")))
    return [table for table in found if table.rows]


def time_table(section: Section) -> Table:
    """Seconds an epoch, and the most memory held."""
    header = ("seconds per epoch", "epochs of the last training", "its seconds", "epochs in all", "memory, MB")
    curves = section.pictured
    seconds, memory = [_seconds(curve) for curve in curves], [_memory(curve) for curve in curves]
    rows = []
    for curve, an_epoch, held in zip(curves, seconds, memory, strict=True):
        cells = (
            Cell(an_epoch.text(), _share(an_epoch, seconds)),
            Cell(_range(group.config.training.epochs for group in curve.groups)),
            Cell(figures((run.result for run in curve.runs), "seconds").text(1)),
            Cell(_range(group.epochs for group in curve.groups)),
            Cell(held.text(0), _share(held, memory)),
        )
        rows.append(Row(curve, cells))
    return Table("Time and memory, as measured while training", header, tuple(rows))


def _accuracies(caption: str, curves: Sequence[Curve], path: Path) -> Table:
    levels = sorted({level for curve in curves for level in curve.levels})
    first = () if path[0] == "recalibrated" else (0.0,)  # an unpruned network needs no recalibration
    names = ("unpruned",) if first else ()
    header = (*names, *map(percent, levels), "seeds", "epochs", "s per epoch", "memory, MB")
    rows, notes = [], []
    for curve in curves:
        rows.append(
            Row(
                curve,
                (
                    *(Cell(_accuracy(curve, level, path)) for level in (*first, *levels)),
                    Cell(_range(len(group.runs) for group in curve.groups)),
                    Cell(_range(group.epochs for group in curve.groups)),
                    Cell(_seconds(curve).text()),
                    Cell(_memory(curve).text(0)),
                ),
            )
        )
        notes += [f"* {curve.label} at {percent(x)} has {_zeros(curve, x)} zeros." for x in levels if _is_off(curve, x)]
    return Table(caption, header, tuple(rows), tuple(notes))


def _accuracy(curve: Curve, level: float, path: Path) -> str:
    """With a mark if seeds are missing, or the sparsity is another than was asked for."""
    found, group = curve.at(level, *path), curve.group_at(level)
    if group is None or not found.of:
        return MISSING
    missing = f" ({len(found.of)} of {len(group.runs)})" if len(found.of) < len(group.runs) else ""
    return found.text() + missing + ("*" if _is_off(curve, level) else "")


def _is_off(curve: Curve, level: float) -> bool:
    found = curve.at(level, "sparsity")
    return bool(level and found.of) and abs(found.mean - level) > NEAR


def _zeros(curve: Curve, level: float) -> str:
    return f"{100 * curve.at(level, 'sparsity').mean:.2f} %"


def _seconds(curve: Curve) -> Values:
    """An epoch's, by run."""
    timed = [run for run in curve.runs if run.config.training.epochs]
    found = ((figures([run.result], "seconds"), run.config.training.epochs) for run in timed)
    return Values(tuple(seconds.mean / epochs for seconds, epochs in found if seconds.of))


def _memory(curve: Curve) -> Values:
    """In megabytes, by run."""
    return Values(tuple(x / 1e6 for x in figures((run.result for run in curve.runs), "memory").of))


def _share(one: Values, all_of_them: Iterable[Values]) -> float | None:
    most = max((each.mean for each in all_of_them if each.of), default=0.0)
    return one.mean / most if one.of and most else None


def _range(numbers: Iterable[int]) -> str:
    """20, or 20 to 40."""
    found = sorted(set(numbers))
    return " to ".join(str(each) for each in dict.fromkeys([found[0], found[-1]]))
