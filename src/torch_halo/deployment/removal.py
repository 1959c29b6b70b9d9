"""Dead structure removed: channels, neurons and branches that do nothing, or nothing but add a constant."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

from torch_halo.deployment.channels import Layer, Reader, Shift, Space, analyse, is_padded
from torch_halo.deployment.comparison import as_inputs, difference, outputs
from torch_halo.deployment.regions import Region, find_regions


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
    What torch.fx cannot trace is left alone, and named. The names of parameters stay.
    """
    inputs = as_inputs(example_input)
    small = copy.deepcopy(model).eval()
    regions = find_regions(small, inputs)
    before = {name: tuple(module.weight.shape) for name, module in _layers(small)}
    wanted = outputs(small, inputs)
    flops = _flops(small, inputs)
    for region in regions.found:
        small = _reduced(small, region)
    after = {name: tuple(module.weight.shape) for name, module in _layers(small)}
    found = difference(outputs(small, inputs), wanted)
    if found.too_large:
        raise ValueError(f"without its dead structure the model's outputs would differ by {found}")
    return Removal(
        small,
        (_count(model), _count(small)),
        (flops, _flops(small, inputs)),
        {name: (shape, after[name]) for name, shape in before.items() if after.get(name, shape) != shape},
        tuple(name for name in before if name not in after),
        regions.left_alone,
    )


def _reduced(model: nn.Module, region: Region) -> nn.Module:
    """The model after all that can go from a region went; a region whose graph changed takes its module's place."""
    is_changed = False
    while True:
        region.shapes()
        found = analyse(region.graph)
        if found.constant_sides:
            _drop_side(region, *found.constant_sides[0])
            is_changed = True
        elif not sum(_cut(space) for space in found.spaces if not space.frozen):
            break
    if not is_changed:
        return model
    if not region.name:
        return region.graph
    parent, _, own = region.name.rpartition(".")
    setattr(model.get_submodule(parent), own, region.graph)
    return model


def _drop_side(region: Region, node: Any, index: int, value: Tensor) -> None:
    """Replace x + constant by x, or by x shifted."""
    graph, other = region.graph, node.args[1 - index]
    axes = len(node.meta["tensor_meta"].shape)
    if value.any():
        number = sum(isinstance(module, Shift) for module in graph.modules())
        dtype = next(graph.parameters()).dtype
        graph.add_submodule(f"shift_{number}", Shift(value.to(dtype), axes - 2))
        with graph.graph.inserting_before(node):
            other = graph.graph.call_module(f"shift_{number}", (other,))
    node.replace_all_uses_with(other)
    graph.graph.eliminate_dead_code()
    graph.delete_all_unused_submodules()
    graph.recompile()


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
                chosen = tensor[kept]
                setattr(module, name, nn.Parameter(chosen) if isinstance(tensor, nn.Parameter) else chosen)
        if isinstance(module, _BatchNorm):
            module.num_features = len(kept)


def _layers(model: nn.Module) -> Iterator[tuple[str, Layer]]:
    return (
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))
    )


def _device(space: Space) -> torch.device:
    return (space.makers + [reader.layer for reader in space.readers])[0].weight.device


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _flops(model: nn.Module, inputs: tuple[Any, ...]) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*copy.deepcopy(inputs))
    return int(counter.get_total_flops())


def _by(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
