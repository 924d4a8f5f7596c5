"""What the calls of every attention share: checked arrays, fields of a Desc, results."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from ._adopt import adopt
from ._calls import (
    check_apart,
    computed_dtype,
    finish,
    float_array,
    make_result,
    same_kind,
    several,
)
from .errors import UserError

_FP8 = "float8_e4m3fn"


def checked_heads(op: str, query, key, value, layout: str, *, has_scales: bool = False):
    """(kind, dtype, q, k, v): queries [rows, Hq, E]; keys and values of `layout`, whose "rows" are
    the queries' own. `has_scales`: keys and values are e4m3."""
    spread, paged = "cached" in layout, "pages" in layout
    stem = "_cache" if spread else "_pages" if paged else ""
    kind, q = adopt(op, "query", query)
    k, v = same_kind(op, kind, **{f"key{stem}": key, f"value{stem}": value})
    named = {"query": q, f"key{stem}": k, f"value{stem}": v}
    if has_scales:
        dtype = computed_dtype(op, kind, {"query": q}, doubles=False)
    else:
        dtype = computed_dtype(op, kind, named, doubles=False)
    names = layout.split(", ")
    if (
        q.ndim != 3
        or k.ndim != len(names)
        or tuple(k.shape) != tuple(v.shape)
        or q.shape[2] != k.shape[-1]
        or ("rows" in names and q.shape[0] != k.shape[names.index("rows")])
        or min(tuple(q.shape[1:]) + tuple(k.shape["rows" in names :])) < 1
        or q.shape[1] % k.shape[names.index("Hkv")]
    ):
        raise UserError(
            f"{op}: shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}; need "
            f"[rows, Hq, E] and [{layout}] twice, Hq a multiple of Hkv"
        )
    return kind, dtype, q, k, v


def scales_of_pages(op: str, key_scales, value_scales) -> Tuple[Any, ...]:
    """Those that a call over pages was given: both or none."""
    if (key_scales is None) != (value_scales is None):
        missing, given = ("key", "value") if key_scales is None else ("value", "key")
        raise UserError(f"{op}: {given}_scales without {missing}_scales; need both or none")
    return () if key_scales is None else (key_scales, value_scales)


def checked_pages(op: str, query, key, value, scales):
    """checked_heads() of a cache of pages, and its scales, dense: both or none."""
    for name, x in {"key_pages": key, "value_pages": value}.items():
        kind, x = adopt(op, name, x)
        is_fp8 = kind.dtype(x) == _FP8
        if is_fp8 and not scales:
            raise UserError(
                f"{op}: {name} is {_FP8}: need key_scales and value_scales, float32 [pages, Hkv, page]"
            )
        if scales and not is_fp8:
            raise UserError(
                f"{op}: {name} is {kind.dtype(x)}; with key_scales and value_scales need {_FP8}"
            )
    layout = "pages, Hkv, page, E"
    kind, dtype, q, k, v = checked_heads(op, query, key, value, layout, has_scales=bool(scales))
    named = zip(("key_scales", "value_scales"), scales)
    return kind, dtype, q, k, v, [float_array(op, kind, n, x, k.shape[:3]) for n, x in named]


def heads_desc(dtype, m, heads, kv_heads, width, scale: Optional[float]) -> Dict[str, Any]:
    """Fields of every attention's Desc, of one rank."""
    return {
        "world_size": 1,
        "dtype": dtype,
        "m": m,
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": width,
        "scale": scale,
    }


def options_in_words(is_causal: bool, scale: Optional[float], window: int, return_lse: bool) -> List[str]:
    """Of a call, those that are not the defaults."""
    given = {"is_causal=False": not is_causal, f"scale={scale}": scale is not None}
    given |= {f"window={window}": window != 0, "return_lse=True": return_lse}
    return [text for text, is_given in given.items() if is_given]


def results_of(
    op: str, kind, out, arrays, return_lse: bool, *, lse_shape=None, lse_columns: int = 0
):
    """[(what the caller gets, what the launch writes)] of attention and, where asked, of its
    logarithms, by default [heads, rows]. `arrays`: what the launch reads, queries first. `lse_columns`:
    with so many, at least, they are written."""
    q = arrays[0]
    if not return_lse:
        return [make_result(op, kind, out, q.shape, q, arrays)]
    attended, lse = several(op, out, 2) or (None, None)
    like, shape = kind.from_dtype("float32", (0,), q), lse_shape or (q.shape[1], q.shape[0])
    result, written = make_result(op, kind, lse, shape, like, arrays)
    if lse_columns > shape[1]:
        written = kind.empty((shape[0], lse_columns), like)
    made = make_result(op, kind, attended, q.shape, q, arrays)
    check_apart(op, kind, (made[0], result))
    return [made, (result, written)]


def finished(kind, made):
    """What the caller gets of results_of()."""
    attended = finish(kind, *made[0])
    if len(made) == 1:
        return attended
    lse, written = made[1]
    return attended, finish(kind, lse, written if lse is written else written[:, : lse.shape[1]])
