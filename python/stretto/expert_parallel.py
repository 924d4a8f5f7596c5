"""Whole experts spread over the ranks: tokens to the ranks that have their experts, and the sums of
the results back, or all of it in one launch; see ops.py for what all operators have in common. They have no gradient.

Of E experts rank r has those from r * ceil(E / P) on, ceil(E / P) of them or what is left. Tables
and weights are of ceil(E / P) experts on every rank: those that a rank does not have get no rows, and
their weights are not looked at.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, NamedTuple, Optional, Tuple

from . import _biases, _core, _gates, _route
from ._adopt import adopt
from ._arrays import ArrayT
from ._calls import (
    as_table,
    call_with,
    check_apart,
    computed_dtype,
    described,
    finish,
    float_array,
    int_table,
    make_result,
    residual_or_zeros,
    same_kind,
    several,
    whole,
)
from ._gates import SwiGLU, gate_of
from ._world import GroupLike, counted, group_of, name_of
from .errors import UserError
from .symm_mem import workspace

_FP8 = "float8_e4m3fn"
_BLOCK = 128  # elements that have a scale


class Dispatched(NamedTuple):
    """Tokens that a rank was sent, in a block of rows for every rank, and the tables by which
    grouped_matmul() takes them to the own experts and ep_combine() back. S = m / P tokens of a
    rank, R = P * S * top_k."""

    x: Any  # [P * S, H]
    weights: Any  # float32 [P * S, top_k]
    offsets: Any  # int32 [ceil(E / P) + 2], the first row of each own expert in 0..R, the end, R
    tokens: Any  # int32 [R], the row of x that a row is of
    slots: Any  # int32 [P * S, top_k], the row of a token and one of its experts, or -1
    positions: Any  # int32 [S, P], where the own tokens are in the block of each rank, or -1
    scales: Any = None  # float32 [P * S, H / 128], where x is float8_e4m3fn
    group: str = ""  # among whose ranks, by name


@counted
def ep_dispatch(
    x: ArrayT,
    experts: ArrayT,
    weights: ArrayT,
    num_experts: int,
    *,
    fp8: bool = False,
    group: GroupLike = None,
    out: Any = None,
) -> Dispatched:
    """Sends every token to the ranks of the group that have its experts, once to each, where it is
    stored in a row that it has in any case.

    `x`: [S, H], this rank's tokens; `experts`: int32 (int64 is converted), `weights`: float32,
    [S, top_k], theirs, all different (moe_route). The memory is that of all tokens at every rank, so
    that no routing overflows, and nothing waits for the host. Then

        h = grouped_matmul(d.x, gate, d.offsets, tokens=d.tokens, up=up)    # the own experts'
        y = ep_combine(grouped_matmul(h, down, d.offsets), d)

    `fp8`: tokens travel as float8_e4m3fn with a scale for every 128 elements, which divides H;
    grouped_matmul() takes `scales` as scale_a. `out`: what becomes `x` and `weights` of the result,
    int32 [P * S, top_k] for the experts, and with fp8 the scales; in symmetric memory, nothing is
    copied. Given by all ranks or by none. Rows of `x` of tokens without experts here hold nothing.

    Errors: UserError for shapes and types that do not fit; an expert that does not exist is a
    UserError on CPUs, on GPUs a Fault that a later call raises.
    """
    fp8 = bool(fp8)
    if out is None and _route.wants(x, experts, weights):
        options = num_experts, fp8, name_of(group)
        *made, scales = _route.forward.ep_dispatch(x, experts, weights, *options)
        return Dispatched(*made, scales if fp8 else None, options[-1])
    op, group = "ep_dispatch", group_of(group)
    options, experts = (whole(op, "num_experts", num_experts), fp8), as_table(experts)
    if out is None:
        *made, scales = (*call_with(group, op, _dispatch, options, None, x, experts, weights), None)[:7]
    else:  # of whose results the caller has given some
        given = several(op, out, 4 if fp8 else 3)
        arrays = x, experts, weights, given
        *made, scales = (*group.whole(ep_dispatch, _dispatch, group, *options, *arrays), None)[:7]
    return Dispatched(*made, scales, group.name)


def _dispatch(group, num_experts, fp8, x, experts, weights, out):
    op = "ep_dispatch"
    kind, x = adopt(op, "x", x)
    launch, experts, weights = _checked(op, group, kind, x, experts, weights, num_experts)
    launch.said = described(
        op,
        kind,
        {"x": x, "experts": experts},
        f"num_experts={num_experts}",
        "fp8=True" if fp8 else "",
        "" if out is None else "with out=",
    )
    if fp8 and x.shape[1] % _BLOCK:
        raise UserError(f"{op}: fp8 goes with rows of whole blocks of {_BLOCK}")
    tables = {"x": kind.dense(x), "experts": experts, "weights": weights}
    received = _received(group, kind, x, experts, fp8, out, tuple(tables.values()))
    (rows, _), top_k = x.shape, experts.shape[1]
    everywhere = group.size * rows
    positions = tables["positions"] = kind.empty((rows, group.size), experts)
    tables.update((name, written) for name, (_, written) in received.items())
    if rows > 0:
        launch.begin("ep_place", x)
        launch("ep_send_fp8" if fp8 else "ep_send", tables, private_results=out is None)
    else:
        group.agree_on_nothing(launch.said)
    placed = {
        "recv_experts": received["recv_experts"][1],
        "slots": kind.empty((everywhere, top_k), experts),
        "offsets": (kind.empty if rows else kind.zeros)((-(-num_experts // group.size) + 2,), experts),
        "tokens": kind.empty((everywhere * top_k,), experts),
    }
    if rows > 0:
        launch("ep_place", placed, ())
    results = {name: finish(kind, *pair) for name, pair in received.items()}
    tables = *(placed[name] for name in ("offsets", "tokens", "slots")), positions
    return results["recv"], results["recv_weights"], *tables, *((results["recv_scales"],) if fp8 else ())


def _checked(op: str, group, kind, x, experts, weights, num_experts: int):
    """(what launches programs of this shape, experts, weights)."""
    dtype = computed_dtype(op, kind, {"x": x}, doubles=False)
    (experts,) = same_kind(op, kind, experts=experts)
    num_experts = whole(op, "num_experts", num_experts)
    if x.ndim != 2 or experts.ndim != 2 or min(x.shape[1], experts.shape[1], num_experts) < 1:
        raise UserError(
            f"{op}: shapes {tuple(x.shape)} and {tuple(experts.shape)}; need [S, H] and [S, top_k]"
        )
    (rows, hidden), top_k = x.shape, experts.shape[1]
    if not 1 <= top_k <= num_experts:
        raise UserError(f"{op}: {top_k} of {num_experts} experts")
    experts = int_table(op, kind, "experts", experts, (rows, top_k))
    weights = float_array(op, kind, "weights", weights, (rows, top_k))
    return _Launch(group, kind, dtype, rows, hidden, num_experts, top_k), experts, weights


def _received(group, kind, x, experts, fp8: bool, out, read) -> Dict[str, Tuple[Any, Any]]:
    """By name (what the caller gets, what launches write) of what comes from all ranks. `read`: what the
    launches read."""
    (rows, hidden), top_k = x.shape, experts.shape[1]
    numbers, shares = (kind.from_dtype(dtype, (0,), x) for dtype in ("int32", "float32"))
    forms = {
        "recv": (hidden, kind.from_dtype(_FP8, (0,), x) if fp8 else x),
        "recv_weights": (top_k, shares),
        "recv_experts": (top_k, numbers),
    }
    if fp8:
        forms["recv_scales"] = (hidden // _BLOCK, shares)
    made = {
        name: make_result("ep_dispatch", kind, given, (group.size * rows, columns), like, read)
        for given, (name, (columns, like)) in zip(out or (None,) * len(forms), forms.items())
    }
    if out is None:  # nobody gets them
        unseen = group.kept.room(kind, "recv_experts", (group.size * rows, top_k), numbers)
        made["recv_experts"] = unseen, unseen
    check_apart("ep_dispatch", kind, [result for result, _ in made.values()])
    return made


class _Launch:
    """Launches programs of expert parallelism of one shape, of a call that is `said` in words."""

    said: str

    def __init__(self, group, kind, dtype, rows, hidden, num_experts, top_k):
        self.group, self.kind, self.rows = group, kind, rows * group.size
        self.desc = {
            "world_size": group.size,
            "dtype": dtype,
            "m": self.rows,
            "hidden": hidden,
            "num_experts": num_experts,
            "top_k": top_k,
            "expert_groups": group.size,
        }

    def __call__(self, program: str, arrays: dict, extents=None, **fields: bool) -> None:
        self.group.launch_operator(
            self.kind,
            program,
            {**self.desc, **fields},
            tuple(arrays),
            tuple(arrays.values()),
            (self.rows,) if extents is None else extents,
            said=self.said,
            at_bounds=True,
        )

    def begin(self, program: str, like: Any) -> None:
        """For a launch of it after the next one: compiles it beside that."""
        self.group.begin_operator(self.kind, program, self.desc, like, said=self.said, at_bounds=True)


def _group_of_dispatched(_y: Any = None, dispatched: Any = None, **_: Any) -> GroupLike:
    return getattr(dispatched, "group", None)


@functools.partial(counted, find=_group_of_dispatched)
def ep_combine(
    y: ArrayT,
    dispatched: Dispatched,
    *,
    residual: Optional[ArrayT] = None,
    out: Optional[ArrayT] = None,
) -> ArrayT:
    """The way back of ep_dispatch(): what the experts made of each token, weighted and added up,
    where the token came from.

    `y`: [R, H], results in the rows of `dispatched`, such as grouped_matmul() leaves them. Result
    [S, H], plus `residual`. A rank's sum over its experts is float32, rounded once to travel, added
    in rank order and rounded again. In the group of the dispatch.
    """
    tables = dispatched.slots, dispatched.weights, dispatched.positions
    if out is None and _route.wants(y, *tables, residual):
        return _route.forward.ep_combine(y, *tables, residual, dispatched.group)
    return call_with(group_of(dispatched.group), "ep_combine", _combine, (), out, y, *tables, residual)


def _combine(group, y, *arrays):
    *tables, residual, out = arrays
    op = "ep_combine"
    kind, y = adopt(op, "y", y)
    dtype = computed_dtype(op, kind, {"y": y}, doubles=False)
    names = ("dispatched.slots", "dispatched.weights", "dispatched.positions")
    slots, weights, positions = same_kind(op, kind, **dict(zip(names, tables)))
    (everywhere, top_k), rows = slots.shape, positions.shape[0]
    if y.ndim != 2 or y.shape[0] != everywhere * top_k or y.shape[1] < 1:
        raise UserError(f"{op}: y is {tuple(y.shape)}, need {everywhere * top_k} rows")
    arrays = {
        "y": kind.dense(y),
        "slots": slots,
        "recv_weights": weights,
        "positions": positions,
        "residual": residual_or_zeros(op, kind, residual, (rows, y.shape[1]), y, group),
    }
    read = tuple(arrays.values())
    result, arrays["out"] = make_result(op, kind, out, (rows, y.shape[1]), y, read)
    said = described(op, kind, {"y": y})
    if rows == 0:
        group.agree_on_nothing(said)
        return finish(kind, result, arrays["out"])
    # The experts are in the tables; their number is not asked for again.
    launch = _Launch(group, kind, dtype, rows, y.shape[1], group.size * top_k, top_k)
    launch.said = said
    if _core.ep_return_slots(kind.num_sms(y), **launch.desc) == 1:
        arrays["parts"] = workspace(group, kind, op, (group.size, rows, y.shape[1]), y, said)
        group.kept.stays(kind, arrays["parts"])
    launch("ep_return", arrays)
    return finish(kind, result, arrays["out"])


@counted
def ep_moe_layer(
    x: ArrayT,
    gate: ArrayT,
    up: ArrayT,
    down: ArrayT,
    experts: ArrayT,
    weights: ArrayT,
    num_experts: int,
    *,
    expert_groups: Optional[int] = None,
    gate_bias: Optional[ArrayT] = None,
    up_bias: Optional[ArrayT] = None,
    down_bias: Optional[ArrayT] = None,
    residual: Optional[ArrayT] = None,
    swiglu: Optional[SwiGLU] = None,
    group: GroupLike = None,
    out: Optional[ArrayT] = None,
) -> ArrayT:
    """A whole mixture of experts in one launch, routing inside: tokens to the ranks of the group that
    have their experts, both products, and the sums back. The own tokens are multiplied while others
    travel, and columns that are summed leave while others are multiplied.

    `x`: [S, H], this rank's tokens; `experts`: int32 (int64 is converted), `weights`: float32,
    [S, top_k], theirs, all different (moe_route). `gate`, `up`: [E, H, F] and `down`: [E, F, H], of
    the own experts; transposes of dense [E, F, H] and [E, H, F] cost no copy. `expert_groups`, G:
    so many groups of consecutive ranks have ceil(num_experts / G) experts each, which is E; where
    the last ones have fewer, the rest of theirs is not looked at. The ranks of one group have a part
    F of each of its experts. Without it every rank is a group: whole experts.
    `gate_bias`, `up_bias`: [E, F], `down_bias`: [E, H], of the own experts, all three or none; the ranks
    of one group give the same `down_bias`, which is added once. `swiglu`: what the first two products
    become, silu(g) * u where nothing is said. `residual`: [S, H]. Result [S, H].

    What lies between the products and what leaves the second is rounded to the element type, a
    rank's weighted sums are float32, rounded once to travel and added, from the own ones on, in
    float32. No routing overflows: memory is for all tokens of all ranks at every one. Errors as of
    ep_dispatch().
    """
    biases = {"gate_bias": gate_bias, "up_bias": up_bias, "down_bias": down_bias}
    unit = gate_of("ep_moe_layer", swiglu)
    if out is None and _route.wants(x, gate, up, down, experts, weights, *biases.values(), residual):
        arrays = x, gate, up, down, experts, weights
        options = num_experts, expert_groups, *biases.values(), residual, *unit, name_of(group)
        return _route.forward.ep_moe_layer(*arrays, *options)
    op, group = "ep_moe_layer", group_of(group)
    groups = group.size if expert_groups is None else whole(op, "expert_groups", expert_groups)
    options = whole(op, "num_experts", num_experts), groups, unit
    arrays = x, gate, up, down, as_table(experts), weights, *biases.values(), residual
    return call_with(group, op, _ep_moe_layer, options, out, *arrays)


def _ep_moe_layer(group, num_experts, groups, unit, *arrays):
    x, gate, up, down, experts, weights, gate_bias, up_bias, down_bias, residual, out = arrays
    op, biases = "ep_moe_layer", {"gate_bias": gate_bias, "up_bias": up_bias, "down_bias": down_bias}
    kind, x = adopt(op, "x", x)
    gate, up, down = same_kind(op, kind, gate=gate, up=up, down=down)
    weighed = {"x": x, "gate": gate, "up": up, "down": down}
    dtype = computed_dtype(op, kind, weighed, doubles=False)
    launch, experts, weights = _checked(op, group, kind, x, experts, weights, num_experts)
    _check_experts(op, group, groups, num_experts, x, gate, up, down)
    named = {"x": x, "gate": gate, "down": down, "experts": experts}
    biases = _biases.of_layers(op, kind, dtype, biases, gate.shape)
    options = f"num_experts={num_experts}", f"expert_groups={groups}", _biases.said(biases)
    launch.said = described(op, kind, named, *options, _gates.said(unit))
    if x.shape[0] == 0:
        group.agree_on_nothing(launch.said)
        return finish(kind, *make_result(op, kind, out, x.shape, x))
    launch.desc["expert_groups"] = groups
    launch.desc["ffn"] = gate.shape[2]
    launch.desc["residual"] = residual is not None
    launch.desc["biases"] = bool(biases)
    launch.desc |= _gates.fields(unit)
    rows = _core.ep_moe_rows(kind.num_sms(x), **launch.desc)
    weight = {"b_gate": gate, "b_up": up, "b": down}
    arrays = {
        **{name: kind.dense(kind.transpose(w)) for name, w in weight.items()},
        **biases,
        "experts": experts,
        "weights": weights,
        "products": group.kept.room(kind, "products", (rows, x.shape[1]), x),
    }
    if residual is not None:
        arrays["residual"] = residual_or_zeros(op, kind, residual, x.shape, x)
    result, arrays["out"] = make_result(op, kind, out, x.shape, x, tuple(arrays.values()))
    arrays["a"] = tokens = workspace(group, kind, op, (launch.rows, x.shape[1]), x, launch.said)
    group.kept.stays(kind, tokens)
    group.assign(kind, tokens[: x.shape[0]], x)
    launch(op, arrays)
    return finish(kind, result, arrays["out"])


def _check_experts(op: str, group, groups: int, num_experts: int, x, *weights) -> None:
    """Of x, gate, up and down."""
    if groups < 1 or group.size % groups:
        raise UserError(f"{op}: {groups} groups of experts do not divide {group.size} ranks")
    share, hidden = -(-num_experts // groups), x.shape[1]
    gate, up, down = (tuple(w.shape) for w in weights)
    if len(gate) != 3 or gate != up or gate[:2] != (share, hidden) or gate[2] < 1 or (
        down != (share, gate[2], hidden)
    ):
        raise UserError(
            f"{op}: weights {gate}, {up}, {down}; need [{share}, {hidden}, F] twice, "
            f"[{share}, F, {hidden}]: {num_experts} experts in {groups} groups"
        )
