"""All that decides a run's outcome, as dataclasses; as JSON; and the run's name, made from it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any

from torch_halo.checks import Table
from torch_halo.penalties import FUNCTIONS, PENALTIES, Penalty
from torch_halo.training.optimizers import OPTIMIZERS, SGD, OptimizerSettings
from torch_halo.training.schedules import SCHEDULES, Schedule, Steps
from torch_halo.training.settings import Compute, Data, Model, Pruning, Shrinking, Training

SCHEMA = 1  # raised whenever the same settings would mean another training


@dataclass(frozen=True)
class Config:
    """A run's settings, whole."""

    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    penalty: Penalty | None = None
    shrinking: Shrinking = field(default_factory=Shrinking)
    optimizer: OptimizerSettings = field(default_factory=SGD)
    schedule: Schedule = field(default_factory=Steps)
    training: Training = field(default_factory=Training)
    pruning: Pruning = field(default_factory=Pruning)
    compute: Compute = field(default_factory=Compute)
    method: Mapping[str, Any] | None = None  # a method's kind and settings, as `methods/` writes and reads them

    def __post_init__(self) -> None:
        if self.method is not None and not isinstance(self.method.get("kind"), str):
            raise ValueError(f"method must have a kind; received {self.method!r}")
        world, size = self.compute.devices * self.compute.nodes, self.training.batch_size
        if size % world:
            raise ValueError(f"batch_size must be a multiple of the {world} processes; received {size}")

    def as_dict(self) -> dict[str, Any]:
        """The settings as plain data, defaults included."""
        parts = {part.name: _encode(getattr(self, part.name), part.name) for part in fields(self)}
        if self.method is None:  # so that what has no method keeps its name
            del parts["method"]
        return {"schema": SCHEMA, **parts}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Config":
        """Settings from what `as_dict` gave."""
        schema = data.get("schema") if isinstance(data, Mapping) else data
        if schema != SCHEMA:
            raise ValueError(f"the configuration is of schema {schema!r}; this version reads {SCHEMA}")
        try:
            return cls(**{key: _decode(value, key) for key, value in data.items() if key != "schema"})
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"the configuration has settings of another version: {error}") from error

    @cached_property
    def name(self) -> str:
        """A name for people, and a checksum of everything."""
        digest = hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()
        method = self.method["kind"] if self.method else _NAMES.get(type(self.penalty), "dense")
        return f"{self.data.name}-{self.model.name}-{method}-seed{self.training.seed}-{digest[:10]}"


# Settings that are one of several kinds are stored with the name of their kind.
_KINDS: dict[str, Table[Any]] = {
    "penalty": PENALTIES,
    "inner": PENALTIES,
    "h": FUNCTIONS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
}
_PARTS: dict[str, type] = {
    "data": Data,
    "model": Model,
    "shrinking": Shrinking,
    "training": Training,
    "pruning": Pruning,
    "compute": Compute,
}
_NAMES = {kind: name for table in _KINDS.values() for name, kind in table.items()}


def _encode(value: Any, where: str) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        # A penalty's keyword-only fields are set when it is attached; they are no settings.
        parts = {f.name: _encode(getattr(value, f.name), f.name) for f in fields(value) if _is_stored(f, value)}
        return {"kind": _NAMES[type(value)], **parts} if type(value) in _NAMES else parts
    if isinstance(value, (tuple, list)):
        return [_encode(item, where) for item in value]
    if isinstance(value, Mapping) and where in ("options", "method"):
        return dict(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"{where}: {type(value).__name__} cannot be stored with a run; it is for Python only")


def _is_stored(setting: Field[Any], owner: Any) -> bool:
    is_late = not setting.metadata.get("is_stored_if_default", True)
    return not setting.kw_only and not (is_late and getattr(owner, setting.name) == setting.default)


def _decode(value: Any, where: str) -> Any:
    if isinstance(value, Mapping) and "kind" in value and where != "method":
        kind = _KINDS[where][value["kind"]]
        return kind(**{key: _decode(item, key) for key, item in value.items() if key != "kind"})
    if where in _PARTS:
        if not isinstance(value, Mapping):
            raise TypeError(f"{where} is {value!r}")
        return _PARTS[where](**{key: _decode(item, key) for key, item in value.items()})
    return tuple(value) if isinstance(value, list) else value


def differences(one: Mapping[str, Any], other: Mapping[str, Any], path: str = "") -> list[str]:
    """Where two configurations differ: `epochs: 30 there, 10 here`."""
    found: list[str] = []
    for key in dict.fromkeys([*one, *other]):
        a, b = one.get(key), other.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{path}{key}.")
        elif a != b:
            found.append(f"{path}{key}: {json.dumps(a)} there, {json.dumps(b)} here")
    return found
