"""The methods by name."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch_halo.checks import Table
from torch_halo.methods.base import Method
from torch_halo.methods.dynamic import GMP, RigL
from torch_halo.methods.initialisation import SNIP, GraSP
from torch_halo.methods.plain import Dense, Penalised
from torch_halo.methods.retraining import Lottery, RandomInit
from torch_halo.methods.thresholding import DST, STR
from torch_halo.penalties import PENALTIES
from torch_halo.training.config import Config


def _penalised(name: str, /, coefficient_weight_decay: float | None = None, **settings: Any) -> Penalised:
    return Penalised(PENALTIES[name](**settings), coefficient_weight_decay)


# Each takes its settings as keywords: METHODS["halo"](xi=1e-6).
METHODS: Table[Callable[..., Method]] = Table(
    "method",
    {
        "dense": Dense,
        "random-init": RandomInit,
        "random-init-b": partial(RandomInit, "B"),
        "lottery": Lottery,
        "lottery-iterative": partial(Lottery, 0.2),
        "grasp": GraSP,
        "snip": SNIP,
        "dst": DST,
        "gmp": GMP,
        "rigl": RigL,
        "str": STR,
        **{name: partial(_penalised, name) for name in ("l1", "mcp", "scad", "sws", "halo")},
    },
)


def method_of(config: Config) -> Method:
    """The method of a run, from its settings."""
    if config.method is None:
        decay = config.shrinking.coefficient_weight_decay
        return Dense() if config.penalty is None else Penalised(config.penalty, decay)
    return _decoded(config.method)


def _decoded(found: Mapping[str, Any]) -> Method:
    settings = {key: value for key, value in found.items() if key not in ("kind", "sparsity")}
    try:
        return METHODS[found["kind"]](**settings)
    except TypeError as error:
        raise ValueError(f"the method {found['kind']} has settings of another version: {error}") from error
