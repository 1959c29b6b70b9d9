"""The layers whose channels can be followed, and what each does to a channel."""

import torch
from torch import Tensor, nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
LAYERS = (nn.Linear, *CONVOLUTIONS)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
Layer = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def is_padded(layer: Layer) -> bool:
    """Whether zeros stand around what a layer reads, so that a constant is none at the edges."""
    if isinstance(layer, nn.Linear):
        return False
    return layer.padding == "same" or (layer.padding != "valid" and any(layer.padding))


def batch_norm_line(module: BatchNorm) -> tuple[Tensor, Tensor]:
    """What batch norm is in evaluation: scale·x + shift, by channel."""
    weight, bias = (None if x is None else x.detach() for x in (module.weight, module.bias))
    assert module.running_mean is not None
    assert module.running_var is not None
    weight = torch.ones_like(module.running_mean) if weight is None else weight
    bias = torch.zeros_like(module.running_mean) if bias is None else bias
    scale = weight.double() / (module.running_var.double() + module.eps).sqrt()
    return scale, bias.double() - module.running_mean.double() * scale
