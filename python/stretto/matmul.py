"""Matrix products that overlap with collectives; see ops.py for what all operators have in
common."""

from __future__ import annotations

import functools
import math
import re
from typing import Any, List, NamedTuple, Optional, Sequence, Union

from . import _route
from ._adopt import adopt
from ._arrays import COMPUTED, ArrayT, dtype_name, kind_of, may_overlap
from ._calls import (
    axis,
    check_apart,
    checked_result,
    finish,
    is_average,
    make_result,
    reduction,
    result_along,
    same_kind,
    several,
    whole,
)
from ._products import name_of_a, product, scaled_product, scales_of_rows
from ._world import GroupLike, counted, group_of, name_of
from .collectives import _all_gather, _reduce_scatter, all_gather, reduce_scatter
from .errors import UserError
from .symm_mem import workspace


def result_dtype(op: str, scale_a, scale_b, out_dtype, out) -> Optional[str]:
    """The result's element type by name; None for a product without scales."""
    if scale_a is None and scale_b is None:
        if out_dtype is not None:
            raise UserError(f"{op}: out_dtype is for factors with scale_a and scale_b")
        return None
    if scale_a is None or scale_b is None:
        raise UserError(f"{op}: scale_a and scale_b go together")
    if out_dtype is None:
        out_dtype = "bfloat16" if out is None else out.dtype
    name = dtype_name(out_dtype)
    if name not in COMPUTED:
        raise UserError(f"{op}: out_dtype {name}; need one of {', '.join(COMPUTED)}")
    return name


@functools.lru_cache(maxsize=None)
@_route.beside_graphs
def scaled_op(op: str, out_dtype: str, average: bool = False):
    """The operator of that name for factors with scales; the same object each time."""
    body = _BODIES[op]

    def call(group, a, b, scale_a, scale_b, option, out):
        parts = _parts(op, group, option, a)
        p = scaled_product(op, group, a, b, scale_a, scale_b, out_dtype, parts)
        return body(p._replace(average=average), option, out)

    call.__name__ = op
    return call


def factors_of(a, b, scale_a, scale_b, result: Optional[str]) -> tuple:
    """What a product reads; `result` as result_dtype() has it."""
    return (a, b) if result is None else (a, b, scale_a, scale_b)


def in_graphs(op: str, factors: tuple, result: Optional[str], group, *options):
    """The product by its operator of torch.library; `options` stand between factors and group there."""
    if result is None:
        return getattr(_route.layer, op)(*factors, *options, name_of(group))
    return getattr(_route.forward, f"scaled_{op}")(*factors, *options, result, name_of(group))


