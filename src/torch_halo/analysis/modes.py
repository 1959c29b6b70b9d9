"""Networks that are looked at in evaluation mode."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def looked_at(model: nn.Module) -> Iterator[None]:
    """In evaluation mode, without gradients; afterwards each part is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
