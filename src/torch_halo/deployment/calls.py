"""One call of a model, watched."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

Look = Callable[[str, nn.Module, tuple[Any, ...], dict[str, Any]], None]  # a module's name, it, and what it is given


def watch_call(model: nn.Module, inputs: tuple[Any, ...], look: Look) -> None:
    """Call a model, on a copy of its inputs, and let `look` see each module as it is called."""
    hooks = [
        module.register_forward_pre_hook(partial(look, name), with_kwargs=True)
        for name, module in model.named_modules()
    ]
    try:
        with torch.no_grad():
            model(*copy.deepcopy(inputs))
    finally:
        for hook in hooks:
            hook.remove()
