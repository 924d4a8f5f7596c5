"""The operators in torch.library, so that torch.compile traces through them and autograd knows
their gradients. Gradients are those of the sum of all ranks' losses: what a rank's input
contributes to other ranks' results counts. Every operator's last argument is the name of its group,
"" for all ranks: graphs of torch.compile keep names."""

from __future__ import annotations

from typing import Callable, Optional, Tuple

import torch
from torch import Tensor

from . import attention, collectives, matmul, ops
from ._world import group_of
from .errors import UserError


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


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


_library = torch.library.Library("stretto", "DEF")


def _define(schema: str, body: Callable, fake: Callable):
    """An operator of torch.library: `body` computes it, `fake` its result's shape."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=torch.Tag.pt2_compliant_tag)
    _library.impl(name, body, "CompositeExplicitAutograd")
    torch.library.register_fake(f"stretto::{name}", fake, lib=_library)
    return getattr(torch.ops.stretto, name).default


_PLAIN = (Tensor, torch.nn.Parameter)


def _go_on(op, keyset, inputs):
    """To whoever traces the call."""
    # pylint: disable=protected-access
    with torch._C._AutoDispatchBelowAutograd():
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *inputs)


def _register(op, body: Callable, with_gradient: Callable) -> None:
    """What autograd calls: with_gradient(keyset, inputs), the key set None where nobody traces, if
    a gradient is asked for. Ordinary tensors go to `body` at once."""
    num_tracing = torch._C._len_torch_dispatch_stack  # pylint: disable=protected-access

    def kernel(keyset, *inputs):
        traced, asked = num_tracing(), False
        for x in inputs:
            if isinstance(x, Tensor):
                traced = traced or type(x) not in _PLAIN
                asked = asked or x.requires_grad
        if asked and torch.is_grad_enabled():
            return with_gradient(keyset if traced else None, inputs)
        return _go_on(op, keyset, inputs) if traced else body(*inputs)

    _library.impl(op.name().partition("::")[2], kernel, "Autograd", with_keyset=True)


def _node(op, body: Callable, keep: Callable, backward: Callable) -> Callable:
    """`op` with its gradient, of (keyset, *inputs). `keep(ctx, inputs)` saves what `backward(ctx,
    grad)` needs."""

    class Node(torch.autograd.Function):  # pylint: disable=abstract-method
        @staticmethod
        def forward(ctx, keyset, *inputs):
            keep(ctx, inputs)
            return body(*inputs) if keyset is None else _go_on(op, keyset, inputs)

        @staticmethod
        def backward(ctx, grad):
            return None, *backward(ctx, grad)

    return Node.apply


class _GatherMatmul(torch.autograd.Function):  # pylint: disable=abstract-method
    """(gathered a, product). What the weights' gradient takes is gathered once, forward."""

    @staticmethod
    def forward(ctx, keyset, *inputs):
        # pylint: disable=arguments-differ
        if keyset is None:
            both = _all_gather_and_matmul(*inputs)
        else:
            both = _go_on(all_gather_and_matmul, keyset, inputs)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(both[0], inputs[1])
        ctx.options = inputs[2:]
        return both

    @staticmethod
    def backward(ctx, grad_gathered, grad):
        # pylint: disable=arguments-differ
        gathered, b = ctx.saved_tensors
        dim, group = ctx.options
        grad_a = grad_b = None
        if ctx.needs_input_grad[1]:  # behind the key set
            if grad is not None:
                grad_a = matmul_reduce_scatter(grad, b.t(), dim, "sum", group)
            if grad_gathered is not None:
                more = reduce_scatter(grad_gathered, dim, "sum", group)
                grad_a = more if grad_a is None else grad_a + more
        if ctx.needs_input_grad[2] and grad is not None:
            grad_b = _weight_gradient(gathered, grad, b)
        return None, grad_a, grad_b, None, None


def _differentiate(op, body: Callable, node: Callable) -> None:
    """Gives `op` the gradient that node(keyset, *inputs) has."""
    _register(op, body, lambda keyset, inputs: node(keyset, *inputs))


