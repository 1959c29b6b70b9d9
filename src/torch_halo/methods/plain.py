"""Methods that are a training and then one threshold: without a penalty, with one, or steered to a sparsity."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch_halo.methods.base import Method
from torch_halo.penalties import HALO, Penalty
from torch_halo.training.config import Config


@dataclass(frozen=True)
class Dense(Method):
    """Plain training: the baseline."""

    kind: ClassVar[str] = "dense"
    has_target: ClassVar[bool] = False

    def config(self, setup: Config, sparsity: float) -> Config:
        return setup


@dataclass(frozen=True)
class Penalised(Method):
    """Training with a penalty: L1, MCP, SCAD, SWS, HALO."""

    penalty: Penalty
    coefficient_weight_decay: float | None = None  # λ's; the set-up's if None

    kind: ClassVar[str] = "penalised"
    has_target: ClassVar[bool] = False

    def config(self, setup: Config, sparsity: float) -> Config:
        shrinking, decay = setup.shrinking, self.coefficient_weight_decay
        if decay is not None:
            shrinking = replace(shrinking, coefficient_weight_decay=decay)
        return replace(setup, penalty=self.penalty, shrinking=shrinking)


@dataclass(frozen=True)
class Steered(Method):
    """A penalty whose strength is steered towards the target sparsity: HALO, solved by profile, unless another."""

    penalty: Penalty = field(default_factory=HALO)

    kind: ClassVar[str] = "halo-target"

    def config(self, setup: Config, sparsity: float) -> Config:
        shrinking = replace(setup.shrinking, target_sparsity=sparsity)
        return replace(setup, penalty=self.penalty, shrinking=shrinking)
