"""`halo analyse` and `halo suspects`."""

import argparse
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from torch_halo.checks import extra, number, whole
from torch_halo.cli.data import add_data_dir
from torch_halo.cli.display import say, table
from torch_halo.data import DataSet
from torch_halo.experiments.analysing import ANALYSES, Case, analyse, overlaps, read_analysis, write_analysis
from torch_halo.experiments.store import find_runs, unread_lines
from torch_halo.experiments.suspicion import FIRST, SHEET, Ranked, first_rows, rank_suspects
from torch_halo.files import check_writable, write_whole
from torch_halo.report.groups import sections, usable
from torch_halo.report.strengths import FEW, strengths
from torch_halo.training.settings import Data
from torch_halo.training.subject import Subject, subject

SHOWN = 10
COMPARED = ("overlap", "strengths")  # what takes several runs


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", arguments: Sequence[str]) -> None:
    """Add the commands."""
    names = [*ANALYSES, *COMPARED]
    look = commands.add_parser(
        "analyse",
        help="what a run's sparsity looks like: λ, layers, spectra, overlap, history, dead structure, strengths",
        description="Look at runs' networks, pruned to a sparsity. What is found is printed, kept in each run's folder "
        "(analysis.json) and shown by `halo report`. Several runs are also compared: which weights both have cut, and "
        "accuracy over strengths, for which folders of stored runs without weights will do.",
        allow_abbrev=False,
    )
    look.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run (strengths: or a folder of runs)")
    look.add_argument("--what", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)} (all)")
    look.add_argument("--sparsity", type=float, default=0.95, metavar="X", help="pruned to this (0.95)")
    look.add_argument("--positions", choices=["all", "one"], default="all", help="spectrum: of each image (all)")
    look.add_argument("--images", type=int, default=10_000, metavar="N", help="spectrum: of the training set (10000)")
    look.add_argument("--pictures", type=Path, metavar="DIR", help="also write the pictures there, as PNG")
    look.set_defaults(run=_analyse, stopped="what was found of other runs is kept")
    rank = commands.add_parser(
        "suspects",
        help="training samples whose label may be wrong, the most suspicious first",
        description="Rank the training samples by their losses while the run was trained (--sample-losses), or, if it "
        "has none, under its final network.",
        allow_abbrev=False,
    )
    rank.add_argument("path", type=Path, metavar="RUN", help="a run's folder")
    rank.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the table to write, as CSV")
    rank.add_argument("--count", type=int, metavar="N", help="only so many (all)")
    rank.set_defaults(run=_suspects, stopped="the table was not written")
    for parser in (look, rank):
        add_data_dir(parser)


def _analyse(options: argparse.Namespace) -> int:
    level = number("--sparsity", options.sparsity, at_least=0, below=1)
    images = whole("--images", options.images, at_least=1)
    paths = [path.resolve() for path in options.runs]
    if len(set(paths)) < len(paths):
        raise ValueError("a run is named twice")
    names = options.what or [*ANALYSES, *(COMPARED if len(paths) > 1 else ())]
    if "overlap" in names and len(paths) < 2:
        raise ValueError("overlap compares runs; name two or more")
    for path in filter(Path.is_dir, paths):
        read_analysis(path)  # so that a damaged one is known before the work
    if options.pictures is not None:
        _prepare_pictures(options.pictures)
    if "strengths" in names:
        _say_strengths(paths, level, options.pictures, is_asked=bool(options.what))
    if set(names) == {"strengths"}:  # of stored runs, without a look at their networks
        return 0
    cases = [Case(path, run, level, options.positions, images) for path, run in _runs(paths, options.data_dir)]
    code, shared = 0, _overlaps(cases, bool(options.what)) if "overlap" in names else {}
    for case in cases:
        found, problems = analyse(case, [name for name in names if name not in COMPARED])
        if case.path in shared:
            found["overlap"] = shared[case.path]
        write_analysis(case, found)
        if options.pictures is not None:
            _write_pictures(options.pictures, case.path.name, found)
        say("\n".join([f"{case.path.name}, pruned to {level:.4g}:", *_lines(found)]))
        for name, why in problems.items():
            print(f"no {name} of {case.path.name}: {why}", file=sys.stderr)
        code = 1 if problems and options.what else code  # what was asked for is not there
    return code


def _say_strengths(paths: Sequence[Path], level: float, pictures: Path | None, *, is_asked: bool) -> None:
    """Accuracy over strengths, for each network, where runs differ in nothing else."""
    runs, problems = find_runs(paths)
    known, unknown = usable(runs)
    found = {section.title: curves for section in sections(known) if (curves := strengths(section, level))}
    for line in unread_lines(problems | unknown) if is_asked else ():
        print(line, file=sys.stderr)
    if not found and is_asked:
        raise ValueError(
            f"strengths compares {FEW} or more runs that differ in nothing but xi, with psi; "
            f"among {len(known)} runs there are none that were measured at {level:.4g}"
        )
    for title, curves in found.items():
        rows = [(each.label, f"{xi:g}", v.text()) for each in curves for xi, v in each.accuracies.items()]
        say("\n".join([f"{title}, pruned to {level:.4g}:", *table([("method", "ξ", "accuracy, %"), *rows])]))
        if pictures is not None:
            from torch_halo.report.analysis_pictures import strengths_png

            name = re.sub(r"[^\w.]+", "-", title)
            write_whole(pictures / f"{name}-strengths.png", strengths_png(curves))


