"""If these fail, what travels as int8 or e4m3 arrives further off than it is said to, differs from rank to
rank, or is asked for in a way that nobody gets."""

import numpy as np
import pytest

import stretto
from stretto import testing
from stretto.errors import UserError

try:
    import torch
except ImportError:
    torch = None

PART = {"int8": 1 / 254, "fp8": 1 / 28}  # of the largest that shares a scale
ROUNDING = {"float32": 2.0**-22, "float16": 2.0**-10}


def rows_of(rng, shape, dtype):
    """Rows of very different magnitudes."""
    return (rng.standard_normal(shape) * 10.0 ** rng.integers(-2, 3, (*shape[:-1], 1))).astype(dtype)


def bound(x, payload, block=None):
    """Of each element."""
    wide = np.abs(x.astype(np.float64))
    block = block or x.shape[-1]
    largest = wide.reshape(*x.shape[:-1], -1, block).max(-1, keepdims=True)
    return np.broadcast_to(largest, (*largest.shape[:-1], block)).reshape(x.shape) * PART[payload]


def near(got, want, slack):
    rounding = ROUNDING[got.dtype.name] * (np.abs(want) + slack)
    off = np.abs(got.astype(np.float64) - want)
    assert (off <= slack + rounding).all(), (off - slack - rounding).max()
    assert off.max() > 0  # something was quantised


