"""The world that this process belongs to, and the executables made ready for it."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import socket
import sys
import threading
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import numpy as np

from . import _core, _route
from ._arrays import TorchKind, kind_of
from .errors import UserError

_compiled: Dict[Any, Any] = {}
_compiled_lock = threading.Lock()


class _Entry:
    """One program of a group: compiled, with the executables made of it so far."""

    __slots__ = ("compiled", "order", "symmetric", "executables")

    def __init__(self, compiled, names: Sequence[str]):
        tensors = compiled.program.tensors
        have = [t[0] for t in tensors]
        if sorted(have) != sorted(names):
            raise UserError(f"{compiled.program.name}: has tensors {have}, not {list(names)}")
        self.compiled = compiled
        self.order = tuple(names.index(name) for name in have)
        self.symmetric = tuple(i for i, t in enumerate(tensors) if t[4])
        self.executables: Dict[Tuple[bool, ...], Any] = {}


class Group:
    """One rank of a world. Made by `init`; the operators use the current one."""

    def __init__(self, session, rank: int):
        self.session = session
        self.rank = rank
        self.size = session.size
        self._entries: Dict[Any, _Entry] = {}
        self.plans = _core.PlanCache(session, rank, np.ndarray)
        self._num_launches = 0
        self._last_launch: Any = None
        self._alone: Optional[Group] = None

    def __repr__(self) -> str:
        return f"<stretto rank {self.rank} of {self.size}>"

    def alone(self) -> Group:
        """A world of this rank only, for operators that do not communicate."""
        if self.size == 1:
            return self
        if self._alone is None:
            self._alone = Group(_core.Session.threads(1), 0)
        return self._alone

    @contextlib.contextmanager
    def used(self):
        """Refuses a second thread: the order of collective calls would be a matter of chance."""
        if not self.plans.enter():
            raise UserError(f"rank {self.rank}: stretto is being called from another thread")
        try:
            yield
        finally:
            self.plans.leave()

    def call(self, op: Callable[..., Any], option: int, out: Any, *arrays: Any) -> Any:
        """op(*arrays, option, out). A call that is one launch over these arrays and its result as
        they are becomes a plan, which the next call of the same layouts follows without Python."""
        result = self.plans.replay(op, option, out, *arrays)
        if result is not None:
            return result
        before = self._num_launches
        result = op(*arrays, option, out)
        if self._num_launches == before + 1:
            executable, addresses, extents = self._last_launch
            kind = kind_of(result)
            if kind is TorchKind:
                torch = sys.modules["torch"]
                self.plans.know_torch(torch.Tensor, torch.nn.Parameter, torch.is_grad_enabled)
            if kind is not None:
                self.plans.add(
                    op,
                    option,
                    out,
                    *arrays,
                    result=result,
                    make=kind.maker(result),
                    executable=executable,
                    addresses=addresses,
                    extents=extents,
                )
        self._last_launch = None
        return result

    def is_symmetric(self, address: int) -> bool:
        return self.session.is_symmetric(self.rank, address)

    def launch(
        self,
        key,
        make: Callable[[], Any],
        names: Sequence[str],
        addresses: Sequence[int],
        extents: Sequence[int],
    ) -> None:
        """Launches the program that `key` stands for, which `make` builds when it is new here.
        `names` says which tensor each address is of. Collective."""
        with self.used():
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry(_compile(key, make), names)
            args = [addresses[i] for i in entry.order]
            symmetric = entry.symmetric
            staged = (
                tuple(
                    [
                        i in symmetric and not self.is_symmetric(a)
                        for i, a in enumerate(args)
                    ]
                )
                if symmetric
                else ()
            )
            executable = entry.executables.get(staged)
            if executable is None:
                executable = _core.Executable.make(
                    self.session, self.rank, entry.compiled, list(staged) or [False] * len(args)
                )
                entry.executables[staged] = executable
            executable.launch(*args, extents=extents)
            self._num_launches += 1
            self._last_launch = executable, args, list(extents)

    def close(self, *, at_once: bool = False) -> None:
        self.plans.clear()
        self._entries.clear()
        self.session.finalize(at_once)
        if self._alone is not None:
            self._alone.close(at_once=at_once)


def _compile(key, make):
    with _compiled_lock:
        if key not in _compiled:
            _compiled[key] = make().compile()
        return _compiled[key]


class _State:
    """The process's group; a thread of `stretto.testing.run` has one of its own."""

    def __init__(self):
        self.group: Optional[Group] = None
        self.was_finalized = False
        self.forked = False
        self.thread = threading.local()


