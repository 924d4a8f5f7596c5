"""Collectives; see ops.py for what all operators have in common."""

from __future__ import annotations

import math
import operator
from typing import List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from . import _route
from ._adopt import adopt
from ._arrays import ALIGNMENT, ArrayT, NumpyKind, form_of, kind_of, may_overlap
from ._calls import (
    SUM,
    WIDE_COLUMNS,
    as_rows,
    axis,
    bound_of,
    by_reduction,
    call_with,
    columns_as,
    computed_dtype,
    described,
    finish,
    fits,
    make_result,
    moved_as,
    padded,
    reduced_dtype,
    reduction,
    result_along,
    unless_same,
    whole,
    with_options,
)
from ._payloads import Payload, payload_of, scaled_columns, scaled_rows
from ._world import GroupLike, counted, group_of, name_of
from .errors import UserError

_LEAST_GPU_ROW_BYTES = 512  # of a copy that a plan makes


@counted
def all_gather(
    x: ArrayT,
    *,
    dim: int = 0,
    sizes: Optional[Sequence[int]] = None,
    payload: Optional[str] = None,
    scale_block: Optional[int] = None,
    group: GroupLike = None,
    out: Optional[ArrayT] = None,
) -> ArrayT:
    """The ranks' arrays one after the other along `dim`: [.., d, ..] -> [.., P * d, ..], of any
    element type. `x` may be this rank's part of `out`. `sizes`: how long each rank's is along `dim`,
    where they differ, the same list on every rank; all travel as long as the longest, nobody
    exchanges sizes, and there is no gradient.

    `payload`: "int8" or "fp8" (e4m3); float32, float16 and bfloat16 travel as that, quantised while they
    are sent, with a float32 scale for each row of the last dimension of `x` with `dim` moved to the
    front (of one dimension: for all of `x`), or for each `scale_block` neighbours of a row. An element
    is off by no more than 1/254 (int8) or 1/28 (e4m3) of the largest magnitude that shares its scale,
    if that is 2^-100 or more, before it is rounded to the element type; all that share a scale with an
    infinity, with int8 also with a NaN, become NaN. The result has the same bits on every rank, what
    this rank sent among it. A rank alone copies. There is no gradient."""
    dim = whole("all_gather", "dim", dim)
    carried = payload_of("all_gather", payload, scale_block)
    if carried is not None:
        if sizes is not None:
            raise UserError("all_gather: sizes and payload together: pad to the longest")
        return group_of(group).call(with_options(_all_gather_payload, carried), dim, out, x)
    if sizes is not None:
        body = with_options(_all_gather_sizes, tuple(_sizes("all_gather", "sizes", sizes)))
        return group_of(group).call(body, dim, out, x)
    if out is None and _route.wants(x):
        return _route.layer.all_gather(x, dim, name_of(group))
    return group_of(group).call(_all_gather, dim, out, x)


def _all_gather(group, x, dim, out):
    op, x_name, dim_name = group.caller or ("all_gather", "x", "dim")
    kind, x = adopt(op, x_name, x)
    if x.ndim == 0:
        raise UserError(f"{op}: {x_name} needs at least one dimension")
    dim = axis(op, dim_name, dim, x.ndim)
    shape = list(x.shape)
    shape[dim] *= group.size
    is_first = _is_first(shape, dim)
    read = () if not is_first or _is_part(group, kind, out, x) else (x,)
    result, written = make_result(op, kind, out, shape, x, read)
    if out is not None and may_overlap(kind, result, x) and group.is_symmetric(kind.address(x)):
        x = kind.copy(x)  # peers look for it where theirs is
    every = written if is_first else group.kept.room(kind, "parts of all", (group.size, *x.shape), x)
    rows = as_rows(group, kind, kind.dense(x), moved=True)
    target = rows.target(group, kind, every, group.size)
    said = described(op, kind, {x_name: x}, f"{dim_name}={dim}")
    launch_rows("all_gather", group, kind, rows, group.size, rows.array, target, said)
    rows.finish(group, kind, every, target, group.size)
    if is_first:
        return finish(kind, result, written)
    for rank, part in enumerate(_parts(result, dim, group.size)):
        _assign_part(group, kind, part, every[rank])
    return result


