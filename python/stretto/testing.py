"""Ranks as threads of one process: to try a program of several ranks without starting processes."""

from __future__ import annotations

import threading
from typing import Any, Callable, List, Optional, TypeVar

from . import _core
from ._group import Group, Options
from ._world import _Member, _thread, how_products_run
from .errors import Fault

ResultT = TypeVar("ResultT")


def run(
    size: int,
    body: Callable[[], ResultT],
    *,
    timeout: Optional[float] = None,
    sequence: Optional[bool] = None,
) -> List[ResultT]:
    """Calls body() on `size` threads, each a rank of a world of its own, and returns what they
    returned, by rank. Where ranks raised, raises the error of the lowest that failed by itself.
    `timeout` and `sequence` are those of `stretto.init`."""
    session = _core.Session.threads(size, int(timeout * 1000) if timeout else 0)
    results: List[Any] = [None] * size
    errors: List[Optional[BaseException]] = [None] * size

    def rank(index: int) -> None:
        member = _thread.member = _Member()
        member.add(Group(session, index, Options(products=how_products_run(True, sequence))), "")
        try:
            results[index] = body()
        except BaseException as error:  # pylint: disable=broad-except
            errors[index] = error
            if not isinstance(error, Fault):
                member.fail(error)
        finally:
            for group in member.each():
                member.close(group)
            del _thread.member

    threads = [threading.Thread(target=rank, args=(i,)) for i in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    raised = [e for e in errors if e is not None]
    for error in [e for e in raised if not isinstance(e, Fault)] + raised:
        raise error
    return results
