"""Attention over pages of e4m3 with a scale for each token of each key head, against float64 of what
they stand for."""

import ml_dtypes
import numpy as np
import pytest

import stretto
from stretto import testing
from test_attention import MASKS, lengths_to_starts, poisoned
from test_ops import near, numpy_dtype, parts
from test_paged_weights import HEADS, KV_HEADS, WIDTH, Cache, ragged, reference

FP8 = ml_dtypes.float8_e4m3fn


def as_fp8(pages):
    """(numbers, scales, what they stand for) of pages: the largest number of a row is 448."""
    wide = np.nan_to_num(pages.astype(np.float32), nan=1.0)
    scales = np.maximum(abs(wide).max(-1), 1e-6).astype(np.float32) / np.float32(448)
    numbers = (wide / scales[..., None]).astype(FP8)
    return numbers, scales, numbers.astype(np.float32) * scales[..., None]


class Fp8Cache(Cache):
    """A cache of which the pages are kept as e4m3, its rows being what these stand for."""

    def __init__(self, rng, tokens, dtype):
        super().__init__(rng, tokens, dtype)
        (k, ks, k_wide), (v, vs, v_wide) = (as_fp8(x) for x in self.pages)
        self.pages, self.scales = (k, v), {"key_scales": ks, "value_scales": vs}
        rows = []
        for s, total in enumerate(tokens):
            both = (x[self.table[s]].swapaxes(1, 2).reshape(-1, KV_HEADS, WIDTH)[:total] for x in (k_wide, v_wide))
            rows.append(tuple(x.astype(numpy_dtype(dtype)) for x in both))
        self.rows = rows


