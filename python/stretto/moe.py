"""Mixtures of experts on one rank: routing, products of the experts' rows, weighted sums of their
results (those over the ranks, too); see ops.py for what all operators have in common. They have no
gradient. Across ranks: expert_layers.py and expert_parallel.py."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from . import _biases, _gates, _route
from ._adopt import adopt
from ._arguments import checked
from ._arrays import ArrayT
from ._calls import (
    as_table,
    bound_of,
    call_with,
    computed_dtype,
    described,
    number,
    residual_or_zeros,
    finish,
    float_array,
    floats,
    int_table,
    make_result,
    same_kind,
    whole,
    with_options,
)
from ._gates import SwiGLU, gate_of
from ._world import GroupLike, alone, counted, group_of, name_of
from .errors import UserError
from .matmul import result_dtype

_FP8 = "float8_e4m3fn"
_BLOCK = 128  # elements that have one scale


class Routing(NamedTuple):
    """Tokens' experts, and the tables by which grouped products find their rows: m tokens with
    top_k experts each are m * top_k rows, sorted by expert, within an expert by token."""

    weights: Any  # float32 [m, top_k], of each token's experts, the best first
    slots: Any  # int32 [m, top_k], their rows
    offsets: Any  # int32 [experts + 1], the first row of each expert, then all rows
    tokens: Any  # int32 [m * top_k], the token of each row


@checked
def moe_route(
    x: ArrayT,
    gate: ArrayT,
    top_k: int,
    *,
    bias: Optional[ArrayT] = None,
    scoring_func: str = "softmax",
    n_group: int = 1,
    topk_group: int = 1,
    group_score: str = "best_two",
    norm_topk_prob: bool = True,
    routed_scaling_factor: float = 1.0,
    tables: bool = False,
) -> Any:
    """The experts of each token: the top_k of scoring_func(x @ gate^T), "softmax" or "sigmoid"; not
    collective. Names are those of config.json.

    `x`: [m, H]; `gate`: [E, H], of its own element type; `bias`: float32 [E], added to scores to
    choose by, not to weights. `topk_group` of `n_group` groups of consecutive experts are left to
    choose from, those with the best `group_score`: "best_two", the sum of the two best scores in it
    (DeepSeek-V3), or "best" (DeepSeek-V2). `norm_topk_prob`: weights are divided by their sum;
    `routed_scaling_factor`: and multiplied by this. Scores are float32; of equal ones the lower
    expert comes first.

    Returns (weights float32 [m, top_k], experts int32 [m, top_k]), the best expert first; or, with
    `tables`, a Routing, made on the arrays' device without the host, the same at every call.
    """
    op, tables = "moe_route", bool(tables)
    groups = whole(op, "n_group", n_group), whole(op, "topk_group", topk_group)
    options = scoring_func, *groups, group_score, bool(norm_topk_prob)
    options += (number(op, "routed_scaling_factor", routed_scaling_factor),)
    arrays = (x, gate) if bias is None else (x, gate, bias)
    if _route.wants(*arrays):
        route = _route.forward.moe_route_tables if tables else _route.forward.moe_route
        made = route(x, gate, top_k, bias, *options)
    else:
        body = with_options(_moe_route, whole(op, "top_k", top_k), *options, tables)
        made = alone().call(body, 0, None, *arrays)
    return Routing(*made) if tables else made


def _moe_route(
    top_k, scoring, n_group, topk_group, group_score, norm, scale, tables, group, *arguments
):
    op = "moe_route"
    *arrays, _, _ = arguments
    kind, x = adopt(op, "x", arrays[0])
    gate, *bias = same_kind(op, kind, **dict(zip(("gate", "bias"), arrays[1:])))
    dtype = computed_dtype(op, kind, {"x": x}, doubles=False)
    gate_dtype = computed_dtype(op, kind, {"gate": gate}, doubles=False)
    if x.ndim != 2 or gate.ndim != 2 or x.shape[1] != gate.shape[1] or x.shape[1] < 1:
        raise UserError(
            f"{op}: shapes {tuple(x.shape)} and {tuple(gate.shape)}; need [m, H] and [E, H]"
        )
    for name, value, known in (
        ("scoring_func", scoring, ("softmax", "sigmoid")),
        ("group_score", group_score, ("best_two", "best")),
    ):
        if value not in known:
            raise UserError(f"{op}: {name} '{value}': one of {', '.join(known)}")
    (m, hidden), experts = x.shape, gate.shape[0]
    if not 1 <= top_k <= experts:
        raise UserError(f"{op}: top_k is {top_k} of {experts} experts")
    bias = [float_array(op, kind, "bias", b, (experts,)) for b in bias]
    shapes = [("weights", "float32", (m, top_k))]
    if tables:
        shapes += [("slots", "int32", (m, top_k)), ("offsets", "int32", (experts + 1,))]
        shapes.append(("tokens", "int32", (m * top_k,)))
    else:
        shapes.append(("experts", "int32", (m, top_k)))
    made = [kind.from_dtype(d, shape, x) for _, d, shape in shapes]
    if m == 0:  # of which the first row of every expert is 0
        return tuple(kind.zeros(y.shape, y) for y in made)
    group.launch_operator(
        kind,
        op,
        {
            "world_size": 1,
            "dtype": dtype,
            "weight_dtype": gate_dtype,
            "m": bound_of(m),
            "hidden": hidden,
            "num_experts": experts,
            "top_k": top_k,
            "tables": tables,
            "scoring_func": scoring,
            "bias": bool(bias),
            "n_group": n_group,
            "topk_group": topk_group,
            "group_score": group_score,
            "norm_topk_prob": norm,
            "routed_scaling_factor": scale,
        },
        ("x", "gate", *("bias" for _ in bias), *(name for name, _, _ in shapes)),
        (kind.dense(x), kind.dense(gate), *bias, *made),
        (m,),
        said=op,
    )
    return tuple(made)


@checked
def grouped_matmul(
    a: ArrayT,
    b: ArrayT,
    offsets: Optional[ArrayT] = None,
    *,
    counts: Optional[ArrayT] = None,
    tokens: Optional[ArrayT] = None,
    up: Optional[ArrayT] = None,
    bias: Optional[ArrayT] = None,
    up_bias: Optional[ArrayT] = None,
    scale_a: Optional[ArrayT] = None,
    scale_b: Optional[ArrayT] = None,
    scale_up: Optional[ArrayT] = None,
    swiglu: Optional[SwiGLU] = None,
    out_dtype: Any = None,
    out: Optional[ArrayT] = None,
) -> ArrayT:
    """One product per expert, of as many rows as a table on the device says, none or all; not
    collective.

    `b`: [E, K, N]; the transpose of a dense [E, N, K] costs no copy. `up`: as b, makes the result
    silu(a @ b) * (a @ up), or what `swiglu` says of both. `bias`: [E, N], of the result's element type,
    is added to a @ b, `up_bias` to a @ up; with `up` both or none. float32 accumulation, rounded once.

    `offsets`: int32 [E + 1], row r of `a` [R, K] belongs to expert e where offsets[e] <= r <
    offsets[e + 1] (torch._grouped_mm's offs with a 0 in front); the last entry is R. Or [E + 2], as
    ep_dispatch() makes it: rows of the last part belong to no expert, and the result's hold
    nothing. With `tokens`, int32 [R], rows are gathered: `a` is [m, K], R a multiple of m, and row
    r that of token tokens[r]. Result [R, N].

    `counts`, instead of `offsets`: int32 [E], of `a` [E, M, K] the first counts[e] rows of each
    expert count; result [E, M, N], whose other rows hold nothing (those of `out` stay).

    `scale_a` [.., ceil(K / 128)], `scale_b` (and `scale_up`) [E, ceil(K / 128), ceil(N / 128)],
    float32: factors are float8_e4m3fn and stand for numbers, a scale for every 128 of K and of N;
    the transpose of a dense scale_b costs no copy either.
    The result is of `out_dtype`, default that of `out`, or bfloat16.

    Errors: UserError for shapes and types that do not fit; a table that does not keep its promise
    is a UserError on CPUs, on GPUs a Fault that a later call raises.
    """
    result = result_dtype("grouped_matmul", scale_a, scale_b, out_dtype, out)
    given = {
        "a": a,
        "b": b,
        "offsets": offsets,
        "counts": counts,
        "tokens": tokens,
        "up": up,
        "bias": bias,
        "up_bias": up_bias,
        "scale_a": scale_a,
        "scale_b": scale_b,
        "scale_up": scale_up,
    }
    gate = gate_of("grouped_matmul", swiglu, up is not None)
    if out is None and _route.wants(*given.values()):
        return _route.forward.grouped_matmul(*given.values(), *gate, result)
    tables = {name: as_table(given[name]) for name in ("offsets", "counts", "tokens")}
    given = {name: x for name, x in {**given, **tables}.items() if x is not None}
    op = with_options(_grouped_matmul, tuple(given), result, gate)
    return alone().call(op, 0, out, *given.values())


def grouped_shape(a_shape, b_shape, table, tokens) -> tuple:
    """Of the result; `table`: offsets, None where there are counts."""
    if table is None:
        return (*a_shape[:2], b_shape[2])
    return (a_shape[0] if tokens is None else tokens.shape[0], b_shape[2])


class _Rows(NamedTuple):
    """Which rows the experts have."""

    m: int  # rows of `a`, with counts those of an expert
    per_row: int  # rows of the result for each
    spare: bool  # some belong to no expert
    tables: dict  # of the program


def _rows(op, kind, given, a, experts: int) -> _Rows:
    m = a.shape[-2]
    if "counts" in given:
        return _Rows(
            m, 1, False, {"counts": int_table(op, kind, "counts", given["counts"], (experts,))}
        )
    (offsets,) = same_kind(op, kind, offsets=given["offsets"])
    spare = tuple(offsets.shape) == (experts + 2,)
    parts = experts + 1 + int(spare)
    tables = {"offsets": int_table(op, kind, "offsets", offsets, (parts,))}
    if "tokens" not in given:
        return _Rows(m, 1, spare, tables)
    (tokens,) = same_kind(op, kind, tokens=given["tokens"])
    rows = tokens.shape[0] if tokens.ndim == 1 else -1
    if rows < m or (rows % m if m else rows):
        raise UserError(f"{op}: tokens is {tuple(tokens.shape)}, need a multiple of {m} rows")
    tables["tokens"] = int_table(op, kind, "tokens", tokens, (rows,))
    return _Rows(m, rows // max(m, 1), spare, tables)


def _factors(op, kind, given, a, shape, scaled: bool):
    """(element type, the program's inputs); `shape` [E, K, N] of each weight."""
    scale_shape = shape[0], *(-(-n // _BLOCK) for n in shape[1:])
    inputs, weights = {"a": kind.dense(a)}, {"b": "b"}
    if "up" in given:
        weights = {"b": "b_gate", "up": "b_up"}
    for name, of_program in weights.items():
        (x,) = same_kind(op, kind, **{name: given[name]})
        if tuple(x.shape) != shape:
            raise UserError(f"{op}: {name} is {tuple(x.shape)}, need {shape}")
        inputs[of_program] = kind.dense(kind.transpose(x))
        if scaled:
            name = f"scale_{name}"
            x = floats(op, kind, name, given[name], scale_shape)
            inputs[f"scale_{of_program}"] = kind.dense(kind.transpose(x))
    factors = {"a": inputs["a"], **{name: inputs[x] for name, x in weights.items()}}
    if not scaled:
        return computed_dtype(op, kind, factors, doubles=False), inputs
    for name, x in factors.items():
        if kind.dtype(x) != _FP8:
            raise UserError(f"{op}: with scales, factors are {_FP8}, {name} is {kind.dtype(x)}")
    of_rows = (*a.shape[:-1], scale_shape[1])
    inputs["scale_a"] = float_array(op, kind, "scale_a", given["scale_a"], of_rows)
    return _FP8, inputs


def _grouped_matmul(names, result, gate, group, *arguments):
    op = "grouped_matmul"
    *arrays, _, out = arguments
    given = dict(zip(names, arrays))
    kind, a = adopt(op, "a", given["a"])
    (b,) = same_kind(op, kind, b=given["b"])
    masked, scaled = "counts" in given, result is not None
    if ("offsets" in given) == masked or (masked and "tokens" in given):
        raise UserError(f"{op}: need offsets, or counts without tokens")
    if ("scale_up" in given) != (scaled and "up" in given):
        raise UserError(f"{op}: scale_up goes with up and scale_b")
    shapes = tuple(a.shape), tuple(b.shape)
    fit = b.ndim == 3 and a.ndim == (3 if masked else 2) and shapes[0][-1] == shapes[1][1]
    if not fit or min(shapes[1][1:]) < 1 or (masked and shapes[0][0] != shapes[1][0]):
        need = "[E, M, K]" if masked else "[rows, K]"
        raise UserError(f"{op}: shapes {shapes[0]} and {shapes[1]}; need {need} and [E, K, N]")
    rows = _rows(op, kind, given, a, shapes[1][0])
    dtype, inputs = _factors(op, kind, given, a, shapes[1], scaled)
    like = kind.from_dtype(result, (0,), a) if scaled else a
    biases = _biases.of_product(op, kind, kind.dtype(like), given, shapes[1])
    inputs |= biases
    shape = grouped_shape(*shapes, given.get("offsets"), given.get("tokens"))
    read = (*rows.tables.values(), *inputs.values())
    made, written = make_result(op, kind, out, shape, like, read)
    if made is not written and (masked or rows.spare):
        kind.assign(written, made)  # whose other rows stay
    experts, k, n = shapes[1]
    if rows.m == 0 or experts == 0:
        return finish(kind, made, written)
    desc = {
        "world_size": 1,
        "a_dtype": dtype,
        "b_dtype": dtype,
        "result_dtype": kind.dtype(like),
        "rows_per_token": rows.per_row,
        "num_experts": experts,
        "spare_rows": rows.spare,
        "n": n,
        "k": k,
        "gathered": "tokens" in given,
        "swiglu": "up" in given,
        "bias": bool(biases),
        "layout": "masked" if masked else "contiguous",
        "scaling": "block" if scaled else "none",
        **_gates.fields(gate),
    }
    program = kind.on_gpu, op, *desc.values()
    bound, exact = group.bound(program, rows.m)
    group.launch_operator(
        kind,
        "grouped_gemm",
        {**desc, "m": bound},
        (*rows.tables, *inputs, "c"),
        (*rows.tables.values(), *inputs.values(), written),
        (rows.m,),
        said=op,
        at_bounds=exact,
    )
    group.launched(program, rows.m)
    return finish(kind, made, written)


@counted
def moe_combine(
    y: ArrayT,
    slots: ArrayT,
    weights: ArrayT,
    *,
    residual: Optional[ArrayT] = None,
    scatter: bool = False,
    group: GroupLike = None,
    out: Optional[ArrayT] = None,
) -> ArrayT:
    """The sum over each token's experts of weights * y[slots], over the ranks, too, plus residual:
    the last step where every rank has a part of every expert.

    `y`: [m * top_k, H], this rank's part of a sum over the ranks; `slots`: int32, `weights`:
    float32, [m, top_k], the same on every rank (moe_route). Result [m, H], the same bits on every
    rank; `scatter`: [m / P, H], the tokens of this rank. `residual`: of the result's shape. A
    rank's sum is float32, rounded once to travel, added in rank order and rounded again.
    """
    scatter = bool(scatter)
    if out is None and _route.wants(y, slots, weights, residual):
        arrays = y, slots, weights, residual
        return _route.forward.moe_combine(*arrays, scatter, name_of(group))
    arrays = y, as_table(slots), weights, residual
    return call_with(group_of(group), "moe_combine", _moe_combine, (scatter,), out, *arrays)


def _moe_combine(group, scatter, y, slots, weights, residual, out):
    op = "moe_combine"
    kind, y = adopt(op, "y", y)
    dtype = computed_dtype(op, kind, {"y": y}, doubles=False)
    (slots,) = same_kind(op, kind, slots=slots)
    if y.ndim != 2 or slots.ndim != 2 or y.shape[0] != slots.shape[0] * slots.shape[1]:
        raise UserError(
            f"{op}: shapes {tuple(y.shape)} and {tuple(slots.shape)}; need [m * top_k, H] and "
            "[m, top_k]"
        )
    (m, top_k), hidden = slots.shape, y.shape[1]
    if min(top_k, hidden) < 1 or (scatter and m % group.size):
        raise UserError(f"{op}: {m} tokens of size {hidden} on {group.size} ranks")
    shape = (m // group.size if scatter else m, hidden)
    arrays = (
        kind.dense(y),
        int_table(op, kind, "slots", slots, (m, top_k)),
        float_array(op, kind, "weights", weights, (m, top_k)),
        residual_or_zeros(op, kind, residual, shape, y, group),
    )
    result, written = make_result(op, kind, out, shape, y, arrays)
    said = described(op, kind, {"y": y, "slots": slots}, "scatter=True" if scatter else "")
    if m == 0:
        group.agree_on_nothing(said)
        return finish(kind, result, written)
    group.launch_operator(
        kind,
        op,
        {
            "world_size": group.size,
            "dtype": dtype,
            "m": bound_of(m),
            "hidden": hidden,
            "top_k": top_k,
            "sequence_parallel": scatter,
        },
        ("y", "slots", "weights", "residual", "out"),
        (*arrays, written),
        (m,),
        said=said,
    )
    return finish(kind, result, written)
