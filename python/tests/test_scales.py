"""Attention whose scores are multiplied by a number of the caller's, of any sign and size, against softmax
in float64."""

import numpy as np
import pytest

import stretto
from stretto import testing
from test_ops import near

SCALES = [0.7, -0.7, -5, 0, -0.0, 1e-30, -1e-30, 1e7, -1e7, None]
WIDTH = 8


def attention(q, k, v, seen, scale, window=0):
    """(result [L, Hq, E], logarithms of sums [Hq, L]) of [L, Hq, E] over [S, Hkv, E], in float64; row i
    sees the first seen[i] keys, of these the last `window`, if any."""
    k, v = (np.repeat(x.astype(np.float64), q.shape[1] // k.shape[1], 1) for x in (k, v))
    scale = WIDTH**-0.5 if scale is None else scale
    scores = np.einsum("lhe,she->hls", q.astype(np.float64), k) * scale
    keys, ends = np.arange(len(k)), np.asarray(seen)[:, None]
    scores[:, (keys >= ends) | (keys < ends - (window or len(k)))] = -np.inf
    peaks = scores.max(-1, keepdims=True)
    weights = np.exp(scores - peaks)
    sums = weights.sum(-1, keepdims=True)
    return np.einsum("hls,she->lhe", weights / sums, v), (peaks + np.log(sums))[..., 0]


def numbers(rng, *shapes):
    return [rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("window", [0, 3])
def test_of_one_rank(rng, scale, window):
    rows = 70
    q, k, v = numbers(rng, (rows, 4, WIDTH), (rows, 2, WIDTH), (rows, 2, WIDTH))
    starts = np.array([0, 3, rows], np.int32)
    options = {"scale": scale, "window": window, "return_lse": True}

    def body():
        heads = [x.swapaxes(0, 1) for x in (q, k, v)]
        whole = stretto.scaled_dot_product_attention(
            *heads, is_causal=True, enable_gqa=True, **options
        )
        return whole, stretto.packed_attention(q, k, v, starts, **options)

    whole, packed = testing.run(1, body)[0]
    want, lse = attention(q, k, v, np.arange(rows) + 1, scale, window)
    near(whole[0].swapaxes(0, 1), want, "float32")
    rounding = 1e-5 * max(1, abs(scale or 0))
    np.testing.assert_allclose(whole[1], lse, rtol=1e-5, atol=rounding)
    for begin, end in ((0, 3), (3, rows)):
        parts = (x[begin:end] for x in (q, k, v))
        want, lse = attention(*parts, np.arange(end - begin) + 1, scale, window)
        near(packed[0][begin:end], want, "float32")
        np.testing.assert_allclose(packed[1][:, begin:end], lse, rtol=1e-5, atol=rounding)


@pytest.mark.parametrize("scale", SCALES)
def test_over_pages(rng, scale):
    page, num_pages, tokens = 4, 6, np.array([5, 11], np.int32)
    q, k_pages, v_pages = numbers(rng, (2, 4, WIDTH), *2 * [(num_pages, 2, page, WIDTH)])
    table = rng.permutation(num_pages)[:6].astype(np.int32).reshape(2, 3)
    starts = np.array([0, 1, 2], np.int32)

    def body():
        return (
            stretto.paged_decode(q, k_pages, v_pages, table, tokens, scale=scale),
            stretto.paged_attention(q, k_pages, v_pages, starts, table, tokens, scale=scale),
        )

    for got in testing.run(1, body)[0]:
        for s, total in enumerate(tokens):
            k, v = (x[table[s]].swapaxes(1, 2).reshape(-1, 2, WIDTH) for x in (k_pages, v_pages))
            want, _ = attention(q[s : s + 1], k, v, [total], scale)
            near(got[s : s + 1], want, "float32")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("size", [1, 3])
def test_over_the_ranks(rng, scale, size):
    tokens, block = 20, 4
    rows = 2 * size * -(-tokens // (2 * size))
    q, k, v = numbers(rng, (rows, 4, WIDTH), (rows, 2, WIDTH), (rows, 2, WIDTH))
    most = block * size * 2
    caches = numbers(rng, *2 * [(most, 2, WIDTH)])

    def body():
        own = stretto.zigzag(tokens)
        options = {"tokens": tokens, "scale": scale}
        spread = [
            stretto.sequence_attention(q[own], k[own], v[own], **options),
            stretto.ring_attention(q[own], k[own], v[own], **options),
            stretto.ring_attention(q[own], k[own], v[own], queries_travel=True, **options),
        ]
        mine = np.arange(most) // block % size == stretto.rank()
        held = [np.ascontiguousarray(x[mine].swapaxes(0, 1)) for x in caches]
        return own, spread, stretto.flash_decode(q[:2], *held, most - 1, block=block, scale=scale)

    want, _ = attention(*(x[:tokens] for x in (q, k, v)), np.arange(tokens) + 1, scale)
    decoded, _ = attention(q[:2], *caches, [most - 2, most - 1], scale)
    for own, spread, last in testing.run(size, body):
        real = [i for i, token in enumerate(own) if token < tokens]
        for got in spread:
            near(got[real], want[[own[i] for i in real]], "float32")
        near(last, decoded, "float32")


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -float("inf"), "much", 1j])
def test_what_is_no_number_is_refused(rng, scale):
    q, pages = numbers(rng, (2, 2, WIDTH), (2, 2, 4, WIDTH))
    starts, table = np.array([0, 2], np.int32), np.zeros((2, 1), np.int32)
    calls = [
        lambda: stretto.scaled_dot_product_attention(q, q, q, scale=scale),
        lambda: stretto.packed_attention(q, q, q, starts, scale=scale),
        lambda: stretto.paged_decode(q, pages, pages, table, starts, scale=scale),
        lambda: stretto.sequence_attention(q, q, q, scale=scale),
        lambda: stretto.ring_attention(q, q, q, scale=scale),
        lambda: stretto.flash_decode(q[:1], q, q, 1, block=1, scale=scale),
    ]

    def body():
        for call in calls:
            with pytest.raises(stretto.UserError, match="scale is"):
                call()

    testing.run(1, body)
