"""What an experiment's stored runs show."""

from pathlib import Path

from torch_halo.experiments.noise import noise_sheets
from torch_halo.experiments.plan import Plan
from torch_halo.experiments.spec import Spec, note_path, saved_specs
from torch_halo.experiments.store import Store
from torch_halo.experiments.summary import summary
from torch_halo.experiments.tables import FORMATS, Sheet, sheets
from torch_halo.experiments.timing import timing_path, timing_sheets
from torch_halo.files import write_whole

RESULTS_HEAD = """# Results

Made from the runs in [results](../results) by `make results`: no table here is typed by hand. Under each, but for the
first, which gathers them, is where its figures come from: the folders of the runs, with their settings, seeds, figures
by epoch and versions. What is said of them is in [results/experiments](../results/experiments), and may have no
accuracy that is not in its table.
"""
GLANCE_HEAD = """## At a glance

Test accuracy in percent at each share of zeros. Bold: as good as the column's best, which here means within a standard
error of the difference between two accuracies on 10,000 images. Epochs: of all trainings that lead there, beside the
dense network's; those on which settings are chosen are not counted.
"""


def tables_of(spec: Spec, store: Store) -> list[Sheet]:
    """An experiment's tables."""
    if spec.name == "time":
        return timing_sheets(spec, store)
    return noise_sheets(Plan(spec, store)) if spec.name == "label-noise" else sheets(Plan(spec, store))


def keep(spec: Spec, store: Store, other: Path) -> int:
    """Copy what is small of an experiment's runs (trials too) to another store; returns how many there were."""
    if spec.name == "time":
        times = [timing_path(spec, subject, store.path) for subject in spec.subjects()]
        there = [path for path in times if path.exists()]
        (other / "timings").mkdir(parents=True, exist_ok=True)
        for path in there:
            write_whole(other / "timings" / path.name, path.read_bytes())
        count = len(there)
    else:
        jobs = Plan(spec, store).jobs()
        count = store.keep([run for job in jobs if (run := store.run(job.config)) is not None], other)
        for job in jobs:
            Store(other).note_failure(job.config, store.failure(job.config))
    spec.save(other)
    return count


def results_page(store: Store) -> str:
    """All experiments of a store as one Markdown page."""
    parts = [RESULTS_HEAD]
    if glance := summary(store):
        parts += [GLANCE_HEAD, "\n".join(glance) + "\n"]
    for spec in saved_specs(store.path):
        if (head := f"## {spec.experiment.title}, scale {spec.scale}\n") not in parts:
            parts.append(head)
        parts.append(FORMATS["markdown"](tables_of(spec, store), True))
        parts.append(f"To run it: `{spec.command}`\n")
        if (told := note_path(spec, store.path)).exists():
            parts.append(told.read_text())
    if store.problems:
        parts.append("## Left out\n\n" + "".join(f"- {problem}\n" for problem in store.problems.values()))
    return "\n".join(parts)