def _is_first(shape: Sequence[int], dim: int) -> bool:
    """Whether parts along `dim` of a dense array are one after the other."""
    return math.prod(shape[:dim]) == 1


def _parts(x, dim: int, count: int):
    """Of equal size along `dim`."""
    size = x.shape[dim] // count
    return [x[(slice(None),) * dim + (slice(i * size, (i + 1) * size),)] for i in range(count)]


def _assign_part(group, kind, target, source) -> None:
    """Copies a part of an array. Of short rows on GPUs PyTorch's own copies take less time than plans'."""
    group.assign(kind, target, source, _LEAST_GPU_ROW_BYTES if kind.on_gpu else 0)


def _all_gather_payload(payload: Payload, group, x, dim, out):
    op = "all_gather"
    kind, x = adopt(op, "x", x)
    if x.ndim == 0:
        raise UserError(f"{op}: x needs at least one dimension")
    dim = axis(op, "dim", dim, x.ndim)
    shape = [*x.shape[:dim], group.size * x.shape[dim], *x.shape[dim + 1 :]]
    made = result_along(op, kind, out, shape, dim, x, (x,))
    rows = scaled_rows(op, kind, kind.dense(kind.move(x, dim, 0)), 1, payload)
    said = described(op, kind, {"x": x}, f"dim={dim}", payload.named())
    arrays = rows.array, made.target
    launch_rows(op, group, kind, rows, group.size, *arrays, said, **payload.fields)
    return made.finish()


def _all_gather_sizes(sizes, group, x, dim, out):
    op = "all_gather"
    kind, x = adopt(op, "x", x)
    if x.ndim == 0:
        raise UserError(f"{op}: x needs at least one dimension")
    dim = axis(op, "dim", dim, x.ndim)
    if len(sizes) != group.size or min(sizes) < 0 or sizes[group.rank] != x.shape[dim]:
        raise UserError(
            f"{op}: sizes {list(sizes)} of {group.size} ranks, and rank {group.rank} has "
            f"{x.shape[dim]} along dim {dim}"
        )
    size, most = group.size, max(sizes)
    moved = kind.move(x, dim, 0)
    rest = tuple(moved.shape[1:])
    if not fits(size * most * max(math.prod(rest), 1) * kind.itemsize(x)):
        raise UserError(f"{op}: sizes {list(sizes)} come to more bytes than 64 bits count")
    shape = (*x.shape[:dim], sum(sizes), *x.shape[dim + 1 :])
    made = result_along(op, kind, out, shape, dim, x, (x,))
    mine = group.kept.room(kind, "longest", (most, *rest), x)
    every = group.kept.room(kind, "longest of all", (size * most, *rest), x)
    group.assign(kind, mine[: sizes[group.rank]], moved)
    rows = as_rows(group, kind, mine, moved=True)
    target = rows.target(group, kind, every, size)
    what = f"x {kind.dtype(x)} {[*x.shape[:dim], 'size', *x.shape[dim + 1 :]]}"
    said = described(op, kind, {}, what, f"dim={dim}", f"sizes={list(sizes)}")
    launch_rows(op, group, kind, rows, size, rows.array, target, said)
    rows.finish(group, kind, every, target, size)
    begin = 0
    for rank, length in enumerate(sizes):
        first = rank * most
        group.assign(kind, made.target[begin : begin + length], every[first : first + length])
        begin += length
    return made.finish()


def _is_part(group, kind, whole, part) -> bool:
    """Whether `part` is this rank's of `whole`, by rank, so that a launch may read one and write the
    other."""
    if whole is None or kind_of(whole) is not kind_of(part):
        return False
    begin = group.rank * math.prod(part.shape) * kind.itemsize(part)
    dense = kind.is_dense(whole) and kind.is_dense(part)
    return dense and kind.address(part) == kind.address(whole) + begin


def launch_rows(op, group, kind, rows, runs, source, target, said, scalars=(), **fields) -> None:
    """A collective over the `runs` runs that its longer array has. `said`: the call in words; `scalars`:
    what its launches take after the rows; `fields`: those of its Desc that others lack."""
    m = rows.rows * runs
    if m == 0:
        group.agree_on_nothing(said)
        return
    sizes = {"m": bound_of(m), "n": rows.columns}
    desc = {"world_size": group.size, "dtype": rows.dtype, **sizes, **fields}
    group.launch_operator(kind, op, desc, ("in", "out"), (source, target), (m, *scalars), said=said)


