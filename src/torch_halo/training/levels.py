"""A finished run at further sparsities: measured from its weights, not trained again."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from torch_halo.training.folder import RunFolder
from torch_halo.training.settings import Pruning
from torch_halo.training.subject import subject


def missing_levels(result: dict[str, object], levels: Iterable[float]) -> list[float]:
    """The sparsities that a result does not have yet, each once."""
    pruned = result["pruned"]
    assert isinstance(pruned, list)
    there = {level["asked"] for level in pruned}
    return [level for level in dict.fromkeys(levels) if level not in there]


def add_levels(path: Path, levels: Iterable[float], data_dir: Path | None) -> None:
    """Prune a finished run's network to sparsities that its result lacks, measure, and add them to it."""
    folder = RunFolder(path)
    config = folder.config()
    with folder.taken(config):
        result = folder.result()
        if result is None:
            raise ValueError(f"{path} is not finished; it cannot be measured yet")
        missing = missing_levels(result, levels)
        if not missing:
            return
        found, plain = subject(path, data_dir), replace(config, pruning=Pruning())
        added = [found.pruned(level, plain).as_dict() for level in missing]
        folder.finish({**result, "pruned": [*result["pruned"], *added]})
