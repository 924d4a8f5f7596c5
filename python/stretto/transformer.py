"""Operators of transformer layers that are no linear layers; see ops.py for what all operators have
in common."""

from __future__ import annotations

import math
from typing import Any, Optional, Tuple

from . import _route
from ._adopt import adopt
from ._arguments import checked
from ._arrays import ArrayT, may_overlap
from ._calls import (
    bound_of,
    check_apart,
    computed_dtype,
    described,
    finish,
    make_result,
    number,
    same_kind,
    scale_or_none,
    several,
    unless_same,
    whole,
    with_options,
)
from ._world import GroupLike, alone, counted, group_of, name_of
from .errors import UserError


@counted
def all_reduce_add_rms_norm(
    x: ArrayT,
    residual: ArrayT,
    weight: ArrayT,
    *,
    eps: float = 1e-5,
    group: GroupLike = None,
    out: Any = None,
) -> Tuple[ArrayT, ArrayT]:
    """(rms_norm(s) * weight, s) with s = all_reduce(x) + residual, the same bits on every rank.

    `x`, `residual`: [.., H]; `weight`: [H], of its own element type. `out`: a pair of arrays.
    """
    name = "all_reduce_add_rms_norm"
    eps = number(name, "eps", eps)
    if not 0 <= eps < math.inf:
        raise UserError(f"{name}: eps is {eps}, need a finite number from 0 on")
    if out is None and _route.wants(x, residual, weight):
        return _route.layer.all_reduce_add_rms_norm(x, residual, weight, eps, name_of(group))
    op = with_options(_all_reduce_add_rms_norm, eps)
    outs = several(name, out, 2)
    return group_of(group).call(op, 0, outs, x, residual, weight)


def _all_reduce_add_rms_norm(eps, group, x, residual, weight, _, out):
    op = "all_reduce_add_rms_norm"
    kind, x = adopt(op, "x", x)
    residual, weight = same_kind(op, kind, residual=residual, weight=weight)
    dtype = computed_dtype(op, kind, {"x": x, "residual": residual})
    weight_dtype = computed_dtype(op, kind, {"weight": weight})
    hidden = x.shape[-1] if x.ndim else 0
    if tuple(residual.shape) != tuple(x.shape) or tuple(weight.shape) != (hidden,) or hidden == 0:
        raise UserError(
            f"{op}: shapes {tuple(x.shape)}, {tuple(residual.shape)}, {tuple(weight.shape)}; "
            "need [.., H], [.., H], [H]"
        )
    outs = out or (None, None)
    read = [weight, x] if group.is_symmetric(kind.address(x)) else [weight]  # by all rows, by peers
    (normed, written), (total, summed) = (
        make_result(op, kind, each, x.shape, x, read + unless_same(kind, each, x, residual))
        for each in outs
    )
    check_apart(op, kind, (normed, total))
    x, residual, weight = kind.dense(x), kind.dense(residual), kind.dense(weight)
    rows = math.prod(x.shape[:-1])
    said = described(op, kind, {"x": x, "weight": weight}, f"eps={eps}")
    if rows == 0:
        group.agree_on_nothing(said)
        return finish(kind, normed, written), finish(kind, total, summed)
    group.launch_operator(
        kind,
        op,
        {
            "world_size": group.size,
            "dtype": dtype,
            "weight_dtype": weight_dtype,
            "m": bound_of(rows),
            "hidden": hidden,
            "eps": eps,
        },
        ("x", "weight", "residual", "sum", "out"),
        (x, weight, residual, summed, written),
        (rows,),
        said=said,
    )
    return finish(kind, normed, written), finish(kind, total, summed)


