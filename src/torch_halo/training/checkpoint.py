"""Checkpoints: one file that appears whole or not at all, the same for any number of processes.

Shards are gathered before writing and dealt out after reading, so that the file does not depend on
the strategy. It is a pickle of tensors and plain data, read without executing anything.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from torch_halo.files import whole_file
from torch_halo.masks import Masks
from torch_halo.models import read_pickle
from torch_halo.training.fabric import together
from torch_halo.training.session import Session
from torch_halo.weights import distributed_like, gathered

if TYPE_CHECKING:
    from lightning_fabric import Fabric

FORMAT = 1
KEYS = {"run", "model", "optimizer", "masks", "rng", "precision", "progress"}


def save(session: Session, path: Path) -> None:
    """Write the whole state of a training; the file that was there stays until this one is complete."""
    session.share_buffers()
    state = _state(session)

    def write() -> None:
        if bad := _not_finite(state["model"]) or _not_finite(state["optimizer"], "optimizer"):
            raise FloatingPointError(f"{bad} is not finite after {session.where}; the last good checkpoint is kept")
        _write(state, path)

    together(session.fabric, write)


def read(path: Path, run: str) -> Mapping[str, Any]:
    """What a checkpoint of the run holds; nothing in it is executed."""
    found = read_pickle(path, "a checkpoint")
    if not isinstance(found, Mapping) or found.get("format") != FORMAT or not found.keys() >= KEYS:
        raise ValueError(f"{path}: expected a checkpoint of format {FORMAT}; found something else")
    if found["run"] != run:
        raise ValueError(f"{path} is a checkpoint of another configuration, {found['run']}, not {run}")
    return found


def restore(session: Session, found: Mapping[str, Any]) -> None:
    """Bring a session that was just started to where a checkpoint was written."""
    try:
        _load_model(session.module, found["model"])
        if found["masks"] is not None:
            session.hold(Masks(found["masks"]))
        session.torch_optimizer.load_state_dict(_dealt_out(found["optimizer"], session.torch_optimizer))
        _load_progress(session, found["progress"])
        session.fabric.strategy.precision.load_state_dict(found["precision"])
        _restore_random_states(found["rng"][session.fabric.global_rank], session.fabric)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"the checkpoint is damaged: {type(error).__name__} {error}") from error


def _state(session: Session) -> dict[str, Any]:
    """Gather everything; all processes must take part."""
    return {
        "format": FORMAT,
        "run": session.config.name,
        "model": _gathered(session.module.state_dict()),
        "optimizer": _gathered(session.torch_optimizer.state_dict()),
        "masks": None if session.masks is None else _gathered(session.masks.state_dict()),
        "rng": _all_of(_random_states(session.fabric), session.fabric),
        "precision": session.fabric.strategy.precision.state_dict(),  # a loss scaler's
        "progress": _progress(session),
    }


def _not_finite(state: Any, name: str = "") -> str:
    """The first tensor in a state that has numbers that are not finite."""
    if isinstance(state, Tensor):
        return name if state.is_floating_point() and not bool(state.isfinite().all()) else ""
    if isinstance(state, Mapping):
        found = (_not_finite(value, f"{name}.{key}" if name else str(key)) for key, value in state.items())
        return next(filter(None, found), "")
    return ""


def _write(state: Mapping[str, Any], path: Path) -> None:
    try:
        path.parent.mkdir(exist_ok=True)
        with whole_file(path) as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:  # torch's writer turns a full disk into a RuntimeError
        kept = "the last good checkpoint is kept" if path.exists() else "there is none yet"
        raise OSError(f"cannot save the checkpoint {path} ({str(error).splitlines()[0]}); {kept}") from error


def _gathered(state: Any) -> Any:
    if isinstance(state, Tensor):
        return gathered(state)
    if isinstance(state, Mapping):
        return {key: _gathered(value) for key, value in state.items()}
    return [_gathered(item) for item in state] if isinstance(state, (list, tuple)) else state


def _dealt_out(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """The optimizer's state with what is shaped like a sharded parameter sharded like it."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        **state,
        "state": {
            i: {
                key: distributed_like(value, parameters[i])
                if isinstance(value, Tensor) and value.shape == parameters[i].shape
                else value
                for key, value in entry.items()
            }
            for i, entry in state["state"].items()
        },
    }


@torch.no_grad()
def _load_model(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    own = module.state_dict()
    if {name: value.shape for name, value in own.items()} != {name: value.shape for name, value in state.items()}:
        raise ValueError(
            f"the checkpoint does not fit the model: it holds {', '.join(state)}; needed: {', '.join(own)}"
        )
    for name, value in state.items():
        own[name].copy_(distributed_like(value, own[name]))


def _progress(session: Session) -> dict[str, Any]:
    """How far it is, with the sums over all processes."""
    now, fabric = session.progress, session.fabric
    sums = now.sums
    if fabric.world_size > 1:
        sums = fabric.all_reduce(sums, reduce_op="sum")  # type: ignore[assignment]
    place = {"epoch": now.epoch, "position": now.position, "seconds": now.seconds}
    return {**place, "sums": sums, "losses": all_losses(session)}


def all_losses(session: Session) -> Tensor | None:
    """The samples' losses of this epoch so far, of all processes."""
    losses = session.progress.losses
    if losses is None or session.fabric.world_size == 1:
        return losses
    return session.fabric.all_reduce(losses, reduce_op="max")  # type: ignore[return-value]


def _load_progress(session: Session, found: Mapping[str, Any]) -> None:
    now = session.progress
    now.epoch, now.position, now.seconds = found["epoch"], found["position"], found["seconds"]
    if session.fabric.is_global_zero:  # the sums of all processes go on in one of them
        loss, correct, count = found["sums"].tolist()
        now.loss.fill_(loss)
        now.correct.fill_(int(correct))
        now.count = int(count)
    if now.losses is not None:
        now.losses.copy_(found["losses"])


def _random_states(fabric: "Fabric") -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    return {**states, "cuda": torch.cuda.get_rng_state(fabric.device)} if fabric.device.type == "cuda" else states


def _restore_random_states(states: Mapping[str, Tensor], fabric: "Fabric") -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], fabric.device)


def _all_of(state: dict[str, Tensor], fabric: "Fabric") -> list[dict[str, Tensor]]:
    """Each process's states."""
    if fabric.world_size == 1:
        return [state]
    found: list[Any] = [None] * fabric.world_size
    dist.all_gather_object(found, state)
    return found
