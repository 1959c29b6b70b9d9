"""What pruning costs: a trained network's figures at a sparsity, and after batch norm is recalibrated."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from torch_halo.data import DataSet, batches
from torch_halo.figures import Sparsity, sparsity
from torch_halo.pruning import prune_
from torch_halo.recalibration import recalibrate_
from torch_halo.training.config import Config
from torch_halo.training.evaluation import Figures, as_data
from torch_halo.weights import gathered

RECALIBRATION_BATCHES = 100
Measure = Callable[[], dict[str, Figures | None]]  # figures by split


@dataclass(frozen=True)
class Pruned:
    """A network at one sparsity: what was cut, its figures by split, its weights; and recalibrated, if it can be."""

    asked: float
    cut: Sparsity
    figures: dict[str, Figures | None]
    state: dict[str, Tensor]
    recalibrated: dict[str, Figures | None] | None
    recalibrated_state: dict[str, Tensor] | None

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain data."""
        return {
            "asked": self.asked,
            **self.cut.as_dict(),
            **as_data(self.figures),
            "recalibrated": None if self.recalibrated is None else as_data(self.recalibrated),
        }


def pruned(module: nn.Module, level: float, config: Config, data: DataSet, measure: Measure) -> Pruned:
    """Prune a network, measure it, and leave it as it was."""
    settings, select = config.pruning, config.shrinking.select
    with _unchanged(module):
        before = sparsity(module, select=select).sparsity
        share = level if settings.of == "all" else before + level * (1 - before)
        prune_(module, sparsity=share, scope=settings.scope, select=select)
        cut, figures, state = sparsity(module, select=select), measure(), whole_state(module)
        again, again_state = None, None
        if any(isinstance(layer, _BatchNorm) for layer in module.modules()):
            recalibrate_(module, calibration_inputs(module, config, data))
            again, again_state = measure(), whole_state(module)
    return Pruned(level, cut, figures, state, again, again_state)


def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """A copy of the model's state dict, gathered from all shards."""
    return {name: gathered(value).detach().clone() for name, value in module.state_dict().items()}


def calibration_inputs(module: nn.Module, config: Config, data: DataSet) -> Iterator[Tensor]:
    """Batches as in training, to recalibrate on; all processes take the same ones, and so get the same statistics."""
    training, dtype = config.training, next(module.parameters()).dtype
    found = batches(data, data.train, training.batch_size, seed=training.seed, epoch=training.epochs)
    return (inputs.to(dtype) for inputs, _, _ in islice(found, RECALIBRATION_BATCHES))


@contextmanager
def _unchanged(module: nn.Module) -> Iterator[None]:
    before = {name: value.detach().clone() for name, value in module.state_dict().items()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, value in module.state_dict().items():
                value.copy_(before[name])
