"""Sparsity figures, counted from the weights themselves."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torch_halo.selection import Select, select_weights
from torch_halo.weights import sum_shards

MAGNITUDES = tuple(10 ** (place / 10) for place in range(-100, 11))  # at which weights are counted: 1e-10 to 10


@dataclass(frozen=True)
class LayerSparsity:
    """One weight's figures."""

    name: str
    shape: tuple[int, ...]
    weights: int
    zeros: int

    @property
    def sparsity(self) -> float:
        """zeros / weights."""
        return self.zeros / max(self.weights, 1)


@dataclass(frozen=True)
class Sparsity:
    """The figures of a model: overall, and by layer; printed, a table."""

    layers: tuple[LayerSparsity, ...]

    @property
    def weights(self) -> int:
        """How many weights there are."""
        return sum(layer.weights for layer in self.layers)

    @property
    def zeros(self) -> int:
        """How many of them are zero."""
        return sum(layer.zeros for layer in self.layers)

    @property
    def sparsity(self) -> float:
        """zeros / weights."""
        return self.zeros / max(self.weights, 1)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        layers = [{**asdict(layer), "sparsity": layer.sparsity} for layer in self.layers]
        return {"weights": self.weights, "zeros": self.zeros, "sparsity": self.sparsity, "layers": layers}

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("layer", "shape", "weights", "zeros", "sparsity")]
        for layer in self.layers:
            rows.append(_row(layer.name, "×".join(map(str, layer.shape)), layer))
        rows.append(_row("total", "", self))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = ["  ".join([_left(row, widths), _right(row, widths)]).rstrip() for row in rows]
        rule = "-" * max(map(len, lines))
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1]])


def sparsity(model: nn.Module, *, select: Select = None) -> Sparsity:
    """How many of the selected weights are zero, frozen ones included: print it, or read its fields.

    >>> layer = nn.Linear(4, 2)
    >>> _ = nn.init.zeros_(layer.weight[0])
    >>> sparsity(layer).sparsity
    0.5
    """
    weights = select_weights(model, select, frozen=True)
    with torch.no_grad():
        zeros = sum_shards([(weight.local == 0).sum() for weight in weights], weights)
    return Sparsity(
        tuple(
            LayerSparsity(weight.name, tuple(weight.parameter.shape), weight.parameter.numel(), int(count))
            for weight, count in zip(weights, zeros, strict=True)
        )
    )


def _row(name: str, shape: str, figures: LayerSparsity | Sparsity) -> tuple[str, ...]:
    return name, shape, f"{figures.weights:,}", f"{figures.zeros:,}", f"{figures.sparsity:.2%}"


def _left(row: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True))


def _right(row: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True))


@torch.no_grad()
def shares_under(model: nn.Module, *, select: Select = None) -> list[float]:
    """The share of the selected weights with a smaller magnitude than each of `MAGNITUDES`."""
    weights, low, high = (
        select_weights(model, select, frozen=True),
        math.log10(MAGNITUDES[0]),
        math.log10(MAGNITUDES[-1]),
    )
    counts = []
    for weight in weights:
        places = weight.local.abs().float().log10_()
        counts.append(torch.cat([(places < low).sum().reshape(1), _binned(places, low, high)]).cumsum(0))
    total = sum(weight.parameter.numel() for weight in weights)
    return [round(float(x) / max(total, 1), 5) for x in torch.stack(list(sum_shards(counts, weights))).sum(0)]


def _binned(places: Tensor, low: float, high: float) -> Tensor:
    """How many are between each two of `MAGNITUDES`; piece by piece, since histc counts in float32."""
    bins = len(MAGNITUDES) - 1
    found = torch.zeros(bins, dtype=torch.int64, device=places.device)
    for piece in places.flatten().split(2**22):
        if len(piece):
            found += torch.histc(piece, bins, low, high).long()  # what is not between them is left out
    return found
