"""Sets of channels that several layers share.

A convolution makes them, batch norm and ReLU pass them on, additions tie two spaces into one, other
layers read them. A channel can only be removed from all of them at once.
"""

from dataclasses import dataclass, field, replace

from torch import Tensor, fx, nn

from torch_halo.deployment.kinds import Layer


@dataclass
class Reader:
    """A layer that reads a space's channels: each of them in `repeat` places, with constants as they arrive there."""

    layer: Layer
    repeat: int
    value: Tensor
    known: Tensor


@dataclass
class Space:
    """Channels that stand or fall together."""

    size: int
    frozen: bool = False
    makers: list[Layer] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    passers: list[nn.Module] = field(default_factory=list)  # with parameters of their own for each channel
    tied: "Space | None" = None

    def root(self) -> "Space":
        """The space that it is a part of."""
        return self if self.tied is None else self.tied.root()

    def tie(self, other: "Space") -> None:
        """Make one of two."""
        mine, its = self.root(), other.root()
        if mine is its:
            return
        its.tied = mine
        mine.frozen |= its.frozen or mine.size != its.size
        mine.makers += its.makers
        mine.readers += its.readers
        mine.passers += its.passers


@dataclass
class Channels:
    """A node's channels: their space, their axis, how often each is repeated, and their constants."""

    space: Space
    axis: int
    repeat: int
    value: Tensor
    known: Tensor
    is_bare: bool = False  # without the other axes: what is left of a branch

    def after(self, value: Tensor | None = None, known: Tensor | None = None) -> "Channels":
        """The same channels behind another operation."""
        return replace(self, value=self.value if value is None else value, known=self.known if known is None else known)


@dataclass(frozen=True)
class Branch:
    """A module whose output is constant, and added to something: (its node, the constants, the axes behind them)."""

    node: fx.Node
    value: Tensor
    axes_after: int


@dataclass
class Analysis:
    """All spaces of a graph, and its constant branches."""

    spaces: list[Space] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
