"""Calls that are made again run what the first ones have left, without the operator's Python code: with
values that have changed since, and copies among the steps."""

import numpy as np
import pytest

import stretto
from repeats import of_rank, repeated
from stretto import _calls, testing

F32 = np.float32


SIZES = (1, 2, 3, 4)


@pytest.mark.parametrize("size", SIZES)
def test_gathered_sizes(size, monkeypatch):
    lengths = [2 * r + 1 for r in range(size)]

    def make():
        x = np.empty((lengths[stretto.rank()], 3), F32)

        def fill(i):
            x[...] = of_rank(stretto.rank(), i, x.shape)

        def check(result, i):
            want = np.concatenate([of_rank(r, i, (lengths[r], 3)) for r in range(size)])
            np.testing.assert_array_equal(result, want)

        return fill, lambda: stretto.all_gather(x, sizes=lengths), check

    repeated(size, make, monkeypatch)


@pytest.mark.parametrize("size", SIZES)
def test_reduced_to_one_rank(size, monkeypatch):
    """On the others there is no result."""
    root = size - 1

    def make():
        x = np.empty((4, 8), F32)

        def fill(i):
            x[...] = of_rank(stretto.rank(), i, x.shape)

        def check(result, i):
            if stretto.rank() != root:
                assert result is None
                return
            np.testing.assert_array_equal(result, sum(of_rank(r, i, (4, 8)) for r in range(size)))

        return fill, lambda: stretto.reduce(x, root), check

    repeated(size, make, monkeypatch)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_uneven_blocks(size, monkeypatch):
    """Ranks that send what they have sent before tell each other one word."""
    sent = [[(3 * r + 2 * d + 1) % 5 for d in range(size)] for r in range(size)]

    def block(r, d, i):
        return of_rank(r, i, (sum(sent[r]), 2))[sum(sent[r][:d]) : sum(sent[r][: d + 1])]

    def make():
        r = stretto.rank()
        x = np.empty((sum(sent[r]), 2), F32)

        def fill(i):
            x[...] = of_rank(r, i, x.shape)

        def check(result, i):
            np.testing.assert_array_equal(result, np.concatenate([block(s, r, i) for s in range(size)]))

        return fill, lambda: stretto.all_to_all(x, None, sent[r]), check

    repeated(size, make, monkeypatch)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_blocks_of_which_some_change(size, rng):
    """One rank alone sends other numbers than the last time: all learn of it."""
    seed = int(rng.integers(1 << 30))

    def body():
        r = stretto.rank()
        for i in range(12):
            sent = np.random.default_rng([seed, i // 2 * 2 * (r == 0)]).integers(0, 4, size)
            x = of_rank(r, i, (int(sent.sum()), 2))
            everyones = [np.random.default_rng([seed, i // 2 * 2 * (s == 0)]).integers(0, 4, size) for s in range(size)]
            want = []
            for s in range(size):
                begin = int(everyones[s][:r].sum())
                want.append(of_rank(s, i, (int(everyones[s].sum()), 2))[begin : begin + int(everyones[s][r])])
            np.testing.assert_array_equal(stretto.all_to_all(x, None, sent.tolist()), np.concatenate(want))

    testing.run(size, body)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_messages(size, monkeypatch):
    def make():
        r = stretto.rank()
        x, y = np.empty((2, 3), F32), np.empty(5, F32)
        a, b = np.empty((2, 3), F32), np.empty(5, F32)
        to, source = (r + 1) % size, (r - 1) % size

        def fill(i):
            x[...], y[...] = of_rank(r, i, x.shape), of_rank(r, i + 100, y.shape)
            a[...] = b[...] = np.nan

        def call():
            stretto.batch_send_recv([(x, to), (y, to)], [(a, source), (b, source)])

        def check(_, i):
            np.testing.assert_array_equal(a, of_rank(source, i, x.shape))
            np.testing.assert_array_equal(b, of_rank(source, i + 100, y.shape))

        return fill, call, check

    repeated(size, make, monkeypatch)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("op", ["ring_attention", "sequence_attention"])
def test_attention(size, op, monkeypatch):
    """Against what new arrays of the same values give."""
    rows = 8

    def make():
        q, k, v = np.empty((rows, 4, 16), F32), np.empty((rows, 2, 16), F32), np.empty((rows, 2, 16), F32)

        def fill(i):
            for j, x in enumerate((q, k, v)):
                x[...] = of_rank(stretto.rank(), 10 * i + j, x.shape)

        def check(result, i):
            if stretto.rank() == 0:
                assert np.isfinite(result).all() and (i == 0 or not np.array_equal(result, seen[0]))
                seen[:] = [result.copy()]

        seen = []
        return fill, lambda: getattr(stretto, op)(q, k, v), check

    repeated(size, make, monkeypatch)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("whole", [False, True])
def test_layers_of_experts(size, whole, monkeypatch):
    """Against both layers in float64."""
    m, hidden, ffn, experts, top_k = 4 * size, 16, 8 * size, 4, 2

    def weights(i):
        make = np.random.default_rng([i, 3])
        return [make.standard_normal((experts, *shape)).astype(F32) / 4 for shape in
                ((hidden, ffn), (hidden, ffn), (ffn, hidden))]

    def routing(i):
        chosen = np.stack([np.random.default_rng([i, t]).permutation(experts)[:top_k] for t in range(m)])
        return chosen.astype(np.int32), np.random.default_rng([i, 5]).random((m, top_k)).astype(F32)

    def make():
        r = stretto.rank()
        x, part = np.empty((m // size, hidden), F32), slice(r * ffn // size, (r + 1) * ffn // size)
        gate, up = (np.empty((experts, ffn // size, hidden), F32).swapaxes(1, 2) for _ in range(2))
        down = np.empty((experts, hidden, ffn // size), F32).swapaxes(1, 2)  # which cost no copy
        chosen, shares = np.empty((m, top_k), np.int32), np.empty((m, top_k), F32)

        def fill(i):
            g, u, d = weights(i)
            gate[...], up[...], down[...] = g[:, :, part], u[:, :, part], d[:, part]
            chosen[...], shares[...] = routing(i)
            x[...] = of_rank(r, i, x.shape)

        def call():
            if whole:
                return stretto.moe_layer(x, gate, up, down, chosen, shares)
            y, tiles = stretto.all_gather_grouped_matmul(x, gate, chosen, up=up)
            return stretto.grouped_matmul_reduce_scatter(y, down, tiles, shares)

        def check(result, i):
            g, u, d = (w.astype(np.float64) for w in weights(i))
            tokens = np.concatenate([of_rank(s, i, x.shape) for s in range(size)]).astype(np.float64)
            experts_of, by = routing(i)
            for at, t in enumerate(range(r * m // size, (r + 1) * m // size)):
                want = 0
                for e, share in zip(experts_of[t], by[t]):
                    a = tokens[t] @ g[e]
                    want = want + share * ((a / (1 + np.exp(-a)) * (tokens[t] @ u[e])) @ d[e])
                np.testing.assert_allclose(result[at], want, rtol=2e-4, atol=2e-4)

        return fill, call, check

    repeated(size, make, monkeypatch)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("table", [np.int32, np.int64])
def test_spread_experts(size, at_once, table, monkeypatch):
    """Against both layers in float64."""
    own, hidden, ffn, experts, top_k = 3, 16, 8, 4, 2
    share = experts // size

    def values(i):
        make = np.random.default_rng([i, 4])
        return [make.standard_normal((experts, *shape)).astype(F32) / 4 for shape in
                ((hidden, ffn), (hidden, ffn), (ffn, hidden))]

    def routing(r, i):
        chosen = np.stack([np.random.default_rng([i, r, t]).permutation(experts)[:top_k] for t in range(own)])
        return chosen.astype(np.int32), np.random.default_rng([i, r, 5]).random((own, top_k)).astype(F32)

    def make():
        r = stretto.rank()
        x = np.empty((own, hidden), F32)
        gate, up = (np.empty((share, ffn, hidden), F32).swapaxes(1, 2) for _ in range(2))
        down = np.empty((share, hidden, ffn), F32).swapaxes(1, 2)
        chosen, shares = np.empty((own, top_k), table), np.empty((own, top_k), F32)

        def fill(i):
            g, u, d = values(i)
            mine = slice(r * share, (r + 1) * share)
            gate[...], up[...], down[...] = g[mine], u[mine], d[mine]
            chosen[...], shares[...] = routing(r, i)
            x[...] = of_rank(r, i, x.shape)

        def call():
            if at_once:
                return stretto.ep_moe_layer(x, gate, up, down, chosen, shares, experts)
            d = stretto.ep_dispatch(x, chosen, shares, experts)
            h = stretto.grouped_matmul(d.x, gate, d.offsets, tokens=d.tokens, up=up)
            return stretto.ep_combine(stretto.grouped_matmul(h, down, d.offsets), d)

        def check(result, i):
            g, u, d = (w.astype(np.float64) for w in values(i))
            experts_of, by = routing(r, i)
            tokens = of_rank(r, i, x.shape).astype(np.float64)
            for t in range(own):
                want = 0
                for e, part in zip(experts_of[t], by[t]):
                    a = tokens[t] @ g[e]
                    want = want + part * ((a / (1 + np.exp(-a)) * (tokens[t] @ u[e])) @ d[e])
                np.testing.assert_allclose(result[t], want, rtol=2e-4, atol=2e-4)

        return fill, call, check

    repeated(size, make, monkeypatch)


def attended(q, k, v, seen):
    """Of queries [rows, heads, E] over [kv heads, tokens, E] in float64; row i sees the first seen[i]."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    out, shared = np.empty(q.shape), q.shape[1] // k.shape[0]
    for i, h in np.ndindex(*q.shape[:2]):
        scores = k[h // shared, : seen[i]] @ q[i, h] / np.sqrt(q.shape[2])
        weights = np.exp(scores - scores.max())
        out[i, h] = weights @ v[h // shared, : seen[i]] / weights.sum()
    return out


def arrays_of(package):
    """(empty(shape) float32, values(array) as NumPy sees its memory) of this package's arrays."""
    if package == "numpy":
        return lambda shape: np.empty(shape, F32), lambda x: x
    torch = pytest.importorskip("torch")
    return torch.empty, lambda x: x.numpy()


PACKAGES = ["numpy", "torch"]


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("spread_keys", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_attention_of_heads(package, spread_keys, given, monkeypatch):
    """Of queries with heads first, which are copied, and of keys and values with rows first, which are, too."""
    batch, heads, kv_heads, rows, width = 2, 4, 2, 5, 16
    empty, values = arrays_of(package)

    def make():
        q, out = empty((batch, heads, rows, width)), empty((batch, rows, heads, width)).swapaxes(1, 2)
        if spread_keys:
            k, v = (empty((batch, rows, kv_heads, width)).swapaxes(1, 2) for _ in range(2))
        else:
            k, v = (empty((batch, kv_heads, rows, width)) for _ in range(2))

        def fill(i):
            for j, x in enumerate((q, k, v)):
                values(x)[...] = of_rank(0, 10 * i + j, x.shape) / 4

        def call():
            options = {"is_causal": True, "enable_gqa": True, "out": out if given else None}
            return stretto.scaled_dot_product_attention(q, k, v, **options)

        def check(result, i):
            assert not given or result is out
            for b in range(batch):
                want = attended(*(values(x)[b] for x in (q.swapaxes(1, 2), k, v)), range(1, rows + 1))
                np.testing.assert_allclose(values(result)[b], want.swapaxes(0, 1), rtol=2e-4, atol=2e-4)

        return fill, call, check

    repeated(1, make, monkeypatch)


def test_attention_of_heads_in_turn():
    """Other shapes, other memory of the same shape, queries that come to where others were."""
    torch = pytest.importorskip("torch")

    def body():
        for i in range(12):
            rows = (5, 7)[i // 2 % 2]
            q, k, v = (torch.from_numpy(of_rank(0, 10 * i + j, (1, 2, rows, 16)) / 4) for j in range(3))
            if i % 3 == 1:
                q = q.swapaxes(1, 2).contiguous().swapaxes(1, 2)  # which is not copied
            came = stretto.scaled_dot_product_attention(q, k, v)
            want = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            torch.testing.assert_close(came, want, rtol=2e-4, atol=2e-4)

    testing.run(1, body)


def test_attention_of_heads_refuses_gradients_after_a_plan():
    torch = pytest.importorskip("torch")

    def body():
        q, k, v = (torch.from_numpy(of_rank(0, j, (2, 5, 16))) for j in range(3))
        out = torch.empty(5, 2, 16).swapaxes(0, 1)
        for _ in range(3):
            stretto.scaled_dot_product_attention(q, k, v, out=out)
        q.requires_grad_()
        for _ in range(2):
            with pytest.raises(stretto.UserError, match="query: the tensor requires a gradient"):
                stretto.scaled_dot_product_attention(q, k, v, out=out)
        with torch.no_grad():
            want = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            made = stretto.scaled_dot_product_attention(q, k, v, out=out)
            torch.testing.assert_close(made, want, rtol=2e-4, atol=2e-4)

    testing.run(1, body)


def test_tables_of_64_bits_cost_two_operators_of_torch():
    """Each is a launch of PyTorch's on GPUs, and Python before it."""
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counted(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    table = torch.tensor([[3, -7, 2**31], [2**40, -(2**40), 2**31 - 1]])
    for given, calls in (table, 2), (table[:, 1], 2), (table.t(), 3), (table[0, 0], 4):
        with Counted() as counted:
            made = _calls.as_table(given)
        assert counted.calls <= calls
        assert made.dtype == torch.int32 and made.is_contiguous()
        assert made.tolist() == given.clamp(-(2**31), 2**31 - 1).tolist()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("return_lse", [False, True])
def test_decoding_over_a_spread_cache(size, package, return_lse, monkeypatch):
    heads, kv_heads, width, block, rows = 4, 2, 16, 2, 6
    tokens = rows * size - 1
    empty, values = arrays_of(package)

    def everyone(i):
        return [np.random.default_rng([i, n]).integers(-8, 9, (kv_heads, rows * size, width)) / 8 for n in range(2)]

    def make():
        r = stretto.rank()
        q, caches = empty((1, heads, width)), [empty((kv_heads, rows, width)) for _ in range(2)]

        def fill(i):
            values(q)[...] = of_rank(0, i, q.shape) / 8
            for cache, x in zip(caches, everyone(i)):
                blocks = x.reshape(kv_heads, rows // block, size, block, width)
                values(cache)[...] = blocks[:, :, r].reshape(cache.shape)

        def call():
            return stretto.flash_decode(q, *caches, tokens, block=block, return_lse=return_lse)

        def check(result, i):
            made = result[0] if return_lse else result
            want = attended(values(q), *everyone(i), [tokens])
            np.testing.assert_allclose(values(made), want, rtol=2e-4, atol=2e-4)
            if return_lse:
                k = everyone(i)[0].repeat(heads // kv_heads, 0)
                scores = np.einsum("he,hte->ht", values(q)[0], k[:, :tokens]) / np.sqrt(width)
                lse = np.log(np.exp(scores).sum(1))
                np.testing.assert_allclose(values(result[1])[0], lse, rtol=2e-4, atol=2e-4)

        return fill, call, check

    repeated(size, make, monkeypatch)


@pytest.mark.parametrize("size", [1, 2])
def test_decoding_of_more_and_more_tokens(size):
    """A plan is of one number of tokens; several queries come to their results by copies."""
    heads, kv_heads, width, block, rows = 4, 2, 16, 2, 8
    k, v = (of_rank(0, n, (kv_heads, rows * size, width)) / 8 for n in range(2))

    def body():
        caches = [np.ascontiguousarray(x.reshape(kv_heads, -1, size, block, width)[:, :, stretto.rank()]
                                       .reshape(kv_heads, rows, width)) for x in (k, v)]
        for i in range(3 * rows * size):
            length, tokens = (1, 1, 3)[i % 3], 3 + i // 3 % (rows * size - 3)
            q = of_rank(0, i, (length, heads, width)) / 8
            out = np.empty_like(q) if i % 2 else None
            came = stretto.flash_decode(q, *caches, tokens, block=block, out=out)
            want = attended(q, k, v, range(tokens - length + 1, tokens + 1))
            np.testing.assert_allclose(came, want, rtol=2e-4, atol=2e-4)
            assert out is None or came is out

    testing.run(size, body)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("scatter", [False, True])
@pytest.mark.parametrize("with_residual", [False, True])
def test_sums_of_experts(size, package, scatter, with_residual, monkeypatch):
    top_k, hidden, m = 2, 8, 5 * size
    empty, values = arrays_of(package)

    def routing(i):
        make = np.random.default_rng([i, 6])
        return make.permutation(m * top_k).reshape(m, top_k), make.random((m, top_k))

    def make():
        r = stretto.rank()
        y, weights, slots = empty((m * top_k, hidden)), empty((m, top_k)), np.empty((m, top_k), np.int32)
        own = slice(5 * r, 5 * r + 5) if scatter else slice(0, m)
        residual = empty((own.stop - own.start, hidden)) if with_residual else None
        table = slots if package == "numpy" else __import__("torch").from_numpy(slots)

        def fill(i):
            values(y)[...] = of_rank(r, i, y.shape)
            slots[...], values(weights)[...] = routing(i)
            if with_residual:
                values(residual)[...] = of_rank(0, i + 50, (m, hidden))[own]

        def call():
            return stretto.moe_combine(y, table, weights, residual=residual, scatter=scatter)

        def check(result, i):
            places, shares = routing(i)
            want = sum((of_rank(s, i, y.shape)[places] * shares[:, :, None]).sum(1) for s in range(size))[own]
            if with_residual:
                want = want + of_rank(0, i + 50, (m, hidden))[own]
            np.testing.assert_allclose(values(result), want, rtol=2e-4, atol=2e-4)

        return fill, call, check

    repeated(size, make, monkeypatch)


def test_sums_of_experts_of_several_numbers_of_tokens(rng):
    """Zeros of one size serve those of several, which no call changes."""
    seed = int(rng.integers(1 << 30))
    print("seed", seed)

    def body():
        make = np.random.default_rng(seed)
        for m in (17, 20, 18, 17, 32, 20):
            y, weights = make.standard_normal((m, 8)).astype(F32), np.ones((m, 1), F32)
            slots = make.permutation(m).astype(np.int32)[:, None]
            np.testing.assert_array_equal(stretto.moe_combine(y, slots, weights), y[slots[:, 0]])

    testing.run(1, body)


def layers_and_sizes(size, table):
    """{name: call} of operators with tables, which are filled by fill(round)."""
    r = stretto.rank()
    x, chosen = np.empty((6, 8), F32), np.empty((6 * size, 2), table)
    shapes = (4, 5, 8), (4, 5, 8), (4, 8, 5)
    gate, up, down = (of_rank(0, n, shape).swapaxes(1, 2) / 8 for n, shape in enumerate(shapes))
    weights = np.full(chosen.shape, 0.5, F32)
    rows, one = np.empty(size, table), np.empty(1, table)
    tokens, starts, parts = np.empty((6, 2, 8), F32), np.empty(4, table), np.empty(5, table)
    landed, gathered = np.zeros((6 * size, 8), F32), np.zeros((6 * size, 8), F32)
    cache, page_of, cached = of_rank(0, 9, (4, 2, 16, 8)), np.empty((2, 2), table), np.empty(2, table)

    def fill(i):
        x[...], tokens[...] = of_rank(r, i, x.shape), of_rank(r, i, tokens.shape) / 8
        make = np.random.default_rng([i, 3])
        chosen[...] = [make.permutation(4)[:2] for _ in chosen]
        rows[...] = make.multinomial(6, np.full(size, 1 / size))
        one[...] = make.integers(0, 7)
        starts[...] = [0, *sorted(make.integers(0, 7, 2)), 6]
        parts[...] = [0, *sorted(make.integers(0, 7, 3)), 6]
        page_of[...], cached[...] = make.integers(0, 4, page_of.shape), make.integers(1, 33, 2)

    calls = {
        "moe_layer": lambda: stretto.moe_layer(x, gate, up, down, chosen, weights),
        "layers": lambda: stretto.all_gather_grouped_matmul(x, gate, chosen, up=up)[0],
        "grouped_matmul": lambda: stretto.grouped_matmul(x, gate, parts),
        "all_to_all_v": lambda: stretto.all_to_all_v(x, rows)[1],
        "all_gather_v": lambda: stretto.all_gather_v(x, one)[1],
        "all_to_all_v into": lambda: np.append(*stretto.all_to_all_v(x, rows, out=landed)),
        "all_gather_v into": lambda: np.append(*stretto.all_gather_v(x, one, out=gathered)),
        "packed_attention": lambda: stretto.packed_attention(tokens, tokens, tokens, starts),
        "paged_attention": lambda: stretto.paged_attention(tokens, cache, cache, starts[[0, 2, 3]], page_of, cached),
        "paged_decode": lambda: stretto.paged_decode(tokens[:2], cache, cache, page_of, cached),
    }
    return fill, calls


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", ["moe_layer", "layers", "grouped_matmul", "all_to_all_v", "all_gather_v"]
                         + ["all_to_all_v into", "all_gather_v into"]
                         + ["packed_attention", "paged_attention", "paged_decode"])
def test_tables_of_64_bits(size, name, monkeypatch):
    """As topk() makes them; those of 32 bits give the same, and sizes come back as they were given."""

    def results(table):
        fill, calls = layers_and_sizes(size, table)
        for i in range(4):
            fill(i)
            yield calls[name]().copy()

    narrow = testing.run(size, lambda: list(results(np.int32)))

    def make():
        fill, calls = layers_and_sizes(size, np.int64)

        def check(result, i):
            want = narrow[stretto.rank()][i]
            assert result.dtype == (np.int64 if want.dtype == np.int32 else want.dtype)
            np.testing.assert_array_equal(result, want)

        return fill, calls[name], check

    repeated(size, make, monkeypatch)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", ["all_to_all_v", "all_gather_v"])
def test_sizes_of_64_bits_are_read_as_they_are(size, name, monkeypatch):
    """The launch is all that there is: on GPUs each cast is a kernel before it, or after."""

    def refuse(*_):
        raise AssertionError("a cast")

    monkeypatch.setattr(stretto._arrays.NumpyKind, "cast", refuse)

    def body():
        fill, calls = layers_and_sizes(size, np.int64)
        fill(0)
        for _ in range(2):
            assert calls[name]().dtype == np.int64

    testing.run(size, body)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_results_of_which_some_are_given(size, monkeypatch):
    """Each has its place, whichever of them the caller gives; those that are made are new each time."""

    def make():
        r = stretto.rank()
        x, residual, weight = np.empty((4, 8), F32), of_rank(0, 5, (4, 8)), np.ones(8, F32)
        into, seen = [np.empty((4, 8), F32) for _ in range(2)], []

        def fill(i):
            x[...] = of_rank(r, i, x.shape)
            for y in into:
                y[...] = np.nan

        def call():
            return [
                stretto.all_reduce_add_rms_norm(x, residual, weight, out=out)
                for out in ((into[0], None), (None, into[1]), (None, None))
            ]

        def check(results, i):
            want = sum(of_rank(s, i, x.shape) for s in range(size)) + residual
            assert results[0][0] is into[0] and results[1][1] is into[1]
            for normed, summed in results:
                np.testing.assert_array_equal(summed, want)
                scale = np.sqrt((want**2).mean(1, keepdims=True) + 1e-5)
                np.testing.assert_allclose(normed, want / scale, rtol=1e-5)
            made = [results[0][1], results[1][0], *results[2]]
            assert all(y is not z for y in made for z in seen)
            seen.extend(made)

        return fill, call, check

    repeated(size, make, monkeypatch)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("return_lse", [False, True])
def test_one_token_more_each_time(size, return_lse, monkeypatch):
    """A loop of decoding: one plan, whatever the number of tokens."""
    heads, kv_heads, width, block, rounds = 4, 2, 16, 4, 9
    rows = 3 * block
    rng = np.random.default_rng(11)
    keys, values = (rng.standard_normal((kv_heads, size * rows, width)).astype(F32) for _ in range(2))

    def of_rank_r(x, r):
        return np.ascontiguousarray(x.reshape(kv_heads, 3, size, block, width)[:, :, r].reshape(kv_heads, rows, width))

    def want(q, tokens):
        k, v = (np.repeat(x[:, :tokens], heads // kv_heads, 0).astype(np.float64) for x in (keys, values))
        scores = np.einsum("he,hte->ht", q[0].astype(np.float64), k) / np.sqrt(width)
        weights = np.exp(scores)
        return np.einsum("ht,hte->he", weights / weights.sum(1, keepdims=True), v), np.log(weights.sum(1))

    def make():
        q, k, v = np.empty((1, heads, width), F32), of_rank_r(keys, stretto.rank()), of_rank_r(values, stretto.rank())
        step = {"tokens": 0}

        def fill(i):
            q[...] = of_rank(0, i, q.shape) / 8
            step["tokens"] = [5, 6, 7, 1, 3 * block * size, 8, 9, 10, 12][i]

        def call():
            return stretto.flash_decode(q, k, v, step["tokens"], block=block, return_lse=return_lse)

        def check(result, _):
            attended, lse = want(q, step["tokens"])
            got = result if return_lse else (result,)
            np.testing.assert_allclose(got[0][0], attended, rtol=2e-4, atol=2e-5)
            if return_lse:
                np.testing.assert_allclose(got[1][0], lse, rtol=2e-4, atol=2e-5)

        return fill, call, check

    repeated(size, make, monkeypatch, rounds)


def test_numbers_of_tokens_that_differ_are_told(rng):
    """The ranks' words have each its own number, also where one plan serves all, and what is no number of
    tokens is refused as by the first call."""
    q, k = rng.random((1, 2, 8), F32), rng.random((2, 16, 8), F32)

    def body():
        for tokens in (3, 4):
            stretto.flash_decode(q, k, k, tokens, block=4)
        for tokens in (0, 33, -(2**63)):
            with pytest.raises(stretto.UserError, match=f"{tokens} tokens; need at least 1"):
                stretto.flash_decode(q, k, k, tokens, block=4)
        stretto.flash_decode(q, k, k, 5 + stretto.rank(), block=4)

    with pytest.raises(stretto.Error, match="tokens=6.*tokens=5|tokens=5.*tokens=6"):
        testing.run(2, body)
