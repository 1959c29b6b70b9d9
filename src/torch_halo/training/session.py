"""A training under way: model, optimizer, penalty, data, and how far it has come."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torch_halo.data import DataSet, batches, load
from torch_halo.hooks import base_optimizer
from torch_halo.masks import Masks
from torch_halo.models import MODELS, read_weights
from torch_halo.penalties import Penalty
from torch_halo.selection import Select, select_weights
from torch_halo.shrinkage import Shrinkage
from torch_halo.training.config import Config
from torch_halo.training.evaluation import zeros
from torch_halo.training.schedules import Factor
from torch_halo.training.settings import Data
from torch_halo.training.sparsifier import Begin, Sparsifier
from torch_halo.weights import local

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from lightning_fabric.wrappers import _FabricModule, _FabricOptimizer


@dataclass
class Progress:
    """How far the training is, and what this epoch has summed up so far."""

    loss: Tensor
    correct: Tensor
    epoch: int = 0
    position: int = 0  # batches of this epoch that are done
    seconds: float = 0.0  # in this epoch's steps
    count: int = 0  # samples, on this process
    losses: Tensor | None = None  # of each training sample; −1 where it was not seen

    @property
    def sums(self) -> Tensor:
        """Losses, correct answers and samples of this epoch, on this process."""
        return torch.stack([self.loss, self.correct.to(self.loss), self.loss.new_tensor(self.count)])

    def next_epoch(self) -> None:
        """Begin anew."""
        self.epoch, self.position, self.seconds, self.count = self.epoch + 1, 0, 0.0, 0
        self.loss.zero_()
        self.correct.zero_()
        if self.losses is not None:
            self.losses.fill_(-1)


@dataclass
class Session:
    """All that the loop works on; `model` is fabric's wrapper, `module` the network itself."""

    fabric: "Fabric"
    config: Config
    data: DataSet
    model: "_FabricModule"
    optimizer: "_FabricOptimizer"
    shrink: Shrinkage | None
    sparsifier: Sparsifier
    lr: Factor
    per_epoch: int
    progress: Progress
    masks: Masks | None = None
    _held: RemovableHandle | None = field(default=None, repr=False)

    @property
    def module(self) -> nn.Module:
        """The network, with its own names."""
        return self.model.module

    @property
    def torch_optimizer(self) -> Optimizer:
        """The optimizer inside fabric's wrapper."""
        return base_optimizer(self.optimizer)

    def share_buffers(self) -> None:
        """Let all processes have the first one's batch-norm statistics, as DDP does by itself."""
        for buffer in self.module.buffers() if self.fabric.world_size > 1 else ():
            dist.broadcast(local(buffer), src=0)

    @property
    def step(self) -> int:
        """How many steps are done."""
        return self.progress.epoch * self.per_epoch + self.progress.position

    @property
    def where(self) -> str:
        """How far it is, in words."""
        lr = self.torch_optimizer.param_groups[0]["lr"]
        return f"step {self.step} (epoch {self.progress.epoch + 1}), learning rate {lr:g}"

    @property
    def total(self) -> int:
        """How many steps there are."""
        return self.config.training.epochs * self.per_epoch

    def hold(self, masks: Masks) -> None:
        """Set to zero what the masks cut and keep it so, instead of what was cut before."""
        if self._held is not None:
            self._held.remove()
        self.masks = masks.apply_(self.module)
        self._held = masks.hold(self.torch_optimizer)

    def batches(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """This process's part of what is left of the epoch."""
        settings, fabric = self.config.training, self.fabric
        return batches(
            self.data,
            self.data.train,
            settings.batch_size,
            seed=settings.seed,
            epoch=self.progress.epoch,
            start=self.progress.position,
            rank=fabric.global_rank,
            world=fabric.world_size,
        )


def load_data(settings: Data, root: Path | None) -> DataSet:
    """The data set that the settings name, from the files under `root`."""
    return load(
        settings.name,
        root=root,
        validation=settings.validation,
        label_noise=settings.label_noise,
        seed=settings.data_seed,
    )


def initial_network(config: Config, data: DataSet) -> nn.Module:
    """The network before any training."""
    torch.manual_seed(config.training.seed)
    return MODELS[config.model.name](data.input_shape, data.classes, **config.model.options)


def start(
    config: Config, fabric: "Fabric", data: DataSet, network: nn.Module, begin: Begin | None, masks: Path | None = None
) -> Session:
    """A training of a network at its beginning, the same on all processes.

    `begin` is what the method does first, `masks` a file whose zeros are held.
    """
    settings, world = config.training, fabric.world_size
    if len(data.train.labels) < world:
        raise ValueError(f"{len(data.train.labels)} training samples are not enough for {world} processes")
    torch.manual_seed(settings.seed)
    select_weights(network, config.shrinking.select)  # which must name some, even if nothing shrinks them
    data = data.to(fabric.device)
    sparsifier = Sparsifier() if begin is None else begin(network.to(fabric.device), data)
    if masks is not None:
        sparsifier.masks = _zeros_of(masks, network, config.shrinking.select)
    if config.compute.channels_last:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch lacks it
    model = fabric.setup_module(network)
    optimizer = config.optimizer.build(model.parameters())
    per_epoch = -(-(len(data.train.labels) // world * world) // settings.batch_size)
    span = per_epoch, per_epoch * settings.epochs
    progress = Progress(
        loss=zeros(fabric.device),
        correct=torch.zeros((), dtype=torch.int64, device=fabric.device),
        losses=torch.full((len(data.train.labels),), -1.0, device=fabric.device) if settings.sample_losses else None,
    )
    shrink = None if config.penalty is None else _attached(config, config.penalty, model.module, optimizer, span)
    session = Session(
        fabric=fabric,
        config=config,
        data=data,
        model=model,
        optimizer=cast("_FabricOptimizer", fabric.setup_optimizers(optimizer)),
        shrink=shrink,
        sparsifier=sparsifier,
        lr=config.schedule.factor(*span),
        per_epoch=per_epoch,
        progress=progress,
    )
    if sparsifier.masks is not None:
        session.hold(sparsifier.masks)
    return session


def _attached(
    config: Config, penalty: Penalty, module: nn.Module, optimizer: Optimizer, span: tuple[int, int]
) -> Shrinkage:
    how = config.shrinking
    return Shrinkage(
        module,
        penalty,
        optimizer,
        select=_with_biases(module, how.select) if how.biases else how.select,
        coefficient_lr=how.coefficient_lr,
        coefficient_weight_decay=how.coefficient_weight_decay,
        coefficient_schedule=config.schedule.coefficient_factor(*span),
        ramp_steps=how.ramp_steps or None,
        until_step=how.until_step,
        target_sparsity=how.target_sparsity,
        total_steps=max(span[1], 1),
        freeze=how.freeze,
    )


def _with_biases(module: nn.Module, select: Select) -> Select:
    names = {weight.name for weight in select_weights(module, select)}
    names |= {name.removesuffix("weight") + "bias" for name in names}
    return lambda name, parameter: name in names


def _zeros_of(path: Path, module: nn.Module, select: Select) -> Masks:
    """The zeros of a file's weights, as masks."""
    weights, found = read_weights(path), {}
    for weight in select_weights(module, select):
        if weight.name not in weights:
            raise ValueError(f"{path} has no {weight.name} to take a mask from; it has: {', '.join(weights)}")
        found[weight.name] = weights[weight.name] != 0
    return Masks(found)
