"""What the operators' modules share: checks of arguments, results, and arrays as rows."""

from __future__ import annotations

import functools
import math
import operator
import os
import struct
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import _route
from ._adopt import adopt
from ._arrays import COMPUTED, dtype_name, ends, has_gaps, kind_of, may_overlap, may_repeat
from .errors import UserError

_LEAST, _MOST = -(2**31), 2**31 - 1  # of int32


def described(op: str, kind, arrays: Mapping[str, Any], *options: str) -> str:
    """A call, as the ranks compare it and errors show it: what must be the same on all of them."""
    parts = [f"{name} {kind.dtype(x)} {list(x.shape)}" for name, x in arrays.items()]
    return f"{op}({', '.join([*parts, *filter(None, options)])})"


def computed_dtype(
    op: str, kind, arrays: Mapping[str, Any], *, doubles: bool = True, also: str = ""
) -> str:
    """The element type of them all, by their names, one that is computed with. `doubles`: float64 on
    CPUs; `also`: another one that the caller takes, for the error."""
    (first, x), *others = arrays.items()
    dtype = kind.dtype(x)
    known = COMPUTED + (("float64",) if doubles and not kind.on_gpu else ())
    if dtype not in known:
        raise UserError(f"{op}: element type {dtype} of {first}; need one of {', '.join(known)}{also}")
    for name, x in others:
        if kind.dtype(x) != dtype:
            raise UserError(
                f"{op}: element types {dtype} and {kind.dtype(x)} differ, of {first} and {name}"
            )
    return dtype


def same_kind(op: str, kind, **arrays: Any) -> List[Any]:
    """The arrays by their names, adopted, all of `kind`."""
    adopted = []
    for name, x in arrays.items():
        other, y = adopt(op, name, x)
        if other is not kind:
            raise UserError(
                f"{op}: arrays of different kinds: {kind.name}, and {name} is a {other.name}"
            )
        adopted.append(y)
    return adopted


def int_table(op: str, kind, name: str, x, shape: Sequence[int]):
    """`x`, numbers of that shape, as dense int32."""
    (x,) = same_kind(op, kind, **{name: x})
    if kind.dtype(x) not in ("int32", "int64") or tuple(x.shape) != tuple(shape):
        raise UserError(
            f"{op}: {name} is {kind.dtype(x)} {tuple(x.shape)}; need int32 or int64 {tuple(shape)}"
        )
    return kind.dense(as_table(x))


def as_table(x):
    """`x`, numbers of 64 bits as int32, which programs read. For arguments of Group.call: plans repeat launches
    and copies, and this is neither."""
    if getattr(x, "itemsize", 0) != 8:
        return x
    try:
        kind = kind_of(x)
    except UserError:  # which the call tells, with the argument's name
        return x
    if kind is None or kind.dtype(x) != "int64":
        return x
    some = x if x.ndim else x.reshape((1,))  # of nothing but a number NumPy makes no array
    fitting = some.clip(_LEAST, _MOST)  # which break every table's contract (in_users_words)
    made = kind.contiguous(kind.cast(fitting, "int32"))
    return made if x.ndim else made.reshape(())


@_route.beside_graphs
def as_dense(x, *, rows_first: bool = False):
    """`x`, dense; with `rows_first`, where it is [.., heads, rows, size], dense as [.., rows, heads, size]. For
    arguments of Group.call whose copy no plan repeats. What is no such array the call tells of."""
    if rows_first and getattr(x, "ndim", 0) < 3:
        return x
    try:
        kind = kind_of(x)
        if kind is None:
            return x
        if rows_first:
            moved = x.swapaxes(-3, -2)
            made = kind.contiguous(moved)
            return x if made is moved else made.swapaxes(-3, -2)
        return kind.contiguous(x)
    except (UserError, RuntimeError):  # another device, a tensor without elements of its own
        return x


def floats(op: str, kind, name: str, x, shape: Sequence[int]):
    """`x`, float32 of that shape."""
    (x,) = same_kind(op, kind, **{name: x})
    if kind.dtype(x) != "float32" or tuple(x.shape) != tuple(shape):
        raise UserError(
            f"{op}: {name} is {kind.dtype(x)} {tuple(x.shape)}; need float32 {tuple(shape)}"
        )
    return x