@counted
def all_gather_matmul(
    a_shard: ArrayT,
    b: Union[ArrayT, Sequence[ArrayT]],
    *,
    gather_dim: int = 0,
    return_a: bool = False,
    scale_a: Optional[ArrayT] = None,
    scale_b: Union[ArrayT, Sequence[ArrayT], None] = None,
    out_dtype: Any = None,
    group: GroupLike = None,
    out: Union[ArrayT, Sequence[Optional[ArrayT]], None] = None,
) -> Any:
    """all_gather(a_shard, dim=gather_dim) @ b, where each tile of the product starts as soon as its
    rows are there.

    `a_shard`: [.., K], this rank's part. `b`: [K, N], each rank's own, dense or the transpose of a
    dense [N, K], as linear layers keep their weights, alike on all ranks. Result: [.., N], with P
    times the size along `gather_dim`. `return_a`: returns (gathered a, result), at the price of a
    copy; with scales, of an all_gather. As torch.ops.symm_mem.fused_all_gather_matmul; float32
    accumulation, rounded once.

    `gather_dim` the last, or -1: what is summed over is gathered, so `b` is [P * K, N] and the
    result [.., N]: the own columns are multiplied while the others' come. With scales of blocks K is
    a multiple of 128; scales of rows are each rank's own. Gathering and product follow each other
    with `return_a` but without scales, and where a gradient of `b` is asked for, which takes what is
    gathered.

    A list of several `b`, such as a layer's query, key and value weights: a list of results. Rows
    are gathered once, beside the first product, and the others follow: the largest comes first.
    With scales all products follow the gathering, as they do of the last `gather_dim`, which then
    goes without scales.
    `scale_b` and `out` are lists then, too, an array for each `b`, in `out` None for a result that
    is to be made, and `out_dtype` is that of all or a list. UserError says which `b` does not fit,
    or which list has not as many.

    `scale_a`, `scale_b`: float32, which make factors of float8_e4m3fn stand for numbers, each
    rank's own, as torch._scaled_mm takes them: of rows, [.., 1] and [1, N], or one number for all;
    or of blocks of 128 along K and N, [.., ceil(K/128)] and [ceil(K/128), ceil(N/128)], of which
    the latter costs no copy where it is the transpose of a dense array. The result is of
    `out_dtype`, a dtype or its name, default that of `out`, or bfloat16. Products with scales have
    no gradient.
    """
    op = "all_gather_matmul"
    has_several = isinstance(b, (list, tuple))
    if has_several:
        weights = _weights(op, b, scale_a, scale_b, out_dtype, out)
        result = weights[0].result
    else:
        result = result_dtype(op, scale_a, scale_b, out_dtype, out)
    gather_dim = whole(op, "gather_dim", gather_dim)
    is_last = _is_last(op, gather_dim, a_shard)
    if has_several:
        if is_last:
            _refuse_scales(op, "gather_dim", gather_dim, result)
        gathered, made = _gather_for_several(op, a_shard, scale_a, weights, gather_dim, group)
        return (gathered, made) if return_a else made
    if is_last and result is None and out is None and _route.casts(a_shard, b):
        _check_factors(op, a_shard, b, group_of(group).size)
        gathered = _gather(group, "a_shard", a_shard, gather_dim)
        c = _own_product(op, group, gathered, b)
        return (gathered, c) if return_a else c
    if result is not None:
        arrays = (a_shard, b, scale_a, scale_b)
        if out is None and _route.wants(*arrays):
            op = _route.forward.all_gather_scaled_matmul
            c = op(*arrays, gather_dim, result, name_of(group))
        else:
            c = group_of(group).call(scaled_op(op, result), gather_dim, out, *arrays)
    elif out is None and _route.wants(a_shard, b):
        name = "all_gather_and_matmul" if return_a else "all_gather_matmul"
        return getattr(_route.layer, name)(a_shard, b, gather_dim, name_of(group))
    elif return_a and (out is None or is_last):
        both = None if out is None else (None, out)
        return group_of(group).call(_all_gather_and_matmul, gather_dim, both, a_shard, b)
    else:
        c = group_of(group).call(_all_gather_matmul, gather_dim, out, a_shard, b)
    return (_gather(group, "a_shard", a_shard, gather_dim), c) if return_a else c


def _is_last(op: str, dim: int, x) -> bool:
    """Whether it is the dimension of x that a product sums over, or spreads over its columns."""
    if dim == 0:
        return False
    ndim = x.ndim if hasattr(x, "ndim") else adopt(op, name_of_a(op), x)[1].ndim
    return dim in (-1, ndim - 1)


def _parts(op: str, group, dim: int, a) -> int:
    """Of a's columns, of which a rank has one."""
    return group.size if op == "all_gather_matmul" and _is_last(op, dim, a) else 1


def _refuse_scales(op: str, name: str, dim: int, result: Optional[str]) -> None:
    if result is not None:
        raise UserError(f"{op}: {name} {dim} is the last, which goes without scales")


def _own_product(op: str, group, a, b):
    """a @ b of this rank alone."""
    try:
        if _route.wants(a, b):
            return _torch_product(op, a, b)
        return group_of(group).alone().call(_all_gather_matmul, 0, None, a, b)
    except Exception as error:
        error.is_settled = op == "all_gather_matmul"  # whose rows the others have
        raise


def _torch_product(op: str, a, b):
    """a @ b by PyTorch, which also takes other types where autocast is on."""
    if _route.is_compiling():
        return a @ b
    try:
        return a @ b
    except (RuntimeError, TypeError) as error:
        said = re.sub(r"\b(c10|at)::", "", str(error))  # of types, as C++ has them
        raise UserError(f"{op}: a @ b: {said}") from error


def _check_factors(op: str, a, b, times: int = 1) -> None:
    """Of a product that is computed once so many ranks' columns of a are there."""
    shapes = [tuple(x.shape) for x in (a, b) if hasattr(x, "shape")]
    if len(shapes) < 2:
        return  # what computes it knows what it is given
    if len(shapes[0]) < 2 or len(shapes[1]) != 2 or shapes[0][-1] * times != shapes[1][0]:
        k = "K" if times == 1 else f"K / {times}"
        raise UserError(f"{op}: shapes {shapes[0]} and {shapes[1]}; need [.., {k}] and [K, N]")


