"""Products of a rank, as a collective has them: checked factors and scales, and the launches that
they come to. Between matmul.py, which says what is collected, and _group.py."""

from __future__ import annotations

import math
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from . import _core
from ._adopt import adopt
from ._calls import computed_dtype, described, same_kind
from ._group import programs
from .errors import UserError
from .symm_mem import workspace

_FP8 = "float8_e4m3fn"
_BLOCK = 128  # elements that have one scale


class Scales(NamedTuple):
    form: str  # as stretto/ops/gemm/linear.h names it
    a: Any  # [.., 1] or [.., K / 128]
    b: Any  # [1, N] or [N / 128, K / 128], dense


Offer = Tuple[str, List[Any]]  # a config by name, its program or the two of a sequence


def keys_of(key: Any, offer: Offer) -> List[Any]:
    """What its launches are kept under, of the product with this key."""
    config, steps = offer
    return [(*key, config)] if len(steps) == 1 else [(*key, config, i) for i in range(len(steps))]


class Size(NamedTuple):
    """Of the launches of a call."""

    rows: int
    bound: int  # the most rows that their programs may have
    exact: bool  # and no others
    said: str  # the call, in words


class Product(NamedTuple):
    """a [.., K] times b [K, N], of a rank of `group`."""

    op: str
    group: Any
    kind: Any
    dtype: str
    a: Any
    weights: Any  # dense, [N, K], or [K, N] with b_kn
    b_kn: bool
    like: Any  # an array of the result's element type
    scales: Optional[Scales] = None
    average: bool = False  # of the ranks' products, instead of their sum

    @property
    def columns(self) -> int:
        return self.weights.shape[1 if self.b_kn else 0]

    @property
    def summed(self) -> int:
        """K, of which `a` may have a rank's part."""
        return self.weights.shape[0 if self.b_kn else 1]

    def rows_of(self, x, dim: int):
        """a, or its scales, dense and with `dim` first."""
        return self.kind.dense(self.kind.move(x, dim, 0))

    @property
    def read(self) -> Sequence[Any]:
        """What a launch still reads when it writes."""
        return (self.a, self.weights, *(self.scales[1:] if self.scales else ()))

    def launch(self, program: str, rows: int, dim: int, outputs: dict, **fields) -> None:
        """`program` of _core over `rows` of all ranks, or collective and product one after the
        other, with these arrays as its outputs. `dim`: of a, what ranks have parts of. `fields`:
        those of the program's Desc that others lack."""
        said = self._described(dim, fields)
        dim = 0 if dim == self.a.ndim - 1 else dim  # which comes first: columns come last
        if 0 in (rows, self.columns, self.summed):
            self.group.agree_on_nothing(said)
            for made in outputs.values():
                self.kind.fill(made, 0)  # sums of nothing
            return
        kind, names = self.kind, ("a", "b", *outputs)
        arrays = (self.rows_of(self.a, dim), self.weights, *outputs.values())
        form = "none"
        if self.scales is not None:
            form, scale_a, scale_b = self.scales
            names += ("scale_a", "scale_b")
            arrays += (self.rows_of(scale_a, dim), scale_b)
        desc = {
            "world_size": self.group.size,
            "n": self.columns,
            "k": self.summed,
            "a_dtype": self.dtype,
            "b_dtype": self.dtype,
            "scaling": form,
            "b_kn": self.b_kn,
            "result_dtype": kind.dtype(self.like),
            "products": self.group.options.products,
            **fields,
        }
        op = program, *desc.values()
        # What peers reach into has the size of the program's tensor, of which a caller knows nothing.
        reached = any(self.group.is_symmetric(kind.address(x)) for x in arrays)
        bound, exact = (rows, True) if reached else self.group.bound((kind.on_gpu, op), rows)
        desc["m"] = bound
        make, key = getattr(_core, program), (*op, bound)
        size = Size(rows, bound, exact, said)
        tensors = dict(zip(names, arrays))

        def run(offer: Offer) -> None:
            keyed = list(zip(keys_of(key, offer), offer[1]))
            if len(keyed) == 1:
                self._launch_step(*keyed[0], size, tensors)
            elif program == "ag_gemm":
                self._gather_then_multiply(keyed, size, arrays[0], outputs)
            else:
                self._multiply_then_collect(keyed, size, arrays[0], outputs["out"])

        if self.group.tuner is not None and kind.on_gpu:
            self.group.tuner.tune(self, program, desc, key, size, run)
        sms, on = kind.num_sms(self.a), kind.gpu_name(self.a)
        run(programs(sms, key, lambda sms: make(sms, on, **desc)))
        if not reached:
            self.group.launched((kind.on_gpu, op), rows)

    def _described(self, dim: int, fields: dict) -> str:
        k, n = self.summed, self.columns
        b = f"b [{k}, {n}]{'' if self.b_kn else ' transposed'}"
        options = {"all_gather_matmul": "gather_dim", "matmul_reduce_scatter": "scatter_dim"}
        along = options.get(self.op)
        return described(
            self.op,
            self.kind,
            {name_of_a(self.op): self.a},
            b,
            f"{along}={dim}" if along else "",
            "reduce_op=avg" if self.average else "",
            "with scales" if self.scales is not None else "",
            "with the gathered rows" if fields.get("gathered") else "",
        )

    def _launch_step(self, key, program, size: Size, tensors: dict) -> None:
        names, arrays = tuple(tensors), tuple(tensors.values())
        options = {"at_bounds": size.exact, "said": size.said}
        self.group.launch(self.kind, key, lambda _: program, names, arrays, (size.rows,), **options)

    def _between(self, size: Size, columns: int, like):
        """What the first step leaves for the second, where peers can read it."""
        made = workspace(self.group, self.kind, self.op, (size.bound, columns), like, size.said)
        self.group.kept.stays(self.kind, made)
        return made[: size.rows]

    def _gather_then_multiply(self, steps, size: Size, a, outputs: dict) -> None:
        gathered = outputs.get("gathered")
        if gathered is None:
            gathered = self._between(size, self.a.shape[-1], self.a)
        self._launch_step(*steps[0], size, {"in": a, "out": gathered})
        product = {"a": gathered, "b": self.weights, "c": outputs["c"]}
        self._launch_step(*steps[1], size, product)

    def _multiply_then_collect(self, steps, size: Size, a, out) -> None:
        partial = self._between(size, self.columns, self.like)
        product = {"a": a, "b": self.weights, "c": partial}
        self._launch_step(*steps[0], size, product)
        self._launch_step(*steps[1], size, {"in": partial, "out": out})


