"""Operators on NumPy arrays against NumPy's own sums and products, on ranks that are threads."""

import numpy as np
import pytest

import stretto
from stretto import testing

SIZES = [1, 2, 3]
DTYPES = ["float64", "float32", "float16", "bfloat16"]
TOLERANCE = {"float64": 1e-14, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


def numpy_dtype(name):
    if name == "bfloat16":
        return pytest.importorskip("ml_dtypes").bfloat16
    return np.dtype(name)


def parts(rng, size, shape, dtype="float32"):
    return [rng.uniform(-1, 1, shape).astype(numpy_dtype(dtype)) for _ in range(size)]


def near(got, want, dtype, terms=1):
    assert got.dtype == numpy_dtype(dtype)
    np.testing.assert_allclose(
        np.asarray(got, np.float64),
        want,
        rtol=TOLERANCE[dtype],
        atol=TOLERANCE[dtype] * (1 + terms**0.5),
    )


def wide(arrays):
    return [np.asarray(x, np.float64) for x in arrays]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_all_gather(rng, size, dim):
    for dtype in (np.float32, np.float64, np.int16, np.uint8):
        x = [rng.integers(0, 100, (3, 5, 7)).astype(dtype) for _ in range(size)]
        for got in testing.run(size, lambda: stretto.all_gather(x[stretto.rank()], dim=dim)):
            assert got.dtype == dtype
            np.testing.assert_array_equal(got, np.concatenate(x, dim))


@pytest.mark.parametrize("shape, dtype", [((16777217,), np.uint8), ((1027, 1029), np.int16)])
def test_large_arrays_that_are_no_whole_rows(rng, shape, dtype):
    x = [rng.integers(0, 100, shape, dtype) for _ in range(2)]

    def body():
        mine = x[stretto.rank()]
        whole = np.empty((2 * shape[0], *shape[1:]), dtype)
        assert stretto.all_gather(mine, out=whole) is whole
        return whole, stretto.broadcast(mine, 1), stretto.broadcast(mine.copy(), 0, out=mine.copy())

    for gathered, second, first in testing.run(2, body):
        assert np.array_equal(gathered, np.concatenate(x))
        assert np.array_equal(second, x[1]) and np.array_equal(first, x[0])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions(rng, size, dtype):
    x = parts(rng, size, (2 * size, 3 * size, 5), dtype)
    total = sum(wide(x))
    got = testing.run(size, lambda: stretto.all_reduce(x[stretto.rank()]))
    for g in got:
        near(g, total, dtype)
        assert g.tobytes() == got[0].tobytes()
    for g in testing.run(size, lambda: stretto.all_reduce(x[stretto.rank()], reduce_op="avg")):
        near(g, total / size, dtype)
    for dim in (0, 1):
        got = testing.run(size, lambda: stretto.reduce_scatter(x[stretto.rank()], dim=dim))
        near(np.concatenate(got, dim), total, dtype)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("sequence", [None, True])
def test_averages_of_large_numbers(rng, size, sequence):
    """Of numbers whose sum float16 does not have: they are rounded once."""
    x = [(60000 * v).astype(np.float16) for v in parts(rng, size, (2 * size, 40), "float64")]
    x = [np.where(abs(v) < 30000, np.float16(60000), v) for v in x]
    one = np.eye(40, dtype=np.float16)
    mean = sum(wide(x)) / size

    def body():
        mine = x[stretto.rank()]
        whole = stretto.all_reduce(mine, reduce_op="avg")
        assert (stretto.all_reduce(mine, reduce_op="avg", out=np.empty_like(mine)) == whole).all()
        return (
            whole,
            stretto.reduce_scatter(mine, reduce_op="avg"),
            stretto.matmul_reduce_scatter(mine, one, reduce_op="avg"),
        )

    results = testing.run(size, body, sequence=sequence)
    for whole, *scattered in results:
        np.testing.assert_allclose(wide([whole])[0], mean, rtol=1e-3, atol=20)
        if size != 3:  # where a third is rounded, too
            np.testing.assert_array_equal(whole, mean.astype(np.float16))
    for op in (1, 2):
        np.testing.assert_array_equal(np.concatenate([r[op] for r in results]), results[0][0])


@pytest.mark.parametrize("size", SIZES)
def test_broadcast_and_in_place(rng, size):
    x = parts(rng, size, (4, 3))
    for root in range(size):
        for got in testing.run(size, lambda: stretto.broadcast(x[stretto.rank()], root)):
            np.testing.assert_array_equal(got, x[root])
    mine = [v.copy() for v in x]
    got = testing.run(
        size, lambda: stretto.all_reduce(mine[stretto.rank()], out=mine[stretto.rank()])
    )
    for g, m in zip(got, mine):
        assert g is m
        near(m, sum(wide(x)), "float32")


@pytest.mark.parametrize("size", SIZES)
def test_all_to_all(rng, size):
    even = parts(rng, size, (2 * size, 3))
    got = testing.run(size, lambda: stretto.all_to_all(even[stretto.rank()]))
    for r, g in enumerate(got):
        np.testing.assert_array_equal(g, np.concatenate([e[2 * r : 2 * r + 2] for e in even]))
    counts = rng.integers(0, 4, (size, size))  # [from, to]
    counts[0, 0] = 0
    x = [rng.uniform(-1, 1, (int(c.sum()), 2, 3)) for c in counts]
    blocks = [np.split(v, np.cumsum(c)[:-1]) for v, c in zip(x, counts)]

    def body():
        r = stretto.rank()
        return stretto.all_to_all(x[r], counts[:, r], counts[r])

    for r, g in enumerate(testing.run(size, body)):
        np.testing.assert_array_equal(g, np.concatenate([blocks[s][r] for s in range(size)]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sequence", [None, True])
def test_products(rng, size, dtype, sequence):
    m, n, k = 5, 12, 19
    a, weight = parts(rng, size, (m, k), dtype), parts(rng, size, (n, k), dtype)
    whole = np.concatenate(wide(a))
    for r, g in enumerate(
        testing.run(
            size,
            lambda: stretto.all_gather_matmul(a[stretto.rank()], weight[stretto.rank()].T),
            sequence=sequence,
        )
    ):
        near(g, whole @ wide(weight)[r].T, dtype, k)
    full = parts(rng, size, (m * size, k), dtype)
    total = sum(f @ w.T for f, w in zip(wide(full), wide(weight)))
    got = testing.run(
        size,
        lambda: stretto.matmul_reduce_scatter(full[stretto.rank()], weight[stretto.rank()].T),
        sequence=sequence,
    )
    near(np.concatenate(got), total, dtype, k)
    b = [np.ascontiguousarray(w.T) for w in weight]
    for g in testing.run(
        size,
        lambda: stretto.matmul_all_reduce(full[stretto.rank()], b[stretto.rank()]),
        sequence=sequence,
    ):
        near(g, total, dtype, k)
    columns = np.concatenate([f @ w.T for f, w in zip(wide(full), wide(weight))], 1)
    for g in testing.run(
        size,
        lambda: stretto.matmul_all_gather(full[stretto.rank()], b[stretto.rank()]),
        sequence=sequence,
    ):
        near(g, columns, dtype, k)


def test_products_in_sequence_are_those_that_are_fused(rng):
    """At every call: later ones follow a plan, over the array between the steps."""
    size, m, n, k = 3, 4, 10, 7
    a, full = parts(rng, size, (m, 2, k)), parts(rng, size, (m, 2 * size, k))
    weight = parts(rng, size, (n, k))

    def body():
        r, group = stretto.rank(), stretto._world.group_of()
        w, out = weight[r].T, np.empty((m, 2 * size, n), a[r].dtype)
        results = []
        for _ in range(3):
            results += [
                *stretto.all_gather_matmul(a[r], w, return_a=True),
                stretto.all_gather_matmul(a[r], w, gather_dim=1, out=out).copy(),
                stretto.all_gather_matmul(a[r], w),
                stretto.matmul_reduce_scatter(full[r], w, scatter_dim=1),
                stretto.matmul_all_reduce(full[r], w),
                stretto.matmul_all_gather(full[r], w),
            ]
        matmul, known = stretto.matmul, []
        for op, x in ((matmul._all_gather_matmul, a[r]), (matmul._matmul_all_reduce, full[r])):
            known.append(group.plans.replay(op, 0, None, x, w) is not None)
        return results, known

    fused, apart = (testing.run(size, body, sequence=sequence) for sequence in (False, True))
    for (want, _), (got, known) in zip(fused, apart):
        assert known == [True, True]
        for x, y in zip(want, got):
            near(y, x, "float32", k)


def quantized(rng, rows, columns, blocks):
    """(e4m3 factor, scales that it is multiplied with, repeated `blocks` times, float64 values)."""
    fp8 = pytest.importorskip("ml_dtypes").float8_e4m3fn
    x = rng.uniform(-4, 4, (rows, columns)).astype(fp8)
    shape = [-(-n // b) for n, b in zip(x.shape, blocks)]
    scale = rng.uniform(0.1, 2, shape).astype(np.float32)
    spread = scale.repeat(blocks[0], 0)[:rows].repeat(blocks[1], 1)[:, :columns]
    return x, scale, x.astype(np.float64) * spread


@pytest.mark.parametrize("form", ["one", "rows", "blocks"])
def test_products_with_scales(rng, form):
    """Scales in the forms of torch._scaled_mm, different on every rank and row."""
    size, m, n, k = 2, 6, 136, 160
    forms = {"one": ((m, k), (n, k)), "rows": ((1, k), (1, k)), "blocks": ((1, 128), (128, 128))}
    of_a, of_b = forms[form]
    a, scale_a, wide_a = zip(*(quantized(rng, m, k, of_a) for _ in range(size)))
    w, scale_w, wide_w = zip(*(quantized(rng, n, k, of_b) for _ in range(size)))

    def body():
        r = stretto.rank()
        scales = {"scale_a": scale_a[r], "scale_b": scale_w[r].T}
        out = np.empty((m // size, n), np.float32)
        assert stretto.matmul_reduce_scatter(a[r], w[r].T, **scales, out=out) is out
        gathered, c = stretto.all_gather_matmul(
            a[r], w[r].T, return_a=True, out_dtype=np.float32, **scales
        )
        columns = stretto.matmul_all_gather(a[r], w[r].T, out_dtype="float32", **scales)
        return c, out, stretto.matmul_all_reduce(a[r], w[r].T, **scales), gathered, columns

    whole, total = np.concatenate(wide_a), sum(x @ y.T for x, y in zip(wide_a, wide_w))
    near_sum = {"rtol": 1e-5, "atol": 1e-6 * 64 * k}  # terms are up to 64
    of_all = np.concatenate([x @ y.T for x, y in zip(wide_a, wide_w)], 1)
    for r, (c, part, everywhere, gathered, columns) in enumerate(testing.run(size, body)):
        np.testing.assert_allclose(columns, of_all, **near_sum)
        np.testing.assert_allclose(c, whole @ wide_w[r].T, **near_sum)
        np.testing.assert_allclose(part, np.split(total, size)[r], **near_sum)
        near(everywhere, total, "bfloat16", 64 * k)
        np.testing.assert_array_equal(gathered, np.concatenate(a))


def test_scales_that_do_not_fit(rng):
    a, scale_a, _ = quantized(rng, 4, 160, (1, 160))
    w, scale_w, _ = quantized(rng, 8, 160, (1, 160))
    plain = np.ones((4, 160), np.float32)

    def product(a=a, scale_a=scale_a, **options):
        return stretto.matmul_reduce_scatter(a, w.T, scale_a=scale_a, scale_b=scale_w.T, **options)

    stretto.init()
    try:
        for match, call in (
            ("go together", lambda: stretto.all_gather_matmul(a, w.T, scale_a=scale_a)),
            ("need scale_a", lambda: stretto.matmul_all_reduce(a, w.T)),
            ("is for factors with", lambda: stretto.matmul_all_reduce(a, w.T, out_dtype="float16")),
            ("out_dtype int32", lambda: product(out_dtype=np.int32)),
            ("factors are float8_e4m3fn", lambda: product(a=plain)),
            ("scatter_dim -1 is the last", lambda: product(scatter_dim=-1)),
            ("scale_a is float64; with", lambda: product(scale_a=scale_a.astype(float))),
            (r"\(4, 2\) and \(2, 1\) for blocks", lambda: product(scale_a=scale_a[:3])),
        ):
            with pytest.raises(stretto.UserError, match=match):
                call()
    finally:
        stretto.finalize()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_norm(rng, size, dtype):
    x = parts(rng, size, (2, 3, 32), dtype)
    (residual,) = parts(rng, 1, (2, 3, 32), dtype)
    weight = rng.uniform(0.5, 1.5, 32).astype(dtype)
    total = sum(wide(x)) + residual
    want = total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-6) * weight
    for normed, s in testing.run(
        size, lambda: stretto.all_reduce_add_rms_norm(x[stretto.rank()], residual, weight, eps=1e-6)
    ):
        near(s, total, dtype)
        near(normed, want, dtype, 32)


@pytest.mark.parametrize("causal", [False, True])
def test_attention(rng, causal):
    q = rng.uniform(-1, 1, (2, 4, 5, 8)).astype(np.float32)
    k, v = (rng.uniform(-1, 1, (2, 2, 9, 8)).astype(np.float32) for _ in range(2))
    scores = np.einsum("bhle,bhse->bhls", q, np.repeat(k, 2, 1)).astype(np.float64) / 8**0.5
    if causal:
        scores[..., ~np.tri(5, 9, dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ np.repeat(v, 2, 1)
    (got,) = testing.run(
        1, lambda: stretto.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    )
    near(got, want, "float32")


@pytest.mark.parametrize("window", [0, 3])
def test_weights_of_attention(rng, window):
    """Logarithms of the sums of weights, of rows that see all before them or the last few."""
    q, k, v = (rng.uniform(-1, 1, (2, 3, 7, 8)).astype(np.float32) for _ in range(3))
    scores = np.einsum("bhle,bhse->bhls", *wide([q, k])) / 8**0.5
    row, col = np.arange(7)[:, None], np.arange(7)
    scores[..., (col > row) | ((window > 0) & (col <= row - window))] = -np.inf
    sums = np.exp(scores).sum(-1)

    def body():
        options = {"is_causal": True, "window": window, "return_lse": True}
        out = np.empty((2, 3, 7, 8), np.float32), np.empty((2, 3, 7), np.float32)
        got = stretto.scaled_dot_product_attention(q, k, v, out=out, **options)
        assert got[0] is out[0] and got[1] is out[1]
        return got, stretto.scaled_dot_product_attention(q, k, v, **options)

    for attended, lse in testing.run(1, body)[0]:
        near(lse, np.log(sums), "float32")
        near(attended, np.exp(scores) / sums[..., None] @ wide([v])[0], "float32")


def test_repeated_calls_of_several_sequences_or_results(rng):
    """Two sequences are one launch."""

    def fresh(*shape):
        return rng.uniform(-1, 1, shape).astype(np.float32)

    def attend(q, k, v):
        scores = np.einsum("bhle,bhse->bhls", q, k).astype(np.float64)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ v

    with_options, ops = stretto._calls.with_options, stretto.transformer
    attention = with_options(ops._scaled_dot_product_attention, False, 1.0, False, 0, False)
    norm = with_options(stretto.norms._all_reduce_add_rms_norm, 1e-5)
    stretto.init()
    plans = stretto._world.group_of().plans
    try:
        weight, place, pair = fresh(32), np.empty((2, 5, 3, 8), np.float32).swapaxes(1, 2), None
        for i in range(4):
            q, k, v = fresh(2, 5, 3, 8).swapaxes(1, 2), fresh(2, 3, 5, 8), fresh(2, 3, 5, 8)
            out = place if i % 2 else None
            got = stretto.scaled_dot_product_attention(q, k, v, scale=1, out=out)
            near(got, attend(q, k, v), "float32")
            assert got.swapaxes(1, 2).flags.c_contiguous and (out is None or got is out)
            x, residual = fresh(4, 32), fresh(4, 32)
            normed, total = stretto.all_reduce_add_rms_norm(x, residual, weight, out=pair)
            near(total, wide([x])[0] + residual, "float32")
            want = total / np.sqrt((wide([total])[0] ** 2).mean(-1, keepdims=True) + 1e-5) * weight
            near(normed, want, "float32")
            pair = (normed, total) if i % 2 else None
            known = [
                plans.replay(op, 0, None, *arrays) is not None
                for op, arrays in (
                    (attention, (q, k, v)),
                    (norm, (x, residual, weight)),
                )
            ]
            assert known == [True, True]
    finally:
        stretto.finalize()


def softmax_attention(q, k, v, seen, window=0):
    """[L, Hq, E] over [S, Hkv, E], in float64; row i sees the first seen[i] keys, of these the last
    `window`, if any."""
    k, v = (np.repeat(x.astype(np.float64), q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = np.einsum("lhe,she->hls", q, k) / q.shape[-1] ** 0.5
    keys, ends = np.arange(len(k)), np.asarray(seen)[:, None]
    scores[:, (keys >= ends) | (keys < ends - (window or len(k)))] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hls,she->lhe", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("form", ["sequence", "ring", "token_ring"])
def test_attention_of_a_sequence_over_the_ranks(rng, form):
    size, tokens = 3, 16  # of 6 chunks of 3 the last has one token
    q, k, v = (rng.uniform(-1, 1, (18, h, 8)).astype(np.float32) for h in (4, 2, 2))

    def body():
        own = stretto.zigzag(tokens)
        call = stretto.sequence_attention if form == "sequence" else stretto.ring_attention
        options = {"queries_travel": True} if form == "token_ring" else {}
        with pytest.raises(stretto.UserError, match="rows of tokens=7"):
            call(q[own], k[own], v[own], tokens=7)
        alone = call(q[own], k[own], v[own], tokens=tokens, **options)
        both = call(q[own], k[own], v[own], tokens=tokens, return_lse=True, **options)
        return own, alone, *both

    want = softmax_attention(q, k[:tokens], v[:tokens], np.arange(18) + 1)
    scores = np.einsum("lhe,she->hls", *wide([q, np.repeat(k[:tokens], 2, 1)])) / 8**0.5
    sums = np.where(np.arange(tokens) <= np.arange(18)[:, None], np.exp(scores), 0).sum(-1)
    for own, got, again, lse in testing.run(size, body):
        rows = [i for i, token in enumerate(own) if token < tokens]
        there = [own[i] for i in rows]
        near(got[rows], want[there], "float32")
        near(again[rows], want[there], "float32")
        near(lse[:, rows], np.log(sums)[:, there], "float32")


def test_decoding_over_a_cache_on_all_ranks(rng):
    size, tokens, length, block = 2, 13, 2, 4
    q = rng.uniform(-1, 1, (length, 4, 8)).astype(np.float32)
    k, v = (rng.uniform(-1, 1, (16, 2, 8)).astype(np.float32) for _ in range(2))
    want = softmax_attention(q, k, v, [tokens - 1, tokens])

    def body():
        mine = np.arange(16) // block % size == stretto.rank()
        caches = [np.ascontiguousarray(x[mine].swapaxes(0, 1)) for x in (k, v)]
        with pytest.raises(stretto.UserError, match="17 tokens"):
            stretto.flash_decode(q, *caches, 17, block=block)
        return stretto.flash_decode(q, *caches, tokens, block=block)

    first, second = testing.run(size, body)
    near(first, want, "float32")
    np.testing.assert_array_equal(first, second)


def test_strided_inputs_and_outputs(rng):
    a = rng.uniform(-1, 1, (6, 8)).astype(np.float32)[::2, ::-1]
    out = np.zeros((10, 3), np.float32)[::2].T
    (got,) = testing.run(
        1,
        lambda: stretto.all_gather_matmul(
            a, np.asfortranarray(a[:, :8].T @ np.ones((3, 5), np.float32)), out=out
        ),
    )
    assert got is out
    near(out, wide([a])[0] @ (wide([a])[0].T @ np.ones((3, 5))), "float32", 24)


def test_symmetric_memory_is_not_copied(rng):
    values = parts(rng, 2, (4, 6))

    def body():
        x = stretto.symm_mem.empty(4, 6)
        assert not x.any()
        x[...] = values[stretto.rank()]
        first = stretto.all_gather(x)
        x[...] += 1
        return first, stretto.all_gather(x), stretto.all_gather(x[2:])

    for first, second, tail in testing.run(2, body):
        np.testing.assert_array_equal(first, np.concatenate(values))
        np.testing.assert_array_equal(second, np.concatenate(values) + np.float32(1))
        np.testing.assert_array_equal(tail, np.concatenate([v[2:] for v in values]) + np.float32(1))


def test_dlpack_arrays(rng):
    class Foreign:
        def __init__(self, x):
            self.x = x

        def __dlpack__(self, **kwargs):
            return self.x.__dlpack__(**kwargs)

        def __dlpack_device__(self):
            return self.x.__dlpack_device__()

    x = rng.uniform(-1, 1, (4, 4)).astype(np.float32)
    (got,) = testing.run(1, lambda: stretto.all_reduce(Foreign(x)))
    np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("size", [1, 2])
def test_repeated_calls_in_any_layout_are_as_the_first(size, rng):
    """A repeated call follows a plan made at the first of its kind: one plan must not serve calls
    that look alike but for strides, aliases, element types or where the arrays lie."""
    seeds = rng.integers(1 << 30, size=60)

    def body():
        symmetric = stretto.symm_mem.empty(4, 4)
        for seed in seeds:
            same = np.random.default_rng(seed)  # the same choices on every rank
            dtype = same.choice([np.float32, np.float16])
            both = [same.integers(-3, 4, (4, 4)).astype(dtype) for _ in range(size)]
            layout, aliased, avg = same.integers(4), same.integers(3), same.integers(2)
            x = both[stretto.rank()].copy()
            if layout == 1:
                x = np.asfortranarray(x)
            elif layout == 2:
                x = np.repeat(x, 2, 1)[:, ::2]
            elif layout == 3:
                symmetric[...] = x
                x = symmetric
            w = x if aliased == 1 else x.T if aliased == 2 else both[0][::-1].copy()
            want_c = np.concatenate(both) @ w
            op = "avg" if avg else "sum"
            total = sum(both) / (size if avg else 1)
            np.testing.assert_array_equal(stretto.all_gather(x, dim=avg), np.concatenate(both, avg))
            np.testing.assert_array_equal(stretto.all_gather_matmul(x, w.astype(x.dtype)), want_c)
            np.testing.assert_array_equal(stretto.all_gather_matmul(x, w.astype(x.dtype)), want_c)
            np.testing.assert_array_equal(stretto.all_reduce(x, reduce_op=op), total)
            out = x if aliased == 1 else np.full((4, 4), np.nan, x.dtype)
            assert stretto.all_reduce(x, reduce_op=op, out=out) is out
            np.testing.assert_array_equal(out, total)

    testing.run(size, body)
