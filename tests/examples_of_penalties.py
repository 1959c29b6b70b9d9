"""One or more examples of every penalty in the table; a new entry is tested by being listed here."""

import torch

import torch_halo as th


def double(lam):
    """A user's own h, without a derivative."""
    return torch.exp(-lam)


EXAMPLES = {
    "l1": [th.L1(0.3)],
    "bridge": [th.Bridge(0.3, 0.5), th.Bridge(0.3, 2 / 3), th.Bridge(0.3, 0.3), th.Bridge(0.3, 1.5), th.Bridge(0.3, 2)],
    "weighted_l1": [th.WeightedL1(0.3, {})],
    "mcp": [th.MCP(0.5, 3.0)],
    "scad": [th.SCAD(0.4), th.SCAD(0.4, 2.5)],
    "sws": [th.SWS(0.3), th.SWS(0.3, 0.1)],
    "halo": [
        th.HALO(0.3),
        th.HALO(0.3, 0.1),
        th.HALO(0.3, h=th.InversePower(1)),
        th.HALO(0.3, h=th.InversePower(3)),
        th.HALO(0.3, h=th.LogSquared()),
        th.HALO(0.3, h=double),
    ],
    "grouped": [
        th.Grouped(inner, groups)
        for inner in (th.L1(0.3), th.MCP(0.5, 3.0), th.Bridge(0.3, 0.5), th.HALO(0.3, 0.1), th.SWS(0.3))
        for groups in ("out", "in", "kernel")
    ],
    "shalo": [
        th.SHALO(0.3, 0.1, inner=inner, groups=groups) for inner in ("l1", "halo") for groups in ("out", "in", "kernel")
    ],
}
PENALTIES = [penalty for examples in EXAMPLES.values() for penalty in examples]
SHAPES = [(4, 3), (1, 1), (5, 2, 3), (4, 3, 3, 3), (2, 2, 1, 2, 3), (0, 3), (3, 0, 2)]


def coefficients(penalty, w):
    """Random positive coefficients for w, as a tuple."""
    if isinstance(penalty, th.WeightedL1):
        return (torch.rand_like(w) + 0.2,)
    return tuple(torch.rand_like(lam) + 0.5 for lam in penalty.start(w))


def named(penalty):
    return repr(penalty).replace("<function ", "").split(" at 0x")[0]
