"""If these fail, arrays of different sizes are gathered in the wrong order or with rows of nobody."""

import numpy as np
import pytest

import stretto
from stretto import testing


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int64"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_sizes_by_lot(rng, size, dtype):
    """Along every dimension, none of some ranks or of all, repeatedly, into what is given."""
    for turn in range(4):
        sizes = [int(n) for n in rng.integers(0, 7, size)] if turn else [0] * size
        for dim in (0, 1, -1):
            shape = [[3, 4, 5] for _ in range(size)]
            for r in range(size):
                shape[r][dim] = sizes[r]
            x = [rng.integers(0, 100, s).astype(dtype) for s in shape]
            want = np.concatenate(x, dim)

            def body(x=x, sizes=sizes, dim=dim, want=want):
                mine, out = x[stretto.rank()], np.empty_like(want)
                assert stretto.all_gather(mine, dim=dim, sizes=sizes, out=out) is out
                return [stretto.all_gather(mine, dim=dim, sizes=sizes) for _ in range(2)] + [out]

            for results in testing.run(size, body):
                for got in results:
                    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "sizes, said",
    [
        (lambda r: [2, 2], "sizes \\[2, 2\\] of 2 ranks, and rank [01] has 3 along dim 0"),
        (lambda r: [3], "sizes \\[3\\] of 2 ranks"),
        (lambda r: ["a", 3], "sizes is .*, need whole numbers"),
        (lambda r: [3, 3] if r else None, "all_gather"),
        (lambda r: [3, 2**62], "sizes .*4611686018427387904\\] come to more bytes|has 3 along dim 0"),
        (lambda r: [[3, 4], [2, 3]][r], "sizes=\\[3, 4\\].*sizes=\\[2, 3\\]"),
    ],
)
def test_refusals(sizes, said):
    """On both ranks, and the world goes on."""

    def body():
        x = np.ones((3, 2), np.float32)
        with pytest.raises(stretto.UserError, match=said):
            stretto.all_gather(x, sizes=sizes(stretto.rank()))
        return stretto.all_gather(x, sizes=[3, 3])

    for got in testing.run(2, body):
        assert got.shape == (6, 2) and (got == 1).all()
