"""A run's folder: what is in it, and who may work there."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from torch_halo.checks import extra
from torch_halo.files import locked, remove_unfinished, write_whole
from torch_halo.training.config import Config, differences


@dataclass(frozen=True)
class RunFolder:
    """`config.json`, `metrics.jsonl`, `checkpoint/`, `model.safetensors`, `pruned.safetensors`, `result.json`."""

    path: Path

    @property
    def checkpoint(self) -> Path:
        """Where the state of the training is kept."""
        return self.path / "checkpoint" / "last.pt"

    @property
    def model(self) -> Path:
        """The final weights."""
        return self.path / "model.safetensors"

    @property
    def pruned(self) -> Path:
        """The final weights, pruned."""
        return self.path / "pruned.safetensors"

    def config(self) -> Config:
        """The settings of the run that is there."""
        return Config.from_dict(_read(self.path / "config.json"))

    def result(self) -> dict[str, Any] | None:
        """The run's result, if it is finished."""
        path = self.path / "result.json"
        found = _read(path) if path.exists() else None
        if found is not None and not found.keys() >= {"validation", "test", "pruned", "seconds"}:
            raise ValueError(f"{path}: expected a run's result; found only {', '.join(found) or 'nothing'}")
        return found

    def epochs(self) -> list[dict[str, Any]]:
        """The figures of each epoch."""
        return [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the result, last of all."""
        write_whole(self.path / "result.json", json.dumps(result, indent=1) + "\n")

    @contextmanager
    def taken(self, config: Config) -> Iterator[None]:
        """Work in the folder, alone, on a run with these settings; it is made if it is not there."""
        self.check(config)
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path, wait=False):
            for place in (self.path, self.path / "checkpoint", self.path / "losses"):
                remove_unfinished(
                    place, ("config.json", "metrics.jsonl", "last.pt", "*.safetensors", "result.json", "*.npy")
                )
            if not (self.path / "config.json").exists():
                write_whole(self.path / "config.json", json.dumps(config.as_dict(), indent=1) + "\n")
            yield

    def check(self, config: Config) -> None:
        """Raise if the folder holds something else than this run."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise NotADirectoryError(f"{self.path} is a file; a run needs a folder")
        if not (self.path / "config.json").exists():
            if any(not entry.name.startswith(".") for entry in self.path.iterdir()):
                raise FileExistsError(f"{self.path} holds other files and no run; name another folder")
            return
        found = differences(_read(self.path / "config.json"), json.loads(json.dumps(config.as_dict())))
        if found:
            raise ValueError(f"{self.path} holds a run of another configuration ({'; '.join(found)}); name another")


def write_weights(path: Path, state: Mapping[str, Tensor], config: Config) -> None:
    """Weights as safetensors, whole or not at all, with the configuration that made them."""
    with extra("train", "writing weights"):
        from safetensors.torch import save

    metadata = {"halo": json.dumps(config.as_dict())}
    write_whole(path, save({name: value.contiguous().cpu() for name, value in state.items()}, metadata))


def config_in(path: Path) -> Config | None:
    """The configuration that a file of weights was written with, if it tells."""
    if path.suffix != ".safetensors":
        return None
    with extra("train", "reading safetensors files"):
        from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            found = (file.metadata() or {}).get("halo")
    except SafetensorError as error:
        raise ValueError(f"{path}: expected a safetensors file; found a damaged one ({error})") from error
    try:
        return Config.from_dict(json.loads(found)) if found else None
    except ValueError as error:
        raise ValueError(f"{path}: its configuration cannot be read ({error})") from error


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(f"{path.parent} holds no run: there is no {path.name}")
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON; found a damaged file ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: expected a JSON object; found {type(found).__name__}")
    return found
