"""Both layers of a mixture of experts whose every rank has a part of every expert, over all ranks'
tokens: products that begin with the own tokens while the others' come, and weighted sums that leave
while the next columns are multiplied; see ops.py for what all operators have in common. They have
no gradient."""

from __future__ import annotations

import functools
from typing import Any, Dict, NamedTuple, Optional, Tuple

from . import _biases, _core, _gates, _route
from ._adopt import adopt
from ._arrays import ArrayT
from ._calls import (
    as_table,
    call_with,
    computed_dtype,
    described,
    finish,
    float_array,
    int_table,
    make_result,
    residual_or_zeros,
    same_kind,
)
from ._gates import SwiGLU, gate_of
from ._world import GroupLike, counted, group_of, name_of
from .errors import UserError
from .symm_mem import workspace


class ExpertTiles(NamedTuple):
    """In which rows of a rank's products its tokens are: tiles of one expert each, sorted by how
    many ranks' tokens they need. Made by all_gather_grouped_matmul(), on the arrays' device."""

    used: Any  # int32 [1], tiles with rows, which come first
    experts: Any  # int32 [tiles], of each
    needs: Any  # int32 [tiles], ranks whose tokens it waits for, from the own one on
    tokens: Any  # int32 [rows], the token of each row, from the own ones on; or -1
    slots: Any  # int32 [m, top_k], the row of a token and one of its experts
    group: str = ""  # whose tokens, by name


@counted
def all_gather_grouped_matmul(
    a_shard: ArrayT,
    b: ArrayT,
    experts: ArrayT,
    *,
    up: Optional[ArrayT] = None,
    bias: Optional[ArrayT] = None,
    up_bias: Optional[ArrayT] = None,
    swiglu: Optional[SwiGLU] = None,
    group: GroupLike = None,
) -> Tuple[ArrayT, ExpertTiles]:
    """(products, tiles): all tokens, each times the weights of its experts; tiles of tokens that are
    there are multiplied while copy engines bring the others'.

    `a_shard`: [m / P, K], this rank's tokens. `b`: [E, K, N], this rank's columns of every expert;
    the transpose of a dense [E, N, K] costs no copy. `up`: as b, makes the result silu(a @ b) * (a
    @ up), or what `swiglu` says of both. `bias`: [E, N], is added to a @ b, `up_bias` to a @ up; with
    `up` both or none. `experts`: int32 (int64 is converted) [m, top_k], those of all tokens, by rank,
    on the arrays' device, where tables are made of them: nothing waits for the host. Where each rank
    routes its own: all_gather(experts).

    Products: [rows, N], a place for every tile there could be; tiles.slots says where a token's
    are, other rows hold nothing of use. float32 accumulation, rounded once. What
    grouped_matmul_reduce_scatter() takes.

    Errors: UserError for shapes and types that do not fit; an expert that does not exist is a
    UserError on CPUs, on GPUs a Fault that a later call raises.
    """
    op = "all_gather_grouped_matmul"
    gate = gate_of(op, swiglu, up is not None)
    if _route.wants(a_shard, b, experts, up, bias, up_bias):
        arrays, name = (a_shard, b, experts, up, bias, up_bias), name_of(group)
        made, *tiles = _route.forward.all_gather_grouped_matmul(*arrays, *gate, name)
        return made, ExpertTiles(*tiles, name)
    group, arrays = group_of(group), (a_shard, b, as_table(experts), up, bias, up_bias)
    made, *tiles = call_with(group, op, _first_layer, (gate,), None, *arrays)
    return made, ExpertTiles(*tiles, group.name)


