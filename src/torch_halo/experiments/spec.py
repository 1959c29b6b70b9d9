"""The experiments: the paper's tables and figures as data, networks, methods, sparsities and seeds."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch_halo.checks import Table, did_you_mean, number, whole
from torch_halo.experiments.grids import GRIDS, Grid
from torch_halo.experiments.presets import CONVOLUTIONS, DATA_KINDS, RATES, paper
from torch_halo.files import write_whole
from torch_halo.methods import METHODS
from torch_halo.training.config import Config
from torch_halo.training.schedules import Cosine, Schedule, Steps
from torch_halo.training.settings import Compute, Data, Model, Training

VALIDATION = 0.1  # of the training set, to choose settings on
SPARSITIES = (0.9, 0.95, 0.97, 0.98, 0.99)
CURVE = (0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99)
PLAIN = Config(training=Training(epochs=60, batch_size=64))  # for data that the paper does not have
LIKE = {"fashion-mnist": "mnist"}  # but for those that are trained like some that it has
MNIST_ROWS = ("dense", "random-init", "lottery", "l1", "sws", "halo")
CIFAR_ROWS = ("dense", "grasp", "random-init", "lottery", "dst", "l1", "mcp", "sws", "halo")
STRENGTH_ROWS = ("l1", "sws", "halo", "halo-profile")
SMALL_CIFAR_ROWS = ("dense", "lottery", "grasp", "dst", "gmp", "rigl", *STRENGTH_ROWS, "halo-target")
TARGET_ROWS = ("dense", "halo-target")
NOISE_ROWS = ("dense", "l1", "halo", "halo-target")
NOISES = (0.0, 0.2, 0.4, 0.7)


@dataclass(frozen=True)
class Subject:
    """A network on a data set, some of whose labels may be made wrong."""

    data: str
    model: Model
    noise: float = 0.0

    @property
    def name(self) -> str:
        """For people."""
        options = "".join(f" {key} {value:g}" for key, value in self._changed().items())
        noise = f", label noise {self.noise:g}" if self.noise else ""
        return f"{self.model.name}{options} on {self.data}{noise}"

    def _changed(self) -> dict[str, Any]:
        plain = Model(self.model.name).options
        return {key: value for key, value in self.model.options.items() if value != plain[key]}


@dataclass(frozen=True)
class Scale:
    """The networks there are, and what is run unless flags say otherwise."""

    subjects: tuple[Subject, ...]
    methods: tuple[str, ...]
    epochs: int
    seeds: int
    sparsities: tuple[float, ...] = SPARSITIES
    models: tuple[str, ...] = ()  # all, if none is named
    schedule: Schedule | None = None  # the paper's, if none is named, with its milestones where they fall
    channels_last: bool = False  # on a CPU convolutions then take two thirds of the time, or five sixths
    trial_epochs: int = 0  # of the runs on which settings are chosen; as many as the final ones have, if 0
    noises: tuple[float, ...] = (0.0,)  # shares of the training labels that are made wrong

    def names(self) -> tuple[str, ...]:
        """The networks' names."""
        return tuple(dict.fromkeys(subject.model.name for subject in self.subjects))


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    title: str
    scales: Mapping[str, Scale]
    is_grid: bool = False  # a row for each strength, instead of choosing one


def _subjects(data: tuple[str, ...], *models: Model) -> tuple[Subject, ...]:
    return tuple(Subject(name, model) for name in data for model in models)


_LENETS = _subjects(("mnist",), *(Model(name) for name in ("lenet-300-100", "lenet-5-caffe", "lenet-5")))
_FULL_CIFAR = _subjects(("cifar10", "cifar100"), Model("vgg16"), Model("resnet"))
_SMALL_CIFAR = _subjects(("cifar10",), Model("vgg16", {"width": 0.25}), Model("resnet", {"depth": 20}))
_FULL_VGG = _subjects(("cifar100",), Model("vgg16"))
_FIRST = ("lenet-300-100",)
_DIGITS = _subjects(("digits",), Model("lenet-300-100"))

