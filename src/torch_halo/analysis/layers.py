"""Sparsity by layer, in the order of the layers, and where images become smaller."""

from dataclasses import dataclass

from torch import nn

from torch_halo.figures import LayerSparsity, sparsity
from torch_halo.selection import Select

_POOLS = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Layer:
    """A layer's figures, and whether its outputs are smaller images than those of the layer before."""

    figures: LayerSparsity
    is_smaller: bool


def layers(model: nn.Module, *, select: Select = None) -> list[Layer]:
    """Sparsity by layer, in the order in which the model has them.

    Pooling and strides are seen where they are modules; what a forward does by functions is not.
    """
    figures = {layer.name: layer for layer in sparsity(model, select=select).layers}
    found, is_smaller = [], False
    for name, module in model.named_modules():
        is_smaller |= isinstance(module, _POOLS)
        is_smaller |= isinstance(module, _CONVOLUTIONS) and any(step > 1 for step in module.stride)
        for own, _ in module.named_parameters(recurse=False):
            layer = figures.get(f"{name}.{own}".lstrip("."))
            if layer is not None:
                found.append(Layer(layer, is_smaller))
                is_smaller = False
    return found
