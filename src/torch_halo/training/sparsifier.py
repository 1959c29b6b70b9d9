"""What a method may do to a network while it trains; the methods themselves are in their own room."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor, nn

from torch_halo.data import DataSet
from torch_halo.masks import Masks

if TYPE_CHECKING:
    from torch_halo.training.session import Session


class Sparsifier:
    """A method at work on one network. This one does nothing, unless it is given masks to hold."""

    def __init__(self, masks: Masks | None = None) -> None:
        self.masks = masks  # held from the first step on

    def loss(self) -> Tensor | None:
        """What is added to the loss."""
        return None

    def act(self, session: "Session") -> bool:
        """Act between the backward pass and the optimizer's step; if true, this was the step's update."""
        return False

    def plain(self) -> AbstractContextManager[None]:
        """Within this the network is as it will be handed back, to be measured."""
        return nullcontext()

    def hand_back(self) -> None:
        """Leave a plain network, with exact zeros."""


# What begins a method's work on an initial network, before it is given to devices and an optimizer.
Begin: TypeAlias = Callable[[nn.Module, DataSet], Sparsifier]
