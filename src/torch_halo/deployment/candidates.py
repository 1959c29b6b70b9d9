"""The layers that could have an engine, the inputs that they get, and runs of them that could be one call."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from torch_halo.deployment.calls import watch_call
from torch_halo.deployment.regions import is_plain, owned


class Seen(dict[str, tuple[Any, Tensor]]):
    """Layers with the first input that each gets; and the Sequentials that are called as often as their children."""

    sequentials: set[str]


def seen_layers(model: nn.Module, inputs: tuple[Any, ...]) -> Seen:
    """The layers that could have an engine, and the Sequentials that could be one call."""
    found, calls = Seen(), Counter[int]()
    inside = {id(part) for m in model.modules() if isinstance(m, nn.MultiheadAttention) for part in m.modules()}
    layers = {name for name, module in owned(model, (nn.Linear, nn.Conv2d)) if id(module) not in inside}

    def look(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls[id(module)] += 1
        if args and name in layers:
            found.setdefault(name, (module, args[0]))

    watch_call(model, inputs, look)
    found.sequentials = {
        name
        for name, module in model.named_modules()
        if all(calls[child] == times * calls[id(module)] for child, times in _children(module).items())
    }
    return found


def _children(module: nn.Module) -> Counter[int]:
    """How often it has each: a ReLU, say, may be there twice."""
    return Counter(id(child) for child in module._modules.values() if child is not None)


@dataclass(frozen=True)
class Run:
    """Children of a Sequential: linear layers, by name, and whether a ReLU follows each; maybe a Flatten first."""

    module: nn.Sequential
    keys: list[str]  # the children's
    layers: list[tuple[str, bool]]
    has_flatten: bool
    before: list[nn.Module]  # the children as they were


def find_runs(model: nn.Module, seen: Seen) -> Iterator[Run]:
    """Runs of two linear layers and more, in Sequentials that are called as such."""
    for prefix, module in owned(model, (nn.Sequential,)):
        if prefix not in seen.sequentials:
            continue
        children = [(key, child) for key, child in module._modules.items() if child is not None]
        layers: list[tuple[str, bool]] = []
        first = 0
        for i, (key, child) in enumerate([*children, ("", None)]):
            name = f"{prefix}.{key}".lstrip(".")
            if name in seen and type(child) is nn.Linear:
                first = first if layers else i
                layers.append((name, False))
            elif child is not None and is_plain(child, (nn.ReLU,)) and layers:
                layers[-1] = (layers[-1][0], True)
            else:
                if len(layers) > 1:
                    has_flatten = first > 0 and _flattens(children[first - 1][1])
                    own = children[first - has_flatten : i]
                    yield Run(module, [key for key, _ in own], layers, has_flatten, [part for _, part in own])
                layers = []


def _flattens(module: nn.Module | None) -> bool:
    """Whether all axes but the first become one."""
    if type(module) is not nn.Flatten or not is_plain(module, (nn.Flatten,)):
        return False
    return (module.start_dim, module.end_dim) == (1, -1)
