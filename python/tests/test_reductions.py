"""If these fail, a minimum, maximum or product over ranks is wrong, or a list of even sizes moves the
wrong rows."""

import numpy as np
import pytest

import stretto
from forked_ranks import run_on_forks
from stretto import testing

try:
    import torch
except ImportError:
    torch = None

NUMPY = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_reduction(rng, size, dtype):
    """Small whole numbers, exact in every type."""
    x = [rng.integers(-2, 3, (2 * size, 3, 5)).astype(dtype) for _ in range(size)]

    def body(name):
        mine = x[stretto.rank()]
        whole = stretto.all_reduce(mine, reduce_op=name)
        again = mine.copy()
        assert stretto.all_reduce(again, reduce_op=name, out=again) is again
        assert (again == whole).all()
        return whole, stretto.reduce_scatter(mine, reduce_op=name)

    for name, function in NUMPY.items():
        want = function.reduce(np.stack(x)).astype(dtype)
        results = testing.run(size, lambda op=name: body(op))
        for whole, _ in results:
            np.testing.assert_array_equal(whole, want)
        np.testing.assert_array_equal(np.concatenate([part for _, part in results]), want)


def test_whole_numbers_that_float32_has_not(rng):
    x = rng.integers(-(2**30), 2**30, (2, 64), np.int32)
    for name, function in NUMPY.items():
        if name == "product":
            continue
        want = function.reduce(x)
        for got in testing.run(2, lambda op=name: stretto.all_reduce(x[stretto.rank()], reduce_op=op)):
            np.testing.assert_array_equal(got, want)


def test_nan_is_left_out_by_extremes():
    x = np.array([[1, np.nan, np.nan], [np.nan, 2, np.nan]], np.float32)
    for name in ("min", "max"):
        for got in testing.run(2, lambda op=name: stretto.all_reduce(x[stretto.rank()], reduce_op=op)):
            np.testing.assert_array_equal(got, np.array([1, 2, np.nan], np.float32))


def test_ranks_that_reduce_differently_are_told():
    def body():
        with pytest.raises(stretto.UserError, match="reduce_op=max.*reduce_op=min|min.*max"):
            stretto.all_reduce(np.ones(3, np.float32), reduce_op=("max", "min")[stretto.rank()])
        return stretto.all_reduce(np.ones(3, np.float32))

    for got in testing.run(2, body):
        assert (got == 2).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_premultiplied_sums(rng, size, dtype):
    """Of sums that float16 does not hold, with factors that change from call to call."""
    x = [(20000 * (1 + rng.random((2 * size, 3, 5)))).astype(dtype) for _ in range(size)]
    factors = [0.25, -1 / 3, 0.0, 1, np.float32(0.1), 0.25]

    def body():
        mine, results = x[stretto.rank()], []
        for factor in factors:
            how = {"reduce_op": "premul_sum", "factor": factor}
            again = mine.copy()
            assert stretto.all_reduce(again, out=again, **how) is again
            root = stretto.reduce(mine, size - 1, **how)
            assert root is None or (root == again).all()
            results.append((again, stretto.reduce_scatter(mine, **how)))
        return results

    total = np.zeros((2 * size, 3, 5), np.float32)
    for part in x:
        total += part.astype(np.float32)
    results = testing.run(size, body)
    for i, factor in enumerate(factors):
        want = (total * np.float32(factor)).astype(dtype)
        for of_rank in results:
            np.testing.assert_array_equal(of_rank[i][0], want)
        np.testing.assert_array_equal(np.concatenate([of_rank[i][1] for of_rank in results]), want)


def test_ranks_with_factors_of_their_own_are_told():
    def body():
        with pytest.raises(stretto.UserError, match="factor=2.*factor=1|factor=1.*factor=2"):
            stretto.all_reduce(np.ones(3, np.float32), reduce_op="premul_sum", factor=1 + stretto.rank())
        return stretto.all_reduce(np.ones(3, np.float32))

    for got in testing.run(2, body):
        assert (got == 2).all()


