"""The LeNets of the MNIST experiments, as torch initialises them."""

import math
from collections.abc import Sequence

from torch import nn


def lenet_300_100(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """LeNet-300-100: two hidden layers of 300 and 100 units, on flattened images; 266,610 parameters on MNIST."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), 300),
        nn.ReLU(),
        nn.Linear(300, 100),
        nn.ReLU(),
        nn.Linear(100, classes),
    )


def lenet_5(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """LeNet-5, 6-16-120-84: the one in the paper's published code; 61,706 parameters on MNIST."""
    channels, height, width = _image("lenet-5", input_shape, least=12)
    pixels = ((height // 2 - 4) // 2) * ((width // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * pixels, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


def lenet_5_caffe(input_shape: Sequence[int], classes: int) -> nn.Sequential:
    """LeNet-5-Caffe, 20-50-500: the one that the paper's text names; 431,080 parameters on MNIST."""
    channels, height, width = _image("lenet-5-caffe", input_shape, least=16)
    pixels = (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 20, 5),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(50 * pixels, 500),
        nn.ReLU(),
        nn.Linear(500, classes),
    )


def _image(model: str, input_shape: Sequence[int], least: int) -> tuple[int, int, int]:
    if len(input_shape) != 3 or min(input_shape[1:]) < least:
        raise ValueError(
            f"{model} needs images (channels, height, width) of at least {least}×{least} pixels; "
            f"received {tuple(input_shape)}"
        )
    channels, height, width = input_shape
    return channels, height, width