def _gather(group, name: str, x, gather_dim: int):
    """What all_gather_matmul() gathers before it multiplies, or besides: its argument of that name."""
    return as_part(group, ("all_gather_matmul", name, "gather_dim"), all_gather, x, dim=gather_dim)


def as_part(group, caller, collective, x, **options):
    """A collective that is part of what the user has called, whose errors say so."""
    if _route.is_compiling():
        return collective(x, group=group, **options)
    found = group_of(group)
    with found.calls_as(caller):
        return collective(x, group=group, **options)


class _Weight(NamedTuple):
    """One of a list of b, with what the call has for it."""

    b: Any
    scale: Any  # None without
    result: Optional[str]  # the element type of its product by name, where there are scales
    out: Any


def _weights(op: str, b, scale_a, scale_b, out_dtype, out) -> List[_Weight]:
    count = len(b)
    if count == 0:
        raise UserError(f"{op}: b is an empty list, need one array at least")
    if isinstance(scale_a, (list, tuple)):
        raise UserError(f"{op}: scale_a is a list, need one array, which goes with every b")
    if isinstance(out_dtype, (list, tuple)):
        dtypes = several(op, out_dtype, count, "out_dtype", "dtypes, one for each b")
    else:
        dtypes = (out_dtype,) * count
    none = (None,) * count
    scales = several(op, scale_b, count, "scale_b", "arrays, one for each b") or none
    outs = several(op, out, count) or none
    return [
        _Weight(weight, scale, result_dtype(op, scale_a, scale, dtype, each), each)
        for weight, scale, dtype, each in zip(b, scales, dtypes, outs)
    ]


def _gather_for_several(op: str, a, scale_a, weights: List[_Weight], gather_dim, group):
    """(gathered a, [its product with each of the weights])."""
    in_place, is_last = any(w.out is not None for w in weights), _is_last(op, gather_dim, a)
    if not in_place:
        if is_last:
            for w in weights:
                _check_factors(op, a, w.b, group_of(group).size)
            gathered = _gather(group, "a_shard", a, gather_dim)
            return gathered, [_own_product(op, group, gathered, w.b) for w in weights]
        if _route.wants(a, scale_a, *(x for w in weights for x in (w.b, w.scale))):
            return _gather_for_several_in_graphs(a, scale_a, weights, gather_dim, name_of(group))
    group, gathered, scales, both = group_of(group), None, None, None
    try:
        outs = _outs_apart(op, group, a, weights, gather_dim) if in_place else [None] * len(weights)
        if outs[0] is not None and scale_a is None and not is_last:
            both = _gathered_rows(op, a, gather_dim, group.size), outs[0]
    except Exception as error:
        group.refuse(op, error)
        raise
    if scale_a is not None:
        gathered, scales = gather_with_scales(group, a, scale_a, gather_dim)
    elif is_last:
        gathered = _gather(group, "a_shard", a, gather_dim)
    own, made = group.alone(), []
    try:
        for w, out in zip(weights, outs):
            if gathered is None:
                gathered, c = group.call(_all_gather_and_matmul, gather_dim, both, a, w.b)
            elif scales is None:
                c = own.call(_all_gather_matmul, 0, out, gathered, w.b)
            else:
                c = own.call(scaled_op(op, w.result), 0, out, gathered, w.b, scales, w.scale)
            made.append(c)
        for i, (w, out) in enumerate(zip(weights, outs)):
            if out is None and w.out is not None:
                made[i] = _copied(op, w.out, made[i])
    except Exception as error:
        error.is_settled = True  # the others have their rows, and products of their own
        if isinstance(error, UserError):
            error.args = (f"{error} (of b[{len(made)}])",)
        raise
    return gathered, made


@_route.beside_graphs
def _outs_apart(op: str, group, a, weights: List[_Weight], gather_dim: int) -> List[Any]:
    """Where launches write: what the caller has given, or nowhere if later ones may read there."""
    outs = [w.out for w in weights]
    _check_outs(op, group, a, weights, gather_dim)
    written = [x for x in outs if x is not None]
    later = [x for w in weights[1:] for x in (w.b, w.scale) if x is not None]
    if group.plans.are_apart(written, later):
        return outs
    kind, _ = adopt(op, "a_shard", a)
    named = {f"out[{i}]": x for i, x in enumerate(outs) if x is not None}
    read = {f"b[{i}]": w.b for i, w in enumerate(weights)}
    read |= {f"scale_b[{i}]": w.scale for i, w in enumerate(weights) if w.scale is not None}
    read = {name: x for name, x in read.items() if not name.endswith("[0]")}
    written, later = same_kind(op, kind, **named), same_kind(op, kind, **read)
    check_apart(op, kind, written)
    return [None] * len(outs) if any(may_overlap(kind, x, *later) for x in written) else outs


