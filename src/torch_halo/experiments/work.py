"""One run of an experiment, in a process of its own."""

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from torch_halo.experiments.plan import Job, must_train
from torch_halo.experiments.store import Store
from torch_halo.experiments.suspicion import rank_suspects
from torch_halo.methods import method_of
from torch_halo.models import read_weights
from torch_halo.training.config import Config
from torch_halo.training.fabric import PROBLEMS
from torch_halo.training.folder import RunFolder
from torch_halo.training.levels import add_levels
from torch_halo.training.runs import Inputs, run
from torch_halo.training.session import Session
from torch_halo.training.signals import Stopped
from torch_halo.training.subject import subject


class Quiet:
    """Shows nothing; ends the run, saved, if the process that started it is gone."""

    def __init__(self, parent: int | None) -> None:
        self._parent = parent

    def began(self, config: Config, folder: Path, epoch: int, position: int) -> None:
        """Say where it goes on."""
        print(f"{config.name}: after {epoch} epochs and {position} batches", flush=True)

    def stepped(self, session: Session) -> None:
        """Look whether anybody is still waiting."""
        if self._parent is not None and os.getppid() != self._parent:
            signal.raise_signal(signal.SIGTERM)

    def epoch_done(self, row: dict[str, Any], epochs: int) -> None:
        """It is in metrics.jsonl."""


def do(job: Job, store: Path, data_dir: Path | None, parent: int | None = None) -> None:
    """Train, or go on, and measure; what is there already is not done again."""
    config, known = job.config, Store(store)
    folder, method = RunFolder(known.folder(config)), method_of(config)
    if must_train(known, job):
        if known.is_finished(config):
            _check(known, config)
            known.set_aside(config)
        first = method.before(config)
        before = None if first is None else read_weights(RunFolder(known.path / first.name).model)
        begin = partial(method.begin, config=config, before=before)
        run(config, folder.path, Quiet(parent), Inputs(data_dir), begin=begin)
    add_levels(folder.path, [*known.measured_before(config), *job.levels], data_dir)
    known.forget_replaced(config)
    if (folder.path / "losses").exists():
        rank_suspects(folder.path, subject(folder.path, data_dir))
    if not _has_coefficients(config):
        folder.checkpoint.unlink(missing_ok=True)  # of a finished run nobody needs it


def _has_coefficients(config: Config) -> bool:
    """Whether a final run has a λ for each weight, which is in its checkpoint alone and may be looked at."""
    penalty, is_steered = config.penalty, config.shrinking.target_sparsity is not None
    is_learned = penalty is not None and penalty.learned and not penalty.shared
    return is_learned and not is_steered and not config.data.validation


def _check(store: Store, config: Config) -> None:
    """Nothing is trained in the stead of a result that cannot be read."""
    folder = store.folder(config)
    if folder in store.problems:
        raise ValueError(f"{store.problems[folder]}; remove {folder} to have it run again")


def encoded(job: Job, store: Path, data_dir: Path | None, parent: int | None = None) -> str:
    """What a process needs to know; `parent` is the process whose end is to end it too."""
    places = {"store": str(store.absolute()), "data_dir": None if data_dir is None else str(data_dir.absolute())}
    asked = {"levels": job.levels, "needs_weights": job.needs_weights}
    return json.dumps({"config": job.config.as_dict(), **asked, "parent": parent, **places})


def do_encoded(text: str) -> str | None:
    """Do what `encoded` tells; returns what went wrong, if a person can understand it."""
    told = json.loads(text)
    job = Job(Config.from_dict(told["config"]), tuple(told["levels"]), told["needs_weights"])
    data_dir = None if told["data_dir"] is None else Path(told["data_dir"])
    try:
        do(job, Path(told["store"]), data_dir, told["parent"])
    except PROBLEMS as error:
        return f"{type(error).__name__}: {error}"
    return None


def main() -> int:
    """A process of the local engine: what to do is on the standard input."""
    try:
        problem = do_encoded(sys.stdin.read())
    except Stopped as stopped:
        print(stopped)
        return 128 + stopped.signum
    if problem is not None:
        print(problem)
    return 0 if problem is None else 1


if __name__ == "__main__":
    sys.exit(main())
