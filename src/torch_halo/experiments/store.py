"""Stored runs: a folder of run folders, read with care."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch_halo.checks import number
from torch_halo.files import locked, write_whole
from torch_halo.training.config import Config
from torch_halo.training.folder import RunFolder

KEPT = ("config.json", "metrics.jsonl", "result.json")  # what is worth keeping of a run when its weights are not
MORE = ("inference.json", "analysis.json", "suspects.json", "suspects.png")  # and what may be there besides
REPLACED = "replaced"  # runs that are trained again, as they were
OTHER = ("experiments", "logs", "timings", REPLACED)  # a store's folders that are no runs


@dataclass(frozen=True)
class Run:
    """A finished run: its settings and its result."""

    path: Path
    config: Config
    result: dict[str, Any]

    @property
    def name(self) -> str:
        """Made from its settings."""
        return self.config.name

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """The figures of each epoch."""
        return RunFolder(self.path).epochs()

    def at(self, sparsity: float) -> dict[str, Any] | None:
        """What it measured when pruned to a sparsity."""
        return next((level for level in self.result["pruned"] if level["asked"] == sparsity), None)

    def accuracy(self, sparsity: float, split: str = "test") -> float | None:
        """In percent at a sparsity (0: as trained), with batch norm's statistics estimated anew, if it has any.

        Those of the whole network are wrong for the cut one, the more so the more a last threshold takes.
        """
        level = self.at(sparsity) if sparsity else self.result
        if level is None:
            return None
        return float((level.get("recalibrated") or level)[split]["accuracy"])


def read_run(path: Path) -> Run | None:
    """The run in a folder; None if it is not finished; an error that names the file if something is wrong with it."""
    folder = RunFolder(path)
    config, result = folder.config(), folder.result()
    if result is None:
        return None
    where = path / "result.json"
    try:
        if result["name"] != config.name:
            raise ValueError(f"it is of another run, {result['name']}, than config.json, {config.name}")
        number("seconds", result["seconds"], at_least=0)
        again = [level["recalibrated"] for level in result["pruned"] if level["recalibrated"] is not None]
        for level in [result, *result["pruned"], *again]:
            for split in ("test", "validation") if config.data.validation else ("test",):
                number(f"the {split} accuracy", level[split]["accuracy"], at_least=0)
        for level in result["pruned"]:
            number("the sparsity", level["asked"], at_least=0), number("the sparsity", level["sparsity"], at_least=0)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{where}: {_reason(error)}") from error
    run = Run(path, config, result)
    try:
        if len(run.epochs) != config.training.epochs:
            raise ValueError(f"it has {len(run.epochs)} epochs, not {config.training.epochs}")
    except (OSError, ValueError) as error:
        raise ValueError(f"{path / 'metrics.jsonl'}: {_reason(error)}") from error
    return run


def _reason(error: Exception) -> str:
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)


@dataclass
class Store:
    """The runs under a folder, each in one that has its name; `problems` are the files that were left out."""

    path: Path
    problems: dict[Path, str] = field(default_factory=dict)
    _read: dict[str, Run] = field(default_factory=dict)

    def folder(self, config: Config) -> Path:
        """Where a run is."""
        return self.path / config.name

    def run(self, config: Config) -> Run | None:
        """A finished run, if it is there and whole; while it is trained again, as it was."""
        name, path = config.name, self.folder(config)
        if not _is_finished(path):
            path = self._aside(config)
        if name not in self._read and _is_finished(path):
            try:
                found = read_run(path)
                if found is not None and found.name != name:
                    raise ValueError(f"{path / 'config.json'}: it is of another run, {found.name}")
            except (OSError, ValueError) as error:
                self.problems[path] = str(error)
                return None
            if found is not None:
                self.problems.pop(path, None)
                self._read[name] = found
        return self._read.get(name)

    def has_weights(self, config: Config) -> bool:
        """Whether a finished run's weights are there: those of runs that were kept are not."""
        return self.is_finished(config) and RunFolder(self.folder(config)).model.exists()

    def is_finished(self, config: Config) -> bool:
        """Whether a run has a result, whole or not."""
        return _is_finished(self.folder(config))

    def set_aside(self, config: Config) -> None:
        """Make room for a finished run to be trained again; until it is, what it has said counts."""
        folder, aside = self.folder(config), self._aside(config)
        made = aside.with_name(f".{aside.name}")
        with RunFolder(folder).taken(config):
            if not _is_finished(folder):  # another process was faster
                return
            there = [name for name in (*KEPT, *MORE) if (folder / name).exists()]
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir(parents=True)
            for name in there:
                shutil.copyfile(folder / name, made / name)
            shutil.rmtree(aside, ignore_errors=True)
            made.rename(aside)
            for name in sorted(there, key=lambda name: name != "result.json"):  # without it, it is unfinished
                if name != "config.json":
                    (folder / name).unlink()

    def measured_before(self, config: Config) -> list[float]:
        """The sparsities at which a run that is trained again had been measured."""
        found = read_run(self._aside(config)) if _is_finished(self._aside(config)) else None
        return [] if found is None else [level["asked"] for level in found.result["pruned"]]

    def forget_replaced(self, config: Config) -> None:
        """A run has been trained again."""
        shutil.rmtree(self._aside(config), ignore_errors=True)

    def _aside(self, config: Config) -> Path:
        return self.path / REPLACED / config.name

    def forget(self, name: str) -> None:
        """Read a run anew the next time."""
        self._read.pop(name, None)

    def epochs_done(self, config: Config) -> int:
        """How far a run is, finished or not."""
        path = self.folder(config) / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def log(self, config: Config) -> Path:
        """Where a run's process writes what it has to say."""
        return self.path / "logs" / f"{config.name}.txt"

    def failure(self, config: Config) -> str | None:
        """Why a run failed, if it did."""
        path = self._failed(config)
        return path.read_text().strip() if path.exists() else None

    def diverged(self, config: Config) -> bool:
        """Whether a run failed by itself, and would again: of other ends, a kill say, nothing follows."""
        return (self.failure(config) or "").startswith(FloatingPointError.__name__)

    def is_busy(self, config: Config) -> bool:
        """Whether a process is at work on a run."""
        folder = self.folder(config)
        try:
            with locked(folder, wait=False) if folder.exists() else nullcontext():
                return False
        except BlockingIOError:
            return True

    def note_failure(self, config: Config, reason: str | None) -> None:
        """Remember why a run failed, or that it did not."""
        path = self._failed(config)
        if reason is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, reason + "\n")

    def _failed(self, config: Config) -> Path:
        return self.path / "logs" / f"{config.name}.failed"

    def keep(self, runs: Iterable[Run], other: Path) -> int:
        """Copy what is small of some runs to another store; returns how many."""
        if other.resolve() == self.path.resolve():
            raise ValueError(f"{other} is where the runs are; name another folder to keep them in")
        count = 0
        for count, run in enumerate(runs, 1):  # noqa: B007
            target = other / run.name
            target.mkdir(parents=True, exist_ok=True)
            for name in (*KEPT, *MORE):
                if name in KEPT or (run.path / name).exists():
                    shutil.copyfile(run.path / name, target / name)
        return count


