"""Models for other runtimes: ONNX, checked by onnxruntime, and torch's own exported programs."""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim

from torch_halo.checks import Table, extra
from torch_halo.deployment.comparison import as_inputs, difference, outputs, own_copy
from torch_halo.files import check_writable, write_whole

FORMATS: Table[str] = Table("format", {"onnx": ".onnx", "torch": ".pt2"})
Format = Literal["onnx", "torch"]
SPARSE = 0.7  # the share of zeros from which places (8 bytes) and values (4) are smaller than all values


@dataclass(frozen=True)
class Exported:
    """What was written, and by how much its outputs differ from the model's; print it."""

    path: Path
    bytes: int
    difference: float
    any_batch: bool  # or only the example's
    sparse: bool  # whether zeros are left out of the file

    def __str__(self) -> str:
        batch = "any batch size" if self.any_batch else "the example's batch size only"
        zeros = ", without its zeros" if self.sparse else ""
        return f"{self.path}: {self.bytes:,} bytes{zeros}, {batch}, outputs differ by {self.difference:.2g} at most"


def export(
    model: nn.Module, example_input: Any, path: str | Path, format: Format = "onnx", *, sparse: bool = False
) -> Exported:
    """Write a model in another format, run it there on the example, and compare; nothing is left if it differs.

    ONNX files need onnxruntime to be checked. `sparse` stores weights without their zeros where that
    is smaller; onnxruntime unpacks them when it loads the file, so that the speed is the dense one's.
    """
    path, inputs = Path(path), as_inputs(example_input)
    check_export(path, format, sparse)
    model = own_copy(model)
    with torch.no_grad(), _quiet():
        program, any_batch = _program(model, inputs)
        if format == "torch":
            content = _saved(program)
            found = outputs(torch.export.load(io.BytesIO(content)).module(), inputs)
        else:
            content = _onnx(program, sparse)
            found = run_onnx(content, inputs)
    differs = difference(found, outputs(model, inputs))
    if differs.too_large:
        raise ValueError(f"the exported model's outputs differ by {differs}; nothing was written")
    write_whole(path, content)
    return Exported(path, len(content), differs.largest, any_batch, sparse)


def check_export(path: Path, format: str, sparse: bool) -> None:
    """Raise if this cannot be written: better before the work than after it."""
    if path.suffix != FORMATS[format]:
        raise ValueError(f"a file of format {format} must end in {FORMATS[format]}; received {path}")
    if sparse and format != "onnx":
        raise ValueError("sparse is for ONNX files; a torch program keeps its zeros")
    check_writable(path)


def run_onnx(content: bytes, inputs: tuple[Any, ...]) -> list[Tensor]:
    """What onnxruntime computes."""
    session = onnx_session(content)
    names = [each.name for each in session.get_inputs()]
    found = session.run(None, dict(zip(names, (x.numpy() for x in inputs if isinstance(x, Tensor)), strict=True)))
    return [torch.from_numpy(np.asarray(x)) for x in found]


def onnx_session(content: bytes, threads: int = 0) -> Any:
    """An onnxruntime session, with as many threads (0: as it chooses)."""
    with extra("onnx", "running ONNX files"):
        from onnxruntime import InferenceSession, SessionOptions
    options = SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _program(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[torch.export.ExportedProgram, bool]:
    """The traced model, for any batch size if it can be."""
    batches = {len(x) for x in inputs if isinstance(x, Tensor) and x.ndim}
    shapes = tuple({0: Dim("batch")} if isinstance(x, Tensor) and x.ndim else None for x in inputs)
    if len(batches) == 1 and batches != {1}:  # torch takes a size of one for a constant
        try:
            return torch.export.export(model, inputs, dynamic_shapes=shapes), True
        except Exception:  # whatever its forward does with sizes
            pass
    return torch.export.export(model, inputs), False


def _saved(program: torch.export.ExportedProgram) -> bytes:
    file = io.BytesIO()
    torch.export.save(program, file)
    return file.getvalue()


def _onnx(program: torch.export.ExportedProgram, sparse: bool) -> bytes:
    with extra("onnx", "ONNX export"):
        import onnx
        import onnxscript  # noqa: F401
    found = torch.onnx.export(program, dynamo=True, verbose=False)
    assert found is not None
    proto = found.model_proto
    if sparse:
        _leave_out_zeros(proto, onnx)
    onnx.checker.check_model(proto)
    content: bytes = proto.SerializeToString()
    return content


def _leave_out_zeros(proto: Any, onnx: Any) -> None:
    kept = []
    for tensor in proto.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        flat = values.reshape(-1)
        (places,) = flat.nonzero()
        if values.dtype != np.float32 or not len(places) or len(places) > (1 - SPARSE) * values.size:
            kept.append(tensor)
            continue
        sparse = onnx.SparseTensorProto(dims=values.shape)
        sparse.values.CopyFrom(onnx.numpy_helper.from_array(flat[places], tensor.name))
        sparse.indices.CopyFrom(onnx.numpy_helper.from_array(places.astype(np.int64), f"{tensor.name}_places"))
        proto.graph.sparse_initializer.append(sparse)
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporters say to their own developers."""
    names = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")
    before = {name: logging.getLogger(name).level for name in names}
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
