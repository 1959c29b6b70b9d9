"""How an experiment goes, for a person: one bar over all runs on a terminal, a line a run in a log."""

from torch_halo.checks import extra
from torch_halo.cli.display import say
from torch_halo.experiments.plan import Job
from torch_halo.experiments.runner import State


class Lines:
    """A line a run."""

    def state(self, state: State) -> None:
        """Say nothing."""

    def ended(self, job: Job, problem: str | None, state: State) -> None:
        """Say what ended."""
        say(ended_line(job, problem, state))

    def close(self) -> None:
        """Nothing is open."""


class Bars:
    """A line a run, and under them a bar over all epochs of all runs."""

    def __init__(self) -> None:
        with extra("train", "experiments"):
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        self._bar = Progress(BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
        self._task = self._bar.add_task("starting", total=1.0)
        self._bar.start()

    def state(self, state: State) -> None:
        """Move the bar."""
        text = f"{state.done} of {state.jobs} runs, {state.running} running{left(state)}"
        self._bar.update(self._task, completed=state.share, description=text)

    def ended(self, job: Job, problem: str | None, state: State) -> None:
        """Print above the bar what ended."""
        self._bar.console.print(ended_line(job, problem, state), highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave it as it is."""
        self._bar.stop()


def ended_line(job: Job, problem: str | None, state: State) -> str:
    """One run that has ended."""
    if problem is not None:
        return f"{job.name} failed: {problem}"
    return f"{job.name} is done ({state.done} of {state.jobs}{left(state)})"


def left(state: State) -> str:
    """The estimate of what is left, as the end of a sentence."""
    if state.seconds_left is None or state.done == state.jobs:
        return ""
    return f", about {duration(state.seconds_left)} left"


def duration(seconds: float) -> str:
    """As people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
