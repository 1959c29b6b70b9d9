"""What each of two processes does in tests/test_distributed.py."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from small import adamw, batches, sgd
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import torch_halo as th
from torch_halo.selection import unwrapped

MAKE = {"sgd": sgd, "adamw": adamw, "sgd-plain": lambda m: sgd(m, momentum=0.0, weight_decay=0.0)}


def run(rank, world, folder, jobs):
    """One process: work through the jobs, and keep what they return."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    torch.save({key: globals()[worker](rank, world, *args) for key, worker, args in jobs}, f"{folder}/result.{rank}")
    dist.barrier()
    dist.destroy_process_group()
    # gloo's threads may still be there at interpreter exit, which then aborts now and then.
    os._exit(0)


def net():
    """Without batch norm, whose statistics differ by process; rows that two processes do not share evenly."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(80, 7), nn.ReLU(), nn.Linear(7, 3)
    ).double()


def train(model, optimizer, data, rank=0, world=1):
    for x, y in data:
        optimizer.zero_grad()
        F.cross_entropy(model(x[rank::world]), y[rank::world]).backward()
        optimizer.step()


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def gathered(model, shrink, masks=None):
    found = {"weights": {name: whole(p.detach()) for name, p in unwrapped(model).named_parameters()}}
    found["lam"] = {name: whole(lam) for name, lam in shrink.coefficients.items()}
    found["value"] = shrink.value()
    if masks is not None:
        found["masks"] = {name: whole(mask) for name, mask in masks.items()}
        found["sparsity"] = masks.sparsity
        found["zeros"] = [layer.zeros for layer in th.sparsity(model).layers]
    return found


def alone(penalty, make, sparsity, tie=False):
    """The same on one process."""
    model = net()
    optimizer = MAKE[make](model)
    shrink = th.Shrinkage(model, penalty, optimizer)
    train(model, optimizer, batches(6))
    return _pruned(model, optimizer, shrink, sparsity, tie)


def _pruned(model, optimizer, shrink, sparsity, tie, rank=0, world=1):
    before = gathered(model, shrink)
    if tie:
        with torch.no_grad():
            for p in model.parameters():
                p.copy_((p * 20).round())  # many equal magnitudes and zeros
    masks = th.prune_(model, sparsity=sparsity, allow_empty=not tie)
    pruned = gathered(model, shrink, masks)
    masks.hold(optimizer)
    train(model, optimizer, batches(2, seed=5), rank, world)
    return before, pruned, gathered(model, shrink, masks)


def ddp(rank, world, penalty, make, sparsity):
    model = DistributedDataParallel(net())
    optimizer = MAKE[make](model)
    shrink = th.Shrinkage(model, penalty, optimizer)
    train(model, optimizer, batches(6), rank, world)
    return _pruned(model, optimizer, shrink, sparsity, False, rank, world)


def sharded():
    mesh = init_device_mesh("cpu", (2,))
    model = net()
    for layer in (model[0], model[3], model[5]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp(rank, world, penalty, make, sparsity, tie=False):
    model = sharded()
    optimizer = MAKE[make](model)
    shrink = th.Shrinkage(model, penalty, optimizer)
    train(model, optimizer, batches(6), rank, world)
    return _pruned(model, optimizer, shrink, sparsity, tie, rank, world)


def target(rank, world, kind):
    """Towards a sparsity, on one process or two."""
    model = {"alone": net, "ddp": lambda: DistributedDataParallel(net()), "fsdp": sharded}[kind]()
    optimizer = MAKE["sgd"](model)
    shrink = th.Shrinkage(model, th.HALO(), optimizer, target_sparsity=0.8, total_steps=20)
    train(model, optimizer, batches(20), rank, world)
    return gathered(model, shrink), [group[shrink._state.strength] for group in optimizer.param_groups]


def fsdp_checkpoint(rank, world, penalty, make, folder):
    """Six steps; and three, saved, loaded into a fresh model, and three more."""
    model = sharded()
    optimizer = MAKE[make](model)
    shrink = th.Shrinkage(model, penalty, optimizer)
    data = list(batches(6))
    train(model, optimizer, data, rank, world)
    expected = gathered(model, shrink)

    model = sharded()
    optimizer = MAKE[make](model)
    shrink = th.Shrinkage(model, penalty, optimizer)
    train(model, optimizer, data[:3], rank, world)
    of_model, of_optimizer = get_state_dict(model, optimizer)
    dcp.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=folder)

    model = sharded()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    optimizer = MAKE[make](model)
    shrink = th.Shrinkage(model, penalty, optimizer)
    of_model, of_optimizer = get_state_dict(model, optimizer)
    state = {"model": of_model, "optimizer": of_optimizer}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    train(model, optimizer, data[3:], rank, world)
    return expected, gathered(model, shrink)


def fsdp_refuses(rank, world):
    """A grouped convolution whose channels' groups are cut by the shards."""
    mesh = init_device_mesh("cpu", (2,))
    model = fully_shard(nn.Conv2d(4, 6, 3, groups=2).double(), mesh=mesh)
    try:
        th.Shrinkage(model, th.SHALO(0.1, groups="in"), sgd(model))
    except ValueError as error:
        return str(error)
    return ""


def fsdp_not_finite(rank, world):
    model = sharded()
    with torch.no_grad():
        if rank == 1:
            model[3].weight.to_local()[0, 0] = torch.nan
    try:
        th.prune_(model, sparsity=0.5)
    except ValueError as error:
        return str(error)
    return ""


def fsdp_stops_together(rank, world):
    """A shard of one process gets a number that is not finite; both must stop."""
    model = sharded()
    optimizer = sgd(model)
    th.Shrinkage(model, th.HALO(1e-3), optimizer)
    with torch.no_grad():
        if rank == 1:
            model[3].weight.to_local()[0, 0] = torch.nan
    try:
        train(model, optimizer, batches(1), rank, world)
    except FloatingPointError as error:
        return str(error)
    return ""


def fsdp_whole_masks(rank, world):
    """Masks of a model on one process, applied to the sharded one."""
    masks = th.prune_(net(), sparsity=0.5)
    model = sharded()
    again = th.Masks(masks.state_dict()).apply_(model)
    again.hold(sgd(model))
    zeros = {name: whole(p.detach()) == 0 for name, p in model.named_parameters() if name in masks}
    return again.sparsity == masks.sparsity and all(torch.equal(zeros[name], ~masks[name]) for name in masks)