@counted
def reduce_scatter(
    x: ArrayT,
    *,
    dim: int = 0,
    reduce_op: str = "sum",
    factor: Optional[float] = None,
    payload: Optional[str] = None,
    scale_block: Optional[int] = None,
    group: GroupLike = None,
    out: Optional[ArrayT] = None,
) -> ArrayT:
    """The sum over the ranks (or "avg", "min", "max", "product", "premul_sum": as all_reduce has them),
    of which each rank gets its part along `dim`: [.., P * d, ..] -> [.., d, ..]. `out` may be this
    rank's part of `x`.

    `payload`: what the parts travel as, "int8" or "fp8", with scales as all_gather() has them; of sums
    and averages. A part of another rank is off as all_gather()'s elements are, this rank's own is exact;
    they are added up in float32 in rank order. There is no gradient, and `out` is apart from `x`."""
    reducing = reduction("reduce_scatter", reduce_op, factor)
    dim = whole("reduce_scatter", "dim", dim)
    carried = payload_of("reduce_scatter", payload, scale_block, reduce_op)
    if carried is not None:
        body = with_options(_reduce_scatter_payload, carried, reducing)
        return group_of(group).call(body, dim, out, x)
    if out is None and _route.wants(x):
        if reduce_op == "premul_sum":
            made = _route.layer.reduce_scatter_premul_sum
            return made(x, dim, reducing.factor, name_of(group))
        return _route.layer.reduce_scatter(x, dim, reduce_op, name_of(group))
    return group_of(group).call(by_reduction(_reduce_scatter, reducing), dim, out, x)


def _reduce_scatter(group, x, dim, out, reducing=SUM):
    op, x_name, dim_name = group.caller or ("reduce_scatter", "x", "dim")
    kind, x = adopt(op, x_name, x)
    reduced_dtype(op, kind, x, reducing.reduce_op)
    if x.ndim == 0:
        raise UserError(f"{op}: {x_name} needs at least one dimension")
    dim = axis(op, dim_name, dim, x.ndim)
    if x.shape[dim] % group.size:
        raise UserError(
            f"{op}: {x.shape[dim]} along {dim_name} {dim} cannot be split over {group.size} ranks"
        )
    shape = list(x.shape)
    shape[dim] //= group.size
    is_first = _is_first(x.shape, dim)
    read = () if not is_first or _is_part(group, kind, x, out) else (x,)
    result, written = make_result(op, kind, out, shape, x, read)
    options = f"{dim_name}={dim}", reducing.named()
    said = described(op, kind, {x_name: x}, *options)
    if is_first:
        parts = kind.dense(x)
    else:
        parts = group.kept.room(kind, "parts", (group.size, *shape), x)
        for rank, part in enumerate(_parts(x, dim, group.size)):
            _assign_part(group, kind, parts[rank], part)
    rows = as_rows(group, kind, parts, group.size)
    target = rows.target(group, kind, written, 1)
    arrays, fields = (rows.array, target), {"reduction": reducing.reduce_op}
    launch_rows("reduce_scatter", group, kind, rows, group.size, *arrays, said, reducing.scalars(), **fields)
    rows.finish(group, kind, written, target, 1)
    return finish(kind, result, written)