_state = _State()


def _after_fork() -> None:
    if _state.group is not None:
        _state.forked = True


os.register_at_fork(after_in_child=_after_fork)


def current() -> Group:
    """This rank's group; UserError before `init`, after `finalize` and in a forked child."""
    group = getattr(_state.thread, "group", None)
    if group is not None:
        return group
    if _state.forked:
        raise UserError(
            "stretto: used in a process forked after init(); start processes with 'spawn'"
        )
    if _state.group is None:
        what = "after finalize()" if _state.was_finalized else "before init()"
        raise UserError(f"stretto: used {what}")
    return _state.group


def init(group: Any = None, *, timeout: Optional[float] = None) -> Group:
    """Joins the world of this program's processes, one per rank, and returns this rank's handle.

    `group`: a torch.distributed process group, whose ranks become the world's
    (torch.distributed.group.WORLD for all); None takes RANK, WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT as torchrun sets them, and a world of one rank where they are not set. `timeout`:
    seconds that any wait may take before it becomes a Fault; default 10, or STRETTO_TIMEOUT_MS.

    Errors: UserError when called twice or on ranks that disagree; Fault naming a rank that does not
    come.
    """
    _route.load()
    if _state.group is not None:
        raise UserError("stretto.init(): called twice; finalize() first")
    milliseconds = int(timeout * 1000) if timeout else 0
    if timeout is not None and milliseconds < 1:
        raise UserError(f"stretto.init(timeout={timeout}): need at least 0.001 s")
    if group is not None:
        session = _meet_through_torch(group, milliseconds)
    else:
        session = _core.Session.of_environment(milliseconds) or _core.Session.threads(
            1, milliseconds
        )
    _state.group = Group(session, session.local_rank)
    _state.was_finalized = False
    return _state.group


def _meet_through_torch(group, milliseconds: int):
    """A world of the ranks of a torch.distributed group, which tells them where to meet."""
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel

    number, size = dist.get_rank(group), dist.get_world_size(group)
    if number < 0:
        raise UserError("stretto.init(group): this process is not in the group")
    with contextlib.ExitStack() as stack:
        where, listener = [None], -1
        if number == 0:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=size))
            where, listener = [(server.getsockname()[1], secrets.token_hex(8))], server.fileno()
        dist.broadcast_object_list(where, src=dist.get_global_rank(group, 0), group=group)
        port, job = where[0]
        return _core.Session.processes(number, size, "127.0.0.1", port, listener, job, milliseconds)


def _at_exit() -> None:
    """A process that ends well leaves its worlds; one that ends with an exception tells the others,
    whose waits then fail."""
    group = _state.group
    if group is None or _state.forked:
        return
    error = getattr(sys, "last_value", None)
    if error is not None:
        group.session.fail(group.rank, f"rank {group.rank} died: {type(error).__name__}: {error}")
    group.close(at_once=True)


atexit.register(_at_exit)


def finalize() -> None:
    """Leaves the world. Symmetric arrays stay readable; operators raise UserError until the next
    `init`. Without a world, does nothing."""
    if _state.group is not None and not _state.forked:
        _state.group.close()
        _state.was_finalized = True
    _state.group = None
    _state.forked = False


def recover() -> None:
    """After a Fault, on every rank: makes the world usable again. Collective."""
    current().session.recover()


def rank() -> int:
    """This rank's number, 0 to world_size() - 1."""
    return current().rank


def world_size() -> int:
    """The number of ranks."""
    return current().size


def barrier() -> None:
    """Returns when every rank has called it. Collective."""
    group = current()
    with group.used():
        group.session.barrier(group.rank)
