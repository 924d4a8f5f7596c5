"""Numbers of rows that follow one another, as steps of a server have them: few programs for all of them, the
results of each its own."""

import itertools

import numpy as np
import pytest

import stretto
from stretto import testing
from test_ops import near, parts, softmax_attention, wide

HIDDEN = 64
MOST_PROGRAMS = 14  # four sizes for each doubling of the smallest number


def counts(rng, num=50):
    """So many numbers of rows of a rank, in any order, within three octaves."""
    return [int(n) for n in rng.permutation(np.arange(20, 150))[:num]]


def programs():
    return len(stretto._world.group_of()._entries)


def spread(rng, size, rows):
    """Rows of each rank, and of all of them in float64."""
    x = parts(rng, size, (rows, HIDDEN))
    return x, wide(x)


def gathered(x, all_of, weight, r):
    near(stretto.all_gather(x[r]), np.concatenate(all_of), "float32")


def scattered(x, all_of, weight, r):
    size = len(x)
    tall = np.concatenate([x[r]] * size)
    want = np.concatenate([sum(all_of)] * size).reshape(size, -1, HIDDEN)[r]
    near(stretto.reduce_scatter(tall), want, "float32")


def reduced(x, all_of, weight, r):
    near(stretto.all_reduce(x[r]), sum(all_of), "float32")


def from_the_last(x, all_of, weight, r):
    np.testing.assert_array_equal(stretto.broadcast(x[r], len(x) - 1), x[-1])


