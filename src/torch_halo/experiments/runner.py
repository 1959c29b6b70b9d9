"""Run what is missing of an experiment, resume what is unfinished, and leave what is there."""

import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol

from torch_halo.experiments.engines import Engine
from torch_halo.experiments.plan import Job, Plan, must_train
from torch_halo.training.config import Config
from torch_halo.training.signals import Stopped, stop_signals

LOOK_EVERY, TELL_EVERY = 1.0, 5.0  # seconds
FIRST_GUESS = 10.0  # seconds an epoch, before any is done


@dataclass(frozen=True)
class State:
    """How far an experiment is."""

    jobs: int  # runs in all, those that are not yet chosen included
    done: int
    running: int
    failed: int
    epochs: int
    epochs_done: float
    seconds_left: float | None  # about

    @property
    def share(self) -> float:
        """Of the work, by epochs."""
        return self.epochs_done / max(self.epochs, 1)


class Show(Protocol):
    """What is told how it goes."""

    def state(self, state: State) -> None:
        """How far it is now."""

    def ended(self, job: Job, problem: str | None, state: State) -> None:
        """A run has ended."""


@dataclass
class Runner:
    """An experiment under way."""

    plan: Plan
    engine: Engine
    failed: dict[str, str] = field(default_factory=dict)
    _running: dict[str, tuple[Job, float]] = field(default_factory=dict)  # with when it was started
    _told: float = 0.0  # when
    _besides: list[float] = field(default_factory=list)  # seconds that runs took besides their training

    def run(self, show: Show) -> dict[str, str]:
        """Run all that is missing; returns what failed, by name. Raises `Stopped` if asked to stop."""
        for job in self.plan.jobs():  # an earlier attempt's failures are tried again
            if not self.plan.is_done(job):
                self.plan.store.note_failure(job.config, None)
        with stop_signals() as wish:
            try:
                waits = self._fill()
                while (self._running or waits) and wish.signum is None:
                    ended = self.engine.ended(LOOK_EVERY)
                    for name, problem in ended.items():
                        self._end(name, problem, show)
                    if ended or waits:
                        waits = self._fill()
                    self._tell(show, at_once=bool(ended))
            finally:
                self.engine.stop()
            if wish.signum is not None:
                raise Stopped("stopped; all runs are saved and will go on", wish.signum)
        return self.failed

    def state(self) -> State:
        """How far it is."""
        besides = statistics.fmean(self._besides) if self._besides else 0.0
        return state_of(self.plan, self.failed, running=len(self._running), width=self.engine.width, besides=besides)

    def _tell(self, show: Show, *, at_once: bool) -> None:
        # Not every second: counting takes its time, and the cores have better things to do.
        if at_once or time.monotonic() - self._told >= TELL_EVERY:
            show.state(self.state())
            self._told = time.monotonic()

    def _fill(self) -> bool:
        """Start what can be started; returns whether another runner is at work on something that is needed."""
        waits = False
        for job in self.plan.jobs() if self.engine.has_room() else ():
            if not self._is_ready(job):
                continue
            if self.plan.store.is_busy(job.config):
                waits = True
            elif self.engine.has_room():
                self._running[job.name] = job, time.monotonic()
                self.engine.start(job)
        return waits

    def _is_ready(self, job: Job) -> bool:
        if job.name in self._running or job.name in self.failed or self.plan.is_done(job):
            return False
        before = job.before
        if before is None or not must_train(self.plan.store, job):
            return True
        return self.plan.is_done(Job(before, needs_weights=True))

    def _end(self, name: str, problem: str | None, show: Show) -> None:
        job, began = self._running.pop(name)
        store = self.plan.store
        store.forget(name)
        if problem is not None and problem.startswith(BlockingIOError.__name__):
            return  # another runner was faster; it is asked for again
        if problem is None and not self.plan.is_done(job):
            problem = store.problems.get(store.folder(job.config), "it ended without a result")
        store.note_failure(job.config, problem)
        if problem is not None:
            self.failed[name] = problem
        elif (run := store.run(job.config)) is not None:
            self._besides.append(max(time.monotonic() - began - run.result["seconds"], 0.0))
        show.ended(job, problem, self.state())


def state_of(plan: Plan, failed: dict[str, str], *, running: int = 0, width: int = 1, besides: float = 0.0) -> State:
    """How far an experiment is, from what is stored; `besides` are seconds for each run but not for its epochs."""
    jobs = plan.jobs()
    done = {job.name for job in jobs if plan.is_done(job)}
    open_jobs = [job for job in jobs if job.name not in done and job.name not in failed]
    speed, left = _Speed(plan), 0.0
    epochs_done = sum(plan.progress(job) for job in jobs)
    epochs = sum(job.config.training.epochs for job in jobs)
    for job in open_jobs:
        todo = job.config.training.epochs - plan.progress(job)
        left += besides + max(todo, 0) * speed.of(job.config)
    unknown = list(plan.unknown())
    for config in unknown:
        epochs += config.training.epochs
        left += besides + config.training.epochs * speed.of(config)
    return State(
        jobs=len(jobs) + len(unknown),
        done=len(done),
        running=running,
        failed=len(failed),
        epochs=epochs,
        epochs_done=epochs_done,
        seconds_left=left / max(width, 1) if speed.is_known else None,
    )


class _Speed:
    """Seconds an epoch by network and data set, from the runs that are there."""

    def __init__(self, plan: Plan) -> None:
        found: dict[str, list[float]] = defaultdict(list)
        for job in plan.jobs():
            run = plan.store.run(job.config)
            if run is not None and run.config.training.epochs:
                found[_kind(job.config)].append(run.result["seconds"] / run.config.training.epochs)
        self._mean = {kind: statistics.fmean(times) for kind, times in found.items()}
        self._overall = statistics.fmean(self._mean.values()) if self._mean else FIRST_GUESS

    @property
    def is_known(self) -> bool:
        """Whether any run is there."""
        return bool(self._mean)

    def of(self, config: Config) -> float:
        """Of this one's kind, or of all."""
        return self._mean.get(_kind(config), self._overall)


def _kind(config: Config) -> str:
    return f"{config.model.name} {config.model.options} {config.data.name}"