EXPERIMENTS: Table[Experiment] = Table(
    "experiment",
    {
        "table1": Experiment(
            "Accuracy by sparsity on MNIST (the paper's table 1)",
            {
                "full": Scale(_LENETS, MNIST_ROWS, epochs=250, seeds=5),
                "small": Scale(_LENETS, MNIST_ROWS, epochs=10, seeds=3, models=_FIRST, schedule=Steps()),
            },
        ),
        "table2": Experiment(
            "Accuracy by sparsity on CIFAR (the paper's table 2)",
            {
                "full": Scale(_FULL_CIFAR, CIFAR_ROWS, epochs=160, seeds=5),
                "small": Scale(
                    _SMALL_CIFAR,
                    SMALL_CIFAR_ROWS,
                    epochs=15,
                    seeds=1,
                    sparsities=(0.95, 0.98),
                    models=("vgg16",),
                    schedule=Cosine(),
                    channels_last=True,
                    trial_epochs=6,
                ),
            },
        ),
        "target": Experiment(
            "HALO steered to a sparsity, with no other setting",
            {
                "full": Scale(_LENETS + _FULL_CIFAR, TARGET_ROWS, epochs=160, seeds=5, schedule=Cosine()),
                "small": Scale(
                    _LENETS,
                    TARGET_ROWS,
                    epochs=30,
                    seeds=3,
                    sparsities=(0.95, 0.98, 0.99),
                    models=_FIRST,
                    schedule=Cosine(),
                    channels_last=True,
                ),
            },
        ),
        "label-noise": Experiment(
            "Training with wrong labels: what is learned by heart (the paper, on overfitting)",
            {
                "full": Scale(_FULL_VGG, NOISE_ROWS, epochs=160, seeds=5, sparsities=(0.95,), noises=NOISES),
                "small": Scale(
                    _subjects(("mnist", "fashion-mnist"), Model("lenet-300-100"))
                    + _subjects(("cifar10",), Model("lenet-5-caffe")),
                    NOISE_ROWS,
                    epochs=100,
                    seeds=3,
                    sparsities=(0.95,),
                    models=_FIRST,
                    schedule=Cosine(),
                    channels_last=True,
                    trial_epochs=30,
                    noises=NOISES,
                ),
            },
        ),
        "time": Experiment(
            "Seconds an epoch, by penalty",
            {
                "full": Scale(_FULL_VGG, ("dense", "l1", "sws", "halo"), 1, seeds=1, sparsities=()),
                "small": Scale(
                    _subjects(("cifar10",), Model("vgg16", {"width": 0.25})),
                    ("dense", "l1", "sws", "halo"),
                    epochs=1,
                    seeds=1,
                    sparsities=(),
                    schedule=Steps(),
                ),
            },
        ),
        "sparsity-curve": Experiment(
            "Accuracy against sparsity",
            {
                "full": Scale(_FULL_VGG, CIFAR_ROWS, epochs=160, seeds=5, sparsities=CURVE),
                "small": Scale(_LENETS, ("dense", "l1", "sws", "halo"), 10, 3, CURVE, models=_FIRST, schedule=Steps()),
            },
        ),
        "strength-grid": Experiment(
            "Accuracy over a grid of strengths, ξ = ψ",
            {
                "full": Scale(_FULL_VGG, STRENGTH_ROWS, epochs=160, seeds=5),
                "small": Scale(_LENETS, STRENGTH_ROWS, 30, 1, sparsities=(0.95,), models=_FIRST, schedule=Cosine()),
            },
            is_grid=True,
        ),
        "digits": Experiment(
            "Every method on scikit-learn's digits: needs no download, and minutes",
            {
                "full": Scale(_DIGITS, tuple(METHODS), epochs=60, seeds=5),
                "small": Scale(_DIGITS, tuple(METHODS), 20, seeds=1, sparsities=(0.9, 0.95), schedule=Steps()),
            },
        ),
    },
)
SCALES: Table[None] = Table("scale", {"full": None, "small": None})


@dataclass(frozen=True)
class Row:
    """A method on a network, with the settings to choose from."""

    subject: Subject
    method: str
    label: str
    grid: Grid


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
            data = LIKE.get(subject.data, subject.data)
            grids = GRIDS[DATA_KINDS.get(data, data), self.scale]
            for name in self.methods:
                whole_grid = Row(subject, name, name, grids[name])
                found += _one_by_one(whole_grid) if self.experiment.is_grid else [whole_grid]
        return found

    def setup(self, subject: Subject, *, seed: int, is_trial: bool = False) -> Config:
        """The settings of a plain training: the paper's, but for what the scale has of its own."""
        scale, epochs = self.experiment.scales[self.scale], self.trial_epochs if is_trial else self.epochs
        data = LIKE.get(subject.data, subject.data)
        base = paper(data, subject.model.name, None) if data in DATA_KINDS else PLAIN
        return replace(
            base,
            data=Data(subject.data, validation=VALIDATION if is_trial else 0.0, label_noise=subject.noise),
            model=subject.model,
            optimizer=replace(base.optimizer, lr=RATES.get(subject.model.name, base.optimizer.lr)),
            schedule=scale.schedule or base.schedule.stretched(epochs / base.training.epochs),
            compute=Compute(channels_last=scale.channels_last and subject.model.name in CONVOLUTIONS),
            training=Training(
                epochs=epochs,
                batch_size=base.training.batch_size,
                seed=seed,
                sample_losses=subject.noise > 0 and not is_trial,  # by which wrong labels are found
            ),
        )

    def save(self, store: Path) -> None:
        """Remember what was asked for, to be shown without saying it again."""
        path = _path(self, store)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(asdict(self), indent=1) + "\n")


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
