"""What the operators need of an array, for NumPy and CuPy arrays, PyTorch tensors on the CPU and on
GPUs, and whatever speaks DLPack on the CPU.

A kind is a class of static functions over one sort of array. `on_gpu` says where a call with such
arrays runs, `num_sms` on how many SMs of a GPU, 0 of none, and `gpu_name` on which, "" on none; kinds on
GPUs also tell an array's device and the stream that the caller's work is on.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from typing import Any, Callable, Dict, Sequence, Tuple, TypeVar

import numpy as np

from . import _core
from .errors import UserError

# What operators take: an array of NumPy or CuPy, a tensor of PyTorch. The others of a call are of the
# same kind, and so are results.
ArrayT = TypeVar("ArrayT")
# Element types that are computed with; data is moved in any type. Doubles on CPUs only, and not in
# every operator.
COMPUTED = ("float32", "bfloat16", "float16")
# GPUs take whole units of so many bytes, which address and rows begin at.
ALIGNMENT = 16


@functools.lru_cache(maxsize=64)
def _gpu_sms(device: int) -> int:
    return _core.gpu_sms(device)


@functools.lru_cache(maxsize=64)
def _gpu_name(device: int) -> str:
    return _core.gpu_name(device)


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


def dtype_name(dtype: Any) -> str:
    """The name of a dtype of NumPy or PyTorch; a name as it is."""
    text = str(dtype)
    if isinstance(dtype, str) or text.startswith("torch."):
        return text.rpartition(".")[2]
    return np.dtype(dtype).name


class NumpyKind:
    """Arrays of NumPy."""

    name = "NumPy array"
    on_gpu = False
    module: Any = np

    @staticmethod
    def num_sms(x) -> int:  # pylint: disable=unused-argument
        return 0

    @staticmethod
    def gpu_name(x) -> str:  # pylint: disable=unused-argument
        return ""

    @staticmethod
    def address(x) -> int:
        return x.__array_interface__["data"][0] if x.size else 64

    @staticmethod
    def dtype(x) -> str:
        return x.dtype.name

    @staticmethod
    def itemsize(x) -> int:
        return x.dtype.itemsize

    @staticmethod
    def is_dense(x) -> bool:
        return x.flags.c_contiguous and x.flags.aligned

    @staticmethod
    def dense(x):
        return np.require(x, requirements=("C", "A"))

    @classmethod
    def contiguous(cls, x):
        """x itself where it is."""
        return x if x.flags.c_contiguous else cls.module.ascontiguousarray(x)

    @staticmethod
    def strides_bytes(x) -> Sequence[int]:
        return x.strides

    @staticmethod
    def why_not(x) -> str:
        """Why it cannot be computed with or moved; empty where it can."""
        if x.dtype.hasobject:
            return f"elements of {x.dtype} are Python objects"
        return "" if x.dtype.isnative else f"elements of {x.dtype} have another byte order"

    @classmethod
    def empty(cls, shape: Sequence[int], like):
        return cls.module.empty(shape, like.dtype)

    @classmethod
    def zeros(cls, shape: Sequence[int], like):
        return cls.module.zeros(shape, like.dtype)

    @classmethod
    def maker(cls, x) -> Callable[[], Any]:
        """Makes arrays like x, which is dense but for the order of its dimensions."""
        if x.flags.c_contiguous:
            return functools.partial(cls.module.empty, x.shape, x.dtype)
        order = sorted(range(x.ndim), key=lambda d: -x.strides[d])
        shape, back = [x.shape[d] for d in order], [order.index(d) for d in range(x.ndim)]
        dtype = x.dtype
        return lambda: cls.module.empty(shape, dtype).transpose(back)

    @staticmethod
    def ints(values: Sequence[int], like) -> Any:  # pylint: disable=unused-argument
        """int32, where `like` is."""
        return np.array(values, np.int32)

    @staticmethod
    def cast(x, dtype: str):
        return x.astype(numpy_dtype(dtype))

    @classmethod
    def transpose(cls, x):
        return cls.module.swapaxes(x, -1, -2)

    @classmethod
    def move(cls, x, source: int, to: int):
        return cls.module.moveaxis(x, source, to)

    @staticmethod
    def copy(x):
        return x.copy()

    @staticmethod
    def assign(out, x) -> None:
        out[...] = x

    @staticmethod
    def fill(out, value: float) -> None:
        out[...] = value

    @staticmethod
    def writable(x) -> bool:
        return x.flags.writeable

    @staticmethod
    def count_write(x) -> None:
        """That a launch writes x, which was given as a result."""

    @classmethod
    def from_dtype(cls, dtype: str, shape: Sequence[int], like):  # pylint: disable=unused-argument
        return cls.module.empty(shape, numpy_dtype(dtype))

    @staticmethod
    def from_memory(memory, dtype: str, shape: Sequence[int], size_bytes: int):
        """Of symmetric memory."""
        return memory.bytes()[:size_bytes].view(numpy_dtype(dtype)).reshape(shape)


class CupyKind(NumpyKind):
    """Arrays of CuPy, on the GPU that is CuPy's current device."""

    name = "CuPy array"
    on_gpu = True
    _streams: Dict[int, Any] = {}  # that calls were enqueued on, by address

    @staticmethod
    def address(x) -> int:
        return x.data.ptr or 64

    @staticmethod
    def is_dense(x) -> bool:
        return x.flags.c_contiguous and x.data.ptr % ALIGNMENT == 0

    @staticmethod
    def dense(x):
        x = CupyKind.module.ascontiguousarray(x)
        return x if x.data.ptr % ALIGNMENT == 0 else x.copy()

    @classmethod
    def ints(cls, values, like):
        return cls.module.array(values, np.int32)

    @staticmethod
    def writable(x) -> bool:
        return True

    @classmethod
    def from_memory(cls, memory, dtype, shape, size_bytes):
        cuda = cls.module.cuda
        raw = cuda.UnownedMemory(memory.address, max(size_bytes, 1), memory, memory.device)
        return cls.module.ndarray(shape, numpy_dtype(dtype), cuda.MemoryPointer(raw, 0))

    @staticmethod
    def device(x) -> int:
        return x.device.id

    @staticmethod
    def num_sms(x) -> int:
        return _gpu_sms(x.device.id)

    @staticmethod
    def gpu_name(x) -> str:
        return _gpu_name(x.device.id)

    @classmethod
    def current_device(cls) -> int:
        return cls.module.cuda.runtime.getDevice()

    @classmethod
    def stream(cls, device: int) -> int:
        with cls.module.cuda.Device(device):
            current = cls.module.cuda.get_current_stream()
        # CuPy destroys a stream with its last object; what waits for it later has its address only.
        return cls._streams.setdefault(current.ptr, current).ptr

    @classmethod
    def is_capturing(cls) -> bool:
        return cls.module.cuda.get_current_stream().is_capturing()

    @classmethod
    def synchronize(cls) -> None:
        """Until what the caller's stream was given is done."""
        cls.module.cuda.get_current_stream().synchronize()


