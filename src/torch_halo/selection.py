"""Which weights of a model are shrunk and pruned."""

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from torch_halo.weights import Axes, Weight, unwrapped

Select: TypeAlias = (
    Callable[[str, nn.Parameter], bool] | type[nn.Module] | Sequence[type[nn.Module]] | str | Sequence[str] | None
)

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_DEFAULT = (nn.Linear, *_CONVOLUTIONS, *_TRANSPOSED)
_ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def select_weights(model: nn.Module, select: Select = None, *, frozen: bool = False) -> list[Weight]:
    """The weights of `model` that `select` names, each once, in the model's order.

    By default: every convolution's and linear layer's weight, attention's in-projections
    (`nn.MultiheadAttention`) and Transformers' `Conv1D`; never embeddings (nor a weight tied to
    one), norms or biases. Otherwise `select` is

    - name patterns, e.g. `"encoder.*"` or `["features", "!features.0"]`: of the default weights,
      those whose name, or whose module's name, matches; with a leading `!`, those left out.
      `"!classifier"` alone is all but the classifier;
    - module types, e.g. `nn.Embedding`: all their own parameters of two or more axes;
    - a callable `(name, parameter) -> bool`, asked for every parameter of the model.

    A weight under a parametrization (`weight_norm` and the like) is no parameter, and not taken.
    Frozen parameters are left out unless `frozen` is true.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> [weight.name for weight in select_weights(net, "!2")]
    ['0.weight']
    """
    model = unwrapped(model)
    everything = list(_owned(model))
    chosen = _choose(everything, select)
    weights = _once(chosen)
    for weight in weights:
        _check(weight)
    if not weights:
        raise ValueError(_nothing(select, everything))
    if frozen:
        return weights
    trainable = [weight for weight in weights if weight.parameter.requires_grad]
    if not trainable:
        raise ValueError(f"all {len(weights)} selected weights are frozen (requires_grad=False)")
    return trainable


Owned: TypeAlias = tuple[nn.Module, str, Weight]  # a module, its parameter's own name, the weight


def _owned(model: nn.Module) -> Iterable[Owned]:
    for prefix, module in model.named_modules():
        for own, parameter in module.named_parameters(recurse=False):
            name = f"{prefix}.{own}" if prefix else own
            yield module, own, Weight(name, parameter, _axes(module))


def _choose(everything: list[Owned], select: Select) -> list[Weight]:
    if select is None:
        return _default(everything)
    if isinstance(select, type) and issubclass(select, nn.Module):
        return _of_types(everything, (select,))
    if isinstance(select, str):
        return _matching(_default(everything), [select])
    if isinstance(select, Sequence) and select:
        patterns = [item for item in select if isinstance(item, str)]
        types = tuple(item for item in select if isinstance(item, type) and issubclass(item, nn.Module))
        if len(patterns) == len(select):
            return _matching(_default(everything), patterns)
        if len(types) == len(select):
            return _of_types(everything, types)
    if callable(select) and not isinstance(select, (type, nn.Module)):
        return [weight for _, _, weight in everything if select(weight.name, weight.parameter)]
    raise TypeError(
        f"select must be None, name patterns, module types or a callable (name, parameter) -> bool; received {select!r}"
    )


def _default(everything: list[Owned]) -> list[Weight]:
    embedded = {id(weight.parameter) for module, _, weight in everything if isinstance(module, _EMBEDDINGS)}
    return [
        weight
        for module, own, weight in everything
        if _is_default(module, own) and id(weight.parameter) not in embedded
    ]


def _is_default(module: nn.Module, own: str) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return own in _ATTENTION
    return own == "weight" and (isinstance(module, _DEFAULT) or _is_transformers_conv1d(module))


def _of_types(everything: list[Owned], types: tuple[type[nn.Module], ...]) -> list[Weight]:
    return [
        weight
        for module, _, weight in everything
        if isinstance(module, types) and (is_lazy(weight.parameter) or weight.parameter.ndim >= 2)
    ]


def _matching(weights: list[Weight], patterns: Sequence[str]) -> list[Weight]:
    included = [pattern for pattern in patterns if not pattern.startswith("!")]
    excluded = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    for pattern in included + excluded:
        # A misspelt exclusion would prune just what was to be spared.
        if not any(_matches(weight.name, pattern) for weight in weights):
            raise ValueError(f"select: {pattern!r} matches no weight; there are: {_names(weights)}")
    return [
        weight
        for weight in weights
        if (not included or any(_matches(weight.name, pattern) for pattern in included))
        and not any(_matches(weight.name, pattern) for pattern in excluded)
    ]


def _matches(name: str, pattern: str) -> bool:
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:n]), pattern) for n in range(1, len(parts) + 1))


def _once(weights: list[Weight]) -> list[Weight]:
    """Tied parameters count once, under their first name."""
    first: dict[int, Weight] = {}
    for weight in weights:
        first.setdefault(id(weight.parameter), weight)
    return list(first.values())


def _axes(module: nn.Module) -> Axes:
    if isinstance(module, _TRANSPOSED):
        return Axes(out=1, conv_groups=module.groups)
    if _is_transformers_conv1d(module):
        return Axes(out=1)
    return Axes(conv_groups=module.groups if isinstance(module, _CONVOLUTIONS) else 1)


def _is_transformers_conv1d(module: nn.Module) -> bool:
    # By name, since transformers is not needed to import this package.
    return any(c.__name__ == "Conv1D" and c.__module__.startswith("transformers.") for c in type(module).__mro__)


def _check(weight: Weight) -> None:
    parameter = weight.parameter
    if is_lazy(parameter):
        raise ValueError(f"{weight.name} is a lazy parameter, not yet initialised; run one batch first")
    if parameter.layout is not torch.strided:
        raise ValueError(f"{weight.name} has layout {parameter.layout}; only dense (strided) weights are supported")
    if parameter.is_meta:
        raise ValueError(f"{weight.name} is on the meta device; give the model real weights first")
    if parameter.dtype not in _FLOATS:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in _FLOATS)
        raise ValueError(f"{weight.name} is of {parameter.dtype}; allowed: {allowed}")


def _nothing(select: Select, everything: list[Owned]) -> str:
    return f"select={select!r} matches no weight; the model's parameters: {_names([w for _, _, w in everything])}"


def _names(weights: list[Weight]) -> str:
    return ", ".join(weight.name for weight in weights) or "none"
