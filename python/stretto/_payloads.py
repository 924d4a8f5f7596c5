"""What elements travel as where that is not what they are: int8 or e4m3, with a scale for each row of
them (stretto/ops/collectives/collectives.h: Payload)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

from ._calls import Rows, computed_dtype, whole
from .errors import UserError

_NAMES = {"int8": "int8", "float8_e4m3fn": "float8_e4m3fn", "fp8": "float8_e4m3fn"}
_MOST_COLUMNS = 16384  # kMostPayloadColumns


class Payload(NamedTuple):
    name: str
    block: Optional[int]  # elements that share a scale; None: a row's

    def named(self) -> str:
        block = "" if self.block is None else f", scale_block={self.block}"
        return f"payload={self.name}{block}"

    @property
    def fields(self):
        """Of a program's Desc."""
        return {"payload": self.name}


def payload_of(op: str, name: Any, block: Any, reduce_op: str = "sum") -> Optional[Payload]:
    """What a caller asks for, of a reduction of that name; None where elements travel as they are."""
    if name is None:
        if block is not None:
            raise UserError(f"{op}: scale_block without payload, of which scales are")
        return None
    if not isinstance(name, str) or name not in _NAMES:
        raise UserError(f"{op}: payload {name!r}: one of {', '.join(_NAMES)}, or None")
    if reduce_op not in ("sum", "avg", "premul_sum"):
        raise UserError(f"{op}: payload goes with sums and averages, not with reduce_op '{reduce_op}'")
    if block is not None:
        block = whole(op, "scale_block", block)
        if not 1 <= block <= _MOST_COLUMNS:
            raise UserError(f"{op}: scale_block is {block}, need 1 to {_MOST_COLUMNS}")
    return Payload(_NAMES[name], block)


def scaled_columns(op: str, payload: Payload, row: int) -> int:
    """How many neighbours share a scale, of rows of so many elements."""
    block = row if payload.block is None else payload.block
    if block > _MOST_COLUMNS:
        raise UserError(
            f"{op}: rows of {row} elements, of which {_MOST_COLUMNS} may share a scale; pass scale_block, "
            "which divides a row"
        )
    if block and row % block:
        raise UserError(f"{op}: scale_block {block} does not divide rows of {row} elements")
    return block


def scaled_rows(op: str, kind, x, runs: int, payload: Payload) -> Rows:
    """`x`, dense, as `runs` runs, in rows that have a scale: those of its last dimension, of a single
    one what a run has."""
    dtype = computed_dtype(op, kind, {"x": x}, doubles=False)
    run = math.prod(x.shape) // runs
    columns = scaled_columns(op, payload, x.shape[-1] if x.ndim > 1 else run)
    rows = run // columns if columns else 0
    return Rows(x, dtype, rows, columns, run, False)