class TorchKind:
    """Tensors of PyTorch on the CPU."""

    name = "tensor on the CPU"
    on_gpu = False

    @staticmethod
    def num_sms(x) -> int:  # pylint: disable=unused-argument
        return 0

    @staticmethod
    def gpu_name(x) -> str:  # pylint: disable=unused-argument
        return ""

    @staticmethod
    def address(x) -> int:
        return x.data_ptr() or TorchKind._of_nothing(x)

    @staticmethod
    def _of_nothing(x) -> int:
        if x.numel():
            raise UserError(TorchKind._without_memory(x))
        return 64

    @staticmethod
    def _without_memory(x) -> str:
        if hasattr(x, "to_local"):
            return f"{type(x).__name__} is spread over ranks; pass this rank's part, x.to_local()"
        return f"a {type(x).__name__} of {x.numel()} elements has no memory of its own"

    @staticmethod
    def dtype(x) -> str:
        return str(x.dtype)[6:]

    @staticmethod
    def itemsize(x) -> int:
        return x.element_size()

    @classmethod
    def is_dense(cls, x) -> bool:
        aligned = x.data_ptr() % cls.alignment(x) == 0
        return x.is_contiguous() and aligned and not x.is_neg() and not x.is_conj()

    @classmethod
    def dense(cls, x):
        x = x.detach().contiguous()
        if x.is_neg() or x.is_conj():
            x = x.resolve_neg().resolve_conj()
        return x if x.data_ptr() % cls.alignment(x) == 0 else x.clone()

    @staticmethod
    def contiguous(x):
        # With the gradient that it has, so that calls refuse it, which dense() leaves behind.
        return x if x.is_contiguous() else x.contiguous()

    @staticmethod
    def alignment(x) -> int:
        """Of an element."""
        return x.element_size()

    @staticmethod
    def strides_bytes(x) -> Sequence[int]:
        return [n * x.element_size() for n in x.stride()]

    @staticmethod
    def why_not(x) -> str:
        torch = sys.modules["torch"]
        if x.layout is not torch.strided:
            return f"layout {x.layout}"
        if x.is_quantized:
            return "quantized"
        wraps = type(x) is not torch.Tensor and hasattr(type(x), "__tensor_flatten__")
        return TorchKind._without_memory(x) if wraps or not _has_memory(x) else ""

    @staticmethod
    def empty(shape, like):
        return like.new_empty(tuple(shape))

    @staticmethod
    def zeros(shape, like):
        return like.new_zeros(tuple(shape))

    @staticmethod
    def maker(x):
        torch = sys.modules["torch"]
        like = torch.empty_like(x)
        like.untyped_storage().resize_(0)
        return functools.partial(torch.empty_like, like)  # a third faster than by sizes

    @staticmethod
    def ints(values, like):
        torch = sys.modules["torch"]
        return torch.tensor(values, dtype=torch.int32, device=like.device)

    @staticmethod
    def cast(x, dtype: str):
        return x.to(getattr(sys.modules["torch"], dtype))

    @staticmethod
    def transpose(x):
        return x.transpose(-1, -2)

    @staticmethod
    def move(x, source: int, to: int):
        return x.movedim(source, to)

    @staticmethod
    def copy(x):
        return x.detach().clone()

    @staticmethod
    def assign(out, x) -> None:
        with TorchKind._writing(out):
            out.copy_(x)

    @staticmethod
    def fill(out, value: float) -> None:
        with TorchKind._writing(out):
            out.fill_(value)

    @staticmethod
    def _writing(out):
        """For PyTorch's own writes, which it refuses to tensors of inference mode outside of it; launches write
        them anywhere."""
        torch = sys.modules["torch"]
        made_there = out.is_inference() and not torch.is_inference_mode_enabled()
        return torch.inference_mode() if made_there else contextlib.nullcontext()

    @staticmethod
    def writable(x) -> bool:  # pylint: disable=unused-argument
        return True

    @staticmethod
    def count_write(x) -> None:
        """Autograd notices that x is no longer what it has saved."""
        sys.modules["torch"].autograd.graph.increment_version(x)

    @staticmethod
    def from_dtype(dtype: str, shape: Sequence[int], like):
        torch = sys.modules["torch"]
        return torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=like.device)

    @staticmethod
    def from_memory(memory, dtype: str, shape: Sequence[int], size_bytes: int):
        torch = sys.modules["torch"]
        raw = torch.from_numpy(memory.bytes()[:size_bytes])
        return raw.view(getattr(torch, dtype)).reshape(tuple(shape))


