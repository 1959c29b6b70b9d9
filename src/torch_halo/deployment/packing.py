"""One tensor as bytes: a bit for each entry, the values that are not zero; or all of it, where that is smaller."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_halo.checks import Table

Bytes = NDArray[np.uint8]
Codec = Callable[[bytes], bytes]

_KINDS = (
    *(torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.complex128),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
)
DTYPES: Table[torch.dtype] = Table("dtype", {str(kind).removeprefix("torch."): kind for kind in _KINDS})


@dataclass(frozen=True)
class Entry:
    """What a file says of one tensor."""

    dtype: str
    shape: tuple[int, ...]
    stored: Literal["sparse", "dense", "as"]  # `as`: it is the same tensor as another one
    values: str = ""  # the dtype that its values are stored in
    other: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {key: value for key, value in asdict(self).items() if value != ""}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Entry":
        """Read with care; anything unexpected is a ValueError."""
        try:
            entry = cls(**{**data, "shape": tuple(data["shape"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"a tensor's description is damaged: {data!r}") from error
        if not all(type(size) is int and size >= 0 for size in entry.shape):
            raise ValueError(f"{entry.shape!r} is no shape")
        if entry.stored not in ("sparse", "dense", "as"):
            raise ValueError(f"{entry.stored!r} is no way of storing a tensor; known: sparse, dense, as")
        for name in (entry.dtype, *([entry.values] if entry.stored != "as" else [])):
            DTYPES[name]
        return entry

    @property
    def size(self) -> int:
        """How many entries the tensor has."""
        return int(np.prod(self.shape, dtype=object)) if self.shape else 1


def pack(tensor: Tensor, values: torch.dtype, squeeze: Codec) -> tuple[Entry, dict[str, bytes]]:
    """A tensor's parts as they are stored, each squeezed, in the smaller of the two ways."""
    raw = _bytes_of(tensor.to(values))
    present = raw.any(axis=1)  # by bits, so that -0.0 stays what it is
    dense = {"values": squeeze(_planes(raw))}
    sparse = {
        "mask": squeeze(np.packbits(present, bitorder="little").tobytes()),
        "values": squeeze(_planes(raw[present])),
    }
    way: Literal["sparse", "dense"] = "sparse" if _total(sparse) < _total(dense) else "dense"
    names = [str(kind).removeprefix("torch.") for kind in (tensor.dtype, values)]
    return Entry(names[0], tuple(tensor.shape), way, names[1]), sparse if way == "sparse" else dense


def unpack(entry: Entry, part: Callable[[str, int], bytes]) -> Tensor:
    """The tensor again; `part(name, size)` gives a part of it, of that many bytes."""
    values = DTYPES[entry.values]
    if entry.stored == "dense":
        raw = _rows(part("values", entry.size * values.itemsize), values.itemsize)
    else:
        bits = np.frombuffer(part("mask", -(-entry.size // 8)), dtype=np.uint8)
        present = np.unpackbits(bits, count=entry.size, bitorder="little").astype(bool)
        content = part("values", int(present.sum()) * values.itemsize)
        raw = np.zeros((entry.size, values.itemsize), dtype=np.uint8)
        raw[present] = _rows(content, values.itemsize)
    found = torch.from_numpy(raw).reshape(-1).view(values).reshape(entry.shape)
    return found.to(DTYPES[entry.dtype])


def _rows(planes: bytes, width: int) -> Bytes:
    """A row of bytes for each entry, out of its planes."""
    return np.frombuffer(planes, dtype=np.uint8).reshape(width, -1).T.copy()


def _bytes_of(tensor: Tensor) -> Bytes:
    """A row of bytes for each entry."""
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    found: Bytes = flat.view(torch.uint8).numpy().reshape(flat.numel(), flat.element_size())
    return found


def _planes(raw: Bytes) -> bytes:
    """All first bytes, then all second ones: signs and exponents lie together, and can be squeezed."""
    return np.ascontiguousarray(raw.T).tobytes()


def _total(parts: Mapping[str, bytes]) -> int:
    return sum(map(len, parts.values()))
