"""Results written over what is read: out= lies somewhere over one of the arrays of the call, and the
result is that of the same call on arrays apart."""

import itertools

import numpy as np
import pytest

import stretto
from stretto import testing

SIZE = 2
F32, I32 = np.float32, np.int32


def routed(rng, tokens, experts, top_k=2):
    chosen = np.argsort(rng.random((tokens, experts)), axis=1)[:, :top_k]
    return chosen.astype(I32), rng.random((tokens, top_k)).astype(F32)


# Each makes (arrays by name, the call of (arrays, out), shape and element type of each result), of an
# array [rows, columns] of random numbers `r`; `s` is the same on all ranks.


def case_moe_combine(r, s):
    slots = s.permutation(40).astype(I32).reshape(20, 2)
    weights = s.random((20, 2)).astype(F32)
    arrays = {"y": r(40, 8), "slots": slots, "weights": weights, "residual": r(20, 8)}
    return arrays, lambda a, out: stretto.moe_combine(**a, out=out), [((20, 8), F32)]


def case_ep_combine(r, s):
    chosen, weights = routed(s, 10, 4)
    d = stretto.ep_dispatch(r(10, 8), chosen, weights, 4)
    arrays = {"y": r(40, 8), "residual": r(10, 8)}
    arrays.update(weights=d.weights, slots=d.slots, positions=d.positions)

    def call(a, out):
        tables = d._replace(**{name: a[name] for name in ("weights", "slots", "positions")})
        return stretto.ep_combine(a["y"], tables, residual=a["residual"], out=out)

    return arrays, call, [((10, 8), F32)]


def case_ep_dispatch(r, s):
    chosen, weights = routed(s, 10, 4)
    arrays = {"x": r(10, 8), "experts": chosen, "weights": weights}

    def call(a, out):
        d = stretto.ep_dispatch(a["x"], a["experts"], a["weights"], 4, out=out)
        return (d.x, d.weights, out[2]) if out else (d.x, d.weights)

    return arrays, call, [((20, 8), F32), ((20, 2), F32), ((20, 2), I32)]


def case_ep_moe_layer(r, s):
    chosen, weights = routed(s, 10, 4)
    arrays = {"x": r(10, 8), "gate": r(2, 8, 4), "up": r(2, 8, 4), "down": r(2, 4, 8)}
    arrays.update(experts=chosen, weights=weights, residual=r(10, 8))
    return (
        arrays,
        lambda a, out: stretto.ep_moe_layer(**a, num_experts=4, out=out),
        [((10, 8), F32)],
    )


def case_moe_layer(r, s):
    chosen, weights = routed(s, 20, 4)
    arrays = {"x": r(10, 8), "gate": r(4, 8, 4), "up": r(4, 8, 4), "down": r(4, 4, 8)}
    arrays.update(experts=chosen, weights=weights, residual=r(10, 8))
    return arrays, lambda a, out: stretto.moe_layer(**a, out=out), [((10, 8), F32)]


def case_second_layer(r, s, op=stretto.grouped_matmul_reduce_scatter, rows=10):
    chosen, weights = routed(s, 20, 4)
    y, tiles = stretto.all_gather_grouped_matmul(r(10, 8), r(4, 8, 4), chosen)
    arrays = {"y": y, "b": r(4, 4, 8), "weights": weights, "residual": s.random((rows, 8)).astype(F32)}
    arrays.update(used=tiles.used, experts=tiles.experts, slots=tiles.slots)

    def call(a, out):
        given = tiles._replace(**{name: a[name] for name in ("used", "experts", "slots")})
        return op(a["y"], a["b"], given, a["weights"], residual=a["residual"], out=out)

    return arrays, call, [((rows, 8), F32)]


def case_second_layer_on_every_rank(r, s):
    return case_second_layer(r, s, stretto.grouped_matmul_all_reduce, 20)


