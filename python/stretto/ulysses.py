"""The linear layers around attention whose heads are spread over the ranks while tokens are spread
elsewhere (Ulysses); see ops.py for what all operators have in common. They have no gradient."""

from __future__ import annotations

from typing import Optional

from . import _route
from ._adopt import adopt
from ._arrays import ArrayT
from ._calls import computed_dtype, described, finish, make_result, same_kind
from ._world import GroupLike, counted, group_of, name_of
from .errors import UserError


@counted
def matmul_all_to_all(
    a: ArrayT,
    b: ArrayT,
    *,
    bias: Optional[ArrayT] = None,
    group: GroupLike = None,
    out: Optional[ArrayT] = None,
) -> ArrayT:
    """all_gather(a) @ b + bias for the own heads' columns of b, where tiles of the other ranks' go
    there as they are done: the product before attention with spread heads.

    `a`: [m / P, K], this rank's tokens. `b`: [K, N] and `bias`: [N], the same on every rank; of P
    equal parts of the columns the r-th is for the heads of rank r. The transpose of a dense [N, K]
    costs no copy. Result [m, N / P]: all tokens, by rank. float32 accumulation, rounded once.
    """
    arrays = (a, b) if bias is None else (a, b, bias)
    if out is None and _route.wants(*arrays):
        return _route.forward.matmul_all_to_all(a, b, bias, name_of(group))
    return group_of(group).call(_matmul_all_to_all, 0, out, *arrays)


def _matmul_all_to_all(group, *arguments):
    *arrays, _, out = arguments
    op, size = "matmul_all_to_all", group.size
    kind, dtype, a, bt, bias = _factors(op, arrays, 1)
    if bt.shape[0] % size:
        raise UserError(f"{op}: {bt.shape[0]} columns cannot be split over {size} ranks")
    result = (a.shape[0] * size, bt.shape[0] // size)
    return _launch(group, op, "gemm_a2a", kind, dtype, (a, bt, *bias), result[0], out, result)


@counted
def all_to_all_matmul(
    a: ArrayT,
    b: ArrayT,
    *,
    bias: Optional[ArrayT] = None,
    group: GroupLike = None,
    out: Optional[ArrayT] = None,
) -> ArrayT:
    """all_to_all(a) @ b + bias, where rows are multiplied as they come: the product after attention
    with spread heads.

    `a`: [m, K / P], all tokens, by rank, of this rank's heads. `b`: [K, N] and `bias`: [N], the same
    on every rank; of P equal parts of b's rows the r-th is for the heads of rank r. The transpose
    of a dense [N, K] costs no copy. Result [m / P, N], this rank's tokens. float32 accumulation,
    rounded once.
    """
    arrays = (a, b) if bias is None else (a, b, bias)
    if out is None and _route.wants(*arrays):
        return _route.forward.all_to_all_matmul(a, b, bias, name_of(group))
    return group_of(group).call(_all_to_all_matmul, 0, out, *arrays)


def _all_to_all_matmul(group, *arguments):
    *arrays, _, out = arguments
    op, size = "all_to_all_matmul", group.size
    kind, dtype, a, bt, bias = _factors(op, arrays, size)
    rows = a.shape[0]
    if rows % size:
        raise UserError(f"{op}: {rows} rows cannot be split over {size} ranks")
    result = (rows // size, bt.shape[0])
    return _launch(group, op, "a2a_gemm", kind, dtype, (a, bt, *bias), rows, out, result)


def _factors(op: str, arrays, parts: int):
    """(kind, dtype, a, b transposed and dense, [bias] or nothing); a has one of so many parts of
    the columns."""
    kind, a = adopt(op, "a", arrays[0])
    b, *bias = same_kind(op, kind, **dict(zip(("b", "bias"), arrays[1:])))
    dtype = computed_dtype(op, kind, dict(zip(("a", "b", "bias"), (a, b, *bias))), doubles=False)
    shapes = [tuple(x.shape) for x in (a, b, *bias)]
    if (
        a.ndim != 2
        or b.ndim != 2
        or a.shape[1] * parts != b.shape[0]
        or min(shapes[0][1:] + shapes[1]) < 1
        or (bias and shapes[2] != (b.shape[1],))
    ):
        of_a = "[rows, K]" if parts == 1 else f"[rows, K / {parts}]"
        raise UserError(f"{op}: shapes {shapes}; need {of_a}, [K, N] and, where given, bias [N]")
    return kind, dtype, a, kind.dense(kind.transpose(b)), bias


def _launch(group, op: str, program: str, kind, dtype: str, arrays, rows: int, out, shape):
    """`program` over `rows` tokens of all ranks."""
    a, bt, *bias = arrays
    result, written = make_result(op, kind, out, shape, a, arrays)
    weights = {"b": kind.transpose(bt), "bias": bias[0]} if bias else {"b": kind.transpose(bt)}
    said = described(op, kind, {"a": a, **weights})
    if rows == 0:
        group.agree_on_nothing(said)
        return finish(kind, result, written)
    sizes = {"n": bt.shape[0], "k": bt.shape[1], "bias": bool(bias)}
    desc = {"world_size": group.size, "dtype": dtype, "weight_dtype": dtype, **sizes}
    shape = (kind.on_gpu, program, *desc.values())
    bound, exact = group.bound(shape, rows)  # a proof for any number of rows takes seconds
    group.launch_operator(
        kind,
        program,
        {**desc, "m": bound},
        ("a", "b", "bias", "c") if bias else ("a", "b", "c"),
        (kind.dense(a), bt, *(kind.dense(x) for x in bias), written),
        (rows,),
        said=said,
        at_bounds=exact,
    )
    group.launched(shape, rows)
    return finish(kind, result, written)
