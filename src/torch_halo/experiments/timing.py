"""Seconds an epoch by method: trained in turns, a few steps each, so that what disturbs one disturbs all."""

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import torch

from torch_halo.experiments.catalogue import Subject
from torch_halo.experiments.paper import SECONDS, TIMED
from torch_halo.experiments.spec import Spec
from torch_halo.experiments.store import Store
from torch_halo.experiments.tables import MISSING, Sheet, Source
from torch_halo.files import locked, write_whole
from torch_halo.methods import method_of
from torch_halo.training.config import Config
from torch_halo.training.fabric import launch
from torch_halo.training.loop import Unwatched, train_steps
from torch_halo.training.session import Session, initial_network, load_data, start
from torch_halo.training.signals import Stopped, stop_signals

ROUNDS = 40
TARGET = 0.95  # of methods that train towards a sparsity


def configs(spec: Spec, subject: Subject) -> dict[str, Config]:
    """The training of each method that is timed."""
    setup = spec.setup(subject, seed=0)
    rows = [row for row in spec.rows() if row.subject == subject]
    found = {row.method: row.grid[-1].config(setup, TARGET) for row in rows}
    for name, config in found.items():
        if method_of(config).before(config) is not None:
            raise ValueError(f"{name} trains twice, like dense each time; leave it out of the times")
    return found


def timing_path(spec: Spec, subject: Subject, store: Path) -> Path:
    """Where the times are kept: by what is timed, but for strengths, which cost nothing."""
    told = json.dumps([spec.setup(subject, seed=0).name, *configs(spec, subject)])
    name = f"{subject.data}-{subject.model.name}-{hashlib.sha256(told.encode()).hexdigest()[:10]}"
    return store / "timings" / f"{name}.json"


@dataclass(frozen=True)
class Times:
    """Seconds a step by method, round by round; an epoch has `steps`."""

    threads: int
    steps: int
    rounds: tuple[dict[str, float], ...] = ()

    def seconds(self, method: str) -> float:
        """Of an epoch."""
        return self.steps * statistics.fmean(each[method] for each in self.rounds)

    def ratio(self, method: str) -> str:
        """To the dense training in the same round: the median, and the quartiles."""
        found = [each[method] / each["dense"] for each in self.rounds]
        if len(found) < 2:
            return f"{found[0]:.2f}"
        low, median, high = statistics.quantiles(found, n=4, method="inclusive")
        return f"{median:.2f} ({low:.2f} to {high:.2f})"


def measure_times(spec: Spec, store: Path, data_dir: Path | None, done: Callable[[str, int, int], None]) -> None:
    """Train an epoch, or part of one, with each method, in turns; what was measured by an earlier attempt counts."""
    for subject in spec.subjects():
        path = timing_path(spec, subject, store)
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.parent, wait=False), stop_signals() as wish:
            times = read_times(path)
            if times is not None and len(times.rounds) == ROUNDS:
                continue
            timed = _Timed(configs(spec, subject), data_dir, spec.experiment.scales[spec.scale].timed)
            times = times or Times(torch.get_num_threads(), timed.steps)
            _check_threads(times, path)
            while len(times.rounds) < ROUNDS:
                times = replace(times, rounds=(*times.rounds, timed.round(len(times.rounds))))
                write_whole(path, json.dumps(asdict(times), indent=1) + "\n")
                done(subject.name, len(times.rounds), ROUNDS)
                if wish.signum is not None:
                    raise Stopped(f"stopped after {len(times.rounds)} of {ROUNDS} rounds, which are kept", wish.signum)


def _check_threads(times: Times, path: Path) -> None:
    now = torch.get_num_threads()
    if times.threads != now:
        raise ValueError(f"{path} was begun with {times.threads} threads, not {now}: OMP_NUM_THREADS={times.threads}")


class _Timed:
    """Trainings that go on in turns."""

    def __init__(self, wanted: Mapping[str, Config], data_dir: Path | None, share: float = 1.0) -> None:
        data = load_data(next(iter(wanted.values())).data, data_dir)
        self._sessions: dict[str, Session] = {}
        for name, config in wanted.items():
            begin = partial(method_of(config).begin, config=config, before=None)
            session = start(config, launch(config.compute), data, initial_network(config, data), begin)
            self._steps(session, 0, 2)  # memory is found, kernels are chosen
            self._sessions[name] = session
        self.steps = next(iter(self._sessions.values())).per_epoch  # of an epoch
        self._timed = round(share * self.steps)

    def round(self, number: int) -> dict[str, float]:
        """A fortieth of what is timed with each; who begins changes."""
        names = list(self._sessions)
        turn = number % len(names)
        first, last = (self._timed * n // ROUNDS for n in (number, number + 1))
        found = {name: self._steps(self._sessions[name], first, last) for name in names[turn:] + names[:turn]}
        return {name: found[name] for name in names}

    def _steps(self, session: Session, first: int, last: int) -> float:
        session.progress.position = first
        began = time.perf_counter()
        train_steps(session, Unwatched(), islice(session.batches(), last - first))
        if torch.cuda.is_available():  # what was asked for may not be done yet
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / max(last - first, 1)


def read_times(path: Path) -> Times | None:
    """The times that are there."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
        rounds = tuple({str(name): float(seconds) for name, seconds in each.items()} for each in found["rounds"])
        return Times(int(found["threads"]), int(found["steps"]), rounds)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected times by method; found a damaged file ({error})") from error


def timing_sheets(spec: Spec, store: Store) -> list[Sheet]:
    """The times beside the paper's."""
    return [_sheet(spec, subject, store) for subject in spec.subjects()]


def _sheet(spec: Spec, subject: Subject, store: Store) -> Sheet:
    path, times = timing_path(spec, subject, store.path), None
    try:
        times = read_times(path)
    except ValueError as error:
        store.problems[path] = str(error)
    body, sources = [], []
    for name in configs(spec, subject):
        reported = f"{SECONDS[name] / SECONDS['dense']:.2f}" if name in SECONDS and subject.model.name == TIMED else ""
        is_there = times is not None and bool(times.rounds) and name in times.rounds[0]
        seconds = f"{times.seconds(name):.1f}" if times is not None and is_there else MISSING
        is_compared = is_there and times is not None and "dense" in times.rounds[0]
        ratio = times.ratio(name) if times is not None and is_compared else MISSING
        body.append((name, seconds, ratio, reported))
        sources.append(Source(name, None, "", ratio, (f"timings/{path.stem}",) if is_there else ()))
    how = f"{len(times.rounds)} of {ROUNDS} rounds in turns, {times.threads} threads" if times else "not measured yet"
    header = ("method", "seconds", "relative to dense: median (quartiles)", "paper's")
    return Sheet(f"{subject.name}: seconds an epoch, {how}", header, tuple(body), tuple(sources))
