"""CIFAR's files: the binary version, and the Python version without trusting its pickles."""

import io
import math
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_halo.data.sets import Split

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32


class Layout(NamedTuple):
    """The names of one version's files, and where its labels are."""

    train: Sequence[str]
    test: Sequence[str]
    labels: int | bytes  # binary: label bytes a row, of which the last counts; Python: the dictionary's key


CIFAR10 = {
    "cifar-10-batches-bin": Layout([f"data_batch_{i}.bin" for i in range(1, 6)], ["test_batch.bin"], 1),
    "cifar-10-batches-py": Layout([f"data_batch_{i}" for i in range(1, 6)], ["test_batch"], b"labels"),
}
CIFAR100 = {
    "cifar-100-binary": Layout(["train.bin"], ["test.bin"], 2),
    "cifar-100-python": Layout(["train"], ["test"], b"fine_labels"),
}


def has_cifar(folder: Path, layout: Layout) -> bool:
    """Whether all files of the layout are there."""
    return all((folder / name).is_file() for name in (*layout.train, *layout.test))


def read_cifar(folder: Path, layout: Layout) -> tuple[Split, Split]:
    """Train and test."""
    return _joined(folder, layout.train, layout.labels), _joined(folder, layout.test, layout.labels)


def _joined(folder: Path, names: Sequence[str], labels: int | bytes) -> Split:
    parts = [_binary(folder / n, labels) if isinstance(labels, int) else _python(folder / n, labels) for n in names]
    return Split(torch.cat([part.inputs for part in parts]), torch.cat([part.labels for part in parts]))


def _binary(path: Path, label_bytes: int) -> Split:
    content, row = path.read_bytes(), label_bytes + PIXELS
    if not content or len(content) % row:
        raise ValueError(f"{path}: expected rows of {row} bytes; found {len(content)} bytes, which are no whole rows")
    rows = torch.from_numpy(np.frombuffer(content, np.uint8).reshape(-1, row).copy())
    return Split(rows[:, label_bytes:].reshape(-1, *SHAPE), rows[:, label_bytes - 1].long())


def _python(path: Path, key: bytes) -> Split:
    try:
        found = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except _UNREADABLE as error:
        raise ValueError(f"{path}: expected a CIFAR batch; found something else or a damaged one ({error})") from error
    if not isinstance(found, dict) or b"data" not in found or key not in found:
        raise ValueError(
            f"{path}: expected a dictionary with 'data' and {key.decode()!r}; found {type(found).__name__}"
        )
    images = _images(path, found[b"data"])
    return Split(images, _labels(path, found[key], len(images)))


def _images(path: Path, data: Any) -> Tensor:
    if not isinstance(data, _Array) or len(data.shape) != 2 or data.shape[1] != PIXELS:
        found = f"uint8 {data.shape}" if isinstance(data, _Array) else type(data).__name__
        raise ValueError(f"{path}: expected 'data' of uint8 (n, {PIXELS}); found {found}")
    return torch.from_numpy(np.frombuffer(data.content, np.uint8).copy()).view(-1, *SHAPE)


def _labels(path: Path, labels: Any, count: int) -> Tensor:
    if not isinstance(labels, list) or len(labels) != count or not all(isinstance(label, int) for label in labels):
        raise ValueError(f"{path}: expected a list of {count} labels")
    return torch.tensor(labels, dtype=torch.int64)


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the codec {encoding!r}, which no CIFAR file needs")
    return text.encode(encoding)


class _Bytes:
    """Stands for numpy's dtype of bytes, the only one."""

    def __init__(self, code: object, *rest: object) -> None:
        if code not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"expected an array of bytes; found one of {code!r}")

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """Stands for a numpy array: its shape and its content, both checked; numpy itself trusts what it is told."""

    shape: tuple[int, ...] = ()
    content = b""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, content = state
        sound = isinstance(shape, tuple) and all(isinstance(size, int) and size >= 0 for size in shape)
        sound = sound and isinstance(dtype, _Bytes) and isinstance(content, bytes) and not is_fortran
        if not sound or math.prod(shape) != len(content):
            raise pickle.UnpicklingError("an array whose shape and content do not fit")
        self.shape, self.content = shape, content


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): "numpy.ndarray",  # only ever an argument of the next
    ("numpy.core.multiarray", "_reconstruct"): lambda *args: _Array(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *args: _Array(),
    ("numpy", "dtype"): _Bytes,
    ("_codecs", "encode"): _encode,
}
_UNREADABLE = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    AttributeError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    ImportError,
)


class _Unpickler(pickle.Unpickler):
    """Admits arrays of bytes, as CIFAR's files hold them, and nothing else: a pickle can run any code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs")
        return _ADMITTED[module, name]
