"""One experiment as it was asked for: its rows, its trainings' settings, and how it is remembered."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch_halo.checks import did_you_mean, number, whole
from torch_halo.experiments.catalogue import EXPERIMENTS, SCALES, Experiment, Subject
from torch_halo.experiments.grids import Grid, grids_of
from torch_halo.experiments.presets import CONVOLUTIONS, DATA_KINDS, RATES, paper
from torch_halo.files import write_whole
from torch_halo.methods import METHODS
from torch_halo.training.config import Config
from torch_halo.training.settings import Compute, Data, Training

VALIDATION = 0.1  # of the training set, to choose settings on
PLAIN = Config(training=Training(epochs=60, batch_size=64))  # for data that the paper does not have
LIKE = {"fashion-mnist": "mnist"}  # but for those that are trained like some that it has


@dataclass(frozen=True)
class Row:
    """A method on a network, with the settings to choose from, and how much of it is run."""

    subject: Subject
    method: str
    label: str
    grid: Grid
    seeds: int
    sparsities: tuple[float, ...]


@dataclass(frozen=True)
class Spec:
    """One experiment as it was asked for."""

    name: str
    scale: str = "small"
    models: tuple[str, ...] = ()  # all of the scale's, if none is named
    methods: tuple[str, ...] = ()
    sparsities: tuple[float, ...] = ()
    seeds: int = 0
    epochs: int = 0
    trial_epochs: int = 0
    label_noise: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        SCALES[self.scale]
        scale = EXPERIMENTS[self.name].scales[self.scale]
        models, known = self.models or scale.models or scale.names(), scale.names()
        for name in models:
            if name not in known:
                there = f"it has {', '.join(known)}{did_you_mean(name, known)}"
                raise ValueError(f"{self.name} has no model {name!r}; {there}")
        methods = self.methods or scale.methods
        for name in methods:
            METHODS[name]
        levels = self.sparsities or scale.sparsities
        checked = tuple(sorted({number("sparsities", level, above=0, below=1) for level in levels}))
        noises = tuple(number("label_noise", noise, at_least=0, below=1) for noise in self.label_noise or scale.noises)
        given = {"models": models, "methods": methods, "sparsities": checked, "label_noise": noises}
        for key, value in given.items():
            object.__setattr__(self, key, tuple(dict.fromkeys(value)))
        for key in ("seeds", "epochs"):
            object.__setattr__(self, key, whole(key, getattr(self, key) or getattr(scale, key), at_least=1))
        # A shorter training than the scale's has no longer trials.
        trial = whole("trial_epochs", self.trial_epochs or scale.trial_epochs or self.epochs, at_least=1)
        object.__setattr__(self, "trial_epochs", trial if self.trial_epochs else min(trial, self.epochs))

    @property
    def experiment(self) -> Experiment:
        """What it is one of."""
        return EXPERIMENTS[self.name]

    def subjects(self) -> list[Subject]:
        """The networks that are named, with each share of wrong labels."""
        there = [s for s in self.experiment.scales[self.scale].subjects if s.model.name in self.models]
        return [replace(subject, noise=noise) for subject in there for noise in self.label_noise]

    def rows(self) -> list[Row]:
        """The table's rows."""
        found = []
        for subject in self.subjects():
            data = _like(subject)
            grids = grids_of(DATA_KINDS.get(data, data), self.scale, subject.model.name)
            for name in self.methods:
                whole_grid = Row(subject, name, name, grids[name], *self._extent(name))
                found += _one_by_one(whole_grid) if self.experiment.is_grid else [whole_grid]
        return found

    def _extent(self, method: str) -> tuple[int, tuple[float, ...]]:
        """A method's seeds and sparsities."""
        is_once = method in self.experiment.scales[self.scale].once
        return (1, self.sparsities[:1]) if is_once else (self.seeds, self.sparsities)

    def setup(self, subject: Subject, *, seed: int, is_trial: bool = False) -> Config:
        """The settings of a plain training: the paper's, but for what the scale has of its own."""
        scale, epochs = self.experiment.scales[self.scale], self.trial_epochs if is_trial else self.epochs
        data = _like(subject)
        base = paper(data, subject.model.name, None) if data in DATA_KINDS else PLAIN
        decay = base.optimizer.weight_decay if scale.weight_decay is None else scale.weight_decay
        rate = RATES.get(subject.model.name, base.optimizer.lr)
        return replace(
            base,
            data=Data(subject.data, validation=VALIDATION if is_trial else 0.0, label_noise=subject.noise),
            model=subject.model,
            optimizer=replace(base.optimizer, lr=rate, weight_decay=decay),
            schedule=scale.schedule or base.schedule.stretched(epochs / base.training.epochs),
            compute=Compute(channels_last=scale.channels_last and subject.model.name in CONVOLUTIONS),
            training=Training(
                epochs=epochs,
                batch_size=base.training.batch_size,
                seed=seed,
                sample_losses=subject.noise > 0 and not is_trial,  # by which wrong labels are found
            ),
        )

    @property
    def command(self) -> str:
        """What asks for it, with the flags that are not as usual."""
        trials = Spec(self.name, self.scale, epochs=self.epochs).trial_epochs  # which go by the epochs
        usual = asdict(Spec(self.name, self.scale)) | {"scale": Spec.scale, "trial_epochs": trials}
        flags = [_flag(key, value) for key, value in asdict(self).items() if value != usual[key]]
        return " ".join(["halo experiment", self.name, *flags])

    def save(self, store: Path) -> None:
        """Remember what was asked for, to be shown without saying it again."""
        path = _path(self, store)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(asdict(self), indent=1) + "\n")


def _flag(key: str, value: Any) -> str:
    values = value if isinstance(value, tuple) else (value,)
    return " ".join([f"--{key.replace('_', '-')}", *map(str, values)])


def _like(subject: Subject) -> str:
    """The data set as which its own is trained."""
    return LIKE.get(subject.data, subject.data)


def _path(spec: Spec, store: Path) -> Path:
    return store / "experiments" / f"{'-'.join([spec.name, spec.scale, *spec.models])}.json"


def note_path(spec: Spec, store: Path) -> Path:
    """Where somebody may say in Markdown what an experiment's tables show."""
    return _path(spec, store).with_suffix(".md")


def _one_by_one(row: Row) -> list[Row]:
    return [replace(row, label=f"{row.method} {describe(method)}", grid=(method,)) for method in row.grid]


def describe(method: object) -> str:
    """A method's settings, those that are not as usual."""
    found: dict[str, Any] = {}
    for key, value in vars(method).items():
        if key == "penalty":
            found |= {name: getattr(value, name) for name in ("xi", "gamma", "a") if hasattr(value, name)}
        elif key != "dense_epochs" and value is not None and value != getattr(type(method), key, None):
            found[key] = value
    return " ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in found.items()
    )


def saved_specs(store: Path) -> list[Spec]:
    """The experiments that a store remembers, for each choice of networks the last one; in the table's order."""
    found = [read_spec(path) for path in sorted((store / "experiments").glob("*.json"))]
    names, scales = list(EXPERIMENTS), list(SCALES)
    return sorted(found, key=lambda spec: (names.index(spec.name), scales.index(spec.scale), spec.models))


def read_spec(path: Path) -> Spec:
    """An experiment as it was asked for."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        given: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in found.items()}
        return Spec(**given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected an experiment as it was asked for ({error})") from error
