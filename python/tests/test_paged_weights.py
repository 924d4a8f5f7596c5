"""Logarithms of the sums of weights of attention over pages, against float64. By them callers put
together what several caches that hold parts of one context give."""

import numpy as np
import pytest

import stretto
from stretto import testing
from test_attention import MASKS, lengths_to_starts, poisoned
from test_ops import near, parts, wide

HEADS, KV_HEADS, WIDTH, PAGE = 4, 2, 8, 4


class Cache:
    """Keys and values of sequences, in pages in any order; nothing that is a number past their ends."""

    def __init__(self, rng, tokens, dtype):
        pages = [-(-n // PAGE) for n in tokens]
        order = iter(rng.permutation(sum(pages) + 1))
        shape = (sum(pages) + 1, KV_HEADS, PAGE, WIDTH)
        self.table = np.zeros((len(tokens), max(1, *pages)), np.int32)
        self.tokens = np.array(tokens, np.int32)
        self.pages = poisoned(shape, dtype), poisoned(shape, dtype)
        self.rows = [parts(rng, 2, (n, KV_HEADS, WIDTH), dtype) for n in tokens]
        for s, both in enumerate(self.rows):
            for i in range(pages[s]):
                self.table[s, i] = at = next(order)
                for memory, x in zip(self.pages, both):
                    part = x[i * PAGE : (i + 1) * PAGE]
                    memory[at, :, : len(part)] = part.swapaxes(0, 1)

    def arrays(self, starts):
        return *self.pages, starts, self.table, self.tokens


def reference(q, k, v, seen, window=0, scale=None):
    """(results, logarithms [heads, rows]) of rows of which each sees so many tokens, or the last
    `window` of these."""
    q, k, v = wide([q, *(np.repeat(x, HEADS // KV_HEADS, 1) for x in (k, v))])
    token, seen = np.arange(len(k)), np.asarray(seen, int)[:, None]
    hidden = (token >= seen) | ((window > 0) & (token < seen - window))
    scores = np.einsum("qhe,she->hqs", q, k) * (WIDTH**-0.5 if scale is None else scale)
    weights = np.where(hidden, 0, np.exp(scores))
    total = weights.sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.einsum("hqs,she->qhe", weights, v) / total.T[..., None], np.log(total)


def ragged(rng):
    """(rows, tokens of the cache) of sequences: none, one and several of each, and fewer tokens than
    rows."""
    new, tokens = [3, 1, 0, 0, 5, 2, 4, 40], [7, 1, 0, 2, 5, 0, 2, 3]
    more = rng.integers(0, 20, 3)
    order = rng.permutation(len(new) + 3)
    new, tokens = np.array([*new, *more]), np.array([*tokens, *(more + rng.integers(0, 15, 3))])
    return new[order], tokens[order]


@pytest.mark.parametrize("causal, window", MASKS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("scale", [None, -0.7])
def test_weights_of_sequences_in_pages(rng, causal, window, dtype, scale):
    new, tokens = ragged(rng)
    starts, cache = lengths_to_starts(new), Cache(rng, tokens, dtype)
    (q,) = parts(rng, 1, (sum(new), HEADS, WIDTH), dtype)
    want = []
    for s, (length, total) in enumerate(zip(new, tokens)):
        seen = total - length + 1 + np.arange(length) if causal else np.full(length, total)
        want.append(reference(q[starts[s] : starts[s + 1]], *cache.rows[s], seen, window, scale))
    want, logs = np.concatenate([x for x, _ in want]), np.concatenate([x for _, x in want], 1)
    assert np.isneginf(logs).any()

    def body():
        call = (q, *cache.arrays(starts))
        options = {"is_causal": causal, "window": window, "scale": scale}
        out = poisoned(q.shape, dtype), poisoned((HEADS, len(q)))
        got = stretto.paged_attention(*call, return_lse=True, out=out, **options)
        assert got[0] is out[0] and got[1] is out[1]
        for _ in range(3):  # the last ones as calls that are repeated
            again = stretto.paged_attention(*call, return_lse=True, **options)
            assert all(x.tobytes() == y.tobytes() for x, y in zip(again, got))
        assert stretto.paged_attention(*call, **options).tobytes() == got[0].tobytes()
        with pytest.raises(stretto.UserError, match="out is one ndarray, need 2"):
            stretto.paged_attention(*call, return_lse=True, out=out[0], **options)
        return got

    got, lse = testing.run(1, body)[0]
    assert lse.shape == (HEADS, len(q))
    near(lse, logs, "float32")
    some = ~np.isneginf(logs[0])
    near(got[some], want[some], dtype)


def test_steps_of_decoding_have_the_same_weights_in_both_forms(rng):
    """Sequences of none, one and several tokens; one form has logarithms by row, the other by head."""
    tokens = [0, 1, *rng.integers(0, 12, 4), 0]
    cache, starts = Cache(rng, tokens, "float32"), np.arange(len(tokens) + 1, dtype=np.int32)
    (q,) = parts(rng, 1, (len(tokens), HEADS, WIDTH))

    def body():
        k, v, _, *tables = call = cache.arrays(starts)
        one = stretto.paged_attention(q, *call, return_lse=True)
        return one, stretto.paged_decode(q, k, v, *tables, return_lse=True)

    (_, by_head), (_, by_row) = testing.run(1, body)[0]
    logs = [reference(q[s : s + 1], *cache.rows[s], [n])[1] for s, n in enumerate(tokens)]
    near(by_head, np.concatenate(logs, 1), "float32")
    near(by_row, np.concatenate(logs, 1).T, "float32")


def test_parts_of_a_context_are_put_together_by_their_weights(rng):
    """Of a cache that all rows see, in which some sequences have nothing, and the tokens of this step."""
    new = [3, 1, 0, 5, 2, int(rng.integers(1, 9))]
    before = [4, 0, 6, 1, 0, int(rng.integers(1, 9))]
    starts, cache = lengths_to_starts(new), Cache(rng, before, "float32")
    (q,) = parts(rng, 1, (sum(new), HEADS, WIDTH))
    k, v = parts(rng, 2, (sum(new), KV_HEADS, WIDTH))

    def body():
        first = stretto.paged_attention(q, *cache.arrays(starts), is_causal=False, return_lse=True)
        return first, stretto.packed_attention(q, k, v, starts, return_lse=True)

    (first, first_lse), (second, second_lse) = testing.run(1, body)[0]
    lse = np.logaddexp(first_lse, second_lse)
    weights = [np.exp(x - lse).T[..., None] for x in (first_lse, second_lse)]
    got = np.where(weights[0] > 0, first, 0) * weights[0] + second * weights[1]
    for s, length in enumerate(new):
        rows = slice(starts[s], starts[s + 1])
        both = [np.concatenate([x, y[rows]]) for x, y in zip(cache.rows[s], (k, v))]
        want, logs = reference(q[rows], *both, before[s] + 1 + np.arange(length))
        near(got[rows], want, "float32")
        near(lse[:, rows], logs, "float32")
