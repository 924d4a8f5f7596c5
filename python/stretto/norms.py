"""Normalisations of rows that the ranks share: of sums over the ranks, or of columns that are spread over
them; see ops.py for what all operators have in common. Only all_reduce_add_rms_norm has a gradient."""

from __future__ import annotations

import math
from typing import Any, Optional, Tuple

from . import _route
from ._adopt import adopt
from ._arrays import ArrayT
from ._calls import (
    bound_of,
    check_apart,
    computed_dtype,
    described,
    finish,
    make_result,
    number,
    same_kind,
    several,
    unless_same,
    with_options,
)
from ._world import GroupLike, counted, group_of, name_of
from .errors import UserError


@counted
def all_reduce_add_rms_norm(
    x: ArrayT,
    residual: ArrayT,
    weight: ArrayT,
    *,
    eps: float = 1e-5,
    group: GroupLike = None,
    out: Any = None,
) -> Tuple[ArrayT, ArrayT]:
    """(rms_norm(s) * weight, s) with s = all_reduce(x) + residual, the same bits on every rank.

    `x`, `residual`: [.., H]; `weight`: [H], of its own element type. `out`: a pair of arrays.
    """
    name = "all_reduce_add_rms_norm"
    eps = _epsilon(name, eps)
    if out is None and _route.wants(x, residual, weight):
        return _route.layer.all_reduce_add_rms_norm(x, residual, weight, eps, name_of(group))
    op = with_options(_all_reduce_add_rms_norm, eps)
    outs = several(name, out, 2)
    return group_of(group).call(op, 0, outs, x, residual, weight)


def _all_reduce_add_rms_norm(eps, group, x, residual, weight, _, out):
    return _norms_of_sums(group, "all_reduce_add_rms_norm", eps, x, residual, weight, out, scattered=False)


@counted
def reduce_scatter_add_rms_norm(
    x: ArrayT,
    residual: ArrayT,
    weight: ArrayT,
    *,
    eps: float = 1e-5,
    group: GroupLike = None,
    out: Any = None,
) -> Tuple[ArrayT, ArrayT]:
    """(rms_norm(s) * weight, s) with s = reduce_scatter(x) + residual: of rank r the r-th of P equal
    parts of the rows, to the bit what all_reduce_add_rms_norm gives there.

    `x`: [M, .., H]; `residual`: [M / P, .., H], the own rows; `weight`: [H], of its own element type.
    Results [M / P, .., H]. `out`: a pair of arrays.
    """
    name = "reduce_scatter_add_rms_norm"
    eps = _epsilon(name, eps)
    if out is None and _route.wants(x, residual, weight):
        return _route.forward.reduce_scatter_add_rms_norm(x, residual, weight, eps, name_of(group))
    op = with_options(_reduce_scatter_add_rms_norm, eps)
    return group_of(group).call(op, 0, several(name, out, 2), x, residual, weight)


def _reduce_scatter_add_rms_norm(eps, group, x, residual, weight, _, out):
    return _norms_of_sums(group, "reduce_scatter_add_rms_norm", eps, x, residual, weight, out, scattered=True)