def float_array(op: str, kind, name: str, x, shape: Sequence[int]):
    """The same, dense."""
    return kind.dense(floats(op, kind, name, x, shape))


def residual_or_zeros(op: str, kind, residual, shape: Sequence[int], like, group=None):
    """What is added to a result of that shape and the element type of `like`, dense. `group`: has the
    zeros of one call for the next."""
    if residual is None and group is not None and 0 not in shape:
        most = bound_of(shape[0]), *shape[1:]
        key = "zeros", kind, most, kind.dtype(like)
        zeros = group.kept.array(kind, key, lambda: kind.zeros(most, like))
        group.kept.stays(kind, zeros)
        return zeros[: shape[0]]
    if residual is None:
        return kind.zeros(shape, like)
    (x,) = same_kind(op, kind, residual=residual)
    if kind.dtype(x) != kind.dtype(like) or tuple(x.shape) != tuple(shape):
        raise UserError(
            f"{op}: residual is {kind.dtype(x)} {tuple(x.shape)}, the result "
            f"{kind.dtype(like)} {tuple(shape)}"
        )
    return kind.dense(x)


def bound_of(rows: int) -> int:
    """What a program is made for that serves so many rows, of arrays whose rows alone are counted
    at run time: one of four sizes in every octave, so that a new number of rows seldom is a new
    program."""
    step = 1 << max((rows - 1).bit_length() - 3, 0)
    return -(-rows // step) * step


@functools.lru_cache(maxsize=1024)
@_route.beside_graphs
def with_options(body: Callable[..., Any], *options: Any) -> Callable[..., Any]:
    """body with its first arguments, for Group.call; the same object each time."""
    return functools.partial(body, *options)


@functools.lru_cache(maxsize=1024)
@_route.beside_graphs
def _of_those_there(op: str, body: Callable[..., Any], there: Tuple[bool, ...], *options: Any):
    """See call_with(); the same object each time."""

    def call(group, *given):
        *arrays, _, out = given
        left = iter(arrays)
        return body(group, *options, *(next(left) if is_there else None for is_there in there), out)

    call.__name__ = op
    return call


def call_with(group, op: str, body: Callable[..., Any], options: Sequence[Any], out: Any, *arrays: Any) -> Any:
    """body(group, *options, *arrays, out) as one call of the group that is named `op`; arrays may be
    None."""
    there = tuple([x is not None for x in arrays])  # every call makes these: lists take half as long as generators
    call = _of_those_there(op, body, there, *options)
    return group.call(call, 0, out, *[x for x in arrays if x is not None])


def flag(op: str, name: str, value: Any) -> bool:
    """Whether `value` counts as true."""
    try:
        return bool(value)
    except (TypeError, ValueError):
        raise UserError(f"{op}: {name} is {value!r}, need True or False") from None


def whole(op: str, name: str, value: Any) -> int:
    """`value`, which is to be a whole number of 64 bits."""
    try:
        number_of_any_size = operator.index(value)
    except TypeError:
        raise UserError(f"{op}: {name} is {value!r}, need a whole number") from None
    if not fits(number_of_any_size):
        raise UserError(f"{op}: {name} is {value!r}, need a number of 64 bits")
    return number_of_any_size


def fits(number_of_any_size: int) -> bool:
    """Whether it has 64 bits."""
    return -(2**63) <= number_of_any_size < 2**63


def file_name(caller: str, path: Any) -> str:
    """What the user gave as a path."""
    try:
        return os.fsdecode(path)
    except TypeError:
        raise UserError(f"stretto.{caller}({path!r}): need a path") from None


def text(op: str, name: str, value: Any) -> str:
    """`value`, which is to be a word."""
    if not isinstance(value, str):
        raise UserError(f"{op}: {name} is {value!r}, need a str")
    return value


def element_type(op: str, dtype: Any) -> str:
    """The name of `dtype`, which is to be a dtype of NumPy or PyTorch, or a name."""
    try:
        if dtype is None:  # NumPy's default, which nobody means
            raise TypeError
        return dtype_name(dtype)
    except (TypeError, ValueError):
        raise UserError(f"{op}: dtype is {dtype!r}, need an element type or its name") from None


def size_of(op: str, name: str, value: Any) -> int:
    """`value`, which is to be the size of a program, 0 for its default."""
    size = whole(op, name, value)
    if size < 0:
        raise UserError(f"{op}: {name} is {size}, need 0 or more")
    return size


def float_bits(op: str, name: str, value: Any) -> int:
    """`value` as a float32, whose bits are this number."""
    factor = number(op, name, value)
    try:
        return struct.unpack("<I", struct.pack("<f", factor))[0]
    except OverflowError:
        raise UserError(f"{op}: {name} is {value!r}, more than a float32 holds") from None


def number(op: str, name: str, value: Any) -> float:
    """`value`, which is to be a number."""
    try:
        if isinstance(value, (str, bytes)):  # float() reads numbers out of texts
            raise TypeError
        return float(value)
    except OverflowError:
        raise UserError(f"{op}: {name} is a whole number that no float holds") from None
    except (TypeError, ValueError):
        raise UserError(f"{op}: {name} is {value!r}, need a number") from None


def scale_or_none(op: str, scale: Any) -> Optional[float]:
    """Of attention; None: the default."""
    if scale is None:
        return None
    factor = number(op, "scale", scale)
    if not math.isfinite(factor):
        raise UserError(f"{op}: scale is {scale!r}, need a finite number")
    return factor


def several(
    op: str, given: Any, count: int, name: str = "out", need: str = "arrays for its results"
) -> Optional[Tuple[Any, ...]]:
    """What the caller gave as the argument `name`, by default as `out` of an operator with so many
    results."""
    if given is None:
        return None
    if not isinstance(given, (tuple, list)) or len(given) != count:
        raise UserError(f"{op}: {name} is {_described(given)}, need {count} {need}")
    return tuple(given)


def _described(given: Any) -> str:
    many = isinstance(given, (tuple, list))
    return f"a {type(given).__name__} of {len(given)}" if many else f"one {type(given).__name__}"


def axis(op: str, name: str, dim: int, num_dims: int) -> int:
    """`dim` counted from the front."""
    if not -num_dims <= dim < num_dims:
        raise UserError(f"{op}: {name} {dim} of an array of {num_dims} dimensions")
    return dim % num_dims


REDUCTIONS = ("sum", "avg", "min", "max", "product", "premul_sum")
_ONE_BITS = 0x3F800000  # 1 as a float32


class Reducing(NamedTuple):
    """What the ranks' parts are reduced to."""

    reduce_op: str = "sum"
    factor_bits: int = _ONE_BITS  # of "premul_sum" alone: its factor, a float32

    @property
    def factor(self) -> float:
        return struct.unpack("<f", struct.pack("<I", self.factor_bits))[0]

    def named(self) -> str:
        """For described()."""
        factor = f", factor={self.factor:.9g}" if self.reduce_op == "premul_sum" else ""
        return "" if self.reduce_op == "sum" else f"reduce_op={self.reduce_op}{factor}"

    def scalars(self) -> Tuple[int, ...]:
        """What launches take after their sizes."""
        return (self.factor_bits,) if self.reduce_op == "premul_sum" else ()


SUM = Reducing()


def reduction(op: str, reduce_op: str, factor: Any = None) -> Reducing:
    """As all_reduce and reduce_scatter are told."""
    if factor is None and reduce_op == "sum":
        return SUM
    if reduce_op not in REDUCTIONS:
        raise UserError(f"{op}: reduce_op '{reduce_op}': one of {', '.join(REDUCTIONS)}")
    if (factor is not None) != (reduce_op == "premul_sum"):
        raise UserError(
            f"{op}: reduce_op '{reduce_op}' and factor {factor!r}; 'premul_sum' takes factor=, the others none"
        )
    if getattr(factor, "requires_grad", False):
        raise UserError(f"{op}: factor is a tensor that requires a gradient, which no factor has: factor.item()")
    return Reducing(reduce_op, _ONE_BITS if factor is None else float_bits(op, "factor", factor))


def by_reduction(body: Callable[..., Any], reducing: Reducing) -> Callable[..., Any]:
    """For Group.call; the same object each time."""
    return body if reducing is SUM else _by_other_reduction(body, reducing)


@functools.lru_cache(maxsize=1024)
@_route.beside_graphs
def _by_other_reduction(body: Callable[..., Any], reducing: Reducing) -> Callable[..., Any]:
    return functools.partial(body, reducing=reducing)


def reduced_dtype(op: str, kind, x: Any, reduce_op: str) -> None:
    """UserError for element types that have no such reduction."""
    if kind.dtype(x) != "int32":
        computed_dtype(op, kind, {"x": x}, also="" if reduce_op in ("avg", "premul_sum") else ", int32")
    elif reduce_op == "avg":
        raise UserError(f"{op}: an average of int32 need not be one; sum, min, max, product")
    if reduce_op == "premul_sum" and kind.dtype(x) in ("int32", "float64"):
        raise UserError(
            f"{op}: premultiplied sums are of floats up to float32, as their factor is, not "
            f"{kind.dtype(x)}; multiply before"
        )


def is_average(op: str, reduce_op: str) -> bool:
    """Whether the reduction divides sums by the number of ranks."""
    if reduce_op not in ("sum", "avg"):
        raise UserError(f"{op}: reduce_op '{reduce_op}': one of sum, avg")
    return reduce_op == "avg"


def make_result(
    op: str, kind, out, shape: Sequence[int], like, read: Sequence[Any] = ()
) -> Tuple[Any, Any]:
    """(what the caller gets, what the launch writes, dense). `read`: arrays that the launch still reads
    when it writes, so it does not write into them."""
    if out is None:
        made = kind.empty(shape, like)
        return made, made
    out = checked_result(op, kind, out, shape, kind.dtype(like))
    kind.count_write(out)
    apart = kind.is_dense(out) and not may_overlap(kind, out, *read)
    return out, out if apart else kind.empty(shape, like)


def checked_result(op: str, kind, out, shape: Sequence[int], dtype: str, name: str = "out") -> Any:
    """`out`, adopted, which the caller has given as `name` for a result of that shape and element type. All that
    could be wrong with it, since writing it comes after the launch, when it is too late to refuse."""
    other, out = adopt(op, name, out)
    if other is not kind or tuple(out.shape) != tuple(shape) or kind.dtype(out) != dtype:
        raise UserError(
            f"{op}: {name} is a {other.name}, {other.dtype(out)} {tuple(out.shape)}, the result a "
            f"{kind.name}, {dtype} {tuple(shape)}"
        )
    check_writable(op, kind, out, name)
    return out


def check_writable(op: str, kind, x, name: str) -> None:
    if not kind.writable(x):
        raise UserError(f"{op}: {name} is read-only")
    if may_repeat(kind, x):
        strides = tuple(stride // kind.itemsize(x) for stride in kind.strides_bytes(x))
        raise UserError(f"{op}: {name} has elements that share memory: shape {tuple(x.shape)}, strides {strides}")


def check_apart(op: str, kind, results: Sequence[Any]) -> None:
    """Of the arrays of one call's results. Those with gaps may lie in each other's."""
    spans = sorted(ends(kind, x) for x in results if not has_gaps(kind, x))
    for (_, end), (first, _) in zip(spans, spans[1:]):
        if first < end:
            raise UserError(f"{op}: out: two of the arrays overlap")


def unless_same(kind, out, *arrays) -> List[Any]:
    """Those of the arrays, of which a launch writes an element only once it has read it, that are not
    `out` itself."""

    def is_out(x):
        same = kind_of(out) is kind and kind.address(x) == kind.address(out)
        return same and kind.is_dense(x) and kind.is_dense(out)

    return [x for x in arrays if not is_out(x)]


def finish(kind, out, written):
    """What the caller gets, once `written` is."""
    if out is not written:
        kind.assign(out, written)
    return out


class AlongDim(NamedTuple):
    """An array whose dimension `dim` is the one that ranks gather or scatter: the launch works on
    it with that dimension first."""

    kind: Any
    dim: int
    result: Any  # what the caller gets
    written: Any  # dense, of the same shape
    target: Any  # what the launch writes: `dim` first

    def finish(self):
        """The result, once the launch has written."""
        if self.dim != 0:
            self.kind.assign(self.written, self.kind.move(self.target, 0, self.dim))
        return finish(self.kind, self.result, self.written)


def result_along(
    op: str, kind, out, shape: Sequence[int], dim: int, like, read: Sequence[Any] = ()
) -> AlongDim:
    """For a result of that shape; `read` as make_result() has it."""
    result, written = make_result(op, kind, out, shape, like, read)
    first = (shape[dim], *shape[:dim], *shape[dim + 1 :])
    target = written if dim == 0 else kind.empty(first, like)
    return AlongDim(kind, dim, result, written, target)


class Rows(NamedTuple):
    """An array as equal runs of rows, where its shape does not matter to a program."""

    array: Any
    dtype: str  # of the program, which may move elements as others
    rows: int  # of a run
    columns: int
    elements: int  # of a run, in the array's own type
    is_padded: bool

    def target(self, group, kind, written, runs: int):
        """What a launch writes that has `runs` such runs as its result."""
        shape = runs, self.elements
        return group.kept.room(kind, "padded result", shape, written) if self.is_padded else written

    def finish(self, group, kind, written, target, runs: int) -> None:
        """Takes the result out of target()."""
        if self.is_padded:
            run = math.prod(written.shape) // runs
            group.assign(kind, written.reshape((runs, run)), target[:, :run])


# GPUs move rows of whole 16 bytes fastest; these let them have columns enough for every thread. So much is
# added to a run only where it is long: of few elements a row may have any number.
_GPU_RUN_BYTES = 256
_FEW_ELEMENTS = 1024
# Of a row, where they divide a run; else it is one row, of which programs that move rows as a whole take
# no more than a tile may have.
_COLUMNS = (1024, 512, 256, 128, 64)
_FEW_COLUMNS = (32, 16, 8, 4, 2, 1)
# For programs that move many bytes fastest in wide rows; few bytes are rows for every SM first.
WIDE_COLUMNS = (8192, 4096, 2048, *_COLUMNS)
_LEAST_WIDE_ROWS = 1024
_MOST_COLUMNS = 1 << 20
_SIZES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int64": 8,
    "int32": 4,
    "uint8": 1,
}


def moved_as(kind, x) -> str:
    """The element type as which programs move x's elements, several or parts of one at a time."""
    dtype = kind.dtype(x)
    if dtype in COMPUTED or (not kind.on_gpu and dtype in _SIZES):
        return dtype
    return "float32" if kind.on_gpu else "int32" if kind.itemsize(x) % 4 == 0 else "uint8"


def columns_as(dtype: str, kind, x, columns: int) -> int:
    """How many elements of `dtype` that many of x's are."""
    return columns * kind.itemsize(x) // _SIZES[dtype]


def padded(kind, x, columns: int, unit_bytes: int) -> int:
    """At least `columns`, so that on GPUs so many elements are whole units."""
    if not kind.on_gpu:
        return columns
    unit = unit_bytes // math.gcd(kind.itemsize(x), unit_bytes)
    return -(-columns // unit) * unit


def as_rows(group, kind, x, runs: int = 1, *, moved: bool = False, widths=_COLUMNS) -> Rows:
    """`x`, dense, as `runs` runs, for a call of `group`, in rows of the first of `widths` that divides
    them. `moved`: of any element type, since it is not computed with.
    Runs are padded where they have to be."""
    run, array = math.prod(x.shape) // runs, x
    dtype = moved_as(kind, x) if moved else kind.dtype(x)
    few = run <= _FEW_ELEMENTS
    wide = padded(kind, x, run, _SIZES.get(dtype, 1) if few else _GPU_RUN_BYTES)
    size = columns_as(dtype, kind, x, wide)
    if few and kind.on_gpu:
        widths = (*widths, *_FEW_COLUMNS)
    narrow = size <= _LEAST_WIDE_ROWS * _COLUMNS[0]
    columns = next((c for c in widths if size % c == 0 and (c <= _COLUMNS[0] or not narrow)), size)
    if moved and columns > _MOST_COLUMNS:
        columns = _COLUMNS[0]
        wide = -(-run // columns) * columns
        size = columns_as(dtype, kind, x, wide)
    if wide != run:
        array = group.kept.room(kind, "padded", (runs, wide), x)
        group.assign(kind, array[:, :run], x.reshape((runs, run)))
    return Rows(array, dtype, size // columns if size else 0, columns, wide, wide != run)
