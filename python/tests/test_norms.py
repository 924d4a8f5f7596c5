"""Normalisations of rows that the ranks share, against NumPy in float64."""

import numpy as np
import pytest
from test_ops import DTYPES, SIZES, near, parts, wide

import stretto
from stretto import testing

EPS = 1e-6


def normed(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


@pytest.mark.parametrize("size", [*SIZES, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_reduce_scatter_add_rms_norm(rng, size, dtype):
    """And to the bit what the all-reduce makes of the own rows."""
    rows, hidden = int(rng.integers(1, 20)), int(rng.integers(1, 70))
    x = parts(rng, size, (size * rows, 2, hidden), dtype)
    residual = parts(rng, size, (rows, 2, hidden), dtype)
    (weight,) = parts(rng, 1, (hidden,), "float32")
    out = [tuple(np.empty_like(residual[0]) for _ in range(2)) for _ in range(size)]

    def body():
        r = stretto.rank()
        options = {"eps": EPS}
        for _ in range(3):
            made = stretto.reduce_scatter_add_rms_norm(x[r], residual[r], weight, **options)
        again = stretto.reduce_scatter_add_rms_norm(x[r], residual[r], weight, out=out[r], **options)
        whole = stretto.all_reduce_add_rms_norm(x[r], np.concatenate(residual), weight, **options)
        return made, again, whole

    total = sum(wide(x)) + np.concatenate(wide(residual))
    for r, (made, again, whole) in enumerate(testing.run(size, body)):
        own = slice(r * rows, (r + 1) * rows)
        near(made[1], total[own], dtype, size)
        near(made[0], normed(np.asarray(made[1], np.float64), weight), dtype, size)
        for got, same, all_rows, given in zip(made, again, whole, out[r]):
            assert same is given
            np.testing.assert_array_equal(got, same)
            np.testing.assert_array_equal(got, all_rows[own])


@pytest.mark.parametrize("size", [*SIZES, 4])
@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("has_residual", [False, True])
def test_rms_norm_columns(rng, size, dtype, has_residual):
    rows, hidden = int(rng.integers(1, 60)), int(rng.integers(1, 40))
    x, residual = (parts(rng, size, (rows, 2, hidden), dtype) for _ in range(2))
    weight = parts(rng, size, (hidden,), "float32")

    def body():
        r = stretto.rank()
        options = {"eps": EPS, "residual": residual[r] if has_residual else None}
        for _ in range(3):
            made = stretto.rms_norm_columns(x[r], weight[r], **options)
        out = [np.empty_like(x[r]) for _ in range(1 + has_residual)]
        stretto.rms_norm_columns(x[r], weight[r], out=out if has_residual else out[0], **options)
        made = made if has_residual else (made,)
        for got, same in zip(made, out):
            np.testing.assert_array_equal(got, same)
        return made

    made = testing.run(size, body)
    whole = np.concatenate(wide(x), -1)
    if has_residual:
        near(
            np.concatenate([m[1] for m in made], -1),
            whole + np.concatenate(wide(residual), -1),
            dtype,
            2,
        )
        whole = np.concatenate([np.asarray(m[1], np.float64) for m in made], -1)
    want = normed(whole, np.concatenate(weight))
    near(np.concatenate([m[0] for m in made], -1), want, dtype, size)


X = np.ones((4, 6), np.float32)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: stretto.reduce_scatter_add_rms_norm(X[:3], X, X[0]), "3 rows cannot be split over 2"),
        (lambda: stretto.reduce_scatter_add_rms_norm(X, X, X[0]), r"need \[M, .., H\], \[M / 2, .., H\]"),
        (lambda: stretto.reduce_scatter_add_rms_norm(X, X[:2], X[0], eps=-1), "eps is -1"),
        (lambda: stretto.rms_norm_columns(X, X[0, :3]), r"need \[.., H / 2\], \[H / 2\]"),
        (lambda: stretto.rms_norm_columns(X, X[0], residual=X[:2]), "a residual as x"),
        (lambda: stretto.rms_norm_columns(X.astype(float), X[0]), "float64"),
        (lambda: stretto.rms_norm_columns(X, X[0], residual=X, out=X), "out is one ndarray, need 2"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    def body():
        with pytest.raises(stretto.UserError, match=message):
            call()
        assert stretto.all_reduce(X).sum() == 2 * X.sum()

    testing.run(2, body)
