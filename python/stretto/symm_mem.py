"""Arrays that the ranks' programs address where they are, without a copy."""

from __future__ import annotations

import math
from typing import Any, Sequence, Union

from . import _core
from ._arrays import NumpyKind, TorchKind, numpy_dtype
from ._world import current
from .errors import UserError


def empty(*size: Union[int, Sequence[int]], dtype: Any = "float32", name: str = "symmetric"):
    """An array of zeros in symmetric memory. Collective: the same size, element type and name on
    every rank, else UserError on every rank. `dtype`: a name ("bfloat16"), a NumPy dtype, or a
    PyTorch dtype, which makes it a PyTorch tensor.

    The memory is freed with the last array that shows it. Passed to an operator, it must be this
    array on every rank.
    """
    shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)
    if any(n < 0 for n in shape):
        raise UserError(f"symm_mem.empty: shape {shape}")
    kind, text = NumpyKind, getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(
        dtype
    )
    if str(dtype).startswith("torch."):
        kind, text = TorchKind, str(dtype)[6:]
        size_bytes = dtype.itemsize * math.prod(shape)
    else:
        size_bytes = numpy_dtype(text).itemsize * math.prod(shape)
    group = current()
    with group.used():
        memory = _core.SymmetricMemory.allocate(
            group.session, group.rank, f"{name} of {text}", "uint8", max(1, size_bytes)
        )
    raw = memory.bytes()[:size_bytes]
    return kind.from_bytes(raw, text, shape)
