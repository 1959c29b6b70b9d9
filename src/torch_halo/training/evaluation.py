"""How good a network is: its loss and accuracy on a split."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

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
    sums = zeros(split.labels.device, 3)
    training = model.training
    model.eval()
    try:
        # Every process goes through all batches: shards of a model must meet in each.
        for first in range(0, len(split.labels), BATCH):
            part = slice(first + rank, min(first + BATCH, len(split.labels)), world)
            labels = split.labels[part]
            scores = model(data.normalise(split.inputs[part])).float()
            loss = F.cross_entropy(scores, labels, reduction="sum")
            sums += torch.stack([loss, (scores.argmax(1) == labels).sum(), loss.new_tensor(len(labels))]).to(sums)
    finally:
        model.train(training)
    return figures(sums, fabric)


def measure(model: nn.Module, data: DataSet, fabric: "Fabric | None" = None) -> dict[str, Figures | None]:
    """The model's figures on the validation and the test set."""
    splits = {"validation": data.validation, "test": data.test}
    return {name: evaluate(model, data, split, fabric) for name, split in splits.items()}


def as_data(found: Mapping[str, Figures | None]) -> dict[str, Any]:
    """Figures by split as plain data."""
    return {split: None if one is None else one._asdict() for split, one in found.items()}


def zeros(device: torch.device, *shape: int) -> Tensor:
    """Sums to be added to, in double precision where the device has it."""
    return torch.zeros(shape, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)


def figures(sums: Tensor, fabric: "Fabric | None") -> Figures:
    """Figures from the sums of losses, correct answers and samples of each process."""
    if fabric is not None and fabric.world_size > 1:
        sums = fabric.all_reduce(sums, reduce_op="sum")  # type: ignore[assignment]
    loss, correct, count = sums.tolist()
    return Figures(loss / max(count, 1), 100 * correct / max(count, 1))
