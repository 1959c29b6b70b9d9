"""`halo demo`."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from torch_halo.checks import extra
from torch_halo.files import check_writable, write_whole


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", arguments: Sequence[str]) -> None:
    """Add the command."""
    demo = commands.add_parser(
        "demo",
        help="train, prune and compare on scikit-learn's digits, in under a minute",
        description="Train a small network on scikit-learn's digits plainly, with L1 and with HALO; prune each at "
        "rising sparsity without fine-tuning; print a table and write an HTML page. Needs no network.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    demo.add_argument("--seeds", type=_positive, default=3, metavar="N", help="networks to average, for each method")
    demo.add_argument("--out", type=Path, default=Path("halo-demo.html"), metavar="FILE", help="the page to write")
    demo.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as data")
    demo.set_defaults(run=_demo, stopped="nothing was written")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1; received {text!r}")
    return int(text)


def _demo(options: argparse.Namespace) -> int:
    with extra("demo", "the demo"):
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
        from rich.console import Console
        from rich.progress import Progress
        from rich.table import Table
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
    console.print(f"{seconds:.0f} s. The page: {options.out}", highlight=False, soft_wrap=True)
    return 0