def name_of_a(op: str) -> str:
    """What the operator calls the left factor."""
    return "a_shard" if op == "all_gather_matmul" else "a"


def _factors(op: str, a, b, parts: int) -> Tuple[Any, Any, Any]:
    """(kind, a, b), which can be multiplied where `a` has one of so many parts of its columns."""
    kind, a = adopt(op, name_of_a(op), a)
    (b,) = same_kind(op, kind, b=b)
    if a.ndim < 2 or b.ndim != 2 or a.shape[-1] * parts != b.shape[0]:
        k = "K" if parts == 1 else f"K / {parts}"
        raise UserError(
            f"{op}: shapes {tuple(a.shape)} and {tuple(b.shape)}; need [.., {k}] and [K, N]"
        )
    return kind, a, b


def product(op: str, group, a, b, parts: int = 1) -> Product:
    """`parts`: of a's columns, of which a rank has one."""
    kind, a, b = _factors(op, a, b, parts)
    if kind.dtype(a) == _FP8:
        raise UserError(f"{op}: factors of {_FP8} need scale_a and scale_b")
    dtype, bt = computed_dtype(op, kind, {name_of_a(op): a, "b": b}), kind.transpose(b)
    b_kn = kind.is_dense(b) and not kind.is_dense(bt)
    return Product(op, group, kind, dtype, a, kind.dense(b if b_kn else bt), b_kn, a)


def _form(op: str, a, b, scale_a, scale_b) -> str:
    """As Scales has it. UserError for shapes that do not fit the factors."""
    (*lead, cols), (k, n) = a.shape, b.shape
    shapes = tuple(scale_a.shape), tuple(scale_b.shape)
    blocks, lead = (-(-k // _BLOCK), -(-n // _BLOCK)), tuple(lead)
    of_rows, of_blocks = (lead + (1,), (1, n)), (lead + (-(-cols // _BLOCK),), blocks)
    if shapes != of_rows and shapes == of_blocks:
        if cols < k and cols % _BLOCK:
            raise UserError(
                f"{op}: a rank's {cols} columns of {k}; with scales of blocks need a multiple of {_BLOCK}"
            )
        return "block"
    if all(shape == rows or math.prod(shape) == 1 for shape, rows in zip(shapes, of_rows)):
        return "row-wise"
    raise UserError(
        f"{op}: scale_a {shapes[0]} and scale_b {shapes[1]}; need {of_rows[0]} and {of_rows[1]} "
        f"for rows, or one number, or {of_blocks[0]} and {of_blocks[1]} for blocks of {_BLOCK}"
    )


def scales_of_rows(kind, x, scale):
    """Of x, a scale for each row where one number was given."""
    if math.prod(scale.shape) != 1:
        return scale
    return _spread(kind, scale, tuple(x.shape[:-1]) + (1,))


def _spread(kind, scale, shape):
    """One number for all."""
    if tuple(scale.shape) == shape:
        return scale
    made = kind.empty(shape, scale)
    kind.assign(made, scale.reshape(()))
    return made


def scaled_product(
    op: str, group, a, b, scale_a, scale_b, out_dtype: str, parts: int = 1
) -> Product:
    kind, a, b = _factors(op, a, b, parts)
    scale_a, scale_b = same_kind(op, kind, scale_a=scale_a, scale_b=scale_b)
    given = {name_of_a(op): (a, _FP8), "b": (b, _FP8)}
    given.update(scale_a=(scale_a, "float32"), scale_b=(scale_b, "float32"))
    for name, (x, want) in given.items():
        if kind.dtype(x) != want:
            raise UserError(
                f"{op}: {name} is {kind.dtype(x)}; with scale_a and scale_b factors are {_FP8} and "
                "scales float32"
            )
    form = _form(op, a, b, scale_a, scale_b)
    if form == "block":
        scale_b = kind.transpose(scale_b)
    else:
        scale_a, scale_b = scales_of_rows(kind, a, scale_a), _spread(kind, scale_b, (1, b.shape[1]))
    scales = Scales(form, scale_a, kind.dense(scale_b))
    bt, like = kind.dense(kind.transpose(b)), kind.from_dtype(out_dtype, (0,), a)
    return Product(op, group, kind, _FP8, a, bt, False, like, scales)
