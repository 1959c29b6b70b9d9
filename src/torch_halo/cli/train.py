"""`halo train`."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from torch_halo.checks import number
from torch_halo.cli.data import add_data_dir, show_bytes
from torch_halo.cli.display import Bar, Lines, result_lines, say
from torch_halo.cli.flags import part_of
from torch_halo.cli.form import TABLES, Form
from torch_halo.data import DATASETS, data_root, find, get
from torch_halo.files import digest
from torch_halo.training.config import Config
from torch_halo.training.folder import RunFolder
from torch_halo.training.runs import Inputs, run
from torch_halo.training.signals import Stopped

ABOUT = """Train a network, prune it, and keep everything in a folder. The same command goes on where a stopped or
killed one was; a finished run is not repeated."""
EXAMPLE = """example:
  halo train --data mnist --model lenet-300-100 --penalty halo --xi 1e-6 --epochs 30 --sparsity 0.95"""


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", arguments: Sequence[str]) -> None:
    """Add the command; which flags it has depends on what is chosen."""
    parser = commands.add_parser(
        "train",
        help="train a network with a penalty, and prune it",
        usage="halo train [--data NAME] [--model NAME] [--penalty NAME] [flags]",
        description=ABOUT,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if not arguments or arguments[0] != "train":
        return
    form = Form(arguments[1:])
    group = parser.add_argument_group("the run")
    group.add_argument("--preset", metavar="NAME", help=f"settings to start from: {', '.join(TABLES['preset'])}")
    group.add_argument("--out", type=Path, metavar="DIR", help="its folder, which all nodes must share (in runs/)")
    add_data_dir(group)
    group.add_argument("--weights", type=Path, metavar="FILE", help="start from these weights")
    group.add_argument("--masks", type=Path, metavar="FILE", help="hold the zeros of this file's weights at zero")
    group.add_argument("--save-every", type=float, default=60, metavar="SECONDS", help="time between checkpoints (60)")
    form.add_to(parser)
    command = shlex.join(["halo", *arguments])
    parser.set_defaults(run=_train, stopped=f"to go on: {command}", form=form, command=command)


def owner_of(flag: str) -> str:
    """What a flag that the chosen kinds do not have belongs to."""
    name = flag.lstrip("-").replace("-", "_")
    for key, table in TABLES.items():
        for kind, make in table.items() if key in ("model", "penalty", "optimizer", "schedule") else ():
            try:
                flags = part_of(make, {"inner": "l1"}).all_flags()
            except ValueError:  # for Python only
                continue
            if any(name == found.name for found, _ in flags):
                return f": it belongs to --{key} {kind}"
    return ""


def _train(options: argparse.Namespace) -> int:
    number("--save-every", options.save_every, at_least=0)
    config = _config(options)
    folder = RunFolder(options.out or Path("runs") / config.name)
    if _is_finished(folder, config):
        print(f"{folder.path} is finished:")
        print("\n".join(result_lines(folder.result() or {})))
        return 0
    root, inputs = data_root(options.data_dir), Inputs(options.data_dir, options.weights, options.masks)
    if DATASETS[config.data.name].files and find(config.data.name, root) is None:
        get(config.data.name, root, show_bytes)  # before the processes are started, so that one shows how it goes
    display = Bar() if sys.stdout.isatty() else Lines()
    try:
        is_first = run(config, folder.path, display, inputs, options.save_every)
    except Stopped as stopped:
        display.close()
        if _is_first():
            print(f"{stopped}\nto go on: {options.command}", file=sys.stderr)
        return 128 + stopped.signum
    except RuntimeError as error:
        if "onnection" not in str(error):  # what torch says if another process cannot be reached
            raise
        reason = str(error).splitlines()[0]
        raise ConnectionError(
            f"another process of this run has ended ({reason}); to go on: {options.command}"
        ) from error
    finally:
        display.close()
    if is_first:
        result = folder.result()
        assert result is not None
        say("\n".join([*result_lines(result), f"{result['seconds']:.0f} s. All of it: {folder.path}"]))
    return 0


def _config(options: argparse.Namespace) -> Config:
    files = {name: getattr(options, name) for name in ("weights", "masks")}
    for path in filter(None, files.values()):
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file")
    sums = {name: f"sha256:{digest(path)}" if path else None for name, path in files.items()}
    config: Config = options.form.config(vars(options), **sums)
    return config


def _is_finished(folder: RunFolder, config: Config) -> bool:
    if folder.result() is None:
        return False
    folder.check(config)
    return True


def _is_first() -> bool:
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK"))
