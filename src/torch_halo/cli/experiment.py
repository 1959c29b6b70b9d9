"""`halo experiment`."""

import argparse
import os
import shlex
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from torch_halo.checks import did_you_mean
from torch_halo.cli.data import add_data_dir, show_bytes
from torch_halo.cli.display import say, table
from torch_halo.cli.runs_display import Bars, Lines, left
from torch_halo.data import DATASETS, data_root, find, get
from torch_halo.experiments.catalogue import EXPERIMENTS, SCALES, Experiment
from torch_halo.experiments.engines import Engine, Local, OnRay
from torch_halo.experiments.plan import Plan
from torch_halo.experiments.runner import Runner, state_of
from torch_halo.experiments.show import keep, results_page, tables_of
from torch_halo.experiments.spec import Spec, saved_specs
from torch_halo.experiments.store import Store
from torch_halo.experiments.tables import FORMATS
from torch_halo.experiments.timing import measure_times
from torch_halo.methods import METHODS
from torch_halo.training.signals import Stopped

ABOUT = """Run the paper's tables and figures, or show what is there. Runs are kept in folders named by their settings:
what is there is not run again, what was stopped goes on."""
ACTIONS = ("show", "status", "keep")
RUNS = Path("runs")
SPEC = ("scale", "models", "methods", "sparsities", "seeds", "epochs", "trial_epochs", "label_noise")


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", arguments: Sequence[str]) -> None:
    """Add the command, with a subcommand for each experiment and for each thing to do with one."""
    parser = commands.add_parser(
        "experiment",
        help="run the paper's tables, over methods and seeds, and show them",
        description=ABOUT,
        allow_abbrev=False,
    )
    if not arguments or arguments[0] != "experiment":
        return
    _check_name(arguments[1:])
    inner = parser.add_subparsers(title="what", required=True, metavar="WHAT")
    for name, experiment in EXPERIMENTS.items():
        own = inner.add_parser(
            name,
            help=experiment.title,
            description=f"{experiment.title}.",
            epilog="\n".join(_about(scale, experiment) for scale in SCALES),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        _add_run(own)
    show = inner.add_parser("show", help="print an experiment's tables from stored runs", allow_abbrev=False)
    status = inner.add_parser("status", help="how far an experiment is", allow_abbrev=False)
    copy = inner.add_parser("keep", help="copy an experiment's results, without weights", allow_abbrev=False)
    for action in (show, status, copy):
        action.add_argument("name", choices=list(EXPERIMENTS), nargs="?" if action is show else None, metavar="NAME")
        _add_spec(action)
        action.set_defaults(stopped="nothing was changed")
    show.add_argument("--format", choices=list(FORMATS), default="text", help="how to print it (text)")
    show.add_argument("--trace", action="store_true", help="also print which runs each figure comes from")
    show.set_defaults(run=_show)
    status.set_defaults(run=_status)
    copy.add_argument("--to", type=Path, default=Path("results"), metavar="DIR", help="where to (results)")
    copy.set_defaults(run=_keep)


def _about(name: str, experiment: Experiment) -> str:
    """What a scale runs, in a few lines."""
    scale = experiment.scales[name]
    there = [subject.name for subject in scale.subjects if subject.model.name in (scale.models or scale.names())]
    levels = f"at {_listed(scale.sparsities)}; " if scale.sparsities else ""
    levels += f"label noise {_listed(scale.noises)}; " if any(scale.noises) else ""
    trials = f", {scale.trial_epochs} to choose settings" if scale.trial_epochs else ""
    span = f"epochs {scale.epochs}{trials}; seeds {scale.seeds}"
    once = f"; {' '.join(scale.once)} with one seed at the first sparsity only" if scale.once else ""
    what = f"{', '.join(there)}; {' '.join(scale.methods)}; {levels}{span}{once}"
    return textwrap.fill(f"--scale {name}: {what}", 78, subsequent_indent="    ", break_on_hyphens=False)


def _listed(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:g}" for number in numbers)


def _check_name(arguments: Sequence[str]) -> None:
    """An unknown name is answered with those there are, before argparse has its say."""
    is_action = bool(arguments) and arguments[0] in ACTIONS
    known = list(EXPERIMENTS) if is_action else [*EXPERIMENTS, *ACTIONS]
    name = next(iter(arguments[1:] if is_action else arguments), "-")
    if not name.startswith("-") and name not in known:
        raise ValueError(f"unknown experiment {name!r}; known: {', '.join(known)}{did_you_mean(name, known)}")


def _add_spec(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is run")
    shown: dict[str, Any] = {"default": argparse.SUPPRESS}
    group.add_argument(
        "--scale", choices=list(SCALES), help="the paper's setting, or what two cores can do (small)", **shown
    )
    group.add_argument("--models", nargs="+", metavar="NAME", help="networks; what each scale has is below", **shown)
    group.add_argument("--methods", nargs="+", metavar="NAME", help=f"of {', '.join(METHODS)}", **shown)
    group.add_argument(
        "--sparsities", nargs="+", type=float, metavar="X", help="shares of weights that are zero", **shown
    )
    group.add_argument("--seeds", type=int, metavar="N", help="final runs of each method", **shown)
    group.add_argument("--epochs", type=int, metavar="N", help="passes over the training set", **shown)
    group.add_argument(
        "--trial-epochs", type=int, metavar="N", help="of the runs on which settings are chosen (as many)", **shown
    )
    group.add_argument(
        "--label-noise", nargs="+", type=float, metavar="X", help="shares of training labels that are wrong", **shown
    )
    parser.add_argument("--runs", type=Path, default=RUNS, metavar="DIR", help="where runs are kept (runs)")


def _add_run(parser: argparse.ArgumentParser) -> None:
    name = parser.prog.split()[-1]
    _add_spec(parser)
    group = parser.add_argument_group("where it runs")
    add_data_dir(group)
    parser.set_defaults(run=_run, name=name, stopped="what was done is kept")
    if name == "time":  # which is one process, on all threads
        return
    group.add_argument("--jobs", type=int, metavar="N", help="processes, one thread each (the cores)")
    group.add_argument("--engine", choices=["local", "ray"], default="local", help="this machine, or a Ray cluster")
    group.add_argument("--address", metavar="ADDRESS", help="of the Ray cluster (one on this machine)")


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """What the flags say of an experiment."""
    given = {key: getattr(options, key) for key in SPEC if hasattr(options, key)}
    for key in ("seeds", "epochs"):
        if key in given and given[key] < 1:
            raise ValueError(f"--{key} must be a whole number, at least 1; received {given[key]}")
    return {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}


def _remembered(options: argparse.Namespace) -> list[Spec]:
    """What was asked for earlier, for each choice of networks the last time, but for what the flags say."""
    given, asked = _given(options), Spec(options.name, **_given(options))
    there = [spec for spec in saved_specs(options.runs) if spec.name == asked.name]
    for key in ("scale", "models"):
        if key in given:
            there = [spec for spec in there if getattr(spec, key) == getattr(asked, key)]
    return [replace(spec, **given) for spec in there] or [asked]


def _run(options: argparse.Namespace) -> int:
    spec = Spec(options.name, **_given(options))
    root = data_root(options.data_dir)
    for name in dict.fromkeys(subject.data for subject in spec.subjects()):
        if DATASETS[name].files and find(name, root) is None:
            get(name, root, show_bytes)
    store = Store(options.runs)
    if spec.name == "time":
        return _time(spec, store, options.data_dir)
    if options.address is not None and options.engine != "ray":
        raise ValueError("--address is for --engine ray")
    engine: Engine
    if options.engine == "ray":
        engine = OnRay(options.address, options.jobs, store, options.data_dir)
    else:
        # A GPU serves one process at a time best.
        most = 1 if torch.cuda.is_available() else os.cpu_count() or 1
        engine = Local(most if options.jobs is None else options.jobs, store, options.data_dir)
    spec.save(options.runs)
    return _watched(Runner(Plan(spec, store), engine), shlex.join(["halo", *sys.argv[1:]]))


def _time(spec: Spec, store: Store, data_dir: Path | None) -> int:
    spec.save(store.path)
    try:
        measure_times(spec, store.path, data_dir, lambda name, n, of: say(f"{name}: round {n} of {of}"))
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        return 128 + stopped.signum
    say(FORMATS["text"](tables_of(spec, store), False).rstrip())
    return 0


def _watched(runner: Runner, command: str) -> int:
    show = Bars() if sys.stdout.isatty() else Lines()
    first = runner.state()
    again = sum(runner.plan.is_again(job) for job in runner.plan.jobs())
    more = f"; {again} of the others are trained again, for their weights" if again else ""
    say(f"{first.done} of {first.jobs} runs are there{more}")
    try:
        failed = runner.run(show)
    except Stopped as stopped:
        show.close()
        print(f"{stopped}\nto go on: {command}", file=sys.stderr)
        return 128 + stopped.signum
    finally:
        show.close()
    _say_left_out(runner.plan.store)
    say(FORMATS["text"](tables_of(runner.plan.spec, runner.plan.store), False).rstrip())
    for name, reason in failed.items():
        log = runner.plan.store.path / "logs" / f"{name}.txt"
        print(f"failed: {name}: {reason}" + (f" (its log: {log})" if log.exists() else ""), file=sys.stderr)
    return 1 if failed else 0


def _show(options: argparse.Namespace) -> int:
    store = Store(options.runs)
    if options.name is None and (given := [key for key in SPEC if hasattr(options, key)]):
        raise ValueError(f"--{given[0]} is for one experiment; name it: {', '.join(EXPERIMENTS)}")
    specs = saved_specs(options.runs) if options.name is None else _remembered(options)
    if not specs:
        raise FileNotFoundError(f"{options.runs} has no experiments; name one: {', '.join(EXPERIMENTS)}")
    if options.name is None and options.format == "markdown":
        print(results_page(store), end="")
    else:
        found = [sheet for spec in specs for sheet in tables_of(spec, store)]
        say(FORMATS[options.format](found, options.trace).rstrip())
    _say_left_out(store)
    return 0


def _say_left_out(store: Store) -> None:
    for problem in store.problems.values():
        print(f"left out: {problem}", file=sys.stderr)


def _status(options: argparse.Namespace) -> int:
    store = Store(options.runs)
    for spec in _remembered(options):
        if spec.name == "time":
            say("\n".join(sheet.title for sheet in tables_of(spec, store)))
        else:
            _say_status(Plan(spec, store))
    _say_left_out(store)
    return 0


def _say_status(plan: Plan) -> None:
    failures = {job.name: plan.store.failure(job.config) for job in plan.jobs() if not plan.is_done(job)}
    failed = {name: reason for name, reason in failures.items() if reason}
    say("\n".join(table([("", "runs", "finished", "unfinished", "failed"), *_counts(plan, set(failed))])))
    state = state_of(plan, failed)
    say(f"{state.done} of {state.jobs} runs are finished{left(state)}{' one at a time' if left(state) else ''}")
    for name, reason in failed.items():
        say(f"failed: {name}: {reason}")


def _counts(plan: Plan, failed: set[str]) -> list[tuple[str, ...]]:
    """A row of the table: its runs as far as they are known, and how they are."""
    rows: list[tuple[str, ...]] = []
    known = {job.name: job for job in plan.jobs()}  # with all that is asked of them
    for row in plan.rows:
        jobs = [known[job.name] for job in plan.jobs_of(row)]
        done = sum(plan.is_done(job) for job in jobs)
        begun = sum(not plan.is_done(job) and plan.store.folder(job.config).exists() for job in jobs)
        bad = sum(job.name in failed for job in jobs)
        rows.append((f"{row.subject.name}, {row.label}", str(len(jobs)), str(done), str(begun), str(bad)))
    return rows


def _keep(options: argparse.Namespace) -> int:
    store = Store(options.runs)
    for spec in _remembered(options):
        say(f"{', '.join(spec.models)}: {keep(spec, store, options.to)} runs are in {options.to}")
    _say_left_out(store)
    return 0
