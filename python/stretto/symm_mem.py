"""Arrays that the ranks' programs address where they are, without a copy."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any, Optional, Sequence, Tuple, Union

import numpy as np

from . import _core
from ._arrays import kind_of_numpy, numpy_dtype, torch_kind
from ._calls import element_type, fits, text
from ._world import GroupLike, counted, group_of
from .errors import UserError


@functools.partial(counted, goes_on=False)
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
    name = text("symm_mem.empty", "name", name)
    device_type, number = _device(device)
    if str(dtype).startswith("torch.") and not isinstance(dtype, str):
        kind, made, itemsize = torch_kind(device_type), str(dtype)[6:], dtype.itemsize
    else:
        kind = kind_of_numpy(device_type)
        named = dtype if isinstance(dtype, str) else element_type("symm_mem.empty", dtype)
        try:
            found = numpy_dtype(named)
        except UserError as error:
            raise UserError(f"symm_mem.empty: {error}") from error
        if found.hasobject:
            raise UserError(f"symm_mem.empty: elements of {found.name} are Python objects")
        if found.itemsize == 0:
            raise UserError(f"symm_mem.empty: dtype is {dtype!r}, need an element type")
        made, itemsize = found.name, found.itemsize
    group = group_of(group)
    device = (kind.current_device() if number is None else number) if kind.on_gpu else 0
    said = f"symm_mem.empty({', '.join(map(str, shape))}, dtype={made}, name={name!r})"
    return _allocate(group, kind, device, said, made, shape, itemsize)


def _device(device: Any) -> Tuple[str, Optional[int]]:
    """Its type, and its number where one is given."""
    if device is None:
        return "cpu", None
    if isinstance(device, (int, np.integer)):
        device = f"cuda:{operator.index(device)}"
    device_type, colon, number = str(device).partition(":")
    if colon and not number.isdecimal():
        raise UserError(f"symm_mem.empty: device {device}, need a type and a number from 0 on")
    return device_type, int(number) if colon else None


def _shape(size: Sequence[Any]) -> Tuple[int, ...]:
    given: Any = size
    if len(size) == 1 and not isinstance(size[0], (int, np.integer)):
        (given,) = size
    try:
        shape = tuple(operator.index(n) for n in given)
    except TypeError:
        raise UserError(f"symm_mem.empty: shape {given!r}, need whole numbers") from None
    if min(shape, default=0) < 0:
        raise UserError(f"symm_mem.empty: shape {shape}")
    return shape


def _allocate(group, kind, device: int, said: str, dtype: str, shape, itemsize: int):
    """`said`: what asks for it, in words; the ranks compare it."""
    size_bytes = itemsize * math.prod(shape)
    if not fits(size_bytes):
        raise UserError(f"symm_mem.empty: {shape} of {dtype} are {size_bytes} bytes")
    with group.used():
        if kind.on_gpu:
            group.open_gpu(device)
        memory = group.symmetric_memory(kind, said, max(1, size_bytes))
    return kind.from_memory(memory, dtype, shape, size_bytes)


def workspace(group, kind, name: str, shape: Sequence[int], like, said: str = ""):
    """What peers write for an operator of that name: for a shape and an element type the same array
    at every call, made at the first one, collectively. `said`: the call that needs it, in words."""
    dtype, shape = kind.dtype(like), tuple(shape)
    device = kind.device(like) if kind.on_gpu else 0
    return group.kept.array(
        kind,
        (kind, name, dtype, shape),
        lambda: _allocate(
            group, kind, device, said or name, dtype, shape, kind.itemsize(like)
        ),
    )