def test_refusals():
    def body():
        with pytest.raises(stretto.UserError, match="reduce_op 'bor': one of sum, avg, min, max, product"):
            stretto.all_reduce(np.ones(3, np.float32), reduce_op="bor")
        for given in ({"reduce_op": "premul_sum"}, {"factor": 2.0}, {"reduce_op": "avg", "factor": 2.0}):
            with pytest.raises(stretto.UserError, match="and factor .*; 'premul_sum' takes factor="):
                stretto.reduce_scatter(np.ones(3, np.float32), **given)
        for factor, what in (("2", "need a number"), (1e60, "more than a float32 holds")):
            with pytest.raises(stretto.UserError, match=what):
                stretto.all_reduce(np.ones(3, np.float32), reduce_op="premul_sum", factor=factor)
        for dtype in ("float64", "int32"):
            with pytest.raises(stretto.UserError, match=f"floats up to float32.*{dtype}; multiply before"):
                stretto.all_reduce(np.ones(3, dtype), reduce_op="premul_sum", factor=2)
        with pytest.raises(stretto.UserError, match="all_reduce: an average of int32"):
            stretto.all_reduce(np.ones(3, np.int32), reduce_op="avg")

    testing.run(1, body)


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_no_gradient_of_a_maximum():
    def body():
        x = torch.ones(2, requires_grad=True)
        for call in (stretto.all_reduce, stretto.reduce_scatter):
            with pytest.raises(stretto.UserError, match="'max' has no gradient"):
                call(x, reduce_op="max")
            assert (call(x.detach(), reduce_op="max") == 1).all()

    testing.run(1, body)


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_no_gradient_of_a_factor():
    def body():
        x, factor = torch.ones(2, 3), torch.tensor(2.0)
        for call in stretto.all_reduce, stretto.reduce_scatter, stretto.reduce:
            says = f"{call.__name__}: factor is a tensor that requires a gradient"
            with pytest.raises(stretto.UserError, match=says):
                call(x, reduce_op="premul_sum", factor=torch.tensor(2.0, requires_grad=True))
            call(x, reduce_op="premul_sum", factor=factor)

    testing.run(2, body, timeout=20)


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_gradients_of_premultiplied_sums():
    def body():
        for call in (stretto.all_reduce, stretto.reduce_scatter):
            x = torch.arange(6.0).reshape(2, 3).requires_grad_()
            call(x, reduce_op="premul_sum", factor=0.5).sum().backward()
            of_all = 2 if call is stretto.all_reduce else 1  # ranks whose losses count each element
            assert (x.grad == 0.5 * of_all).all()

    testing.run(2, body)


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_as_torch_distributed():
    code = """
    import torch, stretto
    import torch.distributed as dist
    dist.init_process_group("gloo")
    stretto.init(dist.group.WORLD)
    r = stretto.rank()
    there = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX,
             "product": dist.ReduceOp.PRODUCT}
    g = torch.Generator().manual_seed(r)
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        x = torch.randint(-3, 4, (5, 7), generator=g).to(dtype)
        if dtype != torch.int32:  # gloo has no premultiplied sums
            want = (x * 0.5).clone()
            dist.all_reduce(want)
            how = {"reduce_op": "premul_sum", "factor": torch.tensor(0.5)}
            assert torch.equal(stretto.all_reduce(x, **how), want), dtype
        for name, op in there.items():
            want = x.clone()
            dist.all_reduce(want, op)
            assert torch.equal(stretto.all_reduce(x, reduce_op=name), want), (dtype, name)
    for sizes in ([2, 2], [[1, 3], [3, 1]][r], [0, 0], [[2, 2], [1, 2]][r]):
        x = torch.arange(sum(sizes) * 3.0).reshape(-1, 3) + 100 * r
        came = [torch.empty(1, dtype=torch.int64) for _ in sizes]
        mine = torch.tensor(sizes)
        table = [torch.empty_like(mine) for _ in sizes]
        dist.all_gather(table, mine)
        got = [int(row[r]) for row in table]
        want = torch.empty(sum(got), 3)
        dist.all_to_all_single(want, x, got, sizes)
        assert torch.equal(stretto.all_to_all(x, got, sizes), want), sizes
        assert torch.equal(stretto.all_to_all(x, None, sizes), want), sizes
    stretto.finalize()
    dist.destroy_process_group()
    """
    run_on_forks(2, code)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_even_sizes_as_lists(rng, size):
    """Even on every rank, even on some, and even but of different sizes; in any order."""

    def sizes_of(kind, rank):
        if kind == "even":
            return [3] * size
        if kind == "some":
            return [2] * size if rank else [2 + i for i in range(size)]
        return [rank + 1] * size

    for kind in ("even", "some", "different", "even", "some"):
        sizes = [sizes_of(kind, r) for r in range(size)]
        x = [rng.random((sum(s), 2)).astype(np.float32) for s in sizes]
        blocks = [np.split(x[r], np.cumsum(sizes[r])[:-1]) for r in range(size)]

        def body(x=x, sizes=sizes):
            r = stretto.rank()
            received = [s[r] for s in sizes]
            return [
                stretto.all_to_all(x[r], received, sizes[r]),
                stretto.all_to_all(x[r], None if r == 0 else received, sizes[r]),
            ]

        for r, both in enumerate(testing.run(size, body)):
            for got in both:
                np.testing.assert_array_equal(got, np.concatenate([blocks[s][r] for s in range(size)]))


def test_even_lists_that_contradict_each_other():
    def body():
        expected = [2, 3] if stretto.rank() == 0 else None
        with pytest.raises(stretto.UserError, match="expects \\[2, 3\\]"):
            stretto.all_to_all(np.ones((4, 2), np.float32), expected, [2, 2])
        return stretto.all_reduce(np.ones(1, np.float32))

    for got in testing.run(2, body):
        assert got == 2
