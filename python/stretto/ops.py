"""The operators: collectives, and matrix products that overlap with them. All are collective over
the ranks of `stretto.init()`: every rank calls them in the same order, with the same shapes and
element types unless an operator says otherwise.

Arrays are NumPy arrays, PyTorch CPU tensors or anything with DLPack; results are of the kind of the
first argument. Strided arrays are copied. Element types: float32, bfloat16, float16; all_gather,
all_to_all and broadcast move any. Arrays from `stretto.symm_mem.empty` are used where they are, on
all ranks or on none; other arrays are copied to where peers can read them.

`out`: an array to write the result to, of its shape and element type; it is returned.

Errors: UserError for shapes, types and arguments that do not fit, and where ranks disagree; Fault
where a rank stalls or died.
"""

from __future__ import annotations

import math
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from . import _core, _route
from ._arrays import COMPUTED, adopt
from ._world import current
from .errors import UserError


def _computed(op: str, kind, *arrays) -> str:
    dtype = kind.dtype(arrays[0])
    if dtype not in COMPUTED:
        raise UserError(f"{op}: element type {dtype}; need one of {', '.join(COMPUTED)}")
    for x in arrays[1:]:
        if kind.dtype(x) != dtype:
            raise UserError(f"{op}: element types {dtype} and {kind.dtype(x)} differ")
    return dtype


def _same_kind(op: str, kind, *arrays) -> List[Any]:
    adopted = []
    for x in arrays:
        other, y = adopt(x)
        if other is not kind:
            raise UserError(
                f"{op}: arrays of different kinds: {type(arrays[0]).__name__}, {type(x).__name__}"
            )
        adopted.append(y)
    return adopted


def _axis(op: str, name: str, dim: int, num_dims: int) -> int:
    if not -num_dims <= dim < num_dims:
        raise UserError(f"{op}: {name} {dim} of an array of {num_dims} dimensions")
    return dim % num_dims


def _result(op: str, kind, out, shape: Sequence[int], like) -> Tuple[Any, Any]:
    """(what the caller gets, what the launch writes, dense)."""
    if out is None:
        made = kind.empty(shape, like)
        return made, made
    other, out = adopt(out)
    if other is not kind or tuple(out.shape) != tuple(shape) or kind.dtype(out) != kind.dtype(like):
        raise UserError(
            f"{op}: out is {type(out).__name__} {other.dtype(out)} {tuple(out.shape)}, the result is "
            f"{kind.dtype(like)} {tuple(shape)}"
        )
    if not kind.writable(out):
        raise UserError(f"{op}: out is read-only")
    return out, out if kind.is_dense(out) else kind.empty(shape, like)


def _finish(kind, out, written):
    if out is not written:
        kind.assign(out, written)
    return out


def _matrix(size: int) -> Tuple[int, int]:
    """(rows, columns) of a flat array of that size, where the shape does not matter."""
    for columns in (1024, 512, 256, 128, 64):
        if size % columns == 0:
            return size // columns, columns
    return (1, size)


