"""Times of what does the same, taken in turns, so that what disturbs one disturbs all; and a table of them."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

ROUNDS, SECONDS = 15, 0.5  # at most so many turns; no new one after so long, once there were three
TURN = 2e-3  # seconds that a turn should last: what is fast is called several times


def medians(
    functions: Mapping[str, Callable[[], Any]], rounds: int = ROUNDS, seconds: float = SECONDS
) -> dict[str, float]:
    """Seconds that each takes: the median over rounds in which all take their turn, after one that is not counted."""
    for function in functions.values():
        function()
    calls = {name: max(1, min(100, round(TURN / (1e-9 + _seconds(f, 1))))) for name, f in functions.items()}
    times: dict[str, list[float]] = {name: [] for name in functions}
    began = time.perf_counter()
    for done in range(rounds):
        if done >= 3 and time.perf_counter() - began > seconds:
            break
        for name, function in functions.items():
            times[name].append(_seconds(function, calls[name]))
    return {name: statistics.median(found) for name, found in times.items()}


def _seconds(function: Callable[[], Any], calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - began) / calls


@dataclass(frozen=True)
class LayerTimes:
    """A layer: its share of zeros, the engine that it got, and seconds for the example's input by engine."""

    name: str
    sparsity: float
    engine: str
    seconds: dict[str, float]


@dataclass(frozen=True)
class Times:
    """What deploying came to; print it."""

    layers: tuple[LayerTimes, ...]
    dense: float  # seconds of the model as it was given, for the example
    now: float
    threads: int
    parameters: tuple[int, int]  # of the model as it was given, and without its dead structure if that was removed
    notes: tuple[str, ...] = ()

    @property
    def times(self) -> float:
        """How many times faster it is."""
        return self.dense / self.now

    def rows(self) -> list[tuple[str, ...]]:
        """As a table: layer, sparsity, engine, milliseconds dense, milliseconds now."""
        rows: list[tuple[str, ...]] = [("layer", "sparsity", "engine", "dense ms", "now ms")]
        for layer in self.layers:
            dense, now = layer.seconds["dense"], layer.seconds[layer.engine]
            rows.append((layer.name, f"{layer.sparsity:.2%}", layer.engine, *map(milliseconds, (dense, now))))
        return [*rows, ("all", "", "", milliseconds(self.dense), milliseconds(self.now))]

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        ]
        return "\n".join([*lines, *self.notes])


def milliseconds(seconds: float) -> str:
    """As text."""
    return f"{1000 * seconds:.3f}"
