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
    found, calls = Seen(), Counter[str]()
    inside = {id(part) for m in model.modules() if isinstance(m, nn.MultiheadAttention) for part in m.modules()}
    layers = {name for name, module in owned(model, (nn.Linear, nn.Conv2d)) if id(module) not in inside}

    def look(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls[name] += 1
        if args and name in layers:
            found.setdefault(name, (module, args[0]))

    watch_call(model, inputs, look)
    found.sequentials = {
        name
        for name, module in model.named_modules()
        if all(calls[f"{name}.{child}".lstrip(".")] == calls[name] for child in module._modules)
    }
    return found


@dataclass(frozen=True)
class Run:
    """Children `first` to `last` of a Sequential: linear layers, by name, and whether a ReLU follows each."""

    module: nn.Sequential
    first: int
    last: int
    layers: list[tuple[str, bool]]
    before: list[nn.Module]  # the children as they were


def find_runs(model: nn.Module, seen: Seen) -> Iterator[Run]:
    """Runs of two linear layers and more, in Sequentials that are called as such."""
    for prefix, module in owned(model, (nn.Sequential,)):
        if prefix not in seen.sequentials:
            continue
        names = [f"{prefix}.{name}".lstrip(".") for name in module._modules]
        layers: list[tuple[str, bool]] = []
        first = 0
        for i, child in enumerate([*module, None]):
            if i < len(names) and names[i] in seen and type(child) is nn.Linear:
                first = first if layers else i
                layers.append((names[i], False))
            elif child is not None and is_plain(child, (nn.ReLU,)) and layers:
                layers[-1] = (layers[-1][0], True)
            else:
                if len(layers) > 1:
                    yield Run(module, first, i, layers, list(module)[first:i])
                layers = []
