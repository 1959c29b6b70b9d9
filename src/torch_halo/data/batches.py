"""Batches of a split: shuffled, augmented and normalised on the device, many images at once."""

from collections.abc import Iterator

import torch
from torch import Tensor

from torch_halo.data.augmentation import Shifts
from torch_halo.data.sets import DataSet, Split

# Images that are gathered and shifted at once: enough that what each operation costs of itself does
# not count, few enough to stay in the cache.
AT_ONCE = 256


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
    total, device = len(split.labels), split.labels.device
    generator = torch.Generator().manual_seed(_mixed(seed, epoch))
    order = torch.randperm(total, generator=generator).to(device)
    shifts = Shifts.random(total, data.input_shape, generator, device) if data.is_augmented else None
    count, several = total // world * world, size * max(1, AT_ONCE * world // size)
    for first in range(start * size, count, several):
        chosen = slice(first + rank, min(first + several, count), world)
        # index_select is ten times as fast as inputs[index].
        inputs = split.inputs.index_select(0, order[chosen])
        inputs = inputs if shifts is None else shifts.apply(inputs, chosen)
        for part, index in zip(inputs.split(size // world), order[chosen].split(size // world), strict=True):
            yield data.normalise(part), split.labels.index_select(0, index), index


def _mixed(seed: int, epoch: int) -> int:
    # Neighbouring pairs must not share a stream, as seed + epoch would.
    return (seed * 1_000_003 + epoch * 7_919 + 12_345) % 2**63
