"""A long run of calls of all kinds and sizes, none among them, in which a rank at times makes another
call than the others: all get the same error, and what follows is right."""

import threading

import numpy as np
import pytest

import stretto
from stretto import testing

SIZE = 3
TOTAL = SIZE * (SIZE + 1) / 2  # of rank + 1


def by_rank(rows, columns):
    """The numbers of the ranks, each for so many rows."""
    return np.repeat(np.arange(1, SIZE + 1), rows)[:, None] * np.ones(columns)


# Each gives (result, what is right), of n or m rows, m for all ranks, and c columns of rank + 1.
CALLS = [
    lambda x, y, w, n, m, c: (stretto.all_gather(x), by_rank(n, c)),
    lambda x, y, w, n, m, c: (stretto.all_reduce(x), np.full((n, c), TOTAL)),
    lambda x, y, w, n, m, c: (stretto.reduce_scatter(y), np.full((m // SIZE, c), TOTAL)),
    lambda x, y, w, n, m, c: (stretto.broadcast(x, 1), np.full((n, c), 2)),
    lambda x, y, w, n, m, c: (stretto.all_gather_matmul(x, w), c * by_rank(n, 3)),
    lambda x, y, w, n, m, c: (
        stretto.matmul_reduce_scatter(y, w),
        np.full((m // SIZE, 3), TOTAL * c),
    ),
    lambda x, y, w, n, m, c: (stretto.matmul_all_reduce(x, w), np.full((n, 3), TOTAL * c)),
    lambda x, y, w, n, m, c: (stretto.all_to_all(y), by_rank(m // SIZE, c)),
]


def drawn(rng):
    """A call and its sizes."""
    sizes = int(rng.integers(5)), SIZE * int(rng.integers(4)), int(rng.integers(1, 5))
    return int(rng.integers(len(CALLS))), sizes


def make(kind, sizes):
    n, m, c = sizes
    x, y = (np.full((rows, c), stretto.rank() + 1, np.float32) for rows in (n, m))
    return CALLS[kind](x, y, np.ones((c, 3), np.float32), n, m, c)


@pytest.mark.parametrize("turn", range(3))
def test_a_rank_that_makes_other_calls(rng, turn):
    seed = [*rng.integers(1 << 30, size=2), turn]

    def body():
        draw, told = np.random.default_rng(seed), []
        for _ in range(150):
            everyone, other = drawn(draw), drawn(draw)
            differs, which = draw.random() < 0.2, int(draw.integers(SIZE))
            try:
                mine = other if differs and stretto.rank() == which else everyone
                got, want = make(*mine)
                told.append("")
                np.testing.assert_array_equal(got, want)
            except stretto.UserError as error:
                assert differs
                told.append(str(error))
        return told

    told = testing.run(SIZE, body, timeout=10)
    assert told[0] == told[1] == told[2]
    assert any(told[0])


def experts_layer(rows):
    """moe_layer over so many tokens of every rank, and what is right, of ones."""
    size, experts, (hidden, ffn) = stretto.world_size(), 2, (4, 3)
    x, up = np.ones((rows, hidden), np.float32), np.ones((experts, hidden, ffn), np.float32)
    chosen = np.zeros((size * rows, 1), np.int32)
    down = np.ones((experts, ffn, hidden), np.float32)
    got = stretto.moe_layer(x, up, up, down, chosen, np.ones((size * rows, 1), np.float32))
    middle = hidden / (1 + np.exp(-hidden)) * hidden
    return got, np.full((rows, hidden), size * ffn * middle)


# Each of so many rows of all ranks: (result, what is right).
SIZED = [
    lambda rows: (
        stretto.matmul_all_reduce(np.ones((rows, 5), np.float32), np.ones((5, 3), np.float32)),
        np.full((rows, 3), 10.0),
    ),
    lambda rows: (
        stretto.matmul_reduce_scatter(np.ones((2 * rows, 5), np.float32), np.ones((5, 3), np.float32)),
        np.full((rows, 3), 10.0),
    ),
    experts_layer,
]


@pytest.mark.parametrize("sequence", [None, True])
@pytest.mark.parametrize("call", SIZED)
def test_calls_that_were_refused_leave_nothing_behind(call, sequence):
    """More of them than numbers of rows have a program of their own."""
    refused = [2 * n + 1 for n in range(1, 7)]

    def body():
        for rows in refused:
            with pytest.raises(stretto.UserError):
                call(rows + stretto.rank())
        for rows in [n + r for n in refused for r in (0, 1)]:
            got, want = call(rows)
            np.testing.assert_allclose(got, want, rtol=1e-6)

    testing.run(2, body, timeout=10, sequence=sequence)


@pytest.mark.parametrize("call", SIZED)
def test_a_call_that_failed_leaves_nothing_behind(call):
    """A rank does not come to it; the world recovers."""
    gate = threading.Barrier(2)

    def body():
        if stretto.rank() == 0:
            with pytest.raises(stretto.Fault):
                call(3)
        gate.wait(20)
        stretto.recover()
        for rows in (11, 12, 13, 14, 15, 3):
            got, want = call(rows)
            np.testing.assert_allclose(got, want, rtol=1e-6)

    testing.run(2, body, timeout=2)


def ones(*shape):
    return np.ones(shape, np.float32)


# Pairs of calls on two ranks that launch the same program over as many elements, if any.
ALIKE = {
    "shape of all_reduce": lambda r: stretto.all_reduce(ones(2, 6) if r else ones(3, 4)),
    "lead of all_reduce": lambda r: stretto.all_reduce(ones(2, 3, 4) if r else ones(3, 2, 4)),
    "shape of broadcast": lambda r: stretto.broadcast(ones(8) if r else ones(2, 4)),
    "shape of all_gather": lambda r: stretto.all_gather(ones(2, 3, 4) if r else ones(3, 2, 4)),
    "dim of all_gather": lambda r: stretto.all_gather(ones(4, 4), dim=r),
    "dim of reduce_scatter": lambda r: stretto.reduce_scatter(ones(4, 4), dim=r),
    "rows of all_to_all": lambda r: stretto.all_to_all(ones(2, 2, 3) if r else ones(2, 3, 2)),
    "lead of a product": lambda r: stretto.matmul_all_reduce(
        ones(2, 3, 4) if r else ones(3, 2, 4), ones(4, 5)
    ),
    "shape of a norm": lambda r: stretto.all_reduce_add_rms_norm(
        *2 * [ones(2, 3, 4) if r else ones(3, 2, 4)], ones(4)
    ),
    "average of nothing": lambda r: stretto.all_reduce(ones(0), reduce_op=("sum", "avg")[r]),
    "dim of nothing": lambda r: stretto.all_gather(ones(0, 4), dim=r),
    "average of no rows": lambda r: stretto.reduce_scatter(ones(0, 4), reduce_op=("sum", "avg")[r]),
    "columns of no rows": lambda r: stretto.matmul_all_reduce(ones(0, 4), ones(4, 2 + r)),
}


@pytest.mark.parametrize("name", ALIKE)
def test_calls_of_one_size_that_differ(name):
    """Also where each has been made before by all."""
    told = []

    def body():
        call, r = ALIKE[name], stretto.rank()
        for turn in range(3):
            with pytest.raises(stretto.UserError) as caught:
                call(r)
            told.append(str(caught.value))
            call(turn % 2)
            call(turn % 2)

    testing.run(2, body, timeout=10)
    assert len(told) == 6 and told[0] == told[1]
    assert all("calls differ between ranks" in text for text in told)
