"""Channels along a graph: which axes hold the same ones, who makes and who reads them, and which are constant.

A *space* is a set of channels that several layers share: a convolution makes them, batch norm and
ReLU pass them on, additions tie two spaces into one, other layers read them. A channel can only be
removed from all of them at once. A channel is *constant* at a node if its value there depends on
no input: its filter is zero, say, so that it is its bias, which batch norm and ReLU turn into
another constant.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from torch_halo.deployment.regions import Elementwise

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
Layer = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear

_ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh),
    *(nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softplus, nn.Softsign, nn.Identity, Elementwise),
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout),
)
_FUNCTIONS = {
    *(F.relu, torch.relu, torch.relu_, F.relu6, F.leaky_relu, F.elu, F.gelu, F.silu, F.mish, F.hardswish),
    *(torch.sigmoid, torch.tanh, F.sigmoid, F.tanh, F.hardtanh, F.softplus),
}
_METHODS = {"relu", "relu_", "sigmoid", "tanh", "contiguous", "clone", "float"}
_POOLS = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
)
_AVERAGE_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_POOL_FUNCTIONS = {
    *(F.max_pool1d, F.max_pool2d, F.max_pool3d, torch.max_pool1d, torch.max_pool2d, torch.max_pool3d),
    *(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d),
}
_ADDITIONS = {operator.add, operator.iadd, torch.add}
_SHAPES = {"size", "dim"}


class Shift(nn.Module):
    """Adds a constant to each channel: what a removed branch had to say."""

    def __init__(self, shift: Tensor, axes_after: int) -> None:
        super().__init__()
        self.axes_after = axes_after
        self.shift = nn.Parameter(shift, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """x, shifted."""
        return x + self.shift.reshape(-1, *[1] * self.axes_after)


@dataclass
class Reader:
    """A layer that reads a space's channels: each of them in `repeat` places, with constants as they arrive there."""

    layer: Layer
    repeat: int
    value: Tensor
    known: Tensor


@dataclass
class Space:
    """Channels that stand or fall together."""

    size: int
    frozen: bool = False
    makers: list[Layer] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    passers: list[nn.Module] = field(default_factory=list)  # with parameters of their own for each channel
    tied: "Space | None" = None

    def root(self) -> "Space":
        """The space that it is a part of."""
        return self if self.tied is None else self.tied.root()

    def tie(self, other: "Space") -> None:
        """Make one of two."""
        mine, its = self.root(), other.root()
        if mine is its:
            return
        its.tied = mine
        mine.frozen |= its.frozen or mine.size != its.size
        mine.makers += its.makers
        mine.readers += its.readers
        mine.passers += its.passers


@dataclass
class Channels:
    """A node's channels: their space, their axis, how often each is repeated, and their constants."""

    space: Space
    axis: int
    repeat: int
    value: Tensor
    known: Tensor

    def after(self, value: Tensor | None = None, known: Tensor | None = None, axis: int | None = None) -> "Channels":
        """The same channels behind another operation."""
        return Channels(
            self.space,
            self.axis if axis is None else axis,
            self.repeat,
            self.value if value is None else value,
            self.known if known is None else known,
        )


@dataclass
class Analysis:
    """All spaces of a graph, and the additions of which one side is constant: (node, constant operand's index)."""

    spaces: list[Space] = field(default_factory=list)
    constant_sides: list[tuple[fx.Node, int, Tensor]] = field(default_factory=list)


