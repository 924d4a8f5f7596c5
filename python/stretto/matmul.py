"""Matrix products that overlap with collectives; see ops.py for what all operators have in
common."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple, Optional, Sequence, Tuple, Union

from . import _core, _route
from ._arrays import COMPUTED, ArrayT, adopt, dtype_name, kind_of
from ._calls import (
    axis,
    computed_dtype,
    finish,
    is_average,
    make_result,
    result_along,
    same_kind,
)
from ._world import GroupLike, group_of, name_of, refuse
from .collectives import all_gather, reduce_scatter
from .errors import UserError
from .symm_mem import workspace

_FP8 = "float8_e4m3fn"
_BLOCK = 128  # elements that have one scale


class _Scales(NamedTuple):
    form: str  # as stretto/ops/gemm/linear.h names it
    a: Any  # [.., 1] or [.., K / 128]
    b: Any  # [1, N] or [N / 128, K / 128], dense


class _Size(NamedTuple):
    """Of the launches of a call."""

    rows: int
    bound: int  # the most rows that their programs may have
    exact: bool  # and no others
    said: str  # what else of the call is the same on all ranks


class _Product(NamedTuple):
    """a [.., K] times b [K, N], of a rank of `group`."""

    op: str
    group: Any
    kind: Any
    dtype: str
    a: Any
    weights: Any  # dense, [N, K], or [K, N] with b_kn
    b_kn: bool
    like: Any  # an array of the result's element type
    scales: Optional[_Scales] = None
    average: bool = False  # of the ranks' products, instead of their sum

    @property
    def columns(self) -> int:
        return self.weights.shape[1 if self.b_kn else 0]

    def rows_of(self, x, dim: int):
        """a, or its scales, dense and with `dim` first."""
        return self.kind.dense(self.kind.move(x, dim, 0))

    @property
    def read(self) -> Sequence[Any]:
        """What a launch still reads when it writes."""
        return (self.a, self.weights, *(self.scales[1:] if self.scales else ()))

    def launch(self, program: str, rows: int, dim: int, outputs: dict, **fields) -> None:
        """`program` of _core over `rows` of all ranks, or collective and product one after the
        other, with these arrays as its outputs. `fields`: those of its Desc that others lack."""
        said = f"{list(self.a.shape)}, dim {dim}{', avg' if self.average else ''}"
        if rows == 0:
            self.group.agree_on_nothing(self.op, self.kind, self.a, f"{said}, {self.columns} columns")
            return
        kind, names = self.kind, ("a", "b", *outputs)
        arrays = (self.rows_of(self.a, dim), self.weights, *outputs.values())
        form = "none"
        if self.scales is not None:
            form, scale_a, scale_b = self.scales
            names += ("scale_a", "scale_b")
            arrays += (self.rows_of(scale_a, dim), scale_b)
        desc = {
            "world_size": self.group.size,
            "n": self.columns,
            "k": self.a.shape[-1],
            "dtype": self.dtype,
            "scaling": form,
            "b_kn": self.b_kn,
            "result_dtype": kind.dtype(self.like),
            "products": self.group.options.products,
            **fields,
        }
        op = program, *desc.values()
        # What peers reach into has the size of the program's tensor, of which a caller knows nothing.
        reached = any(self.group.is_symmetric(kind.address(x)) for x in arrays)
        bound, exact = (rows, True) if reached else self.group.bound((kind.on_gpu, op), rows)
        desc["m"] = bound
        make, key = getattr(_core, program), (*op, bound)
        steps = self.group.programs(kind, key, lambda on_gpu: make(on_gpu, **desc))
        size = _Size(rows, bound, exact, said)
        if len(steps) == 1:
            self._launch_step(key, steps[0], size, dict(zip(names, arrays)))
        elif program == "ag_gemm":
            self._gather_then_multiply(key, steps, size, arrays[0], outputs)
        else:
            self._multiply_then_collect(key, steps, size, arrays[0], outputs["out"])
        if not reached:
            self.group.launched((kind.on_gpu, op), rows)

    def _launch_step(self, key, program, size: _Size, tensors: dict) -> None:
        names, arrays = tuple(tensors), tuple(tensors.values())
        options = {"at_bounds": size.exact, "said": size.said}
        self.group.launch(self.kind, key, lambda _: program, names, arrays, (size.rows,), **options)

    def _between(self, size: _Size, columns: int, like):
        """What the first step leaves for the second, where peers can read it."""
        made = workspace(self.group, self.kind, self.op, (size.bound, columns), like)
        self.group.stays(self.kind, made)
        return made[: size.rows]

    def _gather_then_multiply(self, key, steps, size: _Size, a, outputs: dict) -> None:
        gathered = outputs.get("gathered")
        if gathered is None:
            gathered = self._between(size, self.a.shape[-1], self.a)
        self._launch_step((*key, 0), steps[0], size, {"in": a, "out": gathered})
        product = {"a": gathered, "b": self.weights, "c": outputs["c"]}
        self._launch_step((*key, 1), steps[1], size, product)

    def _multiply_then_collect(self, key, steps, size: _Size, a, out) -> None:
        partial = self._between(size, self.columns, self.like)
        product = {"a": a, "b": self.weights, "c": partial}
        self._launch_step((*key, 0), steps[0], size, product)
        self._launch_step((*key, 1), steps[1], size, {"in": partial, "out": out})


def _factors(op: str, a, b) -> Tuple[Any, Any, Any]:
    """(kind, a, b)."""
    kind, a = adopt(a)
    (b,) = same_kind(op, kind, b)
    if a.ndim < 2 or b.ndim != 2 or a.shape[-1] != b.shape[0]:
        raise UserError(
            f"{op}: shapes {tuple(a.shape)} and {tuple(b.shape)}; need [.., K] and [K, N]"
        )
    return kind, a, b


def _product(op: str, group, a, b) -> _Product:
    kind, a, b = _factors(op, a, b)
    if kind.dtype(a) == _FP8:
        raise UserError(f"{op}: factors of {_FP8} need scale_a and scale_b")
    dtype, bt = computed_dtype(op, kind, a, b), kind.transpose(b)
    b_kn = kind.is_dense(b) and not kind.is_dense(bt)
    return _Product(op, group, kind, dtype, a, kind.dense(b if b_kn else bt), b_kn, a)


def _filled(kind, scale, shape):
    """One scale for all."""
    made = kind.empty(shape, scale)
    kind.assign(made, scale.reshape(()))
    return made


def _scales(op: str, kind, a, b, scale_a, scale_b) -> _Scales:
    lead, (k, n) = tuple(a.shape[:-1]), b.shape
    shapes = tuple(scale_a.shape), tuple(scale_b.shape)
    blocks = -(-k // _BLOCK), -(-n // _BLOCK)
    if shapes == (lead + (1,), (1, n)):
        return _Scales("row-wise", scale_a, kind.dense(scale_b))
    if shapes == (lead + (blocks[0],), blocks):
        return _Scales("block", scale_a, kind.dense(kind.transpose(scale_b)))
    if math.prod(shapes[0]) == 1 and math.prod(shapes[1]) == 1:
        return _Scales(
            "row-wise", _filled(kind, scale_a, lead + (1,)), _filled(kind, scale_b, (1, n))
        )
    raise UserError(
        f"{op}: scales {shapes[0]} and {shapes[1]}; need one number each, {lead + (1,)} and "
        f"{(1, n)} for rows, or {lead + (blocks[0],)} and {blocks} for blocks of {_BLOCK}"
    )


def _scaled_product(op: str, group, a, b, scale_a, scale_b, out_dtype: str) -> _Product:
    kind, a, b = _factors(op, a, b)
    scale_a, scale_b = same_kind(op, kind, scale_a, scale_b)
    for x, want in ((a, _FP8), (b, _FP8), (scale_a, "float32"), (scale_b, "float32")):
        if kind.dtype(x) != want:
            raise UserError(
                f"{op}: with scales, factors are {_FP8} and scales float32, not {kind.dtype(x)}"
            )
    scales = _scales(op, kind, a, b, scale_a, scale_b)
    bt, like = kind.dense(kind.transpose(b)), kind.from_dtype(out_dtype, (0,), a)
    return _Product(op, group, kind, _FP8, a, bt, False, like, scales)


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
def scaled_op(op: str, out_dtype: str, average: bool = False):
    """The operator of that name for factors with scales; the same object each time."""
    body = _BODIES[op]

    def call(group, a, b, scale_a, scale_b, option, out):
        p = _scaled_product(op, group, a, b, scale_a, scale_b, out_dtype)
        return body(p._replace(average=average), option, out)

    call.__name__ = op
    return call


def all_gather_matmul(
    a_shard: ArrayT,
    b: Union[ArrayT, Sequence[ArrayT]],
    *,
    gather_dim: int = 0,
    return_a: bool = False,
    scale_a: Optional[ArrayT] = None,
    scale_b: Optional[ArrayT] = None,
    out_dtype: Any = None,
    group: GroupLike = None,
    out: Optional[ArrayT] = None,
) -> Any:
    """all_gather(a_shard, dim=gather_dim) @ b, where each tile of the product starts as soon as its
    rows are there.

    `a_shard`: [.., K], this rank's part. `b`: [K, N], each rank's own, dense or the transpose of a
    dense [N, K], as linear layers keep their weights, alike on all ranks. Result: [.., N], with P
    times the size along `gather_dim`. `return_a`: returns (gathered a, result), at the price of a
    copy; with scales, of an all_gather. As torch.ops.symm_mem.fused_all_gather_matmul; float32
    accumulation, rounded once.

    `gather_dim` the last, or -1: what is summed over is gathered, so `b` is [P * K, N] and the
    result [.., N]. Gathering and product follow each other then; not with scales.

    A list of several `b`, such as a layer's query, key and value weights: a list of results. Rows
    are gathered once, beside the first product, and the others follow: the largest comes first.

    `scale_a`, `scale_b`: float32, which make factors of float8_e4m3fn stand for numbers, each
    rank's own, as torch._scaled_mm takes them: one number each; of rows, [.., 1] and [1, N]; or of
    blocks of 128 along K and N, [.., ceil(K/128)] and [ceil(K/128), ceil(N/128)], of which the
    latter costs no copy where it is the transpose of a dense array. The result is of `out_dtype`, a
    dtype or its name, default that of `out`, or bfloat16. Products with scales have no gradient.
    """
    op = "all_gather_matmul"
    try:
        has_several = isinstance(b, (list, tuple))
        options = scale_a, scale_b, out_dtype, out
        if has_several and (not b or any(x is not None for x in options)):
            raise UserError(
                f"{op}: a list of b needs one at least, and goes without scales and out"
            )
        result = result_dtype(op, scale_a, scale_b, out_dtype, out)
        is_last = _is_last(gather_dim, a_shard)
        if is_last:
            _refuse_scales(op, "gather_dim", gather_dim, result)
    except Exception as error:
        refuse(group, op, error)
        raise
    if has_several:
        gathered, made = _gather_for_several(a_shard, b, gather_dim, group)
        return (gathered, made) if return_a else made
    if is_last:
        gathered = all_gather(a_shard, dim=gather_dim, group=group)
        c = _own_product(group, gathered, b, out)
        return (gathered, c) if return_a else c
    if result is not None:
        arrays = (a_shard, b, scale_a, scale_b)
        if out is None and _route.wants(*arrays):
            c = _route.layer.all_gather_scaled_matmul(*arrays, gather_dim, result, name_of(group))
        else:
            c = group_of(group).call(scaled_op(op, result), gather_dim, out, *arrays)
    elif out is None and _route.wants(a_shard, b):
        name = "all_gather_and_matmul" if return_a else "all_gather_matmul"
        return getattr(_route.layer, name)(a_shard, b, gather_dim, name_of(group))
    elif return_a and out is None:
        return group_of(group).call(_all_gather_and_matmul, gather_dim, None, a_shard, b)
    else:
        c = group_of(group).call(_all_gather_matmul, gather_dim, out, a_shard, b)
    return (all_gather(a_shard, dim=gather_dim, group=group), c) if return_a else c


def _is_last(dim: int, x) -> bool:
    """Whether it is the dimension of x that a product sums over, or spreads over its columns."""
    if dim == 0:
        return False
    ndim = x.ndim if hasattr(x, "ndim") else adopt(x)[1].ndim
    return dim in (-1, ndim - 1)


def _refuse_scales(op: str, name: str, dim: int, result: Optional[str]) -> None:
    if result is not None:
        raise UserError(f"{op}: {name} {dim} is the last, which goes without scales")


def _own_product(group, a, b, out=None):
    """a @ b of this rank alone."""
    if out is None and _route.wants(a, b):
        return a @ b
    return group_of(group).alone().call(_all_gather_matmul, 0, out, a, b)


def _gather_for_several(a, weights, gather_dim, group):
    """(gathered a, [its product with each of the weights])."""
    if _is_last(gather_dim, a):
        gathered = all_gather(a, dim=gather_dim, group=group)
        return gathered, [_own_product(group, gathered, b) for b in weights]
    if _route.wants(a, *weights):
        op = _route.layer.all_gather_and_matmul
        gathered, first = op(a, weights[0], gather_dim, name_of(group))
        return gathered, [first, *(gathered @ b for b in weights[1:])]
    group = group_of(group)
    gathered, first = group.call(_all_gather_and_matmul, gather_dim, None, a, weights[0])
    own = group.alone()
    return gathered, [
        first,
        *(own.call(_all_gather_matmul, 0, None, gathered, b) for b in weights[1:]),
    ]


def _all_gather_matmul(group, a, b, gather_dim, out):
    return _gathered(_product("all_gather_matmul", group, a, b), gather_dim, out)


def _all_gather_and_matmul(group, a, b, gather_dim, _):
    """(gathered a, result)."""
    return _gathered(_product("all_gather_matmul", group, a, b), gather_dim, None, return_a=True)


def _gathered(p, gather_dim, out, return_a: bool = False):
    dim = axis(p.op, "gather_dim", gather_dim, p.a.ndim)
    if dim == p.a.ndim - 1:
        raise UserError(f"{p.op}: gather_dim {gather_dim} is the one that is summed over")
    lead = list(p.a.shape[:-1])
    lead[dim] *= p.group.size
    made = result_along(p.op, p.kind, out, lead + [p.columns], dim, p.like, p.read)
    outputs, whole = {"c": made.target}, None
    if return_a:
        whole = result_along(p.op, p.kind, None, lead + [p.a.shape[-1]], dim, p.a)
        outputs["gathered"] = whole.target
    p.launch("ag_gemm", math.prod(lead), dim, outputs, gathered=return_a)
    return (whole.finish(), made.finish()) if return_a else made.finish()


def all_gather_matmul_and_keep(group, a, b, _, out):
    """all_gather(a, dim=0) @ b, for Group.call. The gathered rows are in kept_rows(group, a) then, until
    the next such call of that shape."""
    p = _product("all_gather_matmul", group, a, b)
    lead = (p.a.shape[0] * group.size, *p.a.shape[1:-1])
    result, written = make_result(p.op, p.kind, out, (*lead, p.columns), p.like, p.read)
    kept = kept_rows(group, p.a)
    group.stays(p.kind, kept)
    p.launch("ag_gemm", math.prod(lead), 0, {"c": written, "gathered": kept}, gathered=True)
    return finish(p.kind, result, written)


def kept_rows(group, a):
    """[P * rows of a, K] in symmetric memory, where peers put their rows without a copy from there."""
    rows = group.size * math.prod(a.shape[:-1])
    return workspace(group, kind_of(a), "kept rows", (rows, a.shape[-1]), a)


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
    try:
        result = result_dtype(op, scale_a, scale_b, out_dtype, out)
        average = is_average(op, reduce_op)
        is_last = _is_last(scatter_dim, a)
        if is_last:
            _refuse_scales(op, "scatter_dim", scatter_dim, result)
            partial = _own_product(group, a, b)
    except Exception as error:
        refuse(group, op, error)
        raise
    if is_last:
        return reduce_scatter(partial, dim=-1, reduce_op=reduce_op, group=group, out=out)
    arrays = (a, b) if result is None else (a, b, scale_a, scale_b)
    if out is None and _route.wants(*arrays):
        options = scatter_dim, reduce_op
        if result is None:
            return _route.layer.matmul_reduce_scatter(a, b, *options, name_of(group))
        made = _route.layer.scaled_matmul_reduce_scatter
        return made(*arrays, *options, result, name_of(group))
    body = _scatter_op(average) if result is None else scaled_op(op, result, average)
    return group_of(group).call(body, scatter_dim, out, *arrays)


@functools.lru_cache(maxsize=None)
def _scatter_op(average: bool):
    def call(group, a, b, scatter_dim, out):
        p = _product("matmul_reduce_scatter", group, a, b)
        return _scattered(p._replace(average=average), scatter_dim, out)

    call.__name__ = "matmul_reduce_scatter"
    return call


def _scattered(p, scatter_dim, out):
    dim, size = axis(p.op, "scatter_dim", scatter_dim, p.a.ndim), p.group.size
    if dim == p.a.ndim - 1:
        raise UserError(f"{p.op}: scatter_dim {scatter_dim}: only dimensions of a but the last")
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
    try:
        result = result_dtype(op, scale_a, scale_b, out_dtype, out)
    except Exception as error:
        refuse(group, op, error)
        raise
    if result is not None:
        arrays = (a, b, scale_a, scale_b)
        if out is None and _route.wants(*arrays):
            return _route.layer.scaled_matmul_all_reduce(*arrays, result, name_of(group))
        return group_of(group).call(scaled_op(op, result), 0, out, *arrays)
    if out is None and _route.wants(a, b):
        return _route.layer.matmul_all_reduce(a, b, False, name_of(group))
    return group_of(group).call(_matmul_all_reduce, 0, out, a, b)


def _matmul_all_reduce(group, a, b, _, out):
    return _reduced(_product("matmul_all_reduce", group, a, b), 0, out)


def _reduced(p, _, out):
    shape = tuple(p.a.shape[:-1]) + (p.columns,)
    result, written = make_result(p.op, p.kind, out, shape, p.like, p.read)
    p.launch("gemm_ar", math.prod(shape[:-1]), 0, {"out": written})
    return finish(p.kind, result, written)


_BODIES = {
    "all_gather_matmul": _gathered,
    "matmul_reduce_scatter": _scattered,
    "matmul_all_reduce": _reduced,
}
