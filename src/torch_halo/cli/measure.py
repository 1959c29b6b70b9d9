"""`halo eval` and `halo prune`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from torch_halo.cli.display import result_lines, table
from torch_halo.cli.subjects import add_command, given_subject
from torch_halo.files import check_writable
from torch_halo.training.evaluation import as_data
from torch_halo.training.folder import write_weights
from torch_halo.training.pruned import Pruned


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", arguments: Sequence[str]) -> None:
    """Add the commands."""
    measured = add_command(
        commands,
        arguments,
        "eval RUN|FILE",
        "measure a run or a file of weights, pruned to any sparsity",
        "Loss and accuracy of a run's network (unfinished: of its last checkpoint), or of a file of "
        "weights; nothing is changed.",
    )
    measured.add_argument("--sparsity", nargs="*", type=float, default=[], metavar="X", help="also pruned to these")
    measured.set_defaults(run=_eval, stopped="nothing was changed")
    cut = add_command(
        commands,
        arguments,
        "prune RUN|FILE --sparsity X -o FILE",
        "prune a run's network into a file, and tell what it cost",
        "Cut the smallest weights of a run's network (or of a file of weights) and write the rest as "
        "safetensors; the run stays as it is.",
    )
    cut.add_argument("--sparsity", type=float, required=True, metavar="X", help="the share of weights to be zero")
    cut.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the safetensors file to write")
    cut.add_argument("--recalibrate", action="store_true", help="write the recalibrated batch norms")
    cut.set_defaults(run=_prune, stopped="nothing was written")


def _eval(options: argparse.Namespace) -> int:
    found, config = given_subject(options, options.sparsity)
    levels = [found.pruned(level, config).as_dict() for level in config.pruning.sparsity]
    print("\n".join(result_lines({**as_data(found.measure()), "pruned": levels})))
    return 0


def _prune(options: argparse.Namespace) -> int:
    check_writable(options.output)
    if options.output.suffix != ".safetensors":
        raise ValueError(f"the output must end in .safetensors; received {options.output}")
    found, config = given_subject(options, [options.sparsity])
    before = found.measure()["test"]
    cut = found.pruned(options.sparsity, config)
    if options.recalibrate and cut.recalibrated_state is None:
        raise ValueError(f"{config.model.name} has no batch norm to recalibrate")
    print(cut.cut)
    print()
    print("\n".join(_cost(before.accuracy if before else None, cut)))
    state = cut.recalibrated_state if options.recalibrate and cut.recalibrated_state else cut.state
    write_weights(options.output, state, config)
    print(f"written: {options.output}")
    return 0


def _cost(before: float | None, cut: Pruned) -> list[str]:
    found = [("before", before)]
    for name, figures in (("after", cut.figures), ("after recalibration", cut.recalibrated)):
        test = figures and figures["test"]
        if test:
            found.append((name, test.accuracy))
    return table([("", "test accuracy"), *((name, f"{x:.2f} %") for name, x in found if x is not None)])