def _first_layer(group, gate, a_shard, b, experts, up, bias, up_bias, _):
    op = "all_gather_grouped_matmul"
    kind, a = adopt(op, "a_shard", a_shard)
    weights = same_kind(op, kind, b=b, **({} if up is None else {"up": up}))
    (experts,) = same_kind(op, kind, experts=experts)
    named = dict(zip(("a_shard", "b", "up"), (a, *weights)))
    dtype = computed_dtype(op, kind, named, doubles=False)
    _check_first_layer(op, group, a, weights, experts)
    (m, top_k), (num_experts, k, n) = experts.shape, weights[0].shape
    given = {"bias": bias, "up_bias": up_bias, "up": up}
    added = _biases.of_product(op, kind, dtype, given, weights[0].shape)
    routed = routed_desc(group.size, m, top_k, num_experts)
    chosen = int_table(op, kind, "experts", experts, (m, top_k))
    columns = n if up is not None else (n + 1) // 2
    options = _biases.said(added), _gates.said(gate)
    said = described(op, kind, {**named, "experts": experts}, *options)
    desc = {**routed, **_product_desc(dtype, n, k), "swiglu": up is not None, "bias": bool(added)}
    desc["gathers"] = group.size > 1
    desc |= _gates.fields(gate)
    desc["tile_rows"], _ = tiles_of(routed, dtype, kind.num_sms(a))
    desc["products"] = group.options.products
    if m > 0:
        group.begin_operator(kind, "ag_grouped_gemm", desc, a, said=said, at_bounds=True)
    _, tiles = _tables(group, kind, routed, dtype, chosen, (columns, k), True, said)
    if m == 0:
        group.agree_on_nothing(said)
        return kind.empty((0, n), a), *tiles
    gathered = kind.dense(a)
    if group.size > 1:
        gathered = workspace(group, kind, op, (m, k), a, said)
        group.kept.stays(kind, gathered)
        group.assign(kind, gathered[: a.shape[0]], a)
    made = kind.empty((tiles[3].shape[0], n), a)
    names = ("b",) if up is None else ("b_gate", "b_up")
    group.launch_operator(
        kind,
        "ag_grouped_gemm",
        desc,
        ("a", *names, *added, "tiles_used", "tile_experts", "tile_needs", "row_tokens", "c"),
        (gathered, *(kind.dense(kind.transpose(x)) for x in weights), *added.values(), *tiles[:4], made),
        (m,),
        said=said,
        at_bounds=True,
    )
    return made, *tiles


def _check_first_layer(op: str, group, a, weights, experts) -> None:
    shapes = [tuple(x.shape) for x in (a, *weights, experts)]
    if (
        [len(shape) for shape in shapes] != [2, *(3 for _ in weights), 2]
        or shapes[0] != (shapes[-1][0] / group.size, shapes[1][1])
        or shapes[1:-2] != shapes[2:-1]
        or min(shapes[1] + shapes[-1][1:]) < 1
    ):
        raise UserError(
            f"{op}: shapes {', '.join(map(str, shapes))}; need [m / {group.size}, K], [E, K, N] "
            "once or twice, [m, top_k]"
        )


def routed_desc(size: int, m: int, top_k: int, num_experts: int) -> Dict[str, int]:
    """`m` tokens of `size` ranks and their experts: fields that all Descs here have."""
    return {"world_size": size, "m": m, "top_k": top_k, "num_experts": num_experts}


def _product_desc(dtype: str, n: int, k: int) -> Dict[str, Any]:
    """Fields of a Desc whose rows are multiplied by weights [n, k] of each expert."""
    return {"a_dtype": dtype, "b_dtype": dtype, "result_dtype": dtype, "n": n, "k": k}


def tiles_of(routed: Dict[str, int], dtype: str, sms: int) -> Tuple[int, int]:
    """(rows of a tile, the most tiles) of a routed_desc(), on a GPU with so many SMs, 0: on CPUs."""
    if routed["m"] == 0:
        return 0, 0
    return _core.expert_tiles(sms, **routed, **_product_desc(dtype, 1, 1))  # of any columns


def _group_of_tiles(_y=None, _b=None, tiles: Any = None, *_: Any, **__: Any) -> GroupLike:
    return getattr(tiles, "group", None)


