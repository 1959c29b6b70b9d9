"""The `halo` command."""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        print("\nstopped; nothing was written", file=sys.stderr)
        return 130
    except (ImportError, OSError, ValueError) as error:
        print(f"halo: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="halo", description="Neural networks that become sparse while they train.")
    parser.add_argument("--version", action="version", version=f"torch-halo {version('torch-halo')}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="train, prune and compare on scikit-learn's digits, in under a minute",
        description="Train a small network on scikit-learn's digits plainly, with L1 and with HALO; prune each at "
        "rising sparsity without fine-tuning; print a table and write an HTML page. Needs no network.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    demo.add_argument("--seeds", type=_positive, default=3, metavar="N", help="networks to average, for each method")
    demo.add_argument("--out", type=Path, default=Path("halo-demo.html"), metavar="FILE", help="the page to write")
    demo.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as data")
    demo.set_defaults(run=_demo)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1; received {text!r}")
    return int(text)


def _demo(options: argparse.Namespace) -> int:
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
        from rich.console import Console
        from rich.progress import Progress
        from rich.table import Table
    except ImportError as error:
        raise ImportError(f"the demo needs {error.name}: pip install 'torch-halo[demo]'") from error
    from torch_halo.experiments.demo import as_json, run_count, run_demo
    from torch_halo.report import demo_html, demo_table

    for path in filter(None, (options.out, options.json)):
        _check_writable(path)
    console, start = Console(), time.perf_counter()
    total = run_count(options.seeds)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("training", total=total)

        def done(what: str) -> None:
            progress.update(task, advance=1, description=f"trained {what}")
            if not console.is_terminal:  # a log wants lines
                print(f"trained {what} ({progress.tasks[0].completed:.0f} of {total})", flush=True)

        rows = run_demo(options.seeds, done=done)
    header, body = demo_table(rows)
    table = Table(title="Test accuracy by sparsity, pruned once, no fine-tuning")
    for name in header:
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for row in body:
        table.add_row(*(cell.replace(" ±", "\n±") for cell in row))  # fits 80 columns
    console.print(table)
    seconds = time.perf_counter() - start
    write_whole(options.out, demo_html(rows, seconds))
    if options.json:
        write_whole(options.json, as_json(rows))
    console.print(f"{seconds:.0f} s. The page: {options.out}", highlight=False)
    return 0


def _check_writable(path: Path) -> None:
    """Say so now, not after a minute of training."""
    if path.is_dir():
        raise OSError(f"{path} is a directory; a file is needed")
    if not os.access(path.parent, os.W_OK):
        raise OSError(f"cannot write {path}: {path.parent} is not a writable directory")


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it appears whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
