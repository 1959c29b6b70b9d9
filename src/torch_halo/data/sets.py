"""What a data set is: tensors of bytes in memory, normalised where they are used."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from torch_halo.checks import number


class Split(NamedTuple):
    """Inputs (bytes: image, channel, row, column) and labels."""

    inputs: Tensor
    labels: Tensor

    def to(self, device: torch.device | str) -> "Split":
        """The split on a device."""
        return Split(self.inputs.to(device), self.labels.to(device))


@dataclass(frozen=True)
class DataSet:
    """A data set: what is trained on, what settings are chosen on, and what is reported.

    `mean` and `std` are each channel's, in units of a byte. `flipped` tells which training labels
    `label_noise` has changed.
    """

    name: str
    train: Split
    validation: Split
    test: Split
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    is_augmented: bool
    flipped: Tensor

    @property
    def input_shape(self) -> tuple[int, ...]:
        """One input's shape: channels, height, width."""
        return tuple(self.train.inputs.shape[1:])

    def to(self, device: torch.device | str) -> "DataSet":
        """The data set on a device."""
        train, validation, test = (split.to(device) for split in (self.train, self.validation, self.test))
        return replace(self, train=train, validation=validation, test=test, flipped=self.flipped.to(device))

    def normalise(self, inputs: Tensor) -> Tensor:
        """Bytes to numbers of about mean 0 and deviation 1."""
        fresh = inputs.to(torch.float32, copy=True)
        return fresh.sub_(_by_channel(self.mean, inputs.device)).div_(_by_channel(self.std, inputs.device))

    def normalised(self) -> "DataSet":
        """The same with normalised inputs and no augmentation: for small sets and simple loops."""
        train, validation, test = (
            Split(self.normalise(split.inputs), split.labels) for split in (self.train, self.validation, self.test)
        )
        mean, std = (0.0,) * len(self.mean), (1.0,) * len(self.std)
        return replace(self, train=train, validation=validation, test=test, mean=mean, std=std, is_augmented=False)


@lru_cache(maxsize=64)
def _by_channel(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, device=device).view(-1, 1, 1)


def cut_places(count: int, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Which of `count` samples `cut` puts where."""
    share = number("validation", share, at_least=0, below=1)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    held_out = round(share * count)
    # In their old order, so that no share of 0 means no change at all.
    return order[held_out:].sort().values, order[:held_out].sort().values


def cut(split: Split, share: float, seed: int) -> tuple[Split, Split]:
    """A split in two, the second with `share` of it, at random by `seed`."""
    rest, part = cut_places(len(split.labels), share, seed)
    return Split(split.inputs[rest], split.labels[rest]), Split(split.inputs[part], split.labels[part])


def with_noise(split: Split, probability: float, classes: int, seed: int) -> tuple[Split, Tensor]:
    """Each label changed to another class with the given probability, and which ones were."""
    probability = number("label_noise", probability, at_least=0)
    if probability > 1:
        raise ValueError(f"label_noise must be a probability, from 0 to 1; received {probability:g}")
    generator = torch.Generator().manual_seed(seed)
    flipped = torch.rand(len(split.labels), generator=generator) < probability
    others = (split.labels + torch.randint(1, classes, split.labels.shape, generator=generator)) % classes
    return Split(split.inputs, torch.where(flipped, others, split.labels)), flipped
