"""What a group keeps for later calls of the same shapes: programs made ready, with their memory,
and arrays that peers write; and what it gives back where that becomes too much."""

from __future__ import annotations

import hashlib
import math
import os
import sys
import warnings
from typing import Any, Callable, Dict, Iterable, List, Sequence, Set, Tuple

from ._calls import bound_of
from .errors import UserError

_VARIABLE, _DEFAULT_MEGABYTES = "STRETTO_KEPT_MB", 4096
_MOST_CONSTANTS = 1024
_ROOMS_OF_A_CALL = 8


def limit_bytes() -> int:
    """How much a group may keep on a rank; UserError where the environment has no such number."""
    text = os.environ.get(_VARIABLE) or str(_DEFAULT_MEGABYTES)
    if not text.isdecimal() or len(text) > 9:
        raise UserError(f"{_VARIABLE} is '{text}', need a number of megabytes")
    return int(text) << 20


def _level_of_user() -> int:
    """For a warning of the function that calls this: what its stacklevel is, so that it names the line
    outside of the package that made the call."""
    frame, level, package = sys._getframe(1), 1, os.path.dirname(__file__) + os.sep  # pylint: disable=protected-access
    while frame.f_back is not None and frame.f_code.co_filename.startswith(package):
        frame, level = frame.f_back, level + 1
    return level


def _refuse_capture(kind: Any) -> None:
    if kind.on_gpu and kind.is_capturing():
        raise UserError(
            "the first call of its shape makes memory, which a graph cannot capture; call it once before"
        )


class _Array:
    """One that launches write, and those who do."""

    def __init__(self, key: Any, array: Any, size_bytes: int):
        self.key, self.array, self.size_bytes = key, array, size_bytes
        self.users: Set[Any] = set()


