"""The demo: dense, L1 and HALO on scikit-learn's digits, pruned without fine-tuning."""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version

import torch
from torch import nn
from torch.nn import functional as F

from torch_halo.data import DataSet, Split, load
from torch_halo.figures import sparsity
from torch_halo.models import lenet_300_100
from torch_halo.penalties import HALO, L1, Penalty
from torch_halo.pruning import prune_
from torch_halo.shrinkage import Shrinkage

SPARSITIES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
CHOSEN_ON = (0.95, 0.98, 0.99)  # the strength with the best validation accuracy here, on average
SHOWN = 0.95  # the sparsity at which layers are compared
EPOCHS, BATCH, LR, DECAY = 60, 64, 0.1, 5e-4
# A thousand steps are few for λ, which has 150,000 in the paper: ten times its usual weight decay
# makes up for it.
COEFFICIENT_DECAY = 5e-3
POINTS = 1500  # weights in the picture of λ


@dataclass(frozen=True)
class Method:
    """A row of the demo's table: a penalty as a function of its strength, and the strengths to try."""

    penalty: Callable[[float], Penalty] | None = None
    strengths: tuple[float, ...] = (0.0,)


METHODS = {
    "dense": Method(),
    "L1": Method(L1, (5e-4, 1e-3, 2e-3, 4e-3)),
    "HALO": Method(HALO, (3e-5, 1e-4, 3e-4, 1e-3)),
}


@dataclass(frozen=True)
class Trained:
    """One trained network, measured: accuracy in percent by sparsity, zeros by layer, λ against |w|."""

    validation: tuple[float, ...]
    test: tuple[float, ...]
    layers: dict[str, float]
    coefficients: list[tuple[float, float]]


@dataclass(frozen=True)
class Row:
    """A method at the strength that validation chose, one network a seed."""

    method: str
    strength: float
    runs: list[Trained] = field(default_factory=list)

    def accuracies(self) -> list[tuple[float, float]]:
        """Mean and standard deviation of the test accuracy, by sparsity."""
        table = torch.tensor([run.test for run in self.runs], dtype=torch.float64)
        spread = table.std(0) if len(table) > 1 else torch.zeros(table.shape[1])
        return list(zip(table.mean(0).tolist(), spread.tolist(), strict=True))


def as_json(rows: list[Row]) -> str:
    """The rows with what made them, to be stored."""
    made = {"torch-halo": version("torch-halo"), "torch": torch.__version__, "epochs": EPOCHS}
    return json.dumps({**made, "rows": [asdict(row) for row in rows]}) + "\n"


def from_json(text: str) -> list[Row]:
    """Rows that `as_json` stored."""
    rows = json.loads(text)["rows"]
    return [Row(row["method"], row["strength"], [Trained(**run) for run in row["runs"]]) for row in rows]


def run_count(seeds: int) -> int:
    """How many networks `run_demo` trains."""
    return sum(len(method.strengths) + seeds - 1 for method in METHODS.values())


def run_demo(seeds: int, epochs: int = EPOCHS, done: Callable[[str], None] = print) -> list[Row]:
    """Choose each method's strength on validation data with one seed, then train all seeds with it.

    `done` is told of each network that is ready.
    """
    data = load("digits", validation=0.25).normalised()
    return [_row(name, method, data, seeds, epochs, done) for name, method in METHODS.items()]


def _row(name: str, method: Method, data: DataSet, seeds: int, epochs: int, done: Callable[[str], None]) -> Row:
    tried: dict[float, Trained] = {}
    for strength in method.strengths:
        tried[strength] = _train(method, strength, data, 0, epochs)
        done(f"{name} {strength:g}" if method.penalty else name)
    best = max(tried, key=lambda strength: _score(tried[strength]))
    row = Row(name, best, [tried[best]])
    for seed in range(1, seeds):
        row.runs.append(_train(method, best, data, seed, epochs))
        done(f"{name} seed {seed}")
    return row


def _score(trained: Trained) -> float:
    return sum(trained.validation[SPARSITIES.index(level)] for level in CHOSEN_ON)


def _train(method: Method, strength: float, data: DataSet, seed: int, epochs: int) -> Trained:
    torch.manual_seed(seed)
    model = lenet_300_100(data.input_shape, data.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=DECAY)
    shrink = None
    if method.penalty is not None:
        shrink = Shrinkage(model, method.penalty(strength), optimizer, coefficient_weight_decay=COEFFICIENT_DECAY)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [epochs // 2, epochs * 3 // 4], 0.1)
    for _ in range(epochs):
        for inputs, labels in _batches(data.train):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        schedule.step()
    return _measure(model, data, shrink if seed == 0 else None)  # one picture of λ is enough


def _batches(split: Split) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for index in torch.randperm(len(split.labels)).split(BATCH):
        yield split.inputs[index], split.labels[index]


def _measure(model: nn.Module, data: DataSet, shrink: Shrinkage | None) -> Trained:
    validation, test, layers = [], [], {}
    for level in SPARSITIES:
        pruned = copy.deepcopy(model)
        prune_(pruned, sparsity=level, allow_empty=True)
        validation.append(_accuracy(pruned, data.validation))
        test.append(_accuracy(pruned, data.test))
        if level == SHOWN:
            layers = {layer.name: layer.sparsity for layer in sparsity(pruned).layers}
    return Trained(tuple(validation), tuple(test), layers, _sample(model, shrink))


@torch.no_grad()
def _accuracy(model: nn.Module, split: Split) -> float:
    return 100 * float((model(split.inputs).argmax(1) == split.labels).double().mean())


def _sample(model: nn.Module, shrink: Shrinkage | None) -> list[tuple[float, float]]:
    """(|w|, λ) of some weights, evenly spaced by |w| so that the few large ones show."""
    if shrink is None or not shrink.coefficients:
        return []
    parameters = dict(model.named_parameters())
    w = torch.cat([parameters[name].detach().abs().flatten() for name in shrink.coefficients])
    lam = torch.cat([part.flatten() for part in shrink.coefficients.values()])
    order = w.argsort(descending=True)
    half = POINTS // 2
    rest = order[half:][:: max(1, (len(order) - half) // half)]
    chosen = torch.cat([order[:half], rest])
    return [(float(f"{a:.4g}"), float(f"{b:.4g}")) for a, b in zip(w[chosen], lam[chosen], strict=True)]
