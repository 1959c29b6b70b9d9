"""What is recorded of each epoch."""

import io
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_halo.checks import extra
from torch_halo.figures import shares_under, sparsity
from torch_halo.files import write_whole
from torch_halo.selection import select_weights
from torch_halo.training.evaluation import as_data, figures, measure
from torch_halo.training.session import Session
from torch_halo.weights import gathered, local, sum_shards

NEAR_ZERO = 1e-3  # a weight of less magnitude is near zero
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
SAMPLE = 2**20  # about as many entries of λ, evenly spaced, are looked at for quantiles


def epoch_figures(session: Session) -> dict[str, Any]:
    """All figures of the epoch that was just trained; the processes work together."""
    now, data, fabric = session.progress, session.data, session.fabric
    session.share_buffers()
    # Losses as they were while training, each batch before its own step.
    train = figures(now.sums, fabric)
    with session.sparsifier.plain():
        measured, near = measure(session.model, data, fabric), near_zero(session)
        zeros = sparsity(session.module, select=session.config.shrinking.select).sparsity
        shares = shares_under(session.module, select=session.config.shrinking.select)
    return {
        "epoch": now.epoch + 1,
        "step": session.step,
        "lr": session.torch_optimizer.param_groups[0]["lr"],
        **as_data({"train": train, **measured}),
        "penalty": None if session.shrink is None else float(session.shrink.value()),
        "near_zero": near,
        "sparsity": zeros,
        "magnitudes": shares,
        "coefficients": _coefficient_quantiles(session),
        "seconds": round(now.seconds, 3),
    }


def near_zero(session: Session) -> float:
    """The share of the selected weights with |w| < 1e-3."""
    weights = select_weights(session.module, session.config.shrinking.select)
    small = sum_shards([(weight.local.abs() < NEAR_ZERO).sum() for weight in weights], weights)
    return sum(map(int, small)) / max(sum(weight.parameter.numel() for weight in weights), 1)


def _coefficient_quantiles(session: Session) -> dict[str, float] | None:
    if session.shrink is None or not session.shrink.penalty.learned:
        return None
    found = list(session.shrink.coefficients.values())
    every = max(1, -(-sum(lam.numel() for lam in found) // SAMPLE))
    # One distance for all layers, so that each counts as much as it has weights.
    ordered = torch.cat([local(gathered(lam)).flatten()[::every] for lam in found]).sort().values
    places = [round(q * (len(ordered) - 1)) for q in QUANTILES]
    return {f"{q:g}": float(ordered[place]) for q, place in zip(QUANTILES, places, strict=True)}


class Log:
    """metrics.jsonl, TensorBoard's events, and the samples' losses, in a run's folder.

    Opened at an epoch, it forgets what was recorded from there on: a killed run repeats it.
    """

    def __init__(self, folder: Path, epoch: int) -> None:
        with extra("train", "training"):
            from torch.utils.tensorboard import SummaryWriter
        self._folder = folder
        self._metrics = folder / "metrics.jsonl"
        lines = _lines_before(self._metrics, epoch)
        if len(lines) != epoch:
            warnings.warn(
                f"{self._metrics} has {len(lines)} of the {epoch} epochs before; the rest is lost", stacklevel=2
            )
        write_whole(self._metrics, "".join(line + "\n" for line in lines))
        self._events = SummaryWriter(str(folder / "tensorboard"), purge_step=epoch + 1)

    def add(self, row: dict[str, Any]) -> None:
        """Record an epoch."""
        with self._metrics.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())  # before the next checkpoint, which is flushed too
        for name, value in _flat(row).items():
            self._events.add_scalar(name, value, row["epoch"])
        self._events.flush()

    def add_losses(self, epoch: int, losses: Tensor) -> None:
        """Store each training sample's loss in this epoch, by its place in the training set (NaN: not seen)."""
        folder = self._folder / "losses"
        folder.mkdir(exist_ok=True)
        stored, file = losses.cpu().numpy(), io.BytesIO()
        np.save(file, np.where(stored < 0, np.nan, np.minimum(stored, 65504)).astype(np.float16))
        write_whole(folder / f"epoch-{epoch:04d}.npy", file.getvalue())

    def close(self) -> None:
        """Let go of the files."""
        self._events.close()


def _lines_before(path: Path, epoch: int) -> list[str]:
    """The whole lines of the first `epoch` epochs."""
    kept: list[str] = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:  # cut short by a crash
            break
        if not isinstance(row, dict) or row.get("epoch") != len(kept) + 1 or row["epoch"] > epoch:
            break
        kept.append(line)
    return kept


def _flat(row: dict[str, Any], prefix: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}/")
        elif value is not None and key not in ("epoch", "magnitudes"):
            found[prefix + key] = value
    return found
