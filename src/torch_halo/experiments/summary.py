"""The comparison at a glance: every method on every network, and which are as good as the best."""

from dataclasses import dataclass

from torch_halo.experiments.paper import WITHIN
from torch_halo.experiments.plan import Cell, Plan
from torch_halo.experiments.spec import saved_specs
from torch_halo.experiments.store import Store
from torch_halo.experiments.tables import MISSING, Sheet, percent
from torch_halo.methods import METHODS

COMPARISONS = ("table1", "table2")  # the experiments that compare methods
DENSE = "dense, not pruned"
TITLE = f"test accuracy in percent, bold within {WITHIN} points of a column's best; epochs beside a dense training's"


@dataclass(frozen=True)
class Column:
    """A network at a sparsity: what each method reached there."""

    title: str
    epochs: int  # of one training
    cells: dict[str, Cell]

    @property
    def best(self) -> float:
        """Of the pruned networks."""
        return max(cell.mean or 0.0 for name, cell in self.cells.items() if name != DENSE)

    def shown(self, name: str) -> str:
        """A method's accuracy; empty if it was not asked for, a dash as long as seeds are missing."""
        if name not in self.cells:
            return ""
        mean, seeds = self.cells[name].mean, len(self.cells[name].runs)
        if mean is None or seeds < self.cells[name].row.seeds:
            return MISSING
        # Tenths are noise here, so that the best is not alone; the paper calls as much no loss.
        return f"**{mean:.2f}**" if name != DENSE and mean >= self.best - WITHIN else f"{mean:.2f}"


def summary(store: Store) -> Sheet | None:
    """A row for each method, a column for each network and sparsity; None if there is nothing to compare."""
    specs = [spec for spec in saved_specs(store.path) if spec.name in COMPARISONS and spec.scale == "small"]
    columns = [column for spec in specs for column in _columns(Plan(spec, store))]
    names = [name for name in (DENSE, *METHODS) if any(name in column.cells for column in columns)]
    if not names:
        return None
    body = [(name, _epochs(name, columns), *(column.shown(name) for column in columns)) for name in names]
    return Sheet(TITLE, ("method", "epochs", *(column.title for column in columns)), tuple(body))


def _columns(plan: Plan) -> list[Column]:
    found = []
    for subject in plan.spec.subjects():
        rows = [row for row in plan.rows if row.subject == subject]
        whole = plan.dense(subject)
        for level in plan.spec.sparsities:
            cells = {row.method: plan.cell(row, level) for row in rows if level in row.sparsities}
            cells |= {} if whole is None else {DENSE: whole}
            name = f"{subject.name}<br>" if level == plan.spec.sparsities[0] else ""  # those beside it are its too
            found.append(Column(f"{name}{percent(level)}", plan.spec.epochs, cells))
    return found


def _epochs(name: str, columns: list[Column]) -> str:
    """Those of all trainings that it takes, by those of one; it may depend on the network."""
    there = [(column.cells[name].epochs, column.epochs) for column in columns if name in column.cells]
    found = sorted({all_of_them / one for all_of_them, one in there if all_of_them is not None})
    return " to ".join(f"{each:.3g}×" for each in dict.fromkeys([found[0], found[-1]])) if found else MISSING
