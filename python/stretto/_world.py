"""The world that this process belongs to, and the executables made ready for it."""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import socket
import sys
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import numpy as np

from . import _core, _route
from ._arrays import TorchKind, kind_of
from .errors import UserError

_compiled: Dict[Any, Any] = {}
_programs: Dict[Any, List[Any]] = {}
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
        self.executables: Dict[Tuple[Tuple[bool, ...], bool], Any] = {}


class Group:
    """One rank of a world. Made by `init`; the operators use the current one."""

    _MOST_CONSTANTS = 1024

    def __init__(self, session, rank: int, share_gpus: bool = False, products: str = "fastest"):
        self.session = session
        self.rank = rank
        self.size = session.size
        self.products = products  # how those with collectives run, see chosen.h
        self.plans = _core.PlanCache(session, rank, np.ndarray)
        self._entries: Dict[Any, _Entry] = {}
        self._constants: Dict[Any, Any] = {}
        self._kept: Dict[Any, Any] = {}
        self._fixed: Set[int] = set()
        self._launches: Optional[List[Any]] = None  # of the call under way
        self._records = False
        self._alone: Optional[Group] = None
        self._share_gpus = share_gpus
        self._gpu: Optional[int] = None

    def __repr__(self) -> str:
        return f"<stretto rank {self.rank} of {self.size}>"

    def alone(self) -> Group:
        """A world of this rank only, for operators that do not communicate."""
        if self.size == 1:
            return self
        if self._alone is None:
            self._alone = Group(_core.Session.threads(1), 0)
            if self._records:
                self._alone.record(True)
        return self._alone

    def record(self, on: bool) -> None:
        """From now on, or until now, what launches do is recorded, on GPUs by kernels of their own,
        compiled when they are first called for. Waits for the GPU."""
        self._records = on
        self.session.record(on)
        if self._alone is not None:
            self._alone.record(on)

    def write_trace(self, path: str) -> None:
        """What was recorded, here and in the world of this rank only."""
        self.session.write_trace(path, self._alone.session if self._alone is not None else None)

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
        """op(*arrays, option, out), `out` a tuple where there are several results. A call that is
        nothing but launches over these arrays and its results as they are becomes a plan, which the
        next call of the same layouts follows without Python. Operators do not call each other this
        way."""
        if self._records:
            return op(*arrays, option, out)
        result = self.plans.replay(op, option, out, *arrays)
        if result is not None:
            return result
        self._launches = launches = []
        try:
            result = op(*arrays, option, out)
        finally:
            self._launches = None
        if launches:
            self._add_plan(op, option, out, arrays, result, launches)
        return result

    def _add_plan(self, op, option, out, arrays, result, launches) -> None:
        makers = []
        for x in result if isinstance(result, tuple) else (result,):
            kind = kind_of(x)
            if kind is None:
                return
            if issubclass(kind, TorchKind):
                torch = sys.modules["torch"]
                self.plans.know_torch(torch.Tensor, torch.nn.Parameter, torch.is_grad_enabled)
            makers.append(kind.maker(x))

        def all_of():
            return tuple(make() for make in makers)

        make = all_of if isinstance(result, tuple) else makers[0]
        self.plans.add(
            op, option, out, *arrays, result=result, make=make, launches=launches,
            fixed=list(self._fixed),
        )

    def is_symmetric(self, address: int) -> bool:
        return self.session.is_symmetric(self.rank, address)

    def open_gpu(self, device: int) -> None:
        """Makes this rank's GPU ready, at its first use collectively. UserError for another one."""
        if device != self._gpu:
            self.session.open_gpu(device, self._share_gpus)
            self._gpu = device

    def constant(self, kind, values: Sequence[int], like: Any) -> Any:
        """int32 values where `like` is, the same array each time."""
        key = (kind, tuple(values))
        if key not in self._constants:
            if len(self._constants) == self._MOST_CONSTANTS:
                self._constants.clear()
            self._constants[key] = kind.ints(values, like)
        return self._constants[key]

    def keep(self, kind: Any, key: Any, make: Callable[[], Any]) -> Any:
        """What make() made when it was first asked for with this key."""
        if key not in self._kept:
            if kind.on_gpu and kind.is_capturing():
                raise UserError(
                    "the first call of its shape makes memory, which a graph cannot capture; call "
                    "it once before"
                )
            self._kept[key] = make()
        return self._kept[key]

    def stays(self, kind: Any, array: Any) -> None:
        """Launches on `array`, which keep() made, can be repeated as they are."""
        self._fixed.add(kind.address(array))

    def programs(self, kind: Any, key: Any, make: Callable[[bool], List[Any]]) -> List[Any]:
        """What make(on_gpu) gave when it was first called with this key."""
        name = kind.on_gpu, key
        with _compiled_lock:
            if name not in _programs:
                _programs[name] = make(kind.on_gpu)
            return _programs[name]

    def launch(
        self,
        kind: Any,
        key,
        make: Callable[[bool], Any],
        names: Sequence[str],
        arrays: Sequence[Any],
        extents: Sequence[int],
        *,
        at_bounds: bool = False,
    ) -> None:
        """Launches the program that `key` stands for, which make(on_gpu) builds when it is new
        here. `arrays`, dense, are those of the tensors of these `names`; on GPUs the launch is
        enqueued on the current stream. `at_bounds`: launches under this key have no other extents,
        the largest that the program may have. Collective."""
        addresses = [kind.address(x) for x in arrays]
        with self.used():
            stream = 0
            if kind.on_gpu:
                device = kind.device(arrays[0])
                self.open_gpu(device)
                stream = kind.stream(device)
            entry = self._entries.get((kind.on_gpu, key))
            if entry is None:
                name = kind.on_gpu, key
                entry = _Entry(_compile(name, lambda: make(kind.on_gpu), at_bounds), names)
                self._entries[name] = entry
            args = [addresses[i] for i in entry.order]
            symmetric = entry.symmetric
            staged = tuple(
                i in symmetric and not self.is_symmetric(a) for i, a in enumerate(args)
            ) if symmetric else ()
            records = self._records and kind.on_gpu
            executable = entry.executables.get((staged, records))
            if executable is None:
                staged_args = staged or (False,) * len(args)
                executable = self._make_executable(kind, entry, staged_args, records)
                entry.executables[staged, records] = executable
            executable.launch(*args, extents=extents, stream=stream)
            if self._launches is not None:
                self._launches.append((executable, args, list(extents)))

    def _make_executable(
        self, kind, entry: _Entry, staged: Tuple[bool, ...], records: bool
    ) -> Any:
        if kind.on_gpu and kind.is_capturing():
            raise UserError(
                f"{entry.compiled.program.name}: the first call of its shape and layout loads "
                "kernels and makes memory, which a graph cannot capture; call it once before"
            )
        return _core.Executable.make(
            self.session, self.rank, entry.compiled, list(staged), kind.on_gpu, records=records
        )

    def close(self, *, at_once: bool = False) -> None:
        self.plans.clear()
        self._entries.clear()
        self._constants.clear()
        self._kept.clear()
        self._fixed.clear()
        self.session.finalize(at_once)
        if self._alone is not None:
            self._alone.close(at_once=at_once)


