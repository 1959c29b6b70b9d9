"""Times of functions that do the same, taken in turns, so that what disturbs one disturbs all."""

import statistics
import time
from collections.abc import Callable, Mapping
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
