"""How far two runs have cut the same weights."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from torch_halo.selection import Select, select_weights
from torch_halo.weights import gathered, local


@dataclass(frozen=True)
class Shared:
    """Zeros in two networks: of so many weights those of the first, of the second, of both, and of both by chance."""

    weights: int
    first: int
    second: int
    both: int
    both_by_chance: float

    @property
    def jaccard(self) -> float:
        """|A∩B| / |A∪B| of the zeros; NaN if there are none."""
        return _share(self.both, self.first + self.second - self.both)

    @property
    def by_chance(self) -> float:
        """What it would be if the same numbers of zeros lay anywhere in each layer."""
        return _share(self.both_by_chance, self.first + self.second - self.both_by_chance)

    @property
    def kept(self) -> float:
        """The same of the weights that are not zero."""
        return self._kept(self.both)

    @property
    def kept_by_chance(self) -> float:
        """What that would be."""
        return self._kept(self.both_by_chance)

    def _kept(self, both: float) -> float:
        one, two = self.weights - self.first, self.weights - self.second
        neither = self.weights - self.first - self.second + both
        return _share(neither, one + two - neither)


@dataclass(frozen=True)
class LayerOverlap(Shared):
    """A layer's."""

    name: str


@dataclass(frozen=True)
class Overlap(Shared):
    """All layers' together."""

    layers: tuple[LayerOverlap, ...]


def overlap(first: nn.Module, second: nn.Module, *, select: Select = None) -> Overlap:
    """How far the zeros of two networks of one kind are the same."""
    one, two = (_zeros(model, select) for model in (first, second))
    if differences := _differences(one, two):
        raise ValueError(f"overlap needs two networks of one kind; they differ: {'; '.join(differences[:3])}")
    layers = tuple(_compared(name, a, two[name]) for name, a in one.items())
    return Overlap(
        weights=sum(layer.weights for layer in layers),
        first=sum(layer.first for layer in layers),
        second=sum(layer.second for layer in layers),
        both=sum(layer.both for layer in layers),
        both_by_chance=sum(layer.both_by_chance for layer in layers),
        layers=layers,
    )


def _compared(name: str, a: Tensor, b: Tensor) -> LayerOverlap:
    first, second = int(a.sum()), int(b.sum())
    return LayerOverlap(a.numel(), first, second, int((a & b).sum()), first * second / max(a.numel(), 1), name)


def _zeros(model: nn.Module, select: Select) -> dict[str, Tensor]:
    weights = select_weights(model, select, frozen=True)
    return {weight.name: local(gathered(weight.parameter.detach())) == 0 for weight in weights}


def _differences(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> list[str]:
    shapes = [{name: tuple(zeros.shape) for name, zeros in side.items()} for side in (one, two)]
    names = dict.fromkeys([*one, *two])
    return [
        f"{name} is {shapes[0].get(name, 'missing')} and {shapes[1].get(name, 'missing')}"
        for name in names
        if shapes[0].get(name) != shapes[1].get(name)
    ]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")