class Kept:
    """Of one rank of a group. What goes is decided by the order of calls alone, which is the same on
    all ranks, and goes where all of them have decided alike.

    An executable goes with the plans that launch it; an array with the last executable that was
    launched on it. Work under way and peers still have the memory: on CPUs it is there until every
    rank has given it back, on GPUs until this rank's is idle, and peers have mapped it themselves.
    """

    def __init__(self, session: Any, rank: int, plans: Any, limit: int):
        self._session, self._rank, self._plans, self._limit = session, rank, plans, limit
        self._made: Dict[Any, Callable[[], None]] = {}  # executables, the first first: forget()
        self._arrays: Dict[Any, _Array] = {}
        self._at: Dict[int, _Array] = {}  # by address
        self._fixed: Dict[int, Tuple[int, Any]] = {}  # bytes and array by address
        self._constants: Dict[Any, Any] = {}
        self._rooms: Dict[Any, Any] = {}  # what was not used for longest first
        self._captured: List[Any] = []  # what graphs may address for as long as this lives
        self._gone: Set[int] = set()  # contents of executables
        self._has_warned = False

    def array(self, kind: Any, key: Any, make: Callable[[], Any]) -> Any:
        """What make() made when it was first asked for with this key, ready for every stream."""
        found = self._arrays.get(key)
        if found is None:
            _refuse_capture(kind)
            made = make()
            if kind.on_gpu:
                kind.synchronize()
            size_bytes = math.prod(made.shape) * kind.itemsize(made)
            found = self._arrays[key] = _Array(key, made, size_bytes)
            self._at[kind.address(made)] = found
        return found.array

    def room(self, kind: Any, name: str, shape: Sequence[int], like: Any) -> Any:
        """An array for the time of one call, which a launch reads or writes: at every call in the same
        memory, which names have for themselves, and sizes that are close together share. Ranks may
        need other ones. Those of late calls stay, and others within a quarter of the limit; the plans
        that use what goes, go."""
        elements = math.prod(shape)
        if elements == 0:
            return kind.empty(tuple(shape), like)
        most = bound_of(elements)
        key = kind, name, most, kind.dtype(like)
        made = self._rooms.pop(key, None)
        if made is None:
            _refuse_capture(kind)
            made = kind.empty((most,), like)
        self._rooms[key] = made
        self.stays(kind, made)
        self._hold(kind, made)
        self._leave_rooms()
        return made[:elements].reshape(tuple(shape))

    def _leave_rooms(self) -> None:
        size_bytes = {key: math.prod(x.shape) * key[0].itemsize(x) for key, x in self._rooms.items()}
        total = sum(size_bytes.values())
        for key in list(self._rooms)[:-_ROOMS_OF_A_CALL]:
            if total <= self._limit // 4:
                break
            address = key[0].address(self._rooms.pop(key))
            self._fixed.pop(address, None)
            self._plans.forget_memory(address, size_bytes[key])
            total -= size_bytes[key]

    def _hold(self, kind: Any, array: Any) -> None:
        """For good, where a graph captures its address."""
        if kind.on_gpu and kind.is_capturing():
            self._captured.append(array)

    def constant(self, kind: Any, values: Sequence[int], like: Any) -> Any:
        """int32 values where `like` is, the same array each time."""
        key = (kind, tuple(values))
        if key not in self._constants:
            if len(self._constants) == _MOST_CONSTANTS:
                for (other, _), array in self._constants.items():
                    self._fixed.pop(other.address(array), None)
                self._constants.clear()  # plans have those that they use
            self._constants[key] = kind.ints(values, like)
        made = self._constants[key]
        self.stays(kind, made)
        self._hold(kind, made)
        return made

    def stays(self, kind: Any, array: Any) -> None:
        """Launches on it, which this keeps, can be repeated as they are: plans have it, too."""
        size_bytes = math.prod(array.shape) * kind.itemsize(array)
        self._fixed[kind.address(array)] = size_bytes, array

    def fixed(self) -> List[Tuple[int, int, Any]]:
        """(address, bytes, array) of what stays."""
        return [(address, *rest) for address, rest in self._fixed.items()]

    def launched(self, executable: Any, addresses: Iterable[int]) -> None:
        """With these arguments."""
        for address in addresses:
            if address in self._at:
                self._at[address].users.add(executable)

    def add(self, executable: Any, forget: Callable[[], None], needed: Iterable[Any]) -> None:
        """A new one, which forget() takes out of where it is found; gives back what is too much, but
        for it and those that are needed. Collective."""
        going = self._going({executable, *needed})
        if self._session.size > 1:
            contents = repr([gone.content for gone in going]).encode()
            decision = int.from_bytes(hashlib.blake2b(contents, digest_size=8).digest(), "little")
            if not self._session.same(self._rank, "first call of its shape: what goes", decision):
                going = []
        for gone in going:
            self._give_back(gone)
        self._made[executable] = forget
        if executable.content in self._gone and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "stretto makes a program ready again, for which "
                f"{_VARIABLE}={self._limit >> 20} left no room; that takes long",
                RuntimeWarning,
                stacklevel=_level_of_user(),
            )

    def _going(self, needed: Set[Any]) -> List[Any]:
        """Those that were not used for longest, so many that the rest is within the limit. What graphs
        have captured stays, so it does not count: else, once it comes to the limit, two calls in turn would
        each take the other's room."""
        total = sum(e.bytes for e in {*self._made, *needed} if not e.is_captured)
        total += sum(
            x.size_bytes for x in self._arrays.values() if not any(e.is_captured for e in x.users)
        )
        going: List[Any] = []
        for executable in sorted(self._made, key=lambda e: e.last_use):
            if total <= self._limit:
                break
            if executable in needed or executable.is_captured:
                continue
            going.append(executable)
            last = [x for x in self._arrays.values() if executable in x.users]
            alone = [x for x in last if x.users.issubset(going)]
            total -= executable.bytes + sum(x.size_bytes for x in alone)
        return going

    def _give_back(self, executable: Any) -> None:
        self._made.pop(executable)()
        self._plans.forget(executable)
        self._gone.add(executable.content)
        for x in [x for x in self._arrays.values() if executable in x.users]:
            x.users.discard(executable)
            if not x.users:
                del self._arrays[x.key]
                for address in [a for a, y in self._at.items() if y is x]:
                    del self._at[address]
                    self._fixed.pop(address, None)

    def forget_uses(self) -> None:
        """A launch that failed may have counted on some ranks only."""
        for executable in self._made:
            executable.forget_use()

    def clear(self) -> None:
        """All of it."""
        for known in (self._made, self._arrays, self._at, self._fixed, self._constants, self._rooms):
            known.clear()
