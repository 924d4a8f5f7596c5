"""One gather for several weights: lists of b, with their scales and results."""

import contextlib

import numpy as np
import pytest
from test_ops import near, parts, quantized

import stretto
from stretto import testing

COLUMNS = (136, 1, 40)
# Of a's and b's scales, how many rows and columns one of them is for.
FORMS = {
    "one": ((4, 160), (160, 999)),
    "rows": ((1, 160), (160, 1)),
    "blocks": ((1, 128), (128, 128)),
}
# No number times 0 is another, and no such sum a sum of products here.
POISON = -12345.0


@pytest.mark.parametrize("dim", [0, 1])
def test_one_gather_for_several_weights(rng, dim):
    a = parts(rng, 2, (3, 4, 8), "float64")
    w = [parts(rng, 2, (8, n), "float64") for n in (5, 1, 7)]
    whole = np.concatenate(a, dim)

    def body():
        r = stretto.rank()
        mine = [b[r] for b in w]
        for _ in range(2):
            gathered, made = stretto.all_gather_matmul(a[r], mine, gather_dim=dim, return_a=True)
        return gathered, made, stretto.all_gather_matmul(a[r], tuple(mine), gather_dim=dim)

    for r, (gathered, made, again) in enumerate(testing.run(2, body)):
        np.testing.assert_array_equal(gathered, whole)
        for got, same, b in zip(made, again, w):
            np.testing.assert_allclose(got, whole @ b[r], rtol=1e-12, atol=1e-12)
            np.testing.assert_array_equal(got, same)


def scaled(rng, size, form):
    """By rank: (a, its scale, [b], [their scales]), and the float64 values of a and of each b."""
    of_a, of_b = FORMS[form]
    given, wide_a, wide_b = [], [], []
    for _ in range(size):
        a, scale_a, wide = quantized(rng, 4, 160, of_a)
        weights = [quantized(rng, 160, n, of_b) for n in COLUMNS]
        given.append((a, scale_a, [w[0] for w in weights], [w[1] for w in weights]))
        wide_a.append(wide)
        wide_b.append([w[2] for w in weights])
    return given, wide_a, wide_b


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dims", [0, 1])
def test_lists_with_scales(rng, size, form, dims):
    """Against float64, and the single calls bit for bit. Scales differ from rank to rank; of one
    number for all rows each rank's rows have another."""
    given, wide_a, wide_b = scaled(rng, size, form)

    def body():
        a, scale_a, weights, scales = given[stretto.rank()]
        if dims:  # [2, 2, K], gathered along the second
            a = a.reshape(2, 2, 160)
            scale_a = scale_a if form == "one" else scale_a.reshape(2, 2, -1)
        options = {"scale_a": scale_a, "gather_dim": dims, "out_dtype": np.float32}
        alone = [
            stretto.all_gather_matmul(a, b, scale_b=s, **options) for b, s in zip(weights, scales)
        ]
        for _ in range(2):
            made = stretto.all_gather_matmul(a, weights, scale_b=scales, **options)
        gathered, again = stretto.all_gather_matmul(
            a, tuple(weights), scale_b=tuple(scales), return_a=True, **options
        )
        return gathered, made, again, alone

    shape = (2, 2, -1) if dims else (4, -1)
    rows = np.concatenate([x.reshape(shape) for x in wide_a], dims)
    raw = np.concatenate([a.reshape(shape) for a, *_ in given], dims)
    for r, (gathered, *results) in enumerate(testing.run(size, body)):
        np.testing.assert_array_equal(gathered, raw)
        for i, (got, again, alone) in enumerate(zip(*results)):
            assert got.dtype == np.float32
            np.testing.assert_allclose(got, rows @ wide_b[r][i], rtol=1e-5, atol=1e-2)
            np.testing.assert_array_equal(got, alone)
            np.testing.assert_array_equal(again, alone)


