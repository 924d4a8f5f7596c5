"""A whole mixture of experts in one launch on NumPy arrays, on ranks that are threads, against the
same computed token by token in float64."""

import numpy as np
import pytest

import stretto
from stretto import _core, testing
from stretto.expert_layers import tiles_of
from test_experts import poisoned, silu
from test_ops import near, parts, wide

HIDDEN, FFN, EXPERTS, TOP_K = 24, 16, 7, 3


class Layer:
    """`groups` of `size` ranks have experts of their own, of 7 the last fewer, for which others' lie
    there; a rank's part of an expert is its columns."""

    def __init__(self, rng, size, groups, dtype):
        self.share, self.ranks = -(-EXPERTS // groups), size // groups
        shapes = (FFN * self.ranks, HIDDEN), (FFN * self.ranks, HIDDEN), (HIDDEN, FFN * self.ranks)
        many = EXPERTS + self.share * groups
        self.biases = [parts(rng, 1, (many, shape[0]), dtype)[0] for shape in shapes]
        self.whole = [parts(rng, 1, (many, *shape), dtype)[0] for shape in shapes]

    def of_rank(self, r):
        """gate, up [E, H, F] and down [E, F, H], transposes of what is dense."""
        own = slice(r // self.ranks * self.share, (r // self.ranks + 1) * self.share)
        columns = slice(r % self.ranks * FFN, (r % self.ranks + 1) * FFN)
        gate, up, down = (w[own] for w in self.whole)
        cut = gate[:, columns], up[:, columns], down[:, :, columns]
        return [np.ascontiguousarray(w).swapaxes(1, 2) for w in cut]

    def biases_of_rank(self, r):
        """By their names."""
        own = slice(r // self.ranks * self.share, (r // self.ranks + 1) * self.share)
        columns = slice(r % self.ranks * FFN, (r % self.ranks + 1) * FFN)
        gate, up, down = (b[own] for b in self.biases)
        return {"gate_bias": gate[:, columns], "up_bias": up[:, columns], "down_bias": down}

    def expected(self, x, experts, weights, biases=False):
        gate, up, down = wide(self.whole)
        g, u, d = (b if biases else 0 * b for b in wide(self.biases))
        sums = np.zeros((len(x), HIDDEN))
        for row, chosen, shares, total in zip(wide([x])[0], experts, weights, sums):
            for e, weight in zip(chosen, shares):
                inner = silu(gate[e] @ row + g[e]) * (up[e] @ row + u[e])
                total += weight * (down[e] @ inner + d[e])
        return sums


def choices(rng, pattern, size, rows):
    """Of each rank's tokens, all different: by lot, the same for all, or those of the first group."""
    order = np.argsort(rng.uniform(0, 1, (size, rows, EXPERTS)), 2)
    if pattern == "same":
        order[...] = rng.permutation(EXPERTS)
    elif pattern == "first":
        order = np.argsort(order + EXPERTS * (order >= TOP_K), 2, kind="stable")
    return order[:, :, :TOP_K]


CASES = [(1, 1), (2, 2), (2, 1), (3, 3), (4, 4), (4, 2)]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("size, groups", CASES)
@pytest.mark.parametrize("pattern", ["lot", "same", "first"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_whole_layer(rng, size, groups, pattern, dtype):
    """Other tokens at every call, then with what comes on top and where that is written."""
    for rows in (7, 1):
        layer = Layer(rng, size, groups, dtype)
        calls = []
        for _ in range(2):
            tokens, residual = (parts(rng, size, (rows, HIDDEN), dtype) for _ in range(2))
            weights = rng.uniform(0, 1, (size, rows, TOP_K)).astype(np.float32)
            calls.append((tokens, choices(rng, pattern, size, rows), weights, residual))

        def body():
            r, results = stretto.rank(), []
            own = layer.of_rank(r)
            spread = {} if groups == size else {"expert_groups": groups}
            for tokens, experts, weights, residual in calls:
                call = (tokens[r], *own, experts[r], weights[r], EXPERTS)
                out = poisoned((rows, HIDDEN), tokens[r].dtype)
                got = stretto.ep_moe_layer(*call, residual=residual[r], out=out, **spread)
                assert got is out
                biased = stretto.ep_moe_layer(
                    *call, residual=residual[r], **layer.biases_of_rank(r), **spread
                )
                results.append((stretto.ep_moe_layer(*call, **spread), out, biased))
            return results

        for r, results in enumerate(testing.run(size, body)):
            for (plain, added, biased), (tokens, experts, weights, residual) in zip(results, calls):
                want = layer.expected(tokens[r], experts[r], weights[r])
                terms = FFN * HIDDEN * TOP_K * layer.ranks
                near(plain, want, dtype, terms)
                near(added, want + wide(residual)[r], dtype, terms)
                want = layer.expected(tokens[r], experts[r], weights[r], biases=True)
                near(biased, want + wide(residual)[r], dtype, terms)


def test_symmetric_arrays_give_the_same(rng):
    size, rows = 2, 5
    layer, tokens = Layer(rng, size, size, "float32"), parts(rng, size, (rows, HIDDEN))
    experts, weights = choices(rng, "lot", size, rows), np.ones((size, rows, TOP_K), np.float32)

    def body():
        r = stretto.rank()
        routed = (*layer.of_rank(r), experts[r], weights[r], EXPERTS)
        x, out = (stretto.symm_mem.empty(rows, HIDDEN, name=name) for name in ("x", "out"))
        x[...] = tokens[r]
        assert stretto.ep_moe_layer(x, *routed, out=out) is out
        return out.tobytes(), stretto.ep_moe_layer(tokens[r], *routed).tobytes()

    for symmetric, plain in testing.run(size, body):
        assert symmetric == plain


def test_layers_that_do_not_fit(rng):
    layer, (x,) = Layer(rng, 2, 2, "float32"), parts(rng, 1, (3, HIDDEN))
    experts, weights = np.array([[0, 1]] * 3), np.ones((3, 2), np.float32)

    def body():
        gate, up, down = layer.of_rank(0)

        def call(x=x, gate=gate, experts=experts, weights=weights, number=EXPERTS, **options):
            return stretto.ep_moe_layer(x, gate, up, down, experts, weights, number, **options)

        for match, wrong in (
            (r"need \[S, H\]", {"x": x[0]}),
            ("2 of 1 experts", {"number": 1}),
            (r"need \[4, 24, F\] twice, \[4, F, 24\]: 7 experts in 2", {"gate": gate[:3]}),
            (r"need \[7, 24, F\] twice", {"expert_groups": 1}),
            ("3 groups of experts do not divide 2 ranks", {"expert_groups": 3}),
            ("element types float32 and float64 differ", {"gate": gate.astype(np.float64)}),
            (r"weights is float32 \(2, 2\)", {"weights": weights[:2]}),
            ("residual is float32", {"residual": x[:2]}),
            ("up_bias of gate_bias, up_bias, down_bias, which go together", {"up_bias": up[:, 0]}),
            (r"down_bias is float32 \(4, 16\); need float32 \(4, 24\)", {
                "gate_bias": up[:, 0], "up_bias": up[:, 0], "down_bias": up[:, 0]
            }),
            ("experts breaks.*entry 0", {"experts": experts + EXPERTS}),
        ):
            with pytest.raises(stretto.UserError, match=match):
                call(**wrong)
        assert call().shape == x.shape

    testing.run(2, body)


def test_layers_on_gpus_take_the_config_that_prediction_ranks_first(monkeypatch, tmp_path):
    monkeypatch.setenv("STRETTO_CACHE_DIR", str(tmp_path))
    routed = {"world_size": 4, "m": 2048, "top_k": 4, "num_experts": 60}
    desc = {**routed, "dtype": "bfloat16", "hidden": 2048, "ffn": 352, "residual": False}
    desc["tile_rows"] = tiles_of(routed, "bfloat16", 132)[0]

    def layer(sms, products):
        return _core.moe_layer(sms, products=products, **desc).explain()

    usual, chosen = layer(132, "default"), layer(132, "fastest")
    assert usual != chosen, "prediction would take the default: another shape would tell more"
    assert layer(132, "fused") == chosen
    assert layer(0, "fastest") == layer(0, "default")
