"""The operators in torch.library, so that torch.compile traces through them and autograd knows
their gradients. Gradients are those of the sum of all ranks' losses: what a rank's input
contributes to other ranks' results counts. Every operator's last argument is the name of its group,
"" for all ranks: graphs of torch.compile keep names."""

from __future__ import annotations

from typing import Callable

import torch
from torch import Tensor

from . import collectives, matmul, ops, spread_columns
from ._arrays import TorchKind
from ._group import after_meetings
from ._gradients import empty_like_weight, rms_norm_gradients, weight_gradient
from ._torch_library import (
    define,
    differentiate,
    go_on,
    is_compiling,
    node_of,
    refuse_gradients,
    resized,
)
from ._world import group_of
from .errors import UserError


def wants(*arrays) -> bool:
    """Whether a call must go through torch.library: it is being compiled, or a gradient is asked
    for."""
    if not isinstance(arrays[0], Tensor):
        return False
    if is_compiling():
        return True
    for x in arrays:
        if isinstance(x, Tensor) and x.requires_grad:
            return torch.is_grad_enabled()
    return False


def is_in_autocast(x: Tensor) -> bool:
    return torch.is_autocast_enabled(x.device.type)


class _GatherMatmul(torch.autograd.Function):  # pylint: disable=abstract-method
    """(gathered a, product). What the weights' gradient takes is gathered once, forward."""

    @staticmethod
    def forward(ctx, keyset, *inputs):
        # pylint: disable=arguments-differ
        if keyset is None:
            both = _all_gather_and_matmul(*inputs)
        else:
            both = go_on(all_gather_and_matmul, keyset, inputs)
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
            grad_b = weight_gradient(gathered, grad, b)
        return None, grad_a, grad_b, None, None


def _all_gather(x, dim, group):
    return group_of(group).call(collectives._all_gather, dim, None, x)


def _reduction(how) -> dict:
    """`how`: a reduce_op, or the factor of a premultiplied sum, which has operators of its own."""
    return {"reduce_op": how} if isinstance(how, str) else {"reduce_op": "premul_sum", "factor": how}


def _reduce_scatter(x, dim, how, group):
    return ops.reduce_scatter(x.detach(), dim=dim, **_reduction(how), group=group)


def _all_reduce(x, how, group):
    if how == "sum":
        return group_of(group).call(collectives._all_reduce, 0, None, x)
    return ops.all_reduce(x.detach(), **_reduction(how), group=group)


def _all_gather_matmul(a, b, gather_dim, group):
    return group_of(group).call(matmul._all_gather_matmul, gather_dim, None, a, b)


def _all_gather_and_matmul(a, b, gather_dim, group):
    return group_of(group).call(matmul._all_gather_and_matmul, gather_dim, None, a, b)


def _matmul_reduce_scatter(a, b, scatter_dim, reduce_op, group):
    return ops.matmul_reduce_scatter(
        a.detach(), b.detach(), scatter_dim=scatter_dim, reduce_op=reduce_op, group=group
    )


def _matmul_reduce_scatter_gradients(grad, a, b, group):
    """(of a, of b) along the first dimension. Nobody but the second product sees the gathered rows, which
    stay where peers have put them."""
    members = group_of(group)
    members.take_turns(grad)
    grad_a = members.call(matmul.all_gather_matmul_and_keep, 0, None, grad, b.t())
    with after_meetings():
        return grad_a, weight_gradient(a, matmul.kept_rows(members, grad), b)


def _matmul_all_reduce(a, b, replicated, group):
    return group_of(group).call(matmul._matmul_all_reduce, 0, None, a, b)


def _matmul_all_gather(a, b, group):
    return group_of(group).call(spread_columns._matmul_all_gather, 0, None, a, b)


def _broadcast(x, root, group):
    return group_of(group).call(collectives._broadcast, root, None, x)


def _sum_to_root(x, root, group):
    total = _all_reduce(x, "sum", group)
    with after_meetings():
        return total if group_of(group).rank == root else total.zero_()


def _all_to_all(x, received, sent, group):
    return collectives.all_to_all(x.detach(), received, sent, group=group)


