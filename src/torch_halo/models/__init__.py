"""The paper's networks: functions that return plain modules."""

from collections.abc import Callable

from torch import nn

from torch_halo.checks import Table
from torch_halo.models.lenet import lenet_300_100
from torch_halo.models.vgg import vgg16

MODELS: Table[Callable[..., nn.Module]] = Table("model", {"lenet-300-100": lenet_300_100, "vgg16": vgg16})

__all__ = ["MODELS", "lenet_300_100", "vgg16"]
