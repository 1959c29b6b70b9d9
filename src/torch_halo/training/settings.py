"""The settings of a run, part by part."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from torch_halo.checks import Table, did_you_mean, number, whole
from torch_halo.data import DATASETS
from torch_halo.models import MODELS
from torch_halo.penalties.base import LATER
from torch_halo.pruning import SCOPES


@dataclass(frozen=True)
class Data:
    """What is trained on."""

    name: str = "digits"
    validation: Annotated[float, "share of the training set held out to choose settings on"] = 0.0
    label_noise: Annotated[float, "probability with which a training label becomes another"] = 0.0
    data_seed: Annotated[int, "of the held-out share and of the noise"] = 0

    def __post_init__(self) -> None:
        DATASETS[self.name]
        object.__setattr__(self, "validation", number("validation", self.validation, at_least=0, below=1))
        noise = number("label_noise", self.label_noise, at_least=0)
        if noise > 1:
            raise ValueError(f"label_noise must be a probability, from 0 to 1; received {noise:g}")
        object.__setattr__(self, "label_noise", noise)
        whole("data_seed", self.data_seed, at_least=0)


@dataclass(frozen=True)
class Model:
    """The network: its name, and the options of its function."""

    name: str = "lenet-300-100"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = model_options(self.name)
        for name in self.options:
            if name not in known:
                there = f"it has {', '.join(known)}" if known else "it has none"
                raise ValueError(f"{self.name} has no option {name!r}; {there}{did_you_mean(name, known)}")
        object.__setattr__(self, "options", {**known, **self.options})


@dataclass(frozen=True)
class Shrinking:
    """How the penalty is attached."""

    select: Annotated[tuple[str, ...] | None, "which layers are shrunk and pruned, e.g. '!classifier' (all)"] = None
    biases: Annotated[bool, "shrink those layers' biases too (they are never pruned)"] = False
    coefficient_lr: Annotated[float | None, "λ's learning rate at the start (the weights' for SGD, else 0.1)"] = None
    coefficient_weight_decay: Annotated[float | None, "λ's weight decay (the weights' for SGD, else 5e-4)"] = None
    ramp_steps: Annotated[int, "steps over which the strength grows to its full value"] = 0
    until_step: Annotated[int | None, "the step from which the penalty acts no more (never)"] = None
    target_sparsity: Annotated[float | None, "train towards so many zeros (--sparsity, where --xi is not given)"] = (
        field(default=None, metadata=LATER)
    )
    freeze: Annotated[bool, "hold the zeros for the last third of the training, without a penalty (yes)"] = field(
        default=True, metadata=LATER
    )

    def __post_init__(self) -> None:
        if self.select is not None and not self.select:
            raise ValueError("select must name at least one layer; received none")
        object.__setattr__(self, "select", None if self.select is None else tuple(self.select))
        for name in ("coefficient_lr", "coefficient_weight_decay"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, number(name, getattr(self, name), at_least=0))
        if self.target_sparsity is not None:
            target = number("target_sparsity", self.target_sparsity, above=0, below=1)
            object.__setattr__(self, "target_sparsity", target)
        whole("ramp_steps", self.ramp_steps, at_least=0)
        if self.until_step is not None:
            whole("until_step", self.until_step, at_least=0)


@dataclass(frozen=True)
class Training:
    """How long, in what portions, from which seed."""

    epochs: Annotated[int, "passes over the training set"] = 30
    batch_size: Annotated[int, "samples a step, over all processes"] = 100
    seed: Annotated[int, "of the initial weights, the order and the augmentation"] = 0
    sample_losses: Annotated[bool, "store each training sample's loss, epoch by epoch"] = False
    weights: str | None = None  # the checksum of a file to start from
    masks: str | None = None  # the checksum of a file whose zeros are held

    def __post_init__(self) -> None:
        whole("epochs", self.epochs, at_least=0)
        whole("batch_size", self.batch_size, at_least=1)
        whole("seed", self.seed, at_least=0)


@dataclass(frozen=True)
class Pruning:
    """What is cut when training is over."""

    sparsity: Annotated[tuple[float, ...], "prune to these at the end; the first becomes pruned.safetensors"] = ()
    scope: Annotated[Literal["global", "layer"], "one threshold for all layers, or one for each"] = "global"
    of: Annotated[Literal["all", "nonzero"], "sparsity is a share of all weights, or cuts a share of the non-zero"] = (
        "all"
    )

    def __post_init__(self) -> None:
        levels = tuple(number("sparsity", level, at_least=0, below=1) for level in self.sparsity)
        object.__setattr__(self, "sparsity", levels)
        SCOPES[self.scope]
        if self.of not in ("all", "nonzero"):
            raise ValueError(f"of must be all or nonzero; received {self.of!r}")


def _names(kind: str, *names: str) -> Table[None]:
    return Table(kind, dict.fromkeys(names))


ACCELERATORS = _names("accelerator", "auto", "cpu", "cuda", "mps")
STRATEGIES = _names("strategy", "auto", "ddp", "fsdp")
PRECISIONS = _names("precision", "32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true")


@dataclass(frozen=True)
class Compute:
    """Where it runs, in the words of lightning-fabric."""

    accelerator: Annotated[str, "cpu, cuda, mps or auto"] = "auto"
    devices: Annotated[int, "processes on each node"] = 1
    nodes: Annotated[int, "machines; each needs MASTER_ADDR, MASTER_PORT and NODE_RANK, as torchrun sets"] = 1
    strategy: Annotated[Literal["auto", "ddp", "fsdp"], "one process; copies; or shards of the model"] = "auto"
    precision: Annotated[str, "32-true, bf16-mixed, 16-mixed, bf16-true, 64-true"] = "32-true"
    channels_last: Annotated[bool, "keep images with their channels together: faster convolutions, mostly"] = field(
        default=False, metadata=LATER
    )

    def __post_init__(self) -> None:
        whole("devices", self.devices, at_least=1)
        whole("nodes", self.nodes, at_least=1)
        PRECISIONS[self.precision]
        STRATEGIES[self.strategy]
        ACCELERATORS[self.accelerator]
        if self.strategy == "auto" and self.devices * self.nodes > 1:
            object.__setattr__(self, "strategy", "ddp")


def model_options(name: str) -> dict[str, Any]:
    """The options of a model's function, with their defaults."""
    parameters = inspect.signature(MODELS[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
