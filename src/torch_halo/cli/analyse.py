"""`halo analyse` and `halo suspects`."""

import argparse
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torch_halo.analysis import Suspects
from torch_halo.checks import extra, number, whole
from torch_halo.cli.data import add_data_dir
from torch_halo.cli.display import say, table
from torch_halo.experiments.analysing import ANALYSES, Case, analyse, overlaps, write_analysis
from torch_halo.experiments.suspicion import FIRST, first_rows, rank_suspects
from torch_halo.files import check_writable, write_whole
from torch_halo.training.subject import Subject, subject

SHOWN = 10


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", arguments: Sequence[str]) -> None:
    """Add the commands."""
    names = [*ANALYSES, "overlap"]
    look = commands.add_parser(
        "analyse",
        help="what a run's sparsity looks like: λ, layers, spectra, overlap, history, dead structure",
        description="Look at runs' networks, pruned to a sparsity. What is found is printed, kept in each run's folder "
        "(analysis.json) and shown by `halo report`. Several runs are also compared: which weights both have cut.",
        allow_abbrev=False,
    )
    look.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    look.add_argument("--what", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)} (all)")
    look.add_argument("--sparsity", type=float, default=0.95, metavar="X", help="pruned to this (0.95)")
    look.add_argument("--positions", choices=["all", "one"], default="all", help="spectrum: of each image (all)")
    look.add_argument("--images", type=int, metavar="N", help="spectrum: of the training set (all)")
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
    rank.set_defaults(run=_suspects, stopped="nothing was written")
    for parser in (look, rank):
        add_data_dir(parser)


def _analyse(options: argparse.Namespace) -> int:
    level = number("--sparsity", options.sparsity, above=0, below=1)
    images = None if options.images is None else whole("--images", options.images, at_least=1)
    names = options.what or [*ANALYSES, *(["overlap"] if len(options.runs) > 1 else [])]
    if "overlap" in names and len(options.runs) < 2:
        raise ValueError("overlap compares runs; name two or more")
    cases = [Case(path, _run(path, options.data_dir), level, options.positions, images) for path in options.runs]
    shared = overlaps(cases) if "overlap" in names else {}
    for case in cases:
        found, problems = analyse(case, [name for name in names if name != "overlap"])
        if options.what and problems:  # which was asked for
            raise ValueError("; ".join(f"{name} of {case.path}: {why}" for name, why in problems.items()))
        if case.path in shared:
            found["overlap"] = shared[case.path]
        write_analysis(case.path, {"sparsity": level, **found})
        if options.pictures is not None:
            _write_pictures(options.pictures, case.path.name, found)
        say("\n".join([f"{case.path}, pruned to {level:.4g}:", *_lines(found)]))
        for name, why in problems.items():
            print(f"no {name}: {why}", file=sys.stderr)
    return 0


def _write_pictures(folder: Path, run: str, found: Mapping[str, Any]) -> None:
    with extra("report", "pictures"):
        import matplotlib  # noqa: F401
    from torch_halo.report.analysis_pictures import PICTURES, analysis_png

    folder.mkdir(parents=True, exist_ok=True)
    for name in PICTURES:
        if found.get(name):
            write_whole(folder / f"{run}-{name}.png", analysis_png(name, found[name]))


def _run(path: Path, data_dir: Path | None) -> Subject:
    if not path.is_dir():
        raise FileNotFoundError(f"{path}: no such run; a run is a folder")
    return subject(path, data_dir)


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
    run = _run(options.path, options.data_dir)
    found, told = rank_suspects(options.path, run)
    if not told["epochs"]:
        hint = "its final network's losses count; train with --sample-losses for those of all epochs"
        print(f"{options.path} has no losses by sample: {hint}", file=sys.stderr)
    _write_sheet(options.path / "suspects.png", run, found)
    write_whole(options.output, found.csv(count))
    first, flips = first_rows(found, SHOWN), told["flips"]
    say("\n".join(table([("index", "given", "likely", "score"), *first])))
    if flips:
        say(f"of {flips:,} known flips: AUROC {told['auroc']:.4f}, precision at {flips:,} {told['precision']:.4f}")
    else:
        say("no flips are known, so the ranking cannot be judged here")
    say(f"written: {options.output}; the first images are in the run's report")
    return 0


def _write_sheet(path: Path, run: Subject, found: Suspects) -> None:
    """The images of the first, if there is something to draw them with."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    from torch_halo.report.analysis_pictures import contact_sheet

    images = run.data.train.inputs[torch.from_numpy(found.index[:FIRST].copy())].permute(0, 2, 3, 1).cpu().numpy()
    captions = [f"{i}\n{a} ({b}?)" for i, a, b, _ in first_rows(found, FIRST)]
    write_whole(path, contact_sheet(list(images), captions))
