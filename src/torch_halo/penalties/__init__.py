"""What a penalty is: its value, its gradients, its proximal map. A file for each family."""

from torch_halo.checks import Table
from torch_halo.penalties.base import Coefficients, Penalty, Scalar, Separable, at_least_float32
from torch_halo.penalties.bridge import Bridge
from torch_halo.penalties.concave import MCP, SCAD
from torch_halo.penalties.functions import FUNCTIONS, InversePower, LogSquared
from torch_halo.penalties.groups import GROUPS, SHALO, Grouped
from torch_halo.penalties.halo import HALO, SWS
from torch_halo.penalties.lasso import L1, WeightedL1, adaptive_weights

PENALTIES: Table[type[Penalty]] = Table(
    "penalty",
    {
        "l1": L1,
        "bridge": Bridge,
        "weighted_l1": WeightedL1,
        "mcp": MCP,
        "scad": SCAD,
        "sws": SWS,
        "halo": HALO,
        "grouped": Grouped,
        "shalo": SHALO,
    },
)

__all__ = [
    "FUNCTIONS",
    "GROUPS",
    "HALO",
    "L1",
    "MCP",
    "PENALTIES",
    "SCAD",
    "SHALO",
    "SWS",
    "Bridge",
    "Coefficients",
    "Grouped",
    "InversePower",
    "LogSquared",
    "Penalty",
    "Scalar",
    "Separable",
    "WeightedL1",
    "adaptive_weights",
    "at_least_float32",
]
