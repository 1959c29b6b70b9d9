"""The settings from which each method's are chosen, on validation data: equally many for each that has a strength.

What has none to choose (the dense network, lottery tickets, scores at initialisation) has one entry.
"""

from collections.abc import Mapping
from typing import Any

from torch_halo.checks import Table
from torch_halo.methods import METHODS, Method

KNOT = 0.1  # where MCP and SCAD become flat; a much smaller knot would touch almost no weight

Grid = tuple[Method, ...]


def _grid(name: str, *settings: Mapping[str, Any]) -> Grid:
    return tuple(METHODS[name](**each) for each in settings or ({},))


def _strengths(name: str, strengths: tuple[float, ...], **more: Any) -> Grid:
    return _grid(name, *({"xi": xi, **more} for xi in strengths))


def _grids(
    l1: tuple[float, ...],
    sws: tuple[float, ...],
    halo: tuple[float, ...],
    profile: tuple[float, ...],
    alpha: tuple[float, ...],
    thresholds: tuple[float, ...],
    decay: float | None,
    concave: tuple[float, ...] | None = None,
    gmp: tuple[float, ...] = (0.4, 0.5, 0.625, 0.75),
    rigl: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5),
) -> Table[Grid]:
    """One set of grids; `decay` is λ's weight decay (the weights' if None), `thresholds` are those of STR's.

    `concave` are the strengths of MCP and SCAD, L1's if None.
    """
    concave = concave or l1
    return Table(
        "method",
        {
            "dense": _grid("dense"),
            "random-init": _grid("random-init"),
            "random-init-b": _grid("random-init-b"),
            "lottery": _grid("lottery"),
            "lottery-iterative": _grid("lottery-iterative"),
            "grasp": _grid("grasp"),
            "snip": _grid("snip"),
            "dst": _grid("dst", *({"alpha": a} for a in alpha)),
            "gmp": _grid("gmp", *({"end": end} for end in gmp)),
            "rigl": _grid("rigl", *({"fraction": fraction} for fraction in rigl)),
            # From where a threshold is well below the initial weights: it finds its own place from there.
            "str": _grid("str", *({"initial": -5.0, "decay": each} for each in thresholds)),
            "l1": _strengths("l1", l1),
            "mcp": _grid("mcp", *({"xi": xi, "gamma": KNOT / xi} for xi in concave)),
            "scad": _grid("scad", *({"xi": xi, "a": KNOT / xi} for xi in concave)),
            "sws": _strengths("sws", sws, coefficient_weight_decay=decay),
            "halo": _strengths("halo", halo, coefficient_weight_decay=decay),
            "halo-profile": _strengths("halo-profile", profile),
            "halo-target": _grid("halo-target"),
        },
    )


