"""A run: a training in a folder, which goes on where it was."""

import sys
import time
import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from torch_halo.data import Split
from torch_halo.figures import sparsity
from torch_halo.models import load_weights
from torch_halo.training import checkpoint
from torch_halo.training.config import Config
from torch_halo.training.evaluation import as_data, evaluate, measure
from torch_halo.training.fabric import each, launch, parting, together
from torch_halo.training.folder import RunFolder, write_weights
from torch_halo.training.loop import train
from torch_halo.training.metrics import Log, epoch_figures
from torch_halo.training.pruned import pruned, whole_state
from torch_halo.training.session import Session, initial_network, load_data, start
from torch_halo.training.signals import Stopped, Wish, stop_signals
from torch_halo.training.sparsifier import Begin


class Display(Protocol):
    """What shows a person how a run goes."""

    def began(self, config: Config, folder: Path, epoch: int, position: int) -> None:
        """The run begins, or goes on after `epoch` epochs and `position` batches."""

    def stepped(self, session: Session) -> None:
        """A step is done."""

    def epoch_done(self, row: dict[str, Any], epochs: int) -> None:
        """An epoch is done, with these figures."""


@dataclass(frozen=True)
class Inputs:
    """Where a run's files are; what they contain is in its configuration."""

    data_dir: Path | None = None
    weights: Path | None = None
    masks: Path | None = None


@parting()
def run(
    config: Config, path: Path, display: Display, inputs: Inputs, save_every: float = 60.0, begin: Begin | None = None
) -> bool:
    """Train in a folder, from the beginning or from where an earlier attempt was, to the end.

    `begin` is what the configuration's method does to the initial network, if it has one. A
    checkpoint is written every `save_every` seconds, at the end, and when the run is asked to stop
    (SIGINT, SIGTERM): then `Stopped` is raised. Returns whether this process is the first of the
    run's processes.
    """
    if config.method is not None and begin is None:
        raise ValueError(f"{config.name} is a run of the method {config.method['kind']}, which must begin it")
    fabric, folder = launch(config.compute), RunFolder(path)
    # What cannot begin leaves no folder behind.
    data = each(fabric, lambda: load_data(config.data, inputs.data_dir))
    network = initial_network(config, data)
    if inputs.weights is not None:
        load_weights(network, inputs.weights)
    session = start(config, fabric, data, network, begin, inputs.masks)
    with ExitStack() as stack:
        together(fabric, lambda: stack.enter_context(folder.taken(config)))
        if fabric.broadcast(folder.checkpoint.exists()):
            checkpoint.restore(session, each(fabric, lambda: checkpoint.read(folder.checkpoint, config.name)))
        watch = _Watch(folder, session, display, stack.enter_context(stop_signals()), save_every)
        if fabric.is_global_zero:
            display.began(config, path, session.progress.epoch, session.progress.position)
        with warnings.catch_warnings():
            # It comes early in a long training; here λ's quantiles are shown, and looked at in the end.
            warnings.filterwarnings("ignore", message=r"after \d+ steps λ's spread")
            train(session, watch)
        watch.save(session)
        _finish(session, folder)
        watch.close()
    return bool(fabric.is_global_zero)


class _Watch:
    """Keeps a run's records and checkpoints while it trains."""

    def __init__(self, folder: RunFolder, session: Session, display: Display, wish: Wish, save_every: float) -> None:
        self._folder, self._display, self._wish = folder, display, wish
        self._is_first = session.fabric.is_global_zero
        self._save_every, self._saved = save_every, time.monotonic()
        self._epoch = session.progress.epoch
        self._log: Log | None = None
        together(session.fabric, self._open_log)

    def _open_log(self) -> None:
        self._log = Log(self._folder.path, self._epoch)

    def wants_to_save(self) -> bool:
        return self._is_first and time.monotonic() - self._saved >= self._save_every

    def wants_to_stop(self) -> bool:
        return self._wish.signum is not None

    def stepped(self, session: Session) -> None:
        if self._is_first:
            self._display.stepped(session)

    def epoch_done(self, session: Session) -> None:
        row, losses = epoch_figures(session), checkpoint.all_losses(session)
        together(session.fabric, lambda: self._record(row, losses))
        if self._is_first:
            self._display.epoch_done(row, session.config.training.epochs)

    def _record(self, row: dict[str, Any], losses: Tensor | None) -> None:
        assert self._log is not None  # the first process has it
        if losses is not None:
            self._log.add_losses(row["epoch"], losses)
        self._log.add(row)

    def save(self, session: Session) -> None:
        checkpoint.save(session, self._folder.checkpoint)
        self._saved = time.monotonic()

    def stop(self, session: Session) -> None:
        self.close()
        now, epochs = session.progress, session.config.training.epochs
        where = f"epoch {now.epoch + 1} of {epochs}, batch {now.position} of {session.per_epoch}"
        raise Stopped(f"stopped at {where}; all of it is kept in {self._folder.path}", self._wish.signum or 15)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()


def _finish(session: Session, folder: RunFolder) -> None:
    """Measure, prune, write the weights and, last, the result."""
    config, data, module = session.config, session.data, session.module
    session.sparsifier.hand_back()
    ask = partial(measure, session.model, data, session.fabric)
    figures, state = ask(), whole_state(module)
    zeros = sparsity(module, select=config.shrinking.select).sparsity
    wrong = Split(*(part[data.flipped] for part in data.train))  # and learned by heart, if the network gives them
    learned = evaluate(session.model, data, wrong, session.fabric)
    levels = [pruned(module, level, config, data, ask) for level in config.pruning.sparsity]

    def write() -> None:
        epochs = folder.epochs()
        _warn_if_equal(epochs)
        result = {
            "name": config.name,
            "epochs": config.training.epochs,
            "seconds": round(sum(row["seconds"] for row in epochs), 3),
            "train": epochs[-1]["train"] if epochs else None,
            **as_data(figures),
            "sparsity": zeros,
            **({} if learned is None else {"memorised": learned.accuracy}),
            "memory": _peak_memory(session.fabric.device),
            "pruned": [level.as_dict() for level in levels],
            "versions": {name: version(name) for name in ("torch-halo", "torch")},
        }
        write_weights(folder.model, state, config)
        if levels:
            write_weights(folder.pruned, levels[0].state, config)
        folder.finish(result)

    together(session.fabric, write)


def _peak_memory(device: torch.device) -> int | None:
    """The most bytes that this process has held, on its device if that has memory of its own."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows does not tell
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _warn_if_equal(epochs: list[dict[str, Any]]) -> None:
    lam = epochs[-1]["coefficients"] if epochs else None
    if lam and 0 < lam["0.95"] - lam["0.05"] < 0.01 * lam["0.5"]:
        warnings.warn(
            f"λ lies between {lam['0.05']:.4g} and {lam['0.95']:.4g} for 90 % of the weights: the penalty was an "
            "ordinary Lasso; raise coefficient_weight_decay, coefficient_lr or xi, or train longer",
            stacklevel=2,
        )
