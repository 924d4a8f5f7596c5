"""Recording what the roles of all launches did."""

from __future__ import annotations

import contextlib
import os
from typing import Union

from ._world import current


@contextlib.contextmanager
def trace(path: Union[str, os.PathLike]):
    """Records the launches of its block and writes them to `path` as JSON that Perfetto opens: a
    lane per worker, arrows from each notify to the wait that it ended. On GPUs used by all ranks or
    by none: calls take kernels that record, compiled at the first call of each shape (so not while
    a graph is captured), and the host waits for the GPU at both ends; what copy engines do is not
    seen, nor are graphs captured before. UserError where the file cannot be written."""
    group = current()
    group.record(True)
    try:
        yield
    finally:
        group.record(False)
    group.write_trace(os.fspath(path))