@checked
def scaled_dot_product_attention(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    *,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
    window: int = 0,
    return_lse: bool = False,
    out: Any = None,
) -> Any:
    """softmax(query @ key^T * scale) @ value of this rank's heads, as torch.nn.functional's; not
    collective.

    `query`: [.., Hq, L, E], `key`, `value`: [.., Hkv, S, E]; Hq != Hkv (a multiple of it) needs
    `enable_gqa`. `is_causal`: row i sees columns 0 to i; where L > S the last rows see all. scale:
    any number, default 1 / sqrt(E). float32 softmax. `window`: with `is_causal`, row i sees the last
    so many columns up to i; 0: all. A row that sees nothing is 0. The result lies in memory as
    [.., L, Hq, E]; a query that does so too, and dense keys and values, are not copied. `return_lse`:
    (result, float32 [.., Hq, L], the logarithm of each row's sum of weights), `out` a pair then.
    """
    name = "scaled_dot_product_attention"
    scale = scale_or_none(name, scale)
    is_causal, enable_gqa, return_lse = bool(is_causal), bool(enable_gqa), bool(return_lse)
    if out is None and _route.wants(query, key, value):
        options = is_causal, scale, enable_gqa, window, return_lse
        made = _route.forward.scaled_dot_product_attention(query, key, value, *options)
        return made if return_lse else made[0]
    options = scale, enable_gqa, whole(name, "window", window), return_lse
    op = with_options(_scaled_dot_product_attention, is_causal, *options)
    out = several(name, out, 2) if return_lse else out
    return alone().call(op, 0, out, query, key, value)


def _scaled_dot_product_attention(
    is_causal, scale, enable_gqa, window, return_lse, group, query, key, value, _, out
):
    op = "scaled_dot_product_attention"
    kind, q = adopt(op, "query", query)
    k, v = (kind.dense(x) for x in same_kind(op, kind, key=key, value=value))
    dtype = computed_dtype(op, kind, {"query": q, "key": k, "value": v}, doubles=False)
    _check_heads(op, q, k, v, enable_gqa)
    heads, rows, width = q.shape[-3:]
    kv_heads, tokens = k.shape[-3:-1]
    past = 0 if is_causal else max(tokens - rows, 0)
    batch = math.prod(q.shape[:-3])
    made, finished = _rows_first(op, kind, out[0] if return_lse and out else out, q, k, v)
    lse = ()
    if return_lse:
        like = kind.from_dtype("float32", (0,), q)
        lse = make_result(op, kind, out[1] if out else None, tuple(q.shape[:-1]), like, (q, k, v))
        check_apart(op, kind, same_kind(op, kind, **{f"out[{i}]": x for i, x in enumerate(out or ())}))
    desc = {
        "dtype": dtype,
        "batch": batch,
        "m": rows,
        "max_tokens": tokens,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": width,
        "causal": is_causal,
        "scale": scale,
        "window": window,
        "lse": return_lse,
    }
    written = made, *lse[1:]
    if tokens == 0:
        for x, nothing in zip(written, (0, -math.inf)):
            kind.fill(x, nothing)
    elif batch > 0 and rows > 0:
        group.launch_operator(
            kind,
            "attention",
            desc,
            ("q", "k_cache", "v_cache", "out", "lse")[: 3 + len(written)],
            (kind.dense(kind.move(q, -3, -2)), k, v, *written),
            (rows, past),
            said=op,
        )
    return (finished(), finish(kind, *lse)) if return_lse else finished()


def _check_heads(op: str, q, k, v, enable_gqa: bool) -> None:
    shapes = [tuple(x.shape) for x in (q, k, v)]
    lead, width = shapes[0][:-3], shapes[0][-1:]
    if (
        q.ndim < 3
        or k.ndim != q.ndim
        or shapes[1] != shapes[2]
        or (shapes[1][:-3], shapes[1][-1:]) != (lead, width)
    ):
        raise UserError(
            f"{op}: shapes {', '.join(map(str, shapes))}; need [.., H, L, E], [.., H, S, E] twice"
        )
    heads, kv_heads = shapes[0][-3], shapes[1][-3]
    if min(heads, kv_heads, *width) < 1:
        raise UserError(f"{op}: shapes {shapes[0]} and {shapes[1]} without heads or elements")
    if heads != kv_heads and (not enable_gqa or heads % kv_heads):
        raise UserError(f"{op}: {heads} and {kv_heads} heads (enable_gqa={enable_gqa})")


def _rows_first(op: str, kind, out, q, *others):
    """(what launches write, [.., L, H, E] and dense; a function that gives the caller's result,
    [.., H, L, E], once it is there)."""
    lead, (heads, rows, width) = tuple(q.shape[:-3]), q.shape[-3:]
    if out is not None:
        out, _ = make_result(op, kind, out, q.shape, q)
        target = kind.move(out, -3, -2)
        read = q, *others
        if kind.is_dense(target) and not any(may_overlap(kind, out, x) for x in read):
            return target, lambda: out
    made = kind.empty(lead + (rows, heads, width), q)
    result = kind.move(made, -2, -3)
    if out is None:
        return made, lambda: result
    return made, lambda: finish(kind, out, result)
