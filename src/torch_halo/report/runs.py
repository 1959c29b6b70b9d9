"""The report of stored runs: tables, pictures, and the runs that they come from, as one page."""

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from torch_halo.experiments.store import Run, find_runs, unread_lines
from torch_halo.report.analysis import analysis_of
from torch_halo.report.blocks import blocks_of, styles
from torch_halo.report.groups import figures, sections, usable
from torch_halo.report.inference import inference_of
from torch_halo.report.pictures import key, with_names
from torch_halo.report.tables import tables_of, time_table

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], dict[Path, str]]:
    """The finished runs in or under some folders, and what was left out with the reason; an error if none is left."""
    found, problems = find_runs(paths)
    runs, more = usable(found)
    problems |= more
    if not runs:
        reasons = unread_lines(problems) or ["nothing there looks like a run"]
        raise ValueError("\n".join([f"no finished run in {', '.join(map(str, paths))}", *reasons]))
    return runs, problems


def runs_html(runs: Iterable[Run], problems: Mapping[Path, str]) -> str:
    """The page."""
    runs = list(runs)
    found = sections(runs)
    drawn = styles(found)
    parts = [
        {
            "section": section,
            "tables": tables_of(section),
            "times": time_table(section),
            "blocks": blocks_of(section, drawn),
            "inference": inference_of(section),
            "looks": analysis_of(section),
        }
        for section in found
    ]
    page = _environment().get_template("runs.html")
    return page.render(parts=parts, runs=len(runs), problems=problems, version=version("torch-halo"))


def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup, escape

    made = Environment(
        loader=PackageLoader("torch_halo.report", "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    numbers = itertools.count(1)

    def inline(svg: str, label: str) -> "Markup":
        """An SVG with a text for those who do not see it, or none if it says nothing that is not beside it."""
        told = f'role="img" aria-label="{escape(label)}"' if label else 'aria-hidden="true"'
        return Markup(with_names(svg, next(numbers)).replace("<svg ", f"<svg {told} ", 1))

    def breakable(text: str) -> "Markup":
        """A text whose long words may be broken between their parts."""
        return Markup(re.sub("([_,])", r"\1<wbr>", str(escape(text))))

    made.filters |= {
        "breakable": breakable,
        "inline": inline,
        "key": key,
        "json": lambda run: json.dumps(run.config.as_dict(), indent=1, ensure_ascii=False),
        "accuracy": lambda run, split: figures([run.result], split, "accuracy").text(),
    }
    return made
