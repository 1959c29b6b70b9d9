"""Flags from the fields of dataclasses and from the options of functions."""

import argparse
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from torch_halo.checks import Table
from torch_halo.penalties import FUNCTIONS, PENALTIES, Separable, WeightedL1

REQUIRED = object()
# A flag that is given makes the others' inherited values void: a preset's ψ is not meant for another ξ.
VOIDS = {"xi": ("psi",), "milestones": ("every",), "every": ("milestones",)}
# Fields that are one of several kinds: their own flag chooses, and the kind's fields follow.
NESTED: dict[str, Table[Any]] = {
    "h": FUNCTIONS,
    "inner": Table(
        "inner penalty",
        {name: kind for name, kind in PENALTIES.items() if issubclass(kind, Separable) and kind is not WeightedL1},
    ),
}


@dataclass(frozen=True)
class Flag:
    """A field as a flag."""

    name: str
    hint: Any
    default: Any
    help: str

    @property
    def option(self) -> str:
        """As it is typed."""
        return "--" + self.name.replace("_", "-")

    def add_to(self, group: argparse._ArgumentGroup, default: Any) -> None:
        """Add it to a parser; what is not given does not appear in the result."""
        is_told = not any(default is silent for silent in (REQUIRED, None, False))
        # What stands in brackets is the default of a field that is None.
        shown = f"{self.help.split(' (')[0]} ({_shown(default)})" if is_told else self.help
        common: dict[str, Any] = {"dest": self.name, "default": argparse.SUPPRESS, "help": shown.replace("%", "%%")}
        if self.hint is bool:
            group.add_argument(self.option, action=argparse.BooleanOptionalAction, **common)
        elif get_origin(self.hint) is Literal:
            group.add_argument(self.option, choices=get_args(self.hint), **common)
        elif get_origin(self.hint) is tuple:
            kind = get_args(self.hint)[0]
            group.add_argument(self.option, nargs="*", type=kind, metavar=_metavar(kind), **common)
        else:
            group.add_argument(self.option, type=self.hint, metavar=_metavar(self.hint), **common)


@dataclass(frozen=True)
class Part:
    """A dataclass or function whose fields are flags, the values they have by default, and nested parts."""

    make: Callable[..., Any]
    flags: tuple[Flag, ...]
    defaults: Mapping[str, Any]
    nested: Mapping[str, "Part"] = field(default_factory=dict)

    def all_flags(self) -> list[tuple[Flag, Any]]:
        """Each flag with its default, nested ones included."""
        own = [(flag, self.defaults.get(flag.name, flag.default)) for flag in self.flags]
        return own + [pair for part in self.nested.values() for pair in part.all_flags()]

    def build(self, given: Mapping[str, Any]) -> Any:
        """The object, from the flags that were given."""
        own = {f.name: given[f.name] for f in self.flags if f.name in given}
        void = {other for name in own for other in VOIDS.get(name, ())}
        values = {**{name: value for name, value in self.defaults.items() if name not in void}, **own}
        for flag in self.flags:
            if flag.default is REQUIRED and flag.name not in values:
                raise ValueError(f"{flag.option} is needed: {flag.help}")
        return self.make(**values, **{name: part.build(given) for name, part in self.nested.items()})


def part_of(make: Callable[..., Any], choices: Mapping[str, str | None], base: object = None) -> Part:
    """The flags of a dataclass or function; `base` is an object of it with other defaults."""
    flags, nested = [], {}
    for flag in _fields(make):
        if flag.name in NESTED and not _is_plain(flag.hint):
            nested[flag.name] = _nested(make, flag, choices, getattr(base, flag.name, None))
        elif _is_plain(flag.hint):
            flags.append(flag)
        elif flag.default is REQUIRED:
            name = getattr(make, "__name__", str(make))
            raise ValueError(f"{name} takes {flag.name}, which no flag can give; it is for Python only")
    own = {flag.name for flag in flags}
    for name, part in nested.items():  # of a flag that both have the outer one is meant
        nested[name] = replace(part, flags=tuple(flag for flag in part.flags if flag.name not in own))
    defaults = {flag.name: getattr(base, flag.name) for flag in flags} if base is not None else {}
    return Part(make, tuple(flags), defaults, nested)


def _nested(make: Callable[..., Any], flag: Flag, choices: Mapping[str, str | None], base: object) -> Part:
    table = NESTED[flag.name]
    if chosen := choices.get(flag.name):
        kind = table[chosen]
        return part_of(kind, choices, base if type(base) is kind else None)
    default = flag.default if base is None else base
    if default is REQUIRED:
        raise ValueError(f"--{flag.name} is needed: {flag.help}, one of {', '.join(table)}")
    return part_of(type(default), choices, default)


def _fields(make: Callable[..., Any]) -> list[Flag]:
    hints = get_type_hints(make, include_extras=True)
    found = []
    bound = {f.name for f in fields(make) if f.kw_only} if is_dataclass(make) else set()
    for parameter in inspect.signature(make).parameters.values():
        is_option = is_dataclass(make) or parameter.kind is parameter.KEYWORD_ONLY
        if not is_option or parameter.name in bound:
            continue
        hint, help_ = _plain(hints[parameter.name])
        default = REQUIRED if parameter.default is parameter.empty else parameter.default
        found.append(Flag(parameter.name, hint, default, help_))
    return found


def _plain(hint: Any) -> tuple[Any, str]:
    """A type without its annotation and without None, and the annotation."""
    help_ = ""
    if get_origin(hint) is Annotated:
        hint, help_ = get_args(hint)[:2]
    if get_origin(hint) in (Union, UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not NoneType]
        hint = kinds[0] if len(kinds) == 1 else hint
    return hint, help_


def _is_plain(hint: Any) -> bool:
    return hint in (bool, int, float, str) or get_origin(hint) in (Literal, tuple)


def _metavar(kind: Any) -> str:
    return {int: "N", float: "X"}.get(kind, "TEXT")


def _shown(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return " ".join(map(_shown, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
