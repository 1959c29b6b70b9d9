"""Eigenvalues of the covariance of each layer's outputs: whether sparse layers have low rank (the paper: yes)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torch_halo.analysis.modes import looked_at
from torch_halo.analysis.ranks import Array
from torch_halo.selection import Select, select_weights
from torch_halo.weights import unwrapped

Positions = Literal["all", "one"]
_CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)


@dataclass(frozen=True)
class LayerSpectrum:
    """A layer's outputs: how many features, over how many samples, and the covariance's eigenvalues, largest first."""

    name: str
    features: int
    samples: int
    eigenvalues: Array

    @property
    def cumulative(self) -> Array:
        """The share of the variance that the first n directions have."""
        total = self.eigenvalues.sum()
        return self.eigenvalues.cumsum() / total if total else self.eigenvalues.cumsum() + 1

    @property
    def effective_rank(self) -> float:
        """exp of the entropy of the eigenvalues' shares: as many equal directions would be as spread out."""
        shares = torch.from_numpy(self.eigenvalues[self.eigenvalues > 0])
        shares = shares / shares.sum()
        return float((-(shares * shares.log()).sum()).exp()) if len(shares) else 0.0

    @property
    def note(self) -> str:
        """What is to be minded, if anything."""
        if self.samples >= self.features:
            return ""
        return f"{self.samples} samples for {self.features} features: at most {self.samples - 1} directions can be seen"


def spectrum(
    model: nn.Module,
    batches: Iterable[Tensor],
    *,
    positions: Positions = "all",
    seed: int = 0,
    select: Select = None,
) -> list[LayerSpectrum]:
    """The spectra of the outputs of the layers whose weights are selected, over batches of inputs.

    A convolution's features are its channels, and each pixel is a sample; with `positions="one"` one
    pixel of each image is, at random, as in the authors' code. Nothing but one matrix a layer is kept.
    What is not called as a module of its own (attention's projections) is left out.
    """
    if positions not in ("all", "one"):
        raise ValueError(f"positions must be all or one; received {positions!r}")
    model = unwrapped(model)
    names = [weight.name.rpartition(".")[0] for weight in select_weights(model, select, frozen=True)]
    sums: dict[str, _Moments] = {}
    generator = torch.Generator().manual_seed(seed)

    def look(name: str, module: nn.Module, output: Any) -> None:
        if isinstance(output, Tensor):
            samples = _as_samples(output.detach(), module, positions, generator)
            sums.setdefault(name, _Moments(samples.shape[1], samples.device)).add(samples)

    hooks = [
        module.register_forward_hook(lambda module, args, output, name=name: look(name, module, output))
        for name, module in model.named_modules()
        if name in names
    ]
    try:
        with looked_at(model):
            for batch in batches:
                model(batch)
    finally:
        for hook in hooks:
            hook.remove()
    if not sums:
        raise ValueError("no layer was called: the batches are empty")
    return [sums[name].spectrum(name) for name in dict.fromkeys(names) if name in sums]


class _Moments:
    """Mean and scatter of samples, batch by batch: each is centred on its own mean, so that nothing is lost."""

    def __init__(self, features: int, device: torch.device) -> None:
        # In double precision where there is such a thing.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self.count = 0
        self.mean = torch.zeros(features, dtype=dtype, device=device)
        self.scatter = torch.zeros(features, features, dtype=dtype, device=device)

    def add(self, samples: Tensor) -> None:
        count = len(samples)
        if not count:
            return
        mean = samples.mean(0, dtype=self.mean.dtype)
        centred = samples - mean.to(samples.dtype)
        apart, total = mean - self.mean, self.count + count
        self.scatter += (centred.T @ centred).to(self.scatter.dtype)
        self.scatter.addr_(apart, apart, alpha=self.count * count / total)
        self.mean += apart * (count / total)
        self.count = total

    def spectrum(self, name: str) -> LayerSpectrum:
        if not bool(self.scatter.isfinite().all()):
            raise ValueError(f"the outputs of {name or 'the model'} are not finite")
        values = torch.linalg.eigvalsh(self.scatter / max(self.count - 1, 1)).flip(0).clamp_min(0)
        return LayerSpectrum(name, len(values), self.count, values.cpu().numpy())


def _as_samples(output: Tensor, module: nn.Module, positions: Positions, generator: torch.Generator) -> Tensor:
    """Outputs as (samples, features), in float32."""
    if isinstance(module, _CONVOLUTIONS):
        output = output.unsqueeze(0) if output.ndim == module.weight.ndim - 1 else output
        output = output.flatten(2).transpose(1, 2)  # images, pixels, channels
        if positions == "one":
            pixel = torch.randint(output.shape[1], (len(output),), generator=generator)
            output = output[torch.arange(len(output)), pixel.to(output.device)]
    return output.reshape(-1, output.shape[-1]).float()
