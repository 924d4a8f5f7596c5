"""Collectives of one rank with the others; see ops.py for what all operators have in common."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional, Sequence, Tuple

from . import _route
from ._adopt import adopt
from ._arrays import ArrayT, form_of, kind_of
from ._calls import (
    SUM,
    as_rows,
    by_reduction,
    call_with,
    check_writable,
    described,
    finish,
    make_result,
    reduced_dtype,
    reduction,
    result_along,
    whole,
)
from ._world import GroupLike, counted, group_of
from .collectives import Lists, exchange_lists, launch_rows, launch_whole, lists_of, uneven_blocks
from .errors import UserError


def _checked(group, op, x, root, out):
    """(kind, x)."""
    kind, x = adopt(op, "x", x)
    if not 0 <= root < group.size:
        raise UserError(f"{op}: root {root} of {group.size} ranks")
    if x.ndim == 0 and op != "reduce":
        raise UserError(f"{op}: x needs at least one dimension")
    if out is not None and group.rank != root and op != "scatter":
        raise UserError(f"{op}: out is given on rank {group.rank}, and the result is rank {root}'s")
    return kind, x


@_route.beside_graphs
@counted
def reduce(
    x: ArrayT,
    root: int = 0,
    *,
    reduce_op: str = "sum",
    factor: Optional[float] = None,
    group: GroupLike = None,
    out: Optional[ArrayT] = None,
) -> Optional[ArrayT]:
    """What all_reduce gives, on rank `root` of the group alone; None on the others, which pass no
    `out`. `out` may be `x`."""
    body = by_reduction(_reduce, reduction("reduce", reduce_op, factor))
    return group_of(group).call(body, whole("reduce", "root", root), out, x)


def _reduce(group, x, root, out, reducing=SUM):
    op = "reduce"
    kind, x = _checked(group, op, x, root, out)
    reduced_dtype(op, kind, x, reducing.reduce_op)
    dense = kind.dense(x)
    rows = as_rows(group, kind, dense)
    said = described(op, kind, {"x": x}, f"root={root}", reducing.named())

    def launch(source, target):
        fields = {"reduction": reducing.reduce_op, "root": root}
        launch_rows(op, group, kind, rows, 1, source, target, said, reducing.scalars(), **fields)

    if group.rank != root:
        launch(rows.array, rows.array)  # which is not written
        return None
    result, written = make_result(op, kind, out, x.shape, x, (x,))
    launch_whole(group, kind, rows, dense, written, launch)
    return finish(kind, result, written)


@_route.beside_graphs
@counted
def gather(
    x: ArrayT, root: int = 0, *, group: GroupLike = None, out: Optional[ArrayT] = None
) -> Optional[ArrayT]:
    """The ranks' arrays one after the other, [d, ..] -> [P * d, ..], of any element type, on rank
    `root` of the group alone; None on the others, which pass no `out`."""
    return group_of(group).call(_gather, whole("gather", "root", root), out, x)


def _gather(group, x, root, out):
    op = "gather"
    kind, x = _checked(group, op, x, root, out)
    rows = as_rows(group, kind, kind.dense(x), moved=True)
    said = described(op, kind, {"x": x}, f"root={root}")

    def launch(target):
        launch_rows(op, group, kind, rows, group.size, rows.array, target, said, root=root)

    if group.rank != root:
        launch(rows.array)  # which is not written
        return None
    shape = (group.size * x.shape[0], *x.shape[1:])
    made = result_along(op, kind, out, shape, 0, x, (x,))
    target = rows.target(group, kind, made.target, group.size)
    launch(target)
    rows.finish(group, kind, made.target, target, group.size)
    return made.finish()


@_route.beside_graphs
@counted
def scatter(
    x: ArrayT, root: int = 0, *, group: GroupLike = None, out: Optional[ArrayT] = None
) -> ArrayT:
    """Of rank `root`'s array this rank's part, by rank: [P * d, ..] -> [d, ..], of any element type.
    On other ranks `x` gives shape and element type only."""
    return group_of(group).call(_scatter, whole("scatter", "root", root), out, x)


def _scatter(group, x, root, out):
    op = "scatter"
    kind, x = _checked(group, op, x, root, out)
    if x.shape[0] % group.size:
        raise UserError(f"{op}: {x.shape[0]} rows cannot be split over {group.size} ranks")
    shape = (x.shape[0] // group.size, *x.shape[1:])
    made = result_along(op, kind, out, shape, 0, x, (x,))
    rows = as_rows(group, kind, kind.dense(x), group.size, moved=True)
    target = rows.target(group, kind, made.target, 1)
    said = described(op, kind, {"x": x}, f"root={root}")
    launch_rows(op, group, kind, rows, group.size, rows.array, target, said, root=root)
    rows.finish(group, kind, made.target, target, 1)
    return made.finish()


@_route.beside_graphs
@counted
def send(x: ArrayT, *, group: GroupLike = None) -> None:
    """Sends `x`, of any element type, to the other rank of a group of two, which calls recv()."""
    group_of(group).call(_send, 0, None, x)


@_route.beside_graphs
@counted
def recv(out: ArrayT, *, group: GroupLike = None) -> ArrayT:
    """What the other rank of a group of two has passed to send(), of the shape and element type of
    `out`, which is written and returned."""
    return group_of(group).call(_recv, 0, out, out)


def _send(group, x, _, __):
    _carry("send", "x", group, x, group.rank, None)


def _recv(group, like, _, out):
    return _carry("recv", "out", group, like, 1 - group.rank, out)


def _carry(op, name, group, x, source, out):
    """From rank `source` of two to the other."""
    if group.size != 2:
        raise UserError(f"{op}: a group of {group.size} ranks; need two: new_group([a, b])")
    kind, x = adopt(op, name, x)
    rows = as_rows(group, kind, kind.dense(x), moved=True)
    said = f"send or recv({kind.dtype(x)} {list(x.shape)}, from rank {source})"

    def launch(target):
        fields = {"sender": source, "receiver": 1 - source}
        launch_rows("send", group, kind, rows, 1, rows.array, target, said, **fields)

    if out is None:
        launch(rows.array)  # which is not written
        return None
    result, written = make_result(op, kind, out, x.shape, x)
    target = rows.target(group, kind, written, 1)
    launch(target)
    rows.finish(group, kind, written, target, 1)
    return finish(kind, result, written)


Message = Tuple[ArrayT, int]  # and the rank that it goes to or comes from
_UNIT = 64  # elements that a message is a whole number of on its way


@_route.beside_graphs
@counted
def batch_send_recv(
    sends: Sequence[Message], receives: Sequence[Message], *, group: GroupLike = None
) -> None:
    """Messages between any ranks of the group, all at once: each (x, rank) of `sends` goes to that
    rank, each (out, rank) of `receives` is written with what that rank sends here. What goes from one
    rank to another is one row of elements, in the order of the lists and cut as `receives` has it.
    All ranks of the group make the call; one that sends and receives nothing sends itself an empty
    array. All arrays have one element type, any. The hosts wait for each other. UserError where a
    rank expects more or fewer elements than are sent to it."""
    op = "batch_send_recv"
    group = group_of(group)
    key = _form_of_messages(sends, receives)
    made = group.exchanges.checked(key, lambda: _checked_messages(group, sends, receives))
    blocks = exchange_lists(group, made.lists)
    if made.expected != blocks.received:
        raise UserError(
            f"{op}: rank {group.rank} expects {list(made.expected)} elements of the ranks, they send "
            f"{list(blocks.received)}"
        )
    if key is None:
        arrays, outs = made.arrays, made.outs
    else:
        arrays, outs = (x for x, _ in sends), tuple(x for x, _ in receives)
    call_with(group, op, _carry_messages, (blocks, made.to, made.sources), outs or None, *arrays)


class _Messages(NamedTuple):
    lists: Lists
    expected: Tuple[int, ...]  # elements, by rank
    to: Tuple[int, ...]
    sources: Tuple[int, ...]
    arrays: Tuple[Any, ...] = ()  # as they were adopted; not kept for messages that are looked up
    outs: Tuple[Any, ...] = ()


def _form_of_messages(sends, receives) -> Any:
    """A key of what checking them comes to; None where each time is another."""
    forms = []
    for messages in (sends, receives):
        if type(messages) not in (list, tuple):
            return None
        for message in messages:
            if type(message) is not tuple or len(message) != 2 or type(message[1]) is not int:
                return None
            form = form_of(message[0])
            if form is None:
                return None
            forms.append((form, message[1]))
        forms.append(None)
    return tuple(forms)


def _checked_messages(group, sends, receives) -> _Messages:
    op = "batch_send_recv"
    sent = [_message(op, "sends", group, m) for m in sends]
    wanted = [_message(op, "receives", group, m) for m in receives]
    if not sent and not wanted:
        raise UserError(f"{op}: no messages; a rank that has none sends itself an empty one")
    (kind, first, _), *_ = [*sent, *wanted]
    for other, x, _ in [*sent, *wanted]:
        if other is not kind or kind.dtype(x) != kind.dtype(first):
            raise UserError(
                f"{op}: a {other.name} of {other.dtype(x)} beside a {kind.name} of {kind.dtype(first)}"
            )
    to, sources = (tuple(rank for *_, rank in messages) for messages in (sent, wanted))
    lists = lists_of(op, _per_rank(group, sent), f"messages of {kind.dtype(first)}")
    made = _Messages(lists, tuple(_per_rank(group, wanted)), to, sources)
    if _form_of_messages(sends, receives) is not None:
        return made
    arrays, outs = (tuple(x for _, x, _ in messages) for messages in (sent, wanted))
    return made._replace(arrays=arrays, outs=outs)


def _carry_messages(group, blocks, to, sources, *arrays):
    """Each of the arrays to its rank, and each result from its own."""
    *sent, outs = arrays
    outs = outs or ()
    kind, like = kind_of((*sent, *outs)[0]), (*sent, *outs)[0]
    received, most = tuple(map(_units, blocks.received)), _units(blocks.most)
    said = f"batch_send_recv(messages of {kind.dtype(like)})"
    if most == 0:
        group.agree_on_nothing(said)
        return outs or None
    leaving, landed, launch = uneven_blocks(group, kind, like, received, most, _UNIT, said)
    for message in outs:
        kind.count_write(message)
    for message, place in zip(sent, _places(leaving, sent, to)):
        group.assign(kind, place, message)
    launch()
    for message, place in zip(outs, _places(landed, outs, sources)):
        group.assign(kind, message, place)
    return outs or None


def _message(op, name, group, message):
    """(kind, array, rank)."""
    try:
        x, rank = message
    except (TypeError, ValueError):
        raise UserError(f"{op}: {name} has {message!r}, need pairs (array, rank)") from None
    rank = whole(op, "rank", rank)
    if not 0 <= rank < group.size:
        raise UserError(f"{op}: {name} names rank {rank} of {group.size} ranks")
    kind, x = adopt(op, name, x)
    if name == "receives":
        check_writable(op, kind, x, f"one of {name}")
    return kind, x, rank


def _per_rank(group, messages):
    """Elements of (kind, array, rank), by rank."""
    elements = [0] * group.size
    for _, x, rank in messages:
        elements[rank] += math.prod(x.shape)
    return elements


def _units(elements: int) -> int:
    return -(-elements // _UNIT)


def _places(blocks, arrays, ranks):
    """Where each array, which goes to or comes from its rank, is in that rank's block, as it is shaped."""
    begins = [0] * len(blocks)
    places = []
    for x, rank in zip(arrays, ranks):
        end = begins[rank] + math.prod(x.shape)
        places.append(blocks[rank, begins[rank] : end].reshape(tuple(x.shape)))
        begins[rank] = end
    return places
