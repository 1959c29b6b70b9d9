"""Channels along a graph: which axes hold the same ones, who makes and who reads them, and which are constant.

A channel is *constant* at a node if its value there depends on no input: its filter is zero, say, so
that it is its bias, which batch norm and ReLU turn into another constant.
"""

import operator
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from torch_halo.deployment.kinds import BATCH_NORMS, LAYERS, Layer, batch_norm_line, is_padded
from torch_halo.deployment.regions import Branchless, is_plain
from torch_halo.deployment.spaces import Analysis, Branch, Channels, Reader, Space

_ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.Tanh),
    *(nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Softplus, nn.Softsign, nn.Identity),
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


class _Walk:
    """Goes along a graph, node by node."""

    def __init__(self, graph: fx.GraphModule) -> None:
        self.modules = dict(graph.named_modules())
        self.at: dict[fx.Node, Channels | None] = {}
        self.result = Analysis()
        nodes = list(graph.graph.nodes)
        called = [self.modules[str(node.target)] for node in nodes if node.op == "call_module"]
        read = [id(operator.attrgetter(str(node.target))(graph)) for node in nodes if node.op == "get_attr"]
        calls = Counter(map(id, called))
        owners = Counter(read + [id(p) for module in set(called) for p in module.parameters(recurse=False)])
        # What is called twice, or has a weight that is read elsewhere too, stays as it is.
        self.shared = {
            id(module)
            for module in called
            if calls[id(module)] > 1 or any(owners[id(p)] > 1 for p in module.parameters(recurse=False))
        }

    def run(self, graph: fx.Graph) -> Analysis:
        for node in graph.nodes:
            self.at[node] = self._of(node)
        self.result.spaces = [space for space in self.result.spaces if space.tied is None]
        return self.result

    def _of(self, node: fx.Node) -> Channels | None:
        if not isinstance(_shape(node), torch.Size):
            if not self._is_size(node):
                self._freeze(node)
            return None
        source = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
        given, rule = self.at.get(source) if source is not None else None, self._rule(node)
        if given is None and rule in (self._layer, self._branchless):
            given = self._outside(self.modules[str(node.target)], len(_shape(node)))
        found = None if given is None or rule is None else rule(node, given)
        if found is None:
            self._freeze(node)
        return found

    def _rule(self, node: fx.Node) -> Callable[[fx.Node, Channels], Channels | None] | None:
        if node.op == "call_module":
            module = self.modules[str(node.target)]
            rules: dict[tuple[type[nn.Module], ...], Callable[[fx.Node, Channels], Channels | None]] = {
                LAYERS: self._layer,
                BATCH_NORMS: self._batch_norm,
                _ELEMENTWISE: self._elementwise,
                (*_POOLS, *_AVERAGE_POOLS): self._pool,
                (nn.Flatten,): self._flatten,
                (Branchless,): self._branchless,
            }
            return next((rule for kinds, rule in rules.items() if is_plain(module, kinds)), None)
        target = node.target
        if target in _ADDITIONS:
            return self._add
        if target in _FUNCTIONS or target in _METHODS:
            return self._elementwise
        if target in _POOL_FUNCTIONS:
            return self._same
        if target is F.dropout:
            return self._dropout
        if target in (torch.flatten, "flatten", "view", "reshape"):
            return self._flatten
        return self._mean if target in ("mean", torch.mean) else None

    def _outside(self, layer: Any, axes: int) -> Channels:
        """Channels that come from an input or from something unknown: they stay, and nothing is known of them."""
        size = 1 if isinstance(layer, Branchless) else layer.weight.shape[1]
        axis = axes - 1 if isinstance(layer, nn.Linear) else 1
        nothing = torch.zeros(size)
        return Channels(Space(size, frozen=True), axis, 1, nothing.double(), nothing.bool())

    def _is_size(self, node: fx.Node) -> bool:
        """Whether a node only asks for a size that no removed channel changes."""
        source = node.args[0] if node.args else None
        given = self.at.get(source) if isinstance(source, fx.Node) else None
        if node.target == "dim":
            return True
        if (node.target is getattr and node.args[1] == "shape") or (node.target == "size" and len(node.args) == 1):
            return all(user.target is operator.getitem for user in node.users)
        asked = node.args[1] if node.target in ("size", operator.getitem) and len(node.args) > 1 else None
        if node.target is operator.getitem and isinstance(source, fx.Node):
            source = source.args[0]
            given = self.at.get(source) if isinstance(source, fx.Node) else None
        if not isinstance(asked, int):
            return False
        is_channel = given is not None and asked % len(_shape(source)) == given.axis
        if is_channel and given is not None:
            given.space.root().frozen = True
        return True

    def _layer(self, node: fx.Node, given: Channels) -> Channels | None:
        layer = self.modules[str(node.target)]
        assert isinstance(layer, LAYERS)
        axes, is_linear = len(_shape(node)), isinstance(layer, nn.Linear)
        axis = axes - 1 if is_linear else 1
        if id(layer) in self.shared or given.axis != axis or given.is_bare:
            return None
        if not is_linear and (
            layer.groups != 1 or layer.padding_mode != "zeros" or given.repeat != 1 or axes != layer.weight.ndim
        ):
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

    def _batch_norm(self, node: fx.Node, given: Channels) -> Channels | None:
        module = self.modules[str(node.target)]
        assert isinstance(module, BATCH_NORMS)
        if id(module) in self.shared or given.repeat != 1 or given.is_bare:
            return None
        if given.axis != 1 or module.running_mean is None or module.training:
            return None
        given.space.root().passers.append(module)
        scale, shift = batch_norm_line(module)
        return given.after(given.value * scale + shift)

    def _branchless(self, node: fx.Node, given: Channels) -> Channels | None:
        module = self.modules[str(node.target)]
        assert isinstance(module, Branchless)
        value = module.value.detach().double()
        space = Space(len(value), passers=[module])
        self.result.spaces.append(space)
        # Its axis, once it is added to something: that of what has as many axes behind it.
        return Channels(space, -1 - module.axes_after, 1, value, torch.ones_like(value).bool(), is_bare=True)

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
        return given if given.axis == 1 and not given.is_bare else None

    def _dropout(self, node: fx.Node, given: Channels) -> Channels | None:
        settings = dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
        return None if settings.get("training", True) else given

    def _pool(self, node: fx.Node, given: Channels) -> Channels | None:
        module = self.modules[str(node.target)]
        if given.axis != 1 or given.repeat != 1 or given.is_bare:
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
        if node.target in ("view", "reshape"):
            sizes = node.args[1:] if not isinstance(node.args[1], (tuple, list)) else node.args[1]
            if any(isinstance(size, int) and size > 0 for size in sizes[1:]):  # it was written down
                return None
        if given.is_bare or before == after:
            return None if given.is_bare else given
        if given.axis != 1 or len(after) != 2 or after[0] != before[0] or given.repeat != 1:
            return None
        repeat = before[2:].numel()
        value, known = given.value.repeat_interleave(repeat), given.known.repeat_interleave(repeat)
        return Channels(given.space, 1, repeat, value, known)

    def _mean(self, node: fx.Node, given: Channels) -> Channels | None:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        before, after = _shape(source), _shape(node)
        asked: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        axes = (
            {axis % len(before) for axis in (asked if isinstance(asked, (tuple, list)) else [asked])} if asked else {0}
        )
        is_pool = given.axis == 1 and given.repeat == 1 and not given.is_bare and min(axes) > 1
        return given if is_pool and set(after[2:]) <= {1} else None

    def _add(self, node: fx.Node, given: Channels) -> Channels | None:
        sides = node.args[:2]
        left, right = (self.at.get(side) if isinstance(side, fx.Node) else None for side in sides)
        if left is None or right is None or node.kwargs or left.repeat != right.repeat:
            return None
        axes = len(_shape(node))
        if left.is_bare or right.is_bare:
            full, bare = (right, left) if left.is_bare else (left, right)
            if full.is_bare or bare.axis % axes != full.axis:
                return None
        elif _shape(sides[0]) != _shape(sides[1]) or left.axis != right.axis:
            return None
        if not left.is_bare and not right.is_bare:  # of two constant sides one must keep its other axes
            branches = [self._branch(side, axes) for side in sides]
            self.result.branches += [branch for branch in branches if branch is not None][:1]
        left.space.root().tie(right.space)
        found = right if left.is_bare else left
        return found.after(left.value + right.value, left.known & right.known)

    def _branch(self, node: Any, axes: int) -> Branch | None:
        """If one side of an addition is constant, and read by nothing else: the module from which on it is."""
        while isinstance(node, fx.Node) and node.op != "call_module" and len(node.users) == 1:
            node = node.args[0] if node.args else None
        at = self.at.get(node) if isinstance(node, fx.Node) and node.op == "call_module" else None
        if at is None or not at.known.all() or at.is_bare or at.repeat != 1 or len(node.users) != 1:
            return None
        return Branch(node, at.value, axes - 1 - at.axis)

    def _freeze(self, node: fx.Node) -> None:
        for source in node.all_input_nodes:
            given = self.at.get(source)
            if given is not None:
                given.space.root().frozen = True


def analyse(graph: fx.GraphModule) -> Analysis:
    """The spaces of a traced model in evaluation mode, whose nodes know their shapes."""
    return _Walk(graph).run(graph.graph)


def _shape(node: Any) -> Any:
    meta = node.meta.get("tensor_meta") if isinstance(node, fx.Node) else None
    return getattr(meta, "shape", None)


def _tuple(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