def _moved_as(dtype: str, shape: Sequence[int], itemsize: int) -> Tuple[str, int]:
    """Data that is only moved, as rows of a type that programs know: its name, and elements of it
    per element."""
    if dtype in COMPUTED or dtype in ("int32", "int64", "uint8"):
        return dtype, 1
    return ("int32", itemsize // 4) if itemsize % 4 == 0 else ("uint8", itemsize)


def _itemsize(kind, x) -> int:
    return x.dtype.itemsize if hasattr(x.dtype, "itemsize") else x.element_size()


def all_gather(x, *, dim: int = 0, out=None):
    """The ranks' arrays one after the other along `dim`: [.., d, ..] -> [.., P * d, ..], of any
    element type."""
    if out is None and _route.wants(x):
        return _route.layer.all_gather(x, dim)
    return current().call(_all_gather, dim, out, x)


def _all_gather(x, dim, out):
    kind, x = adopt(x)
    group = current()
    if x.ndim == 0:
        raise UserError("all_gather: need at least one dimension")
    dim = _axis("all_gather", "dim", dim, x.ndim)
    first = kind.dense(kind.move(x, dim, 0))
    shape = (group.size * first.shape[0],) + tuple(first.shape[1:])
    moved_shape = list(x.shape)
    moved_shape[dim] *= group.size
    result, written = _result("all_gather", kind, out, moved_shape, x)
    target = written if dim == 0 else kind.empty(shape, x)
    dtype, per = _moved_as(kind.dtype(x), first.shape, _itemsize(kind, x))
    rows, n = _matrix(math.prod(first.shape) * per)
    size, rows = group.size, rows * group.size
    group.launch(
        ("all_gather", size, dtype, rows, n),
        lambda: _core.all_gather(size, dtype, rows, n),
        ("in", "out"),
        (kind.address(first), kind.address(target)),
        (rows,),
    )
    if dim != 0:
        kind.assign(written, kind.move(target, 0, dim))
    return _finish(kind, result, written)


def _factor(op: str, reduce_op: str, size: int) -> float:
    if reduce_op not in ("sum", "avg"):
        raise UserError(f"{op}: reduce_op '{reduce_op}': one of sum, avg")
    return 1.0 if reduce_op == "sum" else 1.0 / size


def _scaled(result, factor: float):
    if factor != 1.0:
        kind, x = adopt(result)
        kind.scale(x, factor)
    return result


def reduce_scatter(x, *, dim: int = 0, reduce_op: str = "sum", out=None):
    """The sum (or average: "avg") over the ranks, of which each rank gets its part along `dim`:
    [.., P * d, ..] -> [.., d, ..]. Summed in float32 in rank order and rounded once."""
    if out is None and _route.wants(x):
        return _route.layer.reduce_scatter(x, dim, reduce_op)
    group = current()
    if reduce_op == "sum":
        return group.call(_reduce_scatter, dim, out, x)
    factor = _factor("reduce_scatter", reduce_op, group.size)
    return _scaled(group.call(_reduce_scatter, dim, out, x), factor)


def _reduce_scatter(x, dim, out):
    kind, x = adopt(x)
    group = current()
    dtype = _computed("reduce_scatter", kind, x)
    if x.ndim == 0:
        raise UserError("reduce_scatter: need at least one dimension")
    dim = _axis("reduce_scatter", "dim", dim, x.ndim)
    if x.shape[dim] % group.size:
        raise UserError(
            f"reduce_scatter: {x.shape[dim]} along dim {dim} cannot be split over {group.size} ranks"
        )
    first = kind.dense(kind.move(x, dim, 0))
    shape = (first.shape[0] // group.size,) + tuple(first.shape[1:])
    moved_shape = list(x.shape)
    moved_shape[dim] //= group.size
    result, written = _result("reduce_scatter", kind, out, moved_shape, x)
    target = written if dim == 0 else kind.empty(shape, x)
    rows, n = _matrix(math.prod(shape))
    size, rows = group.size, rows * group.size
    group.launch(
        ("reduce_scatter", size, dtype, rows, n),
        lambda: _core.reduce_scatter(size, dtype, rows, n),
        ("in", "out"),
        (kind.address(first), kind.address(target)),
        (rows,),
    )
    if dim != 0:
        kind.assign(written, kind.move(target, 0, dim))
    return _finish(kind, result, written)


def all_reduce(x, *, reduce_op: str = "sum", out=None):
    """The sum (or average: "avg") over the ranks, on every rank, the same bits on all; summed in
    float32 in rank order. `out` may be `x`."""
    if out is None and _route.wants(x):
        return _route.layer.all_reduce(x, reduce_op)
    group = current()
    if reduce_op == "sum":
        return group.call(_all_reduce, 0, out, x)
    factor = _factor("all_reduce", reduce_op, group.size)
    return _scaled(group.call(_all_reduce, 0, out, x), factor)


def _apart(kind, group, x, written):
    """Where the launch writes a result of x's shape: `written`, unless peers read it there."""
    address = kind.address(x)
    if kind.address(written) != address or not group.is_symmetric(address):
        return written
    return kind.empty(x.shape, x)


def _all_reduce(x, _, out):
    kind, x = adopt(x)
    group = current()
    dtype = _computed("all_reduce", kind, x)
    dense = kind.dense(x)
    result, written = _result("all_reduce", kind, out, x.shape, x)
    target = _apart(kind, group, dense, written)
    rows, n = _matrix(math.prod(x.shape))
    size = group.size
    group.launch(
        ("all_reduce", size, dtype, rows, n),
        lambda: _core.all_reduce(size, dtype, rows, n),
        ("in", "out"),
        (kind.address(dense), kind.address(target)),
        (rows,),
    )
    if target is not written:
        kind.assign(written, target)
    return _finish(kind, result, written)


def broadcast(x, root: int = 0, *, out=None):
    """The array of rank `root` on every rank, of any element type. On other ranks `x` gives shape
    and element type only."""
    return current().call(_broadcast, root, out, x)


def _broadcast(x, root, out):
    kind, x = adopt(x)
    group = current()
    if not 0 <= root < group.size:
        raise UserError(f"broadcast: root {root} of {group.size} ranks")
    dense = kind.dense(x)
    result, written = _result("broadcast", kind, out, x.shape, x)
    target = _apart(kind, group, dense, written)
    dtype, per = _moved_as(kind.dtype(x), x.shape, _itemsize(kind, x))
    rows, n = _matrix(math.prod(x.shape) * per)
    size = group.size
    group.launch(
        ("broadcast", size, dtype, rows, n, root),
        lambda: _core.broadcast(size, dtype, rows, n, root),
        ("in", "out"),
        (kind.address(dense), kind.address(target)),
        (rows,),
    )
    if target is not written:
        kind.assign(written, target)
    return _finish(kind, result, written)


def all_to_all(
    x,
    output_split_sizes: Optional[Sequence[int]] = None,
    input_split_sizes: Optional[Sequence[int]] = None,
    *,
    out=None,
):
    """Row blocks to every rank, and from every rank: block d of `x` [m, ...] goes to rank d, and
    the result is the blocks that came, by rank. Any element type.

    `input_split_sizes`: rows of each block, P numbers that add up to m; default: equal blocks.
    `output_split_sizes`: the rows that come from each rank; checked where given. Uneven blocks cost
    one small all-gather more, of the sizes.
    """
    kind, x = adopt(x)
    group = current()
    size = group.size
    if x.ndim == 0:
        raise UserError("all_to_all: need at least one dimension")
    even = input_split_sizes is None and output_split_sizes is None
    if input_split_sizes is None:
        if x.shape[0] % size:
            raise UserError(
                f"all_to_all: {x.shape[0]} rows cannot be split evenly over {size} ranks"
            )
        input_split_sizes = [x.shape[0] // size] * size
    sent = [int(rows) for rows in input_split_sizes]
    if len(sent) != size or min(sent) < 0 or sum(sent) != x.shape[0]:
        raise UserError(
            f"all_to_all: input_split_sizes {sent} of {x.shape[0]} rows and {size} ranks"
        )
    if even:
        received, most = sent, sent[0]
    else:
        table = all_gather(np.array([sent], np.int32))  # [from, to]
        received, most = [int(rows) for rows in table[:, group.rank]], int(table.max())
    if output_split_sizes is not None and [int(r) for r in output_split_sizes] != received:
        raise UserError(
            f"all_to_all: rank {group.rank} expects {list(output_split_sizes)} rows, the ranks send {received}"
        )
    width = math.prod(x.shape[1:])
    dtype, per = _moved_as(kind.dtype(x), x.shape, _itemsize(kind, x))
    n = width * per
    shape = (sum(received),) + tuple(x.shape[1:])
    result, written = _result("all_to_all", kind, out, shape, x)
    if most == 0 or n == 0:
        return _finish(kind, result, written)
    counts = np.array(received, np.int32)
    if even and kind.is_dense(x):
        blocks, landed = x, written
    else:
        blocks = kind.empty((size, most) + tuple(x.shape[1:]), x)
        landed = kind.empty((size, most) + tuple(x.shape[1:]), x)
        begin = 0
        for to, rows in enumerate(sent):
            kind.assign(blocks[to, :rows], x[begin : begin + rows])
            begin += rows
    group.launch(
        ("all_to_all", size, dtype, most, n),
        lambda: _core.all_to_all(size, dtype, most, n),
        ("in", "recv_counts", "out"),
        (kind.address(blocks), counts.ctypes.data, kind.address(landed)),
        (),
    )
    if landed is not written:
        landed = landed.reshape((size, most) + tuple(x.shape[1:]))
        begin = 0
        for source, rows in enumerate(received):
            kind.assign(written[begin : begin + rows], landed[source, :rows])
            begin += rows
    return _finish(kind, result, written)


def _factors(op: str, a, b):
    """a [.., K] and b [K, N] as (kind, dtype, a, b [N, K] dense)."""
    kind, a = adopt(a)
    (b,) = _same_kind(op, kind, b)
    dtype = _computed(op, kind, a, b)
    if a.ndim < 2 or b.ndim != 2 or a.shape[-1] != b.shape[0]:
        raise UserError(
            f"{op}: shapes {tuple(a.shape)} and {tuple(b.shape)}; need [.., K] and [K, N]"
        )
    return kind, dtype, a, kind.dense(kind.transpose(b))


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
    kind, dtype, a, bt = _factors(op, a, b)
    group = current()
    dim = _axis(op, "gather_dim", gather_dim, a.ndim)
    if dim == a.ndim - 1:
        raise UserError(f"{op}: gather_dim {gather_dim} is the one that is summed over")
    first = kind.dense(kind.move(a, dim, 0))
    n, k, size = bt.shape[0], bt.shape[1], group.size
    rows = math.prod(first.shape[:-1]) * size
    moved = (size * first.shape[0],) + tuple(first.shape[1:-1]) + (n,)
    shape = list(a.shape[:-1]) + [n]
    shape[dim] *= size
    result, written = _result(op, kind, out, shape, a)
    target = written if dim == 0 else kind.empty(moved, a)
    group.launch(
        ("ag_gemm", size, dtype, rows, n, k),
        lambda: _core.ag_gemm(size, dtype, rows, n, k),
        ("a", "b", "c"),
        (kind.address(first), kind.address(bt), kind.address(target)),
        (rows,),
    )
    if dim != 0:
        kind.assign(written, kind.move(target, 0, dim))
    return _finish(kind, result, written)


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
    factor = _factor("matmul_reduce_scatter", reduce_op, group.size)
    return _scaled(group.call(_matmul_reduce_scatter, scatter_dim, out, a, b), factor)


def _matmul_reduce_scatter(a, b, scatter_dim, out):
    op = "matmul_reduce_scatter"
    kind, dtype, a, bt = _factors(op, a, b)
    group = current()
    dim = _axis(op, "scatter_dim", scatter_dim, a.ndim)
    if dim == a.ndim - 1:
        raise UserError(f"{op}: scatter_dim {scatter_dim}: only dimensions of a but the last")
    if a.shape[dim] % group.size:
        raise UserError(
            f"{op}: {a.shape[dim]} along scatter_dim {dim} cannot be split over {group.size} ranks"
        )
    first = kind.dense(kind.move(a, dim, 0))
    n, k, size = bt.shape[0], bt.shape[1], group.size
    rows = math.prod(first.shape[:-1])
    moved = (first.shape[0] // size,) + tuple(first.shape[1:-1]) + (n,)
    shape = list(a.shape[:-1]) + [n]
    shape[dim] //= size
    result, written = _result(op, kind, out, shape, a)
    target = written if dim == 0 else kind.empty(moved, a)
    group.launch(
        ("gemm_rs", size, dtype, rows, n, k),
        lambda: _core.gemm_rs(size, dtype, rows, n, k),
        ("a", "b", "out"),
        (kind.address(first), kind.address(bt), kind.address(target)),
        (rows,),
    )
    if dim != 0:
        kind.assign(written, kind.move(target, 0, dim))
    return _finish(kind, result, written)


def matmul_all_reduce(a, b, *, out=None):
    """all_reduce(a @ b): `a` [.., K] and `b` [K, N], each rank's own, -> [.., N] on every rank, the
    same bits on all."""
    if out is None and _route.wants(a, b):
        return _route.layer.matmul_all_reduce(a, b, False)
    return current().call(_matmul_all_reduce, 0, out, a, b)


def _matmul_all_reduce(a, b, _, out):
    op = "matmul_all_reduce"
    kind, dtype, a, bt = _factors(op, a, b)
    group = current()
    a = kind.dense(a)
    n, k, size = bt.shape[0], bt.shape[1], group.size
    rows = math.prod(a.shape[:-1])
    result, written = _result(op, kind, out, tuple(a.shape[:-1]) + (n,), a)
    group.launch(
        ("gemm_ar", size, dtype, rows, n, k),
        lambda: _core.gemm_ar(size, dtype, rows, n, k),
        ("a", "b", "out"),
        (kind.address(a), kind.address(bt), kind.address(written)),
        (rows,),
    )
    return _finish(kind, result, written)


def all_reduce_add_rms_norm(x, residual, weight, *, eps: float = 1e-5, out=None):
    """(rms_norm(s) * weight, s) with s = all_reduce(x) + residual, the same bits on every rank.

    `x`, `residual`: [.., H]; `weight`: [H], of its own element type. `out`: a pair of arrays.
    """
    if out is None and _route.wants(x, residual, weight):
        return _route.layer.all_reduce_add_rms_norm(x, residual, weight, eps)
    op = "all_reduce_add_rms_norm"
    kind, x = adopt(x)
    residual, weight = _same_kind(op, kind, residual, weight)
    group = current()
    dtype = _computed(op, kind, x, residual)
    weight_dtype = _computed(op, kind, weight)
    hidden = x.shape[-1] if x.ndim else 0
    if tuple(residual.shape) != tuple(x.shape) or tuple(weight.shape) != (hidden,) or hidden == 0:
        raise UserError(
            f"{op}: shapes {tuple(x.shape)}, {tuple(residual.shape)}, {tuple(weight.shape)}; need [.., H], [.., H], [H]"
        )
    normed, written = _result(op, kind, out[0] if out else None, x.shape, x)
    total, summed = _result(op, kind, out[1] if out else None, x.shape, x)
    x, residual, weight = kind.dense(x), kind.dense(residual), kind.dense(weight)
    size, rows = group.size, math.prod(x.shape[:-1])
    group.launch(
        (op, size, dtype, weight_dtype, rows, hidden, eps),
        lambda: _core.all_reduce_add_rms_norm(size, dtype, weight_dtype, rows, hidden, eps),
        ("x", "weight", "residual", "sum", "out"),
        (
            kind.address(x),
            kind.address(weight),
            kind.address(residual),
            kind.address(summed),
            kind.address(written),
        ),
        (rows,),
    )
    return _finish(kind, normed, written), _finish(kind, total, summed)


def scaled_dot_product_attention(
    query,
    key,
    value,
    *,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
    out=None,
):
    """softmax(query @ key^T * scale) @ value of this rank's heads, as torch.nn.functional's; not
    collective.

    `query`: [.., Hq, L, E], `key`, `value`: [.., Hkv, S, E]; Hq != Hkv (a multiple of it) needs
    `enable_gqa`. `is_causal`: row i sees columns 0 to i, L <= S. Otherwise L <= S as well. scale:
    default 1 / sqrt(E). float32 softmax.
    """
    if out is None and _route.wants(query, key, value):
        return _route.layer.scaled_dot_product_attention(
            query, key, value, is_causal, scale, enable_gqa
        )
    op = "scaled_dot_product_attention"
    kind, q = adopt(query)
    k, v = _same_kind(op, kind, key, value)
    dtype = _computed(op, kind, q, k, v)
    if (
        q.ndim < 3
        or k.ndim != q.ndim
        or tuple(k.shape) != tuple(v.shape)
        or q.shape[-1] != k.shape[-1]
        or (tuple(q.shape[:-3]) != tuple(k.shape[:-3]))
    ):
        raise UserError(
            f"{op}: shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}; need [.., H, L, E], [.., H, S, E] twice"
        )
    heads, rows, width = q.shape[-3:]
    kv_heads, tokens = k.shape[-3:-1]
    if heads != kv_heads and (not enable_gqa or heads % kv_heads):
        raise UserError(f"{op}: {heads} and {kv_heads} heads (enable_gqa={enable_gqa})")
    if rows > tokens:
        raise UserError(f"{op}: {rows} rows over {tokens} keys; need L <= S")
    group = current().alone()
    result, written = _result(op, kind, out, q.shape, q)
    scale = 1.0 / math.sqrt(width) if scale is None else float(scale)
    past = 0 if is_causal else tokens - rows
    k, v = kind.dense(k), kind.dense(v)
    batches = math.prod(q.shape[:-3])
    q = kind.dense(kind.move(q, -3, -2)).reshape((batches, rows, heads, width))
    k, v = k.reshape((batches,) + tuple(k.shape[-3:])), v.reshape((batches,) + tuple(v.shape[-3:]))
    made = kind.empty(q.shape, q)
    key_of = (op, dtype, rows, tokens, heads, kv_heads, width, is_causal, scale)
    for i in range(batches):
        group.launch(
            key_of,
            lambda: _core.attention(
                dtype, rows, tokens, heads, kv_heads, width, is_causal, scale, 0
            ),
            ("q", "k_cache", "v_cache", "out"),
            (kind.address(q[i]), kind.address(k[i]), kind.address(v[i]), kind.address(made[i])),
            (rows, past),
        )
    kind.assign(
        written, kind.move(made.reshape(tuple(result.shape[:-3]) + (rows, heads, width)), -2, -3)
    )
    return _finish(kind, result, written)
