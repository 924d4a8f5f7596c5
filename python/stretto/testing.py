"""Ranks as threads of one process: to try a program of several ranks without starting processes."""

from __future__ import annotations

import threading
from typing import Any, Callable, List, Optional

from . import _core
from ._world import Group, _state, how_products_run
from .errors import Fault


def run(
    size: int,
    body: Callable[[], Any],
    *,
    timeout: Optional[float] = None,
    sequence: Optional[bool] = None,
) -> List[Any]:
    """Calls body() on `size` threads, each a rank of a world of its own, and returns what they
    returned, by rank. Where ranks raised, raises the error of the lowest that failed by itself.
    `timeout` and `sequence` are those of `stretto.init`."""
    session = _core.Session.threads(size, int(timeout * 1000) if timeout else 0)
    results: List[Any] = [None] * size
    errors: List[Optional[BaseException]] = [None] * size

    def rank(index: int) -> None:
        group = _state.thread.group = Group(
            session, index, products=how_products_run(True, sequence)
        )
        try:
            results[index] = body()
        except BaseException as error:  # pylint: disable=broad-except
            errors[index] = error
            if not isinstance(error, Fault):
                session.fail(index, f"rank {index} died: {error}")
        finally:
            _state.thread.group = None
            if group._alone is not None:  # pylint: disable=protected-access
                group._alone.close()  # pylint: disable=protected-access

    threads = [threading.Thread(target=rank, args=(i,)) for i in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    session.finalize(False)
    raised = [e for e in errors if e is not None]
    for error in [e for e in raised if not isinstance(e, Fault)] + raised:
        raise error
    return results
