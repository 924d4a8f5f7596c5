"""Products whose columns are spread over the ranks; see ops.py for what all operators have in
common."""

from __future__ import annotations

from typing import Any, Optional

from . import _route
from ._arrays import ArrayT
from ._products import product
from ._world import GroupLike, counted, group_of
from .collectives import all_gather
from .matmul import as_part, columns_collected, factors_of, in_graphs, result_dtype, scaled_op


@counted
def matmul_all_gather(
    a: ArrayT,
    b: ArrayT,
    *,
    scale_a: Optional[ArrayT] = None,
    scale_b: Optional[ArrayT] = None,
    out_dtype: Any = None,
    group: GroupLike = None,
    out: Optional[ArrayT] = None,
) -> ArrayT:
    """all_gather(a @ b, dim=-1), where tiles of the product go to all ranks as they are done: `a`
    [.., K] and `b` [K, N], each rank's own, -> [.., P * N] on every rank, the same bits on all. With
    one `a` on all ranks that is a linear layer whose columns are spread. Scales as in
    `all_gather_matmul`."""
    op = "matmul_all_gather"
    result = result_dtype(op, scale_a, scale_b, out_dtype, out)
    factors = factors_of(a, b, scale_a, scale_b, result)
    if out is None and _route.wants(*factors):
        return in_graphs(op, factors, result, group)
    group = group_of(group)
    if result is None and group.options.products == "sequence" and group.size > 1:
        columns = group.alone().call(_matmul_all_gather, 0, None, a, b)
        return as_part(group, (op, "a @ b", "dim"), all_gather, columns, dim=-1, out=out)
    body = _matmul_all_gather if result is None else scaled_op(op, result)
    return group.call(body, 0, out, *factors)


def _matmul_all_gather(group, a, b, _, out):
    return columns_collected(product("matmul_all_gather", group, a, b), 0, out)
