"""The parts of a model that torch.fx can trace, as graphs whose modules are the model's own."""

import contextlib
import io
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn.utils import parametrize

from torch_halo.deployment.calls import watch_call

PAIRED = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)  # which have linear1, an activation and linear2
_VIEWS = {"view", "reshape", "flatten", "transpose", "permute", "squeeze", "unsqueeze", "contiguous", "t", "expand"}
_IN_PLACE = {operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow, operator.setitem}


@dataclass
class Region:
    """A traced part: its name in the model ("" is the whole), its graph, and inputs that it was seen to get."""

    name: str
    graph: fx.GraphModule
    inputs: tuple[Tensor, ...]

    def trace_shapes(self) -> None:
        """Write into each node what it returns."""
        with contextlib.redirect_stderr(io.StringIO()):  # where torch prints what it also raises
            ShapeProp(self.graph).propagate(*self.inputs)


@dataclass
class Regions:
    """What could be traced, and what could not, with the reason."""

    found: list[Region] = field(default_factory=list)
    left_alone: dict[str, str] = field(default_factory=dict)


def is_plain(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Whether a module is just what its type says: no subclass, no hooks, no weights that are computed."""
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    is_whole = "weight" in module._parameters or not hasattr(module, "weight")
    return type(module) in kinds and not any(hooks) and not parametrize.is_parametrized(module) and is_whole


class Branchless(nn.Module):
    """What is left of a branch that always says the same: a constant for each channel."""

    def __init__(self, value: Tensor, axes_after: int) -> None:
        super().__init__()
        self.axes_after = axes_after
        self.value = nn.Parameter(value, requires_grad=False)

    def forward(self, *_: Any) -> Tensor:
        """The constants, to be added to each channel."""
        return self.value.reshape(-1, *[1] * self.axes_after)


class _Tracer(fx.Tracer):
    """Goes into every module that it can, and notes those that it cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.opaque: dict[str, str] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_hooked = bool(m._forward_hooks or m._forward_pre_hooks)
        return is_hooked or isinstance(m, Branchless) or super().is_leaf_module(m, module_qualified_name)

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
        if type(module) in PAIRED:
            regions.found.append(_pair(f"{name}'s neurons", module))
    return regions


def _pair(name: str, layer: Any) -> Region:
    """The two linear layers of a transformer layer, with what is between them."""
    pair = nn.Sequential(layer.linear1, _Function(layer.activation), layer.linear2)
    region = Region(name, fx.GraphModule(pair, _Tracer().trace(pair)), (layer.linear1.weight.detach()[:1],))
    region.trace_shapes()
    return region


def _collect(module: nn.Module, name: str, inputs: dict[str, tuple[Any, ...] | str], regions: Regions) -> None:
    """Trace a module, or else its children; why not, is noted."""
    given = inputs.get(name, "it is not called")
    tracer, opaque = _Tracer(), dict[str, str]()
    try:
        if isinstance(given, str):
            raise ValueError(given)
        graph = fx.GraphModule(module, tracer.trace(module))
        if (node := _changes_its_input(graph)) is not None:
            raise ValueError(f"{node} works in place on what others read")
        graph.graph.eliminate_dead_code()
        region = Region(name, graph, given)
        region.trace_shapes()
        regions.found.append(region)
        opaque = {f"{name}.{inner}".lstrip("."): reason for inner, reason in tracer.opaque.items()}
    except Exception as error:
        if list(module.children()):  # a layer of its own has nothing to lose
            opaque = {name: _reason(error)}
    for each, reason in opaque.items():
        part = module.get_submodule(each.removeprefix(name).lstrip("."))
        if not each or (each in inputs and not type(part).__module__.startswith("torch.nn.")):
            # Torch's own layers, and lists of layers, go without saying.
            regions.left_alone[each or "the model"] = reason
        for child, inner in part.named_children():
            _collect(inner, f"{each}.{child}".lstrip("."), inputs, regions)


def _changes_its_input(graph: fx.GraphModule) -> fx.Node | None:
    """The first node that changes in place what another node reads, or what its caller gave it."""
    modules = dict(graph.named_modules())
    for node in graph.graph.nodes:
        if not _is_in_place(node, modules):
            continue
        source = node.args[0] if node.args else None
        if not node.users or node.target is operator.setitem:
            return node  # type: ignore[no-any-return]
        while isinstance(source, fx.Node):
            if len(source.users) > 1:
                return node  # type: ignore[no-any-return]
            is_view = str(source.target) in _VIEWS or source.target in (torch.flatten, torch.reshape, operator.getitem)
            is_view |= source.op == "call_module" and type(modules[str(source.target)]) in (nn.Flatten, nn.Identity)
            source = source.args[0] if is_view and source.args else None
    return None


def _is_in_place(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return bool(getattr(modules[str(node.target)], "inplace", False))
    if node.op == "call_method":
        return str(node.target).endswith("_") and not str(node.target).endswith("__")
    if node.op != "call_function":
        return False
    name = getattr(node.target, "__name__", "")
    is_marked = node.kwargs.get("inplace") or "out" in node.kwargs or any(x is True for x in node.args[1:])
    return bool(node.target in _IN_PLACE or is_marked or (name.endswith("_") and not name.endswith("__")))


def _inputs(model: nn.Module, example: tuple[Any, ...]) -> dict[str, tuple[Any, ...] | str]:
    """What each module is called with, if that is tensors alone; else the reason why it is not taken."""
    found: dict[str, tuple[Any, ...] | str] = {}

    def look(name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        is_simple = not kwargs and all(isinstance(x, Tensor) for x in args)
        found.setdefault(name, args if is_simple else "it is called with other things than tensors, or by keyword")

    watch_call(model, example, look)
    return found


class _Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        """The function's value."""
        return self.function(x)


def replace_module(model: nn.Module, name: str, other: nn.Module) -> nn.Module:
    """The model with another module under a name, in place; under "", the other module itself."""
    if not name:
        return other
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, other)
    return model


def owned(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> Iterator[tuple[str, Any]]:
    """The plain modules of some types, by name."""
    return ((name, module) for name, module in model.named_modules() if is_plain(module, kinds))


def _reason(error: Exception) -> str:
    first = str(error).strip().splitlines()
    return first[0] if first else type(error).__name__
