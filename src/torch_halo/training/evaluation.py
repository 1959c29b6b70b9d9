"""How good a network is: its loss and accuracy on a split."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_halo.data import DataSet, Split

if TYPE_CHECKING:
    from lightning_fabric import Fabric

BATCH = 1000


class Figures(NamedTuple):
    """Mean loss, and accuracy in percent."""

    loss: float
    accuracy: float


@torch.no_grad()
def evaluate(model: nn.Module, data: DataSet, split: Split, fabric: "Fabric | None" = None) -> Figures | None:
    """The model's figures on a split, of which each process takes a part; None if it is empty."""
    if len(split.labels) == 0:
        return None
    rank, world = (fabric.global_rank, fabric.world_size) if fabric else (0, 1)
    sums = torch.zeros(3, dtype=torch.float64, device=split.labels.device)
    training = model.training
    model.eval()
    try:
        # Every process goes through all batches: shards of a model must meet in each.
        for first in range(0, len(split.labels), BATCH):
            part = slice(first + rank, min(first + BATCH, len(split.labels)), world)
            labels = split.labels[part]
            scores = model(data.normalise(split.inputs[part])).float()
            loss = F.cross_entropy(scores, labels, reduction="sum")
            sums += torch.stack([loss, (scores.argmax(1) == labels).sum(), torch.tensor(len(labels))]).to(sums)
    finally:
        model.train(training)
    return _figures(sums, fabric)


def train_figures(loss: Tensor, correct: Tensor, count: int, fabric: "Fabric") -> Figures:
    """The same from what was summed up while training."""
    return _figures(torch.stack([loss, correct.double(), torch.tensor(float(count)).to(loss)]), fabric)


def _figures(sums: Tensor, fabric: "Fabric | None") -> Figures:
    if fabric is not None and fabric.world_size > 1:
        sums = fabric.all_reduce(sums, reduce_op="sum")  # type: ignore[assignment]
    loss, correct, count = sums.tolist()
    return Figures(loss / max(count, 1), 100 * correct / max(count, 1))


Evaluate = Callable[[Split], Figures | None]
