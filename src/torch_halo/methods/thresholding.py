"""Methods that learn thresholds: the forward pass sees thresholded weights, the optimizer the weights themselves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

from torch_halo.checks import number
from torch_halo.data import DataSet
from torch_halo.methods.base import Method, State, rounded
from torch_halo.methods.thresholds import masked_by_threshold, soft_threshold_by
from torch_halo.selection import select_weights
from torch_halo.training.config import Config
from torch_halo.training.sparsifier import Sparsifier
from torch_halo.weights import Weight

Rule: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # from a weight and its threshold to what the forward pass sees
First: TypeAlias = Callable[[Weight], Tensor]  # the threshold at the beginning
FEWEST = 0.01  # of a layer's weights; with no more, DST starts its thresholds again


@dataclass(frozen=True)
class DST(Method):
    """A threshold for each output channel, learned through an estimate of the step's derivative.

    Liu et al., "Dynamic sparse training: find efficient sparse network from scratch with trainable
    masked layers", ICLR 2020. `alpha` weighs Σ exp(−t), which pushes thresholds up.
    """

    alpha: float = 5e-4

    kind: ClassVar[str] = "dst"
    has_target: ClassVar[bool] = False

    def __post_init__(self) -> None:
        number("alpha", self.alpha, at_least=0)

    def begin(self, network: nn.Module, data: DataSet, config: Config, before: State | None) -> Sparsifier:
        return _Stepped(_layers(network, config, masked_by_threshold, _zero_by_channel, FEWEST), self.alpha)

    def shortened(self, share: float) -> Method:
        return replace(self, alpha=rounded(self.alpha / share))


@dataclass(frozen=True)
class STR(Method):
    """Soft thresholds σ(s), one s a layer, driven by the gradient and by weight decay on s.

    Kusupati et al., "Soft threshold weight reparameterization for learnable sparsity", ICML 2020.
    `decay` is s's own weight decay, as in its authors' code; the weights' if None. Where it and the
    loss balance is where s ends, wherever it began: it is what sets the sparsity.
    """

    initial: float = -100.0
    decay: float | None = None

    kind: ClassVar[str] = "str"
    has_target: ClassVar[bool] = False

    def __post_init__(self) -> None:
        number("initial", self.initial)
        if self.decay is not None:
            number("decay", self.decay, at_least=0)

    def begin(self, network: nn.Module, data: DataSet, config: Config, before: State | None) -> Sparsifier:
        layers = _layers(network, config, soft_threshold_by, lambda w: w.parameter.new_tensor(self.initial))
        own, all_others = self.decay, config.optimizer.weight_decay
        return _Decayed(layers, 0.0 if own is None else own - all_others)


class _Layer:
    """A layer whose weight passes through a threshold on its way into the forward pass.

    Its parameter keeps its name and its place: in the forward pass only, an attribute of the same
    name stands in front of it.
    """

    def __init__(self, module: nn.Module, rule: Rule, threshold: Tensor, fewest: float) -> None:
        self.module, self.rule, self.is_plain, self._fewest = module, rule, False, fewest
        module.register_parameter("threshold", nn.Parameter(threshold))
        self._hooks = [
            module.register_forward_pre_hook(self._put),
            module.register_forward_hook(self._take, always_call=True),
        ]

    @property
    def weight(self) -> Tensor:
        """The parameter."""
        found = self.module._parameters["weight"]
        assert found is not None
        return found

    @property
    def threshold(self) -> Tensor:
        """What is learned beside it."""
        found = self.module._parameters["threshold"]
        assert found is not None
        return found

    def effective(self) -> Tensor:
        """The weight as the forward pass sees it."""
        return self.rule(self.weight, self.threshold)

    def remove(self) -> None:
        """Leave a plain layer."""
        for hook in self._hooks:
            hook.remove()
        del self.module._parameters["threshold"]

    def _put(self, module: nn.Module, inputs: Any) -> None:
        if not self.is_plain:
            self.revive()
            module.__dict__["weight"] = self.effective()

    @torch.no_grad()
    def revive(self) -> None:
        """Start the thresholds again where they leave almost nothing, if the method does so."""
        if self._fewest:
            kept = self.effective().count_nonzero() / self.weight.numel()
            self.threshold.masked_fill_(kept <= self._fewest, 0.0)

    def _take(self, module: nn.Module, inputs: Any, output: Any) -> None:
        module.__dict__.pop("weight", None)


class _Thresholded(Sparsifier):
    def __init__(self, layers: list[_Layer]) -> None:
        super().__init__()
        self._layers = layers

    @contextmanager
    def plain(self) -> Iterator[None]:
        before = [layer.weight.detach().clone() for layer in self._layers]
        self._bake()
        try:
            yield
        finally:
            with torch.no_grad():
                for layer, weight in zip(self._layers, before, strict=True):
                    layer.weight.copy_(weight)
                    layer.is_plain = False

    def hand_back(self) -> None:
        self._bake()
        for layer in self._layers:
            layer.remove()

    @torch.no_grad()
    def _bake(self) -> None:
        for layer in self._layers:
            layer.revive()
            layer.weight.copy_(layer.effective())
            layer.is_plain = True


class _Stepped(_Thresholded):
    def __init__(self, layers: list[_Layer], alpha: float) -> None:
        super().__init__(layers)
        self._alpha = alpha

    def loss(self) -> Tensor:
        return self._alpha * torch.stack([layer.threshold.neg().exp().sum() for layer in self._layers]).sum()


class _Decayed(_Thresholded):
    """Thresholds decay by so much more than all other parameters do."""

    def __init__(self, layers: list[_Layer], more: float) -> None:
        super().__init__(layers)
        self._more = more

    def loss(self) -> Tensor:
        return self._more / 2 * torch.stack([layer.threshold.square() for layer in self._layers]).sum()


def _layers(network: nn.Module, config: Config, rule: Rule, first: First, fewest: float = 0.0) -> list[_Layer]:
    if config.compute.strategy == "fsdp":
        raise ValueError("learned thresholds need whole layers; use --strategy ddp or one process, not fsdp")
    found = []
    for weight in select_weights(network, config.shrinking.select):
        path, _, own = weight.name.rpartition(".")
        if own != "weight":
            raise ValueError(f"learned thresholds are for convolutions and linear layers, not for {weight.name}")
        found.append(_Layer(network.get_submodule(path), rule, first(weight), fewest))
    return found


def _zero_by_channel(weight: Weight) -> Tensor:
    """A zero for each output channel, shaped to meet the weight."""
    shape = [n if axis == weight.axes.out else 1 for axis, n in enumerate(weight.parameter.shape)]
    return weight.parameter.detach().new_zeros(shape)
