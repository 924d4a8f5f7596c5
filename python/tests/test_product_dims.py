"""Products that gather or scatter along any dimension."""

import numpy as np
import pytest
from test_ops import DTYPES, SIZES, near, parts, quantized, wide

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
        return gathered, made, again, *several

    for r, (gathered, *made) in enumerate(testing.run(size, gather)):
        np.testing.assert_array_equal(gathered, np.concatenate(a, 2))
        for got, weight in zip(made, (b[r], b[r], b[r], second[r])):
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


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turned", [False, True])
def test_columns_are_multiplied_as_they_come(rng, size, dtype, turned):
    """Ragged sizes, several rounds, weights as linear layers keep them and as they are."""
    m, k, n = rng.integers(1, 90, 3)
    a, w = parts(rng, size, (m, k), dtype), parts(rng, size, (n, size * k), dtype)

    def body():
        mine = w[stretto.rank()].T
        mine = mine if turned else np.ascontiguousarray(mine)
        for _ in range(3):
            made = stretto.all_gather_matmul(a[stretto.rank()], mine, gather_dim=1)
        return made

    whole = np.concatenate(wide(a), 1)
    for got, weight in zip(testing.run(size, body), wide(w)):
        near(got, whole @ weight.T, dtype, size * k)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("form", ["one", "rows", "blocks"])
def test_columns_with_scales(rng, size, form):
    """Each rank has quantised its own columns: scales of the same row differ from rank to rank."""
    m, n, k = 6, 136, 256
    of_a, of_b = {
        "one": ((m, k), (n, size * k)),
        "rows": ((1, k), (1, size * k)),
        "blocks": ((1, 128), (128, 128)),
    }[form]
    a, scale_a, wide_a = zip(*(quantized(rng, m, k, of_a) for _ in range(size)))
    w, scale_w, wide_w = zip(*(quantized(rng, n, size * k, of_b) for _ in range(size)))

    def body():
        r = stretto.rank()
        options = {"scale_a": scale_a[r], "scale_b": scale_w[r].T, "out_dtype": "float32"}
        made = stretto.all_gather_matmul(a[r], w[r].T, gather_dim=-1, **options)
        both = stretto.all_gather_matmul(a[r], w[r].T, gather_dim=1, return_a=True, **options)
        return made, both

    whole = np.concatenate(wide_a, 1)
    for r, (made, (gathered, again)) in enumerate(testing.run(size, body)):
        np.testing.assert_array_equal(gathered, np.concatenate(a, 1))
        np.testing.assert_array_equal(made, again)
        np.testing.assert_allclose(made, whole @ wide_w[r].T, rtol=1e-5, atol=1e-6 * 64 * size * k)


def test_blocks_end_with_a_ranks_columns(rng):
    a, scale_a, _ = quantized(rng, 4, 200, (1, 128))
    w, scale_w, _ = quantized(rng, 8, 400, (128, 128))

    def body():
        with pytest.raises(stretto.UserError, match="200 columns of 400; .* multiple of 128"):
            stretto.all_gather_matmul(
                a, w.T, gather_dim=1, scale_a=scale_a, scale_b=scale_w.T, out_dtype="float32"
            )

    testing.run(2, body)


def test_ranks_gather_along_the_same_dimension(rng):
    x = parts(rng, 2, (4, 4))

    def body():
        with pytest.raises(stretto.UserError, match="gather_dim=0.*gather_dim=1|gather_dim=1.*gather_dim=0"):
            if stretto.rank() == 0:
                stretto.all_gather_matmul(x[0], x[1], gather_dim=0)
            else:
                stretto.all_gather_matmul(x[0], np.concatenate(x), gather_dim=1)
        return stretto.all_gather_matmul(x[stretto.rank()], np.concatenate(x), gather_dim=1)

    for got in testing.run(2, body):
        near(got, np.concatenate(wide(x), 1) @ np.concatenate(wide(x)), "float32", 8)