def _compile(key, make, at_bounds):
    with _compiled_lock:
        if key not in _compiled:
            _compiled[key] = make().compile(bounds_only=at_bounds)
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


def init(
    group: Any = None,
    *,
    timeout: Optional[float] = None,
    share_gpus: bool = False,
    choose_configs: bool = True,
    sequence: Optional[bool] = None,
) -> Group:
    """Joins the world of this program's processes, one per rank, and returns this rank's handle.

    `group`: a torch.distributed process group, whose ranks become the world's
    (torch.distributed.group.WORLD for all); None takes RANK, WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT as torchrun sets them, and a world of one rank where they are not set. `timeout`:
    seconds that any wait may take before it becomes a Fault; default 10, or STRETTO_TIMEOUT_MS.
    `share_gpus`: two ranks may have their tensors on one GPU, where their kernels take turns, which
    is slow: for tests. `choose_configs`: products on GPUs take the config that prediction ranks
    first, which the first call of a shape on a machine looks for, some seconds of all cores; False:
    a default by rules. `sequence`: whether products with a collective run as collective and product
    one after the other; None: on GPUs where that is predicted to be faster, as it is with few rows,
    unless choose_configs is False. Those with scales and those of one rank are always fused. The
    same on every rank.

    A rank's GPU is that of the first arrays that it passes; it is made ready then.

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
    _state.group = Group(
        session, session.local_rank, share_gpus, how_products_run(choose_configs, sequence)
    )
    _state.was_finalized = False
    return _state.group


def how_products_run(choose_configs: bool, sequence: Optional[bool]) -> str:
    """As chosen.h names it."""
    if sequence:
        return "sequence"
    if not choose_configs:
        return "default"
    return "fused" if sequence is False else "fastest"


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
    """After a Fault, on every rank: makes the world usable again. Collective. Waits until this
    rank's GPU is idle."""
    group = current()
    group.session.recover()
    if group._alone is not None:  # pylint: disable=protected-access
        group._alone.session.recover()  # pylint: disable=protected-access


def rank() -> int:
    """This rank's number, 0 to world_size() - 1."""
    return current().rank


def world_size() -> int:
    """The number of ranks."""
    return current().size


def barrier() -> None:
    """Returns when every rank has called it; does not wait for GPUs. Fault where an earlier call on
    a GPU has failed. Collective."""
    group = current()
    with group.used():
        group.session.check()
        group.session.barrier(group.rank)
