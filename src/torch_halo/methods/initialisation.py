"""Pruning at initialisation: one look at the gradients, then training with the mask."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from torch_halo.checks import whole
from torch_halo.data import DataSet
from torch_halo.methods.base import Method, State, target_of
from torch_halo.methods.scores import class_batch, grasp, keep_largest, snip
from torch_halo.training.config import Config
from torch_halo.training.sparsifier import Sparsifier


@dataclass(frozen=True)
class AtInitialisation(Method):
    """Score each weight before any training, keep the best over all layers, train those."""

    per_class: int = 10  # samples of each class to score with

    score: ClassVar[Callable[..., dict[str, Tensor]]]

    def __post_init__(self) -> None:
        whole("per_class", self.per_class, at_least=1)

    def begin(self, network: nn.Module, data: DataSet, config: Config, before: State | None) -> Sparsifier:
        inputs, labels = class_batch(data, self.per_class, seed=config.training.seed)
        scored = copy.deepcopy(network).train()  # whose batch norm may see these samples
        self.prepare(scored, config.training.seed)
        scores = type(self).score(scored, inputs, labels, select=config.shrinking.select)
        return Sparsifier(keep_largest(scores, target_of(config)))

    def prepare(self, scored: nn.Module, seed: int) -> None:
        """Make the copy that is scored ready for it."""


@dataclass(frozen=True)
class SNIP(AtInitialisation):
    """Lee, Ajanthan, Torr, "SNIP: single-shot network pruning based on connection sensitivity", ICLR 2019."""

    kind: ClassVar[str] = "snip"
    score = staticmethod(snip)


@dataclass(frozen=True)
class GraSP(AtInitialisation):
    """Wang, Zhang, Grosse, "Picking winning tickets before training by preserving gradient flow", ICLR 2020.

    As in its authors' code, linear layers are scored with values drawn anew by Xavier's rule.
    """

    kind: ClassVar[str] = "grasp"
    score = staticmethod(grasp)

    def prepare(self, scored: nn.Module, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for layer in scored.modules():
            if isinstance(layer, nn.Linear):
                values = nn.init.xavier_normal_(torch.empty(layer.weight.shape), generator=generator)
                layer.weight.data.copy_(values)
