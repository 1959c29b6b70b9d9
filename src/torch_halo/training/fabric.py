"""Processes, devices and precision, by lightning-fabric."""

import gc
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn

from torch_halo.checks import extra
from torch_halo.training.settings import Compute

if TYPE_CHECKING:
    from lightning_fabric import Fabric


T = TypeVar("T")
PROBLEMS = (FloatingPointError, ImportError, OSError, ValueError)  # what is told to a person


def launch(compute: Compute) -> "Fabric":
    """Start the processes of a run, unless a launcher such as torchrun has; each then has its rank."""
    with extra("train", "training"):
        from lightning_fabric import Fabric
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    try:
        fabric = Fabric(
            accelerator=compute.accelerator,
            devices=compute.devices,
            num_nodes=compute.nodes,
            strategy=_sharded(compute.devices * compute.nodes) if compute.strategy == "fsdp" else compute.strategy,
            precision=compute.precision,  # type: ignore[arg-type]
        )
    except (RuntimeError, TypeError) as error:  # fabric's words for what this machine does not have
        raise ValueError(f"cannot run with {compute}: {error}") from error
    fabric.launch()
    return fabric


@contextmanager
def parting() -> Iterator[None]:
    """Part from the other processes in the end, however it comes.

    Threads of gloo that outlive the interpreter now and then abort it. Whoever holds the group last
    waits for them, and DDP's reducer would wait with the interpreter's lock, which they may need
    before they can end: so it goes first, also out of the frames of an exception.
    """
    try:
        yield
    except BaseException as error:
        chain: BaseException | None = error if _is_one_of_many() else None
        while chain is not None:
            traceback.clear_frames(chain.__traceback__)
            chain = chain.__context__
        raise
    finally:
        if _is_one_of_many():
            gc.collect()
            dist.destroy_process_group()


def _is_one_of_many() -> bool:
    return dist.is_available() and dist.is_initialized()


def agreed(fabric: "Fabric", *flags: bool) -> list[bool]:
    """Which of the flags any process has raised: all of them must act alike."""
    if fabric.world_size == 1:
        return list(flags)
    raised = fabric.all_reduce(torch.tensor(flags, dtype=torch.int32, device=fabric.device), reduce_op="max")
    return [bool(flag) for flag in raised.tolist()]  # type: ignore[union-attr]


def each(fabric: "Fabric", act: Callable[[], T]) -> T:
    """Let every process act, and all of them fail if one does."""
    problem, result = None, None
    try:
        result = act()
    except PROBLEMS as error:
        problem = error
    (failed,) = agreed(fabric, problem is not None)
    if problem is not None:
        raise problem
    if failed:
        raise SystemExit(1)  # that process says why
    return cast(T, result)


def together(fabric: "Fabric", act: Callable[[], object]) -> None:
    """Let the first process act, and all of them fail if it does."""
    each(fabric, act if fabric.is_global_zero else lambda: None)


def _sharded(processes: int) -> Any:
    # Not fabric's FSDPStrategy, which refuses the CPU: FSDP2's fully_shard gives DTensors anywhere.
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy

    # Its own default is tensor parallelism within a machine.
    return ModelParallelStrategy(_shard, data_parallel_size=processes, tensor_parallel_size=1)


def _shard(model: nn.Module, mesh: Any) -> nn.Module:
    """Each layer with weights for itself, then what is left."""
    from torch.distributed.fsdp import fully_shard

    for module in model.modules():
        if module is not model and next(module.parameters(recurse=False), None) is not None:
            fully_shard(module, mesh=mesh["data_parallel"])
    fully_shard(model, mesh=mesh["data_parallel"])
    return model