def _refuse_gradients(op, body: Callable, name: str) -> None:
    """For an operator that has none."""

    def refuse(keyset, inputs):
        raise UserError(
            f"{name}: has no gradient, and a tensor requires it; call it under torch.no_grad(), or "
            "on x.detach()"
        )

    _register(op, body, refuse)


def _all_gather(x, dim, group):
    return group_of(group).call(collectives._all_gather, dim, None, x)


def _reduce_scatter(x, dim, reduce_op, group):
    return ops.reduce_scatter(x.detach(), dim=dim, reduce_op=reduce_op, group=group)


def _all_reduce(x, reduce_op, group):
    if reduce_op == "sum":
        return group_of(group).call(collectives._all_reduce, 0, None, x)
    return ops.all_reduce(x.detach(), reduce_op=reduce_op, group=group)


def _all_gather_matmul(a, b, gather_dim, group):
    return group_of(group).call(matmul._all_gather_matmul, gather_dim, None, a, b)


def _all_gather_and_matmul(a, b, gather_dim, group):
    return group_of(group).call(matmul._all_gather_and_matmul, gather_dim, None, a, b)


def _matmul_reduce_scatter(a, b, scatter_dim, reduce_op, group):
    return ops.matmul_reduce_scatter(
        a.detach(), b.detach(), scatter_dim=scatter_dim, reduce_op=reduce_op, group=group
    )


def _matmul_all_reduce(a, b, replicated, group):
    return group_of(group).call(matmul._matmul_all_reduce, 0, None, a, b)


def _all_gather_scaled_matmul(a, b, scale_a, scale_b, gather_dim, out_dtype, group):
    op = matmul.scaled_op("all_gather_matmul", out_dtype)
    return group_of(group).call(op, gather_dim, None, a, b, scale_a, scale_b)


def _scaled_matmul_reduce_scatter(a, b, scale_a, scale_b, scatter_dim, reduce_op, out_dtype, group):
    return ops.matmul_reduce_scatter(
        a.detach(),
        b.detach(),
        scatter_dim=scatter_dim,
        reduce_op=reduce_op,
        scale_a=scale_a.detach(),
        scale_b=scale_b.detach(),
        out_dtype=out_dtype,
        group=group,
    )


def _scaled_matmul_all_reduce(a, b, scale_a, scale_b, out_dtype, group):
    op = matmul.scaled_op("matmul_all_reduce", out_dtype)
    return group_of(group).call(op, 0, None, a, b, scale_a, scale_b)


def _copy_to_ranks(x, group):
    return x.clone()


def _all_reduce_add_rms_norm(x, residual, weight, eps, group):
    arrays = x.detach(), residual.detach(), weight.detach()
    return ops.all_reduce_add_rms_norm(*arrays, eps=eps, group=group)


def _flash_decode(query, key_cache, value_cache, tokens, block, scale, group):
    arrays = query.detach(), key_cache.detach(), value_cache.detach()
    return attention.flash_decode(*arrays, tokens, block=block, scale=scale, group=group)