def test_element_types_of_each(rng):
    given, wide_a, wide_b = scaled(rng, 2, "rows")
    names = ["float32", "bfloat16", "float16"]

    def body():
        a, scale_a, weights, scales = given[stretto.rank()]
        options = {"scale_a": scale_a, "scale_b": scales}
        default = stretto.all_gather_matmul(a, weights, **options)
        assert [c.dtype.name for c in default] == ["bfloat16"] * 3
        return stretto.all_gather_matmul(a, weights, out_dtype=names, **options)

    for r, made in enumerate(testing.run(2, body)):
        for got, name, wide in zip(made, names, wide_b[r]):
            near(got, np.concatenate(wide_a) @ wide, name, 64 * 160)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("form", [None, "rows", "blocks"])
def test_results_of_the_caller(rng, size, form):
    """In memory of all kinds: dense, columns of one buffer, None. Each is what is returned."""
    if form is None:
        weights = zip(*(parts(rng, size, (160, n)) for n in COLUMNS))
        given = [(a, None, b, None) for a, b in zip(parts(rng, size, (4, 160)), weights)]
    else:
        given, _, _ = scaled(rng, size, form)

    def body():
        a, scale_a, weights, scales = given[stretto.rank()]
        options = {"scale_a": scale_a, "scale_b": scales}
        more = {} if form is None else {"out_dtype": "float32"}
        want = stretto.all_gather_matmul(a, list(weights), **options, **more)
        whole = np.full((4 * size, sum(COLUMNS)), POISON, np.float32)
        ends = np.cumsum(COLUMNS)
        columns = [whole[:, end - n : end] for n, end in zip(COLUMNS, ends)]
        dense = [np.full((4 * size, n), POISON, np.float32) for n in COLUMNS]
        mixed = [dense[0].copy(), None if form is None else columns[1].copy(), columns[2].copy()]
        for out in (dense, columns, tuple(mixed)):
            for turn in range(3):
                for x in out:
                    if x is not None:
                        x[...] = POISON
                got = stretto.all_gather_matmul(a, list(weights), out=out, **options)
                for x, y, z in zip(got, out, want):
                    assert y is None or x is y, turn
                    np.testing.assert_array_equal(x, z)
        assert not (whole == POISON).any()
        rows, got = stretto.all_gather_matmul(a, list(weights), out=dense, return_a=True, **options)
        np.testing.assert_array_equal(rows, np.concatenate([x for x, *_ in given]))
        assert all(x is y for x, y in zip(got, dense))

    testing.run(size, body)


@pytest.mark.parametrize("last", [False, True])
def test_results_where_later_products_still_read(rng, last):
    """The first result lies where the second weight does, and is written once that is read."""
    a = parts(rng, 2, (3, 8 if last else 16))
    first, second = parts(rng, 2, (16, 5)), parts(rng, 2, (16, 7))
    dim = -1 if last else 0
    rows = 3 if last else 6

    def body():
        r = stretto.rank()
        memory = np.concatenate([second[r].ravel(), np.zeros(100, np.float32)])
        weight, out = memory[: 16 * 7].reshape(16, 7), memory[: rows * 5].reshape(rows, 5)
        got = stretto.all_gather_matmul(a[r], [first[r], weight], gather_dim=dim, out=[out, None])
        assert got[0] is out
        return got

    whole = np.concatenate(a, dim)
    for r, (one, two) in enumerate(testing.run(2, body)):
        near(one, whole.astype(float) @ first[r], "float32", 16)
        near(two, whole.astype(float) @ second[r], "float32", 16)


def test_results_in_other_memory_than_scales(rng):
    """A result in the memory of a scale that a later product reads."""
    given, wide_a, wide_b = scaled(rng, 2, "rows")

    def body():
        a, scale_a, weights, scales = given[stretto.rank()]
        memory = np.zeros((8, 136), np.float32)
        memory[0, :40] = scales[2]
        scales = [scales[0], scales[1], memory[:1, :40]]
        return stretto.all_gather_matmul(
            a, weights, scale_a=scale_a, scale_b=scales, out=[memory, None, None]
        )

    for r, made in enumerate(testing.run(2, body)):
        for got, wide, dtype in zip(made, wide_b[r], ("float32", "bfloat16", "bfloat16")):
            want = np.concatenate(wide_a) @ wide
            np.testing.assert_allclose(np.asarray(got, float), want, rtol=3e-2, atol=1)
            assert got.dtype.name == dtype


