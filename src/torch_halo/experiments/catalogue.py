"""The experiments there are: the paper's tables and figures as data, networks, methods, sparsities and seeds."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch_halo.checks import Table
from torch_halo.methods import METHODS
from torch_halo.training.schedules import Cosine, Schedule, Steps
from torch_halo.training.settings import Model

SPARSITIES = (0.9, 0.95, 0.97, 0.98, 0.99)
CURVE = (0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99)
MNIST_ROWS = ("dense", "random-init", "lottery", "l1", "sws", "halo")
CIFAR_ROWS = ("dense", "grasp", "random-init", "lottery", "dst", "l1", "mcp", "sws", "halo")
STRENGTH_ROWS = ("l1", "sws", "halo", "halo-profile")
SMALL_CIFAR_ROWS = ("dense", "lottery", "grasp", "dst", "gmp", "rigl", *STRENGTH_ROWS, "halo-target")
TIMED_ROWS = ("dense", *STRENGTH_ROWS)
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
    weight_decay: float | None = None  # the paper's for the data, if none is named
    channels_last: bool = False  # on a CPU convolutions then take two thirds of the time, or five sixths
    trial_epochs: int = 0  # of the runs on which settings are chosen; as many as the final ones have, if 0
    noises: tuple[float, ...] = (0.0,)  # shares of the training labels that are made wrong
    timed: float = 1.0  # share of an epoch that `time` trains with each method
    once: tuple[str, ...] = ()  # methods that train many times: one seed, at the first sparsity

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
_SMALL_MNIST = Scale(
    _LENETS,
    TARGET_ROWS,
    epochs=30,
    seeds=3,
    sparsities=(0.95, 0.98, 0.99),
    models=_FIRST,
    schedule=Cosine(),
    channels_last=True,
)

EXPERIMENTS: Table[Experiment] = Table(
    "experiment",
    {
        "table1": Experiment(
            "Accuracy by sparsity on MNIST (the paper's table 1)",
            {
                "full": Scale(_LENETS, MNIST_ROWS, epochs=250, seeds=5),
                "small": replace(_SMALL_MNIST, methods=tuple(METHODS), once=("lottery-iterative",)),
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
                "small": _SMALL_MNIST,
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
                    weight_decay=1e-4,  # the paper's, of this experiment; MNIST's is five times it
                    channels_last=True,
                    trial_epochs=30,
                    noises=NOISES,
                ),
            },
        ),
        "time": Experiment(
            "Seconds an epoch, by penalty",
            {
                "full": Scale(_FULL_VGG, TIMED_ROWS, epochs=1, seeds=1, sparsities=()),
                "small": Scale(
                    _FULL_CIFAR[:2],
                    TIMED_ROWS,
                    epochs=1,
                    seeds=1,
                    sparsities=(),
                    schedule=Steps(),
                    channels_last=True,
                    timed=0.1,
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