all_gather = _define(
    "all_gather(Tensor x, int dim, str group) -> Tensor",
    _all_gather,
    lambda x, dim, group: x.new_empty(_resized(x.shape, dim, times=group_of(group).size)),
)
reduce_scatter = _define(
    "reduce_scatter(Tensor x, int dim, str reduce_op, str group) -> Tensor",
    _reduce_scatter,
    lambda x, dim, _, group: x.new_empty(_resized(x.shape, dim, parts=group_of(group).size)),
)
all_reduce = _define(
    "all_reduce(Tensor x, str reduce_op, str group) -> Tensor",
    _all_reduce,
    lambda x, *_: x.new_empty(x.shape),
)
all_gather_matmul = _define(
    "all_gather_matmul(Tensor a, Tensor b, int gather_dim, str group) -> Tensor",
    _all_gather_matmul,
    lambda a, b, dim, group: a.new_empty(
        _resized(a.shape, dim, times=group_of(group).size, last=b.shape[1])
    ),
)
all_gather_and_matmul = _define(
    "all_gather_and_matmul(Tensor a, Tensor b, int gather_dim, str group) -> (Tensor, Tensor)",
    _all_gather_and_matmul,
    lambda a, b, dim, group: (
        a.new_empty(_resized(a.shape, dim, times=group_of(group).size)),
        a.new_empty(_resized(a.shape, dim, times=group_of(group).size, last=b.shape[1])),
    ),
)
matmul_reduce_scatter = _define(
    "matmul_reduce_scatter(Tensor a, Tensor b, int scatter_dim, str reduce_op, str group)"
    " -> Tensor",
    _matmul_reduce_scatter,
    lambda a, b, dim, _, group: a.new_empty(
        _resized(a.shape, dim, parts=group_of(group).size, last=b.shape[1])
    ),
)
# replicated: all ranks go on with the same result to the same loss, which counts once.
matmul_all_reduce = _define(
    "matmul_all_reduce(Tensor a, Tensor b, bool replicated, str group) -> Tensor",
    _matmul_all_reduce,
    lambda a, b, *_: a.new_empty(tuple(a.shape[:-1]) + (b.shape[1],)),
)
all_gather_scaled_matmul = _define(
    "all_gather_scaled_matmul(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, int gather_dim,"
    " str out_dtype, str group) -> Tensor",
    _all_gather_scaled_matmul,
    lambda a, b, scale_a, scale_b, dim, out_dtype, group: a.new_empty(
        _resized(a.shape, dim, times=group_of(group).size, last=b.shape[1]),
        dtype=getattr(torch, out_dtype),
    ),
)
scaled_matmul_reduce_scatter = _define(
    "scaled_matmul_reduce_scatter(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b,"
    " int scatter_dim, str reduce_op, str out_dtype, str group) -> Tensor",
    _scaled_matmul_reduce_scatter,
    lambda a, b, scale_a, scale_b, dim, _, out_dtype, group: a.new_empty(
        _resized(a.shape, dim, parts=group_of(group).size, last=b.shape[1]),
        dtype=getattr(torch, out_dtype),
    ),
)
scaled_matmul_all_reduce = _define(
    "scaled_matmul_all_reduce(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, str out_dtype,"
    " str group) -> Tensor",
    _scaled_matmul_all_reduce,
    lambda a, b, scale_a, scale_b, out_dtype, _: a.new_empty(
        tuple(a.shape[:-1]) + (b.shape[1],), dtype=getattr(torch, out_dtype)
    ),
)
# The same value on every rank, each of which uses it its own way: gradients are summed over the
# ranks.
copy_to_ranks = _define(
    "copy_to_ranks(Tensor x, str group) -> Tensor",
    _copy_to_ranks,
    lambda x, _: x.new_empty(x.shape),
)
all_reduce_add_rms_norm = _define(
    "all_reduce_add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps, str group)"
    " -> (Tensor, Tensor)",
    _all_reduce_add_rms_norm,
    lambda x, *_: (x.new_empty(x.shape), x.new_empty(x.shape)),
)
flash_decode = _define(
    "flash_decode(Tensor query, Tensor key_cache, Tensor value_cache, int tokens, int block,"
    " float? scale, str group) -> Tensor",
    _flash_decode,
    lambda query, *_: query.new_empty(query.shape),
)


def _scale(reduce_op: str, group: str) -> float:
    return 1.0 / group_of(group).size if reduce_op == "avg" else 1.0


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1.0 else x * factor


def _keep_options(ctx, inputs):
    ctx.options = inputs[1:]


def _keep_factors(ctx, inputs):
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.options = inputs[2:]


def _weight_gradient(a, grad, b):
    """a^T @ grad, in memory as `b` is."""
    a, grad = _rows(a), _rows(grad)
    return (grad.t() @ a).t() if b.t().is_contiguous() else a.t() @ grad


