"""Attention of several sequences, over pages, and the products around spread heads, on NumPy arrays
against plain softmax and products in float64."""

import numpy as np
import pytest

import stretto
from stretto import testing
from test_ops import near, numpy_dtype, parts, softmax_attention, wide


def lengths_to_starts(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


def poisoned(shape, dtype="float32"):
    return np.full(shape, np.nan, numpy_dtype(dtype))


MASKS = [(False, 0), (True, 0), (True, 3)]  # causal, window


@pytest.mark.parametrize("causal, window", MASKS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packed_sequences(rng, causal, window, dtype):
    for lengths in ([5, 0, 1, 9], rng.integers(0, 40, 6) + [1, 0, 0, 0, 0, 0]):
        starts, rows = lengths_to_starts(lengths), int(np.sum(lengths))
        (q,) = parts(rng, 1, (rows, 4, 16), dtype)
        k, v = parts(rng, 2, (rows, 2, 16), dtype)
        want = np.concatenate(
            [
                softmax_attention(
                    *(x[a:b] for x in (q, k, v)),
                    np.arange(b - a) + 1 if causal else [b - a] * (b - a),
                    window,
                )
                for a, b in zip(starts, starts[1:])
                if a < b
            ]
        )

        def body():
            out = poisoned((rows, 4, 16), dtype)
            options = {"is_causal": causal, "window": window}
            assert stretto.packed_attention(q, k, v, starts, out=out, **options) is out
            stretto.packed_attention(q, k, v, starts, **options)
            plans = stretto._world.group_of().alone().plans  # the quick way of repeated calls
            op = stretto._calls.with_options(stretto.attention._packed, causal, None, window, False)
            again = plans.replay(op, 0, None, q, k, v, starts)
            return out, again, stretto.packed_attention(q, k, v, starts.astype(np.int64), **options)

        for got in testing.run(1, body)[0]:
            near(got, want, dtype)


def test_weights_of_packed_rows(rng):
    """The sum of weights of each row, with a scale of one's own."""
    q, k, v = (rng.uniform(-1, 1, (7, 2, 8)).astype(np.float32) for _ in range(3))
    (pair,) = testing.run(
        1,
        lambda: stretto.packed_attention(
            q, k, v, np.array([0, 3, 7], np.int32), scale=0.7, return_lse=True
        ),
    )
    for row in range(7):
        first = 0 if row < 3 else 3
        scores = 0.7 * np.einsum("he,she->hs", *wide([q[row], k[first : row + 1]]))
        near(pair[1][:, row], np.log(np.exp(scores).sum(1)), "float32")
        weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        near(pair[0][row], np.einsum("hs,she->he", weights, wide([v])[0][first : row + 1]), "float32")


@pytest.mark.parametrize("form", ["sequence", "ring", "token_ring"])
@pytest.mark.parametrize("size, tokens", [(1, 9), (2, 21), (3, 16), (4, 40)])
def test_windows_of_a_sequence_over_the_ranks(rng, form, size, tokens):
    """Of one token, of some, of more than a rank has, of all."""
    rows = 2 * size * -(-tokens // (2 * size))
    q, k, v = (rng.uniform(-1, 1, (rows, h, 8)).astype(np.float32) for h in (4, 2, 2))
    call = stretto.sequence_attention if form == "sequence" else stretto.ring_attention
    travel = {"queries_travel": True} if form == "token_ring" else {}
    windows = [1, 3, tokens // 2 + 1, tokens + 5]

    def body():
        own = stretto.zigzag(tokens)
        with pytest.raises(stretto.UserError, match="window is 2"):
            call(q[own], k[own], v[own], tokens=tokens, window=2, is_causal=False, **travel)
        options = {"tokens": tokens, **travel}
        return own, [call(q[own], k[own], v[own], window=w, **options) for w in windows]

    for own, results in testing.run(size, body):
        real = [i for i, token in enumerate(own) if token < tokens]
        for window, got in zip(windows, results):
            whole = (x[:tokens] for x in (q, k, v))
            want = softmax_attention(*whole, np.arange(tokens) + 1, window)
            near(got[real], want[[own[i] for i in real]], "float32")


@pytest.mark.drawn(2)
@pytest.mark.parametrize("form", ["sequence", "ring", "token_ring"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_contiguous_shards(rng, form, size, dtype):
    """As a sequence is cut by chunk(): odd rows, a last rank with fewer and ranks without any, with and
    without a mask, one sequence and batches."""
    call = stretto.sequence_attention if form == "sequence" else stretto.ring_attention
    travel = {"queries_travel": True} if form == "token_ring" else {}
    batch, masks = 2, [(True, 0), (False, 0), (True, 4)]
    for tokens in (7 * size, int(rng.integers(1, 9 * size)), 1):
        rows = -(-tokens // size)
        every = [poisoned((batch, rows * size, h, 8), dtype) for h in (4, 2, 2)]
        for x in every:
            x[:, :tokens] = rng.uniform(-1, 1, x[:, :tokens].shape).astype(x.dtype)

        def body():
            mine = [np.split(x, size, 1)[stretto.rank()] for x in every]
            made = []
            for causal, window in masks:
                options = {"tokens": tokens, "is_causal": causal, "window": window, **travel}
                options |= {"contiguous": True, "return_lse": True}
                made.append((call(*mine, **options), call(*(x[0] for x in mine), **options)))
            return made

        ran = testing.run(size, body)
        for i, (causal, window) in enumerate(masks):
            whole = [np.concatenate([of[i][0][part] for of in ran], 1 + part) for part in range(2)]
            for b in range(batch):
                q, k, v = (x[b, :tokens] for x in every)
                seen = np.arange(tokens) + 1 if causal else [tokens] * tokens
                near(whole[0][b, :tokens], softmax_attention(q, k, v, seen, window), dtype)
                scores = np.einsum("lhe,she->hls", *wide([q, k.repeat(2, 1)])) / 8**0.5
                row, key = np.arange(tokens)[:, None], np.arange(tokens)
                hidden = (key > row) & causal | (key <= row - window) & (window > 0)
                want = np.log(np.where(hidden, 0, np.exp(scores)).sum(-1))
                near(whole[1][b, :, :tokens], want, "float32", tokens)
            alone = [np.concatenate([of[i][1][part] for of in ran], part) for part in range(2)]
            np.testing.assert_array_equal(alone[0][:tokens], whole[0][0, :tokens])
            np.testing.assert_array_equal(alone[1][:, :tokens], whole[1][0, :, :tokens])


@pytest.mark.parametrize("form", ["sequence", "ring", "token_ring"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_shards_without_padding(rng, form, size):
    """As torch.chunk cuts them, the last ones shorter or empty: what padded ones give, with and without out=."""
    torch = pytest.importorskip("torch")
    call = stretto.sequence_attention if form == "sequence" else stretto.ring_attention
    options = {"contiguous": True, "return_lse": True, "is_causal": bool(rng.integers(2))}
    options |= {"queries_travel": True} if form == "token_ring" else {}
    for tokens in (1, size + 1, 3 * size, int(rng.integers(1, 9 * size))):
        every = [torch.from_numpy(rng.uniform(-1, 1, (tokens, h, 8)).astype(np.float32)) for h in (4, 2, 2)]
        rows = -(-tokens // size)

        def body():
            r = stretto.rank()
            padding = [torch.full((rows * size - tokens, *x.shape[1:]), np.nan) for x in every]
            padded = [torch.cat([x, y])[r * rows : (r + 1) * rows] for x, y in zip(every, padding)]
            mine = [x[r * rows : (r + 1) * rows] for x in every]
            chunks = every[0].chunk(size)
            assert len(mine[0]) == (len(chunks[r]) if r < len(chunks) else 0)
            want = call(*padded, tokens=tokens, **options)
            want = want[0][: len(mine[0])], want[1][:, : len(mine[0])]
            outs = torch.full(mine[0].shape, np.nan), torch.full((4, len(mine[0])), np.nan)
            for got in (
                call(*mine, tokens=tokens, **options),
                call(*mine, tokens=tokens, out=outs, **options),
                outs,
                [x[0] for x in call(*(x[None] for x in mine), tokens=tokens, **options)],
            ):
                assert all(torch.equal(x, y) for x, y in zip(got, want)), (tokens, r)
            alone = {**options, "return_lse": False}
            assert torch.equal(call(*mine, tokens=tokens, **alone), want[0])

        testing.run(size, body, timeout=60)


def test_contiguous_shards_that_do_not_fit():
    def body():
        r = stretto.rank()
        q = np.ones((3, 2, 8), np.float32)
        need = r"need ceil\(7 / 2\)" if r == 0 else r"need ceil\(7 / 2\), or without padding 3, on rank 1"
        for rows in (2, 5):
            with pytest.raises(stretto.UserError, match=rf"{rows} rows of tokens=7 on 2 ranks; {need}"):
                x = np.ones((rows, 2, 8), np.float32)
                stretto.ring_attention(x, x, x, tokens=7, contiguous=True)
        with pytest.raises(stretto.UserError, match="no rows; where ranks have different numbers of rows, say tokens="):
            stretto.ring_attention(q[:0], q[:0], q[:0], contiguous=True)
        assert stretto.ring_attention(q, q, q, contiguous=True).shape == q.shape

    testing.run(2, body)


@pytest.mark.parametrize("form", ["sequence", "ring", "token_ring"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_batches_of_sequences_over_the_ranks(rng, form, size):
    """Against each sequence by itself in float64; with padding, a window, logarithms and given results."""
    batch, tokens = 3, 4 * size - 1
    rows = 2 * -(-tokens // (2 * size))
    q, k, v = (rng.uniform(-1, 1, (batch, rows * size, h, 8)).astype(np.float32) for h in (4, 2, 2))
    options = {"tokens": tokens, "window": 3, **({"queries_travel": True} if form == "token_ring" else {})}

    def body():
        at = stretto.zigzag(tokens)
        op = stretto.sequence_attention if form == "sequence" else stretto.ring_attention
        mine = [np.ascontiguousarray(x[:, at]) for x in (q, k, v)]
        out, lse = np.empty((batch, rows, 4, 8), np.float32), np.empty((batch, 4, rows), np.float32)
        given = op(*mine, **options, return_lse=True, out=(out, lse))
        assert given[0] is out and given[1] is lse
        got = op(*mine, **options)
        np.testing.assert_array_equal(got, out)
        return at, got, lse

    for at, got, lse in testing.run(size, body):
        real = [i for i, token in enumerate(at) if token < tokens]
        for b in range(batch):
            whole = (x[b, :tokens] for x in (q, k, v))
            want = softmax_attention(*whole, np.arange(tokens) + 1, window=3)
            near(got[b][real], want[[at[i] for i in real]], "float32", tokens)
            keys = k[b, :tokens].repeat(2, 1).astype(np.float64)
            scores = np.einsum("lhe,she->hls", q[b, :tokens], keys) / 8**0.5
            row, key = np.arange(tokens)[:, None], np.arange(tokens)
            scores[:, (key > row) | (key <= row - 3)] = -np.inf
            near(lse[b][:, real], np.log(np.exp(scores).sum(-1))[:, [at[i] for i in real]], "float32", tokens)


def test_batches_that_do_not_fit():
    def body():
        q, k = np.ones((2, 4, 2, 8), np.float32), np.ones((3, 4, 2, 8), np.float32)
        with pytest.raises(stretto.UserError, match="need .batch, rows, Hq, E. and .batch, rows, Hkv, E. twice"):
            stretto.ring_attention(q, k, k)
        with pytest.raises(stretto.UserError, match="out"):
            stretto.ring_attention(q, q, q, out=np.empty((2, 4, 2, 7), np.float32))

    testing.run(1, body)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_windows_of_decoding_over_a_cache_on_all_ranks(rng, size):
    block, length = 4, 3
    most = 6 * block * size
    q = rng.uniform(-1, 1, (length, 4, 8)).astype(np.float32)
    k, v = (rng.uniform(-1, 1, (most, 2, 8)).astype(np.float32) for _ in range(2))
    calls = [(tokens, window) for tokens in (3, 17, most) for window in (1, 5, 14, most)]

    def body():
        mine = np.arange(most) // block % size == stretto.rank()
        caches = [np.ascontiguousarray(x[mine].swapaxes(0, 1)) for x in (k, v)]
        return [stretto.flash_decode(q, *caches, n, block=block, window=w) for n, w in calls]

    for results in testing.run(size, body):
        for (tokens, window), got in zip(calls, results):
            seen = tokens - length + 1 + np.arange(length)
            near(got, softmax_attention(q, k, v, seen, window), "float32")


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_of_decoding_over_a_cache_on_all_ranks(rng, size, dtype):
    """By which they are weighed beside what other caches hold of the same context."""
    block, length, heads = 4, 3, 4
    most = 6 * block * size
    (q,) = parts(rng, 1, (length, heads, 8), dtype)
    k, v = parts(rng, 2, (most, 2, 8), dtype)
    calls = [(n, w, s) for n in (3, 17, most) for w in (0, 5) for s in (None, -0.7)]

    def body():
        mine = np.arange(most) // block % size == stretto.rank()
        caches = [np.ascontiguousarray(x[mine].swapaxes(0, 1)) for x in (k, v)]
        results = []
        for n, w, s in calls:
            options = {"block": block, "window": w, "scale": s}
            out = poisoned(q.shape, dtype), poisoned((length, heads))
            got = stretto.flash_decode(q, *caches, n, return_lse=True, out=out, **options)
            assert got[0] is out[0] and got[1] is out[1]
            for _ in range(2):
                again = stretto.flash_decode(q, *caches, n, return_lse=True, **options)
                assert all((x == y).all() for x, y in zip(got, again))
            assert (stretto.flash_decode(q, *caches, n, **options) == got[0]).all()
            results.append(got)
        one, lse = stretto.flash_decode(q[:1], *caches, 1, block=block, return_lse=True)
        assert one.shape == (1, heads, 8) and lse.shape == (1, heads)
        none, lse = stretto.flash_decode(q[:0], *caches, 0, block=block, return_lse=True)
        assert none.shape == (0, heads, 8) and (lse.shape, lse.dtype) == ((0, heads), np.float32)
        with pytest.raises(stretto.UserError, match="out is one ndarray, need 2"):
            stretto.flash_decode(q, *caches, 3, block=block, return_lse=True, out=out[0])
        return results

    wide_q, wide_k = wide([q, np.repeat(k, heads // 2, 1)])
    want = []
    for n, w, s in calls:
        seen = n - length + 1 + np.arange(length)
        token = np.arange(n)
        hidden = (token >= seen[:, None]) | (w > 0) & (token < seen[:, None] - w)
        scores = np.einsum("qhe,she->qhs", wide_q, wide_k[:n]) * (8**-0.5 if s is None else s)
        weights = np.where(hidden[:, None], 0, np.exp(scores))
        sums = np.einsum("qhs,she->qhe", weights, wide([np.repeat(v[:n], heads // 2, 1)])[0])
        want.append((sums / weights.sum(-1, keepdims=True), np.log(weights.sum(-1))))
    ranks = testing.run(size, body)
    for results in ranks:
        for got, first, both in zip(results, ranks[0], want):
            near(got[0], both[0], dtype)
            near(got[1], both[1], "float32")
            assert all((x == y).all() for x, y in zip(got, first))


def test_calls_over_the_ranks_say_what_they_need(rng):
    (q,) = parts(rng, 1, (3, 4, 8))
    (cache,) = parts(rng, 1, (2, 8, 8))

    def body():
        for match, call in (
            ("zigzag: 0 tokens, need at least 1", lambda: stretto.zigzag(0)),
            ("zigzag: rank 2, need 0 to 1", lambda: stretto.zigzag(4, rank=2)),
            ("flash_decode: 0 tokens; need at least 3, one for each query, and at most 16", 0),
            ("flash_decode: 2 tokens; need at least 3, one for each query", 2),
            ("flash_decode: 17 tokens.*at most 16, the rows of the caches of 2 ranks", 17),
            (
                "flash_decode: blocks of 3 tokens in caches of 8 rows; need a divisor of the rows",
                lambda: stretto.flash_decode(q, cache, cache, 4, block=3),
            ),
        ):
            with pytest.raises(stretto.UserError, match=match):
                if callable(call):
                    call()
                else:
                    stretto.flash_decode(q, cache, cache, call, block=4)

    testing.run(2, body)


@pytest.mark.parametrize("causal, window", MASKS)
def test_sequences_in_pages(rng, causal, window):
    """Prompts that go on, a decoding step and a sequence without queries share one cache."""
    page, heads, kv_heads, width = 4, 4, 2, 8
    new, tokens = [3, 1, 0, 5], [7, 9, 2, 5]
    most, num_pages = 3, 12
    starts = lengths_to_starts(new)
    (q,) = parts(rng, 1, (sum(new), heads, width))
    k_pages, v_pages = poisoned((num_pages, kv_heads, page, width)), None
    v_pages = k_pages.copy()
    free, table, want = list(rng.permutation(num_pages)), np.zeros((4, most), np.int32), []
    for s, (length, total) in enumerate(zip(new, tokens)):
        k, v = parts(rng, 2, (total, kv_heads, width))
        for first in range(0, total, page):
            table[s, first // page] = at = free.pop()
            for pages, x in ((k_pages, k), (v_pages, v)):
                part = x[first : first + page]
                pages[at, :, : len(part)] = part.swapaxes(0, 1)
        seen = total - length + 1 + np.arange(length) if causal else [total] * length
        want.append(softmax_attention(q[starts[s] : starts[s + 1]], k, v, seen, window))

    def body():
        out = poisoned(q.shape)
        call = (q, k_pages, v_pages, starts, table, np.array(tokens, np.int32))
        assert stretto.paged_attention(*call, is_causal=causal, window=window, out=out) is out
        with pytest.raises(stretto.UserError, match="window is 2.*not causal"):
            stretto.paged_attention(*call, is_causal=False, window=2)
        table[1, 0] += 100
        with pytest.raises(stretto.UserError, match="block_table.*entry 3"):
            stretto.paged_attention(*call)
        with pytest.raises(stretto.UserError, match=r"cache_tokens is int32 \(3,\)"):
            stretto.paged_attention(*call[:5], call[5][:3])
        return out

    near(testing.run(1, body)[0], np.concatenate(want), "float32")


@pytest.mark.parametrize("window", [0, 5])
def test_decoding_over_pages(rng, window):
    """Of one token and of several pages; logarithms let results of two caches be added up."""
    page, heads, kv_heads, width, num_pages = 4, 6, 2, 8, 9
    tokens, table = np.array([1, 9, 4, 12], np.int32), np.zeros((4, 3), np.int64)
    (q,) = parts(rng, 1, (4, heads, width))
    k_pages, v_pages = parts(rng, 2, (num_pages, kv_heads, page, width))
    want, logs = [], []
    for s, total in enumerate(tokens):
        table[s] = rng.permutation(num_pages)[:3]
        k, v = (x[table[s]].swapaxes(1, 2).reshape(-1, kv_heads, width)[:total] for x in (k_pages, v_pages))
        k, v = k[-window:], v[-window:]
        want.append(softmax_attention(q[s : s + 1], k, v, [len(k)]))
        scores = np.einsum("he,she->hs", *wide([q[s], np.repeat(k, heads // kv_heads, 1)])) / width**0.5
        logs.append(np.log(np.exp(scores).sum(1)))

    def body():
        out = poisoned(q.shape), poisoned((4, heads))
        call = (q, k_pages, v_pages, table, tokens)
        got = stretto.paged_decode(*call, window=window, return_lse=True, out=out)
        assert got[0] is out[0] and got[1] is out[1]
        assert (stretto.paged_decode(*call, window=window) == out[0]).all()
        table[1, 2] = num_pages
        with pytest.raises(stretto.UserError, match="block_table.*entry 5"):
            stretto.paged_decode(*call)
        with pytest.raises(stretto.UserError, match=r"block_table .*\(4,\)"):
            stretto.paged_decode(*call[:3], table[:, 0], tokens)
        return out

    out, lse = testing.run(1, body)[0]
    near(out, np.concatenate(want), "float32")
    near(lse, np.stack(logs), "float32")


def test_many_numbers_of_rows_have_one_program(rng):
    """Else every step of a server compiles."""

    def body():
        for rows in (100, 97, 112, 105):
            q, k = parts(rng, 2, (rows, 2, 8))
            starts = np.array([0, rows // 3, rows], np.int32)
            got = stretto.packed_attention(q, k, k, starts)
            for a, b in ((0, rows // 3), (rows // 3, rows)):
                near(got[a:b], softmax_attention(q[a:b], k[a:b], k[a:b], np.arange(b - a) + 1), "float32")
        return len(stretto._world.group_of().alone()._entries)

    assert testing.run(1, body) == [1]
    sizes = [stretto._calls.bound_of(rows) for rows in range(1, 5000)]
    assert all(rows <= bound <= rows * 1.25 for rows, bound in enumerate(sizes, 1))
    assert len(set(sizes)) < 48


def test_packed_calls_that_do_not_fit(rng):
    q, k = np.zeros((4, 4, 8), np.float32), np.zeros((4, 3, 8), np.float32)

    def body():
        for match, call in (
            ("Hq a multiple of Hkv", lambda: stretto.packed_attention(q, k, k, np.array([0, 4]))),
            ("cu_seqlens is float32", lambda: stretto.packed_attention(q, q, q, q[0, 0])),
            (r"need \[sequences", lambda: stretto.packed_attention(q, q, q, np.array([4]))),
            ("cu_seqlens.*entry 1", lambda: stretto.packed_attention(q, q, q, np.array([0, 3]))),
            ("float64", lambda: stretto.packed_attention(*[q.astype(float)] * 3, np.array([0, 4]))),
        ):
            with pytest.raises(stretto.UserError, match=match):
                call()

    testing.run(1, body)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("biased", [False, True])
def test_products_around_spread_heads(rng, size, dtype, biased):
    """What goes out of the first product comes in to the second: together they are the whole ones."""
    rows, n, k = 5, 4 * size, 6 * size
    a, (weight,) = parts(rng, size, (rows, k), dtype), parts(rng, 1, (n, k), dtype)
    (bias,) = parts(rng, 1, (n,), dtype)
    spread = parts(rng, size, (rows * size, k // size), dtype)
    extra = {"bias": bias} if biased else {}

    def body():
        r = stretto.rank()
        out = poisoned((rows, n), dtype)
        assert stretto.all_to_all_matmul(spread[r], weight.T, out=out, **extra) is out
        return stretto.matmul_all_to_all(a[r], weight.T, **extra), out

    added = wide([bias])[0] if biased else 0
    whole = np.concatenate(wide(a)) @ wide([weight])[0].T + added
    back = np.concatenate(wide(spread), 1) @ wide([weight])[0].T + added
    for r, (out, home) in enumerate(testing.run(size, body)):
        near(out, np.split(whole, size, 1)[r], dtype, k)
        near(home, np.split(back, size)[r], dtype, k)


def test_products_around_spread_heads_that_do_not_fit(rng):
    a, b = np.ones((2, 6), np.float32), np.ones((6, 3), np.float32)

    def body():
        for match, call in (
            ("3 columns cannot be split", lambda: stretto.matmul_all_to_all(a, b)),
            (r"\[rows, K / 2\]", lambda: stretto.all_to_all_matmul(a, b)),
            (r"bias \[N\]", lambda: stretto.matmul_all_to_all(a, b.T @ b, bias=a[0])),
            ("1 rows cannot be split", lambda: stretto.all_to_all_matmul(a[:1, :3], b)),
        ):
            with pytest.raises(stretto.UserError, match=match):
                call()

    testing.run(2, body)
