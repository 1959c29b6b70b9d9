"""The paper's networks: functions that return plain modules, and weights for them from files."""

from collections.abc import Callable

from torch import nn

from torch_halo.checks import Table
from torch_halo.models.lenet import lenet_5, lenet_5_caffe, lenet_300_100
from torch_halo.models.loading import load_weights, read_pickle, read_weights
from torch_halo.models.resnet import resnet
from torch_halo.models.vgg import vgg16

# Each takes the data set's input shape and number of classes.
MODELS: Table[Callable[..., nn.Module]] = Table(
    "model",
    {
        "lenet-300-100": lenet_300_100,
        "lenet-5": lenet_5,
        "lenet-5-caffe": lenet_5_caffe,
        "vgg16": vgg16,
        "resnet": resnet,
    },
)

__all__ = [
    "MODELS",
    "lenet_5",
    "lenet_5_caffe",
    "lenet_300_100",
    "load_weights",
    "read_pickle",
    "read_weights",
    "resnet",
    "vgg16",
]
