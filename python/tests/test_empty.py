"""Calls without rows: a rank of a batch that is none, a step without tokens, routing that is empty. Where
nothing is to be computed nothing is, and ranks that disagree about it are told."""

import threading

import numpy as np
import pytest

import stretto
from stretto import testing


def of(*shape):
    return np.zeros(shape, np.float32)


def ints(*shape):
    return np.zeros(shape, np.int32)


def _first_layer():
    made, tiles = stretto.all_gather_grouped_matmul(of(0, 4), of(3, 4, 8), ints(0, 2), up=of(3, 4, 8))
    return made, of(3, 8, 5), tiles


COLLECTIVE = {
    "all_reduce": (lambda: stretto.all_reduce(of(0, 4)), (0, 4)),
    "average": (lambda: stretto.all_reduce(of(3, 0), reduce_op="avg"), (3, 0)),
    "all_gather": (lambda: stretto.all_gather(of(0, 4)), (0, 4)),
    "all_gather of columns": (lambda: stretto.all_gather(of(3, 0)), (6, 0)),
    "reduce_scatter": (lambda: stretto.reduce_scatter(of(0, 4)), (0, 4)),
    "broadcast": (lambda: stretto.broadcast(of(0, 4), 1), (0, 4)),
    "all_to_all": (lambda: stretto.all_to_all(of(0, 4)), (0, 4)),
    "all_gather_matmul": (lambda: stretto.all_gather_matmul(of(0, 4), of(4, 5)), (0, 5)),
    "last dim": (lambda: stretto.all_gather_matmul(of(0, 4), of(8, 5), gather_dim=-1), (0, 5)),
    "dim 1": (lambda: stretto.all_gather_matmul(of(2, 0, 4), of(4, 5), gather_dim=1), (2, 0, 5)),
    "matmul_reduce_scatter": (lambda: stretto.matmul_reduce_scatter(of(0, 4), of(4, 5)), (0, 5)),
    "matmul_all_reduce": (lambda: stretto.matmul_all_reduce(of(0, 4), of(4, 5)), (0, 5)),
    "matmul_all_gather": (lambda: stretto.matmul_all_gather(of(0, 4), of(4, 5)), (0, 10)),
    "rms_norm": (lambda: stretto.all_reduce_add_rms_norm(of(0, 4), of(0, 4), of(4))[1], (0, 4)),
    "scattered norm": (
        lambda: stretto.reduce_scatter_add_rms_norm(of(0, 4), of(0, 4), of(4))[0],
        (0, 4),
    ),
    "norm of columns": (lambda: stretto.rms_norm_columns(of(0, 4), of(4)), (0, 4)),
    "matmul_all_to_all": (lambda: stretto.matmul_all_to_all(of(0, 4), of(4, 6)), (0, 3)),
    "all_to_all_matmul": (lambda: stretto.all_to_all_matmul(of(0, 2), of(4, 6)), (0, 6)),
    "moe_combine": (lambda: stretto.moe_combine(of(0, 4), ints(0, 2), of(0, 2)), (0, 4)),
    "ep_dispatch": (lambda: stretto.ep_dispatch(of(0, 4), ints(0, 2), of(0, 2), 4).x, (0, 4)),
    "ep_moe_layer": (
        lambda: stretto.ep_moe_layer(
            of(0, 4), of(2, 4, 8), of(2, 4, 8), of(2, 8, 4), ints(0, 2), of(0, 2), 4
        ),
        (0, 4),
    ),
    "its two layers": (
        lambda: stretto.grouped_matmul_reduce_scatter(*_first_layer(), of(0, 2)),
        (0, 5),
    ),
    "moe_layer": (
        lambda: stretto.moe_layer(
            of(0, 4), of(4, 4, 8), of(4, 4, 8), of(4, 8, 4), ints(0, 2), of(0, 2)
        ),
        (0, 4),
    ),
}
STARTS = np.array([0, 0, 0], np.int32)
PAGES = of(3, 2, 4, 8)
OWN = {
    "packed_attention": (
        lambda: stretto.packed_attention(of(0, 4, 8), of(0, 2, 8), of(0, 2, 8), STARTS),
        (0, 4, 8),
    ),
    "its logarithms": (
        lambda: stretto.packed_attention(
            of(0, 4, 8), of(0, 2, 8), of(0, 2, 8), STARTS, return_lse=True
        )[1],
        (4, 0),
    ),
    "paged_attention": (
        lambda: stretto.paged_attention(of(0, 4, 8), PAGES, PAGES, STARTS, ints(2, 1), ints(2)),
        (0, 4, 8),
    ),
    "its weights": (
        lambda: stretto.paged_attention(
            of(0, 4, 8), PAGES, PAGES, STARTS, ints(2, 1), ints(2), return_lse=True
        )[1],
        (4, 0),
    ),
    "paged_decode": (
        lambda: stretto.paged_decode(of(0, 4, 8), PAGES, PAGES, ints(0, 1), ints(0)),
        (0, 4, 8),
    ),
    "scaled_dot_product_attention": (
        lambda: stretto.scaled_dot_product_attention(of(2, 0, 8), of(2, 3, 8), of(2, 3, 8)),
        (2, 0, 8),
    ),
    "moe_route": (lambda: stretto.moe_route(of(0, 4), of(6, 4), 2)[1], (0, 2)),
    "its tables": (lambda: stretto.moe_route(of(0, 4), of(6, 4), 2, tables=True).slots, (0, 2)),
    "grouped_matmul": (lambda: stretto.grouped_matmul(of(0, 4), of(2, 4, 5), ints(3)), (0, 5)),
    "gathered": (
        lambda: stretto.grouped_matmul(of(0, 4), of(2, 4, 5), ints(3), tokens=ints(0)),
        (0, 5),
    ),
}


