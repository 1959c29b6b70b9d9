"""What a method is: a way from an initial network to a sparse one."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from torch import Tensor, nn

from torch_halo.checks import number
from torch_halo.data import DataSet
from torch_halo.training.config import Config
from torch_halo.training.sparsifier import Sparsifier

State = Mapping[str, Tensor]  # a network's state dict


@dataclass(frozen=True)
class Method:
    """A way from an initial network to a sparse one; its fields are its settings.

    A method turns a training's settings into a run's (`config`), which is all that the run depends
    on, and acts on the network while it trains (`begin`). What it leaves is cut to the target by
    one threshold, unless it has as many zeros already.
    """

    kind: ClassVar[str]
    # Whether it must know its target from the start, so that each target is a training of its own.
    has_target: ClassVar[bool] = True

    def config(self, setup: Config, sparsity: float) -> Config:
        """The settings of a run towards a sparsity, from those of a plain training."""
        target = {"sparsity": number("sparsity", sparsity, at_least=0, below=1)} if self.has_target else {}
        return replace(setup, method={"kind": self.kind, **target, **asdict(self)})

    def shortened(self, share: float) -> "Method":
        """The same way in a training of a share of the length.

        What works by strength times steps is so much stronger there; schedules in shares of the
        training stay as they are.
        """
        return self

    def before(self, config: Config) -> Config | None:
        """The run that must be finished before this one, if any."""
        return None

    def begin(self, network: nn.Module, data: DataSet, config: Config, before: State | None) -> Sparsifier:
        """Go to work on an initial network; `before` are the weights of the run before this one."""
        return Sparsifier()

    def total_epochs(self, config: Config) -> int:
        """Epochs trained to get there, those of the runs before included."""
        return config.training.epochs


def rounded(setting: float) -> float:
    """To three digits: settings are read by people, and name runs."""
    return float(f"{setting:.3g}")


def target_of(config: Config) -> float:
    """The sparsity that a run trains towards."""
    target = config.shrinking.target_sparsity if config.method is None else config.method["sparsity"]
    assert target is not None
    return float(target)


def without_method(config: Config) -> Config:
    """The plain training, or one with a penalty but towards no target."""
    return replace(config, method=None, shrinking=replace(config.shrinking, target_sparsity=None))
