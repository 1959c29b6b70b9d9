"""How far an optimizer goes along a lasting gradient: the step of a proximal map that ends where it should.

A proximal map after each step must count as much as the steps do. If the gradient g stays, SGD with
momentum μ goes lr·g/(1 − μ) a step, so that w − τg, τ = lr/(1 − μ), then the map with step τ, stands
still just where ∂loss + ∂Ω contains 0. Adam divides by √v̂ + ε, coordinate by coordinate.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop

from torch_halo.weights import local

Size: TypeAlias = float | Tensor
Group: TypeAlias = Mapping[str, Any]


def step_size(optimizer: Optimizer, group: Group, parameter: Tensor) -> Size:
    """The step for a parameter's part on this process, after the optimizer's own."""
    return _rule(optimizer)(group, optimizer.state.get(parameter, {}))


def check_optimizer(optimizer: Optimizer) -> None:
    """Raise unless the optimizer's step size is known."""
    _rule(optimizer)


def _rule(optimizer: Optimizer) -> Callable[[Group, Mapping[str, Any]], Size]:
    for kind, rule in _RULES.items():
        if isinstance(optimizer, kind):
            return rule
    names = ", ".join(kind.__name__ for kind in _RULES)
    raise ValueError(f"a proximal penalty needs one of the optimizers {names}; received {type(optimizer).__name__}")


def _sgd(group: Group, state: Mapping[str, Any]) -> float:
    lr, momentum = float(group["lr"]), float(group["momentum"])
    return lr * (1 - float(group["dampening"])) / (1 - momentum) if momentum else lr


def _adam(group: Group, state: Mapping[str, Any]) -> Size:
    key = "max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"
    if key not in state:  # it has not moved yet
        return 0.0
    correction = 1 - float(group["betas"][1]) ** float(state["step"])
    size: Tensor = float(group["lr"]) / ((local(state[key]) / correction).sqrt() + group["eps"])
    return size


def _rmsprop(group: Group, state: Mapping[str, Any]) -> Size:
    if "square_avg" not in state:
        return 0.0
    square = local(state["square_avg"])
    if group["centered"]:
        square = (square - local(state["grad_avg"]).square()).clamp(min=0)
    size: Tensor = float(group["lr"]) / (1 - float(group["momentum"])) / (square.sqrt() + group["eps"])
    return size


def _adagrad(group: Group, state: Mapping[str, Any]) -> Size:
    lr = float(group["lr"]) / (1 + (float(state["step"]) - 1) * float(group["lr_decay"]))
    size: Tensor = lr / (local(state["sum"]).sqrt() + group["eps"])
    return size


# In this order: AdamW is an Adam in some versions of torch.
_RULES: dict[type[Optimizer], Callable[[Group, Mapping[str, Any]], Size]] = {
    SGD: _sgd,
    AdamW: _adam,
    Adam: _adam,
    NAdam: _adam,
    RMSprop: _rmsprop,
    Adagrad: _adagrad,
}
