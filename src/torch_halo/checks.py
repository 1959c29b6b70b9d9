"""What may be passed: numbers in a range, names in a table."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from numbers import Real
from typing import NoReturn, TypeVar

T = TypeVar("T")


class Table(dict[str, T]):
    """A dict whose error for an unknown name lists the names there are, and the nearest.

    >>> Table("fruit", {"apple": 1})["aple"]
    Traceback (most recent call last):
    ...
    ValueError: unknown fruit 'aple'; known: apple; did you mean apple?
    """

    def __init__(self, kind: str, entries: Mapping[str, T]) -> None:
        super().__init__(entries)
        self.kind = kind

    def __missing__(self, name: object) -> NoReturn:
        raise ValueError(f"unknown {self.kind} {name!r}; known: {', '.join(self)}{did_you_mean(str(name), self)}")


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Import within this what comes with an extra; if it is missing, the error says how to get it."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{what} needs {error.name}: pip install 'torch-halo[{name}]'") from error


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of an error message: the nearest of the names, if one is near."""
    near = get_close_matches(name, names, n=2)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def number(
    what: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
) -> float:
    """`value` as a float, or an error that names it and says what is allowed."""
    bounds = {"above": above, "at least": at_least, "below": below}
    allowed = " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None)
    wanted = " ".join(filter(None, ["a finite number", allowed]))
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{what} must be {wanted}; received {_short(value)}")
    x = float(value)
    too_low = (above is not None and x <= above) or (at_least is not None and x < at_least)
    if not math.isfinite(x) or too_low or (below is not None and x >= below):
        raise ValueError(f"{what} must be {wanted}; received {value!r}")
    return x


def whole(what: str, value: object, *, at_least: int) -> int:
    """`value` as an int of at least `at_least`, or an error."""
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ValueError(f"{what} must be a whole number, at least {at_least}; received {_short(value)}")
    if value >= 2**63:
        raise ValueError(f"{what} must be a whole number below 2^63; received {_short(value)}")
    return value


def _short(value: object) -> str:
    text = repr(value)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return f"{shown} ({type(value).__name__})"
