"""Arrays that the ranks' programs address where they are, without a copy."""

from __future__ import annotations

import math
import operator
from typing import Any, Optional, Sequence, Tuple, Union

from . import _core
from ._arrays import kind_of_numpy, numpy_dtype, torch_kind
from ._calls import fits
from ._world import GroupLike, counted, group_of
from .errors import UserError


@counted
def empty(
    *size: Union[int, Sequence[int]],
    dtype: Any = "float32",
    device: Any = None,
    name: str = "symmetric",
    group: GroupLike = None,
) -> Any:
    """An array of zeros in symmetric memory of the group, for operators of that group; those of others
    copy it. Collective: the same size, element type, device and name on every rank, else UserError
    on every rank. `dtype`: a name ("bfloat16"), a NumPy dtype,
    or a PyTorch dtype, which makes it a PyTorch tensor. `device`: None or "cpu"; "cuda" for the
    rank's GPU, "cuda:1", 1 or a torch.device for a certain one. With a NumPy dtype or a name it is
    a CuPy array there.

    The memory is freed with the last array that shows it. Passed to an operator, it must be this
    array, or the same part of it, on every rank: else UserError on every rank, on GPUs a Fault.
    """
    shape = _shape(size)
    device_type, number = _device(device)
    if str(dtype).startswith("torch.") and not isinstance(dtype, str):
        kind, text, itemsize = torch_kind(device_type), str(dtype)[6:], dtype.itemsize
    else:
        kind = kind_of_numpy(device_type)
        text = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
        made = numpy_dtype(text)
        if made.hasobject:
            raise UserError(f"symm_mem.empty: elements of {text} are Python objects")
        itemsize = made.itemsize
    group = group_of(group)
    device = (kind.current_device() if number is None else number) if kind.on_gpu else 0
    return _allocate(group, kind, device, name, text, shape, itemsize)


def _device(device: Any) -> Tuple[str, Optional[int]]:
    """Its type, and its number where one is given."""
    if device is None:
        return "cpu", None
    if hasattr(device, "__index__"):
        device = f"cuda:{operator.index(device)}"
    device_type, colon, number = str(device).partition(":")
    if colon and not number.isdecimal():
        raise UserError(f"symm_mem.empty: device {device}, need a type and a number from 0 on")
    return device_type, int(number) if colon else None


def _shape(size: Sequence[Any]) -> Tuple[int, ...]:
    given: Any = size
    if len(size) == 1 and not hasattr(size[0], "__index__"):
        (given,) = size
    try:
        shape = tuple(operator.index(n) for n in given)
    except TypeError:
        raise UserError(f"symm_mem.empty: shape {given!r}, need whole numbers") from None
    if min(shape, default=0) < 0:
        raise UserError(f"symm_mem.empty: shape {shape}")
    return shape


def _allocate(group, kind, device: int, name: str, dtype: str, shape, itemsize: int):
    size_bytes = itemsize * math.prod(shape)
    if not fits(size_bytes):
        raise UserError(f"symm_mem.empty: {shape} of {dtype} are {size_bytes} bytes")
    with group.used():
        if kind.on_gpu:
            group.open_gpu(device)
        memory = _core.SymmetricMemory.allocate(
            group.session, group.rank, f"{name} of {dtype}", kind.on_gpu, max(1, size_bytes)
        )
    return kind.from_memory(memory, dtype, shape, size_bytes)


def workspace(group, kind, name: str, shape: Sequence[int], like):
    """What peers write for an operator of that name: for a shape and an element type the same array
    at every call, made at the first one, collectively."""
    dtype, shape = kind.dtype(like), tuple(shape)
    device = kind.device(like) if kind.on_gpu else 0
    return group.keep(
        kind,
        (kind, name, dtype, shape),
        lambda: _allocate(
            group, kind, device, f"{name} {shape}", dtype, shape, kind.itemsize(like)
        ),
    )
