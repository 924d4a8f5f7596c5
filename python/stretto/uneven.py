"""Exchanges whose sizes are in tensors: nothing waits for the host; see ops.py for what all operators
have in common. They have no gradient."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

from . import _route
from ._adopt import adopt
from ._arrays import ALIGNMENT, ArrayT
from ._calls import (
    bound_of,
    columns_as,
    described,
    finish,
    make_result,
    moved_as,
    padded,
    same_kind,
    whole,
    with_options,
)
from ._world import GroupLike, counted, group_of
from .errors import UserError

_SIZES = {"all_to_all_v": "input_split_sizes", "all_gather_v": "input_size"}


class Received(NamedTuple):
    """Rows that came, by rank, one after the other, in an array with room for more; and how many each
    rank has sent."""

    rows: Any  # [max_rows, ...]; those past the ones that came hold nothing, with out= what they held
    sizes: Any  # [P], of the element type of the sizes that were given


@_route.beside_graphs
@counted
def all_to_all_v(
    x: ArrayT,
    input_split_sizes: ArrayT,
    *,
    max_rows: Optional[int] = None,
    group: GroupLike = None,
    out: Optional[ArrayT] = None,
) -> Received:
    """all_to_all() of blocks whose sizes only the device knows: no host exchanges or waits for them,
    and a graph captures the call and is replayed with others. Any element type.

    `x`: [m, ...], as many rows on every rank; `input_split_sizes`: int32 or int64 [P], of one type on
    every rank, rows of the blocks for each, which lie one after the other from the first row on and
    need not be all.
    `max_rows`: room for what comes, the same on every rank; P * m where nothing is said, which no
    sizes overflow. `out`: [max_rows, ...], what becomes `rows` of the result. Where peers can read `x`
    (stretto.symm_mem), it is not copied.

    Errors: sizes below 0 or beyond `x` are a UserError on CPUs, on GPUs a Fault that a later call
    raises. More rows than a rank has room for are a Fault of the call, on GPUs of a later one, on all
    ranks; nothing is written beyond the room.
    """
    return _call("all_to_all_v", x, input_split_sizes, max_rows, group, out)


@_route.beside_graphs
@counted
def all_gather_v(
    x: ArrayT,
    input_size: ArrayT,
    *,
    max_rows: Optional[int] = None,
    group: GroupLike = None,
    out: Optional[ArrayT] = None,
) -> Received:
    """all_gather() of the first rows of each rank's `x`, as many as `input_size` says, int32 or int64 of
    one element, on the device; otherwise as all_to_all_v() has it."""
    return _call("all_gather_v", x, input_size, max_rows, group, out)


def _call(op: str, x: Any, sizes: Any, max_rows: Optional[int], group: GroupLike, out: Any) -> Received:
    room = -1 if max_rows is None else whole(op, "max_rows", max_rows)
    if room < -1 or (room == -1 and max_rows is not None):
        raise UserError(f"{op}: max_rows is {max_rows}, need 0 or more")
    made = group_of(group)
    if not getattr(sizes, "is_cuda", False):
        sizes = _held_on_host(op, made.size, x, sizes)
    outs = None if out is None else (out, None)
    return Received(*made.call(with_options(_exchange, op), room, outs, x, sizes))


def _held_on_host(op: str, size: int, x: Any, given: Any):
    """The sizes, adopted. GPUs tell in the launch that blocks are more than x has, as that they are more than a
    rank has room for."""
    kind, sizes = adopt(op, _SIZES[op], given)
    if not kind.on_gpu and kind.dtype(sizes) in ("int32", "int64") and tuple(sizes.shape) == (size,):
        rows, total = adopt(op, "x", x)[1].shape[:1], sum(sizes.tolist())
        if len(rows) == 1 and total > rows[0]:
            raise UserError(f"{op}: {_SIZES[op]} add up to {total}, x has {rows[0]} rows")
    return sizes


def _exchange(op, group, x, given, room, outs):
    kind, x = adopt(op, "x", x)
    if x.ndim == 0:
        raise UserError(f"{op}: x needs at least one dimension")
    size, m, rest = group.size, x.shape[0], tuple(x.shape[1:])
    sizes = _sizes(op, kind, given, size)
    numbers = kind.dtype(sizes)
    received = kind.from_dtype(numbers, (size,), sizes)
    out = None if outs is None else adopt(op, "out", outs[0])[1]
    room = _room(op, room, out, size * m)
    rows, written = make_result(op, kind, out, (room, *rest), x, (x, sizes))
    if out is not None and written is not out:
        kind.assign(written, out)  # of which rows that are not received stay
    said = described(op, kind, {"x": x}, f"max_rows={room}", "" if numbers == "int32" else f"sizes {numbers}")
    columns = math.prod(rest)
    nothing = min(m, room, columns) == 0  # moves; sizes do, and are held against what there is
    wide, dtype = padded(kind, x, max(columns, 1), ALIGNMENT), moved_as(kind, x)
    source, landed = kind.dense(x), written
    if wide != columns or nothing:
        source = group.kept.room(kind, "rows to send", (max(m, 1), wide), x)
        landed = group.kept.room(kind, "rows that came", (max(room, 1), wide), x)
    if wide != columns and not nothing:
        group.assign(kind, source[:, :columns], x.reshape((m, columns)))
        if out is not None:
            group.assign(kind, landed[:, :columns], written.reshape((room, columns)))
    bounds = {"m": bound_of(max(m, 1)), "room": bound_of(max(room, 1))}
    desc = {"world_size": size, "dtype": dtype, **bounds, "n": columns_as(dtype, kind, x, wide)}
    names = ("in", _SIZES[op], "out", "output_split_sizes")
    arrays = source, sizes, landed, received
    wide_sizes = numbers == "int64"
    group.launch_operator(kind, op, {**desc, "wide_sizes": wide_sizes}, names, arrays, (m, room), said=said)
    if landed is not written and not nothing:
        group.assign(kind, written.reshape((room, columns)), landed[:, :columns])
    return finish(kind, rows, written), received


def _sizes(op: str, kind, given, size: int):
    """Dense."""
    name = _SIZES[op]
    (sizes,) = same_kind(op, kind, **{name: given})
    shape = (size,)
    if op == "all_gather_v":
        shape = (1,)
        sizes = sizes.reshape(shape) if math.prod(sizes.shape) == 1 else sizes
    if kind.dtype(sizes) not in ("int32", "int64") or tuple(sizes.shape) != shape:
        raise UserError(f"{op}: {name} is {kind.dtype(sizes)} {tuple(sizes.shape)}; need int32 or int64 {shape}")
    return kind.dense(sizes)


def _room(op: str, room: int, out, default: int) -> int:
    """Rows that the result has."""
    if out is None:
        return default if room < 0 else room
    rows = out.shape[0] if len(out.shape) > 0 else room
    if room >= 0 and rows != room:
        raise UserError(f"{op}: max_rows is {room}, and out has {rows} rows")
    return max(rows, 0)