@pytest.mark.parametrize("name", [*COLLECTIVE, *OWN])
def test_no_rows_give_no_rows(name):
    call, shape = {**COLLECTIVE, **OWN}[name]
    for got in testing.run(2, call):
        assert got.shape == shape and got.dtype in (np.float32, np.int32)


def test_tables_of_no_tokens_say_so():
    def body():
        routing = stretto.moe_route(of(0, 4), of(6, 4), 2, tables=True)
        sent = stretto.ep_dispatch(of(0, 4), ints(0, 2), of(0, 2), 4)
        summed = stretto.ep_combine(stretto.grouped_matmul(sent.x, of(2, 4, 5), sent.offsets), sent)
        return routing.offsets, sent.offsets, summed

    for offsets, own, summed in testing.run(2, body):
        np.testing.assert_array_equal(offsets, np.zeros(7))
        np.testing.assert_array_equal(own, np.zeros(4))
        assert summed.shape == (0, 5)


@pytest.mark.parametrize("name", COLLECTIVE)
def test_a_rank_without_rows_beside_one_with_some(name):
    """All are told, and the next call works."""
    errors, together = [], threading.Barrier(2)
    call, _ = COLLECTIVE[name]

    def body():
        together.wait()
        with pytest.raises(stretto.UserError) as caught:
            call() if stretto.rank() == 0 else stretto.all_reduce(of(2, 4) + 1)
        errors.append(str(caught.value))
        return stretto.all_reduce(of(2, 4) + 1)

    for got in testing.run(2, body):
        np.testing.assert_array_equal(got, of(2, 4) + 2)
    assert errors[0] == errors[1] and "differ between ranks" in errors[0]


def test_a_table_for_no_rows_is_empty(rng):
    with pytest.raises(stretto.UserError, match="tokens is"):
        testing.run(
            1, lambda: stretto.grouped_matmul(of(0, 4), of(2, 4, 5), ints(3), tokens=ints(2))
        )


# Of a [m, K] and b [K, N] on P ranks: (call, sizes of the result).
PRODUCTS = {
    "all_gather_matmul": (stretto.all_gather_matmul, lambda p, m, n: (p * m, n)),
    "of columns": (
        lambda a, b, **options: stretto.all_gather_matmul(
            a, stack(b, stretto.world_size(options.get("group"))), gather_dim=-1, **options
        ),
        lambda p, m, n: (m, n),
    ),
    "several": (
        lambda a, b, out=None: stretto.all_gather_matmul(a, [b, b], out=None if out is None else [None, out])[1],
        lambda p, m, n: (p * m, n),
    ),
    "matmul_reduce_scatter": (stretto.matmul_reduce_scatter, lambda p, m, n: (m // p, n)),
    "to columns": (
        lambda a, b, **options: stretto.matmul_reduce_scatter(a, b, scatter_dim=-1, **options),
        lambda p, m, n: (m, n // p),
    ),
    "matmul_all_reduce": (stretto.matmul_all_reduce, lambda p, m, n: (m, n)),
    "matmul_all_gather": (stretto.matmul_all_gather, lambda p, m, n: (m, p * n)),
}


def stack(b, times):
    return b.tile((times, 1)) if hasattr(b, "requires_grad") else np.tile(b, (times, 1))


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("sequence", [None, True])
def test_products_over_nothing_are_zeros_and_without_columns_empty(name, size, sequence):
    """As PyTorch has them, on its tensors with gradients."""
    torch = pytest.importorskip("torch")
    call, shape_of = PRODUCTS[name]

    def body():
        for m, k, n in ((6, 0, 12), (6, 4, 0), (6, 0, 0), (0, 0, 12), (0, 0, 0)):
            want = np.zeros(shape_of(size, m, n), np.float32)
            a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
            for out in (None, np.full_like(want, np.nan)):
                np.testing.assert_array_equal(call(a, b, **({} if out is None else {"out": out})), want)
            assert out is None or (out == 0).all()
            x, w = (torch.from_numpy(y).requires_grad_() for y in (a, b))
            made = call(x, w)
            assert tuple(made.shape) == want.shape and (made == 0).all()
            made.sum().backward()
            assert x.grad.shape == a.shape and w.grad.shape == b.shape
            assert (x.grad == 0).all() and (w.grad == 0).all()
        assert (stretto.all_reduce(np.ones(3, np.float32)) == size).all()

    testing.run(size, body, sequence=sequence, timeout=60)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_rows_that_are_gathered_for_a_product_without_columns(size):
    def body():
        r = stretto.rank()
        a = np.full((2, 3), r + 1, np.float32)
        for dim, b in ((0, np.ones((3, 0), np.float32)), (-1, np.ones((3 * size, 0), np.float32))):
            gathered, made = stretto.all_gather_matmul(a, b, gather_dim=dim, return_a=True)
            np.testing.assert_array_equal(gathered, stretto.all_gather(a, dim=dim))
            assert made.shape == (len(gathered), 0)
            weights = [b, np.ones((len(b), 2), np.float32)]
            for made, weight in zip(stretto.all_gather_matmul(a, weights, gather_dim=dim), weights):
                np.testing.assert_array_equal(made, gathered @ weight)

    testing.run(size, body, timeout=60)
