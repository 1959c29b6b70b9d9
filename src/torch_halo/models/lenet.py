"""LeNets."""

import math
from collections.abc import Sequence

from torch import nn


def lenet_300_100(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """LeNet-300-100: two hidden layers of 300 and 100 units, on flattened images."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), 300),
        nn.ReLU(),
        nn.Linear(300, 100),
        nn.ReLU(),
        nn.Linear(100, classes),
    )
