"""`halo data list` and `halo data fetch`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from torch_halo.data import DATASETS, data_root, find, load


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", arguments: Sequence[str]) -> None:
    """Add the command."""
    data = commands.add_parser("data", help="list and fetch data sets", description="Data sets and where they are.")
    actions = data.add_subparsers(title="actions", required=True, metavar="ACTION")
    listed = actions.add_parser("list", help="say which data sets there are, and which are here")
    listed.set_defaults(run=_list, stopped="nothing was changed")
    fetched = actions.add_parser("fetch", help="get data sets from their publishers, and check them")
    fetched.add_argument("names", nargs="+", metavar="NAME", help="data sets, as `halo data list` names them")
    fetched.set_defaults(run=_fetch, stopped="the same command goes on where it was")
    for parser in (listed, fetched):
        add_data_dir(parser)


def add_data_dir(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """Add the flag that says where data sets are."""
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="where the files are ($HALO_DATA, or a folder in your cache)"
    )


def show_bytes(name: str, done: int, total: int) -> None:
    """Show how a download goes."""
    if sys.stderr.isatty():
        share = f"{done / total:4.0%}" if total else ""
        print(f"\r{name} {done / 1e6:8.1f} MB {share}", end="\n" if done == total else "", file=sys.stderr)


def _list(options: argparse.Namespace) -> int:
    root = data_root(options.data_dir)
    for name, source in DATASETS.items():
        train, test = source.counts
        place = "with scikit-learn" if not source.files else find(name, root) or "not here; halo data fetch gets it"
        print(f"{name:14} {source.classes:4} classes {train:7,} + {test:6,} images   {place}")
    return 0


def _fetch(options: argparse.Namespace) -> int:
    root = data_root(options.data_dir)
    for name in options.names:
        load(name, root=root, progress=show_bytes)
        print(f"{name}: {find(name, root)}")
    return 0
