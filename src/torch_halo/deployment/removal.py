"""Dead structure removed: channels, neurons and branches that do nothing, or nothing but add a constant."""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils.flop_counter import FlopCounterMode

from torch_halo.deployment.channels import analyse
from torch_halo.deployment.comparison import answers, as_inputs, difference, own_copy
from torch_halo.deployment.kinds import BATCH_NORMS, LAYERS, is_padded
from torch_halo.deployment.regions import Branchless, Region, find_regions, owned, replace_module
from torch_halo.deployment.spaces import Reader, Space


@dataclass(frozen=True)
class Removal:
    """A model without its dead structure, and what that came to; print it."""

    model: nn.Module
    parameters: tuple[int, int]  # before and after
    flops: tuple[int, int]  # of the example
    layers: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)  # those that changed
    gone: tuple[str, ...] = ()  # layers that were removed as a whole
    left_alone: dict[str, str] = field(default_factory=dict)  # what could not be traced, and why

    def __str__(self) -> str:
        lines = [
            f"parameters {self.parameters[0]:,} -> {self.parameters[1]:,}, FLOPs {self.flops[0]:,} -> {self.flops[1]:,}"
        ]
        lines += [f"{name}: {_by(before)} -> {_by(after)}" for name, (before, after) in self.layers.items()]
        lines += [f"{name}: gone" for name in self.gone]
        return "\n".join([*lines, *(f"left alone: {name} ({why})" for name, why in self.left_alone.items())])


def remove_dead(model: nn.Module, example_input: Any) -> Removal:
    """A copy of a model, in evaluation mode, without what its zeros have made idle.

    A channel or neuron goes if all weights that make it, or all that read it, are zero; what it still
    added, through its bias and batch norm's shift, is added to the biases of those that read it, so
    that the outputs stay. Behind zero padding such a constant is none at the edges; of several of
    these one is kept, which speaks for all. A residual branch that is constant becomes a constant.
    What torch.fx cannot trace is left alone, and named, as is what would change the outputs for the
    example, or for the same negated or enlarged. The model's class and its parameters' names stay.
    """
    inputs, whole = as_inputs(example_input), own_copy(model)
    wanted, left_alone = answers(whole, inputs), find_regions(whole, inputs).left_alone
    small = _attempt(whole, inputs, wanted, None, {})
    if small is None:  # find the part at fault
        small = whole
        for name in [region.name for region in find_regions(whole, inputs).found]:
            small = _attempt(small, inputs, wanted, name, left_alone) or small
    before, after = ({name: tuple(layer.weight.shape) for name, layer in owned(m, LAYERS)} for m in (whole, small))
    return Removal(
        small,
        (count_parameters(whole), count_parameters(small)),
        (_flops(whole, inputs), _flops(small, inputs)),
        {name: (shape, after[name]) for name, shape in before.items() if after.get(name, shape) != shape},
        tuple(name for name in before if name not in after),
        left_alone,
    )


def _attempt(
    model: nn.Module, inputs: tuple[Any, ...], wanted: list[Tensor], only: str | None, left_alone: dict[str, str]
) -> nn.Module | None:
    """A copy without dead structure, in all regions or in one only; None, and the reason noted, if it differs."""
    small = own_copy(model)
    try:
        while sum(_step(small, region) for region in find_regions(small, inputs).found if only in (None, region.name)):
            pass
        found = difference(answers(small, inputs), wanted)
        if not found.too_large:
            return small
        reason = f"its outputs would differ by {found}"
    except Exception as error:  # whatever a forward does with sizes and attributes that are not as they were
        reason = f"it would fail: {error}".splitlines()[0]
    left_alone[only or "the model"] = reason
    return None


def _step(model: nn.Module, region: Region) -> bool:
    """Remove what can be seen to be idle in a region, in place; whether there was any."""
    found = analyse(region.graph)
    if not found.branches:
        return sum(_cut(space) for space in found.spaces if not space.frozen) > 0
    for branch in found.branches:
        dtype = next(model.parameters()).dtype
        _replace(model, region, branch.node, Branchless(branch.value.to(dtype), branch.axes_after))
        idle = {branch.node}
        for node in reversed(list(region.graph.graph.nodes)):
            if node.users and set(node.users) <= idle and node.op == "call_module":
                _replace(model, region, node, nn.Identity())
            if node.users and set(node.users) <= idle and node.op != "placeholder":
                idle.add(node)
    return True


