"""What the two products of an expert's first layer become."""

from __future__ import annotations

import math
from typing import Any, Dict, NamedTuple, Optional

from .errors import UserError


class SwiGLU(NamedTuple):
    """g * sigmoid(alpha * g) * (u + beta) of g = a @ gate, no more than `limit`, and u = a @ up between
    -limit and limit, with their biases; as it stands silu(g) * u. Of GPT-OSS SwiGLU(1.702, 1, 7)."""

    alpha: float = 1.0
    beta: float = 0.0
    limit: float = math.inf


def gate_of(op: str, swiglu: Optional[Any], has_up: bool = True) -> SwiGLU:
    """The operator's `swiglu`; UserError for what is none."""
    try:
        made = SwiGLU() if swiglu is None else SwiGLU(*map(float, swiglu))
    except (TypeError, ValueError):
        raise UserError(f"{op}: swiglu is {swiglu!r}, need SwiGLU(alpha, beta, limit)") from None
    if not (math.isfinite(made.alpha) and math.isfinite(made.beta) and made.limit > 0):
        raise UserError(f"{op}: swiglu is {made}, need finite alpha and beta and a limit above 0")
    if made != SwiGLU() and not has_up:
        raise UserError(f"{op}: swiglu goes with up")
    return made


def fields(gate: SwiGLU) -> Dict[str, float]:
    """Of a Desc: all three, since programs are kept by the values of their descs."""
    return gate._asdict()


def said(gate: SwiGLU) -> str:
    """For described()."""
    return "" if gate == SwiGLU() else str(gate)
