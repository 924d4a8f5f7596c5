"""Recording what the roles of all launches did."""

from __future__ import annotations

import contextlib
import os
from typing import Union

from ._world import current


@contextlib.contextmanager
def trace(path: Union[str, os.PathLike]):
    """Records the launches of its block and writes them to `path` as JSON that Perfetto opens: a
    lane per worker, arrows from each notify to the wait that it ended. UserError where the file
    cannot be written."""
    group = current()
    group.session.record(True)
    try:
        yield
    finally:
        group.session.record(False)
    group.session.write_trace(os.fspath(path))
