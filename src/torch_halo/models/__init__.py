"""The paper's networks: functions that return plain modules."""

from torch_halo.models.lenet import lenet_300_100

MODELS = {"lenet-300-100": lenet_300_100}

__all__ = ["MODELS", "lenet_300_100"]
