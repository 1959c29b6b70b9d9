"""Weights from a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def load_weights(model: nn.Module, path: str | Path) -> nn.Module:
    """Load a model's weights from a safetensors file or a pickle, which is read without executing anything.

    A pickle may hold the state dict itself or a checkpoint with it under `state_dict` or `model`;
    a `module.` in front of the names (DataParallel's) is taken off.
    """
    path = Path(path)
    state = {name.removeprefix("module."): value for name, value in _state_dict(_read(path), path).items()}
    _check(model, state, path)
    model.load_state_dict(state)
    return model


def _read(path: Path) -> Any:
    if path.suffix == ".safetensors":
        try:
            from safetensors.torch import load_file
        except ImportError as error:
            raise ImportError("safetensors files need safetensors: pip install 'torch-halo[train]'") from error
        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def _state_dict(found: Any, path: Path) -> dict[str, Tensor]:
    for key in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not found or not all(isinstance(v, Tensor) for v in found.values()):
        raise ValueError(f"{path} holds no weights: a mapping of names to tensors is needed")
    return dict(found)


def _check(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    own = model.state_dict()
    missing, extra = [n for n in own if n not in state], [n for n in state if n not in own]
    if missing or extra:
        raise ValueError(f"{path} does not fit the model: it lacks {_some(missing)}; it has besides {_some(extra)}")
    for name, value in own.items():
        if state[name].shape != value.shape:
            raise ValueError(
                f"{path} does not fit the model: {name} has shape {tuple(state[name].shape)}, not {tuple(value.shape)}"
            )


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") or "nothing"
