"""The report's part about what runs' networks look like, and which labels are suspicious."""

import base64
from dataclasses import dataclass
from typing import Any

from torch_halo.experiments.analysing import read_analysis
from torch_halo.experiments.store import Run
from torch_halo.experiments.suspicion import FILE as SUSPECTS
from torch_halo.experiments.suspicion import SHEET, read_suspects
from torch_halo.report.analysis_pictures import PICTURES, analysis_svg, said
from torch_halo.report.groups import Section
from torch_halo.report.inference import Grid

SHOWN = 10  # rows of a table


@dataclass(frozen=True)
class Look:
    """A picture, or a table, with a sentence."""

    title: str
    text: str
    svg: str = ""
    png: str = ""  # in base64
    grid: Grid | None = None


@dataclass(frozen=True)
class Looks:
    """All of a run."""

    run: str
    looks: tuple[Look, ...]


def analysis_of(section: Section) -> list[Looks]:
    """What is known of the runs of a section."""
    found = []
    for run in (run for curve in (*section.finals, *section.trials) for run in curve.runs):
        looks = [*_pictures(run), *_suspects(run)]
        if looks:
            found.append(Looks(run.path.name, tuple(looks)))
    return found


_DAMAGES = (AttributeError, IndexError, KeyError, OSError, TypeError, ValueError)  # by which a file shows that it is


def _pictures(run: Run) -> list[Look]:
    try:
        found = read_analysis(run.path) or {}
    except ValueError as error:
        return [Look("Left out", str(error))]
    looks = []
    for name in (*PICTURES, "dead"):
        try:
            if found.get(name):
                looks.append(_dead(found[name]) if name == "dead" else _picture(name, found))
        except _DAMAGES as error:
            looks.append(Look("Left out", f"{name} in analysis.json cannot be read ({error})"))
    return looks


def _picture(name: str, found: dict[str, Any]) -> Look:
    kind = PICTURES[name]
    own = f"Pruned to {found['sparsity']:.4g}. {said(name, found[name])}".strip()
    return Look(kind.title, f"{own} {kind.text}", svg=analysis_svg(name, found[name]))


def _dead(found: dict[str, Any]) -> Look:
    shapes = {name: ["×".join(map(str, shape)) for shape in both] for name, both in found["layers"].items()}
    rows = [[name, *both] for name, both in shapes.items()] + [[name, "", "gone"] for name in found["gone"]]
    for what in ("parameters", "flops"):
        rows.append([what, *(f"{count:,}" for count in found[what])])
    grid = Grid("Layers without dead channels and neurons", ["layer", "before", "after"], rows)
    return Look("Dead structure", "Channels and neurons that do nothing, and what they cost.", grid=grid)


def _suspects(run: Run) -> list[Look]:
    try:
        found = read_suspects(run.path)
        if found is None:
            return []
        rows = [[str(cell) for cell in row] for row in found["first"][:SHOWN]]
        text = "No flips are known."
        if found.get("auroc") is not None:
            figures = f"AUROC {found['auroc']:.4f}, precision {found['precision']:.4f}"
            text = f"{figures} over {found['flips']:,} known flips."
        sheet = run.path / SHEET
        png = base64.b64encode(sheet.read_bytes()).decode() if sheet.exists() else ""
    except _DAMAGES as error:
        return [Look("Left out", f"{SUSPECTS} cannot be read ({error})")]
    grid = Grid("The most suspicious training labels", ["index", "given", "likely", "score"], rows)
    return [Look("Suspicious labels", text, png=png, grid=grid)]