def _check_outs(op: str, group, a, weights: List[_Weight], gather_dim: int) -> None:
    """Of all products, the last of which are launched when other ranks have gone on. Where the factors do not fit,
    their product says so."""
    kind, a = adopt(op, "a_shard", a)
    if a.ndim < 2 or not -a.ndim <= gather_dim < a.ndim:
        return
    lead = list(a.shape[:-1])
    if not _is_last(op, gather_dim, a):
        lead[gather_dim % a.ndim] *= group.size
    for i, w in enumerate(weights):
        if w.out is None:
            continue
        _, b = adopt(op, f"b[{i}]", w.b)
        if b.ndim == 2:
            shape = (*lead, b.shape[1])
            checked_result(op, kind, w.out, shape, w.result or kind.dtype(a), f"out[{i}]")


def _gathered_rows(op: str, a, gather_dim: int, times: int):
    """An array for the rows of that many ranks."""
    kind, a = adopt(op, "a_shard", a)
    shape = list(a.shape)
    shape[axis(op, "gather_dim", gather_dim, a.ndim)] *= times
    return kind.empty(shape, a)


def _copied(op: str, out, made):
    kind = kind_of(made)
    result, _ = make_result(op, kind, out, made.shape, made)
    return finish(kind, result, made)


def _gather_for_several_in_graphs(a, scale_a, weights: List[_Weight], gather_dim, group: str):
    if scale_a is None:
        first, *others = weights
        gathered, c = _route.layer.all_gather_and_matmul(a, first.b, gather_dim, group)
        return gathered, [c, *(gathered @ w.b for w in others)]
    gathered, scales = _route.forward.all_gather_with_scales(a, scale_a, gather_dim, group)
    own = _route.forward.scaled_matmul
    return gathered, [own(gathered, w.b, scales, w.scale, w.result, group) for w in weights]


def gather_with_scales(group, a, scale_a, gather_dim: int):
    """All ranks' rows, and the scales of each."""
    op = "all_gather_matmul"
    try:
        kind, x = adopt(op, "a_shard", a)
        (scale,) = same_kind(op, kind, scale_a=scale_a)
        scale = scales_of_rows(kind, x, scale)
    except Exception as error:
        group.refuse(op, error)
        raise
    gathered = _gather(group, "a_shard", a, gather_dim)
    return gathered, _gather(group, "scale_a", scale, gather_dim)


def _all_gather_matmul(group, a, b, gather_dim, out):
    op = "all_gather_matmul"
    return _gathered(product(op, group, a, b, _parts(op, group, gather_dim, a)), gather_dim, out)


def _all_gather_and_matmul(group, a, b, gather_dim, out):
    """(gathered a, result), as `out` is where it is given."""
    op = "all_gather_matmul"
    p = product(op, group, a, b, _parts(op, group, gather_dim, a))
    return _gathered(p, gather_dim, out, return_a=True)


def _gathered(p, gather_dim, out, return_a: bool = False):
    dim = axis(p.op, "gather_dim", gather_dim, p.a.ndim)
    if dim == p.a.ndim - 1:
        return (_columns_gathered_first if return_a else _columns_gathered)(p, dim, out)
    lead = list(p.a.shape[:-1])
    lead[dim] *= p.group.size
    rows, out = (out or (None, None)) if return_a else (None, out)
    if return_a and p.columns == 0:
        return _rows_alone(p, dim, lead, rows, out)
    made = result_along(p.op, p.kind, out, lead + [p.columns], dim, p.like, p.read)
    outputs, whole = {"c": made.target}, None
    if return_a:
        whole = result_along(p.op, p.kind, rows, lead + [p.a.shape[-1]], dim, p.a)
        outputs["gathered"] = whole.target
    p.launch("ag_gemm", math.prod(lead), dim, outputs, gathered=return_a)
    return (whole.finish(), made.finish()) if return_a else made.finish()