class TorchGpuKind(TorchKind):
    """Tensors of PyTorch on a GPU."""

    name = "tensor on a GPU"
    on_gpu = True
    is_of_torch = True

    @staticmethod
    def alignment(x) -> int:  # pylint: disable=unused-argument
        return ALIGNMENT

    @staticmethod
    def from_memory(memory, dtype: str, shape: Sequence[int], size_bytes: int):
        torch = sys.modules["torch"]
        raw = torch.from_dlpack(memory.dlpack())[:size_bytes]
        return raw.view(getattr(torch, dtype)).reshape(tuple(shape))

    @staticmethod
    def device(x) -> int:
        return x.device.index

    @staticmethod
    def num_sms(x) -> int:
        return _gpu_sms(TorchGpuKind._device_of(x))

    @staticmethod
    def gpu_name(x) -> str:
        return _gpu_name(TorchGpuKind._device_of(x))

    @staticmethod
    def _device_of(x) -> int:
        index = x.device.index  # None of tensors without memory
        return TorchGpuKind.current_device() if index is None else index

    @staticmethod
    def current_device() -> int:
        return sys.modules["torch"].cuda.current_device()

    @staticmethod
    def stream(device: int) -> int:
        return sys.modules["torch"].cuda.current_stream(device).cuda_stream

    @staticmethod
    def is_capturing() -> bool:
        return sys.modules["torch"].cuda.is_current_stream_capturing()

    @staticmethod
    def synchronize() -> None:
        sys.modules["torch"].cuda.current_stream().synchronize()


