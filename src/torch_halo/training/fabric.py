"""Processes, devices and precision, by lightning-fabric."""

import logging
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torch_halo.checks import extra
from torch_halo.training.settings import Compute

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def launch(compute: Compute) -> "Fabric":
    """Start the processes of a run, unless a launcher such as torchrun has; each then has its rank."""
    with extra("train", "training"):
        from lightning_fabric import Fabric
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    # Two processes on one core each is what was asked for.
    warnings.filterwarnings("ignore", message=".*is only recommended for|.*barrier\\(\\)", module="lightning_fabric")
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


def agreed(fabric: "Fabric", *flags: bool) -> list[bool]:
    """Which of the flags any process has raised: all of them must act alike."""
    if fabric.world_size == 1:
        return list(flags)
    raised = fabric.all_reduce(torch.tensor(flags, dtype=torch.int32, device=fabric.device), reduce_op="max")
    return [bool(flag) for flag in raised.tolist()]  # type: ignore[union-attr]


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
