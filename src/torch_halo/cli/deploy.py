"""`halo deploy` and `halo export`."""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from torch_halo.checks import whole
from torch_halo.cli.display import say, table
from torch_halo.cli.subjects import add_command, given_subject, pruned_file, test_inputs
from torch_halo.deployment import compress, deploy, load_compressed, remove_dead
from torch_halo.deployment.compressed import VALUES
from torch_halo.deployment.deploying import ENGINES
from torch_halo.deployment.export import FORMATS, check_export, export
from torch_halo.figures import sparsity
from torch_halo.files import check_writable
from torch_halo.models import MODELS
from torch_halo.pruning import prune_
from torch_halo.training.evaluation import measure
from torch_halo.training.subject import Subject

BATCH = 1


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", arguments: Sequence[str]) -> None:
    """Add the commands."""
    small = add_command(
        commands,
        arguments,
        "deploy RUN|FILE -o FILE",
        "write a pruned network as a small file, and find the fastest way to run it here",
        "Write a run's network (pruned, where the run has it) without its zeros, read it back, and time "
        "each layer dense and sparse; accuracy is measured before and after.",
    )
    small.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the file, a .safetensors")
    small.add_argument("--values", choices=list(VALUES), default="exact", help="round weights to a smaller type")
    small.add_argument("--no-zstd", action="store_true", help="bitmask and values only, without zstd")
    small.add_argument("--engine", choices=list(ENGINES), default="auto", help="how to run it (auto: the fastest)")
    small.add_argument("--threads", type=int, metavar="N", help="torch's threads (as it chooses)")
    small.set_defaults(run=_deploy, stopped="nothing was written")
    other = add_command(
        commands,
        arguments,
        "export RUN|FILE --format NAME -o FILE",
        "write a network for other runtimes: ONNX, or torch's exported program",
        "Write a run's network without its dead structure, run it there on test inputs, and compare.",
    )
    other.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the file to write")
    other.add_argument("--format", choices=list(FORMATS), default="onnx", help="onnx, checked by onnxruntime, or torch")
    other.add_argument("--sparse", action="store_true", help="ONNX: leave zeros out of the file")
    other.set_defaults(run=_export, stopped="nothing was written")
    for parser in (small, other):
        parser.add_argument("--sparsity", type=float, metavar="X", help="prune it to this first")
        parser.add_argument(
            "--batch", type=int, default=BATCH, metavar="N", help=f"inputs at a time, to be timed or checked ({BATCH})"
        )


def _deploy(options: argparse.Namespace) -> int:
    if options.output.suffix != ".safetensors":
        raise ValueError(f"the output must end in .safetensors; received {options.output}")
    if options.threads is not None:
        torch.set_num_threads(whole("--threads", options.threads, at_least=1))
    found, model, example = _network(options)
    about = {"halo": json.dumps(found.config.as_dict())}
    again = MODELS[found.config.model.name](found.data.input_shape, found.data.classes, **found.config.model.options)
    with tempfile.TemporaryDirectory(dir=options.output.parent, prefix=".") as folder:
        file = Path(folder) / options.output.name  # which takes its place when all is done
        written = compress(model, file, values=options.values, zstd=not options.no_zstd, metadata=about)
        load_compressed(file, again)
        _report(options, found, model, again, example)
        file.replace(options.output)
    say(f"written: {replace(written, path=options.output)}")
    return 0


def _report(options: argparse.Namespace, found: Subject, model: nn.Module, again: nn.Module, example: Tensor) -> None:
    """Say how good and how fast the network is, and what it is from the file."""
    accuracies = [("network", _accuracy(found, model))]
    accuracies.append(("from the file", _accuracy(found, again)))
    fast, times = deploy(again, example, options.engine)
    accuracies.append(("deployed", _accuracy(found, fast)))
    say(str(times))
    say("")
    say("\n".join(table([("", "test accuracy"), *((name, f"{x:.2f} %") for name, x in accuracies)])))
    say(f"zeros {sparsity(model).sparsity:.2%}, {times.times:.2f} times faster at batch {len(example)}")


def _export(options: argparse.Namespace) -> int:
    check_export(options.output, options.format, options.sparse)
    _, model, example = _network(options)
    example = example if len(example) > 1 else example.repeat_interleave(2, 0)  # so that the batch's size can vary
    removed = remove_dead(model, example)
    say(str(removed))
    say(f"written: {export(removed.model, example, options.output, options.format, sparse=options.sparse)}")
    return 0


def _network(options: argparse.Namespace) -> tuple[Subject, nn.Module, Tensor]:
    """The network, pruned if that was asked for, and a batch of test inputs."""
    check_writable(options.output)
    whole("--batch", options.batch, at_least=1)
    options.path = options.path if options.sparsity is not None else pruned_file(options.path)
    found, config = given_subject(options, [])
    model = found.module.cpu().eval()
    if options.sparsity is not None:
        prune_(model, sparsity=options.sparsity, scope=config.pruning.scope, select=config.shrinking.select)
    return replace(found, data=found.data.to("cpu")), model, test_inputs(found.data)(options.batch)


def _accuracy(found: Subject, model: nn.Module) -> float:
    test = measure(model, found.data)["test"]
    assert test is not None
    return test.accuracy
