"""The comparison at a glance: every method on every network, and which are as good as the best."""

import math
from dataclasses import dataclass

from torch_halo.experiments.plan import Cell, Plan
from torch_halo.experiments.spec import Spec, saved_specs
from torch_halo.experiments.store import Store
from torch_halo.experiments.tables import MISSING, is_less, markdown, percent, remark
from torch_halo.methods import METHODS

COMPARISONS = ("table1", "table2")  # the experiments that compare methods
DENSE = "dense, not pruned"
TEST_IMAGES = 10_000  # of MNIST, and of CIFAR
STAR = "\\* other zeros than the column says, some cut by a last threshold, or fewer seeds: its own table tells which"


@dataclass(frozen=True)
class Column:
    """A network at a sparsity: what each method reached there."""

    spec: Spec
    title: str
    cells: dict[str, Cell]

    @property
    def least(self) -> float:
        """What is as good as the best pruned network: within a standard error of two accuracies' difference."""
        found = (cell.mean for name, cell in self.cells.items() if name != DENSE and _is_whole(cell))
        best = max((mean for mean in found if mean is not None), default=0.0)
        return best - math.sqrt(2 * best * (100 - best) / TEST_IMAGES)

    def shown(self, name: str) -> str:
        """A method's accuracy; empty if it was not asked for, a dash as long as seeds are missing."""
        cell = self.cells.get(name)
        if cell is None or cell.mean is None or not _is_whole(cell):
            return "" if cell is None else MISSING
        text = f"**{cell.mean:.2f}**" if name != DENSE and cell.mean >= self.least else f"{cell.mean:.2f}"
        return text + (r"\*" if remark(cell) or is_less(cell.row, self.spec) else "")


def summary(store: Store) -> list[str]:
    """A table in Markdown: a row for each method, a column for each network and sparsity; none if nothing is there."""
    specs = [spec for spec in saved_specs(store.path) if spec.name in COMPARISONS and spec.scale == "small"]
    columns = [column for spec in specs for column in _columns(Plan(spec, store))]
    names = [name for name in (DENSE, *METHODS) if any(name in column.cells for column in columns)]
    header = ("method", "epochs", *(column.title for column in columns))
    body = [(name, _epochs(name, columns), *(column.shown(name) for column in columns)) for name in names]
    return [*markdown([header, *body]), "", STAR] if names else []


def _columns(plan: Plan) -> list[Column]:
    found = []
    span = f"{plan.spec.epochs} epochs, {plan.spec.seeds} seed{'s' if plan.spec.seeds > 1 else ''}"
    for subject in plan.spec.subjects():
        rows, whole = [row for row in plan.rows if row.subject == subject], plan.dense(subject)
        for level in plan.spec.sparsities:
            cells = {row.method: plan.cell(row, level) for row in rows if level in row.sparsities}
            cells |= {} if whole is None else {DENSE: whole}
            is_first = level == plan.spec.sparsities[0]  # those beside it are the same network's
            name = f"{subject.name}<br>{span}<br>" if is_first else ""
            found.append(Column(plan.spec, f"{name}{percent(level)}", cells))
    return found


def _epochs(name: str, columns: list[Column]) -> str:
    """Those of all trainings that it takes, by those of one; it may depend on the network."""
    there = [(column.cells[name].epochs, column.spec.epochs) for column in columns if name in column.cells]
    found = sorted({all_of_them / one for all_of_them, one in there if all_of_them is not None})
    return " to ".join(f"{each:.3g}×" for each in dict.fromkeys([found[0], found[-1]])) if found else MISSING


def _is_whole(cell: Cell) -> bool:
    return len(cell.runs) == cell.row.seeds
