"""What the operators need of an array, for NumPy arrays, PyTorch tensors on the CPU, and whatever
speaks DLPack."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, Sequence, Tuple

import numpy as np

from .errors import UserError

# Element types that are computed with; data is moved in any type.
COMPUTED = ("float32", "bfloat16", "float16")


def numpy_dtype(name: str) -> np.dtype:
    """NumPy's dtype of that name; bfloat16 comes from the package ml_dtypes."""
    if name == "bfloat16" or name.startswith("float8"):
        try:
            import ml_dtypes  # pylint: disable=import-outside-toplevel
        except ImportError as error:
            raise UserError(f"{name} arrays in NumPy need the package ml_dtypes") from error
        return np.dtype(getattr(ml_dtypes, name))
    try:
        return np.dtype(name)
    except TypeError as error:
        raise UserError(f"'{name}' is no element type") from error


class NumpyKind:
    """Arrays of NumPy."""

    array = np.ndarray

    @staticmethod
    def address(x: np.ndarray) -> int:
        return x.__array_interface__["data"][0] if x.size else 64

    @staticmethod
    def dtype(x: np.ndarray) -> str:
        return x.dtype.name

    @staticmethod
    def is_dense(x: np.ndarray) -> bool:
        return x.flags.c_contiguous

    @staticmethod
    def dense(x: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(x)

    @staticmethod
    def empty(shape: Sequence[int], like: np.ndarray) -> np.ndarray:
        return np.empty(shape, like.dtype)

    @staticmethod
    def maker(x: np.ndarray) -> Callable[[], np.ndarray]:
        return functools.partial(np.empty, x.shape, x.dtype)

    @staticmethod
    def transpose(x: np.ndarray) -> np.ndarray:
        return np.swapaxes(x, -1, -2)

    @staticmethod
    def move(x: np.ndarray, source: int, to: int) -> np.ndarray:
        return np.moveaxis(x, source, to)

    @staticmethod
    def assign(out: np.ndarray, x: np.ndarray) -> None:
        out[...] = x

    @staticmethod
    def scale(x: np.ndarray, factor: float) -> None:
        np.multiply(x, x.dtype.type(factor), out=x)

    @staticmethod
    def writable(x: np.ndarray) -> bool:
        return x.flags.writeable

    @staticmethod
    def from_dtype(dtype: str, shape: Sequence[int]) -> np.ndarray:
        return np.empty(shape, numpy_dtype(dtype))

    @staticmethod
    def from_bytes(raw: np.ndarray, dtype: str, shape: Sequence[int]) -> np.ndarray:
        return raw.view(numpy_dtype(dtype)).reshape(shape)


class TorchKind:
    """Tensors of PyTorch on the CPU."""

    @staticmethod
    def address(x) -> int:
        return x.data_ptr() or 64

    @staticmethod
    def dtype(x) -> str:
        return str(x.dtype)[6:]

    @staticmethod
    def is_dense(x) -> bool:
        return x.is_contiguous()

    @staticmethod
    def dense(x):
        return x.detach().contiguous()

    @staticmethod
    def empty(shape, like):
        return like.new_empty(tuple(shape))

    @staticmethod
    def maker(x):
        torch = sys.modules["torch"]
        return functools.partial(torch.empty, *x.shape, dtype=x.dtype)

    @staticmethod
    def transpose(x):
        return x.transpose(-1, -2)

    @staticmethod
    def move(x, source: int, to: int):
        return x.movedim(source, to)

    @staticmethod
    def assign(out, x) -> None:
        out.copy_(x)

    @staticmethod
    def scale(x, factor: float) -> None:
        x.mul_(factor)

    @staticmethod
    def writable(x) -> bool:
        return True

    @staticmethod
    def from_dtype(dtype: str, shape: Sequence[int]):
        torch = sys.modules["torch"]
        return torch.empty(tuple(shape), dtype=getattr(torch, dtype))

    @staticmethod
    def from_bytes(raw: np.ndarray, dtype: str, shape: Sequence[int]):
        torch = sys.modules["torch"]
        return torch.from_numpy(raw).view(getattr(torch, dtype)).reshape(tuple(shape))


def kind_of(x: Any) -> Any:
    """The kind of an array that is taken as it is; else None."""
    if isinstance(x, np.ndarray):
        return NumpyKind
    torch = sys.modules.get("torch")
    return TorchKind if torch is not None and isinstance(x, torch.Tensor) else None


def adopt(x: Any) -> Tuple[Any, Any]:
    """(kind, x), where anything with DLPack has become a NumPy array that shares its memory. The
    one place that decides on which device a call runs; UserError for what is no array, and for GPU
    arrays, which are not taken yet.
    """
    if isinstance(x, np.ndarray):
        return NumpyKind, x
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        if x.device.type != "cpu":
            raise UserError(f"tensor on {x.device}: only CPU tensors are taken so far")
        if x.requires_grad and torch.is_grad_enabled():
            raise UserError(
                "this call has no gradient (an operator without one, or out=), and a tensor requires it"
            )
        return TorchKind, x
    if hasattr(x, "__cuda_array_interface__"):
        raise UserError(f"{type(x).__name__} on a GPU: only CPU arrays are taken so far")
    if hasattr(x, "__dlpack__"):
        try:
            return NumpyKind, np.from_dlpack(x)
        except Exception as error:
            raise UserError(
                f"{type(x).__name__}: cannot be read through DLPack: {error}"
            ) from error
    raise UserError(
        f"{type(x).__name__}: need a NumPy array, a PyTorch tensor or an array with DLPack"
    )
