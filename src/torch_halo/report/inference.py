"""The report's tables of what runs' networks take when they are used."""

from dataclasses import dataclass

from torch_halo.experiments.inference import read_inference, size_rows, time_rows
from torch_halo.report.groups import Section

FILE = "inference.json"  # in a run's folder, by `halo bench inference`


@dataclass(frozen=True)
class Grid:
    """A plain table: a caption, a header and rows of texts."""

    caption: str
    header: list[str]
    rows: list[list[str]]
    notes: tuple[str, ...] = ()


def inference_of(section: Section) -> list[Grid]:
    """Sizes and times of the runs of a section that were measured."""
    found: list[Grid] = []
    for run in (run for curve in (*section.finals, *section.trials) for run in curve.runs):
        if not (run.path / FILE).exists():
            continue
        try:
            measured = read_inference(run.path / FILE)
        except ValueError as error:
            found.append(Grid(f"{run.name}: left out ({error})", [], []))
            continue
        for each in measured:
            about = f"{run.name}, {each.sparsity:.2%} zeros"
            (size_header, *sizes), (time_header, *times) = size_rows(each), time_rows(each)
            found.append(Grid(f"{about}: bytes by format", size_header, sizes))
            found.append(Grid(f"{about}: milliseconds for a batch", time_header, times, tuple(each.notes)))
    return found
