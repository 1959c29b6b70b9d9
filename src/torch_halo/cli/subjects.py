"""Networks named on the command line: a run's folder, or a file of weights, compressed or not."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from torch_halo.cli.data import add_data_dir
from torch_halo.cli.flags import part_of
from torch_halo.data import DATASETS, DataSet
from torch_halo.deployment.compressed import load_file
from torch_halo.models import MODELS
from torch_halo.training.config import Config
from torch_halo.training.folder import RunFolder
from torch_halo.training.settings import Data, Model, Pruning
from torch_halo.training.subject import Subject, subject

COMMANDS = ("eval", "prune", "deploy", "export", "bench")  # that have such a network


def add_command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    arguments: Sequence[str],
    usage: str,
    about: str,
    told: str,
) -> argparse.ArgumentParser:
    """Add a command about such a network: how it is called, what it is for, and the same at length."""
    name = usage.removeprefix("bench ").split()[0]
    parser = commands.add_parser(name, help=about, usage=f"halo {usage} [flags]", description=told, allow_abbrev=False)
    _add_subject(parser, arguments)
    return parser


def _add_subject(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Add the path, and what it takes to read and prune it."""
    parser.add_argument("path", type=Path, metavar="RUN|FILE", help="a run's folder, or a file of weights")
    parser.add_argument("--scope", choices=["global", "layer"], help="one threshold for all layers, or one for each")
    parser.add_argument("--select", nargs="*", metavar="TEXT", help="which layers to prune, e.g. '!classifier'")
    add_data_dir(parser)
    group = parser.add_argument_group("for a file that does not tell what it is")
    group.add_argument("--data", metavar="NAME", help=", ".join(DATASETS))
    group.add_argument("--model", metavar="NAME", help=", ".join(MODELS))
    for name in _model_in(arguments):
        for flag, default in part_of(MODELS[name], {}).all_flags():
            flag.add_to(group, default)


def _model_in(arguments: Sequence[str]) -> list[str]:
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--model", nargs="?")
    found = finder.parse_known_args(arguments)[0].model
    return [found] if found and arguments[0] in COMMANDS else []


def given_subject(options: argparse.Namespace, levels: Sequence[float]) -> tuple[Subject, Config]:
    """The network that was named, and its settings with the flags' own."""
    model = None
    if options.model:
        flags = part_of(MODELS[options.model], {}).flags
        model = Model(options.model, {f.name: vars(options)[f.name] for f in flags if f.name in options})
    data = Data(options.data) if options.data else None
    found = subject(options.path, options.data_dir, data, model, load=load_file)
    before, how = found.config.pruning, found.config.shrinking
    pruning = Pruning(tuple(levels), options.scope or before.scope)
    select = how.select if options.select is None else tuple(options.select)
    if not found.is_finished:
        print(f"{options.path} is not finished: measuring its last checkpoint", file=sys.stderr)
    return found, replace(found.config, pruning=pruning, shrinking=replace(how, select=select))


def pruned_file(path: Path) -> Path:
    """A run's pruned weights, where it has some."""
    found = RunFolder(path).pruned
    return found if found.exists() else path


def test_inputs(data: DataSet) -> Callable[[int], Tensor]:
    """Batches of a test set's inputs, from its beginning, and again if they are too few."""
    inputs = data.test.inputs.cpu()
    return lambda batch: data.normalise(inputs[torch.arange(batch) % len(inputs)])
