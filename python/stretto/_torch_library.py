"""How operators come into torch.library: their bodies, the shapes of their results, and their gradients
or that there is none. _torch.py and _torch_forward.py list the operators."""

from __future__ import annotations

from typing import Callable, Optional

import torch
from torch import Tensor

from . import _core, _world
from .errors import UserError

try:
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op, with_effects

    torch.fx.node.has_side_effect(with_effects)  # 2.8 leaves it out where no result is used
except ImportError:
    _EffectType = _register_effectful_op = None

_library = torch.library.Library("stretto", "FRAGMENT")
_stable = None
if _core.OperatorLibrary.is_there():
    # pylint: disable=protected-access
    _stable = _core.OperatorLibrary("stretto", _world._thread)


def registered_by() -> str:
    """How PyTorch got the operators' schemas and kernels: through its "stable ABI", which versions from
    2.10 on have, or from "Python"."""
    return "Python" if _stable is None else "stable ABI"


def define(
    schema: str,
    body: Callable,
    fake: Callable,
    *,
    meets: Optional[bool] = None,
    is_one_call: bool = False,
):
    """An operator of torch.library: `body` computes it, `fake` its result's shape. `meets`: the ranks of
    its group meet in it; unless said, those of operators that have one do. `is_one_call`: the body
    is one Group.call() on its tensors and makes nothing else of them, so that a call that a plan
    makes can be repeated without it."""
    name = schema.partition("(")[0]
    kernel = _untraced(body)
    if _stable is None:
        _library.define(schema, tags=_TAG)
        _library.impl(name, kernel, "CompositeExplicitAutograd")
        op = getattr(torch.ops.stretto, name).default
    else:
        op = _define_stable(name, schema, kernel, is_one_call)
    torch.library.register_fake(f"stretto::{name}", fake, lib=_library)
    if meets is None:
        meets = any(x.name == "group" for x in op._schema.arguments)  # pylint: disable=protected-access
    if meets:
        _keep_calls(op)
    return op


def resized(shape, dim: int, *, times: int = 1, parts: int = 1, last: Optional[int] = None):
    """The shape, of `times` the size along `dim` or one of its `parts`; `last`: the last size."""
    size = list(shape)
    size[dim] = size[dim] * times // parts
    if last is not None:
        size[-1] = last
    return size


_TAG = torch.Tag.pt2_compliant_tag


def _define_stable(name: str, schema: str, kernel: Callable, is_one_call: bool):
    """Where the kernel calls Python, PyTorch makes a RuntimeError of what that raises; calls raise it
    as it was."""
    # pylint: disable=protected-access
    has_tag = _stable.define(schema, kernel, is_one_call=is_one_call)
    packet = getattr(torch.ops.stretto, name)
    op = packet.default
    if not has_tag:
        op.tags.append(_TAG)
    for called in (packet, op):
        called._op = _core.typed(called._op)
        torch.jit._builtins._register_builtin(called._op, f"stretto::{name}")
    return op


is_compiling = torch.compiler.is_compiling


def _untraced(kernel: Callable) -> Callable:
    """`kernel`, into which torch.compile does not look. It looks into what runs beside its graphs, too,
    where calls are those of this operator again."""
    alone = torch._disable_dynamo(kernel)  # pylint: disable=protected-access

    def call(*inputs):
        return alone(*inputs) if is_compiling() else kernel(*inputs)

    return call


def _keep_calls(op) -> None:
    """Compiled graphs keep all calls of it, in the order in which they were made, which is that of the
    other ranks: what a rank does with results decides neither. Where PyTorch has no such order, it
    keeps the calls only."""
    torch.fx.node.has_side_effect(op)
    if _register_effectful_op is not None:
        _register_effectful_op(op, _EffectType.ORDERED)


_PLAIN = (Tensor, torch.nn.Parameter)


def go_on(op, keyset, inputs):
    """To whoever traces the call."""
    # pylint: disable=protected-access
    with torch._C._AutoDispatchBelowAutograd():
        return op.redispatch(keyset & torch._C._after_autograd_keyset, *inputs)


def _register(op, body: Callable, with_gradient: Callable) -> None:
    """What autograd calls: with_gradient(keyset, inputs), the key set None where nobody traces, if
    a gradient is asked for. Ordinary tensors go to `body` at once."""
    num_tracing = torch._C._len_torch_dispatch_stack  # pylint: disable=protected-access

    def kernel(keyset, *inputs):
        traced, asked = num_tracing(), False
        for x in inputs:
            if isinstance(x, Tensor):
                traced = traced or type(x) not in _PLAIN
                asked = asked or x.requires_grad
        if asked and torch.is_grad_enabled():
            return with_gradient(keyset if traced else None, inputs)
        return go_on(op, keyset, inputs) if traced else body(*inputs)

    name = op.name().partition("::")[2]
    _library.impl(name, _untraced(kernel), "Autograd", with_keyset=True)


def node_of(op, body: Callable, keep: Callable, backward: Callable) -> Callable:
    """`op` with its gradient, of (keyset, *inputs). `keep(ctx, inputs)` saves what `backward(ctx,
    grad)` needs."""

    class Node(torch.autograd.Function):  # pylint: disable=abstract-method
        @staticmethod
        def forward(ctx, keyset, *inputs):
            keep(ctx, inputs)
            return body(*inputs) if keyset is None else go_on(op, keyset, inputs)

        @staticmethod
        def backward(ctx, grad):
            return None, *backward(ctx, grad)

    return Node.apply


def differentiate(op, body: Callable, node: Callable) -> None:
    """Gives `op` the gradient that node(keyset, *inputs) has."""
    _register(op, body, lambda keyset, inputs: node(keyset, *inputs))


def refuse_gradients(op, body: Callable, name: str, named: Optional[Callable] = None) -> None:
    """For an operator that has none. `named`: what users call it with such inputs, where that is not
    its name."""

    names = [argument.name for argument in op._schema.arguments]  # pylint: disable=protected-access

    def refuse(keyset, inputs):
        asked = (n for n, x in zip(names, inputs) if isinstance(x, Tensor) and x.requires_grad)
        raise UserError(
            f"{named(inputs) if named else name}: has no gradient, and {next(asked)} requires it; call "
            "it under torch.no_grad(), or on x.detach()"
        )

    _register(op, body, refuse)
