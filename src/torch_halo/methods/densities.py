"""How many weights each layer of a sparse network has from the start."""

import math
from collections.abc import Callable, Mapping, Sequence

from torch_halo.checks import Table, number

Shapes = Mapping[str, Sequence[int]]  # of the weights, by name


def kept_counts(shapes: Shapes, sparsity: float, how: str = "erk") -> dict[str, int]:
    """How many weights each layer keeps, N − round(sparsity·N) in all, by one of the `DENSITIES`.

    >>> kept_counts({"a": (10, 10), "b": (10, 10)}, 0.9)
    {'a': 10, 'b': 10}
    """
    sparsity = number("sparsity", sparsity, at_least=0, below=1)
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    total = sum(sizes.values()) - round(sparsity * sum(sizes.values()))
    wanted = _scaled(sizes, DENSITIES[how](shapes), total)
    counts = {name: math.floor(wanted[name]) for name in sizes}
    # What rounding down left over goes to those that lost most by it.
    by_loss = sorted(sizes, key=lambda name: counts[name] - wanted[name])
    for name in by_loss[: total - sum(counts.values())]:
        counts[name] += 1
    return counts


def _scaled(sizes: Mapping[str, int], shares: Mapping[str, float], total: int) -> dict[str, float]:
    """Sizes times shares, scaled to a total; layers that would be more than full are full."""
    full = {name for name, share in shares.items() if share == math.inf}
    while True:
        rest = {name: sizes[name] * shares[name] for name in sizes if name not in full}
        left = total - sum(sizes[name] for name in full)
        if left < 0:
            names = ", ".join(full)
            raise ValueError(f"{total} weights are not enough to keep {names} whole; lower the sparsity")
        factor = left / sum(rest.values()) if rest else 0.0
        over = {name for name in rest if factor * shares[name] > 1}
        if not over:
            return {name: float(sizes[name]) if name in full else factor * rest[name] for name in sizes}
        full |= over


def _erdos_renyi_kernel(shapes: Shapes) -> dict[str, float]:
    """(Σ of the axes' lengths) / (their product): small layers are denser. Evci et al., ICML 2020."""
    return {name: sum(shape) / max(math.prod(shape), 1) for name, shape in shapes.items()}


def _uniform(shapes: Shapes) -> dict[str, float]:
    """All layers alike, but the first one whole, as Evci et al. have it."""
    first = next(iter(shapes))
    return {name: math.inf if name == first and len(shapes) > 1 else 1.0 for name in shapes}


DENSITIES: Table[Callable[[Shapes], dict[str, float]]] = Table(
    "density", {"erk": _erdos_renyi_kernel, "uniform": _uniform}
)
