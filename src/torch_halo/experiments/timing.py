"""Seconds an epoch by method: trained in turns, a few steps each, so that what disturbs one disturbs all."""

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path

import torch

from torch_halo.experiments.paper import SECONDS
from torch_halo.experiments.spec import Spec, Subject
from torch_halo.experiments.tables import MISSING, Sheet, Source
from torch_halo.files import locked, write_whole
from torch_halo.training.config import Config
from torch_halo.training.fabric import launch
from torch_halo.training.loop import train_steps
from torch_halo.training.session import Session, initial_network, load_data, start
from torch_halo.training.signals import Stopped, stop_signals

ROUNDS = 40  # of an epoch
Round = Mapping[str, float]  # seconds a step, by method


def configs(spec: Spec, subject: Subject) -> dict[str, Config]:
    """The training of each method that is timed."""
    setup = spec.setup(subject, seed=0)
    rows = [row for row in spec.rows() if row.subject == subject]
    return {row.method: row.grid[len(row.grid) // 2].config(setup, 0.95) for row in rows}


def timing_path(spec: Spec, subject: Subject, store: Path) -> Path:
    """Where the times are kept: by what is timed, on how many threads."""
    names = [config.name for config in configs(spec, subject).values()]
    told = json.dumps([names, torch.get_num_threads()])
    name = f"{subject.data}-{subject.model.name}-{hashlib.sha256(told.encode()).hexdigest()[:10]}"
    return store / "timings" / f"{name}.json"


def measure_times(spec: Spec, store: Path, data_dir: Path | None, done: Callable[[str, int, int], None]) -> None:
    """Train an epoch with each method, in turns; what was measured by an earlier attempt counts."""
    for subject in spec.subjects():
        path = timing_path(spec, subject, store)
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.parent, wait=False), stop_signals() as wish:
            rounds = read_rounds(path)
            if len(rounds) >= ROUNDS:
                continue
            timed = _Timed(configs(spec, subject), data_dir)
            while len(rounds) < ROUNDS:
                rounds.append(timed.round(len(rounds)))
                write_whole(path, json.dumps({"steps": timed.steps, "rounds": rounds}, indent=1) + "\n")
                done(subject.name, len(rounds), ROUNDS)
                if wish.signum is not None:
                    raise Stopped(f"stopped after {len(rounds)} of {ROUNDS} rounds, which are kept", wish.signum)


class _Timed:
    """Trainings that go on in turns."""

    def __init__(self, wanted: Mapping[str, Config], data_dir: Path | None) -> None:
        data = load_data(next(iter(wanted.values())).data, data_dir)
        self._sessions: dict[str, Session] = {}
        for name, config in wanted.items():
            network = initial_network(config, data)
            self._sessions[name] = start(config, launch(config.compute), data, network, None)
        self.steps = next(iter(self._sessions.values())).per_epoch  # of an epoch

    def round(self, number: int) -> dict[str, float]:
        """A fortieth of an epoch with each; who begins changes."""
        if number == 0:
            for session in self._sessions.values():
                self._steps(session, 0, 2)  # memory is found, kernels are chosen
        names = list(self._sessions)
        turn = number % len(names)
        first, last = (self.steps * n // ROUNDS for n in (number, number + 1))
        found = {name: self._steps(self._sessions[name], first, last) for name in names[turn:] + names[:turn]}
        return {name: found[name] for name in names}

    def _steps(self, session: Session, first: int, last: int) -> float:
        session.progress.position = first
        began = time.perf_counter()
        train_steps(session, _Nobody(), islice(session.batches(), last - first))
        return (time.perf_counter() - began) / max(last - first, 1)


class _Nobody:
    """Watches nothing."""

    def wants_to_save(self) -> bool:
        return False

    def wants_to_stop(self) -> bool:
        return False

    def stepped(self, session: Session) -> None:
        pass

    def epoch_done(self, session: Session) -> None:
        pass

    def save(self, session: Session) -> None:
        pass

    def stop(self, session: Session) -> None:
        pass


def read_rounds(path: Path) -> list[dict[str, float]]:
    """The rounds that are there."""
    if not path.exists():
        return []
    try:
        found = json.loads(path.read_text())["rounds"]
        return [{str(name): float(seconds) for name, seconds in each.items()} for each in found]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected times by method; found a damaged file ({error})") from error


def timing_sheets(spec: Spec, store: Path) -> list[Sheet]:
    """The times beside the paper's."""
    return [_sheet(spec, subject, store) for subject in spec.subjects()]


def _sheet(spec: Spec, subject: Subject, store: Path) -> Sheet:
    path = timing_path(spec, subject, store)
    rounds = read_rounds(path)
    steps = json.loads(path.read_text())["steps"] if rounds else 0
    body, sources = [], []
    for name in configs(spec, subject):
        seconds = f"{steps * statistics.fmean(each[name] for each in rounds):.1f}" if rounds else MISSING
        relative = [each[name] / each["dense"] for each in rounds if "dense" in each]
        ratio = f"{statistics.median(relative):.2f}" if relative else MISSING
        reported = f"{SECONDS[name] / SECONDS['dense']:.2f}" if name in SECONDS else ""
        body.append((name, seconds, ratio, reported))
        sources.append(Source(name, 0.0, "", ratio, (path.stem,) if rounds else ()))
    threads = torch.get_num_threads()
    title = f"{subject.name}: seconds an epoch, {len(rounds)} of {ROUNDS} rounds in turns, {threads} threads"
    header = ("method", "seconds", "relative to dense (median)", "paper's")
    return Sheet(title, header, tuple(body), tuple(sources))