def _is_finished(path: Path) -> bool:
    return (path / "result.json").exists()


def find_runs(paths: Iterable[Path]) -> tuple[list[Run], dict[Path, str]]:
    """All finished runs in or under some folders, and what was left out with the reason."""
    found: dict[Path, Run] = {}
    problems: dict[Path, str] = {}
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such run or folder of runs")
        for folder in _candidates(path, problems):
            try:
                run = read_run(folder)
            except (OSError, ValueError) as error:
                problems[folder] = str(error)
                continue
            if run is None:
                problems[folder] = f"{folder}: it is not finished"
            else:
                found[folder.resolve()] = run
    return list(found.values()), problems


def _candidates(path: Path, problems: dict[Path, str]) -> Iterator[Path]:
    """The folders that look like runs; what looks like nothing is a problem."""
    if path.is_file():
        problems[path] = f"{path}: not a run's folder"
    elif any((path / name).exists() for name in KEPT):
        yield path
    else:
        entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
        if not entries:
            problems[path] = f"{path}: it is empty"
        for entry in entries:
            if entry.name not in OTHER:
                yield from _candidates(entry, problems)


def unread_lines(problems: dict[Path, str]) -> list[str]:
    """What was left out, for people."""
    return [f"left out: {reason}" for reason in problems.values()]
