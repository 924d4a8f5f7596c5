"""Products that gather or scatter along any dimension."""

import numpy as np
import pytest
from test_ops import SIZES, near, parts, wide

import stretto
from stretto import testing


def test_products_along_other_dimensions(rng):
    size, a = 2, parts(rng, 2, (3, 4, 6))
    b = parts(rng, 2, (6, 5))
    got = testing.run(
        size,
        lambda: stretto.all_gather_matmul(
            a[stretto.rank()], b[stretto.rank()], gather_dim=1, return_a=True
        ),
    )
    for r, (gathered, c) in enumerate(got):
        np.testing.assert_array_equal(gathered, np.concatenate(a, 1))
        near(c, np.concatenate(wide(a), 1) @ wide(b)[r], "float32", 6)
    out = [np.empty((3, 2, 5), np.float32) for _ in range(2)]
    testing.run(
        size,
        lambda: stretto.matmul_reduce_scatter(
            a[stretto.rank()],
            b[stretto.rank()],
            scatter_dim=1,
            reduce_op="avg",
            out=out[stretto.rank()],
        ),
    )
    near(np.concatenate(out, 1), sum(x @ y for x, y in zip(wide(a), wide(b))) / 2, "float32", 6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("last", [2, -1])
def test_products_along_the_last_dimension(rng, size, last):
    """What is summed over is gathered; columns are scattered."""
    k, n = 5, 3 * size
    a, b = parts(rng, size, (3, 2, k)), parts(rng, size, (size * k, n))
    second = parts(rng, size, (size * k, 4))

    def gather():
        r, out = stretto.rank(), np.empty((3, 2, n), np.float32)
        made = stretto.all_gather_matmul(a[r], b[r], gather_dim=last, out=out)
        assert made is out
        several = stretto.all_gather_matmul(a[r], [b[r], second[r]], gather_dim=last)
        gathered, again = stretto.all_gather_matmul(a[r], b[r], gather_dim=last, return_a=True)
        np.testing.assert_array_equal(again, made)
        np.testing.assert_array_equal(several[0], made)
        return gathered, made, several[1]

    for r, (gathered, *made) in enumerate(testing.run(size, gather)):
        np.testing.assert_array_equal(gathered, np.concatenate(a, 2))
        for got, weight in zip(made, (b[r], second[r])):
            near(got, np.concatenate(wide(a), 2) @ wide([weight])[0], "float32", size * k)

    weights = [w[:k] for w in b]
    total = sum(x @ w for x, w in zip(wide(a), wide(weights)))
    for reduce_op, want in (("sum", total), ("avg", total / size)):
        got = testing.run(
            size,
            lambda op=reduce_op: stretto.matmul_reduce_scatter(
                a[stretto.rank()], weights[stretto.rank()], scatter_dim=last, reduce_op=op
            ),
        )
        near(np.concatenate(got, 2), want, "float32", k)
