"""Whether a call of an operator goes through torch.library (see _torch.py), which is loaded once
PyTorch is."""

from __future__ import annotations

import sys
from typing import Any

layer: Any = None


def load() -> None:
    """Called where PyTorch may have been imported since the last time."""
    global layer  # pylint: disable=global-statement
    if layer is None and "torch" in sys.modules:
        from . import _torch  # pylint: disable=import-outside-toplevel

        layer = _torch


def wants(*arrays: Any) -> bool:
    """Whether this call goes through torch.library (_torch.wants)."""
    if layer is None:
        load()
        if layer is None:
            return False
    return layer.wants(*arrays)