def torch_kind(device_type: str) -> Any:
    """The kind of tensors on devices of that type; UserError where stretto does not compute."""
    if device_type == "cpu":
        return TorchKind
    if device_type == "cuda":
        return TorchGpuKind
    raise UserError(f"tensor on {device_type}: only CPUs and NVIDIA GPUs are computed on")


def kind_of_numpy(device_type: str) -> Any:
    """The kind of NumPy's dtypes on devices of that type."""
    if device_type == "cpu":
        return NumpyKind
    if device_type != "cuda":
        raise UserError(f"device '{device_type}': one of cpu, cuda")
    try:
        import cupy  # pylint: disable=import-outside-toplevel
    except ImportError as error:
        raise UserError("arrays on GPUs need CuPy, or a dtype of PyTorch") from error
    CupyKind.module = cupy
    return CupyKind


def kind_of(x: Any) -> Any:
    """The kind of an array that is taken as it is; else None."""
    if isinstance(x, np.ndarray):
        return NumpyKind
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return torch_kind(x.device.type)
    return _cupy_kind(x)


def form_of(x: Any) -> Any:
    """Of an array what checks of it by itself go by, but where it is, for a key; None for one that is to
    be checked each time."""
    made_by = type(x)
    if made_by is np.ndarray:
        return made_by, x.dtype, x.shape, x.strides, x.flags.writeable
    torch = sys.modules.get("torch")
    if torch is None or made_by is not torch.Tensor or x.requires_grad:
        return None
    if x.layout is not torch.strided:
        return None
    return x.dtype, x.shape, x.stride(), x.device


def _has_memory(tensor: Any) -> bool:
    try:
        return tensor.data_ptr() != 0 or tensor.numel() == 0
    except RuntimeError:  # tensors of a transformation, as in torch.func
        return False


def may_overlap(kind: Any, a: Any, *others: Any) -> bool:
    """Whether an element of a may be one of another array's, by where they begin and end."""
    first, end = ends(kind, a)
    spans = (ends(kind, x) for x in others)
    return any(first < other_end and other_first < end for other_first, other_end in spans)


def may_repeat(kind: Any, x: Any) -> bool:
    """Whether two of its elements may be in one place; not of an array that slices and turns a dense one."""
    end = kind.itemsize(x)
    if 0 in x.shape:
        return False
    for stride, n in sorted((abs(stride), n) for n, stride in zip(x.shape, kind.strides_bytes(x))):
        if n > 1 and stride < end:
            return True
        end += (n - 1) * stride
    return False


def has_gaps(kind: Any, x: Any) -> bool:
    """Whether others' elements may lie between its own."""
    first, end = ends(kind, x)
    return end - first != kind.itemsize(x) * math.prod(x.shape)


def ends(kind: Any, x: Any) -> Tuple[int, int]:
    """Where its elements begin and end."""
    shape = tuple(x.shape)
    if 0 in shape:
        return 0, 0
    first = last = kind.address(x)
    for n, stride in zip(shape, kind.strides_bytes(x)):
        if stride < 0:
            first += (n - 1) * stride
        else:
            last += (n - 1) * stride
    return first, last + kind.itemsize(x)


def _cupy_kind(x: Any) -> Any:
    cupy = sys.modules.get("cupy")
    if cupy is None or not isinstance(x, cupy.ndarray):
        return None
    CupyKind.module = cupy
    return CupyKind
