"""The methods by name."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch_halo.checks import Table
from torch_halo.methods.base import Method
from torch_halo.methods.dynamic import GMP, RigL
from torch_halo.methods.initialisation import SNIP, GraSP
from torch_halo.methods.plain import Dense, Penalised, Steered
from torch_halo.methods.retraining import Lottery, RandomInit
from torch_halo.methods.thresholding import DST, STR
from torch_halo.penalties import HALO, PENALTIES
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
        "halo-profile": partial(_penalised, "halo", solve="profile"),
        "halo-target": Steered,
    },
)


def method_of(config: Config) -> Method:
    """The method of a run, from its settings."""
    if config.method is None:
        return _plain(config)
    return _decoded(config.method)


def kind_of(config: Config) -> str:
    """The name of a run's method."""
    if config.method is not None:
        return str(config.method["kind"])
    penalty = config.penalty
    if penalty is None:
        return Dense.kind
    name = next(name for name, kind in PENALTIES.items() if type(penalty) is kind)
    if config.shrinking.target_sparsity is not None:
        return f"{name}-target"
    return f"{name}-profile" if isinstance(penalty, HALO) and penalty.solve == "profile" else name


def _plain(config: Config) -> Method:
    if config.penalty is None:
        return Dense()
    if config.shrinking.target_sparsity is not None:
        return Steered(config.penalty)
    return Penalised(config.penalty, config.shrinking.coefficient_weight_decay)


def _decoded(found: Mapping[str, Any]) -> Method:
    settings = {key: value for key, value in found.items() if key not in ("kind", "sparsity")}
    try:
        return METHODS[found["kind"]](**settings)
    except TypeError as error:
        raise ValueError(f"the method {found['kind']} has settings of another version: {error}") from error