def _overlaps(cases: Sequence[Case], is_asked: bool) -> dict[Path, list[dict[str, Any]]]:
    try:
        return overlaps(cases)
    except ValueError as error:
        if is_asked:
            raise
        print(f"no overlap: {error}", file=sys.stderr)
        return {}


def _prepare_pictures(folder: Path) -> None:
    with extra("report", "pictures"):
        import matplotlib  # noqa: F401
    folder.mkdir(parents=True, exist_ok=True)
    check_writable(folder / "picture.png")


def _write_pictures(folder: Path, run: str, found: Mapping[str, Any]) -> None:
    from torch_halo.report.analysis_pictures import PICTURES, analysis_png

    for name in PICTURES:
        if found.get(name):
            write_whole(folder / f"{run}-{name}.png", analysis_png(name, found[name]))


def _runs(paths: Sequence[Path], data_dir: Path | None) -> Iterator[tuple[Path, Subject]]:
    """The runs; those that have the same data share them."""
    known: dict[Data, DataSet] = {}
    for path in paths:
        if not path.is_dir():
            raise FileNotFoundError(f"{path}: no such run; a run is a folder")
        found = subject(path, data_dir)
        if not found.is_finished:
            print(f"{path} is not finished: looking at its last checkpoint", file=sys.stderr)
        yield path, replace(found, data=known.setdefault(found.config.data, found.data))


def _lines(found: Mapping[str, Any]) -> list[str]:
    """What was found, in short."""
    lines = []
    if "coefficients" in found:
        lines.append(found["coefficients"]["text"])
    if "layers" in found:
        rows = [(x["name"], f"{x['weights']:,}", f"{x['zeros'] / max(x['weights'], 1):.2%}") for x in found["layers"]]
        lines += ["", *table([("layer", "weights", "zeros"), *rows])]
    if "spectrum" in found:
        rows = [(x["name"], str(x["features"]), f"{x['effective_rank']:.1f}") for x in found["spectrum"]]
        lines += ["", *table([("layer", "features", "effective rank"), *rows])]
        lines += [f"{x['name']}: {x['note']}" for x in found["spectrum"] if x["note"]]
    if "history" in found:
        shares = found["history"]
        lines.append(f"under the final threshold: {shares[0]:.1%} after the first epoch, {shares[-1]:.1%} in the end")
    if "dead" in found:
        (before, after), flops = found["dead"]["parameters"], found["dead"]["flops"]
        lines.append(f"without dead structure: parameters {before:,} -> {after:,}, FLOPs {flops[0]:,} -> {flops[1]:,}")
    for each in found.get("overlap", ()):
        lines.append(
            f"shared with {each['other']}: {each['jaccard']:.3f} of the zeros (by chance {each['by_chance']:.3f}), "
            f"{each['kept']:.3f} of the rest ({each['kept_by_chance']:.3f})"
        )
    return lines


def _suspects(options: argparse.Namespace) -> int:
    check_writable(options.output)
    count = None if options.count is None else whole("--count", options.count, at_least=1)
    ((path, run),) = _runs([options.path.resolve()], options.data_dir)
    found = rank_suspects(path, run)
    write_whole(options.output, found.whole.csv(count))
    if not found.epochs:
        hint = "its final network's losses count; train with --sample-losses for those of all epochs"
        print(f"{options.path} has no losses by sample: {hint}", file=sys.stderr)
    say("\n".join(table([("index", "given", "likely", "score"), *first_rows(found.whole, SHOWN)])))
    if found.judged:
        figures = f"AUROC {found.judged['auroc']:.4f}, precision at {found.flips:,} {found.judged['precision']:.4f}"
        say(f"of {found.flips:,} known flips: {figures}")
    else:
        say("no flips are known, so the ranking cannot be judged here")
    is_drawn = _write_sheet(path / SHEET, run, found)
    say(f"written: {options.output}{'; the first images are in the report of the run' if is_drawn else ''}")
    return 0


def _write_sheet(path: Path, run: Subject, found: Ranked) -> bool:
    """The images of the first, if there is something to draw them with."""
    path.unlink(missing_ok=True)
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from torch_halo.report.analysis_pictures import contact_sheet

    images = run.data.train.inputs[torch.from_numpy(found.own.index[:FIRST].copy())].permute(0, 2, 3, 1).cpu().numpy()
    captions = [f"{i}\n{a} ({b}?)" for i, a, b, _ in first_rows(found.whole, FIRST)]
    write_whole(path, contact_sheet(list(images), captions))
    return True