def exchanged(x, all_of, weight, r):
    size, rows = len(x), x[0].shape[0]
    sent = [[rows - (size - 1) * (rows // (s + size))] + [rows // (s + size)] * (size - 1) for s in range(size)]
    blocks = [np.split(y, np.cumsum(n)[:-1])[r] for y, n in zip(x, sent)]
    got = stretto.all_to_all(x[r], None, sent[r])
    np.testing.assert_array_equal(got, np.concatenate(blocks))


def normed(x, all_of, weight, r):
    got, total = stretto.all_reduce_add_rms_norm(x[r], x[0], weight[0])
    want = sum(all_of) + all_of[0]
    near(total, want, "float32")
    want = want / np.sqrt((want**2).mean(-1, keepdims=True) + 1e-5)
    near(got, want * weight[0].astype(np.float64), "float32")


def before_spread_heads(x, all_of, weight, r):
    columns = slice(r * 2, r * 2 + 2)
    want = np.concatenate(all_of) @ weight[: 2 * len(x)].T.astype(np.float64)[:, columns]
    near(stretto.matmul_all_to_all(x[r], weight[: 2 * len(x)].T), want, "float32", HIDDEN)


def after_spread_heads(x, all_of, weight, r):
    size = len(x)
    tall, rows = np.concatenate([x[r]] * size), x[0].shape[0]
    b = np.concatenate([weight[: 2 * size]] * size, 1).T
    want = sum(y @ weight[: 2 * size].T.astype(np.float64) for y in all_of)
    got = stretto.all_to_all_matmul(tall, b)
    assert got.shape == (rows, 2 * size)
    near(got, want, "float32", HIDDEN * size)


MOVES = [
    gathered,
    scattered,
    reduced,
    from_the_last,
    exchanged,
    normed,
]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("move", MOVES)
def test_what_moves_rows_has_few_programs(rng, move, size):
    weight = parts(rng, 1, (2 * size, HIDDEN))[0]
    steps = [spread(rng, size, rows) for rows in counts(rng)]

    def body():
        r = stretto.rank()
        for x, all_of in steps:
            move(x, all_of, weight, r)
        return programs()

    # Collectives see rows of what divides the elements, of which there are a few.
    most = MOST_PROGRAMS * (3 if move in (gathered, scattered, reduced, from_the_last) else 1)
    for made in testing.run(size, body):
        assert made <= most


def gathered_product(x, all_of, weight, r):
    got = stretto.all_gather_matmul(x[r], weight.T)
    near(got, np.concatenate(all_of) @ weight.T.astype(np.float64), "float32", HIDDEN)


def scattered_product(x, all_of, weight, r):
    size = len(x)
    tall, rows = np.concatenate([x[r]] * size), x[0].shape[0]
    want = np.concatenate([sum(all_of)] * size) @ weight.T.astype(np.float64)
    near(stretto.matmul_reduce_scatter(tall, weight.T), want[r * rows : (r + 1) * rows], "float32", HIDDEN * size)


def reduced_product(x, all_of, weight, r):
    got = stretto.matmul_all_reduce(x[r], weight.T)
    near(got, sum(all_of) @ weight.T.astype(np.float64), "float32", HIDDEN * len(x))


def spread_product(x, all_of, weight, r):
    got = stretto.matmul_all_gather(x[r], weight.T)
    want = [y @ weight.T.astype(np.float64) for y in all_of]
    near(got, np.concatenate(want, 1), "float32", HIDDEN)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "product, products",
    [
        *itertools.product([gathered_product, scattered_product, reduced_product], ["fused", "sequence"]),
        (spread_product, "fused"),  # in sequence columns are gathered, whose programs are by rows
        (before_spread_heads, "fused"),
        (after_spread_heads, "fused"),
    ],
)
def test_products_have_few_programs(rng, monkeypatch, size, product, products):
    """The first numbers of rows have programs of their own, which later ones do not disturb."""
    weight = parts(rng, 1, (24, HIDDEN))[0]
    steps = [spread(rng, size, rows) for rows in counts(rng)]

    def body():
        group = stretto._world.group_of()
        monkeypatch.setattr(group, "options", group.options._replace(products=products))
        r = stretto.rank()
        for x, all_of in [*steps, *steps[:6]]:
            product(x, all_of, weight, r)
        return programs()

    for made in testing.run(size, body):
        assert made <= (MOST_PROGRAMS + 6) * (2 if products == "sequence" else 1)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_layers_of_experts_have_few_programs(rng, size):
    experts, top_k, ffn = 5, 2, 8
    gate, up = (parts(rng, size, (experts * HIDDEN, ffn)) for _ in range(2))
    down = parts(rng, size, (experts * ffn, HIDDEN))
    steps = []
    for rows in counts(rng, 24):
        x, all_of = spread(rng, size, rows)
        chosen = np.argsort(rng.uniform(0, 1, (rows * size, experts)), 1)[:, :top_k].astype(np.int32)
        steps.append((x, np.concatenate(all_of), chosen, rng.uniform(0, 1, chosen.shape).astype(np.float32)))

    def want(x, chosen, weights):
        out = np.zeros_like(x)
        for rank in range(size):
            g, u = (w[rank].reshape(experts, HIDDEN, ffn).astype(np.float64) for w in (gate, up))
            d = down[rank].reshape(experts, ffn, HIDDEN).astype(np.float64)
            for j in range(top_k):
                e = chosen[:, j]
                a, b = (np.einsum("mh,mhf->mf", x, w[e]) for w in (g, u))
                out += weights[:, j, None] * np.einsum("mf,mfh->mh", a / (1 + np.exp(-a)) * b, d[e])
        return out

    wanted = [want(x, chosen, weights) for _, x, chosen, weights in steps]

    def body():
        r = stretto.rank()
        w = [x[r].reshape(experts, HIDDEN, ffn) for x in (gate, up)] + [down[r].reshape(experts, ffn, HIDDEN)]
        for (x, _, chosen, weights), result in [*zip(steps, wanted), *zip(steps[:6], wanted)]:
            got = stretto.moe_layer(x[r], *w, chosen, weights)
            rows = len(x[r])
            near(got, result[r * rows : (r + 1) * rows], "float32", HIDDEN * ffn * size)
        return programs()

    for made in testing.run(size, body):  # of the layer and its tables
        assert made <= 2 * (MOST_PROGRAMS + 6)


@pytest.mark.parametrize("queries_travel", [None, False, True])
def test_attention_over_ranks_has_few_programs(rng, queries_travel):
    size, heads, width = 2, 2, 8
    lengths = counts(rng, 30)
    whole = [parts(rng, 3, (tokens, heads, width)) for tokens in lengths]

    def body():
        for tokens, (q, k, v) in zip(lengths, whole):
            at = stretto.zigzag(tokens)
            real = [i for i, token in enumerate(at) if token < tokens]
            mine = [x[np.minimum(at, tokens - 1)] for x in (q, k, v)]
            options = {"tokens": tokens, "return_lse": True}
            if queries_travel is None:
                got, lse = stretto.sequence_attention(*mine, **options)
            else:
                got, lse = stretto.ring_attention(*mine, queries_travel=queries_travel, **options)
            seen = np.arange(tokens) + 1
            want = softmax_attention(q, k, v, seen)[[at[i] for i in real]]
            near(got[real], want, "float32", tokens)
            assert lse.shape == (heads, len(at)) and lse.flags.c_contiguous
            scores = np.einsum("qhe,khe->hqk", *wide([q, k])) / width**0.5
            scores = np.where(np.arange(tokens)[None, None, :] < seen[None, :, None], scores, -np.inf)
            logs = np.log(np.exp(scores).sum(-1))[:, [at[i] for i in real]]
            near(lse[:, real], logs, "float32", tokens)
        return programs()

    for made in testing.run(size, body):
        assert made <= MOST_PROGRAMS


def test_logarithms_of_packed_rows_have_few_programs(rng):
    lengths = counts(rng)
    whole = [parts(rng, 2, (rows, 2, 8)) for rows in lengths]

    def body():
        for rows, (q, k) in zip(lengths, whole):
            got, lse = stretto.packed_attention(
                q, k, k, np.array([0, rows], np.int32), return_lse=True
            )
            near(got, softmax_attention(q, k, k, np.arange(rows) + 1), "float32", rows)
            scores = np.einsum("qhe,khe->hqk", *wide([q, k])) / 8**0.5
            logs = np.log((np.exp(scores) * np.tri(rows)[None]).sum(-1))
            assert lse.shape == (2, rows) and lse.flags.c_contiguous
            near(lse, logs, "float32", rows)
        return len(stretto._world.group_of().alone()._entries)

    assert testing.run(1, body)[0] <= MOST_PROGRAMS


def test_symmetric_arrays_of_fewer_rows_than_the_program_has(rng):
    """They are used where they are, and end before the program's bound does."""
    x = parts(rng, 2, (97, HIDDEN))

    def body():
        r = stretto.rank()
        for rows in (97, 99, 103):
            mine = stretto.symm_mem.empty(rows, HIDDEN, dtype="float32")
            mine[...] = np.resize(x[r], (rows, HIDDEN))
            total = np.resize(x[0], mine.shape).astype(np.float64) + np.resize(x[1], mine.shape)
            near(stretto.all_reduce(mine), total, "float32")
            near(stretto.all_reduce(mine, out=mine), total, "float32")
        return programs()

    assert testing.run(2, body) == [1, 1]


def test_ranks_with_different_numbers_of_rows_hear_of_it(rng):
    """Also where one program serves both."""

    def body():
        rows = 97 + stretto.rank()
        with pytest.raises(stretto.UserError, match=r"\[97, 64\].*\[98, 64\]"):
            stretto.all_reduce_add_rms_norm(*(np.ones((rows, HIDDEN), np.float32),) * 2, np.ones(HIDDEN, np.float32))
        return float(stretto.all_reduce(np.ones(3, np.float32))[0])

    assert testing.run(2, body) == [2, 2]
