"""Batches of a split: shuffled, augmented and normalised on the device, all of a batch at once."""

from collections.abc import Iterator

import torch
from torch import Tensor

from torch_halo.data.sets import DataSet, Split

SHIFT = 4  # pixels


def batches(
    data: DataSet, split: Split, size: int, *, seed: int, epoch: int, start: int = 0, rank: int = 0, world: int = 1
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(inputs, labels, indices) of one epoch of training, from its batch number `start` on.

    Order and augmentation depend on (seed, epoch) alone, so that an epoch can be entered anywhere.
    Of several processes, each takes every `world`-th entry of a batch, all of them equally many: up
    to world − 1 entries at the end of an epoch are left out.
    """
    if size < 1 or size % world or not 0 <= rank < world or start < 0:
        raise ValueError(
            "batches need a size that the processes can share, a rank among them and a start of at least 0; "
            f"received size {size}, rank {rank} of {world}, start {start}"
        )
    count = len(split.labels) // world * world
    generator = torch.Generator().manual_seed(_mixed(seed, epoch))
    total = len(split.labels)
    order = torch.randperm(total, generator=generator)
    flips = torch.rand(total, generator=generator) < 0.5
    shifts = torch.randint(0, 2 * SHIFT + 1, (total, 2), generator=generator)
    device = split.labels.device
    for first in range(start * size, count, size):
        chosen = slice(first + rank, min(first + size, count), world)
        index = order[chosen].to(device)
        inputs = split.inputs[index]
        if data.is_augmented:
            inputs = shifted(inputs, flips[chosen].to(device), shifts[chosen].to(device))
        yield data.normalise(inputs), split.labels[index], index


def shifted(images: Tensor, flips: Tensor, shifts: Tensor) -> Tensor:
    """Each image padded by 4 black pixels and cut out at its shift, mirrored where `flips` says so."""
    count, _, height, width = images.shape
    padded = torch.nn.functional.pad(images, (SHIFT,) * 4)
    rows = torch.arange(height, device=images.device) + shifts[:, :1]
    columns = torch.arange(width, device=images.device).expand(count, -1)
    columns = torch.where(flips[:, None], width - 1 - columns, columns) + shifts[:, 1:]
    image = torch.arange(count, device=images.device)[:, None, None]
    # One gather; the channel axis comes out last.
    return padded.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _mixed(seed: int, epoch: int) -> int:
    # Neighbouring pairs must not share a stream, as seed + epoch would.
    return (seed * 1_000_003 + epoch * 7_919 + 12_345) % 2**63
