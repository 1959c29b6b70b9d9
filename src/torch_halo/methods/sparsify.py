"""The one way to use a method: an initial network, data, a training set-up and a target in; a sparse network out."""

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from torch_halo.data import DataSet
from torch_halo.figures import Sparsity, sparsity
from torch_halo.masks import Masks
from torch_halo.methods.base import Method
from torch_halo.methods.table import method_of
from torch_halo.pruning import prune_
from torch_halo.training.config import Config
from torch_halo.training.fabric import launch
from torch_halo.training.loop import Unwatched, train
from torch_halo.training.metrics import epoch_figures
from torch_halo.training.pruned import whole_state
from torch_halo.training.session import Session, start


@dataclass(frozen=True)
class Sparse:
    """A sparse network, the masks of its zeros, and what each epoch on the way measured.

    `own` are the zeros that the method left before the last threshold: a method that cannot aim
    at a sparsity may leave fewer than asked, which the threshold makes up for, or more.
    """

    model: nn.Module
    masks: Masks
    history: list[dict[str, Any]]
    own: Sparsity


def sparsify(method: Method, network: nn.Module, data: DataSet, setup: Config, target: float) -> Sparse:
    """Make a network sparse by a method, in memory; the network that is passed stays as it is.

    `setup` are the settings of a plain training (its data set's and model's names are not looked at).
    The sparse one is in training mode, on the device that the set-up names. For runs in folders,
    which can be stopped and resumed, there is `halo experiment`.
    """
    config = method.config(setup, target)
    with torch.random.fork_rng():  # a training sets the seed; the caller's random numbers go on as they were
        model, history = _trained(config, network, data)
    select = config.shrinking.select
    own = sparsity(model, select=select)
    return Sparse(model, prune_(model, target, select=select), history, own)


def _trained(config: Config, network: nn.Module, data: DataSet) -> tuple[nn.Module, list[dict[str, Any]]]:
    method, earlier = method_of(config), None
    history: list[dict[str, Any]] = []
    if (first := method.before(config)) is not None:
        model, history = _trained(first, network, data)
        earlier = whole_state(model)
    begin = partial(method.begin, config=config, before=earlier)
    session, watch = start(config, launch(config.compute), data, copy.deepcopy(network), begin), _History(history)
    train(session, watch)
    session.sparsifier.hand_back()
    return session.module, watch.rows


class _History(Unwatched):
    """Keeps a training's figures, after those of the trainings before."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = list(rows)

    def epoch_done(self, session: Session) -> None:
        self.rows.append(epoch_figures(session))