def _norms_of_sums(group, op: str, eps: float, x, residual, weight, out, *, scattered: bool):
    size = group.size
    kind, x = adopt(op, "x", x)
    residual, weight = same_kind(op, kind, residual=residual, weight=weight)
    dtype = computed_dtype(op, kind, {"x": x, "residual": residual})
    weight_dtype = computed_dtype(op, kind, {"weight": weight})
    hidden = x.shape[-1] if x.ndim > (1 if scattered else 0) else 0
    if scattered and hidden and x.shape[0] % size:
        raise UserError(f"{op}: {x.shape[0]} rows cannot be split over {size} ranks")
    own = tuple(x.shape)
    if scattered and hidden:
        own = (x.shape[0] // size, *x.shape[1:])
    if hidden == 0 or tuple(residual.shape) != own or tuple(weight.shape) != (hidden,):
        need = f"[M, .., H], [M / {size}, .., H], [H]" if scattered else "[.., H], [.., H], [H]"
        raise UserError(
            f"{op}: shapes {tuple(x.shape)}, {tuple(residual.shape)}, {tuple(weight.shape)}; need {need}"
        )
    outs = out or (None, None)
    by_peers = scattered or group.is_symmetric(kind.address(x))
    read = [weight, x] if by_peers else [weight]  # by all rows, by peers
    in_place = (residual,) if scattered else (x, residual)
    (normed, written), (total, summed) = (
        make_result(op, kind, each, own, x, read + unless_same(kind, each, *in_place))
        for each in outs
    )
    check_apart(op, kind, (normed, total))
    x, residual, weight = kind.dense(x), kind.dense(residual), kind.dense(weight)
    arrays = {"x": x, "weight": weight, "residual": residual, "sum": summed, "out": written}
    desc = {"dtype": dtype, "weight_dtype": weight_dtype, "hidden": hidden, "eps": eps, "add_residual": True}
    said_of = ("x", "weight", "residual") if scattered else ("x", "weight")
    _launch(group, op, kind, desc, arrays, math.prod(x.shape[:-1]), said_of=said_of)
    return finish(kind, normed, written), finish(kind, total, summed)


@counted
def rms_norm_columns(
    x: ArrayT,
    weight: ArrayT,
    *,
    residual: Optional[ArrayT] = None,
    eps: float = 1e-5,
    group: GroupLike = None,
    out: Any = None,
) -> Any:
    """x / rms(all ranks' x) * weight, of rows whose columns are spread over the ranks: sums of
    squares are added over the ranks, and nothing else travels.

    `x`: [.., H / P], this rank's columns, as many on every rank; `weight`: [H / P], theirs, of its own
    element type. `residual`, as x, is added before, and the sum is returned, too:
    (normalised, sum). `out`: an array, with `residual` a pair. Not of float64.
    """
    name = "rms_norm_columns"
    eps = _epsilon(name, eps)
    arrays = (x, weight) if residual is None else (x, weight, residual)
    if out is None and _route.wants(*arrays):
        normed, total = _route.forward.rms_norm_columns(x, weight, residual, eps, name_of(group))
        return normed if residual is None else (normed, total)
    outs = None if out is None else (out,) if residual is None else several(name, out, 2)
    made = group_of(group).call(with_options(_rms_norm_columns, eps), 0, outs, *arrays)
    return made[0] if residual is None else made


def _rms_norm_columns(eps, group, *arguments):
    *given, _, out = arguments
    op = "rms_norm_columns"
    kind, x = adopt(op, "x", given[0])
    weight, *residual = same_kind(op, kind, **dict(zip(("weight", "residual"), given[1:])))
    named = {"x": x, **({"residual": residual[0]} if residual else {})}
    dtype = computed_dtype(op, kind, named, doubles=False)
    weight_dtype = computed_dtype(op, kind, {"weight": weight}, doubles=False)
    hidden = x.shape[-1] if x.ndim else 0
    if (
        hidden == 0
        or tuple(weight.shape) != (hidden,)
        or any(tuple(r.shape) != tuple(x.shape) for r in residual)
    ):
        shapes = [tuple(a.shape) for a in (x, weight, *residual)]
        raise UserError(
            f"{op}: shapes {shapes}; need [.., H / {group.size}], [H / {group.size}] and, where given, "
            "a residual as x"
        )
    outs = out or (None,) * (1 + len(residual))
    results = [make_result(op, kind, each, x.shape, x, (x, weight, *residual)) for each in outs]
    check_apart(op, kind, [result for result, _ in results])
    arrays = {"x": kind.dense(x), "weight": kind.dense(weight)}
    if residual:
        arrays["residual"] = kind.dense(residual[0])
    arrays.update((name, written) for name, (_, written) in zip(("out", "sum"), results))
    desc = {"dtype": dtype, "weight_dtype": weight_dtype, "hidden": hidden, "eps": eps}
    _launch(group, op, kind, {**desc, "add_residual": bool(residual)}, arrays, math.prod(x.shape[:-1]))
    return tuple(finish(kind, result, written) for result, written in results)


def _epsilon(op: str, eps: Any) -> float:
    eps = number(op, "eps", eps)
    if not 0 <= eps < math.inf:
        raise UserError(f"{op}: eps is {eps}, need a finite number from 0 on")
    return eps


def _launch(group, op: str, kind, desc: dict, arrays: dict, rows: int, said_of=("x", "weight", "residual")) -> None:
    said = described(op, kind, {name: arrays[name] for name in said_of if name in arrays}, f"eps={desc['eps']}")
    if rows == 0:
        group.agree_on_nothing(said)
        return
    desc = {"world_size": group.size, "m": bound_of(rows), **desc}
    group.launch_operator(kind, op, desc, tuple(arrays), tuple(arrays.values()), (rows,), said=said)
