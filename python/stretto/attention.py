"""Attention of a sequence that is spread over the ranks, and decoding over a cache that is; see
ops.py for what all operators have in common. They have no gradient."""

from __future__ import annotations

import math
from typing import List, Optional

from . import _core, _route
from ._arrays import adopt
from ._calls import computed_dtype, finish, make_result, same_kind
from ._world import current
from .errors import UserError


def zigzag(tokens: int, *, rank: Optional[int] = None) -> List[int]:
    """Which token each row of a rank (default: this one) is, in the placement that
    sequence_attention and ring_attention want; tokens and above: padding.

    Of 2 P chunks of c = ceil(tokens / 2 P) rank r has chunks r and 2 P - 1 - r, 2 c rows, so that
    causal attention is the same work on every rank.
    """
    group = current()
    chunks, own = 2 * group.size, group.rank if rank is None else rank
    if not 0 <= own < group.size or tokens < 1:
        raise UserError(f"zigzag: {tokens} tokens, rank {own} of {group.size}")
    rows = -(-tokens // chunks)
    return [chunk * rows + i for chunk in (own, chunks - 1 - own) for i in range(rows)]


def sequence_attention(
    query,
    key,
    value,
    *,
    tokens: Optional[int] = None,
    is_causal: bool = True,
    scale: Optional[float] = None,
    out=None,
):
    """Attention of one sequence whose tokens lie over the ranks as zigzag() says.

    `query`: [2c, Hq, E]; `key`, `value`: [2c, Hkv, E], Hkv a divisor of Hq; this rank's tokens.
    `tokens` of all ranks: default all rows are tokens. scale: default 1 / sqrt(E). float32 softmax.
    Result [2c, Hq, E]; rows of padding hold nothing. Every rank gets all keys and values, by copy
    engines on GPUs, while it begins with its own.
    """
    op = "sequence_attention"
    return _spread("gathered", op, query, key, value, tokens, is_causal, scale, out)


def ring_attention(
    query,
    key,
    value,
    *,
    tokens: Optional[int] = None,
    is_causal: bool = True,
    scale: Optional[float] = None,
    queries_travel: bool = False,
    out=None,
):
    """The same as sequence_attention(), with less memory: keys and values travel from rank to rank,
    through two places. `queries_travel`: queries do, and sums come back (TokenRing)."""
    form = "token_ring" if queries_travel else "ring"
    return _spread(form, "ring_attention", query, key, value, tokens, is_causal, scale, out)


def _spread(form, op, query, key, value, tokens, is_causal, scale, out):
    if out is None and _route.wants(query, key, value):
        return _route.layer.sequence_attention(query, key, value, form, tokens, is_causal, scale)
    kind, q = adopt(query)
    k, v = same_kind(op, kind, key, value)
    dtype = computed_dtype(op, kind, q, k, v, doubles=False)
    group = current()
    if (
        q.ndim != 3
        or k.ndim != 3
        or tuple(k.shape) != tuple(v.shape)
        or q.shape[0] != k.shape[0]
        or q.shape[2] != k.shape[2]
        or min(tuple(q.shape) + tuple(k.shape)) < 1
        or q.shape[1] % k.shape[1]
    ):
        raise UserError(
            f"{op}: shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}; need "
            "[rows, Hq, E] and [rows, Hkv, E] twice, Hq a multiple of Hkv"
        )
    rows, heads, width = q.shape
    kv_heads = k.shape[1]
    tokens = rows * group.size if tokens is None else int(tokens)
    if tokens < 1 or 2 * -(-tokens // (2 * group.size)) != rows:
        raise UserError(
            f"{op}: {rows} rows of {tokens} tokens on {group.size} ranks; need twice the tokens of "
            "a chunk (zigzag)"
        )
    result, written = make_result(op, kind, out, q.shape, q)
    scale = 1.0 / math.sqrt(width) if scale is None else float(scale)
    q, k, v = kind.dense(q), kind.dense(k), kind.dense(v)
    group.launch(
        kind,
        (op, form, group.size, dtype, tokens, heads, kv_heads, width, is_causal, scale),
        lambda on_gpu: _core.sequence_attention(
            form, group.size, dtype, tokens, heads, kv_heads, width, is_causal, scale, on_gpu
        ),
        ("q", "k", "v", "out"),
        (q, k, v, written),
        (tokens,),
    )
    return finish(kind, result, written)


def flash_decode(
    query,
    key_cache,
    value_cache,
    tokens: int,
    *,
    block: int = 64,
    scale: Optional[float] = None,
    out=None,
):
    """Causal attention of the last L tokens over a cache that is spread over the ranks.

    `query`: [L, Hq, E], the same on every rank; `key_cache`, `value_cache`: [Hkv, rows, E], of
    which block b of the tokens is the b // P-th `block` rows of rank b % P; `tokens` the cache
    holds, those of the queries included and last. Result [L, Hq, E], the same bits on every rank.
    """
    if out is None and _route.wants(query, key_cache, value_cache):
        return _route.layer.flash_decode(query, key_cache, value_cache, tokens, block, scale)
    op = "flash_decode"
    kind, q = adopt(query)
    k, v = same_kind(op, kind, key_cache, value_cache)
    dtype = computed_dtype(op, kind, q, k, v, doubles=False)
    group = current()
    if (
        q.ndim != 3
        or k.ndim != 3
        or tuple(k.shape) != tuple(v.shape)
        or q.shape[2] != k.shape[2]
        or min(tuple(q.shape) + tuple(k.shape)) < 1
        or q.shape[1] % k.shape[0]
    ):
        raise UserError(
            f"{op}: shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}; need "
            "[L, Hq, E] and [Hkv, rows, E] twice, Hq a multiple of Hkv"
        )
    length, heads, width = q.shape
    kv_heads, rows = k.shape[:2]
    most = rows * group.size
    if block < 1 or rows % block or not length <= tokens <= most:
        raise UserError(
            f"{op}: {tokens} tokens, {length} of them new, in blocks of {block}, in caches of "
            f"{rows} rows on {group.size} ranks"
        )
    result, written = make_result(op, kind, out, q.shape, q)
    scale = 1.0 / math.sqrt(width) if scale is None else float(scale)
    of_group = heads // kv_heads
    grouped = kind.move(q.reshape((length, kv_heads, of_group, width)), 1, 0)
    q = kind.dense(grouped).reshape((kv_heads, length * of_group, width))
    seen = [tokens - length + 1 + i for i in range(length) for _ in range(of_group)]
    made = kind.empty(q.shape, q)
    group.launch(
        kind,
        (op, group.size, dtype, length, most, block, heads, kv_heads, width, scale),
        lambda on_gpu: _core.flash_decode(
            group.size, dtype, length, most, block, heads, kv_heads, width, scale, on_gpu
        ),
        ("q", "seen", "k_cache", "v_cache", "out"),
        (q, kind.ints(seen, q).reshape((-1, 1)), kind.dense(k), kind.dense(v), made),
        (length, tokens),
    )
    made = kind.move(made.reshape((kv_heads, length, of_group, width)), 0, 1)
    kind.assign(written, made.reshape(tuple(result.shape)))
    return finish(kind, result, written)
