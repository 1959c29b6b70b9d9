"""torch-halo: neural networks that become sparse while they train.

    penalty = th.HALO(xi=1e-6)
    shrink = th.Shrinkage(model, penalty, optimizer)  # from now on optimizer.step() also shrinks
    ...                                               # the training loop, as it was
    masks = th.prune_(model, sparsity=0.95)

The method is that of Seto, Wells, Zhang, "HALO: Learning to Prune Neural Networks with Shrinkage",
SDM 2021.
"""

from importlib.metadata import version

from torch_halo.analysis import suspects
from torch_halo.deployment import compress, deploy, load_compressed, remove_dead
from torch_halo.figures import LayerSparsity, Sparsity, sparsity
from torch_halo.masks import Masks
from torch_halo.penalties import (
    HALO,
    L1,
    MCP,
    PENALTIES,
    SCAD,
    SHALO,
    SWS,
    Bridge,
    Grouped,
    InversePower,
    LogSquared,
    Penalty,
    WeightedL1,
    adaptive_weights,
)
from torch_halo.pruning import prune_
from torch_halo.recalibration import recalibrate_
from torch_halo.shrinkage import Shrinkage

__version__ = version("torch-halo")

__all__ = [
    "HALO",
    "L1",
    "MCP",
    "PENALTIES",
    "SCAD",
    "SHALO",
    "SWS",
    "Bridge",
    "Grouped",
    "InversePower",
    "LayerSparsity",
    "LogSquared",
    "Masks",
    "Penalty",
    "Shrinkage",
    "Sparsity",
    "WeightedL1",
    "__version__",
    "adaptive_weights",
    "compress",
    "deploy",
    "load_compressed",
    "prune_",
    "recalibrate_",
    "remove_dead",
    "sparsity",
    "suspects",
]
