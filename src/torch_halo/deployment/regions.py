"""The parts of a model that torch.fx can trace, as graphs whose modules are the model's own."""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

LAYERS_WITH_A_PAIR = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


@dataclass
class Region:
    """A traced part: its name in the model ("" is the whole), its graph, and inputs that it was seen to get."""

    name: str
    graph: fx.GraphModule
    inputs: tuple[Tensor, ...]

    def shapes(self) -> None:
        """Write into each node what it returns."""
        ShapeProp(self.graph).propagate(*self.inputs)


@dataclass
class Regions:
    """What could be traced, and what could not, with the reason."""

    found: list[Region] = field(default_factory=list)
    left_alone: dict[str, str] = field(default_factory=dict)


class _Tracer(fx.Tracer):
    """Goes into every module that it can, and notes those that it cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.opaque: dict[str, str] = {}

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception as error:  # whatever a forward does that is not for proxies
            name = self.path_of_module(m)
            self.opaque[name] = _reason(error)
            return self.create_proxy("call_module", name, args, kwargs)


def find_regions(model: nn.Module, example: tuple[Any, ...]) -> Regions:
    """Trace a model as a whole; where that fails, its parts."""
    inputs = _inputs(model, example)
    regions = Regions()
    _collect(model, "", inputs, regions)
    for name, module in model.named_modules():
        if isinstance(module, LAYERS_WITH_A_PAIR) and callable(module.activation):
            pair = nn.Sequential(module.linear1, Elementwise(module.activation), module.linear2)
            graph = fx.GraphModule(pair, _Tracer().trace(pair))
            width = module.linear1.in_features
            regions.found.append(Region(name, graph, (torch.zeros(1, width).to(module.linear1.weight),)))
    return regions


def _collect(module: nn.Module, name: str, inputs: dict[str, tuple[Any, ...]], regions: Regions) -> None:
    given = inputs.get(name)
    if given is None or not all(isinstance(x, Tensor) for x in given):
        return  # not called, or not with tensors alone
    tracer = _Tracer()
    try:
        graph = fx.GraphModule(module, tracer.trace(module))
        graph.graph.eliminate_dead_code()
        graph.recompile()
        region = Region(name, graph, given)
        region.shapes()
        regions.found.append(region)
        opaque = {f"{name}.{inner}".lstrip("."): reason for inner, reason in tracer.opaque.items()}
    except Exception as error:
        opaque = {name: _reason(error)}
    regions.left_alone.update({each or "the model": reason for each, reason in opaque.items()})
    for each in opaque:
        for child, part in module.get_submodule(each.removeprefix(name).lstrip(".")).named_children():
            _collect(part, f"{each}.{child}".lstrip("."), inputs, regions)


def _inputs(model: nn.Module, example: tuple[Any, ...]) -> dict[str, tuple[Any, ...]]:
    """What each module is called with, where it is called with positional arguments only."""
    found: dict[str, tuple[Any, ...]] = {}
    hooks = []
    for name, module in model.named_modules():

        def look(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], name: str = name) -> None:
            if not kwargs:
                found.setdefault(name, args)

        hooks.append(module.register_forward_pre_hook(look, with_kwargs=True))
    try:
        with torch.no_grad():
            model(*copy.deepcopy(example))
    finally:
        for hook in hooks:
            hook.remove()
    return found


class Elementwise(nn.Module):
    """A function of each entry, as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        """The function's value."""
        return self.function(x)


def _reason(error: Exception) -> str:
    first = str(error).strip().splitlines()
    return first[0] if first else type(error).__name__
