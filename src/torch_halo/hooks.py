"""Acting inside `optimizer.step()`, whichever way it is called."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torch_halo.weights import Weight

Hook = Callable[[Optimizer], None]


def before_update(optimizer: Optimizer, act: Hook) -> RemovableHandle:
    """Run `act` once in each step, when the gradients are there and before they are used.

    With a closure (Lightning passes one) the gradients come to be inside the step: then `act` runs
    right after it.
    """

    def hook(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.get("closure") is not None:
            return args, {**kwargs, "closure": _followed(kwargs["closure"], optimizer, act)}
        if len(args) > 1 and args[1] is not None:  # args[0] is the optimizer
            return (args[0], _followed(args[1], optimizer, act), *args[2:]), kwargs
        act(optimizer)
        return None

    return optimizer.register_step_pre_hook(hook)


def after_update(optimizer: Optimizer, act: Hook) -> RemovableHandle:
    """Run `act` at the end of each step."""
    return optimizer.register_step_post_hook(lambda optimizer, args, kwargs: act(optimizer))


def _followed(closure: Callable[[], Any], optimizer: Optimizer, act: Hook) -> Callable[[], Any]:
    calls = 0

    def wrapped() -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise RuntimeError(
                f"{type(optimizer).__name__} evaluates its closure more than once in a step; "
                "shrinkage needs an optimizer with one gradient a step"
            )
        loss = closure()
        act(optimizer)
        return loss

    return wrapped


def base_optimizer(optimizer: object) -> Optimizer:
    """The torch optimizer inside Accelerate's or Lightning's wrapper."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer; received {type(optimizer).__name__}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("LBFGS evaluates the loss many times a step, which shrinkage and masks cannot follow")
    return optimizer


def check_held(optimizer: Optimizer, weights: Iterable[Weight]) -> None:
    """Raise unless `optimizer` holds every one of the weights."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [weight.name for weight in weights if id(weight.parameter) not in held]
    if missing:
        raise ValueError(
            f"the optimizer does not hold {', '.join(missing)}; pass the optimizer that trains them, "
            "or leave them out with select"
        )


def gradient(weight: Weight) -> Tensor | None:
    """The weight's gradient, which must be dense."""
    grad = weight.parameter.grad
    if grad is not None and grad.layout is not torch.strided:
        raise ValueError(f"{weight.name} has a gradient of layout {grad.layout}; only dense ones are supported")
    return grad