def _rows_alone(p, dim, lead, rows, out):
    """(gathered a, a result without columns)."""
    result, _ = make_result(p.op, p.kind, out, lead + [0], p.like)
    with p.group.calls_as((p.op, "a_shard", "gather_dim")):
        return _all_gather(p.group, p.a, dim, rows), result


def _columns_gathered_first(p, dim, out):
    """(all columns, what they make), one after the other."""
    columns, out = out or (None, None)
    shape = (*p.a.shape[:-1], p.columns)
    result, written = make_result(p.op, p.kind, out, shape, p.like, p.read)
    with p.group.calls_as((p.op, "a_shard", "gather_dim")):
        gathered = _all_gather(p.group, p.a, dim, columns)
    p._replace(a=gathered).launch("gemm", math.prod(shape[:-1]), dim, {"c": written})
    return gathered, finish(p.kind, result, written)


def _columns_gathered(p, dim, out):
    if p.group.options.products == "sequence" and p.scales is None and p.group.size > 1:
        columns = (*p.a.shape[:-1], p.summed)
        return _columns_gathered_first(p, dim, (p.group.kept.room(p.kind, "columns", columns, p.a), out))[1]
    shape = (*p.a.shape[:-1], p.columns)
    result, written = make_result(p.op, p.kind, out, shape, p.like, p.read)
    p.launch("ag_columns_gemm", math.prod(shape[:-1]), dim, {"c": written})
    return finish(p.kind, result, written)


_all_gather_and_matmul.__name__ = "all_gather_matmul"  # what users call it


def all_gather_matmul_and_keep(group, a, b, _, out):
    """all_gather(a, dim=0) @ b, for Group.call. The gathered rows are in kept_rows(group, a) then, until
    the next such call of that shape."""
    p = product("all_gather_matmul", group, a, b)
    lead = (p.a.shape[0] * group.size, *p.a.shape[1:-1])
    result, written = make_result(p.op, p.kind, out, (*lead, p.columns), p.like, p.read)
    kept = kept_rows(group, p.a)
    group.kept.stays(p.kind, kept)
    p.launch("ag_gemm", math.prod(lead), 0, {"c": written, "gathered": kept}, gathered=True)
    return finish(p.kind, result, written)


def kept_rows(group, a):
    """[P * rows of a, K] in symmetric memory, where peers put their rows without a copy from there."""
    rows = group.size * math.prod(a.shape[:-1])
    return workspace(group, kind_of(a), "kept rows", (rows, a.shape[-1]), a)


@counted
def matmul_reduce_scatter(
    a: ArrayT,
    b: ArrayT,
    *,
    scatter_dim: int = 0,
    reduce_op: str = "sum",
    scale_a: Optional[ArrayT] = None,
    scale_b: Optional[ArrayT] = None,
    out_dtype: Any = None,
    group: GroupLike = None,
    out: Optional[ArrayT] = None,
) -> ArrayT:
    """reduce_scatter(a @ b, dim=scatter_dim), where each block of rows leaves for its owner while
    later ones are still multiplied.

    `a`: [.., K] and `b`: [K, N], each rank's own. Result: [.., N] with 1/P of the size along
    `scatter_dim`. As torch.ops.symm_mem.fused_matmul_reduce_scatter: reduce_op "sum" or "avg".
    Partial sums are rounded to the element type once, summed in float32 in rank order, and divided
    before they are rounded again. Scales as in `all_gather_matmul`; partial sums are scaled before
    they leave. `scatter_dim` the last, or -1: product and reduce-scatter of its columns follow each
    other; not with scales.
    """
    op = "matmul_reduce_scatter"
    result = result_dtype(op, scale_a, scale_b, out_dtype, out)
    average = is_average(op, reduce_op)
    scatter_dim = whole(op, "scatter_dim", scatter_dim)
    if _is_last(op, scatter_dim, a):
        _refuse_scales(op, "scatter_dim", scatter_dim, result)
        if out is None and _route.casts(a, b):
            _check_factors(op, a, b)
            partial, caller = _own_product(op, group, a, b), (op, "a @ b", "scatter_dim")
            return as_part(group, caller, reduce_scatter, partial, dim=-1, reduce_op=reduce_op)
    factors = factors_of(a, b, scale_a, scale_b, result)
    if out is None and _route.wants(*factors):
        return in_graphs(op, factors, result, group, scatter_dim, reduce_op)
    body = _scatter_op(average) if result is None else scaled_op(op, result, average)
    return group_of(group).call(body, scatter_dim, out, *factors)


