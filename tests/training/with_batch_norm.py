"""The `halo` command with a network for the digits that has batch norm and dropout."""

import sys

from torch import nn

from torch_halo.cli import main
from torch_halo.models import MODELS


def network(input_shape, classes):
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(8 * 36, classes)
    )


if __name__ == "__main__":
    MODELS["lenet-300-100"] = network
    sys.exit(main())