@functools.partial(counted, find=_group_of_tiles)
def grouped_matmul_reduce_scatter(
    y: ArrayT,
    b: ArrayT,
    tiles: ExpertTiles,
    weights: ArrayT,
    *,
    bias: Optional[ArrayT] = None,
    residual: Optional[ArrayT] = None,
    out: Optional[ArrayT] = None,
) -> ArrayT:
    """reduce_scatter of the weighted sums over each token's experts of y @ b: the second layer, of
    the group of the first. Columns that are summed leave while others are multiplied.

    `y`: [rows, K], what all_gather_grouped_matmul() made with these `tiles`, K this rank's columns
    of it. `b`: [E, K, N], this rank's part of every expert; the transpose of a dense [E, N, K]
    costs no copy. `weights`: float32 [m, top_k], of all tokens' experts, the same on every rank.
    `bias`: [E, N], the same on every rank, is added once to each product, by the first rank.
    `residual`: [m / P, N], what is added to the tokens of this rank. Result [m / P, N]. Products
    are rounded to the element type, a rank's weighted sums are float32, rounded once to travel and
    added, from the own ones on, in float32.
    """
    op = "grouped_matmul_reduce_scatter"
    return _second_layer(op, y, b, tiles, weights, bias, residual, out, all_reduce=False)


@functools.partial(counted, find=_group_of_tiles)
def grouped_matmul_all_reduce(
    y: ArrayT,
    b: ArrayT,
    tiles: ExpertTiles,
    weights: ArrayT,
    *,
    bias: Optional[ArrayT] = None,
    residual: Optional[ArrayT] = None,
    out: Optional[ArrayT] = None,
) -> ArrayT:
    """What grouped_matmul_reduce_scatter() gives, of all tokens on every rank: [m, N], the same bits
    on all. `residual`: [m, N], the same on every rank; in symmetric memory, `out` costs no copy.
    """
    op = "grouped_matmul_all_reduce"
    return _second_layer(op, y, b, tiles, weights, bias, residual, out, all_reduce=True)


def _second_layer(op, y, b, tiles, weights, bias, residual, out, *, all_reduce: bool):
    if out is None and _route.wants(y, b, weights, bias, residual):
        tables = tiles.used, tiles.experts, tiles.slots
        return getattr(_route.forward, op)(y, b, *tables, weights, bias, residual, tiles.group)
    arrays = y, b, tiles.used, tiles.experts, tiles.slots, weights, bias, residual
    return call_with(group_of(tiles.group), op, _sums_of_products, (op, all_reduce), out, *arrays)


