"""Arrays in any order and with any strides, given and written to, against NumPy in float64."""

import numpy as np
import pytest

import stretto
from stretto import testing

TOLERANCE = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-9}


def laid_out(rng, shape, dtype):
    """Random numbers of that shape: dense, in Fortran's order, or a part of a larger array, every second
    element of it or those from its end."""
    larger = rng.random([2 * n for n in shape]).astype(dtype)
    first = tuple(slice(0, n) for n in shape)
    return [
        np.ascontiguousarray(larger[first]),
        np.asfortranarray(larger[first]),
        larger[first],
        larger[tuple(slice(0, None, 2) for _ in shape)],
        np.flip(larger)[first],
    ][rng.integers(5)]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("turn", range(8))
def test_layouts(rng, size, dtype, turn):
    rng = np.random.default_rng([*rng.integers(1 << 30, size=2), turn])
    shape = [int(n) for n in rng.integers(1, 6, rng.integers(1, 4))]
    dim = int(rng.integers(len(shape)))
    m, k, n = (int(x) for x in rng.integers(1, 20, 3))
    long = [x * size if d == dim else x for d, x in enumerate(shape)]

    def each(shape):
        return [laid_out(rng, shape, dtype) for _ in range(size)]

    x, y, a, b = each(shape), each(long), each((m * size, k)), each((k, n))
    order = (np.ascontiguousarray, np.asfortranarray)[turn % 2]  # one for all ranks
    b = [order(factor) for factor in b]
    results = (long, shape, shape, shape, (m * size, n), (m, n), (m * size**2, n), (m * size, n * size))
    outs = list(zip(*map(each, results)))

    def body():
        r = stretto.rank()
        calls = (
            lambda out: stretto.all_gather(x[r], dim=dim - len(shape), out=out),
            lambda out: stretto.reduce_scatter(y[r], dim=dim, reduce_op="avg", out=out),
            lambda out: stretto.all_reduce(x[r], out=out),
            lambda out: stretto.broadcast(x[r], size - 1, out=out),
            lambda out: stretto.matmul_all_reduce(a[r], b[r], out=out),
            lambda out: stretto.matmul_reduce_scatter(a[r], b[r], out=out),
            lambda out: stretto.all_gather_matmul(a[r], b[r], out=out),
            lambda out: stretto.matmul_all_gather(a[r], b[r], out=out),
        )
        given = [call(out) for call, out in zip(calls, outs[r])]
        assert all(one is other for one, other in zip(given, outs[r]))
        return list(zip(given, [call(None) for call in calls]))

    ran = testing.run(size, body)
    x, y, a, b = ([z.astype(np.float64) for z in arrays] for arrays in (x, y, a, b))
    product = sum(p @ q for p, q in zip(a, b))
    for r, results in enumerate(ran):
        wanted = (
            np.concatenate(x, dim),
            np.split(sum(y), size, dim)[r] / size,
            sum(x),
            x[size - 1],
            product,
            np.split(product, size)[r],
            np.concatenate(a) @ b[r],
            np.concatenate([p @ q for p, q in zip(a, b)], 1),
        )
        for pair, want in zip(results, wanted):
            for got in pair:
                assert got.shape == want.shape
                near = TOLERANCE[dtype]
                np.testing.assert_allclose(got.astype(np.float64), want, rtol=near, atol=k * near)
