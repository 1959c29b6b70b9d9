"""Tables of trainings with wrong labels: what was learned, what was learned by heart, and which labels stood out."""

import statistics
from collections.abc import Callable, Sequence

from torch_halo.experiments.plan import Cell, Plan
from torch_halo.experiments.spec import describe
from torch_halo.experiments.store import Run
from torch_halo.experiments.suspicion import read_suspects
from torch_halo.experiments.tables import MISSING, Sheet, Source, percent

HEADER = ("method", "label noise", "train", "test", "gap", "memorised", "test, pruned", "AUROC", "precision")


def noise_sheets(plan: Plan) -> list[Sheet]:
    """A table for each network: accuracies in percent, and how well wrong labels were found."""
    found: dict[str, list[Cell]] = {}
    for row in plan.rows:
        found.setdefault(f"{row.subject.model.name} on {row.subject.data}", []).append(
            plan.cell(row, plan.spec.sparsities[0])
        )
    return [_sheet(plan, name, cells) for name, cells in found.items()]


def _sheet(plan: Plan, name: str, cells: Sequence[Cell]) -> Sheet:
    ordered = sorted(cells, key=lambda cell: cell.row.subject.noise)
    body = tuple((cell.row.label, f"{cell.row.subject.noise:g}", *_figures(cell)) for cell in ordered)
    sources = tuple(
        Source(
            f"{cell.row.label}, noise {cell.row.subject.noise:g}",
            None,
            "" if cell.method is None else describe(cell.method),
            _text(cell.runs, _test),
            tuple(run.path.name for run in cell.runs),
        )
        for cell in ordered
    )
    seeds = f"{plan.spec.seeds} seeds, mean ± sd" if plan.spec.seeds > 1 else "1 seed"
    level = percent(plan.spec.sparsities[0])
    notes = (
        "train and test: accuracy in percent in the last epoch, train on labels as they were given; gap: train - test.",
        f"memorised: wrong labels that the final network gives itself, in percent; pruned: to {level}.",
        "AUROC, precision: of ranking the labels by their mean loss over training, precision at the number of flips.",
    )
    title = f"{name}: training with wrong labels, {plan.spec.epochs} epochs, {seeds}"
    return Sheet(title, HEADER, body, sources, notes)


def _figures(cell: Cell) -> tuple[str, ...]:
    ways: tuple[tuple[Callable[[Run], float | None], int], ...] = (
        (_train, 2),
        (_test, 2),
        (_gap, 2),
        (lambda run: run.result.get("memorised"), 1),
        (lambda run: run.accuracy(cell.sparsity), 2),
        (lambda run: _judged(run, "auroc"), 4),
        (lambda run: _judged(run, "precision"), 4),
    )
    return tuple(_text(cell.runs, way, digits) for way, digits in ways)


def _text(runs: Sequence[Run], way: Callable[[Run], float | None], digits: int = 2) -> str:
    values = [value for run in runs if (value := way(run)) is not None]
    if not values:
        return MISSING
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def _train(run: Run) -> float | None:
    found = run.result["train"]
    return None if found is None else float(found["accuracy"])


def _test(run: Run) -> float:
    return float(run.result["test"]["accuracy"])


def _gap(run: Run) -> float | None:
    train = _train(run)
    return None if train is None else train - _test(run)


def _judged(run: Run, name: str) -> float | None:
    found = read_suspects(run.path)
    return None if found is None else found.get(name)
