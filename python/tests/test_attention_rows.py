"""scaled_dot_product_attention with any numbers of queries and keys, more of either, none of either:
row i sees keys 0 to i where it is causal, as PyTorch's does."""

import numpy as np
import pytest

import stretto
from stretto import testing

try:
    import torch
except ImportError:
    torch = None


def reference(q, k, v, is_causal, window, scale):
    """(result, logarithms) in float64; rows that see nothing are 0 and -inf."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    of_group = q.shape[-3] // k.shape[-3]
    k, v = (np.repeat(x, of_group, axis=-3) for x in (k, v))
    rows, tokens = q.shape[-2], k.shape[-2]
    row, column = np.arange(rows)[:, None], np.arange(tokens)[None, :]
    seen = np.ones((rows, tokens), bool)
    if is_causal:
        seen = column <= row
        if window:
            seen &= column > row - window
    scores = np.where(seen, q @ np.swapaxes(k, -1, -2) * scale, -np.inf)
    weights = np.where(seen, np.exp(scores), 0)
    total = weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return weights @ v / np.where(total > 0, total, 1), np.log(total[..., 0])


def drawn(draw):
    """Rows, keys, batch, heads, heads of keys."""
    kv_heads = int(draw.integers(1, 3))
    rows, tokens = (int(draw.choice([0, 1, 2, 5, 31, 32, 33, 70, 150])) for _ in range(2))
    return rows, tokens, int(draw.integers(1, 3)), kv_heads * int(draw.integers(1, 4)), kv_heads


@pytest.mark.parametrize("turn", range(12))
def test_any_numbers_of_rows_and_keys(rng, turn):
    seed = [int(rng.integers(1 << 30)), turn]

    def body():
        draw = np.random.default_rng(seed)
        for _ in range(8):
            rows, tokens, batch, heads, kv_heads = drawn(draw)
            q = draw.standard_normal((batch, heads, rows, 8)).astype(np.float32)
            k, v = (draw.standard_normal((batch, kv_heads, tokens, 8)).astype(np.float32) for _ in "kv")
            is_causal = bool(draw.integers(2))
            window = int(draw.integers(1, 40)) if is_causal and draw.integers(2) else 0
            scale = float(draw.uniform(0.1, 1))
            outs = None
            if draw.integers(2):
                outs = np.full_like(q, np.nan), np.full(q.shape[:-1], np.nan, np.float32)
            got, lse = stretto.scaled_dot_product_attention(
                *(q, k, v),
                is_causal=is_causal,
                window=window,
                scale=scale,
                enable_gqa=True,
                return_lse=True,
                out=outs,
            )
            assert outs is None or (got is outs[0] and lse is outs[1])
            told = f"{q.shape} {k.shape} causal={is_causal} window={window}"
            want, want_lse = reference(q, k, v, is_causal, window, scale)
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4, err_msg=told)
            np.testing.assert_allclose(lse, want_lse, rtol=2e-4, atol=2e-4, err_msg=told)

    testing.run(1, body, timeout=60)


@pytest.mark.drawn(2)
@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("rows, tokens", [(9, 4), (70, 33), (4, 9), (150, 1), (3, 0)])
def test_as_pytorch(rng, rows, tokens, is_causal):
    torch.manual_seed(int(rng.integers(1 << 30)))
    q, k, v = torch.randn(2, 3, rows, 8), torch.randn(2, 3, tokens, 8), torch.randn(2, 3, tokens, 8)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    def body():
        call = stretto.scaled_dot_product_attention
        torch.testing.assert_close(call(q, k, v, is_causal=is_causal), want)
        torch.testing.assert_close(call(q, k, v, is_causal=is_causal, out=torch.empty_like(q)), want)

    testing.run(1, body, timeout=60)
