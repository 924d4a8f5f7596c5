"""Operators without a gradient in torch.library, beside those of _torch.py. Each calls the function
of its name on tensors that autograd knows nothing of."""

from __future__ import annotations

import functools
from typing import Callable, Optional

import torch
from torch import Tensor

from . import _arrays, attention, expert_layers, expert_parallel, matmul, moe, norms, transformer, ulysses
from ._torch_library import define, refuse_gradients, resized
from ._world import group_of


def _forward(
    schema: str, body: Callable, fake: Callable, named: Optional[Callable] = None, **options: bool
):
    """`options`: those of define(); `named`: see refuse_gradients()."""

    @functools.wraps(body)
    def detached(*inputs):
        return body(*(x.detach() if isinstance(x, Tensor) else x for x in inputs))

    op = define(schema, detached, fake, **options)
    refuse_gradients(op, detached, schema.partition("(")[0], named)
    return op


def _and_lse(call: Callable) -> Callable:
    """For bodies whose last input says whether logarithms are asked for, as call() is told: the
    second result is empty where they are not."""

    def body(query, *inputs):
        made = call(query, *inputs)
        return made if inputs[-1] else (made, _no_lse(query))

    return body


def _no_lse(query):
    return query.new_empty(0, dtype=torch.float32)


def _rows_and_lse(query, *inputs):
    """Of queries [rows, heads, size]."""
    lse = query.new_empty((query.shape[1], query.shape[0]), dtype=torch.float32)
    return query.new_empty(query.shape), lse if inputs[-1] else _no_lse(query)


def _heads_and_lse(query, *inputs):
    """Of queries [.., heads, rows, size]; the result lies in memory with rows first."""
    made = query.new_empty(query.transpose(-3, -2).shape).transpose(-3, -2)
    lse = query.new_empty(query.shape[:-1], dtype=torch.float32)
    return made, lse if inputs[-1] else _no_lse(query)


def _tokens_and_lse(query, *inputs):
    """Of queries [tokens, heads, size], with logarithms [tokens, heads]."""
    lse = query.new_empty(query.shape[:2], dtype=torch.float32)
    return query.new_empty(query.shape), lse if inputs[-1] else _no_lse(query)


def _name_of_attention(inputs):
    """Of a sequence over the ranks, by the program that does it."""
    return "ring_attention" if inputs[3] == "token_ring" else inputs[3]


def _sequence_attention(query, key, value, program, *options):
    op = _name_of_attention((query, key, value, program))
    *options, group, return_lse = options
    return attention._spread(program, op, query, key, value, *options, return_lse, group, None)