@pytest.mark.parametrize("payload", ["int8", "fp8"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("size, block", [(2, None), (3, 16), (4, None)])
def test_gathered_rows_are_near_and_the_same_everywhere(rng, size, block, dtype, payload):
    x = [rows_of(rng, (5, 3, 48), dtype) for _ in range(size)]

    def body():
        mine = x[stretto.rank()]
        options = {"payload": payload, "scale_block": block}
        out = np.full((size * 5, 3, 48), np.nan, dtype)
        assert stretto.all_gather(mine, out=out, **options) is out
        return out, stretto.all_gather(mine, dim=1, **options)

    results = testing.run(size, body)
    near(results[0][0], np.concatenate(x).astype(np.float64), bound(np.concatenate(x), payload, block))
    whole = np.concatenate(x, 1)
    near(results[0][1], whole.astype(np.float64), bound(whole, payload, block))
    for first, second in results:
        np.testing.assert_array_equal(first, results[0][0])
        np.testing.assert_array_equal(second, results[0][1])


@pytest.mark.parametrize("payload", ["int8", "fp8"])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("reduce_op", ["sum", "avg"])
def test_sums_are_near(rng, size, reduce_op, payload):
    x = [rows_of(rng, (4 * size, 40), np.float32) for _ in range(size)]
    part = size if reduce_op == "avg" else 1
    total = np.sum([v.astype(np.float64) for v in x], 0) / part
    slack = [bound(v, payload) / part for v in x]

    def body():
        mine = x[stretto.rank()]
        options = {"reduce_op": reduce_op, "payload": payload}
        return stretto.reduce_scatter(mine, **options), stretto.all_reduce(mine, **options)

    results = testing.run(size, body)
    for rank, (scattered, reduced) in enumerate(results):
        own = slice(4 * rank, 4 * rank + 4)
        others = sum(s for r, s in enumerate(slack) if r != rank)
        near(scattered, total[own], others[own])
        np.testing.assert_array_equal(reduced, results[0][1])
    parts = sum(slack)
    near(results[0][1], total, parts + bound(np.abs(total) + parts, payload))


@pytest.mark.parametrize("payload", ["int8", "fp8"])
@pytest.mark.parametrize("size, block", [(2, None), (3, 8)])
def test_blocks_are_near_and_the_own_one_is_exact(rng, size, block, payload):
    x = [rows_of(rng, (2 * size, 3, 24), np.float32) for _ in range(size)]

    def body():
        return stretto.all_to_all(x[stretto.rank()], payload=payload, scale_block=block)

    for rank, got in enumerate(testing.run(size, body)):
        own = slice(2 * rank, 2 * rank + 2)
        np.testing.assert_array_equal(got[own], x[rank][own])
        want = np.concatenate([v[own] for v in x])
        near(got, want.astype(np.float64), bound(want, payload, block))


def test_one_dimension_has_one_scale(rng):
    x = [rows_of(rng, (96,), np.float32) for _ in range(2)]

    def body():
        mine = x[stretto.rank()]
        return stretto.all_gather(mine, payload="int8"), stretto.all_reduce(
            mine, payload="int8", scale_block=32
        )

    gathered, reduced = testing.run(2, body)[0]
    near(gathered, np.concatenate(x).astype(np.float64), np.concatenate([bound(v, "int8") for v in x]))
    parts = bound(x[0], "int8", 32) + bound(x[1], "int8", 32)
    total = x[0].astype(np.float64) + x[1]
    near(reduced, total, parts + bound(np.abs(total) + parts, "int8", 32))


def test_a_rank_alone_copies(rng):
    x = rng.standard_normal((4, 6)).astype(np.float32)

    def body():
        return [
            call(x, payload="int8")
            for call in (
                stretto.all_gather,
                stretto.reduce_scatter,
                stretto.all_reduce,
                stretto.all_to_all,
            )
        ]

    for got in testing.run(1, body)[0]:
        np.testing.assert_array_equal(got, x)


def test_nothing_travels():
    def body():
        x = np.zeros((0, 8), np.float32)
        return stretto.all_gather(x, payload="int8"), stretto.all_to_all(x, payload="int8")

    for gathered, exchanged in testing.run(2, body):
        assert gathered.shape == (0, 8) and exchanged.shape == (0, 8)


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_torch_tensors(rng):
    x = [rows_of(rng, (6, 32), np.float32) for _ in range(2)]

    def body():
        mine = torch.from_numpy(x[stretto.rank()]).to(torch.bfloat16)
        gathered = stretto.all_gather(mine, payload="int8")
        assert gathered.dtype == torch.bfloat16
        return mine.float().numpy(), gathered.float().numpy()

    results = testing.run(2, body)
    sent = np.concatenate([mine for mine, _ in results]).astype(np.float64)
    for _, gathered in results:
        off = np.abs(gathered - sent) - bound(sent, "int8") - 2.0**-8 * np.abs(sent)
        assert (off <= 0).all(), off.max()


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_gradients_are_not_lost_unsaid():
    def body():
        x = torch.ones(4, 8, requires_grad=True)
        for call in (
            stretto.all_gather,
            stretto.all_reduce,
            stretto.reduce_scatter,
            stretto.all_to_all,
        ):
            with pytest.raises(UserError, match="no gradient with out=.* or payload"):
                call(x, payload="int8")
            with torch.no_grad():
                call(x, payload="int8")

    testing.run(2, body)


def test_calls_that_go_on(rng):
    x = [rows_of(rng, (4, 32), np.float32) for _ in range(2)]

    def body():
        mine = x[stretto.rank()]
        work = stretto.all_gather(mine, payload="int8", async_op=True)
        np.testing.assert_array_equal(work.wait(), stretto.all_gather(mine, payload="int8"))

    testing.run(2, body)


def test_what_cannot_travel_so_is_told():
    x = np.zeros((4, 12), np.float32)

    def told(match, call):
        with pytest.raises(UserError, match=match):
            testing.run(2, call)

    told("payload 'int4': one of int8", lambda: stretto.all_gather(x, payload="int4"))
    told("scale_block without payload", lambda: stretto.all_gather(x, scale_block=4))
    told("scale_block 5 does not divide", lambda: stretto.all_gather(x, payload="int8", scale_block=5))
    told("scale_block is 0", lambda: stretto.all_reduce(x, payload="int8", scale_block=0))
    told("element type float64", lambda: stretto.all_gather(x.astype(np.float64), payload="int8"))
    told("element type int32", lambda: stretto.all_to_all(x.astype(np.int32), payload="int8"))
    for call in stretto.all_reduce, stretto.reduce_scatter:
        says = f"{call.__name__}: payload goes with sums and averages, not with reduce_op 'max'"
        told(says, lambda call=call: call(x, payload="int8", reduce_op="max"))
    told("sizes and payload", lambda: stretto.all_gather(x, sizes=[4, 4], payload="int8"))
    told("sizes and payload", lambda: stretto.all_to_all(x, [2, 2], payload="int8"))
    wide = np.zeros((2, 20000), np.float32)
    told("pass scale_block", lambda: stretto.all_gather(wide, payload="int8"))


def test_ranks_that_send_differently_are_told():
    def body():
        payload = "int8" if stretto.rank() == 0 else "fp8"
        stretto.all_gather(np.zeros((2, 8), np.float32), payload=payload)

    with pytest.raises(UserError, match="payload"):
        testing.run(2, body)