def _replace(model: nn.Module, region: Region, node: fx.Node, other: nn.Module) -> None:
    replace_module(model, ".".join(filter(None, [region.name, str(node.target)])), other)


def _cut(space: Space) -> bool:
    """Remove from a space all channels that no reader needs; whether there were any."""
    gone = torch.ones(space.size, dtype=torch.bool, device=_device(space))
    for reader in space.readers:
        gone &= _unread(reader) | _foldable(reader)
    spokesman = None
    if len(space.readers) == 1 and is_padded(space.readers[0].layer):
        spokesman = _spokesman(space.readers[0], gone)
    if spokesman is not None:
        gone |= _constant(space.readers[0])
        gone[spokesman] = False
    elif bool(gone.all()):
        gone[0] = False  # torch has no layers without channels
    if not gone.any():
        return False
    for reader in space.readers:
        _fold(reader, gone, spokesman)
    _keep(space, (~gone).nonzero().flatten())
    return True


def _spokesman(reader: Reader, gone: Tensor) -> int | None:
    """The channel that can speak for all constant ones behind padding, if there are others."""
    those = _constant(reader) & ~gone
    if int(those.sum()) < 2:
        return None
    return int(torch.where(those, reader.value.abs(), -1.0).argmax())


def _unread(reader: Reader) -> Tensor:
    """Channels of which all weights are zero."""
    return ~_by_channel(reader).any(dim=(0, 2))


def _foldable(reader: Reader) -> Tensor:
    """Channels that are constant where they are read, up to the edges."""
    value = reader.value.reshape(-1, reader.repeat)
    return _constant(reader) & ((value == 0).all(1) | (not is_padded(reader.layer)))


def _constant(reader: Reader) -> Tensor:
    return reader.known.reshape(-1, reader.repeat).all(1)


def _by_channel(reader: Reader) -> Tensor:
    """The weight as (outputs, channels, all that belongs to one)."""
    weight = reader.layer.weight.detach()
    return weight.reshape(len(weight), reader.known.numel() // reader.repeat, -1)


@torch.no_grad()
def _fold(reader: Reader, gone: Tensor, spokesman: int | None) -> None:
    """Add what the channels that go had to say to the bias, or to the weight of the one that speaks for them."""
    weight, value = _by_channel(reader).double(), reader.value.reshape(-1, reader.repeat)
    layer = reader.layer
    those = gone & _constant(reader)
    if spokesman is not None:
        share = torch.where(those[:, None], value, 0.0) / value[spokesman]
        added = (weight * share).sum(1)
        layer.weight[:, spokesman] += added.reshape(layer.weight[:, spokesman].shape).to(layer.weight.dtype)
        return
    of_each = value.repeat_interleave(weight.shape[2] // reader.repeat, dim=1)
    added = (weight * torch.where(those[:, None], of_each, 0.0)).sum((1, 2))
    if added.any():
        before = 0.0 if layer.bias is None else layer.bias.double()
        layer.bias = nn.Parameter((before + added).to(layer.weight.dtype))


@torch.no_grad()
def _keep(space: Space, kept: Tensor) -> None:
    """Let some channels stay, in all layers that have them."""
    for layer in space.makers:
        layer.weight = nn.Parameter(layer.weight[kept])
        if layer.bias is not None:
            layer.bias = nn.Parameter(layer.bias[kept])
        setattr(layer, "out_features" if isinstance(layer, nn.Linear) else "out_channels", len(kept))
    for reader in space.readers:
        layer, places = reader.layer, torch.arange(reader.repeat, device=kept.device)
        columns = (kept[:, None] * reader.repeat + places).flatten()
        layer.weight = nn.Parameter(layer.weight[:, columns])
        setattr(layer, "in_features" if isinstance(layer, nn.Linear) else "in_channels", len(columns))
    for module in space.passers:
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if tensor.ndim:  # but for the number of batches
                is_parameter, chosen = isinstance(tensor, nn.Parameter), tensor[kept]
                setattr(module, name, nn.Parameter(chosen, tensor.requires_grad) if is_parameter else chosen)
        if isinstance(module, BATCH_NORMS):
            module.num_features = len(kept)


def _device(space: Space) -> torch.device:
    return (space.makers + [reader.layer for reader in space.readers])[0].weight.device


def count_parameters(model: nn.Module) -> int:
    """How many numbers its parameters have."""
    return sum(parameter.numel() for parameter in model.parameters())


def _flops(model: nn.Module, inputs: tuple[Any, ...]) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*copy.deepcopy(inputs))
    return int(counter.get_total_flops())


def _by(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