scaled_dot_product_attention = _forward(
    "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, bool is_causal,"
    " float? scale, bool enable_gqa, int window, bool return_lse) -> (Tensor, Tensor)",
    _and_lse(
        lambda q, k, v, is_causal, scale, gqa, window, lse: (
            transformer.scaled_dot_product_attention(
                q,
                k,
                v,
                is_causal=is_causal,
                scale=scale,
                enable_gqa=gqa,
                window=window,
                return_lse=lse,
            )
        )
    ),
    _heads_and_lse,
    is_one_call=True,
)
sequence_attention = _forward(
    "sequence_attention(Tensor query, Tensor key, Tensor value, str program, int? tokens,"
    " bool is_causal, float? scale, int window, bool contiguous, str group, bool return_lse)"
    " -> (Tensor, Tensor)",
    _and_lse(_sequence_attention),
    _rows_and_lse,
    _name_of_attention,
)
flash_decode = _forward(
    "flash_decode(Tensor query, Tensor key_cache, Tensor value_cache, int tokens, int block,"
    " float? scale, int window, str group, bool return_lse) -> (Tensor, Tensor)",
    _and_lse(
        lambda q, k, v, tokens, block, scale, window, group, lse: attention.flash_decode(
            q, k, v, tokens, block=block, scale=scale, window=window, return_lse=lse, group=group
        )
    ),
    _tokens_and_lse,
    is_one_call=True,
)
packed_attention = _forward(
    "packed_attention(Tensor query, Tensor key, Tensor value, Tensor cu_seqlens, bool is_causal,"
    " float? scale, int window, bool return_lse) -> (Tensor, Tensor)",
    _and_lse(
        lambda q, k, v, starts, is_causal, scale, window, lse: attention.packed_attention(
            q, k, v, starts, is_causal=is_causal, scale=scale, window=window, return_lse=lse
        )
    ),
    _rows_and_lse,
    is_one_call=True,
)
paged_attention = _forward(
    "paged_attention(Tensor query, Tensor key_pages, Tensor value_pages, Tensor cu_seqlens,"
    " Tensor block_table, Tensor cache_tokens, Tensor? key_scales, Tensor? value_scales,"
    " bool is_causal, float? scale, int window, bool return_lse) -> (Tensor, Tensor)",
    _and_lse(
        lambda q, k, v, starts, table, tokens, k_scales, v_scales, is_causal, scale, window, lse: (
            attention.paged_attention(
                q,
                k,
                v,
                starts,
                table,
                tokens,
                key_scales=k_scales,
                value_scales=v_scales,
                is_causal=is_causal,
                scale=scale,
                window=window,
                return_lse=lse,
            )
        )
    ),
    _rows_and_lse,
    is_one_call=True,
)
paged_decode = _forward(
    "paged_decode(Tensor query, Tensor key_pages, Tensor value_pages, Tensor block_table,"
    " Tensor cache_tokens, Tensor? key_scales, Tensor? value_scales, float? scale, int window,"
    " bool return_lse) -> (Tensor, Tensor)",
    _and_lse(
        lambda q, k, v, table, tokens, k_scales, v_scales, scale, window, lse: (
            attention.paged_decode(
                q,
                k,
                v,
                table,
                tokens,
                key_scales=k_scales,
                value_scales=v_scales,
                scale=scale,
                window=window,
                return_lse=lse,
            )
        )
    ),
    _tokens_and_lse,
    is_one_call=True,
)
reduce_scatter_add_rms_norm = _forward(
    "reduce_scatter_add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps, str group)"
    " -> (Tensor, Tensor)",
    lambda x, residual, weight, eps, group: norms.reduce_scatter_add_rms_norm(
        x, residual, weight, eps=eps, group=group
    ),
    lambda _, residual, *__: (residual.new_empty(residual.shape), residual.new_empty(residual.shape)),
    is_one_call=True,
)


def _rms_norm_columns(x, weight, residual, eps, group):
    made = norms.rms_norm_columns(x, weight, residual=residual, eps=eps, group=group)
    return (made, x.new_empty(0)) if residual is None else made


