"""Mixtures of experts on NumPy arrays, on ranks that are threads, against the same computed token by
token in float64."""

import numpy as np
import pytest

import stretto
from stretto import moe, testing
from stretto._adopt import adopt
from test_ops import near, parts, quantized, wide


def poisoned(shape, dtype=np.float32):
    return np.full(shape, np.nan, dtype)


def silu(x):
    return x / (1 + np.exp(-x))


def route(x, gate, top_k, bias=None, sigmoid=False, groups=None, score="best_two", norm=True):
    """(weights, experts) of each token by sorting, in float64; groups: (n_group, topk_group)."""
    logits = x.astype(np.float64) @ gate.astype(np.float64).T
    odds = np.exp(logits - logits.max(1, keepdims=True))
    scores = 1 / (1 + np.exp(-logits)) if sigmoid else odds / odds.sum(1, keepdims=True)
    by = scores + (0 if bias is None else bias)
    if groups is not None:
        grouped = by.reshape(len(x), groups[0], -1)
        count = 2 if score == "best_two" else 1
        best = np.sort(grouped, -1)[:, :, -count:].sum(-1)
        kept = best >= np.sort(best, -1)[:, [-groups[1]]]
        by = np.where(kept[:, :, None], grouped, -np.inf).reshape(by.shape)
    experts = np.argsort(-by, 1, kind="stable")[:, :top_k]
    weights = np.take_along_axis(scores, experts, 1)
    return weights / (weights.sum(1, keepdims=True) if norm else 1), experts


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": False},
        {"sigmoid": True, "bias": True, "groups": (4, 2)},
        {"groups": (4, 3), "score": "best"},
    ],
)
def test_routing(rng, options):
    m, hidden, experts, top_k = 37, 24, 8, 3
    (x,), (gate,) = parts(rng, 1, (m, hidden)), parts(rng, 1, (experts, hidden))
    bias = rng.uniform(-1, 1, experts).astype(np.float32) if "bias" in options else None
    weights, chosen = route(x, gate, top_k, **{**options, "bias": bias})
    n_group, topk_group = options.get("groups", (1, 1))
    given = {
        "bias": bias,
        "scoring_func": "sigmoid" if "sigmoid" in options else "softmax",
        "n_group": n_group,
        "topk_group": topk_group,
        "group_score": options.get("score", "best_two"),
        "norm_topk_prob": options.get("norm", True),
        "routed_scaling_factor": 2.5,
    }

    def body():
        return (
            stretto.moe_route(x, gate, top_k, **given),
            stretto.moe_route(x, gate, top_k, tables=True, **given),
        )

    ((got, numbers), routing), *_ = testing.run(1, body)
    np.testing.assert_array_equal(numbers, chosen)
    near(got, 2.5 * weights, "float32")
    np.testing.assert_array_equal(routing.weights, got)
    order = np.argsort(chosen.reshape(-1), kind="stable")
    np.testing.assert_array_equal(routing.tokens, order // top_k)
    np.testing.assert_array_equal(routing.slots.reshape(-1)[order], np.arange(m * top_k))
    counts = np.bincount(chosen.reshape(-1), minlength=experts)
    np.testing.assert_array_equal(routing.offsets, np.concatenate([[0], np.cumsum(counts)]))


def cut(rng, parts_of, rows):
    """The first row of each part, some without rows, then all rows."""
    return np.sort(np.concatenate([[0], rng.integers(0, rows + 1, parts_of - 1), [rows]]))


def expected_rows(a, weights, offsets, up=None):
    out = np.full((len(a), weights[0].shape[1]), np.nan)
    for e, weight in enumerate(weights):
        rows = slice(offsets[e], offsets[e + 1])
        out[rows] = a[rows] @ weight if up is None else silu(a[rows] @ weight) * (a[rows] @ up[e])
    return out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_grouped_products(rng, dtype, gathered, gated):
    """Experts with many rows, few and none, and rows of none."""
    m, experts, k, n = 11, 5, 24, 19
    a, up_a = parts(rng, 2, (m, k), dtype)
    b, up = (w.swapaxes(1, 2) for w in parts(rng, 2, (experts, n, k), dtype))
    tokens = rng.integers(0, m, 2 * m).astype(np.int32) if gathered else None
    rows = 2 * m if gathered else m
    picked = wide([a])[0][tokens if gathered else slice(None)]
    extra = {"tokens": tokens, "up": up if gated else None}
    for spare in (False, True):
        offsets = cut(rng, experts + spare, rows).astype(np.int32)
        want = expected_rows(picked, wide([b])[0], offsets, wide([up])[0] if gated else None)
        used = offsets[experts]

        def body():
            out = poisoned((rows, n), b.dtype)
            assert stretto.grouped_matmul(a, b, offsets, out=out, **extra) is out
            return out, stretto.grouped_matmul(a, b, offsets, **extra)

        for got in testing.run(1, body)[0]:
            near(got[:used], want[:used], dtype, k)


def test_grouped_products_of_counted_rows(rng):
    experts, most, k, n = 4, 6, 10, 7
    a, (b,) = parts(rng, 1, (experts, most, k))[0], parts(rng, 1, (experts, k, n))
    counts = np.array([0, most, 3, 1], np.int64)

    def body():
        out = poisoned((experts, most, n))
        return stretto.grouped_matmul(a, b, counts=counts, out=out)

    (got,) = testing.run(1, body)
    for e, count in enumerate(counts):
        near(got[e, :count], wide([a])[0][e, :count] @ wide([b])[0][e], "float32", k)
        assert np.isnan(got[e, count:]).all()


@pytest.mark.parametrize("gated", [False, True])
def test_grouped_products_with_scales(rng, gated):
    experts, rows, n, k = 3, 9, 136, 160
    a, scale_a, wide_a = quantized(rng, rows, k, (1, 128))
    made = [[quantized(rng, n, k, (128, 128)) for _ in range(experts)] for _ in range(2)]
    (b, scale_b, wide_b), (up, scale_up, wide_up) = (
        [np.stack(part).swapaxes(1, 2) for part in zip(*of_one)] for of_one in made
    )
    offsets = cut(rng, experts, rows)
    extra = {"up": up, "scale_up": scale_up} if gated else {}

    def body():
        scales = {"scale_a": scale_a, "scale_b": scale_b}
        return stretto.grouped_matmul(a, b, offsets, out_dtype="float32", **scales, **extra)

    want = expected_rows(wide_a, wide_b, offsets, wide_up if gated else None)
    # Terms are up to 64, and the second factor up to their sum.
    size = 64 * k * (np.abs(wide_up).max() * 4 * k if gated else 1)
    np.testing.assert_allclose(testing.run(1, body)[0], want, rtol=1e-5, atol=1e-6 * size)


def test_transposes_are_not_copied(rng):
    a, scale_a, _ = quantized(rng, 9, 256, (1, 128))
    b, scale_b, _ = (np.stack([x, x]).swapaxes(1, 2) for x in quantized(rng, 384, 256, (128, 128)))
    given = {"b": b, "up": b, "scale_a": scale_a, "scale_b": scale_b, "scale_up": scale_b}
    kind, a = adopt("test", "a", a)
    _, inputs = moe._factors("grouped_matmul", kind, given, a, b.shape, True)
    for name, x in (("a", a), ("scale_a", scale_a)):
        assert np.shares_memory(inputs[name], x)
    for name in ("b_gate", "b_up"):
        assert np.shares_memory(inputs[name], b)
        assert np.shares_memory(inputs[f"scale_{name}"], scale_b)


def test_grouped_products_that_do_not_fit(rng):
    a, b = np.ones((6, 4), np.float32), np.ones((2, 4, 3), np.float32)
    offsets, tokens = np.array([0, 2, 6]), np.zeros(9, np.int32)
    scale = {"scale_a": np.ones((6, 1), np.float32), "scale_b": np.ones((2, 1, 1), np.float32)}

    def body():
        for match, call in (
            ("need offsets, or counts", lambda: stretto.grouped_matmul(a, b)),
            (r"need \[E, M, K\]", lambda: stretto.grouped_matmul(a, b, counts=offsets[:2])),
            (r"need int32 or int64 \(3,\)", lambda: stretto.grouped_matmul(a, b, offsets[:2])),
            ("multiple of 6 rows", lambda: stretto.grouped_matmul(a, b, offsets, tokens=tokens)),
            (r"up is \(1, 4, 3\)", lambda: stretto.grouped_matmul(a, b, offsets, up=b[:1])),
            ("scale_up goes with", lambda: stretto.grouped_matmul(a, b, offsets, scale_up=b)),
            ("factors are float8_e4m3fn", lambda: stretto.grouped_matmul(a, b, offsets, **scale)),
            ("offsets.*entry 2", lambda: stretto.grouped_matmul(a, b, np.array([0, 2, 5]))),
            ("'best_three'", lambda: stretto.moe_route(a, a, 2, group_score="best_three")),
            ("top_k is 9", lambda: stretto.moe_route(a, a, 9)),
            (r"bias is float64", lambda: stretto.moe_route(a, a, 2, bias=np.ones(6))),
        ):
            with pytest.raises(stretto.UserError, match=match):
                call()

    testing.run(1, body)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("scatter", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weighted_sums_over_the_ranks(rng, size, scatter, dtype):
    m, top_k, hidden = 4 * size, 3, 20
    y = parts(rng, size, (m * top_k, hidden), dtype)
    slots = rng.permutation(m * top_k).reshape(m, top_k).astype(np.int32)
    weights = rng.uniform(0, 1, (m, top_k)).astype(np.float32)
    (residual,) = parts(rng, 1, (m, hidden), dtype)
    plain = np.einsum("mk,mkh->mh", weights.astype(np.float64), sum(wide(y))[slots])
    added = plain + wide([residual])[0]

    def body():
        r, own = stretto.rank(), slice(None)
        if scatter:
            own = slice(4 * r, 4 * r + 4)
        options = {"scatter": scatter}
        return (
            stretto.moe_combine(y[r], slots, weights, residual=residual[own], **options),
            stretto.moe_combine(y[r], slots, weights, **options),
            added[own],
            plain[own],
        )

    for first, second, want, without in testing.run(size, body):
        near(first, want, dtype, size * top_k)
        near(second, without, dtype, size * top_k)


def choices(rng, pattern, m, top_k, experts):
    """The experts of each token."""
    if pattern == "one":
        return np.full((m, top_k), experts - 2)
    if pattern == "two":
        return rng.integers(1, 3, (m, top_k))
    return np.argsort(rng.uniform(0, 1, (m, experts)), 1)[:, :top_k]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("pattern", ["random", "one", "two"])
def test_tables_of_both_layers_are_those_of_the_library(rng, size, pattern):
    """Every token and expert has a row of its own, in a tile of that expert which waits for the
    token's rank; own tokens first."""
    m, top_k, experts = 13 * size, 2, 5
    chosen = choices(rng, pattern, m, top_k, experts)

    def body():
        x, w = np.zeros((13, 8), np.float32), np.zeros((experts, 8, 4), np.float32)
        made, tiles = stretto.all_gather_grouped_matmul(x, w, chosen)
        assert len(made) == len(tiles.tokens)
        return tiles

    for rank, tiles in enumerate(testing.run(size, body)):
        rows = len(tiles.tokens) // len(tiles.experts)
        slots = tiles.slots.reshape(-1)
        assert len(set(slots)) == m * top_k
        np.testing.assert_array_equal(tiles.experts[slots // rows], chosen.reshape(-1))
        token = np.arange(m * top_k) // top_k
        place = (token // 13 - rank) % size * 13 + token % 13
        np.testing.assert_array_equal(tiles.tokens[slots], place)
        assert np.all(np.delete(tiles.tokens, slots) == -1)
        needs = np.zeros(len(tiles.experts), int)
        np.maximum.at(needs, slots // rows, place // 13 + 1)
        np.testing.assert_array_equal(tiles.needs, needs)
        counts = np.bincount(chosen.reshape(-1), minlength=experts)
        (used,) = tiles.used
        assert used == sum(-(-count // rows) for count in counts)
        assert np.all(np.diff(tiles.needs[:used]) >= 0) and not tiles.needs[used:].any()


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("pattern", ["random", "one", "two"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_both_layers_over_the_ranks(rng, size, pattern, dtype):
    """Each rank with its columns of every expert, layer by layer and at once; the second time with
    what comes on top."""
    rows, hidden, ffn, top_k, experts = 7, 24, 16, 3, 5
    m = rows * size
    x, residual = parts(rng, size, (rows, hidden), dtype), parts(rng, size, (rows, hidden), dtype)
    all_residuals = np.concatenate(residual)
    gate, up = (parts(rng, size, (experts, ffn, hidden), dtype) for _ in range(2))
    down = parts(rng, size, (experts, hidden, ffn), dtype)
    chosen = choices(rng, pattern, m, top_k, experts)
    weights = rng.uniform(0, 1, (m, top_k)).astype(np.float32)
    whole, want = np.concatenate(wide(x)), np.zeros((m, hidden))
    first = []
    for of_rank in zip(*map(wide, (gate, up, down))):
        g, u, d = (w.swapaxes(1, 2) for w in of_rank)
        inner = [silu(row @ g[e]) * (row @ u[e]) for row, all_of in zip(whole, chosen) for e in all_of]
        first.append(np.array(inner))
        second = np.array([y @ d[e] for y, e in zip(inner, chosen.reshape(-1))])
        want += np.einsum("mk,mkh->mh", weights, second.reshape(m, top_k, hidden))

    def body():
        r, results = stretto.rank(), []
        for added in (None, residual[r]):
            w = [v[r].swapaxes(1, 2) for v in (gate, up, down)]
            y, tiles = stretto.all_gather_grouped_matmul(x[r], w[0], chosen, up=w[1])
            out = poisoned((rows, hidden), x[r].dtype)
            options = {"residual": added, "out": out}
            got = stretto.grouped_matmul_reduce_scatter(y, w[2], tiles, weights, **options)
            assert got is out
            whole = poisoned((rows, hidden), x[r].dtype)
            at_once = stretto.moe_layer(
                x[r], *w, chosen, weights, residual=added, out=whole
            )
            assert at_once is whole
            near(whole, wide([out])[0], dtype, hidden * ffn * top_k * size)
            results.append(out)
        everywhere = stretto.grouped_matmul_all_reduce(y, w[2], tiles, weights, residual=all_residuals)
        results.append(everywhere)
        return y[tiles.slots.reshape(-1)], *results

    ran = testing.run(size, body)
    for r, (inner, plain, added, everywhere) in enumerate(ran):
        terms = ffn * hidden * top_k * size
        near(inner, first[r], dtype, hidden)
        near(plain, np.split(want, size)[r], dtype, terms)
        near(added, np.split(want, size)[r] + wide(residual)[r], dtype, terms)
        near(everywhere, want + wide([all_residuals])[0], dtype, terms)
        assert everywhere.tobytes() == ran[0][3].tobytes()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("gated", [False, True])
def test_biases_of_both_layers(rng, size, dtype, gated):
    """Ragged sizes; the second layer's are added once, whatever the number of ranks."""
    rows, hidden, ffn, top_k, experts = 5, 23, 9, 2, 4
    m = rows * size
    x, residual = parts(rng, size, (rows, hidden), dtype), parts(rng, size, (rows, hidden), dtype)
    gate, up = (parts(rng, size, (experts, ffn, hidden), dtype) for _ in range(2))
    down = parts(rng, size, (experts, hidden, ffn), dtype)
    of_gate, of_up = (parts(rng, size, (experts, ffn), dtype) for _ in range(2))
    (of_down,) = parts(rng, 1, (experts, hidden), dtype)
    chosen = choices(rng, "random", m, top_k, experts)
    weights = rng.uniform(0, 1, (m, top_k)).astype(np.float32)
    whole, first = np.concatenate(wide(x)), []
    want = np.einsum("mk,mkh->mh", weights.astype(np.float64), wide([of_down])[0][chosen])
    for g, u, d, bg, bu in zip(*map(wide, (gate, up, down, of_gate, of_up))):
        pairs = [(row, e) for row, all_of in zip(whole, chosen) for e in all_of]
        inner = [g[e] @ row + bg[e] for row, e in pairs]
        if gated:
            inner = [silu(y) * (u[e] @ row + bu[e]) for y, (row, e) in zip(inner, pairs)]
        first.append(np.array(inner))
        second = np.array([d[e] @ y for y, (_, e) in zip(inner, pairs)])
        want += np.einsum("mk,mkh->mh", weights, second.reshape(m, top_k, hidden))

    def body():
        r = stretto.rank()
        w = [v[r].swapaxes(1, 2) for v in (gate, up, down)]
        options = {"up": w[1], "up_bias": of_up[r]} if gated else {}
        y, tiles = stretto.all_gather_grouped_matmul(x[r], w[0], chosen, bias=of_gate[r], **options)
        second = (y, w[2], tiles, weights)
        made = [
            y[tiles.slots.reshape(-1)],
            stretto.grouped_matmul_reduce_scatter(*second, bias=of_down, residual=residual[r]),
            stretto.grouped_matmul_all_reduce(*second, bias=of_down),
        ]
        if gated:
            biases = {"gate_bias": of_gate[r], "up_bias": of_up[r], "down_bias": of_down}
            made.append(stretto.moe_layer(x[r], *w, chosen, weights, residual=residual[r], **biases))
        return made

    ran = testing.run(size, body)
    for r, (inner, scattered, everywhere, *at_once) in enumerate(ran):
        terms = ffn * hidden * top_k * size
        near(inner, first[r], dtype, hidden)
        for got in (scattered, *at_once):
            near(got, np.split(want, size)[r] + wide(residual)[r], dtype, terms)
        near(everywhere, want, dtype, terms)
        assert everywhere.tobytes() == ran[0][2].tobytes()


@pytest.mark.parametrize("form", ["rows", "gathered", "counts", "scales"])
@pytest.mark.parametrize("gated", [False, True])
def test_biases_of_grouped_products(rng, form, gated):
    m, experts, k, n = 7, 4, 130 if form == "scales" else 19, 33
    dtype = "bfloat16" if form == "scales" else "float32"
    given = {"bias": parts(rng, 1, (experts, n), dtype)[0]}
    if gated:
        given["up_bias"] = parts(rng, 1, (experts, n), dtype)[0]
    biases = [np.float64(x) for x in given.values()]
    if form == "scales":
        a, given["scale_a"], wide_a = quantized(rng, m, k, (1, 128))
        weights = []
        for name, scale in (("b", "scale_b"), ("up", "scale_up"))[: 1 + gated]:
            made = [quantized(rng, n, k, (128, 128)) for _ in range(experts)]
            given[name], given[scale], of_all = (np.stack(p).swapaxes(1, 2) for p in zip(*made))
            weights.append(of_all)
    else:
        shape = (experts, m, k) if form == "counts" else (m, k)
        (a,) = parts(rng, 1, shape)
        weights = list(parts(rng, 1 + gated, (experts, k, n)))
        given |= dict(zip(("b", "up"), weights))
        wide_a, weights = wide([a])[0], wide(weights)
    if form == "counts":
        counts = np.append(rng.integers(0, m + 1, experts - 1), m)
        given["counts"] = counts.astype(np.int32)
        rows = [(e, (e, i), wide_a[e, i]) for e in range(experts) for i in range(counts[e])]
    else:
        picked = rng.integers(0, m, 2 * m) if form == "gathered" else np.arange(m)
        if form == "gathered":
            given["tokens"] = picked.astype(np.int32)
        offsets = cut(rng, experts, len(picked))
        given["offsets"] = offsets.astype(np.int32)
        of_row = np.searchsorted(offsets, np.arange(len(picked)), "right") - 1
        rows = [(e, (i,), wide_a[picked[i]]) for i, e in enumerate(of_row)]
    b = given.pop("b")
    (got,) = testing.run(1, lambda: stretto.grouped_matmul(a, b, **given))
    sums = {at: [row @ w[e] + of[e] for w, of in zip(weights, biases)] for e, at, row in rows}
    got = np.stack([got[at] for at in sums])
    want = np.array([silu(s[0]) * s[1] if gated else s[0] for s in sums.values()])
    near(got.reshape(-1, n), want.reshape(-1, n), dtype, k)


def test_biases_that_do_not_fit(rng):
    a, b, offsets = np.ones((6, 4), np.float32), np.ones((2, 4, 3), np.float32), np.array([0, 2, 6])
    bias, x = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
    experts = np.zeros((6, 1), int)

    def body():
        for op, given in (
            (stretto.grouped_matmul, (a, b, offsets)),
            (stretto.all_gather_grouped_matmul, (x, b, experts)),
        ):
            for match, options in (
                (r"bias is float32 \(1, 3\); need float32 \(2, 3\)", {"bias": bias[:1]}),
                ("bias is float64", {"bias": bias.astype(np.float64)}),
                ("up_bias goes with up", {"up_bias": bias}),
                ("bias of bias, up_bias, which go together", {"up": b, "bias": bias}),
            ):
                with pytest.raises(stretto.UserError, match=f"{op.__name__}: {match}"):
                    op(*given, **options)
        y, tiles = stretto.all_gather_grouped_matmul(x, b, experts)
        with pytest.raises(stretto.UserError, match=r"bias is float32 \(2, 3\); need float32 \(2, 4\)"):
            back, weights = np.ones((2, 3, 4), np.float32), np.ones((6, 1), np.float32)
            stretto.grouped_matmul_reduce_scatter(y, back, tiles, weights, bias=bias)

    testing.run(2, body)


def test_layers_that_do_not_fit(rng):
    x, w, experts = np.ones((3, 4), np.float32), np.ones((2, 4, 5), np.float32), np.zeros((6, 1), int)

    def body():
        y, tiles = stretto.all_gather_grouped_matmul(x, w, experts)
        weights, back = np.ones((6, 1), np.float32), np.ones((2, 5, 4), np.float32)
        layer = stretto.grouped_matmul_reduce_scatter
        for match, call in (
            (r"\[m / 2, K\]", lambda: stretto.all_gather_grouped_matmul(x, w, experts[:3])),
            (r"\[m / 2, K\]", lambda: stretto.all_gather_grouped_matmul(x, w, experts, up=w[:1])),
            ("experts is float32", lambda: stretto.all_gather_grouped_matmul(x, w, weights)),
            (r"\[E, F, H\]", lambda: stretto.moe_layer(x, w, w, w, experts, weights)),
            ("are not those of 6 tokens", lambda: layer(y[:4], back, tiles, weights)),
            (r"weights is float32 \(3, 1\)", lambda: layer(y, back, tiles, weights[:3])),
            ("experts breaks.*entry 0", lambda: stretto.all_gather_grouped_matmul(x, w, experts + 2)),
            ("experts breaks.*entry 0", lambda: stretto.all_gather_grouped_matmul(x, w, experts - 1)),
        ):
            with pytest.raises(stretto.UserError, match=match):
                call()

    testing.run(2, body)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("rows", [5, 129])
@pytest.mark.parametrize("pattern", ["random", "one", "rank"])
def test_tokens_to_their_experts_and_back(rng, size, rows, pattern):
    """Experts that multiply by a matrix of their own; of 7 experts the last rank has fewer. Of few
    tokens buffers are used in turn."""
    hidden, experts, top_k = 16, 7, 3
    share = -(-experts // size)
    x, residual = parts(rng, size, (rows, hidden)), parts(rng, size, (rows, hidden))
    order = np.argsort(rng.uniform(0, 1, (size, rows, experts)), 2)
    if pattern == "one":
        order[...] = rng.permutation(experts)
    elif pattern == "rank":
        order = np.argsort(order + experts * (order >= max(share, top_k)), 2, kind="stable")
    chosen = order[:, :, :top_k]
    weights = rng.uniform(0, 1, (size, rows, top_k)).astype(np.float32)
    matrices = rng.uniform(-1, 1, (share * size, hidden, hidden)).astype(np.float32)

    def body():
        r, results = stretto.rank(), []
        own = matrices[r * share : (r + 1) * share]
        for added in (None, residual[r]):
            d = stretto.ep_dispatch(x[r], chosen[r], weights[r], experts)
            y = poisoned((len(d.tokens), hidden))
            stretto.grouped_matmul(d.x, own, d.offsets, tokens=d.tokens, out=y)
            out = poisoned((rows, hidden))
            assert stretto.ep_combine(y, d, residual=added, out=out) is out
            results.append(out)
        return d, *results

    all_of = testing.run(size, body)
    for r, (d, plain, added) in enumerate(all_of):
        products = np.einsum("ti,tkij->tkj", wide(x)[r], matrices.astype(np.float64)[chosen[r]])
        want = np.einsum("tk,tkj->tj", weights[r], products)
        near(plain, want, "float32", hidden * top_k)
        near(added, want + wide(residual)[r], "float32", hidden * top_k)
        for to in range(size):
            has = ((chosen[r] >= to * share) & (chosen[r] < (to + 1) * share)).any(1)
            np.testing.assert_array_equal(d.positions[:, to] >= 0, has)
            block = all_of[to][0].x.reshape(size, rows, hidden)[r]
            np.testing.assert_array_equal(block[d.positions[has, to]], x[r][has])
        counts = np.bincount(chosen.reshape(-1), minlength=share * size)[r * share : (r + 1) * share]
        np.testing.assert_array_equal(np.diff(d.offsets)[:-1], counts)
        assert d.offsets[-1] == size * rows * top_k


def test_tokens_that_travel_as_e4m3(rng):
    """Products read them as they arrive, with their scales."""
    fp8 = pytest.importorskip("ml_dtypes").float8_e4m3fn
    size, rows, hidden, experts, top_k, n = 2, 5, 256, 4, 2, 6
    x = parts(rng, size, (rows, hidden))
    chosen = np.argsort(rng.uniform(0, 1, (size, rows, experts)), 2)[:, :, :top_k]
    weights = rng.uniform(0, 1, (size, rows, top_k)).astype(np.float32)
    matrices = rng.uniform(-4, 4, (experts, n, hidden)).astype(fp8)
    scales = rng.uniform(0.1, 2, (experts, hidden // 128, 1)).astype(np.float32)

    def body():
        own = slice(2 * stretto.rank(), 2 * stretto.rank() + 2)
        call = x[stretto.rank()], chosen[stretto.rank()], weights[stretto.rank()], experts
        with pytest.raises(stretto.UserError, match="whole blocks of 128"):
            stretto.ep_dispatch(call[0][:, :130], *call[1:], fp8=True)
        d = stretto.ep_dispatch(*call, fp8=True)
        assert d.x.dtype == fp8 and d.scales.shape == (size * rows, hidden // 128)
        y = stretto.grouped_matmul(
            d.x, matrices[own].swapaxes(1, 2), d.offsets, tokens=d.tokens, scale_a=d.scales,
            scale_b=scales[own], out_dtype="float32",
        )
        return stretto.ep_combine(y, d)

    wide_matrices = matrices.astype(np.float64) * scales.astype(np.float64).repeat(128, 1).swapaxes(1, 2)
    for r, got in enumerate(testing.run(size, body)):
        terms = np.einsum("tk,ti,tkni->tkni", weights[r], wide(x)[r], wide_matrices[chosen[r]])
        assert (np.abs(got - terms.sum((1, 3))) <= np.abs(terms).sum((1, 3)) / 16).all()


def test_dispatch_into_symmetric_memory(rng):
    size, rows, hidden, top_k = 2, 3, 8, 2
    x = parts(rng, size, (rows, hidden))
    chosen = np.array([[0, 3], [1, 2], [0, 1]])
    weights = np.ones((rows, top_k), np.float32)

    def body():
        shapes = ((size * rows, hidden), "float32"), *(((size * rows, top_k), t) for t in ("float32", "int32"))
        out = tuple(stretto.symm_mem.empty(*shape, dtype=dtype) for shape, dtype in shapes)
        for _ in range(2):
            d = stretto.ep_dispatch(x[stretto.rank()], chosen, weights, 4, out=out)
            assert d.x is out[0] and d.weights is out[1]
        return out

    for rank, (came, _, experts) in enumerate(testing.run(size, body)):
        np.testing.assert_array_equal(experts, np.concatenate([chosen] * size))
        here = np.tile(((chosen // 2) == rank).any(1), size)
        np.testing.assert_array_equal(came[here], np.concatenate(x)[here])


def test_expert_parallel_calls_that_do_not_fit(rng):
    x, chosen, weights = np.ones((3, 4), np.float32), np.array([[0, 1]] * 3), np.ones((3, 2), np.float32)

    def body():
        d = stretto.ep_dispatch(x, chosen, weights, 4)
        y = np.zeros((12, 4), np.float32)
        for match, call in (
            (r"need \[S, H\]", lambda: stretto.ep_dispatch(x, chosen[0], weights, 4)),
            ("2 of 1 experts", lambda: stretto.ep_dispatch(x, chosen, weights, 1)),
            (r"weights is float32 \(2, 2\)", lambda: stretto.ep_dispatch(x, chosen, weights[:2], 4)),
            ("experts breaks.*entry 0", lambda: stretto.ep_dispatch(x, chosen + 4, weights, 4)),
            ("need 12 rows", lambda: stretto.ep_combine(y[:11], d)),
            ("residual is float32", lambda: stretto.ep_combine(y, d, residual=x[:2])),
        ):
            with pytest.raises(stretto.UserError, match=match):
                call()

    testing.run(2, body)


def test_repeated_calls_take_the_quick_way(rng):
    """Calls that are one launch over their arrays follow a plan, which must see other values."""
    a, b = parts(rng, 1, (6, 8))[0], parts(rng, 1, (3, 8, 4))[0]
    names = ("a", "b", "offsets")
    product = stretto._calls.with_options(stretto.moe._grouped_matmul, names, None, stretto.SwiGLU())
    route = stretto._calls.with_options(
        stretto.moe._moe_route, 2, "softmax", 1, 1, "best_two", True, 1.0, False
    )
    weight = np.ascontiguousarray(b.swapaxes(1, 2)).swapaxes(1, 2)

    def body():
        plans = stretto._world.group_of().alone().plans
        for _ in range(4):
            x = rng.uniform(-1, 1, a.shape).astype(np.float32)
            offsets = np.sort(np.concatenate([[0, 6], rng.integers(0, 7, 2)])).astype(np.int32)
            want = expected_rows(wide([x])[0], wide([b])[0], offsets)
            near(stretto.grouped_matmul(x, weight, offsets), want, "float32", 8)
            _, experts = stretto.moe_route(x, a[:4], 2)
            np.testing.assert_array_equal(experts, route_experts(x, a[:4]))
        assert plans.replay(product, 0, None, x, weight, offsets) is not None
        assert plans.replay(route, 0, None, x, a[:4]) is not None

    def route_experts(x, gate):
        return np.argsort(-(wide([x])[0] @ wide([gate])[0].T), 1, kind="stable")[:, :2]

    testing.run(1, body)