@functools.lru_cache(maxsize=None)
@_route.beside_graphs
def _scatter_op(average: bool):
    def call(group, a, b, scatter_dim, out):
        p = product("matmul_reduce_scatter", group, a, b)
        return _scattered(p._replace(average=average), scatter_dim, out)

    call.__name__ = "matmul_reduce_scatter"
    return call


def _scattered(p, scatter_dim, out):
    dim, size = axis(p.op, "scatter_dim", scatter_dim, p.a.ndim), p.group.size
    if dim == p.a.ndim - 1:
        return _columns_scattered(p, dim, out)
    if p.a.shape[dim] % size:
        raise UserError(
            f"{p.op}: {p.a.shape[dim]} along scatter_dim {dim} cannot be split over {size} ranks"
        )
    shape = list(p.a.shape[:-1]) + [p.columns]
    shape[dim] //= size
    made = result_along(p.op, p.kind, out, shape, dim, p.like, p.read)
    outputs = {"out": made.target}
    p.launch("gemm_rs", math.prod(p.a.shape[:-1]), dim, outputs, average=p.average)
    return made.finish()


def _columns_scattered(p, dim, out):
    """One after the other."""
    if p.scales is not None:
        raise UserError(f"{p.op}: scatter_dim {dim} is the last, which goes without scales")
    group, shape = p.group, (*p.a.shape[:-1], p.columns)
    if p.columns % group.size:
        raise UserError(
            f"{p.op}: {p.columns} along scatter_dim {dim} cannot be split over {group.size} ranks"
        )
    if group.size == 1:
        result, partial = make_result(p.op, p.kind, out, shape, p.like, p.read)
    else:
        own = (*shape[:-1], shape[-1] // group.size)
        if out is not None:
            checked_result(p.op, p.kind, out, own, p.kind.dtype(p.like))
        result, partial = None, group.kept.room(p.kind, "product", shape, p.like)
    p.launch("gemm", math.prod(shape[:-1]), dim, {"c": partial})
    if group.size == 1:
        return finish(p.kind, result, partial)
    with group.calls_as((p.op, "a @ b", "scatter_dim")):
        return _reduce_scatter(group, partial, dim, out, reduction(p.op, "avg" if p.average else "sum"))


@counted
def matmul_all_reduce(
    a: ArrayT,
    b: ArrayT,
    *,
    scale_a: Optional[ArrayT] = None,
    scale_b: Optional[ArrayT] = None,
    out_dtype: Any = None,
    group: GroupLike = None,
    out: Optional[ArrayT] = None,
) -> ArrayT:
    """all_reduce(a @ b): `a` [.., K] and `b` [K, N], each rank's own, -> [.., N] on every rank, the
    same bits on all. Scales as in `matmul_reduce_scatter`."""
    op = "matmul_all_reduce"
    result = result_dtype(op, scale_a, scale_b, out_dtype, out)
    factors = factors_of(a, b, scale_a, scale_b, result)
    if out is None and _route.wants(*factors):
        replicated = () if result is not None else (False,)
        return in_graphs(op, factors, result, group, *replicated)
    body = _matmul_all_reduce if result is None else scaled_op(op, result)
    return group_of(group).call(body, 0, out, *factors)


def _matmul_all_reduce(group, a, b, _, out):
    return _reduced(product("matmul_all_reduce", group, a, b), 0, out)


def _reduced(p, _, out):
    shape = tuple(p.a.shape[:-1]) + (p.columns,)
    result, written = make_result(p.op, p.kind, out, shape, p.like, p.read)
    p.launch("gemm_ar", math.prod(shape[:-1]), 0, {"out": written})
    return finish(p.kind, result, written)


def columns_collected(p, _, out):
    """Of matmul_all_gather, which spread_columns.py has."""
    shape = (*p.a.shape[:-1], p.group.size * p.columns)
    result, written = make_result(p.op, p.kind, out, shape, p.like, p.read)
    p.launch("gemm_ag", math.prod(shape[:-1]), 0, {"c": written})
    return finish(p.kind, result, written)


_BODIES = {
    "all_gather_matmul": _gathered,
    "matmul_reduce_scatter": _scattered,
    "matmul_all_reduce": _reduced,
    "matmul_all_gather": columns_collected,
}
