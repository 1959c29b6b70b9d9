"""Every method with settings that a short training on the digits can bear."""

from torch_halo.methods import METHODS

SHORT = {
    "l1": {"xi": 1e-3},
    "mcp": {"xi": 1e-3, "gamma": 30.0},
    "scad": {"xi": 1e-3},
    "sws": {"xi": 1e-4},
    "halo": {"xi": 3e-4, "coefficient_weight_decay": 0.02},
    "halo-profile": {"xi": 1e-3},
    "gmp": {"every": 5},
    "rigl": {"every": 20},
    "dst": {"alpha": 5e-3},
    "str": {"initial": -5.0},
}


def example(name):
    return METHODS[name](**SHORT.get(name, {}))
