"""What a penalty costs: steps with and without it, in turns, so that what disturbs one disturbs all."""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from torch_halo.checks import Table
from torch_halo.files import write_whole
from torch_halo.models import MODELS
from torch_halo.penalties import HALO, L1, Penalty
from torch_halo.selection import select_weights
from torch_halo.shrinkage import Shrinkage

XI = 1e-6
CLASSES = 10
DEPTH, WIDTH = 8, 512  # of the stack of transformer blocks: 25.2M weights


@dataclass(frozen=True)
class Case:
    """A network with its batch, and how many steps are timed at once."""

    about: str
    make: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    steps: int = 1


def _blocks() -> nn.Module:
    block = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True)
    # Each token is classified, so that the blocks are nearly all of the work.
    return nn.Sequential(nn.TransformerEncoder(block, DEPTH, enable_nested_tensor=False), nn.Linear(WIDTH, CLASSES))


CASES: Table[Case] = Table(
    "network",
    {
        "vgg16": Case("VGG-16, batch 64", lambda: MODELS["vgg16"]((3, 32, 32), CLASSES), (64, 3, 32, 32)),
        "resnet": Case("ResNet-50 of CIFAR, batch 64", lambda: MODELS["resnet"]((3, 32, 32), CLASSES), (64, 3, 32, 32)),
        "lenet-300-100": Case(
            "LeNet-300-100, batch 100", lambda: MODELS["lenet-300-100"]((1, 28, 28), CLASSES), (100, 1, 28, 28), 50
        ),
        "transformer": Case(f"{DEPTH} transformer blocks of width {WIDTH}, 8×128 tokens", _blocks, (8, 128, WIDTH)),
    },
)


class Plain:
    """Training by SGD with momentum."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Of one batch."""
        return F.cross_entropy(self.model(inputs).flatten(0, -2), labels)

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        """One step of training."""
        self.optimizer.zero_grad()
        self.loss(inputs, labels).backward()
        self.optimizer.step()

    def memory(self) -> int:
        """Bytes that are kept beyond the model, its gradients and the optimizer's own state."""
        extra = [value for state in self.optimizer.state.values() for key, value in state.items() if "halo" in key]
        return sum(value.nbytes for value in extra)


class Ours(Plain):
    """With a penalty of ours."""

    def __init__(self, model: nn.Module, penalty: Penalty, compiled: bool) -> None:
        super().__init__(model)
        self.shrink = Shrinkage(model, penalty, self.optimizer, compiled=compiled)


class Autograd(Plain):
    """HALO as in the paper: λ are parameters with an optimizer of their own, the penalty is a part of the loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.weights = [weight.parameter for weight in select_weights(model)]
        self.lam = [torch.ones_like(w, requires_grad=True) for w in self.weights]
        self.second = SGD(self.lam, lr=0.01, momentum=0.9, weight_decay=5e-4)

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        pairs = zip(self.weights, self.lam, strict=True)
        penalty = sum((w.abs() / lam**2).sum() + lam.abs().sum() for w, lam in pairs)
        return super().loss(inputs, labels) + XI * penalty

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        self.second.zero_grad()
        super().step(inputs, labels)
        self.second.step()

    def memory(self) -> int:
        gradients = [lam.grad for lam in self.lam if lam.grad is not None]
        momenta = [state["momentum_buffer"] for state in self.second.state.values()]
        return sum(int(x.nbytes) for x in (*self.lam, *gradients, *momenta))


ROWS: dict[str, Callable[[nn.Module], Plain]] = {
    "plain SGD": Plain,
    "L1": lambda model: Ours(model, L1(XI), True),
    "HALO, compiled": lambda model: Ours(model, HALO(XI), True),
    "HALO, not compiled": lambda model: Ours(model, HALO(XI), False),
    "HALO by profile, compiled": lambda model: Ours(model, HALO(XI, solve="profile"), True),
    "HALO through autograd": Autograd,
}


@dataclass
class Overhead:
    """Seconds a step by row, round by round; the first step's; bytes kept by row."""

    case: str
    weights: int
    threads: int
    first: dict[str, float]
    memory: dict[str, int]
    rounds: list[dict[str, float]]

    def seconds(self, row: str) -> float:
        """The median."""
        return statistics.median(each[row] for each in self.rounds)

    def ratio(self, row: str) -> list[float]:
        """To plain SGD in the same round: lower quartile, median, upper quartile."""
        found = [each[row] / each["plain SGD"] for each in self.rounds]
        return statistics.quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3

    def bytes_a_weight(self, row: str) -> float:
        """Kept beyond what plain SGD keeps."""
        return self.memory[row] / self.weights


def measured(name: str, rounds: int) -> Iterator[Overhead]:
    """A network's overhead, after each round again."""
    case = CASES[name]
    torch.manual_seed(0)
    inputs = torch.randn(case.inputs)
    # A label for each image, or for each token.
    labels = torch.randint(CLASSES, (case.inputs[0] * (case.inputs[1] if len(case.inputs) == 3 else 1),))
    runs: dict[str, Plain] = {}
    first = {}
    for row, make in ROWS.items():
        torch.manual_seed(0)
        runs[row] = make(case.make())
        first[row] = _seconds(runs[row], inputs, labels, 1)
    weights = sum(weight.parameter.numel() for weight in select_weights(runs["plain SGD"].model))
    memory = {row: run.memory() for row, run in runs.items()}
    found = Overhead(case.about, weights, torch.get_num_threads(), first, memory, [])
    for _ in range(rounds):
        found.rounds.append({row: _seconds(run, inputs, labels, case.steps) for row, run in runs.items()})
        yield found


def _seconds(run: Plain, inputs: Tensor, labels: Tensor, steps: int) -> float:
    began = time.perf_counter()
    for _ in range(steps):
        run.step(inputs, labels)
    return (time.perf_counter() - began) / steps


def write_overhead(path: Path, found: Sequence[Overhead]) -> None:
    """Keep what was measured, with torch's version."""
    data = {"torch": torch.__version__, "networks": [asdict(each) for each in found]}
    write_whole(path, json.dumps(data, indent=1) + "\n")


def read_overhead(path: Path) -> list[Overhead]:
    """What `write_overhead` wrote."""
    found: Mapping[str, list[dict[str, object]]] = json.loads(path.read_text())
    return [Overhead(**each) for each in found["networks"]]  # type: ignore[arg-type]


def overhead_rows(found: Overhead) -> list[list[str]]:
    """A table of it: row, milliseconds a step, ratio, bytes a weight, the first step."""
    rows = [["", "ms a step", "of plain SGD (quartiles)", "bytes a weight", "first step"]]
    for row in ROWS:
        low, median, high = found.ratio(row)
        ratio = "1" if row == "plain SGD" else f"{median:.3f} ({low:.3f} to {high:.3f})"
        cells = [f"{1000 * found.seconds(row):.1f}", ratio, f"{found.bytes_a_weight(row):.0f}"]
        rows.append([row, *cells, f"{found.first[row]:.1f} s"])
    return rows
