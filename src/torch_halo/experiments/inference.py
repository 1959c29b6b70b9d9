"""What a pruned network takes: time by runtime, batch size and threads, and bytes by format."""

import copy
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torch_halo.checks import Table
from torch_halo.deployment import compress, deploy
from torch_halo.deployment.export import export, onnx_session
from torch_halo.deployment.timing import medians
from torch_halo.figures import sparsity
from torch_halo.files import write_whole
from torch_halo.methods.densities import kept_counts
from torch_halo.models import MODELS
from torch_halo.selection import select_weights

BATCHES = (1, 8, 64)
EAGER, ONNX, OURS = "dense, torch", "dense, onnxruntime", "deployed"
TOKENS, WIDTH, HEADS, DEPTH = 128, 768, 12, 2  # of the transformer: 14.2M weights
Sample = Callable[[int], Tensor]  # a batch of inputs


@dataclass(frozen=True)
class Case:
    """A network with random weights, and its inputs."""

    about: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]

    def sample(self, batch: int) -> Tensor:
        """A batch of noise."""
        return torch.randn(batch, *self.shape)


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True)
    return nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)


CASES: Table[Case] = Table(
    "network",
    {
        "lenet-300-100": Case("LeNet-300-100", lambda: MODELS["lenet-300-100"]((1, 28, 28), 10), (1, 28, 28)),
        "vgg16": Case("VGG-16", lambda: MODELS["vgg16"]((3, 32, 32), 10), (3, 32, 32)),
        "transformer": Case(
            f"Transformer encoder, {DEPTH} layers of width {WIDTH}, {TOKENS} tokens", _encoder, (TOKENS, WIDTH)
        ),
    },
)


@dataclass
class Inference:
    """Seconds for a batch by runtime, and bytes by format."""

    about: str
    sparsity: float
    sizes: dict[str, int] = field(default_factory=dict)
    times: list[dict[str, Any]] = field(default_factory=list)  # batch, threads, seconds by runtime
    notes: list[str] = field(default_factory=list)


def random_network(name: str, level: float) -> nn.Module:
    """A network with random weights, pruned with the densities of Evci et al. (ERK): small layers keep more."""
    torch.manual_seed(0)
    model = CASES[name].make().eval()
    weights = select_weights(model)
    counts = kept_counts({weight.name: weight.parameter.shape for weight in weights}, level)
    with torch.no_grad():
        for weight in weights:
            flat = weight.parameter.view(-1)
            cut = flat.numel() - counts[weight.name]
            flat[flat.abs().argsort(stable=True)[:cut]] = 0
    return model


def measured(
    about: str, model: nn.Module, sample: Sample, batches: Sequence[int], threads: Sequence[int], rounds: int
) -> Iterator[Inference]:
    """A network's sizes and times, after each batch size and number of threads again."""
    model = copy.deepcopy(model).eval()
    found = Inference(about, sparsity(model).sparsity)
    before = torch.get_num_threads()
    try:
        with tempfile.TemporaryDirectory() as folder:
            content = _sizes(model, sample(2), Path(folder), found.sizes)
        for count in threads:
            torch.set_num_threads(count)
            for batch in batches:
                found.times.append(_times(model, sample(batch), content, count, rounds, found))
                yield found
    finally:
        torch.set_num_threads(before)


def _sizes(model: nn.Module, example: Tensor, folder: Path, sizes: dict[str, int]) -> bytes:
    """Bytes by format; returns the dense ONNX file."""
    exact = compress(model, folder / "exact.safetensors")
    sizes["dense"] = exact.dense
    sizes["compressed, without zstd"] = compress(model, folder / "plain.safetensors", zstd=False).bytes
    sizes["compressed"] = exact.bytes
    sizes["compressed, float16"] = compress(model, folder / "half.safetensors", values="float16").bytes
    sizes["ONNX"] = export(model, example, folder / "dense.onnx").bytes
    sizes["ONNX, sparse"] = export(model, example, folder / "sparse.onnx", sparse=True).bytes
    return (folder / "dense.onnx").read_bytes()


def _times(model: nn.Module, x: Tensor, onnx: bytes, threads: int, rounds: int, found: Inference) -> dict[str, Any]:
    session = onnx_session(onnx, threads)
    given = {session.get_inputs()[0].name: x.numpy()}
    fast, table = deploy(model, x)
    for note in table.notes:
        if note not in found.notes:
            found.notes.append(note)
    with torch.no_grad():
        seconds = medians(
            {EAGER: lambda: model(x), ONNX: lambda: session.run(None, given), OURS: lambda: fast(x)},
            rounds,
            math.inf,
        )
    return {"batch": len(x), "threads": threads, "seconds": seconds}


def size_rows(found: Inference) -> list[list[str]]:
    """A table of the sizes."""
    rows = [["format", "bytes", "smaller"]]
    return rows + [[name, f"{size:,}", f"{found.sizes['dense'] / size:.1f}×"] for name, size in found.sizes.items()]


def time_rows(found: Inference) -> list[list[str]]:
    """A table of the times, and how many times faster ours is; below 1 it is slower."""
    heads = [f"{EAGER} ms", f"{ONNX} ms", f"{OURS} ms", "inputs/s", "than torch", "than onnxruntime"]
    rows = [["batch", "threads", *heads]]
    for each in found.times:
        eager, onnx, ours = (each["seconds"][name] for name in (EAGER, ONNX, OURS))
        cells = [f"{1000 * seconds:.3f}" for seconds in (eager, onnx, ours)]
        faster = [f"{other / ours:.2f}×" for other in (eager, onnx)]
        rows.append([str(each["batch"]), str(each["threads"]), *cells, f"{each['batch'] / ours:,.0f}", *faster])
    return rows


def summary_row(found: Inference) -> list[str]:
    """A network in a line: zeros, how much smaller its file is, and how many times faster it is, by batch size."""
    ratios = [
        " / ".join(f"{each['seconds'][name] / each['seconds'][OURS]:.2f}" for each in found.times)
        for name in (EAGER, ONNX)
    ]
    return [found.about, f"{found.sparsity:.0%}", f"{found.sizes['dense'] / found.sizes['compressed']:.1f}×", *ratios]


def write_inference(path: Path, found: Sequence[Inference]) -> None:
    """Keep what was measured, with torch's version."""
    data = {"torch": torch.__version__, "networks": [asdict(each) for each in found]}
    write_whole(path, json.dumps(data, indent=1) + "\n")


def read_inference(path: Path) -> list[Inference]:
    """What `write_inference` wrote."""
    try:
        found: Mapping[str, list[dict[str, Any]]] = json.loads(path.read_text())
        return [Inference(**each) for each in found["networks"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected what `halo bench inference` writes ({error})") from error
