"""A loss that is not finite: where it began."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from torch_halo.weights import local


@torch.no_grad()
def first_fault(module: nn.Module, forward: Callable[[Tensor], object], inputs: Tensor) -> str:
    """The first layer with weights or outputs that are not finite, in words."""
    found: list[str] = []
    handles = [
        layer.register_forward_hook(_looker(name, found))
        for name, layer in module.named_modules()
        if not list(layer.children())
    ]
    try:
        forward(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else "every layer's output is finite, only the loss is not"


def _not_finite(module: nn.Module) -> list[str]:
    return [name for name, p in module.named_parameters() if not bool(local(p.detach()).isfinite().all())]


def _looker(name: str, found: list[str]) -> Callable[[nn.Module, object, object], None]:
    def look(layer: nn.Module, inputs: object, output: object) -> None:
        if found:
            return
        if bad := _not_finite(layer):
            found.append(f"layer {name} ({type(layer).__name__}): its {bad[0]} is not finite")
        elif isinstance(output, Tensor) and not bool(output.isfinite().all()):
            found.append(f"layer {name} ({type(layer).__name__}): its output is not finite")

    return look
