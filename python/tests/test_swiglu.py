"""If these fail, experts whose gate is not plain SwiGLU give wrong numbers: those of GPT-OSS, say."""

import numpy as np
import pytest

import stretto
from stretto import testing

torch = pytest.importorskip("torch")
ROWS, HIDDEN, FFN, TOP_K, EXPERTS = 6, 19, 10, 2, 4
LIMIT = 1.5  # which many numbers here reach


def gate_of_gpt_oss(gate, up, limit=LIMIT):
    """As its module in transformers applies it to both products."""
    gate = gate.clamp(min=None, max=limit)
    up = up.clamp(min=-limit, max=limit)
    glu = gate * torch.sigmoid(gate * 1.702)
    return (up + 1) * glu


class Layer:
    """Weights [E, F, H], [E, F, H], [E, H, F] and biases."""

    def __init__(self, rng):
        shapes = (EXPERTS, FFN, HIDDEN), (EXPERTS, FFN, HIDDEN), (EXPERTS, HIDDEN, FFN)
        self.weights = [rng.standard_normal(s).astype(np.float32) for s in shapes]
        self.biases = [rng.standard_normal(s[:2]).astype(np.float32) for s in shapes]

    def first(self, row, e):
        w, b, row = self.weights, self.biases, torch.tensor(row, dtype=torch.float64)
        gate, up = (torch.tensor(w[i][e]).double() @ row + torch.tensor(b[i][e]) for i in (0, 1))
        return gate_of_gpt_oss(gate, up)

    def both(self, row, chosen, weights):
        down, bias = (torch.tensor(x[2]).double() for x in (self.weights, self.biases))
        return sum(float(w) * (down[e] @ self.first(row, e) + bias[e]) for e, w in zip(chosen, weights))

    def columns(self, r, size):
        """A rank's part of every expert."""
        own = slice(r * FFN // size, (r + 1) * FFN // size)
        gate, up, down = self.weights
        return [gate[:, own], up[:, own], down[..., own]], [b[:, own] for b in self.biases[:2]]


OF_GPT_OSS = stretto.SwiGLU(alpha=1.702, beta=1, limit=LIMIT)


def choices(rng, tokens):
    chosen = np.stack([rng.permutation(EXPERTS)[:TOP_K] for _ in range(tokens)])
    return chosen, rng.uniform(0, 1, (tokens, TOP_K)).astype(np.float32)


@pytest.mark.parametrize("size", [1, 2])
def test_layers_of_gpt_oss(rng, size):
    layer, x = Layer(rng), rng.standard_normal((size, ROWS, HIDDEN)).astype(np.float32)
    chosen, weights = choices(rng, size * ROWS)
    tokens = x.reshape(-1, HIDDEN)
    want = np.stack([layer.both(*row) for row in zip(tokens, chosen, weights)])

    def body():
        r = stretto.rank()
        own, pair = layer.columns(r, size)
        turned = [w.swapaxes(1, 2) for w in own]
        named = {"gate_bias": pair[0], "up_bias": pair[1], "down_bias": layer.biases[2]}
        options = {"bias": pair[0], "up_bias": pair[1], "swiglu": OF_GPT_OSS}
        y, tiles = stretto.all_gather_grouped_matmul(x[r], turned[0], chosen, up=turned[1], **options)
        two = stretto.grouped_matmul_reduce_scatter(y, turned[2], tiles, weights, bias=layer.biases[2])
        one = stretto.moe_layer(x[r], *turned, chosen, weights, **named, swiglu=OF_GPT_OSS)
        mine = slice(r * EXPERTS // size, (r + 1) * EXPERTS // size)
        whole = [w[mine].swapaxes(1, 2) for w in layer.weights]
        named = dict(zip(("gate_bias", "up_bias", "down_bias"), (b[mine] for b in layer.biases)))
        routed = np.split(chosen, size)[r].astype(np.int32), np.split(weights, size)[r], EXPERTS
        spread = stretto.ep_moe_layer(x[r], *whole, *routed, **named, swiglu=(1.702, 1, LIMIT))
        plain = stretto.moe_layer(x[r], *turned, chosen, weights)
        again = stretto.moe_layer(x[r], *turned, chosen, weights, swiglu=stretto.SwiGLU())
        assert plain.tobytes() == again.tobytes()
        return y[tiles.slots.reshape(-1)], two, one, spread

    for r, (inner, *sums) in enumerate(testing.run(size, body)):
        first = [layer.first(row, e)[r * FFN // size : (r + 1) * FFN // size]
                 for row, all_of in zip(tokens, chosen) for e in all_of]
        np.testing.assert_allclose(inner, np.stack(first), rtol=1e-4, atol=1e-4)
        for got in sums:
            np.testing.assert_allclose(got, np.split(want, size)[r], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("unit", [(1.702, 1, 7), (1.702, 1, LIMIT), (1, 0, LIMIT), (2.5, -0.5, np.inf)])
def test_products_of_any_unit(rng, unit):
    """Of the host's tensors and of NumPy's arrays; a gate that is NaN stays NaN."""
    alpha, beta, limit = unit
    layer, x = Layer(rng), rng.standard_normal((8, HIDDEN)).astype(np.float32) * 3
    x[5, 3] = np.nan
    offsets = np.array([0, 1, 4, 4, 8], np.int32)
    gate, up = (w.swapaxes(1, 2) for w in layer.weights[:2])

    def body():
        got = stretto.grouped_matmul(x, gate, offsets, up=up, swiglu=unit)
        with torch.inference_mode():
            tensors = (torch.from_numpy(np.ascontiguousarray(v)) for v in (x, gate, offsets))
            other = stretto.grouped_matmul(*tensors, up=torch.from_numpy(np.ascontiguousarray(up)), swiglu=unit)
        np.testing.assert_array_equal(got, other.numpy())
        return got

    (got,) = testing.run(1, body)
    for row, e in enumerate(np.searchsorted(offsets, np.arange(8), "right") - 1):
        g, u = (torch.tensor(w[e]).double() @ torch.tensor(x[row]).double() for w in layer.weights[:2])
        g, u = g.clamp(max=limit), u.clamp(-limit, limit)
        want = g * torch.sigmoid(alpha * g) * (u + beta)
        np.testing.assert_allclose(got[row], want, rtol=2e-4, atol=2e-4)
    assert np.isnan(got[5]).all() and not np.isnan(got[:5]).any()


def test_units_that_have_the_same_numbers(rng):
    """One after the other in one process, which keeps programs."""
    x, gate, up = (rng.standard_normal(s).astype(np.float32) for s in ((6, 19), (1, 19, 10), (1, 19, 10)))
    offsets = np.array([0, 6], np.int32)
    units = [{"alpha": 2.0}, {"beta": 2.0}, {"limit": 2.0}, {"alpha": 1.702, "beta": 1.0},
             {"alpha": 1.702, "limit": 1.0}, {"beta": 1.702, "limit": 1.0}]

    def body():
        return [stretto.grouped_matmul(x, gate, offsets, up=up, swiglu=stretto.SwiGLU(**unit)) for unit in units]

    (got,) = testing.run(1, body)
    for unit, out in zip(units, got):
        alpha, beta, limit = stretto.SwiGLU(**unit)
        g, u = (torch.tensor(x).double() @ torch.tensor(w[0]).double() for w in (gate, up))
        g, u = g.clamp(max=limit), u.clamp(-limit, limit)
        np.testing.assert_allclose(out, g * torch.sigmoid(alpha * g) * (u + beta), rtol=2e-4, atol=2e-4)


def test_units_that_are_none(rng):
    a, b, offsets = np.ones((6, 4), np.float32), np.ones((2, 4, 3), np.float32), np.array([0, 2, 6])

    def body():
        for match, options in (
            ("swiglu goes with up", {"swiglu": OF_GPT_OSS}),
            ("need finite alpha and beta and a limit above 0", {"up": b, "swiglu": (1, 1, 0)}),
            ("need finite alpha", {"up": b, "swiglu": (np.nan, 1, 7)}),
            ("need SwiGLU", {"up": b, "swiglu": (1, 2, 3, 4)}),
            ("need SwiGLU", {"up": b, "swiglu": "gpt-oss"}),
        ):
            with pytest.raises(stretto.UserError, match=f"grouped_matmul: .*{match}"):
                stretto.grouped_matmul(a, b, offsets, **options)

    testing.run(1, body)
