"""The settings of a run as flags: which there are depends on what is chosen."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch_halo.checks import Table
from torch_halo.cli.flags import NESTED, Part, part_of
from torch_halo.data import DATASETS
from torch_halo.experiments.presets import PRESETS
from torch_halo.models import MODELS
from torch_halo.penalties import PENALTIES, Penalty, WeightedL1
from torch_halo.training.config import Config
from torch_halo.training.optimizers import OPTIMIZERS
from torch_halo.training.schedules import SCHEDULES
from torch_halo.training.settings import Compute, Data, Model, Pruning, Shrinking, Training

TABLES: dict[str, Table[Any]] = {
    "data": DATASETS,
    "model": MODELS,
    "penalty": PENALTIES,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "preset": PRESETS,
    **NESTED,
}
TITLES = {
    "data": "the data",
    "model": "the network",
    "penalty": "the penalty",
    "shrinking": "how it is attached",
    "optimizer": "the optimizer",
    "schedule": "the learning rate",
    "training": "the training",
    "pruning": "what is cut at the end",
    "compute": "where it runs",
}


class Form:
    """The flags that fit the choices made in `arguments`."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.choices, is_steered = _choices(arguments)
        self.base = base = self._base()
        penalty = self.choices["penalty"] or ("halo" if is_steered else None)
        self.parts: dict[str, Part] = {
            "data": part_of(Data, self.choices, base.data),
            "model": part_of(MODELS[self.choices["model"] or base.model.name], self.choices),
            **({"penalty": self._part("penalty", PENALTIES[penalty])} if penalty else {}),
            "shrinking": part_of(Shrinking, self.choices, base.shrinking),
            "optimizer": self._part("optimizer", OPTIMIZERS[self.choices["optimizer"] or "sgd"]),
            "schedule": self._part("schedule", SCHEDULES[self.choices["schedule"] or "steps"]),
            "training": part_of(Training, self.choices, base.training),
            "pruning": part_of(Pruning, self.choices, base.pruning),
            "compute": part_of(Compute, self.choices, base.compute),
        }

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add all flags, in groups."""
        for key, title in TITLES.items():
            group = parser.add_argument_group(title)
            if key in TABLES:
                _add_choice(group, key, self._default(key))
            if key not in self.parts:
                group.description = "choose one to see its own flags: halo train --penalty halo --help"
                continue
            part = self.parts[key]
            for nested, chosen in _nested(part):
                _add_choice(group, nested, chosen)
            for flag, default in part.all_flags():
                if flag.name not in ("name", "weights", "masks"):  # chosen above, or files
                    flag.add_to(group, default)

    def config(self, given: Mapping[str, Any], **files: str | None) -> Config:
        """The settings, from what was given."""
        named = {**given, "name": self.choices["data"] or self.base.data.name}
        model = {flag.name: given[flag.name] for flag in self.parts["model"].flags if flag.name in given}
        built = {key: part.build(named) for key, part in self.parts.items() if key not in ("model", "training")}
        if _is_steered(built.get("penalty"), built["shrinking"]):
            built |= _targeted(built.get("penalty"), built["shrinking"], built["pruning"])
        return Config(
            model=Model(self.choices["model"] or self.base.model.name, model),
            training=self.parts["training"].build({**given, **files}),
            **built,
        )

    def _base(self) -> Config:
        data, model = self.choices["data"] or Data().name, self.choices["model"] or Model().name
        DATASETS[data], MODELS[model]
        preset = self.choices["preset"]
        return PRESETS[preset](data, model, self.choices["penalty"]) if preset else Config()

    def _part(self, key: str, kind: type) -> Part:
        base = getattr(self.base, key)
        return part_of(kind, self.choices, base if type(base) is kind else None)

    def _default(self, key: str) -> str:
        if key in ("data", "model"):
            return str(getattr(self.base, key).name)
        usual = {"penalty": "none; halo, where --sparsity alone is given", "optimizer": "sgd", "schedule": "steps"}
        return self.choices[key] or usual[key]


def _is_steered(penalty: Penalty | None, shrinking: Shrinking) -> bool:
    """Whether the strength is left to a target sparsity."""
    return getattr(penalty, "xi", None) == "auto" or shrinking.target_sparsity is not None


def _targeted(penalty: Penalty | None, shrinking: Shrinking, pruning: Pruning) -> dict[str, Any]:
    """Train towards the sparsity that is asked for, and prune to it: to that many zeros of all weights."""
    target, levels = shrinking.target_sparsity, pruning.sparsity
    if penalty is None:
        raise ValueError(f"--target-sparsity {target:g} needs a penalty; received --penalty none")
    if target is None and (len(levels) != 1 or levels[0] == 0):
        received = " ".join(f"{level:g}" for level in levels) or "none"
        raise ValueError(
            f"--xi is needed: the strength ξ; or one --sparsity above 0 to train towards (received {received}); "
            "--penalty none trains a dense network"
        )
    target = levels[0] if target is None else target
    return {
        "shrinking": replace(shrinking, target_sparsity=target),
        "pruning": replace(pruning, sparsity=levels or (target,), scope="global", of="all"),
    }


def _choices(arguments: Sequence[str]) -> tuple[dict[str, str | None], bool]:
    """What is chosen of each table; and whether a sparsity without a strength means HALO, steered, under a cosine."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for key in TABLES:
        parser.add_argument(f"--{key}", nargs="?")
    for flag in ("--sparsity", "--target-sparsity", "--xi"):
        parser.add_argument(flag, nargs="*")
    found = vars(parser.parse_known_args(arguments)[0])
    levels, target, xi = (found.pop(name) for name in ("sparsity", "target_sparsity", "xi"))
    is_open = levels and not xi and found["penalty"] in (None, "halo")
    is_steered = found["penalty"] != "none" and bool(target is not None or is_open)
    if is_steered and not found["preset"]:
        found["schedule"] = found["schedule"] or "cosine"
    found["penalty"] = None if found["penalty"] == "none" else found["penalty"]
    return found, is_steered


def _add_choice(group: argparse._ArgumentGroup, key: str, default: str | None) -> None:
    names = [name for name, kind in TABLES[key].items() if kind is not WeightedL1]  # which takes tensors
    names = ["none", *names] if key == "penalty" else names
    shown = ", ".join(names) + (f" ({default})" if default else "")
    group.add_argument(f"--{key}", metavar="NAME", default=argparse.SUPPRESS, help=shown)


def _nested(part: Part) -> list[tuple[str, str]]:
    """The choices within a part, with what is chosen."""
    names = {kind: name for table in NESTED.values() for name, kind in table.items()}
    own = [(key, names[nested.make]) for key, nested in part.nested.items()]
    return own + [pair for nested in part.nested.values() for pair in _nested(nested)]