def refusals(given):
    """name: (what differs from a good call, what is said)."""
    a, scale_a, weights, scales = given
    n = [np.empty((8, c), np.float32) for c in COLUMNS]
    plain = np.ones((160, 1), np.float32)

    def with_second(x):
        return [scales[0], x, scales[2]]

    return {
        "no weights": ({"b": []}, "b is an empty list"),
        "scale_a of each": ({"scale_a": [scale_a] * 3}, "scale_a is a list, need one array"),
        "a number for scale_a": ({"scale_a": 1.0}, "float: need a NumPy array"),
        "no scale_a": ({"scale_a": None}, "scale_a and scale_b go together"),
        "no scale_b": ({"scale_b": None}, "scale_a and scale_b go together"),
        "one scale_b": (
            {"scale_b": scales[0]},
            "scale_b is one ndarray, need 3 arrays, one for each b",
        ),
        "two of scale_b": ({"scale_b": scales[:2]}, "scale_b is a list of 2, need 3 arrays"),
        "no second scale": ({"scale_b": with_second(None)}, "scale_a and scale_b go together"),
        "doubles": (
            {"scale_b": with_second(scales[1].astype(float))},
            r"scale_b is float64; with scale_a and scale_b factors are .* and scales float32 \(of b\[1\]\)",
        ),
        "shape of a scale": (
            {"scale_b": with_second(scales[0])},
            r"scale_a .* and scale_b \(1, 136\); need .* \(of b\[1\]\)",
        ),
        "factors": (
            {"b": [weights[0], plain, weights[2]]},
            r"b is float32; with scale_a.* \(of b\[1\]\)",
        ),
        "shape of b": (
            {"b": [*weights[:2], weights[2].T]},
            r"shapes .* \(40, 160\); need .* \(of b\[2\]\)",
        ),
        "dtypes": (
            {"out_dtype": ["float32"]},
            "out_dtype is a list of 1, need 3 dtypes, one for each b",
        ),
        "no dtype": ({"out_dtype": ["float32", "int32", None]}, "out_dtype int32; need one of"),
        "one out": ({"out": n[0]}, "out is one ndarray, need 3 arrays for its results"),
        "outs": ({"out": n[:2]}, "out is a list of 2, need 3 arrays for its results"),
        "shape of out": (
            {"out": [n[0], n[2], n[1]]},
            r"out\[1\] is a NumPy array, float32 \(8, 40\), the .* \(8, 1\)",
        ),
        "dtype of out": (
            {"out": n, "out_dtype": "float16"},
            r"out\[0\] is a NumPy array, float32 .* the result .* float16",
        ),
        "overlap": (
            {"out": [n[0], n[0][:, :1], n[0].reshape(-1)[:320].reshape(8, 40)]},
            "two of the arrays overlap",
        ),
        "gather_dim": ({"gather_dim": 5}, "dim 5 of an array of 2 dimensions"),
        "last": ({"gather_dim": -1}, "gather_dim -1 is the last, which goes without scales"),
    }


def test_what_does_not_fit_is_refused(rng):
    """On one rank alone: the other is told, or has its own results, and the next calls belong
    together."""
    given, _, _ = scaled(rng, 2, "rows")

    def call(changes):
        a, scale_a, weights, scales = given[stretto.rank()]
        options = {"b": weights, "scale_a": scale_a, "scale_b": scales, "out_dtype": "float32"}
        options |= changes
        return stretto.all_gather_matmul(a, options.pop("b"), **options)

    def body():
        r = stretto.rank()
        for name, (changes, said) in refusals(given[r]).items():
            if r == 1:
                with pytest.raises(stretto.UserError, match=said):
                    call(changes)
            else:
                with contextlib.suppress(stretto.UserError):
                    call({})
            assert len(call({})) == 3, name

    testing.run(2, body)