def _all_to_all_fake(x, received, sent, group):
    if received is not None:
        rows = sum(received)
    else:
        rows = x.shape[0] if sent is None else torch.library.get_ctx().new_dynamic_size()
    return x.new_empty((rows, *x.shape[1:]))


def _copy_to_ranks(x, group):
    return x.clone(memory_format=torch.contiguous_format)


def _all_reduce_add_rms_norm(x, residual, weight, eps, group):
    arrays = x.detach(), residual.detach(), weight.detach()
    return ops.all_reduce_add_rms_norm(*arrays, eps=eps, group=group)


def _same_shape(x, *_):
    return x.new_empty(x.shape)


def _product_part_along(a, b, dim, _, group):
    whole = tuple(a.shape[:-1]) + (b.shape[1],)
    return a.new_empty(resized(whole, dim, parts=group_of(group).size))


def _part_along(x, dim, _, group):
    return x.new_empty(resized(x.shape, dim, parts=group_of(group).size))


all_gather = define(
    "all_gather(Tensor x, int dim, str group) -> Tensor",
    _all_gather,
    lambda x, dim, group: x.new_empty(resized(x.shape, dim, times=group_of(group).size)),
    is_one_call=True,
)
reduce_scatter = define(
    "reduce_scatter(Tensor x, int dim, str reduce_op, str group) -> Tensor",
    _reduce_scatter,
    _part_along,
    is_one_call=True,
)
all_reduce = define(
    "all_reduce(Tensor x, str reduce_op, str group) -> Tensor",
    _all_reduce,
    _same_shape,
    is_one_call=True,
)
# Apart: graphs and users know the operators above by their arguments.
reduce_scatter_premul_sum = define(
    "reduce_scatter_premul_sum(Tensor x, int dim, float factor, str group) -> Tensor",
    _reduce_scatter,
    _part_along,
    is_one_call=True,
)
all_reduce_premul_sum = define(
    "all_reduce_premul_sum(Tensor x, float factor, str group) -> Tensor",
    _all_reduce,
    _same_shape,
    is_one_call=True,
)
all_gather_matmul = define(
    "all_gather_matmul(Tensor a, Tensor b, int gather_dim, str group) -> Tensor",
    _all_gather_matmul,
    lambda a, b, dim, group: a.new_empty(
        resized(a.shape, dim, times=group_of(group).size, last=b.shape[1])
    ),
    is_one_call=True,
)
all_gather_and_matmul = define(
    "all_gather_and_matmul(Tensor a, Tensor b, int gather_dim, str group) -> (Tensor, Tensor)",
    _all_gather_and_matmul,
    lambda a, b, dim, group: (
        a.new_empty(resized(a.shape, dim, times=group_of(group).size)),
        a.new_empty(resized(a.shape, dim, times=group_of(group).size, last=b.shape[1])),
    ),
    is_one_call=True,
)
matmul_reduce_scatter = define(
    "matmul_reduce_scatter(Tensor a, Tensor b, int scatter_dim, str reduce_op, str group)"
    " -> Tensor",
    _matmul_reduce_scatter,
    _product_part_along,
    is_one_call=True,
)
matmul_reduce_scatter_gradients = define(
    "matmul_reduce_scatter_gradients(Tensor grad, Tensor a, Tensor b, str group)"
    " -> (Tensor, Tensor)",
    _matmul_reduce_scatter_gradients,
    lambda _, a, b, group: (a.new_empty(a.shape), empty_like_weight(b)),
)
# replicated: all ranks go on with the same result to the same loss, which counts once.
matmul_all_reduce = define(
    "matmul_all_reduce(Tensor a, Tensor b, bool replicated, str group) -> Tensor",
    _matmul_all_reduce,
    lambda a, b, *_: a.new_empty(tuple(a.shape[:-1]) + (b.shape[1],)),
    is_one_call=True,
)
matmul_all_gather = define(
    "matmul_all_gather(Tensor a, Tensor b, str group) -> Tensor",
    _matmul_all_gather,
    lambda a, b, group: a.new_empty((*a.shape[:-1], group_of(group).size * b.shape[1])),
    is_one_call=True,
)
broadcast = define(
    "broadcast(Tensor x, int root, str group) -> Tensor",
    _broadcast,
    _same_shape,
    is_one_call=True,
)
# The sum on rank `root`, zeros elsewhere. One operator: where a graph does not use a sum, compilers leave
# out that rank's part in it.
sum_to_root = define(
    "sum_to_root(Tensor x, int root, str group) -> Tensor",
    _sum_to_root,
    _same_shape,
)
all_to_all = define(
    "all_to_all(Tensor x, SymInt[]? output_split_sizes, SymInt[]? input_split_sizes, str group)"
    " -> Tensor",
    _all_to_all,
    _all_to_all_fake,
)
# The same value on every rank, each of which uses it its own way: gradients are summed over the
# ranks.
copy_to_ranks = define(
    "copy_to_ranks(Tensor x, str group) -> Tensor",
    _copy_to_ranks,
    _same_shape,
    meets=False,
)
all_reduce_add_rms_norm = define(
    "all_reduce_add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps, str group)"
    " -> (Tensor, Tensor)",
    _all_reduce_add_rms_norm,
    lambda x, *_: (x.new_empty(x.shape), x.new_empty(x.shape)),
    is_one_call=True,
)