def _all_gather_matmul_backward(ctx, grad):
    """Where the weights have none."""
    dim, group = ctx.options
    grad_a = matmul_reduce_scatter(grad, ctx.saved_tensors[1].t(), dim, "sum", group)
    return grad_a, None, None, None


def _gather_matmul_node(of_rows: Callable) -> Callable:
    """With the gathered rows kept where the weights have a gradient."""

    def node(keyset, *inputs):
        if inputs[1].requires_grad:
            return _GatherMatmul.apply(keyset, *inputs)[1]
        return of_rows(keyset, *inputs)

    return node


def _matmul_reduce_scatter_backward(ctx, grad):
    a, b = ctx.saved_tensors
    dim, reduce_op, group = ctx.options
    grad = _scaled(grad, _scale(reduce_op, group))
    of_a, of_b = ctx.needs_input_grad[1:3]  # behind the key set
    grad_a = grad_b = gathered = None
    if of_a and of_b:
        gathered, grad_a = all_gather_and_matmul(grad, b.t(), dim, group)
    elif of_a:
        grad_a = all_gather_matmul(grad, b.t(), dim, group)
    if of_b:
        gathered = all_gather(grad, dim, group) if gathered is None else gathered
        grad_b = _weight_gradient(a, gathered, b)
    return grad_a, grad_b, None, None, None


def _matmul_all_reduce_backward(ctx, grad):
    a, b = ctx.saved_tensors
    replicated, group = ctx.options
    if not replicated:
        grad = all_reduce(grad, "sum", group)
    return grad @ b.t(), _weight_gradient(a, grad, b), None, None


def _all_gather_backward(ctx, grad):
    dim, group = ctx.options
    return reduce_scatter(grad, dim, "sum", group), None, None


def _reduce_scatter_backward(ctx, grad):
    dim, reduce_op, group = ctx.options
    return all_gather(_scaled(grad, _scale(reduce_op, group)), dim, group), None, None, None


def _all_reduce_backward(ctx, grad):
    return all_reduce(grad, *ctx.options), None, None


def _copy_to_ranks_backward(ctx, grad):
    return all_reduce(grad, "sum", *ctx.options), None


for _op, _body, _keep, _backward in (
    (all_gather, _all_gather, _keep_options, _all_gather_backward),
    (reduce_scatter, _reduce_scatter, _keep_options, _reduce_scatter_backward),
    (all_reduce, _all_reduce, _keep_options, _all_reduce_backward),
    (copy_to_ranks, _copy_to_ranks, _keep_options, _copy_to_ranks_backward),
    (
        matmul_reduce_scatter,
        _matmul_reduce_scatter,
        _keep_factors,
        _matmul_reduce_scatter_backward,
    ),
    (matmul_all_reduce, _matmul_all_reduce, _keep_factors, _matmul_all_reduce_backward),
):
    _differentiate(_op, _body, _node(_op, _body, _keep, _backward))
_differentiate(all_gather_and_matmul, _all_gather_and_matmul, _GatherMatmul.apply)
_differentiate(
    all_gather_matmul,
    _all_gather_matmul,
    _gather_matmul_node(
        _node(all_gather_matmul, _all_gather_matmul, _keep_factors, _all_gather_matmul_backward)
    ),
)
for _op, _body, _name in (
    (all_gather_scaled_matmul, _all_gather_scaled_matmul, "all_gather_matmul with scales"),
    (
        scaled_matmul_reduce_scatter,
        _scaled_matmul_reduce_scatter,
        "matmul_reduce_scatter with scales",
    ),
    (scaled_matmul_all_reduce, _scaled_matmul_all_reduce, "matmul_all_reduce with scales"),
    (all_reduce_add_rms_norm, _all_reduce_add_rms_norm, "all_reduce_add_rms_norm"),
    (flash_decode, _flash_decode, "flash_decode"),
):
    _refuse_gradients(_op, _body, _name)
