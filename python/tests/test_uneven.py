"""Exchanges whose sizes are in tensors, against what the ranks' blocks are and torch.distributed."""

import numpy as np
import pytest

import stretto
from forked_ranks import run_on_forks
from stretto import testing

try:
    import torch
except ImportError:
    torch = None


def by_lot(rng, rows, size):
    """Rows that a rank of so many sends to each: even, none, all to one, or anything."""
    kind = rng.integers(4)
    if kind == 0:
        return [rows // size] * size
    if kind == 1:
        split = [0] * size
        split[rng.integers(size)] = int(rng.integers(rows + 1))
        return split
    cuts = np.sort(rng.integers(0, rows + 1, size))
    if kind == 2:
        cuts = cuts // 3
    return [int(n) for n in np.diff(cuts, prepend=0)]


def came(x, table, rank):
    """What a rank is to get."""
    starts = np.concatenate([np.zeros((len(table), 1), int), np.cumsum(table, 1)], 1)
    return np.concatenate([x[s][starts[s, rank] : starts[s, rank + 1]] for s in range(len(table))])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_blocks_by_lot(rng, size, dtype):
    """The same calls with one size after the other; rows past those that come stay."""
    m, room = int(rng.integers(1, 40)), int(rng.integers(size, 80))
    rest = tuple(int(n) for n in rng.integers(1, 6, rng.integers(0, 3)))
    x = [(rng.random((m, *rest)) * 100).astype(dtype) for _ in range(size)]
    tables = []
    for _ in range(6):
        table = np.array([by_lot(rng, m, size) for _ in range(size)])
        while table.sum(0).max() > room:
            table //= 2
        tables.append(table)
    types = [np.int32 if rng.random() < 0.5 else np.int64 for _ in tables]

    def body():
        r, results = stretto.rank(), []
        for table, number in zip(tables, types):
            sizes = table[r].astype(number)
            out = np.full((room, *rest), 77, dtype)
            given = stretto.all_to_all_v(x[r], sizes, out=out)
            assert given.rows is out
            made = stretto.all_to_all_v(x[r], sizes, max_rows=room)
            everything = stretto.all_to_all_v(x[r], sizes)
            assert made.rows.shape == (room, *rest) and everything.rows.shape == (size * m, *rest)
            assert made.sizes.dtype == number
            results.append((given, made, everything))
        return results

    for rank, results in enumerate(testing.run(size, body)):
        for table, (given, *others) in zip(tables, results):
            want = came(x, table, rank)
            for rows, sizes in (given, *others):
                np.testing.assert_array_equal(sizes, table[:, rank])
                np.testing.assert_array_equal(rows[: len(want)], want)
            assert (given.rows[len(want) :] == 77).all()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_lengths_by_lot(rng, size):
    m = int(rng.integers(1, 30))
    x = [rng.random((m, 5)).astype(np.float32) for _ in range(size)]
    lengths = [[int(n) for n in rng.integers(0, m + 1, size)] for _ in range(5)] + [[0] * size, [m] * size]

    def body():
        r, results = stretto.rank(), []
        for of_ranks in lengths:
            for length in (np.array(of_ranks[r]), np.array([of_ranks[r]], np.int32)):
                results.append(stretto.all_gather_v(x[r], length))
        return results

    for results in testing.run(size, body):
        for of_ranks, pair in zip(lengths, zip(results[::2], results[1::2])):
            want = np.concatenate([x[r][:n] for r, n in enumerate(of_ranks)])
            for rows, sizes in pair:
                np.testing.assert_array_equal(rows[: len(want)], want)
                assert list(sizes) == of_ranks


def test_symmetric_rows_stay_where_they_are():
    def body():
        r = stretto.rank()
        x = stretto.symm_mem.empty(6, 2, dtype="int32")
        x[...] = 10 * r + np.arange(6)[:, None]
        stretto.barrier()
        rows, sizes = stretto.all_to_all_v(x, np.array([1, 2], np.int32) if r == 0 else np.array([0, 3], np.int32))
        return rows[: sizes.sum(), 0].tolist(), sizes.tolist()

    assert testing.run(2, body) == [([0], [1, 0]), ([1, 2, 10, 11, 12], [2, 3])]


@pytest.mark.parametrize(
    "sizes, room, what",
    [
        ([3, 3], 8, "input_split_sizes add up to 6, x has 5 rows"),
        ([-1, 3], 8, "input_split_sizes breaks its contract: entry 0 is -1"),
        ([0, 6], 8, "input_split_sizes add up to 6"),
        ([0, 4], 7, "table 'rows_for_max_rows' breaks its contract: entry 0 is 8, need 0 <= entry < 8"),
    ],
)
def test_sizes_that_do_not_fit(sizes, room, what):
    def body():
        out = np.full((room + 4, 2), 7, np.float32)
        x = np.ones((5, 2), np.float32)
        try:
            stretto.all_to_all_v(x, np.array(sizes), out=out[:room])
        except (stretto.UserError, stretto.Fault) as error:
            assert (out[room:] == 7).all()
            return isinstance(error, stretto.Fault), str(error)
        return None

    told = testing.run(2, body)
    assert all(told) and any(what in text for _, text in told), told
    assert [fault for fault, _ in told] == [room == 7] * 2


def test_arguments_that_do_not_fit():
    x, two = np.ones((4, 2), np.float32), np.array([2, 2])
    for call, what in (
        (lambda: stretto.all_to_all_v(x, np.array([1, 2, 3])), "need int32"),
        (lambda: stretto.all_to_all_v(x, np.array([1.0, 2.0])), "float64 (2,); need int32 or int64 (2,)"),
        (lambda: stretto.all_gather_v(x, np.int16([2])), "input_size is int16 (1,); need int32 or int64 (1,)"),
        (lambda: stretto.all_to_all_v(x, [2, 2]), "input_split_sizes"),
        (lambda: stretto.all_to_all_v(x, two, max_rows=-1), "max_rows"),
        (lambda: stretto.all_to_all_v(x, two, max_rows=3, out=x), "out has 4 rows"),
        (lambda: stretto.all_to_all_v(x, two, out=np.ones((4, 3), np.float32)), "out is"),
        (lambda: stretto.all_gather_v(x, two), "input_size"),
        (lambda: stretto.all_gather_v(np.array(1, np.float32), np.array(1)), "at least one dimension"),
    ):

        def body(call=call):
            with pytest.raises(stretto.UserError) as told:
                call()
            return str(told.value)

        for text in testing.run(2, body):
            assert what in text, text


def test_nothing_to_send():
    def body():
        none = stretto.all_to_all_v(np.ones((0, 3), np.float32), np.zeros(2, np.int32), max_rows=4)
        flat = stretto.all_gather_v(np.ones((3, 0), np.float32), np.array(2))
        return none.rows.shape, none.sizes.tolist(), flat.rows.shape

    assert testing.run(2, body) == [((4, 3), [0, 0], (6, 0))] * 2


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_as_torch_distributed(rng, size):
    code = f"""
    import torch, stretto
    import torch.distributed as dist
    dist.init_process_group("gloo")
    stretto.init(dist.group.WORLD)
    r, size, m = stretto.rank(), {size}, 23
    g = torch.Generator().manual_seed({int(rng.integers(1 << 30))} + r)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for turn in range(4):
            x = (torch.randn(m, 3, generator=g) * 50).to(dtype)
            sizes = torch.randint(0, m // size + 1, (size,), generator=g)
            if turn == 1:
                sizes[:] = 0
            if turn == 2:
                sizes[1:] = 0
            came = torch.empty_like(sizes)
            dist.all_to_all_single(came, sizes)
            want = torch.empty(int(came.sum()), 3, dtype=dtype)
            dist.all_to_all_single(want, x[: int(sizes.sum())], came.tolist(), sizes.tolist())
            rows, received = stretto.all_to_all_v(x, sizes if turn % 2 else sizes.int())
            assert torch.equal(rows[: len(want)], want) and torch.equal(received.long(), came), (dtype, turn)
            table = [torch.empty_like(sizes) for _ in range(size)]
            dist.all_gather(table, sizes)
            lengths = [int(t[0]) for t in table]
            every = [torch.empty(m, 3, dtype=dtype) for _ in range(size)]
            dist.all_gather(every, x)
            want = torch.cat([e[:n] for e, n in zip(every, lengths)])
            rows, received = stretto.all_gather_v(x, sizes[:1])
            assert torch.equal(rows[: len(want)], want) and received.tolist() == lengths, (dtype, turn)
    stretto.finalize()
    dist.destroy_process_group()
    """
    run_on_forks(size, code)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_sizes_are_told_where_no_element_moves(size):
    """Rows without elements, room for no rows, no rows: what sizes say is held against what there is."""

    def body():
        r = stretto.rank()
        own = np.array([r + d for d in range(size)], np.int32)
        rows, sizes = stretto.all_to_all_v(np.empty((2 * size * size, 0), np.float32), own)
        assert rows.shape == (2 * size**3, 0) and sizes.tolist() == [s + r for s in range(size)]
        gathered, lengths = stretto.all_gather_v(np.empty((size, 0), np.float32), np.array([r], np.int32))
        assert gathered.shape == (size * size, 0) and lengths.tolist() == list(range(size))
        nothing, none = stretto.all_to_all_v(np.empty((0, 3), np.float32), np.zeros(size, np.int32))
        assert nothing.shape == (0, 3) and not none.any()

    testing.run(size, body)


@pytest.mark.parametrize("call", [
    lambda: stretto.all_to_all_v(np.ones((4, 2), np.float32), np.array([2, 1], np.int32), max_rows=0),
    lambda: stretto.all_gather_v(np.ones((0, 2), np.float32), np.array([3], np.int32)),
    lambda: stretto.all_gather_v(np.ones((4, 0), np.float32), np.array([-7], np.int32)),
])  # fmt: skip
def test_sizes_that_do_not_fit_are_refused_where_no_element_moves(call):
    def body():
        with pytest.raises((stretto.UserError, stretto.Fault)):
            call()

    testing.run(2, body)
