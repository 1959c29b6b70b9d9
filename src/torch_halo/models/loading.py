"""Weights from a file."""

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torch_halo.checks import extra


def load_weights(model: nn.Module, path: str | Path) -> nn.Module:
    """Load a model's weights from a safetensors file or a pickle, which is read without executing anything.

    A pickle may hold the state dict itself or a checkpoint with it under `state_dict` or `model`;
    a `module.` in front of the names (DataParallel's) is taken off.
    """
    path = Path(path)
    return load_state(model, _plain_names(model, read_weights(path)), path)


def load_state(model: nn.Module, state: dict[str, Tensor], path: Path) -> nn.Module:
    """Load tensors that were read from a file, if their names and shapes are the model's."""
    for name, value in model.state_dict().items():
        if name.endswith("num_batches_tracked"):  # old files have none, and nothing depends on it
            state.setdefault(name, value)
    _check(model, state, path)
    model.load_state_dict(state)
    return model


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file of weights, by name."""
    return _state_dict(_read(path), path)


def _read(path: Path) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    return read_pickle(path, "a file of weights")


def read_pickle(path: Path, what: str) -> Any:
    """What torch.save stored, as long as it is tensors and plain data; nothing in the file is executed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickles that were not made by torch, which are refused below
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise
    except (RuntimeError, pickle.UnpicklingError, EOFError, LookupError, OSError, ValueError, TypeError) as error:
        # Of torch's long message the cause, and not its advice to load the file unsafely.
        cause = str(error).rpartition("WeightsUnpickler error: ")[2].strip()
        reason = cause.splitlines()[0] if cause else type(error).__name__
        raise ValueError(f"{path}: expected {what}; found a damaged or unsafe one ({reason})") from error


def _read_safetensors(path: Path) -> Any:
    with extra("train", "reading safetensors files"):
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path}: expected a safetensors file; found a damaged one ({error})") from error


def _plain_names(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    wrapped = all(name.startswith("module.") for name in state)
    if not wrapped or all(name.startswith("module.") for name in model.state_dict()):
        return state
    return {name.removeprefix("module."): value for name, value in state.items()}


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
