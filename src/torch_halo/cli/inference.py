"""`halo bench inference`."""

import argparse
import copy
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import nn

from torch_halo.checks import did_you_mean, number, whole
from torch_halo.cli.display import say, table
from torch_halo.cli.subjects import add_command, given_subject, pruned_file, test_inputs
from torch_halo.experiments.inference import (
    BATCHES,
    CASES,
    Inference,
    Sample,
    measured,
    random_network,
    size_rows,
    time_rows,
    write_inference,
)
from torch_halo.files import check_writable
from torch_halo.pruning import prune_

ROUNDS = 21


def add_inference(inner: "argparse._SubParsersAction[argparse.ArgumentParser]", arguments: Sequence[str]) -> None:
    """Add the command."""
    own = add_command(
        inner,
        arguments,
        "bench inference RUN|FILE|NETWORK",
        "time and size of a pruned network, by runtime, batch size and threads",
        "A network on torch (dense), on onnxruntime (dense) and as `halo deploy` runs it, in turns; and "
        f"its bytes in each format. A NETWORK, one of {', '.join(CASES)}, has random weights, pruned to --sparsity "
        "with small layers denser (ERK). A run's table is kept in its folder, and shown in its report.",
    )
    own.add_argument("--sparsity", nargs="+", type=float, default=[], metavar="X", help="pruned to these")
    own.add_argument(
        "--batch", nargs="+", type=int, default=list(BATCHES), metavar="N", help="inputs at a time (1 8 64)"
    )
    own.add_argument("--threads", nargs="+", type=int, metavar="N", help="torch's and onnxruntime's (as torch chooses)")
    own.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"turns that each takes ({ROUNDS})")
    own.add_argument("-o", "--out", type=Path, metavar="FILE", help="write all of it there, as JSON")
    own.set_defaults(run=_inference, stopped="what was measured as a whole is kept")


def _inference(options: argparse.Namespace) -> int:
    whole("--rounds", options.rounds, at_least=1)
    threads = options.threads or [torch.get_num_threads()]
    for flag, values in (("--batch", options.batch), ("--threads", threads)):
        for value in values:
            whole(flag, value, at_least=1)
    levels = [number("--sparsity", level, above=0, below=1) for level in options.sparsity]
    out = options.path / "inference.json" if options.out is None and options.path.is_dir() else options.out
    if out is not None:
        check_writable(out)
    found = []
    for about, model, sample in _networks(options, levels):
        *_, last = measured(about, model, sample, options.batch, threads, options.rounds)
        found.append(last)
        _show(last)
        if out is not None:  # after each network, since they take long
            write_inference(out, found)
    if out is not None:
        say(f"written: {out}")
    return 0


def _networks(options: argparse.Namespace, levels: Sequence[float]) -> Iterator[tuple[str, nn.Module, Sample]]:
    name = str(options.path)
    if not options.path.exists():
        if name not in CASES:
            near = did_you_mean(name, CASES)
            raise FileNotFoundError(f"{name}: no such run or file, nor one of {', '.join(CASES)}{near}")
        for level in levels or [0.95]:
            yield CASES[name].about, random_network(name, level), CASES[name].sample
        return
    path = options.path
    options.path = path if levels else pruned_file(path)
    found, config = given_subject(options, [])
    for level in levels or [0.0]:
        model = copy.deepcopy(found.module).cpu().eval()
        if level:
            prune_(model, sparsity=level, scope=config.pruning.scope, select=config.shrinking.select)
        yield f"{config.model.name} on {config.data.name} ({path.name})", model, test_inputs(found.data)


def _show(found: Inference) -> None:
    say(f"{found.about}, {found.sparsity:.2%} zeros")
    say("\n".join([*table(size_rows(found)), "", *table(time_rows(found)), *found.notes, ""]))
