"""The `halo` command."""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn, cast

from torch_halo.checks import did_you_mean
from torch_halo.cli import analyse, bench, data, demo, deploy, experiment, measure, report, train


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        options = _options(arguments)
    except (ImportError, ValueError) as error:
        print(f"halo: {error}", file=sys.stderr)
        return 2
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning  # type: ignore[assignment]
            return int(options.run(options))
    except KeyboardInterrupt:
        print(f"\nstopped; {options.stopped}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, `head` say, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (FloatingPointError, ImportError, OSError, ValueError) as error:
        print(f"halo{_process()}: {error}", file=sys.stderr)
        return 1


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="halo", description="Neural networks that become sparse while they train.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"torch-halo {version('torch-halo')}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for room in (demo, train, measure, deploy, analyse, experiment, report, bench, data):
        room.add_to(commands, arguments)
    names = list(commands.choices)
    if arguments and not arguments[0].startswith("-") and arguments[0] not in names:
        raise ValueError(
            f"unknown command {arguments[0]!r}; known: {', '.join(names)}{did_you_mean(arguments[0], names)}"
        )
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        _refuse(unknown[0], _inner(commands.choices[arguments[0]], arguments[1:]))
    return options


def _inner(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of a subcommand's own subcommand, where there is one."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and arguments and arguments[0] in action.choices:
            return cast(argparse.ArgumentParser, action.choices[arguments[0]])
    return parser


def _refuse(unknown: str, parser: argparse.ArgumentParser) -> NoReturn:
    if not unknown.startswith("-"):
        raise ValueError(f"unexpected argument {unknown!r}; {parser.prog} --help lists what there is")
    flag = unknown.split("=")[0]
    # Without the dashes, which would make all flags look alike.
    known = [option.lstrip("-") for action in parser._actions for option in action.option_strings]
    near = did_you_mean(flag.lstrip("-"), known).replace("mean ", "mean --").replace(" or ", " or --")
    owner = train.owner_of(flag) if parser.prog == "halo train" else ""
    raise ValueError(f"unknown flag {flag}{owner or near}; {parser.prog} --help lists them")


def _process() -> str:
    """Which process of several speaks, if it is not the first."""
    rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
    return "" if rank == "0" else f", process {rank}"


def _show_warning(message: Warning | str, *rest: object) -> None:
    print(f"halo: warning: {message}", file=sys.stderr)
