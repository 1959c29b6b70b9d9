"""Training: one loop, evaluation, checkpoints that survive a crash, runs in folders."""

from torch_halo.training.config import Config
from torch_halo.training.optimizers import OPTIMIZERS
from torch_halo.training.runs import Inputs, run
from torch_halo.training.schedules import SCHEDULES
from torch_halo.training.settings import Compute, Data, Model, Pruning, Shrinking, Training

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "Compute",
    "Config",
    "Data",
    "Inputs",
    "Model",
    "Pruning",
    "Shrinking",
    "Training",
    "run",
]
