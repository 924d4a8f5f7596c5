"""all_to_all with blocks that look even on some ranks, and arrays that lie otherwise on one: ranks launch
the same program in any case."""

import numpy as np
import pytest

import stretto
from stretto import testing

# Rows that a rank (row) sends to each (column). Some ranks send and receive blocks of one size only.
TABLES = [
    [[17, 17, 17], [17, 17, 3], [17, 3, 17]],
    [[4, 4, 4], [4, 4, 4], [4, 4, 5]],
    [[5, 5, 5], [5, 5, 5], [5, 5, 5]],
    [[0, 2, 2], [2, 2, 2], [2, 2, 2]],
]


def exchanged(x, table):
    """What each rank is to get, of the ranks' arrays."""
    starts = np.concatenate([np.zeros((len(table), 1), int), np.cumsum(table, 1)], 1)
    size = len(table)
    return [
        np.concatenate([x[s][starts[s, d] : starts[s, d + 1]] for s in range(size)])
        for d in range(size)
    ]


@pytest.mark.parametrize("table", TABLES)
def test_some_ranks_see_even_blocks_only(rng, table):
    x = [rng.random((sum(row), 4)).astype(np.float32) for row in table]

    def body():
        r = stretto.rank()
        received = [row[r] for row in table]
        return [
            stretto.all_to_all(x[r], None, table[r]),
            stretto.all_to_all(x[r], received, table[r]),
        ]

    for results, want in zip(testing.run(3, body, timeout=5), exchanged(x, table)):
        for got in results:
            np.testing.assert_array_equal(got, want)


def misaligned(x):
    """A copy that begins one byte past where its elements may."""
    raw = np.empty(x.nbytes + 1, np.uint8)[1:]
    made = raw.view(x.dtype).reshape(x.shape)
    made[...] = x
    return made


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("lay", [np.asfortranarray, misaligned, lambda x: np.repeat(x, 2, 1)[:, ::2]])
def test_one_rank_has_another_layout(rng, lay, given):
    x = [rng.random((51, 4)).astype(np.float32) for _ in range(3)]
    mine = [x[0], lay(x[1]), x[2]]
    splits = ([17] * 3, [17] * 3) if given else ()

    def body():
        return [stretto.all_to_all(mine[stretto.rank()], *splits) for _ in range(2)]

    for results, want in zip(testing.run(3, body, timeout=5), exchanged(x, [[17] * 3] * 3)):
        for got in results:
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("table", TABLES)
def test_blocks_without_columns(table):
    def body():
        r = stretto.rank()
        x = np.empty((sum(table[r]), 0), np.float32)
        return stretto.all_to_all(x, [row[r] for row in table], table[r]).shape

    assert testing.run(3, body, timeout=5) == [(sum(rows), 0) for rows in zip(*table)]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_equal_blocks_are_repeated(rng, size):
    """Without Python: how many rows a block has stays where the first call of that size left it."""
    shapes = [(size, 2 * size, 3), (size, 3 * size, 3)]

    def body(arrays):
        rank, op = stretto.rank(), stretto.collectives._all_to_all
        plans = stretto._world.group_of().plans
        first = [stretto.all_to_all(x[rank]) for x in arrays]
        return first, [plans.replay(op, 0, None, x[rank]) for x in arrays]

    arrays = [rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]
    for rank, both in enumerate(testing.run(size, lambda: body(arrays))):
        for results in both:
            for x, got in zip(arrays, results):
                blocks = x.reshape(size, size, -1, 3)[:, rank]
                np.testing.assert_array_equal(got, blocks.reshape(-1, 3))


def test_lists_of_all_kinds_in_any_order(rng):
    """Ranks say in one word what they have told each other before, and none takes another's pattern for its
    own: even ones, those that are even on one rank alone, and others, as they fall."""
    tables = [
        [[2] * 3] * 3,
        [[4] * 3] * 3,
        [[2] * 3, [1, 2, 3], [3, 2, 1]],  # even on rank 0 alone
        [[2] * 3, [0, 6, 0], [2] * 3],
        [[1, 2, 3], [2, 3, 1], [3, 1, 2]],
        [[0, 0, 6], [6, 0, 0], [0, 6, 0]],
    ]
    order = [tables[i] for i in rng.integers(len(tables), size=60)]
    xs = [[rng.random((sum(rows), 2)).astype(np.float32) for rows in table] for table in order]
    told = rng.integers(2, size=60).astype(bool)  # whether a call says what it expects

    def body():
        r = stretto.rank()
        out = []
        for table, x, says in zip(order, xs, told):
            expected = [row[r] for row in table] if says else None
            out.append(stretto.all_to_all(x[r], expected, table[r]))
        stretto.all_to_all(xs[0][r], None, order[0][r])  # of which nothing may be told so far
        phases = stretto._core.HostPhases()
        stretto.all_to_all(xs[0][r], None, order[0][r])
        return out, phases.finish()["meeting of the hosts"][0]

    for rank, (results, meetings) in enumerate(testing.run(3, body, timeout=20)):
        assert meetings == 2, "in one word, and in the launch"
        for at, (got, table, x) in enumerate(zip(results, order, xs)):
            np.testing.assert_array_equal(got, exchanged(x, table)[rank], err_msg=f"call {at} of {table}")


def test_what_was_right_once_is_checked_again():
    """The same arrays and lists, but not the same expectations; and arrays of the same form that may not be."""

    def body():
        r, x = stretto.rank(), np.ones((4, 2), np.float32)
        blocks = [[1, 3], [2, 2]]
        stretto.all_to_all(x, [row[r] for row in blocks], blocks[r])
        told = []
        for call in (
            lambda: stretto.all_to_all(x, [4, 4], blocks[r]),
            lambda: stretto.all_to_all(x, None, [3, 3]),
            lambda: stretto.all_to_all(x.astype(bool)[:2], None, blocks[r]),
        ):
            try:
                call()
            except stretto.UserError as error:
                told.append(str(error))
        return told, stretto.all_to_all(x, [row[r] for row in blocks], blocks[r]).shape

    for rank, (told, shape) in enumerate(testing.run(2, body, timeout=20)):
        assert shape == ([3, 5][rank], 2)
        assert len(told) == 3 and "expects [4, 4] rows" in told[0], told
        assert "input_split_sizes [3, 3] of 4 rows" in told[1] and "of 2 rows" in told[2], told