class _Walk:
    """Goes along a graph, node by node."""

    def __init__(self, graph: fx.GraphModule) -> None:
        self.modules = dict(graph.named_modules())
        self.at: dict[fx.Node, Channels | None] = {}
        self.result = Analysis()
        called = [self.modules[str(node.target)] for node in graph.graph.nodes if node.op == "call_module"]
        owners = [id(p) for module in set(called) for p in module.parameters(recurse=False)]
        # What is called twice, or has a weight that another one has too, stays as it is.
        self.shared = {
            id(module)
            for module in called
            if called.count(module) > 1 or any(owners.count(id(p)) > 1 for p in module.parameters(recurse=False))
        }

    def run(self, graph: fx.Graph) -> Analysis:
        for node in graph.nodes:
            self.at[node] = self._of(node)
        self.result.spaces = [space for space in self.result.spaces if space.tied is None]
        return self.result

    def _of(self, node: fx.Node) -> Channels | None:
        if not isinstance(_shape(node), torch.Size):
            if node.op == "output" or not _is_shape(node):
                self._freeze(node)
            return None
        source = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        given, rule = self.at.get(source) if source is not None else None, self._rule(node)
        if given is None and rule == self._layer:
            given = self._outside(self.modules[str(node.target)], len(_shape(node)))
        found = None if given is None or rule is None else rule(node, given)
        if found is None:
            self._freeze(node)
        return found

    def _rule(self, node: fx.Node) -> Callable[[fx.Node, Channels], Channels | None] | None:
        if node.op == "call_module":
            module = self.modules[str(node.target)]
            if isinstance(module, (nn.Linear, *CONVOLUTIONS)):
                return self._layer
            if isinstance(module, (_BatchNorm, Shift)):
                return self._passer
            if isinstance(module, _ELEMENTWISE):
                return self._elementwise
            if isinstance(module, (*_POOLS, *_AVERAGE_POOLS)):
                return self._pool
            return self._flatten if isinstance(module, nn.Flatten) else None
        target = node.target
        if target in _ADDITIONS:
            return self._add
        if target in _FUNCTIONS or target in _METHODS:
            return self._elementwise
        if target in _POOL_FUNCTIONS:
            return self._same
        if target is F.dropout:
            return self._dropout
        if target in (torch.flatten, "flatten", "view", "reshape", torch.reshape):
            return self._flatten
        return self._mean if target in ("mean", torch.mean) else None

    def _outside(self, layer: Layer, axes: int) -> Channels:
        """Channels that come from an input or from something unknown: they stay, and nothing is known of them."""
        size = layer.weight.shape[1]
        axis = axes - 1 if isinstance(layer, nn.Linear) else 1
        nothing = torch.zeros(size, device=layer.weight.device)
        return Channels(Space(size, frozen=True), axis, 1, nothing.double(), nothing.bool())

    def _layer(self, node: fx.Node, given: Channels) -> Channels | None:
        layer = self.modules[str(node.target)]
        assert isinstance(layer, (nn.Linear, *CONVOLUTIONS))
        axes = len(_shape(node))
        is_linear = isinstance(layer, nn.Linear)
        axis = axes - 1 if is_linear else 1
        if id(layer) in self.shared or given.axis != axis or (not is_linear and given.repeat != 1):
            return None
        if not is_linear and (layer.groups != 1 or layer.padding_mode != "zeros"):
            return None
        given.space.root().readers.append(Reader(layer, given.repeat, given.value, given.known))
        return self._made(layer, given.value, given.known, axis)

    def _made(self, layer: Layer, value: Tensor, known: Tensor, axis: int) -> Channels:
        """The channels of a layer's output: constant where it reads nothing but constants."""
        weight = layer.weight.detach().double().flatten(2).sum(2) if layer.weight.ndim > 2 else layer.weight.double()
        reads = layer.weight.detach().flatten(2).any(2) if layer.weight.ndim > 2 else layer.weight != 0
        usable = known & ((value == 0) | (not is_padded(layer)))
        constant = ~(reads & ~usable).any(1)
        bias = torch.zeros(len(weight)).double() if layer.bias is None else layer.bias.detach().double()
        level = bias.to(weight.device) + weight.detach() @ torch.where(usable, value, 0.0)
        space = Space(len(weight), makers=[layer])
        self.result.spaces.append(space)
        return Channels(space, axis, 1, level, constant)

    def _passer(self, node: fx.Node, given: Channels) -> Channels | None:
        module = self.modules[str(node.target)]
        if id(module) in self.shared or given.repeat != 1:
            return None
        if isinstance(module, _BatchNorm) and (given.axis != 1 or module.running_mean is None or module.training):
            return None
        given.space.root().passers.append(module)
        return given.after(self._applied(module, given, node))

    def _applied(self, module: nn.Module, given: Channels, node: fx.Node) -> Tensor:
        """What becomes of the constants."""
        if isinstance(module, Shift):
            return given.value + module.shift.detach().double()
        assert isinstance(module, _BatchNorm)
        with torch.no_grad():
            scale, shift = batch_norm_line(module)
            return given.value * scale + shift

    def _elementwise(self, node: fx.Node, given: Channels) -> Channels | None:
        rest = node.args[1:]
        if any(isinstance(x, fx.Node) for x in (*rest, *node.kwargs.values())):
            return None
        value = given.value.clone()
        with torch.no_grad():
            if node.op == "call_module":
                return given.after(self.modules[str(node.target)](value))
            if node.op == "call_method":
                return given.after(value if node.target == "float" else getattr(value, str(node.target))(*rest))
            assert callable(node.target)
            settings = {key: x for key, x in node.kwargs.items() if key != "inplace"}
            return given.after(node.target(value, *rest, **settings))

    def _same(self, node: fx.Node, given: Channels) -> Channels | None:
        return given if given.axis == 1 else None

    def _dropout(self, node: fx.Node, given: Channels) -> Channels | None:
        settings = dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
        return None if settings.get("training", True) else given

    def _pool(self, node: fx.Node, given: Channels) -> Channels | None:
        module = self.modules[str(node.target)]
        if given.axis != 1 or given.repeat != 1:
            return None
        if isinstance(module, _AVERAGE_POOLS):
            if getattr(module, "divisor_override", None):
                return None
            if any(_tuple(module.padding)):  # its zeros are averaged in
                return given.after(known=given.known & (given.value == 0))
        return given

    def _flatten(self, node: fx.Node, given: Channels) -> Channels | None:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        before, after = _shape(source), _shape(node)
        if before == after:
            return given
        if given.axis != 1 or len(after) != 2 or after[0] != before[0] or given.repeat != 1:
            return None
        repeat = before[2:].numel()
        value, known = given.value.repeat_interleave(repeat), given.known.repeat_interleave(repeat)
        return Channels(given.space, 1, repeat, value, known)

    def _mean(self, node: fx.Node, given: Channels) -> Channels | None:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        before, after = _shape(source), _shape(node)
        is_pool = given.axis == 1 and given.repeat == 1 and after[:2] == before[:2]
        return given if is_pool and set(after[2:]) <= {1} else None

    def _add(self, node: fx.Node, given: Channels) -> Channels | None:
        sides = node.args[:2]
        both = [self.at.get(side) if isinstance(side, fx.Node) else None for side in sides]
        left, right = both
        if left is None or right is None or node.kwargs or _shape(sides[0]) != _shape(sides[1]):
            return None
        if left.axis != right.axis or left.repeat != right.repeat:
            return None
        for i, side in enumerate((left, right)):
            if side.known.all() and side.repeat == 1:
                self.result.constant_sides.append((node, i, side.value))
                break
        left.space.root().tie(right.space)
        return left.after(left.value + right.value, left.known & right.known)

    def _freeze(self, node: fx.Node) -> None:
        for source in node.all_input_nodes:
            given = self.at.get(source)
            if given is not None:
                given.space.root().frozen = True


