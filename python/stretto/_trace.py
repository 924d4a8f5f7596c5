"""Recording what the roles of all launches did."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator, Union

from . import _core
from ._world import groups


@contextlib.contextmanager
def trace(path: Union[str, os.PathLike]) -> Iterator[None]:
    """Records the launches of its block, in all groups that there are, and writes them to `path` as
    JSON that Perfetto opens: a lane per worker, arrows from each notify to the wait that it ended.
    On GPUs used by all ranks or by none: calls take kernels that record, compiled at the first call
    of each shape (so not while a graph is captured), and the host waits for the GPU at both ends;
    what copy engines do is not seen, nor are graphs captured before. UserError where the file
    cannot be written."""
    recording = groups()
    for group in recording:
        group.record(True)
    try:
        yield
    finally:
        for group in recording:
            group.record(False)
    _core.Session.write_trace(os.fspath(path), [r for g in recording for r in g.recorders()])
