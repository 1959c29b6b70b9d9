"""Which runs an experiment needs, and what those that are there say.

Settings are chosen by method and sparsity: each candidate trains once, with one seed, on the training
set less a validation split, and the best validation accuracy at that sparsity wins. If it trains for
fewer epochs its strength is larger by as much (`Method.shortened`). The final runs,
one a seed, train on the whole training set; what counts is the last epoch's test accuracy.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch_halo.experiments.catalogue import Subject
from torch_halo.experiments.paper import WITHIN
from torch_halo.experiments.spec import Row, Spec
from torch_halo.experiments.store import Run, Store
from torch_halo.methods import Method, method_of
from torch_halo.training.config import Config
from torch_halo.training.levels import missing_levels


@dataclass(frozen=True)
class Job:
    """A run, and the sparsities at which it is to be measured."""

    config: Config
    levels: tuple[float, ...] = ()
    needs_weights: bool = False  # another run, still to be trained, begins with them

    @property
    def name(self) -> str:
        """The run's."""
        return self.config.name

    @cached_property
    def before(self) -> Config | None:
        """The run that must be finished first."""
        return method_of(self.config).before(self.config)

    def joined(self, other: "Job | None") -> "Job":
        """All that is asked of a run, here and there."""
        if other is None or (set(other.levels) <= set(self.levels) and self.needs_weights >= other.needs_weights):
            return self
        levels = tuple(dict.fromkeys([*other.levels, *self.levels]))
        return replace(self, levels=levels, needs_weights=self.needs_weights or other.needs_weights)


def is_done(store: Store, job: Job) -> bool:
    """Whether a run is there with all that is to be measured, and with its weights, if these are needed."""
    run = store.run(job.config)
    if run is None or missing_levels(run.result, job.levels):
        return False
    return not job.needs_weights or store.has_weights(job.config)


def must_train(store: Store, job: Job) -> bool:
    """Whether what is asked of a run takes a training: if it has its weights, it can be measured anywhere."""
    return store.run(job.config) is None or not (is_done(store, job) or store.has_weights(job.config))


@dataclass(frozen=True)
class Cell:
    """A method at a sparsity: the final runs that are there, of as many as its row has seeds."""

    row: Row
    sparsity: float
    method: Method | None = None  # with the settings that were chosen; None: not yet
    runs: tuple[Run, ...] = ()

    @property
    def accuracies(self) -> list[float]:
        """Test accuracies in percent, by seed."""
        found = [run.accuracy(self.sparsity) for run in self.runs]
        return [accuracy for accuracy in found if accuracy is not None]

    @property
    def mean(self) -> float | None:
        """Of the accuracies."""
        return statistics.fmean(self.accuracies) if self.accuracies else None

    @property
    def spread(self) -> float | None:
        """Their standard deviation, if there are several."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    @property
    def as_cut(self) -> float | None:
        """The mean with batch norm's statistics left as they were; None if there is no batch norm."""
        levels = [level for run in self.runs if (level := run.at(self.sparsity)) and level["recalibrated"]]
        return statistics.fmean(level["test"]["accuracy"] for level in levels) if levels else None

    @property
    def reached(self) -> float | None:
        """The sparsity that the networks have, on average."""
        levels = [run.at(self.sparsity) for run in self.runs]
        return statistics.fmean(level["sparsity"] for level in levels if level) if any(levels) else None

    @property
    def own(self) -> float | None:
        """The sparsity that the method left by itself, before the last threshold, on average."""
        return statistics.fmean(run.result.get("sparsity", 0.0) for run in self.runs) if self.runs else None

    @property
    def epochs(self) -> int | None:
        """Epochs trained to get there, those of the runs before included."""
        configs = [run.config for run in self.runs]
        return method_of(configs[0]).total_epochs(configs[0]) if configs else None