def _scale(how, group: str) -> float:
    if not isinstance(how, str):
        return how
    return 1.0 / group_of(group).size if how == "avg" else 1.0


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1.0 else x * factor


def _keep_options(ctx, inputs):
    ctx.options = inputs[1:]


def _keep_reduction(ctx, inputs):
    how = inputs[-2]
    if isinstance(how, str) and how not in ("sum", "avg"):
        raise UserError(
            f"reduce_op '{how}' has no gradient, and x requires it; call it under torch.no_grad(), "
            "or on x.detach()"
        )
    _keep_options(ctx, inputs)


def _keep_factors(ctx, inputs):
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.options = inputs[2:]


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
    if of_a and of_b and dim == 0 and not torch.is_grad_enabled():  # of gradients that have none
        return *matmul_reduce_scatter_gradients(grad, a, b, group), None, None, None
    if of_a and of_b:
        gathered, grad_a = all_gather_and_matmul(grad, b.t(), dim, group)
    elif of_a:
        grad_a = all_gather_matmul(grad, b.t(), dim, group)
    if of_b:
        gathered = all_gather(grad, dim, group) if gathered is None else gathered
        grad_b = weight_gradient(a, gathered, b)
    return grad_a, grad_b, None, None, None


def _matmul_all_reduce_backward(ctx, grad):
    a, b = ctx.saved_tensors
    replicated, group = ctx.options
    if not replicated:
        grad = all_reduce(grad, "sum", group)
    return grad @ b.t(), weight_gradient(a, grad, b), None, None


def _matmul_all_gather_backward(ctx, grad):
    """Of the own columns, which all ranks' losses have seen."""
    a, b = ctx.saved_tensors
    (group,) = ctx.options
    own = reduce_scatter(grad, grad.ndim - 1, "sum", group)
    return own @ b.t(), weight_gradient(a, own, b), None


def _all_gather_backward(ctx, grad):
    dim, group = ctx.options
    return reduce_scatter(grad, dim, "sum", group), None, None


def _reduce_scatter_backward(ctx, grad):
    dim, how, group = ctx.options
    return all_gather(_scaled(grad, _scale(how, group)), dim, group), None, None, None


def _all_reduce_backward(ctx, grad):
    op = all_reduce if isinstance(ctx.options[0], str) else all_reduce_premul_sum
    return op(grad, *ctx.options), None, None


def _broadcast_backward(ctx, grad):
    return sum_to_root(grad, *ctx.options), None, None


def _sum_to_root_backward(ctx, grad):
    return broadcast(grad, *ctx.options), None, None


def _keep_blocks(ctx, inputs):
    ctx.options, ctx.rows = inputs[1:], inputs[0].shape[0]