@pytest.mark.parametrize("causal, window", MASKS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_sequences_in_pages_of_fp8(rng, causal, window, dtype):
    new, tokens = ragged(rng)
    starts, cache = lengths_to_starts(new), Fp8Cache(rng, tokens, dtype)
    (q,) = parts(rng, 1, (sum(new), HEADS, WIDTH), dtype)
    want = []
    for s, (length, total) in enumerate(zip(new, tokens)):
        seen = total - length + 1 + np.arange(length) if causal else np.full(length, total)
        want.append(reference(q[starts[s] : starts[s + 1]], *cache.rows[s], seen, window))
    want, logs = np.concatenate([x for x, _ in want]), np.concatenate([x for _, x in want], 1)

    def body():
        call, options = (q, *cache.arrays(starts)), {"is_causal": causal, "window": window, **cache.scales}
        out = poisoned(q.shape, dtype), poisoned((HEADS, len(q)))
        got = stretto.paged_attention(*call, return_lse=True, out=out, **options)
        assert got[0] is out[0] and got[1] is out[1]
        for _ in range(3):  # the last ones as calls that are repeated
            again = stretto.paged_attention(*call, return_lse=True, **options)
            assert all(x.tobytes() == y.tobytes() for x, y in zip(again, got))
        assert stretto.paged_attention(*call, **options).tobytes() == got[0].tobytes()
        return got

    got, lse = testing.run(1, body)[0]
    near(lse, logs, "float32")
    some = ~np.isneginf(logs[0])
    near(got[some], want[some], dtype)


@pytest.mark.parametrize("window", [0, 5])
def test_decoding_over_pages_of_fp8(rng, window):
    tokens = np.array([1, 9, 4, 12, *rng.integers(1, 15, 3)])
    cache = Fp8Cache(rng, tokens, "float32")
    (q,) = parts(rng, 1, (len(tokens), HEADS, WIDTH))
    want = [reference(q[s : s + 1], *cache.rows[s], [n], window) for s, n in enumerate(tokens)]

    def body():
        k, v, _, *tables = cache.arrays(None)
        got = stretto.paged_decode(q, k, v, *tables, window=window, return_lse=True, **cache.scales)
        # Scales that lie elsewhere, with gaps, are those of this call.
        doubled = {name: np.repeat(x, 2, -1)[..., ::2] * 2 for name, x in cache.scales.items()}
        twice = stretto.paged_decode(q, k, v, *tables, window=window, **doubled)
        return (*got, twice)

    out, lse, twice = testing.run(1, body)[0]
    near(out, np.concatenate([x for x, _ in want]), "float32")
    near(lse, np.concatenate([x for _, x in want], 1).T, "float32")
    rows = [[x * 2 for x in both] for both in cache.rows]
    near(twice, np.concatenate([reference(q[s : s + 1], *rows[s], [n], window)[0] for s, n in enumerate(tokens)]),
         "float32")


def wrong_calls(cache, as_kind):
    """(error, arguments that replace the right ones)."""
    k, v = cache.pages
    ks, vs = cache.scales.values()
    floats = as_kind(np.zeros(k.shape, np.float32))
    shape = r"\(\d+, 2, 4\)"
    return [
        ("key_pages is float8_e4m3fn: need key_scales and value_scales, float32",
         {"key_scales": None, "value_scales": None}),
        ("key_scales without value_scales; need both or none", {"value_scales": None}),
        ("value_scales without key_scales; need both or none", {"key_scales": None}),
        ("key_pages is float32; with key_scales and value_scales need float8_e4m3fn", {"key_pages": floats}),
        ("value_pages is float32; with key_scales and value_scales need float8_e4m3fn", {"value_pages": floats}),
        ("key_pages is float8_e5m2; with key_scales and value_scales need float8_e4m3fn",
         {"key_pages": as_kind(k.astype(np.float32).astype(ml_dtypes.float8_e5m2))}),
        (rf"key_scales is float64 {shape}; need float32 {shape}", {"key_scales": as_kind(ks.astype(np.float64))}),
        (rf"value_scales is float32 \(\d+, 2, 4, 1\); need float32 {shape}", {"value_scales": as_kind(vs[..., None])}),
        ("element type float8_e4m3fn of query", {"query": as_kind(np.zeros((3, HEADS, WIDTH), FP8))}),
    ]


def to_torch(x):
    torch = pytest.importorskip("torch")
    if x.dtype.name.startswith("float8"):
        return torch.from_numpy(x.view(np.uint8)).view(getattr(torch, x.dtype.name))
    return torch.from_numpy(np.ascontiguousarray(x))


@pytest.mark.parametrize("as_kind", [np.asarray, to_torch])
@pytest.mark.parametrize("op", ["paged_attention", "paged_decode"])
def test_what_does_not_go_with_pages_of_fp8_is_named(rng, op, as_kind):
    cache = Fp8Cache(rng, [3, 5, 2], "float32")
    right = {
        "query": np.ones((3, HEADS, WIDTH), np.float32),
        "key_pages": cache.pages[0],
        "value_pages": cache.pages[1],
        "block_table": cache.table,
        "cache_tokens": cache.tokens,
        **cache.scales,
    }
    if op == "paged_attention":
        right["cu_seqlens"] = np.arange(4, dtype=np.int32)
    right = {name: as_kind(x) for name, x in right.items()}

    def body():
        getattr(stretto, op)(**right)
        for error, others in wrong_calls(cache, as_kind):
            with pytest.raises(stretto.UserError, match=f"{op}: {error}"):
                getattr(stretto, op)(**{**right, **others})

    testing.run(1, body)


@pytest.mark.parametrize("compiled", [False, True])
def test_tensors_of_fp8(rng, compiled):
    torch = pytest.importorskip("torch")
    tokens = [3, 5, 2]
    cache, starts = Fp8Cache(rng, tokens, "float32"), np.arange(4, dtype=np.int32)
    (q,) = parts(rng, 1, (3, HEADS, WIDTH))
    k, v, _, *tables = cache.arrays(starts)

    def body():
        want = (
            stretto.paged_decode(q, k, v, *tables, **cache.scales),
            *stretto.paged_attention(q, k, v, starts, *tables, return_lse=True, **cache.scales),
        )
        scales = {name: to_torch(x) for name, x in cache.scales.items()}
        arrays = [to_torch(x) for x in (q, k, v, starts, *tables)]

        def both(q, k, v, starts, *tables):
            decoded = stretto.paged_decode(q, k, v, *tables, **scales)
            return decoded, *stretto.paged_attention(q, k, v, starts, *tables, return_lse=True, **scales)

        call = torch.compile(both, fullgraph=True, backend="aot_eager") if compiled else both
        for got, one in zip(call(*arrays), want):
            assert got.numpy().tobytes() == one.tobytes()

    testing.run(1, body)