@dataclass
class Plan:
    """An experiment over a store."""

    spec: Spec
    store: Store
    rows: list[Row] = field(init=False)
    _made: dict[tuple[object, ...], Job] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rows = self.spec.rows()

    def jobs(self) -> list[Job]:
        """All runs that are known to be needed, finished or not; what must come first comes first."""
        found: dict[str, Job] = {}
        for job in (job for row in self.rows for job in self.jobs_of(row)):
            chain = [job]
            while (before := chain[-1].before) is not None:
                first = Job(before, needs_weights=must_train(self.store, chain[-1]))
                chain.append(self._made.setdefault((before.name, first.needs_weights), first))
            for each in reversed(chain):
                found[each.name] = each.joined(found.get(each.name))
        return list(found.values())

    def is_done(self, job: Job) -> bool:
        """Whether all is there that is asked of a run."""
        return is_done(self.store, job)

    def progress(self, job: Job) -> int:
        """The epochs that are done of a run; one that will be trained again is at its beginning."""
        if self.is_done(job):
            return job.config.training.epochs
        return 0 if self.is_again(job) else self.store.epochs_done(job.config)

    def is_again(self, job: Job) -> bool:
        """Whether a finished run will be trained again: it was kept without the weights that are needed now."""
        return self.store.is_finished(job.config) and must_train(self.store, job)

    def unknown(self) -> Iterator[Config]:
        """Final runs whose settings are not chosen yet, with others in their stead."""
        for row in self.rows:
            method, pending = row.grid[0], [s for s in row.sparsities if self._is_pending(row, s)]
            for sparsity in pending if method.has_target else pending[:1]:
                yield from [self._job(row.subject, method, sparsity, 0).config] * row.seeds

    def cell(self, row: Row, sparsity: float) -> Cell:
        """What the final runs at a sparsity say; sparsity 0 is the network as trained."""
        method = self.chosen(row, sparsity)
        if method is None:
            return Cell(row, sparsity)
        found = [self.store.run(job.config) for job in self._finals(row, method, sparsity)]
        runs = [run for run in found if run is not None and (not sparsity or run.at(sparsity))]
        return Cell(row, sparsity, method, tuple(runs))

    def dense(self, subject: Subject) -> Cell | None:
        """The dense network, if it is among the rows."""
        row = next((row for row in self.rows if row.subject == subject and row.method == "dense"), None)
        return None if row is None else self.cell(row, 0.0)

    def at_baseline(self, row: Row) -> float | None:
        """The highest sparsity that costs at most 0.15 points against the dense network; None if none does."""
        dense = self.dense(row.subject)
        if dense is None or dense.mean is None:
            return None
        cells = [self.cell(row, sparsity) for sparsity in row.sparsities]
        good = [cell.sparsity for cell in cells if cell.mean is not None and cell.mean >= dense.mean - WITHIN]
        return max(good, default=None)

    def chosen(self, row: Row, sparsity: float) -> Method | None:
        """The settings with the best validation accuracy at a sparsity, once all are tried; of equals the first."""
        if len(row.grid) == 1:
            return row.grid[0]
        scores: dict[Method, float] = {}
        for method in row.grid:
            job = self._trial(row, method, sparsity)
            run = self.store.run(job.config)
            score = None if run is None else run.accuracy(sparsity, "validation")
            if score is not None:
                scores[method] = score
            elif not self.store.diverged(job.config):
                return None
        return max(scores, key=lambda method: scores[method]) if scores else None

    def tried(self, row: Row, sparsity: float) -> int:
        """How many settings the choice was made from."""
        trials = [self.store.run(self._trial(row, method, sparsity).config) for method in row.grid]
        return sum(run is not None for run in trials)

    def _is_pending(self, row: Row, sparsity: float) -> bool:
        """Whether settings are still to be chosen; if all trials failed they will not be."""
        trials = [self._trial(row, method, sparsity).config for method in row.grid]
        return self.chosen(row, sparsity) is None and not all(map(self.store.failure, trials))

    def jobs_of(self, row: Row) -> list[Job]:
        """The trials of a row's settings, and its final runs as far as they are known."""
        found: list[Job] = []
        for sparsity in row.sparsities:
            if len(row.grid) > 1:
                found += [self._trial(row, method, sparsity) for method in row.grid]
            chosen = self.chosen(row, sparsity)
            if chosen is not None:
                found += self._finals(row, chosen, sparsity)
        return list({job.name: job for job in found}.values())

    def _trial(self, row: Row, method: Method, sparsity: float) -> Job:
        return self._job(row.subject, method, sparsity, 0, is_trial=True)

    def _finals(self, row: Row, method: Method, sparsity: float) -> list[Job]:
        return [self._job(row.subject, method, sparsity, seed) for seed in range(row.seeds)]

    def _job(self, subject: Subject, method: Method, sparsity: float, seed: int, is_trial: bool = False) -> Job:
        key = (subject.name, method, sparsity, seed, is_trial)
        if key not in self._made:  # a plan is looked at every second, and names are checksums
            # A training towards no target serves all sparsities.
            levels = (sparsity,) if method.has_target else self.spec.sparsities
            setup = self.spec.setup(subject, seed=seed, is_trial=is_trial)
            if is_trial and self.spec.trial_epochs != self.spec.epochs:
                method = method.shortened(self.spec.trial_epochs / self.spec.epochs)
            self._made[key] = Job(method.config(setup, sparsity), levels)
        return self._made[key]
