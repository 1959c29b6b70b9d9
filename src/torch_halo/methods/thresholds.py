"""Thresholds that are learned with the weights: DST's step and STR's soft threshold."""

from typing import Any

import torch
from torch import Tensor


class Step(torch.autograd.Function):
    """1 where x > 0, else 0, with DST's derivative in its stead.

    Liu et al., "Dynamic sparse training: find efficient sparse network from scratch with trainable
    masked layers", ICLR 2020: 2 − 4|x| for |x| ≤ 0.4, 0.4 up to |x| = 1, then 0.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The step."""
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """The estimate of its derivative."""
        (x,) = ctx.saved_tensors
        a = x.abs()
        slope = torch.where(a <= 0.4, 2 - 4 * a, torch.where(a <= 1, 0.4, 0.0))
        return grad * slope


def masked_by_threshold(weight: Tensor, threshold: Tensor) -> Tensor:
    """w where |w| exceeds the threshold, which is shaped to meet it, else 0; differentiable in both, as in DST."""
    mask: Tensor = Step.apply(weight.abs() - threshold)  # type: ignore[no-untyped-call]
    return weight * mask


def soft_threshold_by(weight: Tensor, s: Tensor) -> Tensor:
    """sign(w)·max(|w| − σ(s), 0), one s a layer.

    Kusupati et al., "Soft threshold weight reparameterization for learnable sparsity", ICML 2020.
    """
    return weight.sign() * torch.relu(weight.abs() - torch.sigmoid(s))