_DIGITS = _grids(
    l1=(5e-4, 1e-3, 2e-3, 4e-3),
    sws=(2e-3, 5e-3, 1e-2, 2e-2),
    halo=(3e-5, 1e-4, 3e-4, 1e-3),
    profile=(1e-4, 3e-4, 1e-3, 1e-2),
    alpha=(5e-4, 2e-3, 5e-3, 2e-2),
    thresholds=(1e-2, 2e-2, 4e-2, 6e-2),
    decay=5e-3,
)
# The networks with convolutions have half the learning rate of LeNet-300-100, so that λ needs twice the decay. Made for
# 15 epochs of the first and 20 of the second. Not tried: those of STR and RigL; of the second also SWS, DST, MCP, SCAD.
_LENET_5 = _grids(
    l1=(5e-5, 1e-4, 2e-4),
    sws=(1e-3, 2e-3, 5e-3),
    halo=(2e-7, 6e-7, 2e-6),
    profile=(4e-6, 1.6e-5, 6.4e-5),
    alpha=(1e-4, 3e-4, 1e-3),
    thresholds=(5e-3, 1e-2, 2e-2),
    decay=3e-3,
    concave=(4e-4, 8e-4, 1.6e-3),
    gmp=(0.5, 0.625, 0.75),
    rigl=(0.1, 0.3, 0.5),
)
_LENET_5_CAFFE = _grids(  # seven times as many weights, which may go with less
    l1=(2.5e-5, 5e-5, 1e-4, 2e-4),
    sws=(5e-4, 1e-3, 2e-3, 5e-3),
    halo=(2e-8, 6e-8, 2e-7, 6e-7),
    profile=(2.5e-7, 1e-6, 4e-6, 1.6e-5),
    alpha=(1e-4, 3e-4, 1e-3, 3e-3),
    thresholds=(2e-3, 5e-3, 1e-2, 2e-2),
    decay=3e-3,
    concave=(1e-4, 2e-4, 4e-4, 8e-4),
    gmp=(0.3, 0.4, 0.5, 0.625),
)
# By the kind of data, the scale and, where it has its own, the network.
# A short training needs stronger settings than a long one: λ and thresholds have few steps to move in.
# With a tenth of the steps and more λ would hardly leave 1, so its weight decay is raised.
GRIDS: dict[tuple[str, ...], Table[Grid]] = {
    ("mnist", "small", "lenet-5"): _LENET_5,
    ("mnist", "small", "lenet-5-caffe"): _LENET_5_CAFFE,
    ("mnist", "small"): _grids(
        l1=(5e-5, 1e-4, 2e-4, 4e-4),
        sws=(1e-3, 2e-3, 5e-3, 1e-2),
        halo=(3e-7, 1e-6, 3e-6, 1e-5),
        profile=(4e-7, 1e-6, 2.5e-6, 1e-5),
        alpha=(3e-4, 5e-4, 8e-4, 1.6e-3),
        thresholds=(2e-3, 5e-3, 1e-2, 2e-2),
        decay=1.5e-3,
        concave=(1e-4, 2e-4, 4e-4, 8e-4),  # large weights are free of them, so that they may be stronger
    ),
    ("mnist", "full"): _grids(
        l1=(1e-5, 3e-5, 1e-4, 3e-4),
        sws=(3e-4, 1e-3, 3e-3, 1e-2),
        halo=(1e-7, 3e-7, 1e-6, 3e-6),  # a third of those for 30 epochs, whose learning rates sum up to a third
        profile=(1e-7, 4e-7, 1e-6, 2.5e-6),
        alpha=(5e-5, 1e-4, 5e-4, 1e-3),
        thresholds=(2e-3, 5e-3, 1e-2, 2e-2),
        decay=None,
    ),
    ("cifar", "small"): _grids(
        l1=(2e-5, 4e-5, 8e-5),
        sws=(1.2e-3, 4e-3, 1.2e-2),
        halo=(1.2e-7, 4e-7, 1.2e-6),
        profile=(6.4e-7, 1.92e-6, 6.4e-6),
        alpha=(4e-5, 8e-5, 1.6e-4),
        thresholds=(5e-4, 1e-3, 2e-3),
        decay=8e-4,  # with half of it λ still falls when a trial ends, at 0.12, the same for all weights
        gmp=(0.75,),  # the published ones, since six epochs say little of a schedule
        rigl=(0.3,),
    ),
    ("cifar", "full"): _grids(
        l1=(1e-6, 3e-6, 1e-5, 3e-5),
        sws=(1e-4, 1e-3, 3e-3, 1e-2),
        halo=(1e-8, 3e-8, 1e-7, 1e-6),
        profile=(1e-8, 1e-7, 4e-7, 1e-6),
        alpha=(1e-6, 5e-6, 1e-5, 5e-5),
        thresholds=(4e-4, 1e-3, 2e-3, 4e-3),
        decay=None,
    ),
    ("digits", "small"): _DIGITS,
    ("digits", "full"): _DIGITS,
}


def grids_of(kind: str, scale: str, network: str) -> Table[Grid]:
    """The settings to choose from for a network on a kind of data."""
    return GRIDS.get((kind, scale, network)) or GRIDS[kind, scale]
