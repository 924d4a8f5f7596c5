"""Recording what the roles of all launches did."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator, List, Union

from . import _core
from ._calls import file_name
from ._group import Group
from ._world import _member, groups
from .errors import Error, UserError


@contextlib.contextmanager
def trace(path: Union[str, os.PathLike]) -> Iterator[None]:
    """Records the launches of its block, in all groups that there are, and writes them to `path` as
    JSON that Perfetto opens: a lane per worker, arrows from each notify to the wait that it ended.
    Where the block raises, what there was until then is written. On GPUs used by all ranks or by
    none: calls take kernels that record, compiled at the first call of each shape (so not while a
    graph is captured), and the host waits for the GPU at both ends; what copy engines do is not
    seen, nor are graphs captured before, nor groups that the block finalizes. Ranks that are threads
    (stretto.testing) wait for each other at the end of the block, and every file has them all.
    UserError within another such block, and where the file cannot be written."""
    path = file_name("trace", path)
    recording = groups()
    if _member().rehearses:
        raise UserError("stretto.trace() within warm_up(), which launches nothing: trace calls outside of it")
    if any(group.records for group in recording):
        raise UserError("stretto.trace(): within another; what it records ends with its block")
    for group in recording:
        group.record(True)
    try:
        yield
    except BaseException:
        if not any(group.session.has_threads for group in recording):
            with contextlib.suppress(Error):
                _finish(recording, path)
        raise
    _finish(recording, path)


def _finish(recording: List[Group], path: str) -> None:
    recording = [group for group in recording if not group.closed]
    shared = [group for group in recording if group.session.has_threads]
    _wait(shared)
    for group in recording:
        group.record(False)
    sessions = [named for group in recording for named in group.recorders()]
    try:
        _core.Session.write_trace(path, sessions)
    finally:
        _wait(shared)
        for session, _ in sessions:
            if not session.has_threads:
                session.forget_recording()
        for group in shared:
            if group.rank == 0:
                group.session.forget_recording()


def _wait(shared: List[Group]) -> None:
    for group in shared:
        group.session.barrier(group.rank)
