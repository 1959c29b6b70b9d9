"""Batch-norm statistics after pruning."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


@torch.no_grad()
def recalibrate_(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Estimate the batch norms' running statistics anew from `batches`, in place.

    Pruning changes what the layers put out, and the statistics gathered while training no longer
    fit. They become plain averages over the batches; everything else (dropout, weights) is as in
    evaluation. A batch is the model's input, a tuple or list that begins with it, or a mapping of
    keyword arguments. A model without batch norm is left as it is.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    if not norms:
        return model
    modes = [(module, module.training) for module in model.modules()]
    momenta = [norm.momentum for norm in norms]
    before = [{name: buffer.clone() for name, buffer in norm.named_buffers()} for norm in norms]
    batch_count, finished = 0, False
    try:
        model.eval()
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # an average over all batches
            norm.train()
        for batch in batches:
            _forward(model, batch)
            batch_count += 1
        if not batch_count:
            raise ValueError("recalibrate_ needs at least one batch; received none")
        finished = True
    finally:
        for norm, buffers in zip(norms, before, strict=True) if not finished else ():
            for name, buffer in norm.named_buffers():
                buffer.copy_(buffers[name])
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, training in modes:
            module.training = training
    return model


def _forward(model: nn.Module, batch: Any) -> None:
    if isinstance(batch, Mapping):
        model(**batch)
    elif isinstance(batch, Tensor):
        model(batch)
    elif isinstance(batch, (tuple, list)) and batch:
        model(batch[0])
    else:
        raise TypeError(f"a batch must be a tensor, a tuple or list, or a mapping; received {type(batch).__name__}")
