"""The report's part about what runs' networks look like, and which labels are suspicious."""

import base64
from dataclasses import dataclass
from typing import Any

from torch_halo.experiments.analysing import read_analysis
from torch_halo.experiments.store import Run
from torch_halo.experiments.suspicion import read_suspects
from torch_halo.report.analysis_pictures import PICTURES, analysis_svg
from torch_halo.report.groups import Section
from torch_halo.report.inference import Grid

SHOWN = 10  # rows of a table
SHEET = "suspects.png"  # in a run's folder, by `halo suspects`


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


def _pictures(run: Run) -> list[Look]:
    try:
        found = read_analysis(run.path) or {}
        looks = [
            Look(kind.title, kind.text, svg=analysis_svg(name, found[name]))
            for name, kind in PICTURES.items()
            if found.get(name)
        ]
        return looks + ([_dead(found["dead"])] if found.get("dead") else [])
    except (KeyError, TypeError, ValueError) as error:
        return [Look("Left out", f"analysis.json cannot be read ({error})")]


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
        judged = [f"AUROC {found['auroc']:.4f}", f"precision {found['precision']:.4f}"] if "auroc" in found else []
        text = ", ".join(judged) + f" over {found['flips']:,} known flips." if judged else "No flips are known."
    except (KeyError, TypeError, ValueError) as error:
        return [Look("Left out", f"suspects.json cannot be read ({error})")]
    grid = Grid("The most suspicious training labels", ["index", "given", "likely", "score"], rows)
    sheet = run.path / SHEET
    png = base64.b64encode(sheet.read_bytes()).decode() if sheet.exists() else ""
    return [Look("Suspicious labels", text, png=png, grid=grid)]