def _reduce_scatter_payload(payload: Payload, reducing, group, x, dim, out):
    op = "reduce_scatter"
    kind, x = adopt(op, "x", x)
    if x.ndim == 0:
        raise UserError(f"{op}: x needs at least one dimension")
    dim = axis(op, "dim", dim, x.ndim)
    if x.shape[dim] % group.size:
        raise UserError(
            f"{op}: {x.shape[dim]} along dim {dim} cannot be split over {group.size} ranks"
        )
    shape = [*x.shape[:dim], x.shape[dim] // group.size, *x.shape[dim + 1 :]]
    made = result_along(op, kind, out, shape, dim, x, (x,))
    rows = scaled_rows(op, kind, kind.dense(kind.move(x, dim, 0)), group.size, payload)
    said = described(op, kind, {"x": x}, f"dim={dim}", reducing.named(), payload.named())
    arrays, fields = (rows.array, made.target), {"reduction": reducing.reduce_op, **payload.fields}
    launch_rows(op, group, kind, rows, group.size, *arrays, said, reducing.scalars(), **fields)
    return made.finish()


@counted
def all_reduce(
    x: ArrayT,
    *,
    reduce_op: str = "sum",
    factor: Optional[float] = None,
    payload: Optional[str] = None,
    scale_block: Optional[int] = None,
    group: GroupLike = None,
    out: Optional[ArrayT] = None,
) -> ArrayT:
    """The sum over the ranks (or "avg", "min", "max", "product", "premul_sum"), on every rank, the same
    bits on all. Of floats, sums and products are taken in float32 in rank order and rounded once;
    averages are divided, and sums of "premul_sum" multiplied by `factor`, a float32 that is the same
    on every rank, before that; "min" and "max" leave NaN out where there is anything else. Of int32,
    too, but for "avg" and "premul_sum": exact, sums and products wrap. `out` may be `x`.

    `payload`: what parts and sums travel as, "int8" or "fp8", with scales as all_gather() has them (of
    one dimension: for all of `x`); of sums and averages. A part of another rank than the one that adds
    it up is off as all_gather()'s elements are, and the sum once more, by the largest of its row. There
    is no gradient."""
    reducing = reduction("all_reduce", reduce_op, factor)
    carried = payload_of("all_reduce", payload, scale_block, reduce_op)
    if carried is not None:
        body = with_options(_all_reduce_payload, carried, reducing)
        return group_of(group).call(body, 0, out, x)
    if out is None and _route.wants(x):
        if reduce_op == "premul_sum":
            return _route.layer.all_reduce_premul_sum(x, reducing.factor, name_of(group))
        return _route.layer.all_reduce(x, reduce_op, name_of(group))
    return group_of(group).call(by_reduction(_all_reduce, reducing), 0, out, x)


def launch_whole(group, kind, rows, x, written, launch) -> None:
    """launch(source, target) of a collective whose result has x's shape: the target is `written`,
    unless peers read `x` there."""
    address = kind.address(x)
    target = rows.target(group, kind, written, 1)
    apart = kind.address(target) == address and group.is_symmetric(address)
    landed = group.kept.room(kind, "apart", x.shape, x) if apart else target
    launch(rows.array, landed)
    if apart:
        group.assign(kind, written, landed)
    rows.finish(group, kind, written, landed, 1)


def _all_reduce(group, x, _, out, reducing=SUM):
    op = "all_reduce"
    kind, x = adopt(op, "x", x)
    reduced_dtype(op, kind, x, reducing.reduce_op)
    dense = kind.dense(x)
    result, written = make_result(op, kind, out, x.shape, x, unless_same(kind, out, x))
    rows = as_rows(group, kind, dense)

    def launch(source, target):
        said = described(op, kind, {"x": x}, reducing.named())
        arrays, fields = (source, target), {"reduction": reducing.reduce_op}
        launch_rows(op, group, kind, rows, 1, *arrays, said, reducing.scalars(), **fields)

    launch_whole(group, kind, rows, dense, written, launch)
    return finish(kind, result, written)


def _all_reduce_payload(payload: Payload, reducing, group, x, _, out):
    op = "all_reduce"
    kind, x = adopt(op, "x", x)
    dense = kind.dense(x)
    result, written = make_result(op, kind, out, x.shape, x, (x,))
    rows = scaled_rows(op, kind, dense, 1, payload)
    said = described(op, kind, {"x": x}, reducing.named(), payload.named())
    fields = {"reduction": reducing.reduce_op, **payload.fields}
    launch_rows(op, group, kind, rows, 1, dense, written, said, reducing.scalars(), **fields)
    return finish(kind, result, written)


@counted
def broadcast(
    x: ArrayT, root: int = 0, *, group: GroupLike = None, out: Optional[ArrayT] = None
) -> ArrayT:
    """The array of rank `root` of the group on every rank, of any element type. On other ranks `x` gives shape
    and element type only, and whether a gradient is asked for, which all ranks must do where one does."""
    root = whole("broadcast", "root", root)
    if out is None and _route.wants(x):
        return _route.layer.broadcast(x, root, name_of(group))
    return group_of(group).call(_broadcast, root, out, x)


def _broadcast(group, x, root, out):
    op = "broadcast"
    kind, x = adopt(op, "x", x)
    if not 0 <= root < group.size:
        raise UserError(f"{op}: root {root} of {group.size} ranks")
    dense = kind.dense(x)
    result, written = make_result(op, kind, out, x.shape, x, unless_same(kind, out, x))
    rows = as_rows(group, kind, dense, moved=True)
    said = described(op, kind, {"x": x}, f"root={root}")
    if rows.rows == 0:
        group.agree_on_nothing(said)
        return finish(kind, result, written)
    sizes = {"m": bound_of(rows.rows), "n": rows.columns, "root": root}
    desc = {"world_size": group.size, "dtype": rows.dtype, **sizes}

    def launch(source, target):
        arrays = source, target
        group.launch_operator(kind, op, desc, ("in", "out"), arrays, (rows.rows,), said=said)

    launch_whole(group, kind, rows, dense, written, launch)
    return finish(kind, result, written)


@counted
def all_to_all(
    x: ArrayT,
    output_split_sizes: Optional[Sequence[int]] = None,
    input_split_sizes: Optional[Sequence[int]] = None,
    *,
    payload: Optional[str] = None,
    scale_block: Optional[int] = None,
    group: GroupLike = None,
    out: Optional[ArrayT] = None,
) -> ArrayT:
    """Row blocks to every rank, and from every rank: block d of `x` [m, ...] goes to rank d, and
    the result is the blocks that came, by rank. Any element type.

    `input_split_sizes`: rows of each block, P numbers that add up to m; default: equal blocks.
    `output_split_sizes`: the rows that come from each rank; checked where given. Over lists the hosts
    wait for each other: where every rank's have one size everywhere, they compare that alone; uneven
    blocks cost one small all-gather of the sizes more, and no graph captures it. A gradient exchanges
    them again.

    `payload`: what rows travel as, "int8" or "fp8", with a scale for each row of the last dimension, or
    for each `scale_block` of its neighbours; errors as all_gather() has them. The block that a rank
    sends itself is exact. Of equal blocks; there is no gradient.
    """
    carried = payload_of("all_to_all", payload, scale_block)
    if carried is not None:
        if output_split_sizes is not None or input_split_sizes is not None:
            raise UserError("all_to_all: sizes and payload together: pad to blocks of one size")
        return group_of(group).call(with_options(_all_to_all_payload, carried), 0, out, x)
    expected = _sizes("all_to_all", "output_split_sizes", output_split_sizes)
    sent = _sizes("all_to_all", "input_split_sizes", input_split_sizes)
    if out is None and _route.wants(x):
        return _route.layer.all_to_all(x, expected, sent, name_of(group))
    group = group_of(group)
    if expected is None and sent is None:
        return group.call(_all_to_all, 0, out, x)
    form = form_of(x)
    key = None if form is None else (form, _as_key(sent), _as_key(expected))
    lists = group.exchanges.checked(key, lambda: _checked_lists(group, x, sent, expected))
    blocks = exchange_lists(group, lists)
    if blocks is None:
        return group.call(_all_to_all, 0, out, x)
    if expected is not None and tuple(expected) != blocks.received:
        raise UserError(
            f"all_to_all: rank {group.rank} expects {expected} rows, the ranks send {list(blocks.received)}"
        )
    return call_with(group, "all_to_all", _exchange_blocks, (blocks,), out, x)


def _as_key(sizes: Optional[List[int]]) -> Optional[Tuple[int, ...]]:
    return None if sizes is None else tuple(sizes)


class Lists(NamedTuple):
    """What a rank says in a call with sizes before it knows the others'."""

    rows: str  # what ranks that send different numbers of rows have in common
    said: str
    sent: Tuple[int, ...]
    even: int = -1  # rows of every block, where all that it sends and expects have as many


def _checked_lists(group, x, sent: Optional[List[int]], expected: Optional[List[int]]) -> Lists:
    kind, x = adopt("all_to_all", "x", x)
    sent = checked_blocks(group, x, sent)
    even = set(sent) == set(expected or sent) == {sent[0]} and len(expected or sent) == len(sent)
    return lists_of("all_to_all", sent, f"{rows_of(kind, x)}, with sizes", sent[0] if even else -1)


def lists_of(op: str, sent: Sequence[int], rows: str, even: int = -1) -> Lists:
    return Lists(rows, f"{op}({rows})", tuple(sent), even)


def _exchange_blocks(group, blocks, x, out):
    kind, x = adopt("all_to_all", "x", x)
    return exchange(group, kind, x, blocks, out)


def _sizes(op: str, name: str, rows: Optional[Sequence[int]]) -> Optional[List[int]]:
    if rows is None:
        return None
    try:
        return list(map(operator.index, rows))
    except TypeError:
        raise UserError(f"{op}: {name} is {rows!r}, need whole numbers") from None


def rows_of(kind, x) -> str:
    """What ranks that send different numbers of rows have in common."""
    return f"x {kind.dtype(x)} rows of {list(x.shape[1:])}"


def checked_blocks(group, x, sent: Optional[List[int]]) -> List[int]:
    """Rows of the blocks of `x`, equal ones where none are given."""
    if x.ndim == 0:
        raise UserError("all_to_all: need at least one dimension")
    size, rows = group.size, x.shape[0]
    if sent is None:
        if rows % size:
            raise UserError(f"all_to_all: {rows} rows cannot be split evenly over {size} ranks")
        return [rows // size] * size
    if len(sent) != size or min(sent) < 0 or sum(sent) != rows:
        raise UserError(f"all_to_all: input_split_sizes {sent} of {rows} rows and {size} ranks")
    return sent


class Blocks(NamedTuple):
    """Rows of the blocks that this rank sends and receives, of the largest of all ranks', and whether
    all of them are of one size. Programs are chosen by the last two, which all ranks share."""

    sent: Tuple[int, ...]
    received: Tuple[int, ...]
    most: int
    even: bool


def exchange_sizes(group, sent: List[int], rows: str) -> Blocks:
    """The blocks of an all_to_all in which this rank sends so many rows to each, of such `rows`.
    Collective; the hosts wait for each other, where all send what they sent another time for one
    word."""
    return exchange_lists(group, lists_of("all_to_all", sent, f"{rows}, with sizes"))


def exchange_lists(group, lists: Lists) -> Optional[Blocks]:
    """The same; None where every rank's blocks, and those that it expects, are of one size everywhere.
    The same on all ranks: they have said one word, of the size or of the exchange in which each told
    what it would tell now; or they tell each other."""
    told = lists.rows, lists.sent
    last, known = group.exchanges.find(told)
    word = 2 * group.rank + 1  # odd ones differ
    if known:
        word = 4 * last + 2
    elif lists.even >= 0:
        word = 4 * lists.even
    if group.size == 1 or group.same(lists.said, word):
        if known:
            return known
        if lists.even >= 0:
            return None
    sent = lists.sent
    own, table = np.array([sent], np.int32), np.empty((group.size, len(sent)), np.int32)
    desc = {"world_size": group.size, "dtype": "int32", "m": group.size, "n": len(sent)}
    arrays, sizes = (own, table), (group.size,)  # [from, to]
    group.launch_operator(NumpyKind, "all_gather", desc, ("in", "out"), arrays, sizes, said=lists.said)
    received, most = tuple(int(rows) for rows in table[:, group.rank]), int(table.max())
    blocks = Blocks(sent, received, most, most == table.min())
    group.exchanges.add(told, blocks)
    return blocks


def _all_to_all(group, x, _, out):
    kind, x = adopt("all_to_all", "x", x)
    blocks = tuple(checked_blocks(group, x, None))
    return exchange(group, kind, x, Blocks(blocks, blocks, blocks[0], True), out)


def _all_to_all_payload(payload: Payload, group, x, _, out):
    op = "all_to_all"
    kind, x = adopt(op, "x", x)
    dtype = computed_dtype(op, kind, {"x": x}, doubles=False)
    checked_blocks(group, x, None)
    result, written = make_result(op, kind, out, x.shape, x, (x,))
    said = described(op, kind, {"x": x}, payload.named())
    elements = math.prod(x.shape)
    if elements == 0:
        group.agree_on_nothing(said)
        return finish(kind, result, written)
    columns = scaled_columns(op, payload, x.shape[-1] if x.ndim > 1 else elements // group.size)
    rows = elements // columns // group.size
    counts = group.kept.constant(kind, [rows] * group.size, x)
    sizes = {"world_size": group.size, "dtype": dtype, "m": rows, "n": columns}
    arrays, desc = (kind.dense(x), counts, written), {**sizes, **payload.fields}
    group.launch_operator(kind, op, desc, ("in", "recv_counts", "out"), arrays, (), said=said)
    return finish(kind, result, written)


_LEAST_WIDTH = 128  # elements of a row that is moved as it is


def exchange(group, kind, x, blocks_of, out):
    """What the ranks have sent here. A block is moved in rows of its own, whatever the array's are."""
    size, (sent, received, most, even) = group.size, blocks_of
    width = math.prod(x.shape[1:])
    shape = (sum(received),) + tuple(x.shape[1:])
    result, written = make_result("all_to_all", kind, out, shape, x, (x,))
    # Ranks whose blocks are uneven need not have the same number of rows.
    said = described("all_to_all", kind, {"x": x} if even else {}, "" if even else rows_of(kind, x))
    if most == 0 or width == 0:
        group.agree_on_nothing(said)
        return finish(kind, result, written)
    if even:
        rows = as_rows(group, kind, kind.dense(x), size, moved=True, widths=WIDE_COLUMNS)
        target = rows.target(group, kind, written, size)
        form = rows.rows, rows.columns, rows.dtype
        _exchange_rows(group, kind, rows.array, [rows.rows] * size, form, target, said)
        rows.finish(group, kind, written, target, size)
        return finish(kind, result, written)
    blocks, landed, launch = uneven_blocks(group, kind, x, received, most, width, said)
    elements, begin = kind.dense(x).reshape((sum(sent) * width,)), 0
    for to, rows in enumerate(sent):
        end = begin + rows * width
        group.assign(kind, blocks[to, : end - begin], elements[begin:end])
        begin = end
    launch()
    elements, begin = written.reshape((shape[0] * width,)), 0
    for source, rows in enumerate(received):
        end = begin + rows * width
        group.assign(kind, elements[begin:end], landed[source, : end - begin])
        begin = end
    return finish(kind, result, written)


def uneven_blocks(group, kind, like, received: Sequence[int], most: int, width: int, said: str):
    """(what to fill with a block for each rank, [P, elements], what holds the blocks that came after it, what
    launches the exchange). Of blocks of up to `most` rows of `width`, of which so many come from each."""
    unit = width
    if width < _LEAST_WIDTH or padded(kind, like, width, ALIGNMENT) != width:
        unit = 1024 if most * width >= 64 * 1024 else _LEAST_WIDTH
    there = [-(-rows * width // unit) for rows in received]
    bound = bound_of(-(-most * width // unit))  # the program's blocks are all of one size
    flat = group.size, bound * unit
    blocks = group.kept.room(kind, "blocks", flat, like)
    landed = group.kept.room(kind, "blocks that came", flat, like)
    dtype = moved_as(kind, like)
    form = bound, columns_as(dtype, kind, like, unit), dtype

    def launch():
        _exchange_rows(group, kind, blocks, there, form, landed, said)

    return blocks, landed, launch


def _exchange_rows(group, kind, blocks, received, form, target, said: str) -> None:
    """Launches it. `received`: rows of each block that comes; `form`: rows of a block and their columns,
    of which element type."""
    rows, columns, dtype = form
    group.launch_operator(
        kind,
        "all_to_all",
        {"world_size": group.size, "dtype": dtype, "m": rows, "n": columns},
        ("in", "recv_counts", "out"),
        (blocks, group.kept.constant(kind, received, blocks), target),
        (),
        said=said,
    )


for _body, _name in {
    _all_gather_payload: "all_gather",
    _all_gather_sizes: "all_gather",
    _reduce_scatter_payload: "reduce_scatter",
    _all_reduce_payload: "all_reduce",
    _all_to_all_payload: "all_to_all",
}.items():
    _body.__name__ = _name  # what users call it
