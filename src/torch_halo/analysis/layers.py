"""Sparsity by layer, in the order of the layers, and where images become smaller."""

from dataclasses import dataclass

from torch import nn

from torch_halo.figures import LayerSparsity, sparsity
from torch_halo.selection import Select
from torch_halo.weights import unwrapped

_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_ADAPTIVE = (
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Layer:
    """A layer's figures, and whether pooling or a stride makes its images smaller than those before."""

    figures: LayerSparsity
    is_smaller: bool


def layers(model: nn.Module, *, select: Select = None) -> list[Layer]:
    """Sparsity by layer, in the order in which the model has them.

    Pooling and strides are seen where they are modules; what a forward does by functions is not. A
    strided shortcut beside a strided layer counts once.
    """
    figures = {layer.name: layer for layer in sparsity(model, select=select).layers}
    found, is_smaller, block = [], False, "-"
    for name, module in unwrapped(model).named_modules():
        parent = name.rpartition(".")[0]
        if _shrinks(module) and not parent.startswith(f"{block}."):
            is_smaller = True
            block = parent if isinstance(module, _CONVOLUTIONS) else "-"
        for own, _ in module.named_parameters(recurse=False):
            layer = figures.get(f"{name}.{own}".lstrip("."))
            if layer is not None:
                found.append(Layer(layer, is_smaller))
                is_smaller = False
    return found


def _shrinks(module: nn.Module) -> bool:
    """Whether images become smaller by a stride, or as small as was asked for."""
    if isinstance(module, (*_POOLS, *_CONVOLUTIONS)):
        stride = module.stride if isinstance(module.stride, tuple) else (module.stride,)
        return any(step > 1 for step in stride)
    return isinstance(module, _ADAPTIVE)
