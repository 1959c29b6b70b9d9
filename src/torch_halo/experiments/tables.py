"""Tables of stored runs, ours beside the paper's, each cell with the runs that it comes from."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch_halo.checks import Table
from torch_halo.experiments.catalogue import Subject
from torch_halo.experiments.paper import REMARKS, TABLES, Reported
from torch_halo.experiments.plan import Cell, Plan
from torch_halo.experiments.spec import Row, Spec, describe
from torch_halo.training.settings import Model

NEAR = 0.0005  # a sparsity that differs by less is the one that was asked for
MUCH = 0.5  # points
MISSING = "–"
CSV = (
    "table",
    "method",
    "sparsity",
    "figure",
    "mean",
    "sd",
    "epochs",
    "paper",
    "difference",
    "settings",
    "remark",
    "runs",
)
TRACE = ("method", "sparsity", "figure", "settings", "runs")


@dataclass(frozen=True)
class Source:
    """Where a cell comes from."""

    method: str
    sparsity: float | None  # None: it has nothing to do with one
    settings: str
    figure: str
    runs: tuple[str, ...]
    remark: str = ""
    numbers: tuple[str, ...] = ("",) * 5  # mean, spread, epochs, and the paper's accuracy and the difference to it

    @property
    def level(self) -> str:
        """The sparsity, for people."""
        return "" if self.sparsity is None else percent(self.sparsity)


@dataclass(frozen=True)
class Sheet:
    """A table as text: one network's."""

    title: str
    header: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]
    sources: tuple[Source, ...] = ()
    notes: tuple[str, ...] = ()


def sheets(plan: Plan) -> list[Sheet]:
    """An experiment's tables."""
    return [_sheet(plan, subject) for subject in plan.spec.subjects()]


def _sheet(plan: Plan, subject: Subject) -> Sheet:
    spec, rows = plan.spec, [row for row in plan.rows if row.subject == subject]
    levels = (0.0, *spec.sparsities)
    header = ("method", "epochs", *map(percent, levels), "at baseline", "paper", "difference", "paper's baseline")
    body, all_cells, sources = [], [], []
    for row in rows:
        cells = [plan.cell(row, level) for level in row.sparsities]
        all_cells += cells
        # Only the dense network counts as it was trained: the others' settings differ by sparsity.
        first = [plan.cell(row, 0.0)] if row.method == "dense" else []
        body.append(_body_row(plan, row, first, cells))
        sources += [_source(plan, cell) for cell in first + cells]
    if not any(map(_reported, rows)):  # the paper has nothing to stand beside
        header, body = header[:-3], [row[:-3] for row in body]
    seeds = f"{spec.seeds} seeds, mean ± sd" if spec.seeds > 1 else "1 seed"
    title = f"{subject.name}: test accuracy in percent by sparsity, {spec.epochs} epochs, {seeds}"
    return Sheet(title, header, tuple(body), tuple(sources), _notes(plan, subject, all_cells, sources))


def _body_row(plan: Plan, row: Row, first: list[Cell], cells: list[Cell]) -> tuple[str, ...]:
    epochs = sorted({cell.epochs for cell in first + cells if cell.epochs is not None})
    baseline, reported = plan.at_baseline(row), _reported(row)
    compared = None
    if reported is not None:
        compared = next((cell for cell in first + cells if cell.sparsity == reported.sparsity), None)
    return (
        row.label,
        " to ".join(str(each) for each in dict.fromkeys([epochs[0], epochs[-1]])) if epochs else MISSING,
        shown(first[0]) if first else "",
        *map(shown, cells),
        *[""] * (len(plan.spec.sparsities) - len(cells)),  # a row may have the first ones only
        percent(baseline) if baseline is not None else _no_baseline(plan, row, cells),
        "" if reported is None else _paper(reported),
        _difference(compared, reported),
        "" if reported is None else percent(reported.at_baseline),
    )


