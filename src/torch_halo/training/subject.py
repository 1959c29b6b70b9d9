"""A trained network from a run's folder or a file of weights, ready to be measured."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from torch_halo.data import DataSet
from torch_halo.models import MODELS, load_weights
from torch_halo.training import checkpoint
from torch_halo.training.config import Config
from torch_halo.training.evaluation import Figures, measure
from torch_halo.training.folder import RunFolder, config_in
from torch_halo.training.pruned import Pruned, pruned
from torch_halo.training.session import load_data
from torch_halo.training.settings import Data, Model


@dataclass(frozen=True)
class Subject:
    """A network with its data and the settings it was trained with."""

    config: Config
    module: nn.Module
    data: DataSet
    is_finished: bool = True

    def measure(self) -> dict[str, Figures | None]:
        """Its figures on the validation and the test set."""
        return measure(self.module, self.data)

    def pruned(self, level: float, config: Config) -> Pruned:
        """It at a sparsity; it stays as it was."""
        return pruned(self.module, level, config, self.data, self.measure)


def subject(
    path: Path,
    data_dir: Path | None,
    data: Data | None = None,
    model: Model | None = None,
    load: Callable[[nn.Module, Path], nn.Module] = load_weights,
) -> Subject:
    """What a path holds: a run, finished or not, or a file of weights.

    A file that does not tell its own settings needs to be told its data set and model; `load` reads it.
    """
    if path.is_dir():
        config = RunFolder(path).config()
        if data is not None or model is not None:
            raise ValueError(f"{path} is a run and tells its own data and model; --data and --model are for files")
    elif not path.is_file():
        raise FileNotFoundError(f"{path}: no such run or file")
    else:
        config = _config_of(path, data, model)
    found = load_data(config.data, data_dir)
    network = MODELS[config.model.name](found.input_shape, found.classes, **config.model.options)
    is_finished = _load(network, path, config, load)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Subject(config, network.to(device), found.to(device), is_finished)


def _config_of(path: Path, data: Data | None, model: Model | None) -> Config:
    config = config_in(path)
    if config is not None:
        return replace(config, data=data or config.data, model=model or config.model)
    if data is None or model is None:
        raise ValueError(f"{path} does not tell what it is; give --data and --model")
    return Config(data=data, model=model)


def _load(network: nn.Module, path: Path, config: Config, load: Callable[[nn.Module, Path], nn.Module]) -> bool:
    if path.is_file():
        load(network, path)
        return True
    folder = RunFolder(path)
    if folder.model.exists():
        load_weights(network, folder.model)
        return True
    if not folder.checkpoint.exists():
        raise FileNotFoundError(f"{path} has no weights yet: neither {folder.model.name} nor a checkpoint")
    state = checkpoint.read(folder.checkpoint, config.name)["model"]
    if state.keys() != network.state_dict().keys():
        raise ValueError(f"{path} is still learning thresholds; it can be measured when it is finished")
    network.load_state_dict(state)
    return False