def _sums_of_products(group, op, all_reduce, *arrays):
    y, b, used, experts, slots, weights, bias, residual, out = arrays
    kind, y = adopt(op, "y", y)
    (b,) = same_kind(op, kind, b=b)
    dtype = computed_dtype(op, kind, {"y": y, "b": b}, doubles=False)
    tables = {"tiles.used": used, "tiles.experts": experts, "tiles.slots": slots}
    used, experts, slots = same_kind(op, kind, **tables)
    if y.ndim != 2 or b.ndim != 3 or y.shape[1] != b.shape[1] or min(b.shape) < 1:
        raise UserError(
            f"{op}: shapes {tuple(y.shape)} and {tuple(b.shape)}; need [rows, K] and [E, K, N]"
        )
    (m, top_k), (num_experts, k, n), num_tiles = slots.shape, b.shape, experts.shape[0]
    tile_rows = y.shape[0] // num_tiles if num_tiles else 0
    routed = routed_desc(group.size, m, top_k, num_experts)
    if (tile_rows, num_tiles) != tiles_of(routed, dtype, kind.num_sms(y)):
        raise UserError(
            f"{op}: {y.shape[0]} rows in {num_tiles} tiles are not those of {m} tokens with "
            f"{top_k} of {num_experts} experts"
        )
    shape = (m if all_reduce else m // group.size, n)
    biases = _biases.of_product(op, kind, dtype, {"bias": bias}, b.shape)
    added = () if residual is None else (residual_or_zeros(op, kind, residual, shape, y),)
    weights = float_array(op, kind, "weights", weights, (m, top_k))
    names = ("a", "b", *biases, "tiles_used", "tile_experts", "slots", "weights")
    arrays = (kind.dense(y), kind.dense(kind.transpose(b)), *biases.values(), used, experts, slots, weights)
    made, written = make_result(op, kind, out, shape, y, (*arrays, *added))
    said = described(op, kind, {"y": y, "b": b, "weights": weights}, _biases.said(biases))
    if m == 0:
        group.agree_on_nothing(said)
        return finish(kind, made, written)
    desc = {**routed, **_product_desc(dtype, n, k), "residual": bool(added), "all_reduce": all_reduce}
    desc["bias_ranks"] = group.size if biases else 0
    group.launch_operator(
        kind,
        "grouped_gemm_rs",
        {**desc, "tile_rows": tile_rows, "products": group.options.products},
        (*names, *("residual" for _ in added), "out"),
        (*arrays, *added, written),
        (m,),
        said=said,
        at_bounds=True,
    )
    return finish(kind, made, written)


@counted
def moe_layer(
    x: ArrayT,
    gate: ArrayT,
    up: ArrayT,
    down: ArrayT,
    experts: ArrayT,
    weights: ArrayT,
    *,
    gate_bias: Optional[ArrayT] = None,
    up_bias: Optional[ArrayT] = None,
    down_bias: Optional[ArrayT] = None,
    residual: Optional[ArrayT] = None,
    swiglu: Optional[SwiGLU] = None,
    group: GroupLike = None,
    out: Optional[ArrayT] = None,
) -> ArrayT:
    """A whole mixture of experts in one launch: what all_gather_grouped_matmul() with `gate` and
    `up` and grouped_matmul_reduce_scatter() with `down` give one after the other.

    `x`: [m / P, H], this rank's tokens. `gate`, `up`: [E, H, F] and `down`: [E, F, H], this rank's
    part of every expert; transposes of dense [E, F, H] and [E, H, F] cost no copy. `experts`: int32
    (int64 is converted) and `weights`: float32, [m, top_k], those of all tokens, by rank.
    `gate_bias`, `up_bias`: [E, F], of this rank's columns, `down_bias`: [E, H], the same on every rank,
    all three or none. `swiglu`: what the first two products become, silu(g) * u where nothing is said.
    `residual`: [m / P, H]. Result [m / P, H]. What lies between the products is rounded to the element
    type. Errors as of the two.
    """
    biases = {"gate_bias": gate_bias, "up_bias": up_bias, "down_bias": down_bias}
    arrays = x, gate, up, down, experts, weights, *biases.values(), residual
    unit = gate_of("moe_layer", swiglu)
    if out is None and _route.wants(*arrays):
        return _route.forward.moe_layer(*arrays, *unit, name_of(group))
    arrays = *arrays[:4], as_table(experts), *arrays[5:]
    return call_with(group_of(group), "moe_layer", _moe_layer, (unit,), out, *arrays)


def _moe_layer(group, unit, *arrays):
    x, gate, up, down, experts, weights, gate_bias, up_bias, down_bias, residual, out = arrays
    op, biases = "moe_layer", {"gate_bias": gate_bias, "up_bias": up_bias, "down_bias": down_bias}
    kind, x = adopt(op, "x", x)
    given = {"gate": gate, "up": up, "down": down, "experts": experts}
    gate, up, down, experts = same_kind(op, kind, **given)
    weighed = {"x": x, "gate": gate, "up": up, "down": down}
    dtype = computed_dtype(op, kind, weighed, doubles=False)
    _check_layer(op, group, x, gate, up, down, experts)
    (num_experts, hidden, ffn), (m, top_k) = gate.shape, experts.shape
    biases = _biases.of_layers(op, kind, dtype, biases, gate.shape)
    named = {"x": x, "gate": gate, "down": down, "experts": experts}
    said = described(op, kind, named, _biases.said(biases), _gates.said(unit))
    if m == 0:
        group.agree_on_nothing(said)
        return finish(kind, *make_result(op, kind, out, x.shape, x))
    shape = kind.on_gpu, op, dtype, num_experts, top_k, hidden, ffn, bool(biases), unit
    bound, exact = group.bound(shape, m)
    routed = routed_desc(group.size, bound, top_k, num_experts)
    chosen = int_table(op, kind, "experts", experts, (m, top_k))
    room = functools.partial(group.kept.room, kind)
    desc = {**routed, "dtype": dtype, "hidden": hidden, "ffn": ffn, "residual": residual is not None}
    desc["bias_ranks"] = group.size if biases else 0
    desc |= _gates.fields(unit)
    desc["tile_rows"], _ = tiles_of(routed, dtype, kind.num_sms(x))
    desc["products"] = group.options.products
    added = () if residual is None else (residual_or_zeros(op, kind, residual, x.shape, x),)
    factors = (*(kind.dense(kind.transpose(w)) for w in (gate, up, down)), *biases.values())
    shares = float_array(op, kind, "weights", weights, (m, top_k))
    made, written = make_result(op, kind, out, x.shape, x, (*factors, shares, *added))
    group.begin_operator(kind, op, desc, x, said=said, at_bounds=exact)
    _, tiles = _tables(group, kind, routed, dtype, chosen, (ffn, 0), exact, said, room)
    gathered = workspace(group, kind, op, (bound, hidden), x, said)
    group.kept.stays(kind, gathered)
    group.assign(kind, gathered[: x.shape[0]], x)
    arrays = (gathered, *factors, *tiles, shares, *added)
    tables = ("tiles_used", "tile_experts", "tile_needs", "row_tokens", "slots")
    group.launch_operator(
        kind,
        op,
        desc,
        ("a", "b_gate", "b_up", "b", *biases, *tables, "weights", *("residual" for _ in added), "out"),
        (*arrays, written),
        (m,),
        said=said,
        at_bounds=exact,
    )
    group.launched(shape, m)
    return finish(kind, made, written)


def _check_layer(op: str, group, *arrays) -> None:
    """Of x, gate, up, down and experts."""
    shapes = [tuple(y.shape) for y in arrays]
    if (
        [len(shape) for shape in shapes] != [2, 3, 3, 3, 2]
        or shapes[0] != (shapes[4][0] / group.size, shapes[1][1])
        or shapes[1] != shapes[2]
        or shapes[3] != (shapes[1][0], shapes[1][2], shapes[1][1])
        or min(shapes[1] + shapes[4][1:]) < 1
    ):
        raise UserError(
            f"{op}: shapes {', '.join(map(str, shapes))}; need [m / {group.size}, H], [E, H, F] "
            "twice, [E, F, H], [m, top_k]"
        )


def _tables(
    group, kind, routed, dtype: str, chosen, sizes: Tuple[int, int], exact: bool, said: str, make=None
) -> Tuple[int, Tuple[Any, ...]]:
    """(rows of a tile, the arrays of ExpertTiles) of the tokens of all ranks of the group, whose
    experts are `chosen` [m, top_k]: one launch, without the host. In the order for a layer of
    `sizes`: columns of gate and up on a rank, and the hidden size if that layer is by itself, else
    0. `exact`: `routed` is of m tokens, else of m at most. `said`: the call in words. `make(name,
    shape, like)` makes the arrays; default: new ones."""
    (m, top_k), (ffn, hidden) = chosen.shape, sizes
    tile_rows, num_tiles = tiles_of(routed, dtype, kind.num_sms(chosen))
    names = "tiles_used", "tile_experts", "tile_needs", "row_tokens", "slots"
    shapes = (1,), (num_tiles,), (num_tiles,), (num_tiles * tile_rows,), (m, top_k)
    if m == 0:
        return tile_rows, (kind.zeros((1,), chosen), *(kind.empty(shape, chosen) for shape in shapes[1:]))
    if make is None:
        made = tuple(kind.empty(shape, chosen) for shape in shapes)
    else:
        made = tuple(make(name, shape, chosen) for name, shape in zip(names, shapes))
    group.launch_operator(
        kind,
        "expert_tables",
        {**routed, "tile_rows": tile_rows, "ffn": ffn, "hidden": hidden},
        ("experts", *names),
        (chosen, *made),
        (m,),
        said=said,
        at_bounds=exact,
    )
    return tile_rows, made
