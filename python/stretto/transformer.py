"""Operators of transformer layers that are no linear layers; see ops.py for what all operators have
in common."""

from __future__ import annotations

import math
from typing import Any, Optional

from . import _route
from ._adopt import adopt
from ._arguments import checked
from ._arrays import ArrayT, may_overlap
from ._calls import (
    as_dense,
    check_apart,
    computed_dtype,
    finish,
    make_result,
    number,
    same_kind,
    scale_or_none,
    several,
    whole,
    with_options,
)
from ._world import alone
from .errors import UserError


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
    return alone().call(op, 0, out, as_dense(query, rows_first=True), as_dense(key), as_dense(value))


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
        "world_size": 1,
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