def case_grouped_matmul(r, s):
    arrays = {"a": r(20, 8), "b": r(3, 8, 6), "up": r(3, 8, 6)}
    arrays.update(offsets=np.array([0, 4, 4, 20], I32), tokens=s.permutation(20).astype(I32))
    return arrays, lambda a, out: stretto.grouped_matmul(**a, out=out), [((20, 6), F32)]


def case_grouped_matmul_by_counts(r, _):
    arrays = {"a": r(3, 20, 8), "b": r(3, 8, 6), "counts": np.array([20, 20, 20], I32)}
    return arrays, lambda a, out: stretto.grouped_matmul(**a, out=out), [((3, 20, 6), F32)]


def case_add_rms_norm(r, s):
    arrays = {"x": r(20, 8), "residual": s.random((20, 8)).astype(F32), "weight": s.random(8).astype(F32)}
    results = [((20, 8), F32), ((20, 8), F32)]
    return arrays, lambda a, out: stretto.all_reduce_add_rms_norm(**a, out=out), results


def case_scaled_dot_product_attention(r, _):
    arrays = {name: r(2, 20, 8) for name in ("query", "key", "value")}

    def call(a, out):
        return stretto.scaled_dot_product_attention(**a, return_lse=True, out=out)

    return arrays, call, [((2, 20, 8), F32), ((2, 20), F32)]


def case_packed_attention(r, _):
    arrays = {name: r(16, 2, 8) for name in ("query", "key", "value")}
    arrays["cu_seqlens"] = np.array([0, 5, 16], I32)

    def call(a, out):
        return stretto.packed_attention(**a, return_lse=True, out=out)

    return arrays, call, [((16, 2, 8), F32), ((2, 16), F32)]


def case_paged_decode(r, s):
    arrays = {"query": r(3, 2, 8), "key_pages": r(6, 2, 4, 8), "value_pages": r(6, 2, 4, 8)}
    arrays["block_table"] = s.permutation(6).astype(I32).reshape(3, 2)
    arrays["cache_tokens"] = np.array([3, 8, 5], I32)

    def call(a, out):
        return stretto.paged_decode(**a, return_lse=True, out=out)

    return arrays, call, [((3, 2, 8), F32), ((3, 2), F32)]


def case_paged_attention(r, s):
    arrays, _, results = case_paged_decode(r, s)
    arrays["cu_seqlens"] = np.array([0, 1, 2, 3], I32)

    def call(a, out):
        return stretto.paged_attention(**a, return_lse=True, out=out)

    return arrays, call, [results[0], ((2, 3), F32)]


def case_flash_decode(r, s):
    same = (s.random(shape).astype(F32) for shape in ((3, 2, 8), (2, 64, 8), (2, 64, 8)))
    arrays = dict(zip(("query", "key_cache", "value_cache"), same))

    def call(a, out):
        return stretto.flash_decode(**a, tokens=100, return_lse=True, out=out)

    return arrays, call, [((3, 2, 8), F32), ((3, 2), F32)]


def case_scattered_norm(r, s):
    arrays = {"x": r(12, 8), "residual": r(6, 8), "weight": s.random(8).astype(F32)}
    results = [((6, 8), F32), ((6, 8), F32)]
    return arrays, lambda a, out: stretto.reduce_scatter_add_rms_norm(**a, out=out), results


def case_norm_of_columns(r, s):
    arrays = {"x": r(12, 8), "residual": r(12, 8), "weight": s.random(8).astype(F32)}
    results = [((12, 8), F32), ((12, 8), F32)]
    return arrays, lambda a, out: stretto.rms_norm_columns(**a, out=out), results


def case_matmul_all_to_all(r, s):
    arrays = {"a": r(10, 8), "b": s.random((8, 12)).astype(F32), "bias": s.random(12).astype(F32)}
    return arrays, lambda a, out: stretto.matmul_all_to_all(**a, out=out), [((20, 6), F32)]


