"""The `halo` command."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from torch_halo.files import check_writable, write_whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        print(f"\nstopped; {options.stopped}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, `head` say, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
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
    demo.set_defaults(run=_demo, stopped="nothing was written")
    _add_data(commands)
    return parser


def _add_data(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    data = commands.add_parser("data", help="list and fetch data sets", description="Data sets and where they are.")
    actions = data.add_subparsers(title="actions", required=True, metavar="ACTION")
    listed = actions.add_parser("list", help="say which data sets there are, and which are here")
    listed.set_defaults(run=_data_list, stopped="nothing was changed")
    fetched = actions.add_parser("fetch", help="get data sets from their publishers, and check them")
    fetched.add_argument("names", nargs="+", metavar="NAME", help="data sets, as `halo data list` names them")
    fetched.set_defaults(run=_data_fetch, stopped="the same command goes on where it was")
    for parser in (listed, fetched):
        parser.add_argument(
            "--data-dir", type=Path, metavar="DIR", help="where the files are ($HALO_DATA, or a folder in your cache)"
        )


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
        check_writable(path)
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


def _data_list(options: argparse.Namespace) -> int:
    from torch_halo.data import DATASETS, data_root, find

    root = data_root(options.data_dir)
    for name, source in DATASETS.items():
        train, test = source.counts
        place = "with scikit-learn" if not source.files else find(name, root) or "not here; halo data fetch gets it"
        print(f"{name:14} {source.classes:4} classes {train:7,} + {test:6,} images   {place}")
    return 0


def _data_fetch(options: argparse.Namespace) -> int:
    from torch_halo.data import data_root, find, load

    root = data_root(options.data_dir)
    for name in options.names:
        load(name, root=root, progress=_show_bytes)
        print(f"{name}: {find(name, root)}")
    return 0


def _show_bytes(name: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        share = f"{done / total:4.0%}" if total else ""
        print(f"\r{name} {done / 1e6:8.1f} MB {share}", end="\n" if done == total else "", file=sys.stderr)
