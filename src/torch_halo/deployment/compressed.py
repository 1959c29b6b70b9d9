"""Compressed files: a safetensors file with a bit for each weight, and the weights that are not zero.

The format, and ten lines of numpy that read it, are in docs/deployment.md.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from torch_halo.checks import Table, extra
from torch_halo.deployment.packing import DTYPES, Codec, Entry, pack, unpack
from torch_halo.files import check_writable, write_whole
from torch_halo.models.loading import load_state, load_weights

FORMAT, VERSION = "torch-halo", 1
RESERVED = {"format", "version", "codec", "tensors", "checksum"}
LEVEL = 9  # of zstd: 19 takes twenty times as long for four hundredths less
VALUES: Table[torch.dtype | None] = Table(
    "kind of values", {"exact": None, "float16": torch.float16, "bfloat16": torch.bfloat16}
)
Values = Literal["exact", "float16", "bfloat16"]


@dataclass(frozen=True)
class Compressed:
    """What compressing came to; print it."""

    path: Path
    dense: int  # bytes of the tensors as they are
    bytes: int  # of the file

    @property
    def times(self) -> float:
        """How many times smaller the file is."""
        return self.dense / self.bytes

    def __str__(self) -> str:
        return f"{self.path}: {self.bytes:,} bytes, {self.times:.1f} times smaller than {self.dense:,}"


def compress(
    model: nn.Module,
    path: str | Path,
    *,
    values: Values = "exact",
    zstd: bool = True,
    metadata: Mapping[str, str] | None = None,
) -> Compressed:
    """Write a model's parameters and buffers to a file without their zeros; `load_compressed` gives them back.

    To the bit, unless `values` is "float16" or "bfloat16": then floating-point weights of two axes or
    more (not biases, norms and statistics) are rounded to it. Whatever is smaller dense is stored
    dense. The file appears whole or not at all.
    """
    path, rounded = Path(path), VALUES[values]
    check_writable(path)
    if taken := set(metadata or {}) & RESERVED:
        raise ValueError(f"metadata: {', '.join(sorted(taken))} is the format's own; choose another name")
    squeeze = _squeeze() if zstd else bytes
    entries: dict[str, Entry] = {}
    parts: dict[str, bytes] = {}
    dense = 0
    for name, tensor, other in _tensors(model):
        if other:
            entries[name] = Entry(_dtype(tensor), tuple(tensor.shape), "as", other=other)
            continue
        kind = rounded if rounded and tensor.is_floating_point() and tensor.ndim > 1 else None
        if kind is not None:
            _check_range(name, tensor, kind)
        entries[name], found = pack(tensor, kind or tensor.dtype, squeeze)
        parts.update({f"{name}:{part}": content for part, content in found.items()})
        dense += tensor.numel() * tensor.element_size()
    about = {
        **(metadata or {}),
        "format": FORMAT,
        "version": str(VERSION),
        "codec": "zstd" if zstd else "none",
        "tensors": json.dumps({name: entry.as_dict() for name, entry in entries.items()}),
    }
    content = _save(parts, {**about, "checksum": _checksum(parts, about)})
    write_whole(path, content)
    return Compressed(path, dense, len(content))


def load_compressed(path: str | Path, model: nn.Module) -> nn.Module:
    """Load into a model what `compress` wrote; the model is untouched if anything is wrong."""
    path = Path(path)
    state = read_compressed(path)
    for name, tensor, other in _tensors(model):
        found = state.get(name, tensor)
        if found.dtype != tensor.dtype:
            raise ValueError(f"{path} does not fit the model: {name} is of {found.dtype}, not {tensor.dtype}")
        if other and not torch.equal(found, state.get(other, found)):
            raise ValueError(f"{path} does not fit the model: {name} and {other} are one there, and two in the file")
    return load_state(model, state, path)


def read_compressed(path: Path) -> dict[str, Tensor]:
    """The tensors of a compressed file, by name."""
    parts, about = _read(path)
    try:
        return _unpacked(parts, about)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"{path}: what it says of its tensors cannot be read ({error!r})") from error


def load_file(model: nn.Module, path: Path) -> nn.Module:
    """Load a file of weights, compressed or not."""
    return load_compressed(path, model) if is_compressed(path) else load_weights(model, path)


def is_compressed(path: Path) -> bool:
    """Whether a file says that it is one of ours."""
    try:
        return path.suffix == ".safetensors" and _read(path, whole=False)[1].get("format") == FORMAT
    except ValueError:
        return False


def _unpacked(parts: Mapping[str, bytes], about: dict[str, str]) -> dict[str, Tensor]:
    if about.get("format") != FORMAT:
        raise ValueError("expected a file that torch_halo.compress wrote; it does not say so")
    version = about.get("version", "")
    if version != str(VERSION):
        raise ValueError(f"its format is version {version}; this torch-halo reads version {VERSION}: a newer one may")
    if _checksum(parts, {k: v for k, v in about.items() if k != "checksum"}) != about.get("checksum"):
        raise ValueError("the file is damaged: its content does not have its checksum")
    codecs: dict[str, Callable[[bytes, int], bytes]] = {"zstd": _unsqueeze, "none": lambda content, _: content}
    unsqueeze = codecs[about["codec"]]
    state: dict[str, Tensor] = {}
    for name, data in json.loads(about["tensors"]).items():
        entry = Entry.from_dict(data)

        def part(kind: str, size: int, name: str = name) -> bytes:
            found = unsqueeze(parts[f"{name}:{kind}"], size)
            if len(found) != size:
                raise ValueError(f"{name}: expected {size} bytes of {kind}; found {len(found)}")
            return found

        state[name] = state[entry.other] if entry.stored == "as" else unpack(entry, part)
    return state


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor, str]]:
    """Each tensor of the state dict, and the name under which it was there before, if it was."""
    first: dict[tuple[object, ...], str] = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise ValueError(f"{name} of the state dict is no tensor but {type(value).__name__}; it cannot be kept")
        if value.dtype not in DTYPES.values():
            raise ValueError(f"{name} is of {value.dtype}; known: {', '.join(DTYPES)}")
        if isinstance(value, DTensor) or value.layout is not torch.strided or value.is_meta:
            raise ValueError(f"{name} is sharded, sparse or on the meta device; plain dense tensors are needed")
        key = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        known = first.setdefault(key, name) if value.numel() else name
        yield name, value, "" if known == name else known


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_range(name: str, tensor: Tensor, kind: torch.dtype) -> None:
    if tensor.numel() and bool((tensor.isfinite() & ~tensor.to(kind).isfinite()).any()):
        largest = float(tensor.abs().max())
        raise ValueError(f"{name} has a weight of size {largest:g}, beyond {kind}; use bfloat16, or exact values")


def _checksum(parts: Mapping[str, bytes], about: Mapping[str, str]) -> str:
    """Of all that is in the file."""
    found = hashlib.sha256(json.dumps(sorted(about.items())).encode())
    for name in sorted(parts):
        found.update(f"\n{name} {len(parts[name])}\n".encode())
        found.update(parts[name])
    return found.hexdigest()


def _save(parts: Mapping[str, bytes], about: dict[str, str]) -> bytes:
    with extra("deploy", "writing compressed files"):
        from safetensors.numpy import save
    found: bytes = save({name: np.frombuffer(content, dtype=np.uint8) for name, content in parts.items()}, about)
    return found


def _read(path: Path, *, whole: bool = True) -> tuple[dict[str, bytes], dict[str, str]]:
    with extra("deploy", "reading compressed files"):
        from safetensors import SafetensorError, safe_open
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    try:
        with safe_open(path, "np") as file:
            names = file.keys() if whole else []
            return {name: file.get_tensor(name).tobytes() for name in names}, file.metadata() or {}
    except (SafetensorError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected a compressed file; found a damaged one ({error})") from error


def _squeeze() -> Codec:
    with extra("deploy", "zstd (zstd=False is without)"):
        from zstandard import ZstdCompressor
    return ZstdCompressor(level=LEVEL).compress


def _unsqueeze(content: bytes, size: int) -> bytes:
    with extra("deploy", "reading this file"):
        from zstandard import ZstdDecompressor, ZstdError, frame_content_size
    try:
        if frame_content_size(content) != size:  # before so much memory is taken
            raise ValueError(f"expected {size} bytes; its zstd frame says {frame_content_size(content)}")
        return ZstdDecompressor().decompress(content)
    except ZstdError as error:
        raise ValueError(f"a zstd frame is damaged ({error})") from error