def analyse(graph: fx.GraphModule) -> Analysis:
    """The spaces of a traced model in evaluation mode, whose nodes know their shapes."""
    return _Walk(graph).run(graph.graph)


def is_padded(layer: Layer) -> bool:
    """Whether zeros stand around what a layer reads, so that a constant is none at the edges."""
    if isinstance(layer, nn.Linear):
        return False
    return layer.padding == "same" or (layer.padding != "valid" and any(_tuple(layer.padding)))


def batch_norm_line(module: _BatchNorm) -> tuple[Tensor, Tensor]:
    """What batch norm is in evaluation: scale·x + shift, by channel."""
    assert module.running_mean is not None
    assert module.running_var is not None
    weight = torch.ones_like(module.running_mean) if module.weight is None else module.weight
    bias = torch.zeros_like(module.running_mean) if module.bias is None else module.bias
    scale = weight.double() / (module.running_var.double() + module.eps).sqrt()
    return scale, bias.double() - module.running_mean.double() * scale


def _shape(node: Any) -> Any:
    meta = node.meta.get("tensor_meta") if isinstance(node, fx.Node) else None
    return getattr(meta, "shape", None)


def _is_shape(node: fx.Node) -> bool:
    """Whether a node only asks for sizes."""
    return (
        node.target in _SHAPES
        or (node.target is getattr and node.args[1] == "shape")
        or node.target is operator.getitem
    )


def _tuple(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
