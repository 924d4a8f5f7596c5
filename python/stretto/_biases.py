"""Biases of experts, as the operators of mixtures of experts take them: all that go together, or none."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence

from ._calls import same_kind
from .errors import UserError


def _all_or_none(op: str, kind, dtype: str, given: Mapping[str, Any], shapes) -> Dict[str, Any]:
    """Those of `given` that are not None, dense; `shapes`: what each is to have, by name."""
    there = {name: given[name] for name in shapes if given.get(name) is not None}
    if there and len(there) < len(shapes):
        raise UserError(f"{op}: {', '.join(there)} of {', '.join(shapes)}, which go together")
    for name, x in there.items():
        (x,) = same_kind(op, kind, **{name: x})
        if kind.dtype(x) != dtype or tuple(x.shape) != tuple(shapes[name]):
            raise UserError(
                f"{op}: {name} is {kind.dtype(x)} {tuple(x.shape)}; need {dtype} {tuple(shapes[name])}"
            )
        there[name] = kind.dense(x)
    return there


def of_product(
    op: str, kind, dtype: str, given: Mapping[str, Any], shape: Sequence[int]
) -> Dict[str, Any]:
    """`bias`, and `up_bias` where there is `up`, of `given`, by their names in programs; `shape`:
    [E, K, N] of the weights."""
    of_result = shape[0], shape[2]
    if given.get("up") is not None:
        made = _all_or_none(op, kind, dtype, given, {"bias": of_result, "up_bias": of_result})
        return dict(zip(("bias_gate", "bias_up"), made.values()))
    if given.get("up_bias") is not None:
        raise UserError(f"{op}: up_bias goes with up")
    return _all_or_none(op, kind, dtype, given, {"bias": of_result})


def of_layers(
    op: str, kind, dtype: str, given: Mapping[str, Any], shape: Sequence[int]
) -> Dict[str, Any]:
    """`gate_bias`, `up_bias` and `down_bias` of `given`, by their names in programs; `shape`: [E, H, F] of
    gate and up."""
    experts, hidden, ffn = shape
    shapes = {"gate_bias": (experts, ffn), "up_bias": (experts, ffn), "down_bias": (experts, hidden)}
    made = _all_or_none(op, kind, dtype, given, shapes)
    return dict(zip(("bias_gate", "bias_up", "bias"), made.values()))


def said(biases: Mapping[str, Any]) -> str:
    """For described()."""
    return "with biases" if biases else ""
