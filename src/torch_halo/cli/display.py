"""How a run goes, for a person: a bar on a terminal, lines in a log; and tables of what came out."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_halo.checks import extra
from torch_halo.training.config import Config
from torch_halo.training.session import Session


def say(text: str) -> None:
    """Print, unless the reader (`head`, say) has enough: then training goes on without one."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Lines:
    """A line an epoch."""

    def began(self, config: Config, folder: Path, epoch: int, position: int) -> None:
        """Say what begins, and where it goes on."""
        batch = f" and {position} batches" if position else ""
        say(f"{folder}: going on after {epoch} epochs{batch}" if epoch or position else f"{folder}: begins")

    def stepped(self, session: Session) -> None:
        """Say nothing."""

    def epoch_done(self, row: dict[str, Any], epochs: int) -> None:
        """Print the epoch's figures."""
        say(epoch_line(row, epochs))

    def close(self) -> None:
        """Nothing is open."""


class Bar:
    """A line an epoch, and under them a bar that moves."""

    def __init__(self) -> None:
        with extra("train", "training"):
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeRemainingColumn(),
        )
        self._task = self._bar.add_task("training")

    def began(self, config: Config, folder: Path, epoch: int, position: int) -> None:
        """Show the bar."""
        Lines().began(config, folder, epoch, position)
        self._bar.start()

    def stepped(self, session: Session) -> None:
        """Move it, now and then: drawing takes longer than a small network's step."""
        if session.step % 20 == 0 or session.step == session.total:
            self._bar.update(self._task, completed=session.step, total=session.total)

    def epoch_done(self, row: dict[str, Any], epochs: int) -> None:
        """Print the epoch's figures above it."""
        self._bar.console.print(epoch_line(row, epochs), highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave it as it is."""
        self._bar.stop()


def epoch_line(row: dict[str, Any], epochs: int) -> str:
    """One epoch's figures."""
    parts = [f"epoch {row['epoch']:{len(str(epochs))}}/{epochs}"]
    parts += [f"{name} {_figures(row[name])}" for name in ("train", "validation", "test") if row[name]]
    if row["penalty"] is not None:
        parts.append(f"penalty {row['penalty']:.3g}")
    parts.append(f"zeros {row['sparsity']:.1%}" if row.get("sparsity") else f"near zero {row['near_zero']:.1%}")
    if row["coefficients"]:
        parts.append(f"λ {row['coefficients']['0.05']:.3g} to {row['coefficients']['0.95']:.3g}")
    return "  ".join([*parts, f"{row['seconds']:.1f} s"])


def result_lines(result: dict[str, Any]) -> list[str]:
    """What came out, and what pruning cost."""
    rows = [("", "loss", "accuracy", "recalibrated")]
    for split in ("validation", "test"):
        if result[split]:
            rows.append((split, f"{result[split]['loss']:.4f}", f"{result[split]['accuracy']:.2f} %", ""))
    for level in result["pruned"]:
        again = level["recalibrated"]
        found = level["test"]
        rows.append(
            (
                f"test, {level['sparsity']:.2%} zeros",
                f"{found['loss']:.4f}",
                f"{found['accuracy']:.2f} %",
                f"{again['test']['accuracy']:.2f} %" if again else "",
            )
        )
    return table(rows if any(row[3] for row in rows[1:]) else [row[:3] for row in rows])


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns, the first to the left and the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    first, rest = widths[0], widths[1:]
    return [
        "  ".join([row[0].ljust(first), *(cell.rjust(w) for cell, w in zip(row[1:], rest, strict=True))]).rstrip()
        for row in rows
    ]


def _figures(found: dict[str, float]) -> str:
    return f"{found['loss']:.4f} {found['accuracy']:.2f} %"