def _all_to_all_backward(ctx, grad):
    """Every block goes back to where it came from."""
    received, sent, group = ctx.options
    if sent is None and received is not None:
        sent = [ctx.rows // len(received)] * len(received)
    return all_to_all(grad, sent, received, group), None, None, None


def _all_to_all_node(of_known: Callable) -> Callable:
    """of_known, once it is known which rows come from each rank."""

    def node(keyset, x, received, sent, group):
        if received is None and sent is not None:
            if keyset is not None:
                raise UserError(
                    "all_to_all: a compiled gradient needs output_split_sizes beside "
                    "input_split_sizes"
                )
            members = group_of(group)
            checked = collectives.checked_blocks(members, x, sent)
            rows = collectives.rows_of(TorchKind, x)
            received = list(collectives.exchange_sizes(members, checked, rows).received)
        return of_known(keyset, x, received, sent, group)

    return node


class _AddRmsNorm(torch.autograd.Function):  # pylint: disable=abstract-method
    """(normed, sum) of all_reduce_add_rms_norm."""

    @staticmethod
    def forward(ctx, keyset, *inputs):
        # pylint: disable=arguments-differ
        if keyset is None:
            normed, total = _all_reduce_add_rms_norm(*inputs)
        else:
            normed, total = go_on(all_reduce_add_rms_norm, keyset, inputs)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(total, inputs[2])
        ctx.options = inputs[3:]
        return normed, total

    @staticmethod
    def backward(ctx, grad_normed, grad_total):
        # pylint: disable=arguments-differ
        total, weight = ctx.saved_tensors
        eps, group = ctx.options
        grad, grad_weight = grad_total, None
        if grad_normed is not None:
            grad, grad_weight = rms_norm_gradients(total, weight, eps, grad_normed)
            grad = grad if grad_total is None else grad + grad_total
        of_x = ctx.needs_input_grad[1]  # behind the key set
        grad_x = all_reduce(grad, "sum", group) if of_x and grad is not None else None
        return None, grad_x, grad, grad_weight, None, None


def _copy_to_ranks_backward(ctx, grad):
    return all_reduce(grad, "sum", *ctx.options), None


for _op, _body, _keep, _backward in (
    (all_gather, _all_gather, _keep_options, _all_gather_backward),
    (reduce_scatter, _reduce_scatter, _keep_reduction, _reduce_scatter_backward),
    (all_reduce, _all_reduce, _keep_reduction, _all_reduce_backward),
    (reduce_scatter_premul_sum, _reduce_scatter, _keep_reduction, _reduce_scatter_backward),
    (all_reduce_premul_sum, _all_reduce, _keep_reduction, _all_reduce_backward),
    (broadcast, _broadcast, _keep_options, _broadcast_backward),
    (sum_to_root, _sum_to_root, _keep_options, _sum_to_root_backward),
    (copy_to_ranks, _copy_to_ranks, _keep_options, _copy_to_ranks_backward),
    (
        matmul_reduce_scatter,
        _matmul_reduce_scatter,
        _keep_factors,
        _matmul_reduce_scatter_backward,
    ),
    (matmul_all_reduce, _matmul_all_reduce, _keep_factors, _matmul_all_reduce_backward),
    (matmul_all_gather, _matmul_all_gather, _keep_factors, _matmul_all_gather_backward),
):
    differentiate(_op, _body, node_of(_op, _body, _keep, _backward))
differentiate(
    all_to_all,
    _all_to_all,
    _all_to_all_node(node_of(all_to_all, _all_to_all, _keep_blocks, _all_to_all_backward)),
)
differentiate(all_reduce_add_rms_norm, _all_reduce_add_rms_norm, _AddRmsNorm.apply)
differentiate(all_gather_and_matmul, _all_gather_and_matmul, _GatherMatmul.apply)
differentiate(
    all_gather_matmul,
    _all_gather_matmul,
    _gather_matmul_node(
        node_of(all_gather_matmul, _all_gather_matmul, _keep_factors, _all_gather_matmul_backward)
    ),
)
refuse_gradients(
    matmul_reduce_scatter_gradients,
    _matmul_reduce_scatter_gradients,
    "matmul_reduce_scatter_gradients",
)