def case_all_gather_matmul(r, _):
    arrays = {"a_shard": r(10, 8), "b": r(8, 6)}
    return arrays, lambda a, out: stretto.all_gather_matmul(**a, out=out), [((20, 6), F32)]


def case_all_gather_matmul_of_columns(r, _):
    arrays = {"a_shard": r(10, 8), "b": r(16, 6)}
    return arrays, lambda a, out: stretto.all_gather_matmul(**a, gather_dim=1, out=out), [((10, 6), F32)]


def case_all_to_all(r, _):
    return {"x": r(20, 8)}, lambda a, out: stretto.all_to_all(**a, out=out), [((20, 8), F32)]


def case_reduce_scatter(r, _):
    return {"x": r(20, 8)}, lambda a, out: stretto.reduce_scatter(**a, out=out), [((10, 8), F32)]


CASES = {name: case for name, case in globals().items() if name.startswith("case_")}


def over(rng, array, shape, dtype):
    """(a copy of the array, an array of that shape) which overlap, by at least an element of each."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(2 * array.nbytes + size, np.uint8)
    begin = 4 * int(rng.integers(1, (array.nbytes + size) // 4))
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy, memory[array.nbytes : array.nbytes + size].view(dtype).reshape(shape)


def equal(got, want):
    for one, other in zip(got, want):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", CASES)
def test_results_over_arguments(rng, name):
    seed = [int(x) for x in rng.integers(1 << 30, size=2)]

    def body():
        same, own = np.random.default_rng(seed), np.random.default_rng([*seed, stretto.rank()])
        arrays, call, results = CASES[name](lambda *n: own.standard_normal(n).astype(F32), same)

        def made(given, out):
            got = call(given, out)
            return [np.copy(x) for x in (got if isinstance(got, tuple) else (got,))]

        want = made(arrays, None)
        for which, (i, (shape, dtype)) in itertools.product(arrays, enumerate(results)):
            for _ in range(3):
                outs = [np.empty(*result) for result in results]
                copy, outs[i] = over(same, arrays[which], shape, dtype)
                out = tuple(outs) if len(outs) > 1 else outs[0]
                equal(made({**arrays, which: copy}, out), want)

    testing.run(SIZE, body, timeout=20)


@pytest.mark.parametrize("first", [0, 2, 4])
@pytest.mark.parametrize("dim", [0, 1])
def test_gathering_part_of_the_symmetric_result(rng, first, dim):
    """The same part on every rank, which is its own on one at most."""
    values = rng.random((SIZE, 4, 6)).astype(F32)

    def body():
        whole = stretto.symm_mem.empty(*((8, 6) if dim == 0 else (4, 12)))
        for _ in range(2):
            x = whole.reshape(-1, 6)[first : first + 4]
            x[...] = values[stretto.rank()]
            assert stretto.all_gather(x, dim=dim, out=whole) is whole
        return np.copy(whole)

    for got in testing.run(SIZE, body, timeout=5):
        np.testing.assert_array_equal(got, np.concatenate(values, dim))


@pytest.mark.parametrize(
    "name",
    [
        "add_rms_norm",
        "ep_dispatch",
        "scaled_dot_product_attention",
        "packed_attention",
        "paged_attention",
        "flash_decode",
    ],
)
def test_results_over_each_other_are_refused(rng, name):
    seed = [int(x) for x in rng.integers(1 << 30, size=2)]

    def body():
        same, own = np.random.default_rng(seed), np.random.default_rng([*seed, stretto.rank()])
        arrays, call, results = CASES[f"case_{name}"](lambda *n: own.standard_normal(n).astype(F32), same)
        apart = tuple(np.empty(*result) for result in results)
        for _ in range(2):
            call(arrays, apart)
        first, second = over(same, np.empty(*results[0]), *results[1])
        with pytest.raises(stretto.UserError, match="two of the arrays overlap"):
            call(arrays, (first, second, *apart[2:]))
        call(arrays, apart)

    testing.run(SIZE, body, timeout=20)
