"""Whether a call of an operator goes through torch.library (see _torch.py and _torch_forward.py),
which are loaded once PyTorch is. They call the operators, which ask here: the package says how they are
loaded."""

from __future__ import annotations

import sys
from typing import Any, Callable, Optional, Tuple

layer: Any = None  # _torch
forward: Any = None  # _torch_forward
import_both: Optional[Callable[[], Tuple[Any, Any]]] = None  # set by the package


def load() -> None:
    """Called where PyTorch may have been imported since the last time."""
    global layer, forward, wants  # pylint: disable=global-statement
    if layer is None and import_both is not None and "torch" in sys.modules:
        layer, forward = import_both()
        wants = layer.wants  # which every call asks


def wants(*arrays: Any) -> bool:
    """Whether this call goes through torch.library (_torch.wants)."""
    if layer is None:
        load()
        if layer is None:
            return False
    return layer.wants(*arrays)


def casts(*arrays: Any) -> bool:
    """Whether this call goes through torch.library within autocast, which products of PyTorch obey."""
    return wants(*arrays) and layer.is_in_autocast(arrays[0])


def is_compiling() -> bool:
    """Whether torch.compile is tracing, which makes no calls."""
    return layer is not None and layer.is_compiling()


_BESIDE_GRAPHS = (
    "graphs hold no call of stretto's with out=, sizes=, payload= or async_op=True, nor reduce, gather, scatter, "
    "messages and sizes on the device (docs/guide/python.md, Limits); for out= copy the result, "
    "such as out.copy_(stretto.all_reduce(x))"
)


def beside_graphs(function: Any) -> Any:
    """For what calls without a place in graphs come to: torch.compile leaves it to Python, as it does
    under torch.compiler.disable(), which costs time; with fullgraph=True its error says why."""
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = _BESIDE_GRAPHS
    return function
