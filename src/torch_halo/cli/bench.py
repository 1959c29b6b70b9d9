"""`halo bench`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from torch_halo.checks import whole
from torch_halo.cli.display import say, table
from torch_halo.cli.inference import add_inference
from torch_halo.experiments.overhead import CASES, Overhead, measured, overhead_rows, write_overhead
from torch_halo.files import check_writable

ROUNDS = 21


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", arguments: Sequence[str]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bench", help="measure what a penalty costs, or what a pruned network takes", allow_abbrev=False
    )
    inner = parser.add_subparsers(title="what", required=True, metavar="WHAT")
    own = inner.add_parser(
        "overhead",
        help="time and memory of a step with a penalty, beside plain SGD",
        description="Steps of training with and without a penalty, in turns; medians of their ratios, and the bytes "
        "that a weight needs beyond plain SGD. The first step of a compiled one includes the compiler.",
        allow_abbrev=False,
    )
    own.add_argument("--models", nargs="+", default=list(CASES), metavar="NAME", help=f"of {', '.join(CASES)} (all)")
    own.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"turns that each takes ({ROUNDS})")
    own.add_argument("--threads", type=int, metavar="N", help="torch's threads (as it chooses)")
    own.add_argument("-o", "--out", type=Path, metavar="FILE", help="write all times there, as JSON")
    own.set_defaults(run=_overhead, stopped="nothing was written")
    add_inference(inner, arguments)


def _overhead(options: argparse.Namespace) -> int:
    whole("--rounds", options.rounds, at_least=1)
    for name in options.models:
        CASES[name]
    if options.out is not None:
        check_writable(options.out)
    if options.threads is not None:
        torch.set_num_threads(whole("--threads", options.threads, at_least=1))
    found = [_measured(name, options.rounds) for name in options.models]
    if options.out is not None:
        write_overhead(options.out, found)
        say(f"written: {options.out}")
    return 0


def _measured(name: str, rounds: int) -> Overhead:
    for found in measured(name, rounds):
        if sys.stderr.isatty():
            print(f"\r{name}: round {len(found.rounds)} of {rounds}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    say(f"{found.case}: {found.weights:,} weights, {found.threads} threads, {rounds} rounds")
    say("\n".join([*table(overhead_rows(found)), ""]))
    return found