# The second result is empty where there is no residual.
rms_norm_columns = _forward(
    "rms_norm_columns(Tensor x, Tensor weight, Tensor? residual, float eps, str group)"
    " -> (Tensor, Tensor)",
    _rms_norm_columns,
    lambda x, _weight, residual, *_: (
        x.new_empty(x.shape),
        x.new_empty(0) if residual is None else x.new_empty(x.shape),
    ),
)
matmul_all_to_all = _forward(
    "matmul_all_to_all(Tensor a, Tensor b, Tensor? bias, str group) -> Tensor",
    lambda a, b, bias, group: ulysses.matmul_all_to_all(a, b, bias=bias, group=group),
    lambda a, b, _, group: a.new_empty(
        (a.shape[0] * group_of(group).size, b.shape[1] // group_of(group).size)
    ),
    is_one_call=True,
)
all_to_all_matmul = _forward(
    "all_to_all_matmul(Tensor a, Tensor b, Tensor? bias, str group) -> Tensor",
    lambda a, b, bias, group: ulysses.all_to_all_matmul(a, b, bias=bias, group=group),
    lambda a, b, _, group: a.new_empty((a.shape[0] // group_of(group).size, b.shape[1])),
    is_one_call=True,
)


def _route_with(tables: bool):
    def body(x, gate, top_k, bias, scoring, n_group, topk_group, group_score, norm, scale):
        made = moe.moe_route(
            x,
            gate,
            top_k,
            bias=bias,
            scoring_func=scoring,
            n_group=n_group,
            topk_group=topk_group,
            group_score=group_score,
            norm_topk_prob=norm,
            routed_scaling_factor=scale,
            tables=tables,
        )
        return tuple(made)

    return body


_ROUTE_ARGUMENTS = (
    "Tensor x, Tensor gate, int top_k, Tensor? bias, str scoring_func, int n_group, int topk_group,"
    " str group_score, bool norm_topk_prob, float routed_scaling_factor"
)


def _numbers(like, *shape, dtype=torch.int32):
    return like.new_empty(shape, dtype=dtype)


def _route_weights(x, top_k):
    return _numbers(x, x.shape[0], top_k, dtype=torch.float32)


moe_route = _forward(
    f"moe_route({_ROUTE_ARGUMENTS}) -> (Tensor, Tensor)",
    _route_with(False),
    lambda x, gate, top_k, *_: (_route_weights(x, top_k), _numbers(x, x.shape[0], top_k)),
    is_one_call=True,
)
moe_route_tables = _forward(
    f"moe_route_tables({_ROUTE_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)",
    _route_with(True),
    lambda x, gate, top_k, *_: (
        _route_weights(x, top_k),
        _numbers(x, x.shape[0], top_k),
        _numbers(x, gate.shape[0] + 1),
        _numbers(x, x.shape[0] * top_k),
    ),
    is_one_call=True,
)


_GATE = "float alpha, float beta, float limit"  # of moe.SwiGLU


def _grouped_matmul(
    a, b, offsets, counts, tokens, up, bias, up_bias, scale_a, scale_b, scale_up, *gate_and_dtype
):
    *gate, out_dtype = gate_and_dtype
    return moe.grouped_matmul(
        a,
        b,
        offsets,
        counts=counts,
        tokens=tokens,
        up=up,
        bias=bias,
        up_bias=up_bias,
        scale_a=scale_a,
        scale_b=scale_b,
        scale_up=scale_up,
        swiglu=moe.SwiGLU(*gate),
        out_dtype=out_dtype,
    )


def _grouped_fake(a, b, offsets, _counts, tokens, *_, out_dtype):
    dtype = a.dtype if out_dtype is None else getattr(torch, out_dtype)
    return a.new_empty(moe.grouped_shape(a.shape, b.shape, offsets, tokens), dtype=dtype)


grouped_matmul = _forward(
    "grouped_matmul(Tensor a, Tensor b, Tensor? offsets, Tensor? counts, Tensor? tokens,"
    " Tensor? up, Tensor? bias, Tensor? up_bias, Tensor? scale_a, Tensor? scale_b, Tensor? scale_up,"
    f" {_GATE}, str? out_dtype) -> Tensor",
    _grouped_matmul,
    lambda *inputs: _grouped_fake(*inputs[:-1], out_dtype=inputs[-1]),
    is_one_call=True,
)
moe_combine = _forward(
    "moe_combine(Tensor y, Tensor slots, Tensor weights, Tensor? residual, bool scatter, str group)"
    " -> Tensor",
    lambda y, slots, weights, residual, scatter, group: moe.moe_combine(
        y, slots, weights, residual=residual, scatter=scatter, group=group
    ),
    lambda y, slots, _weights, _residual, scatter, group: y.new_empty(
        (slots.shape[0] // (group_of(group).size if scatter else 1), y.shape[1])
    ),
    is_one_call=True,
)


def _all_gather_grouped_matmul(a_shard, b, experts, up, bias, up_bias, *gate_and_group):
    op, (*gate, group) = expert_layers.all_gather_grouped_matmul, gate_and_group
    options = {"up": up, "bias": bias, "up_bias": up_bias, "swiglu": moe.SwiGLU(*gate)}
    made, tiles = op(a_shard, b, experts, **options, group=group)
    return made, *tiles[:-1]


def _all_gather_grouped_fake(a, b, experts, *options):
    group = options[-1]
    (m, top_k), dtype = experts.shape, str(a.dtype)[6:]
    sizes = int(m), int(top_k), int(b.shape[0])
    routed = expert_layers.routed_desc(group_of(group).size, *sizes)
    rows, tiles = expert_layers.tiles_of(routed, dtype, _arrays.torch_kind(a.device.type).num_sms(a))
    shapes = (1,), (tiles,), (tiles,), (tiles * rows,), (m, top_k)
    return a.new_empty((tiles * rows, b.shape[2])), *(_numbers(a, *shape) for shape in shapes)


all_gather_grouped_matmul = _forward(
    "all_gather_grouped_matmul(Tensor a_shard, Tensor b, Tensor experts, Tensor? up,"
    f" Tensor? bias, Tensor? up_bias, {_GATE}, str group)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _all_gather_grouped_matmul,
    _all_gather_grouped_fake,
)


def _second_layer(name: str, rows_of_tokens: Callable):
    """The operator of expert_layers of this name; rows_of_tokens(tokens of all ranks, group): the
    rows of its result."""

    def body(y, b, used, experts, slots, weights, bias, residual, group):
        tiles = expert_layers.ExpertTiles(used, experts, None, None, slots, group)
        return getattr(expert_layers, name)(y, b, tiles, weights, bias=bias, residual=residual)

    def fake(y, b, _used, _experts, slots, _weights, _bias, _residual, group):
        return y.new_empty((rows_of_tokens(slots.shape[0], group), b.shape[2]))

    return _forward(
        f"{name}(Tensor y, Tensor b, Tensor tiles_used, Tensor tile_experts, Tensor slots,"
        " Tensor weights, Tensor? bias, Tensor? residual, str group) -> Tensor",
        body,
        fake,
    )


grouped_matmul_reduce_scatter = _second_layer(
    "grouped_matmul_reduce_scatter", lambda tokens, group: tokens // group_of(group).size
)
grouped_matmul_all_reduce = _second_layer("grouped_matmul_all_reduce", lambda tokens, _: tokens)

_LAYER_BIASES = "Tensor? gate_bias, Tensor? up_bias, Tensor? down_bias"


def _layer_options(names, options):
    """`options` by these names, of which the last is "group" and stands behind a SwiGLU's three."""
    *first, alpha, beta, limit, group = options
    return {**dict(zip(names, (*first, group))), "swiglu": moe.SwiGLU(alpha, beta, limit)}


def _moe_layer(x, gate, up, down, experts, weights, *options):
    named = _layer_options(("gate_bias", "up_bias", "down_bias", "residual", "group"), options)
    return expert_layers.moe_layer(x, gate, up, down, experts, weights, **named)


moe_layer = _forward(
    "moe_layer(Tensor x, Tensor gate, Tensor up, Tensor down, Tensor experts, Tensor weights,"
    f" {_LAYER_BIASES}, Tensor? residual, {_GATE}, str group) -> Tensor",
    _moe_layer,
    lambda x, *_: x.new_empty(x.shape),
)


def _ep_dispatch(x, experts, weights, num_experts, fp8, group):
    options = {"fp8": fp8, "group": group}
    made = expert_parallel.ep_dispatch(x, experts, weights, num_experts, **options)
    return (*made[:6], made.scales if fp8 else _no_lse(x))


def _ep_dispatch_fake(x, experts, _weights, num_experts, fp8, group):
    size, top_k = group_of(group).size, experts.shape[1]
    rows = size * x.shape[0]
    return (
        x.new_empty((rows, x.shape[1]), dtype=torch.float8_e4m3fn if fp8 else x.dtype),
        _numbers(x, rows, top_k, dtype=torch.float32),
        _numbers(x, -(-num_experts // size) + 2),
        _numbers(x, rows * top_k),
        _numbers(x, rows, top_k),
        _numbers(x, x.shape[0], size),
        _numbers(x, rows, x.shape[1] // 128, dtype=torch.float32) if fp8 else _no_lse(x),
    )


ep_dispatch = _forward(
    "ep_dispatch(Tensor x, Tensor experts, Tensor weights, int num_experts, bool fp8, str group)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _ep_dispatch,
    _ep_dispatch_fake,
)
ep_combine = _forward(
    "ep_combine(Tensor y, Tensor slots, Tensor weights, Tensor positions, Tensor? residual,"
    " str group) -> Tensor",
    lambda y, slots, weights, positions, residual, group: expert_parallel.ep_combine(
        y,
        expert_parallel.Dispatched(None, weights, None, None, slots, positions, group=group),
        residual=residual,
    ),
    lambda y, _slots, _weights, positions, *_: y.new_empty((positions.shape[0], y.shape[1])),
)


def _ep_moe_layer(x, gate, up, down, experts, weights, num_experts, *options):
    names = "expert_groups", "gate_bias", "up_bias", "down_bias", "residual", "group"
    routed, named = (experts, weights, num_experts), _layer_options(names, options)
    return expert_parallel.ep_moe_layer(x, gate, up, down, *routed, **named)


ep_moe_layer = _forward(
    "ep_moe_layer(Tensor x, Tensor gate, Tensor up, Tensor down, Tensor experts, Tensor weights,"
    f" int num_experts, int? expert_groups, {_LAYER_BIASES}, Tensor? residual, {_GATE},"
    " str group) -> Tensor",
    _ep_moe_layer,
    lambda x, *_: x.new_empty(x.shape),
)


_SCALED = "Tensor a, Tensor b, Tensor scale_a, Tensor scale_b"


def _product_fake(a, b, out_dtype, dim=0, ranks=1, **resizing):
    """Of as many rows as resized() says, by default a's, and so many ranks' columns."""
    shape = resized(a.shape, dim, last=ranks * b.shape[1], **resizing)
    return a.new_empty(shape, dtype=getattr(torch, out_dtype))


all_gather_scaled_matmul = _forward(
    f"all_gather_scaled_matmul({_SCALED}, int gather_dim, str out_dtype, str group) -> Tensor",
    lambda a, b, scale_a, scale_b, dim, out_dtype, group: group_of(group).call(
        matmul.scaled_op("all_gather_matmul", out_dtype), dim, None, a, b, scale_a, scale_b
    ),
    lambda a, b, _scale_a, _scale_b, dim, out_dtype, group: _product_fake(
        a, b, out_dtype, dim, times=group_of(group).size
    ),
    is_one_call=True,
)


def _all_gather_with_scales_fake(a, scale_a, dim, group):
    size = group_of(group).size
    of_row = scale_a.shape[-1] if scale_a.ndim == a.ndim else 1
    return (
        a.new_empty(resized(a.shape, dim, times=size)),
        scale_a.new_empty(resized(a.shape, dim, times=size, last=of_row)),
    )


# What products of lists of b are made of: all ranks' rows, and each product of this rank alone.
all_gather_with_scales = _forward(
    "all_gather_with_scales(Tensor a, Tensor scale_a, int gather_dim, str group)"
    " -> (Tensor, Tensor)",
    lambda a, scale_a, dim, group: matmul.gather_with_scales(group_of(group), a, scale_a, dim),
    _all_gather_with_scales_fake,
)
scaled_matmul = _forward(
    f"scaled_matmul({_SCALED}, str out_dtype, str group) -> Tensor",
    lambda a, b, scale_a, scale_b, out_dtype, group: (
        group_of(group)
        .alone()
        .call(matmul.scaled_op("all_gather_matmul", out_dtype), 0, None, a, b, scale_a, scale_b)
    ),
    lambda a, b, _scale_a, _scale_b, out_dtype, _group: _product_fake(a, b, out_dtype),
    meets=False,
)
scaled_matmul_reduce_scatter = _forward(
    f"scaled_matmul_reduce_scatter({_SCALED}, int scatter_dim, str reduce_op, str out_dtype,"
    " str group) -> Tensor",
    lambda a, b, scale_a, scale_b, dim, reduce_op, out_dtype, group: matmul.matmul_reduce_scatter(
        a,
        b,
        scatter_dim=dim,
        reduce_op=reduce_op,
        scale_a=scale_a,
        scale_b=scale_b,
        out_dtype=out_dtype,
        group=group,
    ),
    lambda a, b, _scale_a, _scale_b, dim, _reduce_op, out_dtype, group: _product_fake(
        a, b, out_dtype, dim, parts=group_of(group).size
    ),
    is_one_call=True,
)
scaled_matmul_all_reduce = _forward(
    f"scaled_matmul_all_reduce({_SCALED}, str out_dtype, str group) -> Tensor",
    lambda a, b, scale_a, scale_b, out_dtype, group: group_of(group).call(
        matmul.scaled_op("matmul_all_reduce", out_dtype), 0, None, a, b, scale_a, scale_b
    ),
    lambda a, b, _scale_a, _scale_b, out_dtype, _group: _product_fake(a, b, out_dtype),
    is_one_call=True,
)
scaled_matmul_all_gather = _forward(
    f"scaled_matmul_all_gather({_SCALED}, str out_dtype, str group) -> Tensor",
    lambda a, b, scale_a, scale_b, out_dtype, group: group_of(group).call(
        matmul.scaled_op("matmul_all_gather", out_dtype), 0, None, a, b, scale_a, scale_b
    ),
    lambda a, b, _scale_a, _scale_b, out_dtype, group: _product_fake(
        a, b, out_dtype, ranks=group_of(group).size
    ),
    is_one_call=True,
)
