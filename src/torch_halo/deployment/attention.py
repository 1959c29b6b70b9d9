"""Attention whose projections are layers of their own, so that each can have its own engine."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_halo.deployment.regions import is_plain, replace_module


class Attention(nn.Module):
    """What `nn.MultiheadAttention` computes in evaluation, called as it is.

    torch's reads its weights itself, in one kernel for all of it; this one calls four linear layers.
    """

    # By these nn.TransformerEncoderLayer knows that it cannot take its fast path, which would read weights.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.heads, self.batch_first = attention.num_heads, attention.batch_first
        if attention.in_proj_weight is not None:
            weights = attention.in_proj_weight.chunk(3)
        else:
            weights = (attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight)
        biases = (None,) * 3 if attention.in_proj_bias is None else attention.in_proj_bias.chunk(3)
        self.q_proj, self.k_proj, self.v_proj = map(_linear, weights, biases)
        self.out_proj = _linear(attention.out_proj.weight, attention.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As `nn.MultiheadAttention`'s; `is_causal` is a hint that needs the mask beside it, as there."""
        if is_causal and attn_mask is None:
            raise RuntimeError("is_causal is a hint about attn_mask, which is missing")
        is_batched = query.ndim == 3
        if not is_batched:
            query, key, value = (x.unsqueeze(0 if self.batch_first else 1) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = self._split(self.q_proj(query)), self._split(self.k_proj(key)), self._split(self.v_proj(value))
        mask = self._mask(q, k, attn_mask, key_padding_mask)
        weights = None
        if need_weights:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            weights = (scores if mask is None else scores + mask).softmax(-1)
            found = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if is_batched else weights.squeeze(0)
        else:
            found = F.scaled_dot_product_attention(q, k, v, mask)
        found = self.out_proj(found.transpose(1, 2).flatten(2))
        if not self.batch_first:
            found = found.transpose(0, 1)
        return found if is_batched else found.squeeze(0 if self.batch_first else 1), weights

    def _split(self, x: Tensor) -> Tensor:
        """(batch, length, width) to (batch, heads, length, width of one)."""
        found: Tensor = x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return found

    def _mask(self, q: Tensor, k: Tensor, attn_mask: Tensor | None, padding: Tensor | None) -> Tensor | None:
        """Both masks as one that is added to the scores."""
        found = None
        if attn_mask is not None:
            found = _added(attn_mask, q.dtype)
            found = found.unflatten(0, (len(q), self.heads)) if found.ndim == 3 else found
        if padding is not None:
            hidden = _added(padding, q.dtype)[:, None, None]
            found = hidden if found is None else found + hidden
        return None if found is None else found.expand(len(q), self.heads, q.shape[2], k.shape[2])


def can_split(attention: Any) -> bool:
    """Whether `Attention` computes all that this one does."""
    return attention.bias_k is None and attention.bias_v is None and not attention.add_zero_attn


def split_attention(model: nn.Module) -> nn.Module:
    """The model with every attention in four layers, in place; the fast paths that read weights are closed."""
    for name, module in list(model.named_modules()):
        if is_plain(module, (nn.MultiheadAttention,)) and can_split(module):
            model = replace_module(model, name, Attention(module).eval())
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
    return model


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype == torch.bool:  # True: not to be looked at
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -math.inf)
    return mask.to(dtype)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    found: nn.Linear = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0], bias=bias is not None)
    found.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    if bias is not None:
        found.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
    return found
