"""Batch norm folded into the layer before it."""

from typing import Any

import torch
from torch import fx, nn

from torch_halo.deployment.kinds import BATCH_NORMS, CONVOLUTIONS, BatchNorm, batch_norm_line
from torch_halo.deployment.regions import find_regions, is_plain, replace_module


def fold_batch_norm(model: nn.Module, inputs: tuple[Any, ...]) -> int:
    """Fold, in place, each batch norm that follows a convolution or linear layer and nothing else; returns how many.

    Zeros stay zero, since a row is scaled as a whole.
    """
    count = 0
    for region in find_regions(model, inputs).found:
        modules = dict(region.graph.named_modules())
        uses = [str(node.target) for node in region.graph.graph.nodes if node.op == "call_module"]
        for node in region.graph.graph.nodes:
            source: Any = node.args[0] if node.args else None
            if not _is_pair(source, node, modules) or {uses.count(str(n.target)) for n in (source, node)} != {1}:
                continue
            _fold(modules[str(source.target)], modules[str(node.target)])
            replace_module(model, ".".join(filter(None, [region.name, str(node.target)])), nn.Identity())
            count += 1
    return count


def _is_pair(source: Any, node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if not isinstance(source, fx.Node) or node.op != "call_module" or source.op != "call_module":
        return False
    layer, norm = modules[str(source.target)], modules[str(node.target)]
    if not is_plain(norm, BATCH_NORMS) or norm.running_mean is None or len(source.users) != 1:
        return False
    is_matrix = is_plain(layer, (nn.Linear,)) and len(source.meta["tensor_meta"].shape) == 2
    return is_matrix or is_plain(layer, CONVOLUTIONS)


@torch.no_grad()
def _fold(layer: Any, norm: BatchNorm) -> None:
    scale, shift = batch_norm_line(norm)
    dtype = layer.weight.dtype
    before = 0.0 if layer.bias is None else layer.bias.double()
    weight = layer.weight.double() * scale.reshape(-1, *[1] * (layer.weight.ndim - 1))
    layer.bias = nn.Parameter((before * scale + shift).to(dtype))
    layer.weight = nn.Parameter(weight.to(dtype))