def _no_baseline(plan: Plan, row: Row, cells: list[Cell]) -> str:
    dense = plan.dense(row.subject)
    known = dense is not None and dense.mean is not None and bool(cells) and cells[0].mean is not None
    return f"< {percent(plan.spec.sparsities[0])}" if known else MISSING


def _reported(row: Row) -> Reported | None:
    if row.subject.model != Model(row.subject.model.name):
        return None  # a narrower or shallower network is not the paper's
    return TABLES.get((row.subject.data, row.subject.model.name), {}).get(row.label)


def _paper(reported: Reported) -> str:
    where = "" if reported.sparsity in (0.0, 0.95) else f" at {percent(reported.sparsity)}"
    return f"{reported.accuracy:.2f} ± {reported.spread:.2f}{where}"


def _difference(cell: Cell | None, reported: Reported | None) -> str:
    if reported is None:
        return ""
    return MISSING if cell is None or cell.mean is None else f"{cell.mean - reported.accuracy:+.2f}"


def shown(cell: Cell) -> str:
    """An accuracy with its spread; a mark if runs are missing, or the sparsity is another."""
    if cell.mean is None:
        return MISSING
    text = f"{cell.mean:.2f}" if cell.spread is None else f"{cell.mean:.2f} ± {cell.spread:.2f}"
    if len(cell.runs) < cell.row.seeds:
        text += f" ({len(cell.runs)} of {cell.row.seeds})"
    return text + ("*" if remark(cell) else "")


def remark(cell: Cell) -> str:
    """What is to be said of a method that cannot aim at a sparsity."""
    if cell.reached is not None and abs(cell.reached - cell.sparsity) > NEAR:
        return (
            f"has {cell.reached:.2%} zeros, {'more' if cell.reached > cell.sparsity else 'fewer'} than were asked for"
        )
    is_sparse = bool(cell.own) or (cell.method is not None and cell.method.has_target)  # others only shrink weights
    if is_sparse and cell.own is not None and cell.own < cell.sparsity - NEAR:
        return f"left {cell.own:.2%} zeros by itself; the threshold cut the rest"
    return ""


def _source(plan: Plan, cell: Cell) -> Source:
    settings = "" if cell.method is None else describe(cell.method)
    tried, asked = plan.tried(cell.row, cell.sparsity), len(cell.row.grid)
    if cell.method is not None and 1 < asked != tried:
        settings += f" (chosen from {tried} of {asked})"
    names = tuple(run.path.name for run in cell.runs)
    return Source(cell.row.label, cell.sparsity, settings, shown(cell), names, remark(cell), _numbers(cell))


def _numbers(cell: Cell) -> tuple[str, ...]:
    reported = _reported(cell.row)
    is_compared = reported is not None and reported.sparsity == cell.sparsity and cell.mean is not None
    own = [cell.mean, cell.spread]
    return (
        *("" if x is None else f"{x:.4f}" for x in own),
        "" if cell.epochs is None else str(cell.epochs),
        f"{reported.accuracy:g}" if reported is not None and is_compared else "",
        _difference(cell, reported) if is_compared else "",
    )


def _stale(cells: Sequence[Cell]) -> list[str]:
    """What batch norm's old statistics would have cost, where that is much."""
    both = [(cell, cell.mean, cell.as_cut) for cell in cells]
    there = [(cell, mean, old) for cell, mean, old in both if mean is not None and old is not None]
    if not there:
        return []
    much = [(cell, old) for cell, mean, old in there if abs(mean - old) >= MUCH]
    without = ", ".join(f"{cell.row.label} at {percent(cell.sparsity)} {old:.2f}" for cell, old in much)
    how = "batch norm's statistics are estimated anew after pruning, on training images"
    return [f"{how}; without that: {without or 'nearly the same'}"]


