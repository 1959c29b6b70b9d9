"""`halo report`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from torch_halo.checks import extra
from torch_halo.experiments.store import unread_lines
from torch_halo.files import check_writable, write_whole


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", arguments: Sequence[str]) -> None:
    """Add the command."""
    report = commands.add_parser(
        "report",
        help="write one HTML page about runs: tables, pictures, settings",
        description="Accuracy by sparsity, training curves, sparsity by layer, time and memory of finished runs, by "
        "method and over seeds, as one HTML file that needs no network.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    report.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="runs' folders, or folders of such")
    report.add_argument("-o", "--out", type=Path, default=Path("report.html"), metavar="FILE", help="the page to write")
    report.set_defaults(run=_report, stopped="nothing was written")


def _report(options: argparse.Namespace) -> int:
    with extra("report", "the report"):
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    from torch_halo.report.runs import read_runs, runs_html

    check_writable(options.out)
    runs, problems = read_runs(options.runs)
    write_whole(options.out, runs_html(runs, problems))
    for line in unread_lines(problems):
        print(line, file=sys.stderr)
    print(f"{len(runs)} run{'s' if len(runs) > 1 else ''}. The report: {options.out}")
    return 0
