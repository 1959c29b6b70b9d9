"""MNIST's files: idx, plain or gzipped."""

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torch_halo.data.sets import Split

IMAGES, LABELS = 2051, 2049  # the formats' magic numbers
KINDS = {IMAGES: "idx images", LABELS: "idx labels"}
FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


def has_idx(folder: Path) -> bool:
    """Whether all four files are there, plain or gzipped."""
    return all((folder / name).is_file() or (folder / f"{name}.gz").is_file() for name in FILES)


def read_idx(folder: Path) -> tuple[Split, Split]:
    """Train and test."""
    train_images, train_labels, test_images, test_labels = (_find(folder, name) for name in FILES)
    return _pair(train_images, train_labels), _pair(test_images, test_labels)


def _find(folder: Path, name: str) -> Path:
    plain = folder / name
    return plain if plain.exists() else folder / f"{name}.gz"


def _pair(images_path: Path, labels_path: Path) -> Split:
    images, labels = _read(images_path, IMAGES, 3), _read(labels_path, LABELS, 1)
    if len(images) != len(labels):
        raise ValueError(f"{labels_path}: expected {len(images)} labels, one for each image; found {len(labels)}")
    return Split(images[:, None], labels.long())


def _read(path: Path, magic: int, ndim: int) -> Tensor:
    content = _content(path)
    if len(content) < 4 * (1 + ndim):
        raise ValueError(f"{path}: expected {KINDS[magic]}; found {len(content)} bytes, less than the header")
    header = np.frombuffer(content, ">u4", 1 + ndim)
    if int(header[0]) != magic:
        found = KINDS.get(int(header[0]), f"magic number {int(header[0])}")
        raise ValueError(f"{path}: expected {KINDS[magic]} (magic number {magic}); found {found}")
    shape: Sequence[int] = [int(size) for size in header[1:]]
    expected = 4 * (1 + ndim) + math.prod(shape)
    if len(content) != expected:
        raise ValueError(f"{path}: expected {expected} bytes for {'×'.join(map(str, shape))}; found {len(content)}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=4 * (1 + ndim)).copy()).view(*shape)


def _content(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: expected a whole gzip file; found a damaged or truncated one ({error})") from error
