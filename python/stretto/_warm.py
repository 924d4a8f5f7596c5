"""What calls need before they run, made ahead: configs are ranked, programs proved, kernels compiled."""

from __future__ import annotations

import concurrent.futures
import os
import threading
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from . import _core
from ._arrays import NumpyKind
from ._calls import text, whole
from ._group import Group, Options, compile_ahead
from ._world import _member, _Member, _thread, how_products_run
from .errors import UserError

_Needed = Dict[Any, Callable[[int], Any]]


class _Nobody:
    """The session of a world whose other ranks do not come, and agree with whatever this one says."""

    has_threads = True

    def __init__(self, size: int, alone: Any):
        self.size = size
        self.alone = alone  # a session of this rank

    def agree(self, rank: int, said: str) -> None:
        pass

    def barrier(self, rank: int) -> None:
        pass

    def check(self) -> None:
        pass

    def recover(self) -> None:
        pass

    def fail(self, rank: int, reason: str) -> None:
        pass

    def same(self, rank: int, said: str, word: int) -> bool:  # pylint: disable=unused-argument
        return True

    def is_symmetric(self, rank: int, address: int) -> bool:  # pylint: disable=unused-argument
        return self.alone.is_symmetric(0, address)

    def finalize(self, rank: int, at_once: bool) -> None:  # pylint: disable=unused-argument
        self.alone.finalize(0, at_once)


class _Rehearsal(Group):
    """The first rank of a world, whose calls leave word of the programs that they would launch, by what
    launch() keeps them under, and launch nothing."""

    def __init__(
        self, size: int, options: Options, needed: _Needed, name: str = "", ranks: Optional[Sequence[int]] = None
    ):
        alone = _core.Session.threads(1)
        super().__init__(alone, 0, options, name=name, ranks=range(size) if ranks is None else ranks)
        self.size, self.session = size, _Nobody(size, alone)
        self._needed = needed

    def alone(self) -> Group:
        if self.size == 1:
            return self
        if 0 not in self._alone:
            self._alone[0] = _Rehearsal(1, Options(), self._needed)
        return self._alone[0]

    def _new_part(self, ranks: List[int], request: str, name: str) -> Optional[Group]:
        if not ranks:
            return None
        of_all = [self.ranks[r] for r in ranks]
        return _Rehearsal(len(ranks), self.options, self._needed, name, of_all)

    def call(self, op: Callable[..., Any], option: int, out: Any, *arrays: Any) -> Any:
        return op(self, *arrays, option, out)

    def refuse(self, call: str, error: Exception) -> None:
        pass

    def symmetric_memory(self, kind: Any, said: str, size_bytes: int) -> Any:
        return _core.SymmetricMemory.allocate(
            self.session.alone, 0, said, kind.on_gpu, size_bytes
        )

    def open_gpu(self, device: int) -> None:
        self.session.alone.open_gpu(device, self.options.share_gpus)  # where symmetric memory lies

    def launch(self, kind, key, make, names, arrays, extents, *, said, at_bounds=False):
        self._needed.setdefault((kind.num_sms(arrays[0]), key, at_bounds), make)
        given = dict(zip(names, arrays))
        if kind is NumpyKind and key[0] == "all_gather" and given["in"].size == self.size:
            # Sizes that ranks exchange: every rank sends the next one what this one does, and so on.
            sent = given["in"].reshape(-1)
            for rank, row in enumerate(given["out"].reshape(self.size, -1)):
                row[:] = np.roll(sent, rank)


def warm_up(
    calls: Callable[[], Any],
    *,
    world_size: Optional[int] = None,
    groups: Optional[Mapping[str, int]] = None,
    choose_configs: Optional[bool] = None,
    sequence: Optional[bool] = None,
    progress: Optional[Callable[[int, int, str], None]] = None,
) -> int:
    """Does ahead what first calls take long for: `calls()` makes the calls, here of the first rank, and
    computes nothing: results hold anything. What they would launch is ranked, proved and, for GPUs,
    compiled, as much at the same time as the machine has processors, and kept on disk
    (STRETTO_CACHE_DIR), for every process of this machine, and in this one. Returns the number of
    programs.

    Needs no other ranks and no init(); GPU arrays need a GPU. Calls of the same shapes, element types
    and layouts in the same order find everything there; so do several numbers of rows of products.
    `world_size`: of the world of all ranks, default: as it is, or the variable WORLD_SIZE; `groups`:
    sizes of others by name, unless the calls make them (mesh, new_group of numbers of ranks).
    `choose_configs` and `sequence`: those of `init`, default: as this process has told it.
    `progress(done, total, name)` is called after each program.

    Errors: those of the calls; Rejected for a program of one's own that the proof rejects."""
    for name, function in {"calls": calls, "progress": progress}.items():
        if not callable(function) and (name == "calls" or function is not None):
            raise UserError(f"warm_up: {name} is {function!r}, need a function")
    options, size = _as_initialised()
    if choose_configs is not None or sequence is not None:
        chooses = True if choose_configs is None else choose_configs
        options = Options(products=how_products_run(chooses, sequence))
    size = size if world_size is None else whole("warm_up", "world_size", world_size)
    needed: _Needed = {}
    member = _Member()
    member.rehearses = True
    try:
        for name, members in {"": size, **_sizes_of(groups)}.items():
            if not 1 <= members <= 64:
                raise UserError(f"warm_up: a world of {members} ranks; need 1 to 64")
            member.add(_Rehearsal(members, options, needed, name), name)
        _on_thread_of(member, calls)
    finally:
        for group in member.each():
            group.close(at_once=True)
    _make(needed, progress)
    return len(needed)


def _sizes_of(groups: Any) -> Dict[str, int]:
    if groups is None:
        return {}
    if not isinstance(groups, Mapping):
        raise UserError(f"warm_up: groups is {groups!r}, need sizes by name")
    sizes = {}
    for name, size in groups.items():
        if text("warm_up", "the name of a group", name) == "":
            raise UserError("warm_up: a group without a name is that of all ranks, whose size is world_size")
        sizes[name] = whole("warm_up", f"the size of group {name!r}", size)
    return sizes


def _as_initialised() -> Tuple[Options, int]:
    group = _member().groups.get("")
    if group is not None:
        return group.options, group.size
    size = os.environ.get("WORLD_SIZE") or "1"
    if not size.isdecimal():
        raise UserError(f"warm_up: WORLD_SIZE is '{size}', need a number of ranks")
    return Options(), int(size)


def _on_thread_of(member: _Member, calls: Callable[[], Any]) -> None:
    """As a rank of its own, whatever world this thread is in."""
    errors: List[BaseException] = []

    def body():
        _thread.member = member
        try:
            calls()
        except BaseException as error:  # pylint: disable=broad-except
            errors.append(error)
        finally:
            del _thread.member

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def _make(needed: _Needed, progress: Optional[Callable[[int, int, str], None]]) -> None:
    workers = len(os.sched_getaffinity(0))
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        made = [pool.submit(compile_ahead, key, make) for key, make in needed.items()]
        try:
            for done, future in enumerate(concurrent.futures.as_completed(made), 1):
                name = future.result()
                if progress is not None:
                    progress(done, len(made), name)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
