"""Arrays as calls take them, whatever the caller has passed."""

from __future__ import annotations

import sys
from typing import Any, Tuple

import numpy as np

from . import _route
from ._arrays import NumpyKind, TorchKind, kind_of
from .errors import UserError

# Operators that have a gradient, and where they have none.
_WITH_GRADIENT = {
    **dict.fromkeys(
        (
            "all_reduce_add_rms_norm",
            "broadcast",
        ),
        " with out=",
    ),
    **dict.fromkeys(("all_reduce", "all_to_all", "reduce_scatter"), " with out= or payload"),
    "all_gather": " with out=, sizes or payload",
    **dict.fromkeys(
        ("all_gather_matmul", "matmul_all_gather", "matmul_all_reduce", "matmul_reduce_scatter"),
        " with out= or scales",
    ),
}


def _usable(kind: Any, x: Any) -> Any:
    reason = kind.why_not(x)
    if reason:
        raise UserError(f"{kind.name}, {reason}")
    return x


@_route.beside_graphs
def adopt(op: str, name: str, x: Any) -> Tuple[Any, Any]:
    """(kind, x), where anything with DLPack on the CPU has become a NumPy array that shares its
    memory. The one place that decides on which device a call runs. `op`, `name`: the call and what it
    calls x, which errors name. UserError for what is no array, and for tensors whose gradient this
    call would lose.
    """
    try:
        return _adopted(op, x)
    except UserError as error:
        raise UserError(f"{op}: {name}: {error}") from error.__cause__


def _adopted(op: str, x: Any) -> Tuple[Any, Any]:
    kind = kind_of(x)
    if kind is not None:
        if issubclass(kind, TorchKind) and x.requires_grad:
            if sys.modules["torch"].is_grad_enabled():
                raise UserError(
                    f"the tensor requires a gradient, and {op} has no gradient"
                    f"{_WITH_GRADIENT.get(op, '')}; call it under torch.no_grad(), or on x.detach()"
                )
        return kind, _usable(kind, x)
    if hasattr(x, "__cuda_array_interface__"):
        raise UserError(
            f"{type(x).__name__} on a GPU: pass it as a PyTorch tensor or a CuPy array, which "
            "share its memory (torch.as_tensor, cupy.asarray)"
        )
    if hasattr(x, "__dlpack__"):
        try:
            return NumpyKind, _usable(NumpyKind, np.from_dlpack(x))
        except Exception as error:
            raise UserError(
                f"{type(x).__name__}: cannot be read through DLPack: {error}"
            ) from error
    what = "None" if x is None else type(x).__name__
    raise UserError(
        f"{what}: need a NumPy array, a CuPy array, a PyTorch tensor or an array with DLPack"
    )
