"""Methods that are a training and then one threshold: without a penalty, with one, or steered to a sparsity."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

from torch_halo.methods.base import Method, rounded
from torch_halo.penalties import HALO, InversePower, Penalty
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

    def shortened(self, share: float) -> Method:
        """Ω is so much larger, and λ so much faster: weights and λ then go the same way in fewer steps."""
        penalty, decay, factor = self.penalty, self.coefficient_weight_decay, 1 / share
        if isinstance(penalty, HALO) and not penalty.learned:
            assert isinstance(penalty.h, InversePower)
            return replace(self, penalty=_stronger(penalty, factor ** (1 + penalty.h.k / 2)))  # Ω ∝ ξ^(2/(k+2))
        return Penalised(_stronger(penalty, factor), None if decay is None else rounded(decay * factor))


def _stronger(penalty: Penalty, factor: float) -> Penalty:
    grown = dict.fromkeys(("xi", "psi"), factor) | {"gamma": 1 / factor, "a": 1 / factor}  # knots stay put
    fields = {name: rounded(getattr(penalty, name) * by) for name, by in grown.items() if hasattr(penalty, name)}
    if "a" in fields:
        fields["a"] = max(fields["a"], 2.01)  # SCAD's must be above 2
    found: Penalty = replace(cast(Any, penalty), **fields)  # every penalty is a dataclass
    return found


@dataclass(frozen=True)
class Steered(Method):
    """A penalty whose strength is steered towards the target sparsity: HALO, solved by profile, unless another."""

    penalty: Penalty = field(default_factory=HALO)

    kind: ClassVar[str] = "halo-target"

    def config(self, setup: Config, sparsity: float) -> Config:
        shrinking = replace(setup.shrinking, target_sparsity=sparsity)
        return replace(setup, penalty=self.penalty, shrinking=shrinking)
