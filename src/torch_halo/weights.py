"""One selected weight: its name, how its axes are to be read, and its part on this process."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

if dist.is_available():
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.device_mesh import DeviceMesh


def _as_is(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class Axes:
    """How a weight's axes are to be read when its entries are put into groups.

    `out` is the axis of the output channels: 0 for `nn.Linear` and convolutions, 1 for transposed
    convolutions and Transformers' `Conv1D`. `conv_groups` is the convolution's own `groups`.
    Where shards cut groups, `add_shards` adds up the partial sums of the `copies` processes that
    hold parts of the same groups, and each of them then has the whole sums.
    """

    out: int = 0
    conv_groups: int = 1
    add_shards: Callable[[Tensor], Tensor] = _as_is
    copies: int = 1


@dataclass(frozen=True)
class Weight:
    """A selected weight of a model."""

    name: str
    parameter: nn.Parameter
    axes: Axes = Axes()

    @property
    def local(self) -> Tensor:
        """The entries that this process holds, sharing memory with the parameter."""
        return local(self.parameter.detach())

    def sharded(self, cut: Sequence[int] | None = None) -> tuple[int, ...]:
        """The mesh axes over which it is sharded (of them, those that cut one of its axes `cut`)."""
        parameter = self.parameter.detach()
        if not is_sharded(parameter):
            return ()
        return tuple(
            axis
            for axis, placement in enumerate(parameter.placements)
            if isinstance(placement, Shard) and (cut is None or placement.dim % parameter.ndim in cut)
        )

    def shard_count(self) -> int:
        """How many shards it is cut into."""
        return math.prod(_mesh(self.parameter).size(axis) for axis in self.sharded())

    def shard_index(self) -> int:
        """Which of its shards this process holds."""
        index = 0
        for axis in self.sharded():
            mesh = _mesh(self.parameter)
            index = index * mesh.size(axis) + mesh.get_local_rank(axis)
        return index

    def with_shards(self, cut: Sequence[int]) -> "Weight":
        """Itself, with `axes.add_shards` set where shards cut one of the axes `cut`."""
        mesh_axes = self.sharded(cut)
        if not mesh_axes:
            return self
        if self.axes.conv_groups > 1:
            raise ValueError(
                f"{self.name}: groups of a grouped convolution (groups={self.axes.conv_groups}) cannot be "
                "formed when its shards cut them; keep this layer whole or leave it out with select"
            )

        def add_shards(partial: Tensor) -> Tensor:
            return _all_reduced(partial, self.parameter, mesh_axes)

        copies = math.prod(_mesh(self.parameter).size(axis) for axis in mesh_axes)
        return replace(self, axes=replace(self.axes, add_shards=add_shards, copies=copies))


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's own module inside torch.compile and DistributedDataParallel, so that names stay the same."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def is_sharded(tensor: Tensor) -> "TypeGuard[DTensor]":
    """Whether the tensor is a DTensor, as under FSDP2 or tensor parallelism."""
    return dist.is_available() and isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds (all of it, unless it is a DTensor)."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def gathered(tensor: Tensor) -> Tensor:
    """All of a tensor, gathered from its shards where it has any: every process must ask for it."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def sum_shards(numbers: Sequence[Tensor], weights: Sequence[Weight]) -> list[Tensor]:
    """For each weight, the sum of its shards' `numbers`: one message for all weights of a mesh.

    The numbers must have one shape. This and `Axes.add_shards` are all that communicates.
    """
    totals = list(numbers)
    meshes: dict[object, list[int]] = {}
    for i, weight in enumerate(weights):
        if weight.sharded():
            meshes.setdefault((_mesh(weight.parameter), weight.sharded()), []).append(i)
    for members in meshes.values():
        first = weights[members[0]]
        stacked = torch.stack([numbers[i] for i in members])
        summed = _all_reduced(stacked, first.parameter, first.sharded())
        for i, total in zip(members, summed.unbind(), strict=True):
            totals[i] = total
    return totals


def each_shard(numbers: Sequence[Tensor], weights: Sequence[Weight]) -> Tensor:
    """A row a weight with the numbers of all its shards in order, from each process's own (0 beyond the last)."""
    most = max(weight.shard_count() for weight in weights)
    rows = [number.new_zeros(most) for number in numbers]
    for row, number, weight in zip(rows, numbers, weights, strict=True):
        row[weight.shard_index()] = number
    return stacked(sum_shards(rows, weights))


def distributed_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor of the parameter's shape, on its device and sharded as it is."""
    tensor = tensor.to(parameter.device)
    if not is_sharded(parameter) or is_sharded(tensor):
        return tensor
    return distribute_tensor(tensor, parameter.device_mesh, parameter.placements)


def reduced(tensor: Tensor) -> Tensor:
    """The result of a reduction, whole on each process where it went over shards."""
    if not is_sharded(tensor):
        return tensor
    placements = [Replicate() if isinstance(p, Partial) else p for p in tensor.placements]
    return tensor.redistribute(placements=placements)


def sharded_like(part: Tensor, parameter: Tensor) -> Tensor:
    """A tensor shaped and sharded like the parameter, from the part that this process holds."""
    if not is_sharded(parameter):
        return part
    return DTensor.from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def stacked(numbers: Sequence[Tensor]) -> Tensor:
    """Small tensors of several weights in one, on the first's device: layers may lie on several."""
    return torch.stack([number.to(numbers[0].device) for number in numbers])


def _all_reduced(partial: Tensor, parameter: Tensor, mesh_axes: Sequence[int]) -> Tensor:
    total = partial.clone()
    for axis in mesh_axes:
        dist.all_reduce(total, group=_mesh(parameter).get_group(axis))
    return total


def _mesh(parameter: Tensor) -> "DeviceMesh":
    assert is_sharded(parameter)
    return parameter.device_mesh
