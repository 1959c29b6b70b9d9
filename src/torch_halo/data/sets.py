"""What a data set is."""

from typing import NamedTuple

import torch
from torch import Tensor


class Split(NamedTuple):
    """Inputs and labels."""

    inputs: Tensor
    labels: Tensor


class DataSet(NamedTuple):
    """A data set cut into what is trained on, what settings are chosen on, and what is reported."""

    train: Split
    validation: Split
    test: Split
    classes: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        """One input's shape."""
        return tuple(self.train.inputs.shape[1:])


def cut(inputs: Tensor, labels: Tensor, classes: int, *, seed: int, validation: float, test: float) -> DataSet:
    """Shuffle by `seed` and cut off the shares for validation and test."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    held, chosen = round(test * len(labels)), round(validation * len(labels))
    parts = order[held + chosen :], order[held : held + chosen], order[:held]
    train_part, validation_part, test_part = (Split(inputs[part], labels[part]) for part in parts)
    return DataSet(train_part, validation_part, test_part, classes)
