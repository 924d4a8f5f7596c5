"""Attention of a sequence that is spread over the ranks, decoding over a cache that is, and attention
of several sequences in one array or over a cache of pages; see ops.py for what all operators have in
common. They have no gradient."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from . import _route
from ._adopt import adopt
from ._arguments import checked
from ._arrays import ArrayT
from ._attention_calls import (
    checked_heads,
    checked_pages,
    finished,
    heads_desc,
    options_in_words,
    results_of,
    scales_of_pages,
)
from ._calls import (
    as_table,
    bound_of,
    call_with,
    check_apart,
    checked_result,
    described,
    int_table,
    same_kind,
    scale_or_none,
    several,
    whole,
    with_options,
)
from ._group import after_meetings
from ._world import GroupLike, alone, counted, group_of, name_of
from .errors import UserError


@checked
def zigzag(tokens: int, *, rank: Optional[int] = None, group: GroupLike = None) -> List[int]:
    """Which token each row of a rank of the group (default: this one) is, in the placement that
    sequence_attention and ring_attention want; tokens and above: padding.

    Of 2 P chunks of c = ceil(tokens / 2 P) rank r has chunks r and 2 P - 1 - r, 2 c rows, so that
    causal attention is the same work on every rank.
    """
    group = group_of(group)
    chunks, own = 2 * group.size, group.rank if rank is None else whole("zigzag", "rank", rank)
    tokens = whole("zigzag", "tokens", tokens)
    if tokens < 1:
        raise UserError(f"zigzag: {tokens} tokens, need at least 1")
    if not 0 <= own < group.size:
        raise UserError(f"zigzag: rank {own}, need 0 to {group.size - 1}, a rank of the group")
    rows = -(-tokens // chunks)
    return [chunk * rows + i for chunk in (own, chunks - 1 - own) for i in range(rows)]


@counted
def sequence_attention(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    *,
    tokens: Optional[int] = None,
    is_causal: bool = True,
    scale: Optional[float] = None,
    window: int = 0,
    contiguous: bool = False,
    return_lse: bool = False,
    group: GroupLike = None,
    out: Any = None,
) -> Any:
    """Attention of one sequence whose tokens lie over the ranks as zigzag() says.

    `query`: [2c, Hq, E]; `key`, `value`: [2c, Hkv, E], Hkv a divisor of Hq; this rank's tokens.
    `tokens` of all ranks: default all rows are tokens. `is_causal`: a token sees those up to itself,
    of these the last `window` where that is not 0; else all of them. scale: any number, default
    1 / sqrt(E). float32 softmax. Result [2c, Hq, E]; rows of padding hold nothing. `return_lse`:
    (result, float32 [Hq, 2c], the logarithm of each row's sum of weights), `out` a pair then. Every
    rank gets all keys and values, or those that its window sees, by copy engines on GPUs, while it
    begins with its own.

    `contiguous`: rank r has the rows from r * S on of the sequence instead, S = ceil(tokens / P), as
    torch.chunk cuts it; results have as many rows. Where that leaves the last ranks fewer, or none,
    `tokens` says of how many all are, and rows are copied; or those ranks have S with padding. Causal
    attention is then 2 - 1 / P times the mean work on the last rank, for which the others wait where they
    next meet it: zigzag rows take half to two thirds of the time.

    Batches of sequences of one length: [batch, 2c, Hq, E] and [batch, 2c, Hkv, E], results
    [batch, 2c, Hq, E] and [batch, Hq, 2c]; one launch, before which they are copied.
    """
    op = "sequence_attention"
    options = tokens, is_causal, scale, window, contiguous, return_lse
    return _spread(op, op, query, key, value, *options, group, out)


@counted
def ring_attention(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    *,
    tokens: Optional[int] = None,
    is_causal: bool = True,
    scale: Optional[float] = None,
    window: int = 0,
    contiguous: bool = False,
    queries_travel: bool = False,
    return_lse: bool = False,
    group: GroupLike = None,
    out: Any = None,
) -> Any:
    """The same as sequence_attention(), with less memory: keys and values travel from rank to rank,
    through two places, of up to eight GPUs one for each other rank. `queries_travel`: queries do,
    and sums come back (TokenRing)."""
    op = "ring_attention"
    options = tokens, is_causal, scale, window, contiguous, return_lse
    return _spread("token_ring" if queries_travel else op, op, query, key, value, *options, group, out)


def _spread(program, op, query, key, value, *options):
    if getattr(query, "ndim", 0) == 4:
        return _batch_spread(program, op, (query, key, value), *options)
    tokens, is_causal, scale, window, contiguous, return_lse, group, out = options
    is_causal, contiguous, return_lse = bool(is_causal), bool(contiguous), bool(return_lse)
    if out is None and _route.wants(query, key, value):
        options = program, tokens, is_causal, scale, window, contiguous, name_of(group), return_lse
        made = _route.forward.sequence_attention(query, key, value, *options)
        return made if return_lse else made[0]
    scale, window = scale_or_none(op, scale), whole(op, "window", window)
    tokens = None if tokens is None else whole(op, "tokens", tokens)
    options = program, op, tokens, is_causal, scale, window, contiguous, return_lse
    out = several(op, out, 2) if return_lse else out
    return call_with(group_of(group), op, _spread_heads, options, out, query, key, value)


def _spread_heads(group, program, op, tokens, *options):
    is_causal, scale, window, contiguous, return_lse, query, key, value, out = options
    kind, dtype, q, k, v = checked_heads(op, query, key, value, "rows, Hkv, E")
    rows, heads, width = q.shape
    kv_heads = k.shape[1]
    placed = _placed_rows(op, group, rows, tokens, contiguous)
    tokens = rows * group.size if tokens is None else tokens
    bound = bound_of(tokens)
    columns = _rows_of(bound, group.size, contiguous)
    results: List[Any] = []
    if rows != placed:
        results = results_of(op, kind, out, (q, k, v), return_lse)
        q, k, v = (_with_rows(kind, x, placed) for x in (q, k, v))
        out = None
    made = results_of(op, kind, out, (q, k, v), return_lse, lse_columns=columns)
    given = {"query": q, "key": k, "value": v}
    options = f"tokens={tokens}", *options_in_words(is_causal, scale, window, return_lse)
    words = "contiguous" if contiguous else "", "queries_travel" if program == "token_ring" else ""
    group.launch_operator(
        kind,
        program,
        {
            **heads_desc(dtype, bound, heads, kv_heads, width, scale),
            "world_size": group.size,
            "causal": is_causal,
            "window": window,
            "lse": return_lse,
            "contiguous": contiguous,
        },
        ("q", "k", "v", "out", "lse")[: 3 + len(made)],
        (kind.dense(q), kind.dense(k), kind.dense(v), *(written for _, written in made)),
        (tokens,),
        said=described(op, kind, given, *options, *words),
    )
    if not results:
        return finished(kind, made)
    (result, _), *lse = results
    kind.assign(result, made[0][1][:rows])
    if not lse:
        return result
    kind.assign(lse[0][0], made[1][1][:, :rows])
    return result, lse[0][0]


def _placed_rows(op: str, group, rows: int, tokens: Optional[int], contiguous: bool) -> int:
    """Rows of each rank in the program; this one may have fewer, as many as there are tokens in its shard."""
    if tokens is None and rows == 0:
        raise UserError(f"{op}: no rows; where ranks have different numbers of rows, say tokens=, of all ranks")
    given = rows * group.size if tokens is None else tokens
    placed = _rows_of(given, group.size, contiguous)
    shard = min(max(given - group.rank * placed, 0), placed) if contiguous else placed
    if given < 1 or rows not in (placed, shard):
        need = "twice the tokens of a chunk (zigzag)"
        if contiguous:
            need = f"ceil({given} / {group.size})"
            need += f", or without padding {shard}, on rank {group.rank}" if shard != placed else ""
        raise UserError(f"{op}: {rows} rows of tokens={given} on {group.size} ranks; need {need}")
    return placed


def _with_rows(kind, x, rows: int):
    made = kind.empty((rows, *x.shape[1:]), x)
    kind.assign(made[: x.shape[0]], x)
    return made


def _rows_of(tokens: int, ranks: int, contiguous: bool) -> int:
    """Of one rank, padding included."""
    return -(-tokens // ranks) if contiguous else 2 * -(-tokens // (2 * ranks))


def _batch_spread(program, op, arrays, *options):
    """Heads of different sequences see nothing of each other, so a batch is heads of one."""
    *options, return_lse, group, out = options
    shapes = [tuple(x.shape) for x in arrays if hasattr(x, "shape")]
    batch, rows = shapes[0][:2]
    if len(shapes) != 3 or any(len(s) != 4 or s[:2] != (batch, rows) for s in shapes):
        raise UserError(
            f"{op}: shapes {shapes}; need [batch, rows, Hq, E] and [batch, rows, Hkv, E] twice"
        )
    outs = (out,) if not return_lse else several(op, out, 2) or (None, None)
    given = _checked_batches(op, arrays[0], outs)
    heads = [x.swapaxes(0, 1).reshape((rows, batch * x.shape[2], x.shape[3])) for x in arrays]
    made = _spread(program, op, *heads, *options, return_lse, group, None)
    with after_meetings():
        results = list(made) if return_lse else [made]
        results[0] = results[0].reshape((rows, batch, *shapes[0][2:])).swapaxes(0, 1)
        if return_lse:
            results[1] = results[1].reshape((batch, shapes[0][2], rows))
        for i, (kind, result) in given.items():
            kind.assign(result, results[i])
            results[i] = outs[i]
    return tuple(results) if return_lse else results[0]


def _checked_batches(op: str, query, outs) -> Dict[int, Any]:
    """(kind, array) of the results that the caller has given, by place."""
    kind, q = adopt(op, "query", query)
    batch, rows, heads, _ = q.shape
    forms = ((tuple(q.shape), kind.dtype(q)), ((batch, heads, rows), "float32"))
    made = {
        i: (kind, checked_result(op, kind, given, *form, "out" if len(outs) == 1 else f"out[{i}]"))
        for i, (given, form) in enumerate(zip(outs, forms))
        if given is not None
    }
    for _, x in made.values():
        kind.count_write(x)
    check_apart(op, kind, [x for _, x in made.values()])
    return made


@counted
def flash_decode(
    query: ArrayT,
    key_cache: ArrayT,
    value_cache: ArrayT,
    tokens: int,
    *,
    block: int = 64,
    scale: Optional[float] = None,
    window: int = 0,
    return_lse: bool = False,
    group: GroupLike = None,
    out: Any = None,
) -> Any:
    """Causal attention of the last L tokens over a cache that is spread over the ranks.

    `query`: [L, Hq, E], the same on every rank; `key_cache`, `value_cache`: [Hkv, rows, E], of
    which block b of the tokens is the b // P-th `block` rows of rank b % P; `tokens` the cache
    holds, those of the queries included and last. Of what a token sees, itself included, only the
    last `window` where that is not 0. Result [L, Hq, E], the same bits on every rank; with
    `return_lse` also float32 [L, Hq], the logarithm of each row's sum of weights over all ranks'
    tokens, `out` a pair then.

    Errors: UserError for shapes and types that do not fit, fewer tokens than queries, and more than
    the caches have rows.
    """
    return_lse = bool(return_lse)
    if out is None and _route.wants(query, key_cache, value_cache):
        arrays, options = (query, key_cache, value_cache), (tokens, block, scale, window)
        made = _route.forward.flash_decode(*arrays, *options, name_of(group), return_lse)
        return made if return_lse else made[0]
    op = "flash_decode"
    scale, window = scale_or_none(op, scale), whole(op, "window", window)
    tokens, block = whole(op, "tokens", tokens), whole(op, "block", block)
    body = with_options(_flash_decode, block, scale, window, return_lse)
    out = several(op, out, 2) if return_lse else out
    return group_of(group).call(body, tokens, out, query, key_cache, value_cache)


def _flash_decode(block, scale, window, return_lse, group, query, key_cache, value_cache, tokens, out):
    op = "flash_decode"
    kind, dtype, q, k, v = checked_heads(op, query, key_cache, value_cache, "Hkv, cached, E")
    length, heads, width = q.shape
    kv_heads, rows = k.shape[:2]
    most = rows * group.size
    if block < 1 or rows % block:
        raise UserError(
            f"{op}: blocks of {block} tokens in caches of {rows} rows; need a divisor of the rows"
        )
    if not length <= tokens <= most:
        raise UserError(
            f"{op}: {tokens} tokens; need at least {length}, one for each query, and at most {most}, "
            f"the rows of the caches of {group.size} ranks"
        )
    results = results_of(op, kind, out, (q, k, v), return_lse, lse_shape=(length, heads))
    given = {"query": q, "key_cache": k, "value_cache": v}
    options = f"tokens={tokens}", f"block={block}", *options_in_words(True, scale, window, return_lse)
    said = described(op, kind, given, *options)
    if length == 0:
        group.agree_on_nothing(said)
        return finished(kind, results)
    of_group = heads // kv_heads
    grouped = kind.move(q.reshape((length, kv_heads, of_group, width)), 1, 0)
    q = kind.dense(grouped).reshape((kv_heads, length * of_group, width))
    if length == 1 and window == 0:  # which sees all that there are
        seen = [most] * of_group
        group.any_option = length, most, "tokens="
    else:
        seen = [tokens - length + 1 + i for i in range(length) for _ in range(of_group)]
    (result, written), *lse = results
    made = written.reshape(tuple(q.shape)) if length == 1 else kind.empty(q.shape, q)
    group.launch_operator(
        kind,
        op,
        {
            **heads_desc(dtype, length, heads, kv_heads, width, scale),
            "world_size": group.size,
            "max_tokens": most,
            "window": window,
            "block": block,
            "lse": return_lse,
        },
        ("q", "seen", "k_cache", "v_cache", "out", "lse")[: 4 + len(results)],
        (
            q,
            group.kept.constant(kind, seen, q).reshape((-1, 1)),
            kind.dense(k),
            kind.dense(v),
            made,
            *(each for _, each in lse),
        ),
        (length, tokens),
        said=said,
    )
    if length > 1:
        kind.assign(
            written.reshape((length, kv_heads, of_group, width)),
            kind.move(made.reshape((kv_heads, length, of_group, width)), 0, 1),
        )
    return finished(kind, results)


@checked
def packed_attention(
    query: ArrayT,
    key: ArrayT,
    value: ArrayT,
    cu_seqlens: ArrayT,
    *,
    is_causal: bool = True,
    scale: Optional[float] = None,
    window: int = 0,
    return_lse: bool = False,
    out: Any = None,
) -> Any:
    """Attention of several sequences that lie one after another in one array, each of its own
    length, which may be 0; not collective.

    `query`: [rows, Hq, E]; `key`, `value`: [rows, Hkv, E], Hkv a divisor of Hq. `cu_seqlens`: int32
    (int64 is converted) [sequences + 1], the first row of each sequence, then `rows`, on the
    arrays' device: lengths are read there, not by the host. `is_causal`: a token sees those of its
    sequence up to itself, of these the last `window` where that is not 0; else all of them. scale:
    any number, default 1 / sqrt(E). float32 softmax.
    Result [rows, Hq, E]; `return_lse`: (result, float32 [Hq, rows], the logarithm of each row's sum
    of weights), `out` a pair then.

    Errors: UserError for shapes and types that do not fit; for a `cu_seqlens` that does not begin
    with 0, end with `rows` and ascend in between, UserError on CPUs, on GPUs a Fault that a later
    call raises.
    """
    arrays = (query, key, value, cu_seqlens)
    is_causal, return_lse = bool(is_causal), bool(return_lse)
    if out is None and _route.wants(*arrays):
        made = _route.forward.packed_attention(*arrays, is_causal, scale, window, return_lse)
        return made if return_lse else made[0]
    name = "packed_attention"
    options = scale_or_none(name, scale), whole(name, "window", window), return_lse
    op = with_options(_packed, is_causal, *options)
    arrays = (*arrays[:3], *map(as_table, arrays[3:]))
    return alone().call(op, 0, several(name, out, 2) if return_lse else out, *arrays)


def _packed(is_causal, scale, window, return_lse, group, query, key, value, cu_seqlens, _, out):
    op = "packed_attention"
    kind, dtype, q, k, v = checked_heads(op, query, key, value, "rows, Hkv, E")
    rows, heads, width = q.shape
    starts = _starts(op, kind, cu_seqlens)
    bound = bound_of(rows)
    made = results_of(op, kind, out, (q, k, v, starts), return_lse, lse_columns=bound)
    if rows == 0:
        return finished(kind, made)
    names = ("starts", "q", "k", "v", "out", "lse")[: 4 + len(made)]
    group.launch_operator(
        kind,
        op,
        {
            **heads_desc(dtype, bound, heads, k.shape[1], width, scale),
            "sequences": starts.shape[0] - 1,
            "causal": is_causal,
            "window": window,
            "lse": return_lse,
        },
        names,
        (starts, kind.dense(q), kind.dense(k), kind.dense(v), *(written for _, written in made)),
        (rows,),
        said=op,
    )
    return finished(kind, made)


def _starts(op: str, kind, cu_seqlens):
    (given,) = same_kind(op, kind, cu_seqlens=cu_seqlens)
    if given.ndim != 1 or given.shape[0] < 2:
        raise UserError(f"{op}: cu_seqlens {tuple(given.shape)}; need [sequences + 1]")
    return int_table(op, kind, "cu_seqlens", given, given.shape)


@checked
def paged_attention(
    query: ArrayT,
    key_pages: ArrayT,
    value_pages: ArrayT,
    cu_seqlens: ArrayT,
    block_table: ArrayT,
    cache_tokens: ArrayT,
    *,
    key_scales: Optional[ArrayT] = None,
    value_scales: Optional[ArrayT] = None,
    is_causal: bool = True,
    scale: Optional[float] = None,
    window: int = 0,
    return_lse: bool = False,
    out: Any = None,
) -> Any:
    """Attention of the last tokens of several sequences over a cache of pages, which a table hands
    out to them; prompts that go on with what is cached, and decoding of a batch. Not collective.

    `query`, `cu_seqlens`: as packed_attention(), the tokens of this step, none of some sequences
    among them. `key_pages`, `value_pages`: [pages, Hkv, page, E]; token t of sequence s is row
    t % page of page block_table[s, t // page]. `block_table`: [sequences, most pages of one];
    `cache_tokens`: [sequences], how many tokens of each the cache holds, those of `query` included
    and last; int32 (int64 is converted), on the arrays' device. Entries of the table past a
    sequence's pages must be numbers of pages as well, such as 0. Pages of float8_e4m3fn have
    `key_scales` and `value_scales`, float32 [pages, Hkv, page]: a number of a page times its token's
    scale is what it stands for. `window`, scale: as packed_attention(). Result [rows, Hq, E];
    `return_lse`: (result, float32 [Hq, rows], the logarithm of each row's sum of weights), `out` a
    pair then. Rows that see nothing have -inf there, and a result that means nothing.

    Errors: as packed_attention(), for an entry that names no page likewise.
    """
    name = "paged_attention"
    arrays = (query, key_pages, value_pages, cu_seqlens, block_table, cache_tokens)
    scales = scales_of_pages(name, key_scales, value_scales)
    is_causal, return_lse = bool(is_causal), bool(return_lse)
    if out is None and _route.wants(*arrays, *scales):
        both = scales or (None, None)
        made = _route.forward.paged_attention(*arrays, *both, is_causal, scale, window, return_lse)
        return made if return_lse else made[0]
    options = scale_or_none(name, scale), whole(name, "window", window), return_lse
    op = with_options(_paged, is_causal, *options)
    arrays = (*arrays[:3], *map(as_table, arrays[3:]))
    return alone().call(op, 0, several(name, out, 2) if return_lse else out, *arrays, *scales)


def _paged(is_causal, scale, window, return_lse, group, query, key, value, *others):
    op, (cu_seqlens, block_table, cache_tokens, *scales, _, out) = "paged_attention", others
    kind, dtype, q, k, v, scales = checked_pages(op, query, key, value, scales)
    rows, heads, width = q.shape
    num_pages, kv_heads, page, _ = k.shape
    starts = _starts(op, kind, cu_seqlens)
    sequences = starts.shape[0] - 1
    pages, tokens = _page_tables(op, kind, block_table, cache_tokens, sequences)
    bound, read = bound_of(rows), (q, k, v, starts, pages, tokens, *scales)
    made = results_of(op, kind, out, read, return_lse, lse_columns=bound)
    if rows == 0:
        return finished(kind, made)
    group.launch_operator(
        kind,
        op,
        {
            **heads_desc(dtype, bound, heads, kv_heads, width, scale),
            "sequences": sequences,
            "causal": is_causal,
            "window": window,
            "lse": return_lse,
            "fp8": bool(scales),
            "page": page,
            "num_pages": num_pages,
            "max_tokens": pages.shape[1] * page,
        },
        (
            *("starts", "q", "pages", "tokens", "k_pages", "v_pages"),
            *("k_scales", "v_scales")[: len(scales)],
            *("out", "lse")[: len(made)],
        ),
        (
            *(starts, kind.dense(q), pages, tokens, kind.dense(k), kind.dense(v)),
            *scales,
            *(w for _, w in made),
        ),
        (rows,),
        said=op,
    )
    return finished(kind, made)


@checked
def paged_decode(
    query: ArrayT,
    key_pages: ArrayT,
    value_pages: ArrayT,
    block_table: ArrayT,
    cache_tokens: ArrayT,
    *,
    key_scales: Optional[ArrayT] = None,
    value_scales: Optional[ArrayT] = None,
    scale: Optional[float] = None,
    window: int = 0,
    return_lse: bool = False,
    out: Any = None,
) -> Any:
    """Attention of one new token of each of several sequences over a cache of pages: a step of
    decoding. Faster than paged_attention() at it: a group's heads are read together, a long
    sequence by several workers at once. Not collective.

    `query`: [sequences, Hq, E]; the others as in paged_attention(), `cache_tokens` counting the
    new token, whose key and value are in the cache; of these tokens it sees the last `window` where
    that is not 0. Result [sequences, Hq, E]; with `return_lse` also float32 [sequences, Hq], the
    logarithm of each row's sum of weights, `out` a pair then. Sequences without tokens give no
    numbers, but -inf as logarithms.

    Errors: as paged_attention().
    """
    name = "paged_decode"
    arrays = (query, key_pages, value_pages, block_table, cache_tokens)
    scales = scales_of_pages(name, key_scales, value_scales)
    return_lse = bool(return_lse)
    if out is None and _route.wants(*arrays, *scales):
        both = scales or (None, None)
        made = _route.forward.paged_decode(*arrays, *both, scale, window, return_lse)
        return made if return_lse else made[0]
    options = scale_or_none(name, scale), whole(name, "window", window), return_lse
    op = with_options(_decode_pages, *options)
    arrays = (*arrays[:3], *map(as_table, arrays[3:]))
    return alone().call(op, 0, several(name, out, 2) if return_lse else out, *arrays, *scales)


def _decode_pages(scale, window, return_lse, group, query, key, value, *others):
    op, (block_table, cache_tokens, *scales, _, out) = "paged_decode", others
    kind, dtype, q, k, v, scales = checked_pages(op, query, key, value, scales)
    rows, heads, width = q.shape
    num_pages, kv_heads, page, _ = k.shape
    pages, tokens = _page_tables(op, kind, block_table, cache_tokens, rows)
    read = q, k, v, pages, tokens, *scales
    made = results_of(op, kind, out, read, return_lse, lse_shape=(rows, heads))
    if rows == 0:
        return finished(kind, made)
    group.launch_operator(
        kind,
        op,
        {
            **heads_desc(dtype, bound_of(rows), heads, kv_heads, width, scale),
            "window": window,
            "lse": return_lse,
            "fp8": bool(scales),
            "page": page,
            "num_pages": num_pages,
            "max_tokens": pages.shape[1] * page,
        },
        (
            *("q", "pages", "tokens", "k_pages", "v_pages"),
            *("k_scales", "v_scales")[: len(scales)],
            *("out", "lse")[: len(made)],
        ),
        (
            *(kind.dense(q), pages, tokens, kind.dense(k), kind.dense(v)),
            *scales,
            *(w for _, w in made),
        ),
        (rows,),
        said=op,
    )
    return finished(kind, made)


def _page_tables(op: str, kind, block_table, cache_tokens, sequences: int):
    (table,) = same_kind(op, kind, block_table=block_table)
    if table.ndim != 2 or table.shape[1] < 1:
        raise UserError(f"{op}: block_table {tuple(table.shape)}; need [sequences, pages]")
    pages = int_table(op, kind, "block_table", table, (sequences, table.shape[1]))
    return pages, int_table(op, kind, "cache_tokens", cache_tokens, (sequences,))
