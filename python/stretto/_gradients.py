"""Formulas of gradients, of the tensors of one rank."""

from __future__ import annotations

import torch
from torch import Tensor


def _rows(x: Tensor) -> Tensor:
    return x.flatten(0, -2)


def weight_gradient(a, grad, b):
    """a^T @ grad, in memory as `b` is."""
    a, grad = _rows(a), _rows(grad)
    return (grad.t() @ a).t() if b.t().is_contiguous() else a.t() @ grad


def empty_like_weight(b):
    """As weight_gradient lies in memory."""
    turned = b.t()
    return turned.new_empty(turned.shape).t() if turned.is_contiguous() else b.new_empty(b.shape)


def rms_norm_gradients(x: Tensor, weight: Tensor, eps: float, grad: Tensor):
    """Of `x` and of `weight`, where `grad` is that of x / rms(x) * weight; computed in float32, of
    float64 in float64."""
    wide = torch.promote_types(x.dtype, torch.float32)
    v, g = x.to(wide), grad.to(wide)
    inverse = torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
    normed, of_normed = v * inverse, g * weight.to(wide)
    along = (of_normed * normed).mean(-1, keepdim=True)
    grad_weight = (g * normed).reshape(-1, x.shape[-1]).sum(0)
    return (inverse * (of_normed - normed * along)).to(x.dtype), grad_weight.to(weight.dtype)
