"""The operators in torch.library, so that torch.compile traces through them and autograd knows
their gradients. Gradients are those of the sum of all ranks' losses: what a rank's input
contributes to other ranks' results counts."""

from __future__ import annotations

from typing import Optional, Tuple

import torch
from torch import Tensor

from . import ops
from ._world import current


def wants(*arrays) -> bool:
    """Whether a call must go through torch.library: it is being compiled, or a gradient is asked
    for."""
    if not isinstance(arrays[0], Tensor):
        return False
    if torch.compiler.is_compiling():
        return True
    if not torch.is_grad_enabled():
        return False
    for x in arrays:
        if isinstance(x, Tensor) and x.requires_grad:
            return True
    return False


def _resized(shape, dim: int, *, times: int = 1, parts: int = 1, last: Optional[int] = None):
    size = list(shape)
    size[dim] = size[dim] * times // parts
    if last is not None:
        size[-1] = last
    return size


def _op(name: str):
    return torch.library.custom_op(f"stretto::{name}", mutates_args=())


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


@_op("all_gather")
def all_gather(x: Tensor, dim: int) -> Tensor:
    return ops.all_gather(x.detach(), dim=dim)


@all_gather.register_fake
def _(x, dim):
    return x.new_empty(_resized(x.shape, dim, times=current().size))


@_op("reduce_scatter")
def reduce_scatter(x: Tensor, dim: int, reduce_op: str) -> Tensor:
    return ops.reduce_scatter(x.detach(), dim=dim, reduce_op=reduce_op)


@reduce_scatter.register_fake
def _(x, dim, reduce_op):
    return x.new_empty(_resized(x.shape, dim, parts=current().size))


@_op("all_reduce")
def all_reduce(x: Tensor, reduce_op: str) -> Tensor:
    return ops.all_reduce(x.detach(), reduce_op=reduce_op)


@all_reduce.register_fake
def _(x, reduce_op):
    return x.new_empty(x.shape)


@_op("all_gather_matmul")
def all_gather_matmul(a: Tensor, b: Tensor, gather_dim: int) -> Tensor:
    return ops.all_gather_matmul(a.detach(), b.detach(), gather_dim=gather_dim)


@all_gather_matmul.register_fake
def _(a, b, gather_dim):
    return a.new_empty(_resized(a.shape, gather_dim, times=current().size, last=b.shape[1]))


@_op("matmul_reduce_scatter")
def matmul_reduce_scatter(a: Tensor, b: Tensor, scatter_dim: int, reduce_op: str) -> Tensor:
    return ops.matmul_reduce_scatter(
        a.detach(), b.detach(), scatter_dim=scatter_dim, reduce_op=reduce_op
    )


@matmul_reduce_scatter.register_fake
def _(a, b, scatter_dim, reduce_op):
    return a.new_empty(_resized(a.shape, scatter_dim, parts=current().size, last=b.shape[1]))


@_op("matmul_all_reduce")
def matmul_all_reduce(a: Tensor, b: Tensor, replicated: bool) -> Tensor:
    """replicated: all ranks go on with the same result to the same loss, which counts once."""
    return ops.matmul_all_reduce(a.detach(), b.detach())


@matmul_all_reduce.register_fake
def _(a, b, replicated):
    return a.new_empty(tuple(a.shape[:-1]) + (b.shape[1],))


@_op("copy_to_ranks")
def copy_to_ranks(x: Tensor) -> Tensor:
    """The same value on every rank, each of which uses it its own way: gradients are summed over
    the ranks."""
    return x.clone()


@copy_to_ranks.register_fake
def _(x):
    return x.new_empty(x.shape)


@_op("all_reduce_add_rms_norm")
def all_reduce_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> Tuple[Tensor, Tensor]:
    return ops.all_reduce_add_rms_norm(x.detach(), residual.detach(), weight.detach(), eps=eps)


@all_reduce_add_rms_norm.register_fake
def _(x, residual, weight, eps):
    return x.new_empty(x.shape), x.new_empty(x.shape)


@_op("scaled_dot_product_attention")
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
    scale: Optional[float],
    enable_gqa: bool,
) -> Tensor:
    return ops.scaled_dot_product_attention(
        query.detach(),
        key.detach(),
        value.detach(),
        is_causal=is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
    )


@scaled_dot_product_attention.register_fake
def _(query, key, value, is_causal, scale, enable_gqa):
    return query.new_empty(query.shape)


def _scale(reduce_op: str) -> float:
    return 1.0 / current().size if reduce_op == "avg" else 1.0


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1.0 else x * factor


def _keep_dim(ctx, inputs, output):
    ctx.dim = inputs[1]


def _keep_dim_and_op(ctx, inputs, output):
    ctx.dim, ctx.reduce_op = inputs[1], inputs[2]


def _keep_op(ctx, inputs, output):
    ctx.reduce_op = inputs[1]


def _keep_factors(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.options = inputs[2:]


def _all_gather_matmul_backward(ctx, grad):
    a, b = ctx.saved_tensors
    (dim,) = ctx.options
    grad_a = grad_b = None
    if ctx.needs_input_grad[0]:
        grad_a = matmul_reduce_scatter(grad, b.t(), dim, "sum")
    if ctx.needs_input_grad[1]:
        grad_b = _rows(all_gather(a, dim)).t() @ _rows(grad)
    return grad_a, grad_b, None


def _matmul_reduce_scatter_backward(ctx, grad):
    a, b = ctx.saved_tensors
    dim, reduce_op = ctx.options
    grad = _scaled(grad, _scale(reduce_op))
    grad_a = grad_b = None
    if ctx.needs_input_grad[0]:
        grad_a = all_gather_matmul(grad, b.t(), dim)
    if ctx.needs_input_grad[1]:
        grad_b = _rows(a).t() @ _rows(all_gather(grad, dim))
    return grad_a, grad_b, None, None


def _matmul_all_reduce_backward(ctx, grad):
    a, b = ctx.saved_tensors
    (replicated,) = ctx.options
    if not replicated:
        grad = all_reduce(grad, "sum")
    return grad @ b.t(), _rows(a).t() @ _rows(grad), None


all_gather.register_autograd(
    lambda ctx, grad: (reduce_scatter(grad, ctx.dim, "sum"), None), setup_context=_keep_dim
)
reduce_scatter.register_autograd(
    lambda ctx, grad: (all_gather(_scaled(grad, _scale(ctx.reduce_op)), ctx.dim), None, None),
    setup_context=_keep_dim_and_op,
)
all_reduce.register_autograd(
    lambda ctx, grad: (all_reduce(grad, ctx.reduce_op), None), setup_context=_keep_op
)
copy_to_ranks.register_autograd(lambda ctx, grad: all_reduce(grad, "sum"))
all_gather_matmul.register_autograd(_all_gather_matmul_backward, setup_context=_keep_factors)
matmul_reduce_scatter.register_autograd(
    _matmul_reduce_scatter_backward, setup_context=_keep_factors
)
matmul_all_reduce.register_autograd(_matmul_all_reduce_backward, setup_context=_keep_factors)
