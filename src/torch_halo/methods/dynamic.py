"""Methods whose masks change while they train: gradual pruning, and exchange."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from torch_halo.checks import number, whole
from torch_halo.data import DataSet
from torch_halo.masks import Masks
from torch_halo.methods.base import Method, State, target_of
from torch_halo.methods.densities import DENSITIES, kept_counts
from torch_halo.methods.gradual import cosine_fraction, cubic, drop_and_grow
from torch_halo.pruning import prune_
from torch_halo.selection import select_weights
from torch_halo.training.config import Config
from torch_halo.training.session import Session
from torch_halo.training.sparsifier import Sparsifier
from torch_halo.weights import gathered


@dataclass(frozen=True)
class GMP(Method):
    """Gradual magnitude pruning: the sparsity rises by a cubic, from one share of the training to another.

    Zhu & Gupta, "To prune, or not to prune: exploring the efficacy of pruning for model
    compression", 2017. Every so many steps the smallest weights go, over all layers, and stay out.
    """

    rise: float = 0.125
    end: float = 0.75
    every: int = 100

    kind: ClassVar[str] = "gmp"

    def __post_init__(self) -> None:
        number("rise", self.rise, at_least=0, below=1)
        number("end", self.end, at_least=self.rise, below=1)
        whole("every", self.every, at_least=1)

    def begin(self, network: nn.Module, data: DataSet, config: Config, before: State | None) -> Sparsifier:
        return _Rising(self, target_of(config))


class _Rising(Sparsifier):
    def __init__(self, method: GMP, sparsity: float) -> None:
        super().__init__()
        self._method, self._sparsity = method, sparsity

    def act(self, session: Session) -> bool:
        first, last = (round(share * session.total) for share in (self._method.rise, self._method.end))
        # Also at the end of the rise, so that the target is reached whatever `every` is.
        if first <= session.step <= last and ((session.step - first) % self._method.every == 0 or session.step == last):
            level = cubic(session.step, begin=first, end=last, final=self._sparsity)
            session.hold(prune_(session.module, level, select=session.config.shrinking.select))
        return False


@dataclass(frozen=True)
class RigL(Method):
    """Sparse from the start: the smallest weights are exchanged for those with the largest gradients.

    Evci et al., "Rigging the lottery: making all tickets winners", ICML 2020. Layers keep their
    number of weights, which is Erdős–Rényi-kernel or uniform with a whole first layer. A step of
    exchange has no other update; new weights start from zero, with a fresh optimizer's state.
    """

    fraction: float = 0.3
    every: int = 100
    end: float = 0.75
    density: Literal["erk", "uniform"] = "erk"

    kind: ClassVar[str] = "rigl"

    def __post_init__(self) -> None:
        number("fraction", self.fraction, at_least=0, below=1)
        number("end", self.end, at_least=0, below=1)
        whole("every", self.every, at_least=1)
        DENSITIES[self.density]

    def begin(self, network: nn.Module, data: DataSet, config: Config, before: State | None) -> Sparsifier:
        weights = select_weights(network, config.shrinking.select)
        counts = kept_counts({w.name: tuple(w.parameter.shape) for w in weights}, target_of(config), self.density)
        generator = torch.Generator().manual_seed(config.training.seed)
        masks = {w.name: _random_mask(tuple(w.parameter.shape), counts[w.name], generator) for w in weights}
        return _Exchanging(self, Masks(masks))


class _Exchanging(Sparsifier):
    def __init__(self, method: RigL, masks: Masks) -> None:
        super().__init__(masks)
        self._method = method

    def act(self, session: Session) -> bool:
        end = round(self._method.end * session.total)
        if session.step == 0 or session.step % self._method.every or session.step >= end:
            return False
        fraction, masks = cosine_fraction(session.step, end=end, start=self._method.fraction), session.masks
        assert masks is not None  # held since the beginning
        exchanged = {}
        for weight in select_weights(session.module, session.config.shrinking.select):
            parameter, mask = weight.parameter, gathered(masks[weight.name])
            assert parameter.grad is not None
            gradient = gathered(parameter.grad)
            if not bool(gradient.isfinite().all()):
                return False  # a loss scaler will skip this step
            exchanged[weight.name] = drop_and_grow(gathered(parameter), gradient, mask, fraction)
        session.hold(Masks(exchanged))
        return True


def _random_mask(shape: tuple[int, ...], kept: int, generator: torch.Generator) -> Tensor:
    mask = torch.zeros(math.prod(shape), dtype=torch.bool)
    mask[torch.randperm(len(mask), generator=generator)[:kept]] = True
    return mask.view(shape)
