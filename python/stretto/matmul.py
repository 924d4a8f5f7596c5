"""Matrix products that overlap with collectives; see ops.py for what all operators have in
common."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from . import _core, _route
from ._arrays import adopt
from ._calls import (
    axis,
    computed_dtype,
    factor_of,
    finish,
    make_result,
    result_along,
    same_kind,
    scaled,
)
from ._world import current
from .collectives import all_gather
from .errors import UserError


class _Product(NamedTuple):
    """a [.., K] times b [K, N], of a rank of `group`."""

    group: Any
    kind: Any
    dtype: str
    a: Any
    bt: Any  # [N, K], dense

    @property
    def columns(self) -> int:
        return self.bt.shape[0]

    def launch(self, program: str, rows: int, a, result: str, target) -> None:
        """`program` of _core over `rows` of all ranks, whose output is called `result`."""
        size, (n, k) = self.group.size, self.bt.shape
        make = getattr(_core, program)
        self.group.launch(
            self.kind,
            (program, size, self.dtype, rows, n, k),
            lambda on_gpu: make(size, self.dtype, rows, n, k, on_gpu),
            ("a", "b", result),
            (a, self.bt, target),
            (rows,),
        )


def _product(op: str, a, b) -> _Product:
    kind, a = adopt(a)
    (b,) = same_kind(op, kind, b)
    dtype = computed_dtype(op, kind, a, b)
    if a.ndim < 2 or b.ndim != 2 or a.shape[-1] != b.shape[0]:
        raise UserError(
            f"{op}: shapes {tuple(a.shape)} and {tuple(b.shape)}; need [.., K] and [K, N]"
        )
    return _Product(current(), kind, dtype, a, kind.dense(kind.transpose(b)))


def _launch_along(op: str, program: str, names: tuple, p: _Product, dim: int, shape, out):
    """A product whose ranks gather or scatter along `dim`, with a result of that shape. `names`:
    of the output, and which of a and the result has the rows of all ranks."""
    kind = p.kind
    made = result_along(op, kind, out, shape, dim, p.a)
    first = kind.dense(kind.move(p.a, dim, 0))
    result, whole = names
    rows = math.prod((first if whole == "a" else made.target).shape[:-1])
    p.launch(program, rows, first, result, made.target)
    return made.finish()


def all_gather_matmul(a_shard, b, *, gather_dim: int = 0, return_a: bool = False, out=None):
    """all_gather(a_shard, dim=gather_dim) @ b, where each tile of the product starts as soon as its
    rows are there.

    `a_shard`: [.., K], this rank's part. `b`: [K, N], each rank's own; the transpose of a dense [N,
    K], as linear layers keep their weights, costs no copy. Result: [.., N], with P times the size
    along `gather_dim`, which must not be the last. `return_a`: returns (gathered a, result), at the
    price of an all_gather of its own. As torch.ops.symm_mem.fused_all_gather_matmul; float32
    accumulation, rounded once.
    """
    if out is None and _route.wants(a_shard, b):
        result = _route.layer.all_gather_matmul(a_shard, b, gather_dim)
        return (_route.layer.all_gather(a_shard, gather_dim), result) if return_a else result
    result = current().call(_all_gather_matmul, gather_dim, out, a_shard, b)
    return (all_gather(a_shard, dim=gather_dim), result) if return_a else result


def _all_gather_matmul(a, b, gather_dim, out):
    op = "all_gather_matmul"
    p = _product(op, a, b)
    dim = axis(op, "gather_dim", gather_dim, p.a.ndim)
    if dim == p.a.ndim - 1:
        raise UserError(f"{op}: gather_dim {gather_dim} is the one that is summed over")
    shape = list(p.a.shape[:-1]) + [p.columns]
    shape[dim] *= p.group.size
    return _launch_along(op, "ag_gemm", ("c", "result"), p, dim, shape, out)


def matmul_reduce_scatter(a, b, *, scatter_dim: int = 0, reduce_op: str = "sum", out=None):
    """reduce_scatter(a @ b, dim=scatter_dim), where each block of rows leaves for its owner while
    later ones are still multiplied.

    `a`: [.., K] and `b`: [K, N], each rank's own. Result: [.., N] with 1/P of the size along
    `scatter_dim`, which must not be the last. As torch.ops.symm_mem.fused_matmul_reduce_scatter:
    reduce_op "sum" or "avg". Partial sums are rounded to the element type once, summed in float32
    in rank order.
    """
    if out is None and _route.wants(a, b):
        return _route.layer.matmul_reduce_scatter(a, b, scatter_dim, reduce_op)
    group = current()
    if reduce_op == "sum":
        return group.call(_matmul_reduce_scatter, scatter_dim, out, a, b)
    factor = factor_of("matmul_reduce_scatter", reduce_op, group.size)
    return scaled(group.call(_matmul_reduce_scatter, scatter_dim, out, a, b), factor)


def _matmul_reduce_scatter(a, b, scatter_dim, out):
    op = "matmul_reduce_scatter"
    p = _product(op, a, b)
    dim, size = axis(op, "scatter_dim", scatter_dim, p.a.ndim), p.group.size
    if dim == p.a.ndim - 1:
        raise UserError(f"{op}: scatter_dim {scatter_dim}: only dimensions of a but the last")
    if p.a.shape[dim] % size:
        raise UserError(
            f"{op}: {p.a.shape[dim]} along scatter_dim {dim} cannot be split over {size} ranks"
        )
    shape = list(p.a.shape[:-1]) + [p.columns]
    shape[dim] //= size
    return _launch_along(op, "gemm_rs", ("out", "a"), p, dim, shape, out)


def matmul_all_reduce(a, b, *, out=None):
    """all_reduce(a @ b): `a` [.., K] and `b` [K, N], each rank's own, -> [.., N] on every rank, the
    same bits on all."""
    if out is None and _route.wants(a, b):
        return _route.layer.matmul_all_reduce(a, b, False)
    return current().call(_matmul_all_reduce, 0, out, a, b)


def _matmul_all_reduce(a, b, _, out):
    op = "matmul_all_reduce"
    p = _product(op, a, b)
    kind, a = p.kind, p.kind.dense(p.a)
    result, written = make_result(op, kind, out, tuple(a.shape[:-1]) + (p.columns,), a)
    p.launch("gemm_ar", math.prod(a.shape[:-1]), a, "out", written)
    return finish(kind, result, written)