def _notes(plan: Plan, subject: Subject, cells: Sequence[Cell], sources: Sequence[Source]) -> tuple[str, ...]:
    notes = [*_stale(cells), *(f"* {s.method} at {s.level} {s.remark}" for s in sources if s.remark)]
    rows = [row for row in plan.rows if row.subject == subject]
    few = [row for row in rows if is_less(row, plan.spec)]
    notes += [f"{row.label}: one seed, at {percent(row.sparsities[0])} only: it trains many times" for row in few]
    if any(map(_reported, rows)) and (whose := REMARKS.get((subject.data, subject.model.name))):
        notes.append(whose)
    for job in plan.jobs():
        is_own = (job.config.data.name, job.config.model) == (subject.data, subject.model)
        if is_own and (failure := plan.store.failure(job.config)):
            notes.append(f"failed: {job.name}: {failure}")
    return tuple(notes)


def is_less(row: Row, spec: Spec) -> bool:
    """Whether a method that trains many times has fewer seeds or sparsities than the others."""
    return (row.seeds, row.sparsities) != (spec.seeds, spec.sparsities)


def percent(share: float) -> str:
    """0.95 as 95 %, 0.995 as 99.5 %."""
    return f"{100 * share:.4g} %"


def as_text(found: Sequence[Sheet], trace: bool = False) -> str:
    """For a terminal."""
    return "\n".join(_text(sheet, trace) for sheet in found)


def _text(sheet: Sheet, trace: bool) -> str:
    lines = [sheet.title, *_columns([sheet.header, *sheet.body]), *sheet.notes]
    if trace:
        lines += ["", *_columns([TRACE, *map(_trace, sheet.sources)])]
    return "\n".join(lines) + "\n"


def as_markdown(found: Sequence[Sheet], trace: bool = False) -> str:
    """For documents."""
    return "\n".join(_as_markdown(sheet, trace) for sheet in found)


def _as_markdown(sheet: Sheet, trace: bool) -> str:
    lines = [f"### {sheet.title}", "", *markdown([sheet.header, *sheet.body])]
    lines += ["", *(f"- {note}" for note in sheet.notes)] if sheet.notes else []
    if trace:
        rows = markdown([TRACE, *map(_trace, sheet.sources)])
        lines += ["", "<details><summary>Where each figure comes from</summary>", "", *rows, "", "</details>"]
    return "\n".join(lines) + "\n"


def as_csv(found: Sequence[Sheet], trace: bool = False) -> str:
    """A line a cell, with its runs."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV)
    for sheet in found:
        for source in sheet.sources:
            level = "" if source.sparsity is None else f"{source.sparsity:g}"
            cells = [source.method, level, source.figure, *source.numbers, source.settings, source.remark]
            writer.writerow([sheet.title, *cells, " ".join(source.runs)])
    return file.getvalue()


def as_latex(found: Sequence[Sheet], trace: bool = False) -> str:
    """A tabular for each."""
    return "\n".join(_as_latex(sheet, trace) for sheet in found)


def _as_latex(sheet: Sheet, trace: bool) -> str:
    comments = [f"% {s.method} {s.level}: {' '.join(s.runs) or 'no run yet'}" for s in sheet.sources if trace]
    rows = [" & ".join(map(_latex, row)) + r" \\" for row in (sheet.header, *sheet.body)]
    columns = "l" + "r" * (len(sheet.header) - 1)
    return (
        "\n".join(
            [
                f"% {sheet.title}",
                *comments,
                rf"\begin{{tabular}}{{{columns}}}",
                r"\hline",
                rows[0],
                r"\hline",
                *rows[1:],
                r"\hline",
                r"\end{tabular}",
                *(f"% {note}" for note in sheet.notes),
            ]
        )
        + "\n"
    )


FORMATS: Table[Callable[[Sequence[Sheet], bool], str]] = Table(
    "format", {"text": as_text, "markdown": as_markdown, "csv": as_csv, "latex": as_latex}
)


def _trace(source: Source) -> tuple[str, ...]:
    runs = ", ".join(source.runs) or MISSING
    return source.method, source.level, source.figure, source.settings, runs


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table's lines; the first row is its head."""
    lines = ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows]
    return [lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _latex(text: str) -> str:
    for old, new in {"&": r"\&", "%": r"\%", "_": r"\_", "±": r"$\pm$", "–": "--", "<": "$<$"}.items():
        text = text.replace(old, new)
    return text
