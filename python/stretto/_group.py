"""A rank of a world as operators use it: programs compiled, executables and plans made ready, memory that
is kept."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from . import _core, _route
from ._arguments import in_users_words
from ._arrays import TorchKind, kind_of
from ._calls import bound_of
from ._kept import Kept, limit_bytes
from ._lanes import Lanes
from .errors import DeviceError, Error, Fault, UserError

_NAMES_A_RANK = re.compile(r"\branks? \d")

# What launches are kept under: SMs of the GPU or 0, which program, whether at its bounds alone.
_Name = Tuple[int, Any, bool]
_compiled: Dict[_Name, Any] = {}
_programs: Dict[Any, Any] = {}
_under_way: Dict[_Name, threading.Event] = {}  # those that a thread compiles now
_compiled_lock = threading.Lock()

_ONE_OPTION = 0, -1, ""


# How far a call has come, for what goes wrong in it.
#
# Calls of the ranks belong together by the order of their meetings: launches, and words that they compare. A
# refusal takes the place of this rank's next meeting, and whoever comes to that one takes it as said of the call
# that it is in itself. So a call is refused only where the others are sure to come to another meeting in it:
# before its first, and where the meeting itself is what fails. Between two and after the last one nobody here
# knows whether they do; the refusal might stand for their next call, and from then on every rank would get
# results of another call. There the world fails, as it does where a rank ends: all are told, until they recover.
_HAS_NOT_MET, _MEETS, _HAS_MET = range(3)


@contextlib.contextmanager
def after_meetings():
    """For what a call does after its last meeting, as its author knows: this rank alone is told what is raised in
    here, and the world goes on."""
    try:
        yield
    except Exception as error:
        error.is_settled = True
        raise


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


class Exchanges:
    """What ranks have told each other, numbered: the same numbers on all ranks."""

    _MOST = 1024

    def __init__(self) -> None:
        self._known: Dict[Any, Tuple[int, Any]] = {}
        self._count = 0
        self._checked: Dict[Any, Any] = {}

    def find(self, told: Any) -> Tuple[int, Any]:
        """(number of the last exchange to which this rank told that, what came of it); (-1, None)."""
        return self._known.get(told, (-1, None))

    def add(self, told: Any, learnt: Any) -> None:
        """One more exchange, at all ranks."""
        if len(self._known) == self._MOST:
            self._known.clear()
        self._known[told] = self._count, learnt
        self._count += 1

    def checked(self, key: Any, check: Callable[[], Any]) -> Any:
        """What check() made of arguments that look like this; None: it is asked each time."""
        if key is None:
            return check()
        found = self._checked.get(key)
        if found is None:
            found = check()
            if len(self._checked) == self._MOST:
                self._checked.clear()
            self._checked[key] = found
        return found


class Options(NamedTuple):
    """What `init` is told; groups made later have the same."""

    milliseconds: int = 0  # a wait's longest, 0: the default
    share_gpus: bool = False
    products: str = "fastest"  # how those with collectives run, see chosen.h


class Group:
    """This rank's place in a world: that of all ranks, which `init` returns, or one of its own for
    some of them, made by `new_group` or `mesh`. What the operators' `group=` takes.

    `rank`: this rank's number in it, `size`: how many it has, `ranks`: their numbers in the world
    of all ranks, `name`: what it is called on this rank, "" for the world of all.
    """

    _MOST_SIZES = 4  # of an operator that have a program of their own

    def __init__(
        self,
        session,
        rank: int,
        options: Options = Options(),
        *,
        name: str = "",
        ranks: Optional[Sequence[int]] = None,
    ):
        self.session = session
        self.rank = rank
        self.size = session.size
        self.name = name
        self.ranks = list(range(self.size)) if ranks is None else list(ranks)
        self.options = options
        self.plans = _core.PlanCache(session, rank, np.ndarray)
        self._entries: Dict[Any, _Entry] = {}
        self.exchanges = Exchanges()
        self._sizes: Dict[Any, Set[int]] = {}
        self.kept = Kept(session, rank, self.plans, limit_bytes())
        self._steps: Optional[List[Any]] = None  # of the call under way; None among them: no plan
        # Their arrays: no later one of the call, which a plan may know, is made where one of them was.
        self._of_steps: List[Any] = []
        # (least, most, words): the call under way is the same for every option in there but for the last extent of
        # its launches, which is the option, and the number behind these words in theirs. So is its plan.
        self.any_option: Tuple[int, int, str] = _ONE_OPTION
        self._came_to = _HAS_NOT_MET  # of the call under way, where no plan makes it
        self._records = False
        self._thread = threading.get_ident()  # whose calls by itself this group runs, if of one rank
        self._alone: Dict[int, Group] = {}  # by thread
        # Of what operators that are part of another are called as: its name and what it calls the
        # array and the dimension.
        self.caller: Optional[Tuple[str, str, str]] = None
        self.lanes = Lanes()
        self.tuner: Any = None  # within tune(): measures products (_tune.py)
        self._gpu: Optional[int] = None
        self._last_stream: Any = None
        self.closed = False

    def __repr__(self) -> str:
        return f"<stretto rank {self.rank} of {self.size}{', ' + self.name if self.name else ''}>"

    @_route.beside_graphs
    def alone(self) -> Group:
        """A world of this rank only, for operators that do not communicate: threads may call them at the
        same time, so each has its own."""
        thread = threading.get_ident()
        if self.size == 1 and thread == self._thread:
            return self
        found = self._alone.get(thread)
        if found is None:
            found = self._alone[thread] = self._left_alone() or Group(_core.Session.threads(1), 0)
            if found.records != self._records:
                found.record(self._records)
        return found

    def _left_alone(self) -> Optional[Group]:
        """One that belonged to a thread that has ended."""
        threading.current_thread()  # so that a thread that Python has not started is among those that live
        living = {thread.ident for thread in threading.enumerate()}
        for thread in list(self._alone):
            left = None if thread in living else self._alone.pop(thread, None)
            if left is not None:
                return left
        return None

    def recover(self) -> None:
        """After a Fault; see stretto.recover."""
        for lane in self.lanes.groups:
            lane.lanes.settle()
        with self._idle("recover", self):
            try:
                self.session.recover()
            except Fault as fault:
                self._say_who(fault)
                raise
            self.plans.clear()
            self.kept.forget_uses()
            self._sizes.clear()  # a launch that failed may have ended well on some ranks
            self.exchanges = Exchanges()
            for alone in list(self._alone.values()):
                if alone.plans.enter():  # those within a call work
                    try:
                        alone.session.recover()
                    finally:
                        alone.plans.leave()
        self._recover_lanes()

    def _recover_lanes(self) -> None:
        """What went wrong may have made them, or counted a call, on some ranks only."""
        if self.size == 1 or self.same("recover", len(self.lanes.groups)):
            for lane in self.lanes.groups:
                lane.recover()
            self.lanes.start_anew()
            return
        for lane in self.lanes.groups:
            lane.close(at_once=True)
        self.lanes = Lanes()

    def _new_part(self, ranks: List[int], request: str, name: str) -> Optional[Group]:
        """A world of its own of these ranks of this one, this rank among them; None where there are none.
        Collective over all of this one's."""
        with self.used():
            session, number = self.session.split(self.rank, ranks, request)
        if session is None:
            return None
        return Group(session, number, self.options, name=name, ranks=[self.ranks[r] for r in ranks])

    def _new_lane(self, name: str) -> Group:
        """A world of its own of the same ranks. Collective."""
        request = f"the first call with async_op=True, which makes '{name}'"
        made = self._new_part(list(range(self.size)), request, name)
        assert made is not None
        if self._records:
            made.record(True)
        return made

    def record(self, on: bool) -> None:
        """From now on, or until now, what launches do is recorded, on GPUs by kernels of their own,
        compiled when they are first called for. Waits for the GPU."""
        self._records = on
        self.session.record(on)
        for alone in list(self._alone.values()):
            alone.record(on)

    @property
    def records(self) -> bool:
        return self._records

    def recorders(self) -> List[Tuple[Any, str]]:
        """What has recorded, each with a name for its ranks."""
        found = [(self.session, f"group {self.name}," if self.name else "")]
        for i, alone in enumerate(list(self._alone.values())):
            thread = f", thread {i + 1}" if i > 0 else ""
            found.append((alone.session, f"alone on rank {self.rank}{thread},"))
        return found

    @contextlib.contextmanager
    def used(self):
        """Refuses a second thread: the order of collective calls would be a matter of chance."""
        self._enter()
        try:
            yield
        except Fault as fault:
            self._say_who(fault)
            raise
        finally:
            self.plans.leave()

    def _enter(self) -> None:
        if not self.plans.enter():
            error = UserError(f"rank {self.rank}: stretto is being called from another thread")
            error.is_settled = True  # the call that is under way goes on
            raise error

    def same(self, said: str, word: int) -> bool:
        """Whether all ranks say this word in the call `said`. Collective; the hosts wait for each other."""
        self._enter()
        self._came_to = _MEETS
        try:
            same = self.session.same(self.rank, said, word)
            self._came_to = _HAS_MET
            return same
        except Fault as fault:
            self._say_who(fault)
            raise
        finally:
            self.plans.leave()

    @contextlib.contextmanager
    def calls_as(self, caller: Tuple[str, str, str]):
        """What is called in here is part of this call of the user's."""
        self.caller = caller
        try:
            yield
        finally:
            self.caller = None

    def idle(self):
        """For close(), which takes apart what calls use."""
        return self._idle("finalize", self, *self._alone.values())

    @contextlib.contextmanager
    def _idle(self, caller: str, *groups: Group):
        """Keeps calls in these away; refuses while one is under way, in another thread or where a
        signal's handler interrupts it."""
        with contextlib.ExitStack() as stack:
            for group in groups:
                if not group.plans.enter():
                    named = f" in group '{self.name}'" if self.name else ""
                    raise UserError(
                        f"stretto.{caller}(): rank {self.rank}{named} is within a call; let it end first"
                    )
                stack.callback(group.plans.leave)
            yield

    def _say_who(self, fault: Fault) -> None:
        """The text names ranks by their numbers here; adds those that they have among all."""
        if not self.name or fault.record is None:
            return
        named = sorted({fault.record["rank"], fault.record["waited_for"]} & set(range(self.size)))
        who = ", ".join(f"its rank {r} is rank {self.ranks[r]} of all" for r in named)
        fault.record["group"] = self.name
        fault.args = (f"{fault} (in group '{self.name}'{': ' if who else ''}{who})",)

    @_route.beside_graphs
    def call(self, op: Callable[..., Any], option: int, out: Any, *arrays: Any) -> Any:
        """op(self, *arrays, option, out), `out` a tuple where there are several results. A call that
        is nothing but launches over these arrays and its results as they are becomes a plan, which
        the next call of the same layouts follows without Python. Operators do not call each other
        this way."""
        if self._records or self.tuner is not None:
            return self.whole(op, op, self, *arrays, option, out)
        try:
            result = self.plans.replay(op, option, out, *arrays)
        except Fault as fault:
            self._say_who(fault)
            raise
        except Exception as error:  # before its first step, or of a step in place of it
            self._came_to = _HAS_MET if isinstance(error, DeviceError) else _MEETS
            self._break_off(op, error)
            raise
        if result is not NotImplemented:
            return result
        return self.whole(op, self._first_call, op, option, out, arrays)

    def _first_call(self, op, option, out, arrays):
        self._steps = steps = []
        self.any_option = _ONE_OPTION
        try:
            result = op(self, *arrays, option, out)
            if steps and None not in steps:
                self._add_plan(op, option, out, arrays, result, steps)
        finally:
            self._steps = None
            self._of_steps.clear()
        return result

    def whole(self, op: Callable[..., Any], body: Callable[..., Any], *args: Any) -> Any:
        """body(*args), which has all meetings of a call of `op`, none of them made yet, and what comes between
        them: where it raises, the others are told (_HAS_MET)."""
        self._came_to = _HAS_NOT_MET
        try:
            return body(*args)
        except Exception as error:
            self._break_off(op, error)
            raise

    def _break_off(self, op: Callable[..., Any], error: Exception) -> None:
        call = _name_of(op)
        if self._came_to != _HAS_MET:
            self.refuse(call, error)
            return
        reason = self._reason_for_others(call, error)
        if reason is not None:
            self.session.fail(self.rank, f"rank {self.rank} has broken off a call that others may be in: {reason}")

    def refuse(self, call: str, error: Exception) -> None:
        """For a call that raised this before the ranks met: it counts as made, so that the others, which may
        wait in theirs, are told why and which is which from then on. Not where all have been told. A
        UserError says on which rank, unless it does."""
        reason = self._reason_for_others(call, error)
        if reason is None or not self.plans.enter():
            return
        try:
            self.session.refuse(self.rank, call, reason)
        except Error:
            pass  # of a world that has failed or ended, as its other calls say
        finally:
            self.plans.leave()

    def _reason_for_others(self, call: str, error: Exception) -> Optional[str]:
        """None where there is nothing to tell."""
        if isinstance(error, UserError):
            error.args = (in_users_words(error),)
        if self.size == 1 or isinstance(error, Fault) or getattr(error, "is_settled", False):
            return None
        if _route.is_compiling():
            return None
        error.is_settled = True  # by whoever sees it first, within nested calls
        reason = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
        if not _NAMES_A_RANK.search(reason):
            reason = f"{reason} (on {self._own_name()})"
            if isinstance(error, UserError):
                error.args = (reason,)
        return reason if call in reason else f"{call}: {reason}"

    def _own_name(self) -> str:
        own = f"rank {self.rank} of {self.size}"
        if not self.name:
            return own
        return f"{own} of group '{self.name}', rank {self.ranks[self.rank]} of all"

    def _add_plan(self, op, option, out, arrays, result, steps) -> None:
        makers = []
        results = result if isinstance(result, tuple) else () if result is None else (result,)
        for x in results or arrays[:1]:
            kind = kind_of(x)
            if kind is None:
                return
            if issubclass(kind, TorchKind):
                torch = sys.modules["torch"]
                count_write = torch._C._increment_version  # pylint: disable=protected-access
                self.plans.know_torch(torch.Tensor, torch.nn.Parameter, torch.is_grad_enabled, count_write)
            makers.append(kind.maker(x))
        self.plans.add(
            op,
            option,
            out,
            *arrays,
            result=result,
            makers=makers[: len(results)],
            steps=steps,
            fixed=self.kept.fixed(),
            any_option=self.any_option,
        )

    def is_symmetric(self, address: int) -> bool:
        return self.session.is_symmetric(self.rank, address)

    def symmetric_memory(self, kind: Any, said: str, size_bytes: int) -> Any:
        """For symm_mem.empty. Collective; `said`: as in launch()."""
        self._came_to = _MEETS
        if self.size > 1 and not kind.on_gpu:  # else the devices compare it
            self.session.agree(self.rank, said)
        memory = _core.SymmetricMemory.allocate(
            self.session, self.rank, said, kind.on_gpu, size_bytes
        )
        self._came_to = _HAS_MET
        return memory

    def open_gpu(self, device: int) -> None:
        """Makes this rank's GPU ready, at its first use collectively. UserError for another one."""
        if device != self._gpu:
            self.session.open_gpu(device, self.options.share_gpus)
            self._gpu = device

    def assign(self, kind: Any, target: Any, source: Any, least_row_bytes: int = 0) -> None:
        """Copies, as a step of the call that its plan repeats. `least_row_bytes`: where the copy is of rows
        that are shorter, no plan repeats the call."""
        kind.assign(target, source)
        if self._steps is not None and 0 not in target.shape:
            step = _copy_of(kind, target, source)
            self._of_steps.append((target, source))
            self._steps.append(step if step is not None and step[2][1] >= least_row_bytes else None)

    def take_turns(self, tensor: Any) -> None:
        """For operators that leave what they keep() to later work on PyTorch's current stream: that
        work on another stream has come before this call's."""
        cuda = sys.modules["torch"].cuda
        if not tensor.is_cuda or cuda.is_current_stream_capturing():
            return
        stream, last = cuda.current_stream(tensor.device), self._last_stream
        if last is not None and last != stream:
            stream.wait_stream(last)
        self._last_stream = stream

    def bound(self, op: Any, rows: int) -> Tuple[int, bool]:
        """(the most rows of the program by which to run `op` over `rows` of all ranks, whether it is
        for these alone): so of the first few numbers of rows that it was launched with, then with one
        of few bounds, since each program takes time to compile, and memory. The same on all ranks,
        since launched() counts.
        """
        sizes = self._sizes.get(op, ())
        if rows in sizes or len(sizes) < self._MOST_SIZES:
            return rows, True
        return self.size * bound_of(-(-rows // self.size)), False

    def launched(self, op: Any, rows: int) -> None:
        """For bound(), once a launch has shown that the ranks agree on the call."""
        sizes = self._sizes.setdefault(op, set())
        if len(sizes) < self._MOST_SIZES:
            sizes.add(rows)

    def steps_of(self, call: Callable[[], None]) -> List[Any]:
        """The launches and copies that call() comes to: (executable, addresses, extents, words)."""
        self._steps = steps = []
        try:
            call()
        finally:
            self._steps = None
            self._of_steps.clear()
        return steps

    def launch(
        self,
        kind: Any,
        key,
        make: Callable[[int], Any],
        names: Sequence[str],
        arrays: Sequence[Any],
        extents: Sequence[int],
        *,
        said: str,
        at_bounds: bool = False,
    ) -> None:
        """Launches the program that `key` stands for, which make(SMs of the GPU, 0 on CPUs) builds
        when it is new here, and which is proved for these. `arrays`, dense, are those of the tensors
        of these `names`; on GPUs the launch is enqueued on the current stream. `at_bounds`: launches
        under this key have no other extents, the largest that the program may have. `said`: the call
        in words, the same on all ranks
        (_calls.described); "" for a program of the user's own, which says it itself. Collective."""
        addresses = [kind.address(x) for x in arrays]
        with self.used():
            self._came_to = _MEETS
            stream = 0
            if kind.on_gpu:
                device = kind.device(arrays[0])
                self.open_gpu(device)
                stream = kind.stream(device)
            name = kind.num_sms(arrays[0]), key, at_bounds
            entry = self._entries.get(name)
            if entry is None:
                entry = self._entries[name] = _Entry(_compile(name, make), names)
            args = [addresses[i] for i in entry.order]
            symmetric = entry.symmetric
            staged = (
                tuple(i in symmetric and not self.is_symmetric(a) for i, a in enumerate(args))
                if symmetric
                else ()
            )
            records = self._records and kind.on_gpu
            executable = entry.executables.get((staged, records))
            if executable is None:
                staged_args = staged or (False,) * len(args)
                executable = self._make_executable(kind, entry, staged_args, records, said)
                entry.executables[staged, records] = executable
                self._keep_executable(executable, name, (staged, records))
            self._came_to = _HAS_MET
            try:
                executable.launch(*args, extents=extents, said=said, stream=stream)
            except UserError:  # of its arguments, before a word of it is said
                self._came_to = _MEETS
                raise
            self.kept.launched(executable, args)
            if self._steps is not None:
                self._of_steps.append(arrays)
                self._steps.append((executable, args, list(extents), said))

    def launch_operator(
        self,
        kind: Any,
        program: str,
        desc: Dict[str, Any],
        names: Sequence[str],
        arrays: Sequence[Any],
        extents: Sequence[int],
        **options: Any,
    ) -> None:
        """Launches `program` of _core for the Desc with these fields; the others as in launch()."""
        said = options.get("said", "")
        key, make = self._operator(program, desc, said)
        self.launch(kind, key, make, names, arrays, extents, **options)

    def begin_operator(
        self, kind: Any, program: str, desc: Dict[str, Any], like: Any, *, said: str, at_bounds: bool = False
    ) -> None:
        """For a launch_operator() of the same that this call comes to after others, on the GPU of `like`:
        what it needs is proved and compiled from now on, beside theirs. On CPUs nothing."""
        sms = kind.num_sms(like)
        if sms == 0 or self._steps is None:  # else there will be no first launch here
            return
        key, make = self._operator(program, desc, said)
        name = sms, key, at_bounds
        if name not in self._entries:
            _begin(name, make)

    def _operator(self, program: str, desc: Dict[str, Any], said: str):
        def make(sms: int) -> Any:
            try:
                return getattr(_core, program)(sms, **desc)
            except UserError as error:  # as its caller knows the call
                called, refused = said.partition("(")[0], str(error)
                if not called or not refused.startswith(f"{program}: "):
                    raise
                raise UserError(called + refused[len(program) :]) from None

        return (program, *desc.values()), make

    def _make_executable(
        self, kind, entry: _Entry, staged: Tuple[bool, ...], records: bool, said: str
    ) -> Any:
        if kind.on_gpu and kind.is_capturing():
            raise UserError(
                f"{said or entry.compiled.program.name}: the first call of its shape and layout loads "
                "kernels and makes memory, which a graph cannot capture; call it once before"
            )
        return _core.Executable.make(
            self.session,
            self.rank,
            entry.compiled,
            list(staged),
            kind.on_gpu,
            records=records,
            said=said,
        )

    def _keep_executable(self, executable: Any, name: Any, form: Any) -> None:
        forget = functools.partial(self._forget, name, form)
        try:
            self.kept.add(executable, forget, [step[0] for step in self._steps or () if step and step[0]])
        except BaseException:  # some ranks may not have it
            forget()
            raise

    def _forget(self, name: Any, form: Any) -> None:
        """Of a program, the executable of that form."""
        del self._entries[name].executables[form]
        if not self._entries[name].executables:
            del self._entries[name]
            with _compiled_lock:
                _compiled.pop(name, None)

    def agree_on_nothing(self, said: str) -> None:
        """For a collective call without elements, which launches nothing: the ranks compare it, in
        words, with what the others call. On GPUs the hosts wait for each other."""
        if self.size > 1:
            with self.used():
                self._came_to = _MEETS
                self.session.agree(self.rank, said)
                self._came_to = _HAS_MET

    def close(self, *, at_once: bool = False) -> None:
        self.closed = True
        self.lanes.end()
        self.plans.clear()
        self._entries.clear()
        self.kept.clear()
        self.session.finalize(self.rank, at_once)
        for alone in list(self._alone.values()):
            alone.close(at_once=at_once)
        self._alone.clear()


def programs(sms: int, key: Any, make: Callable[[int], Any]) -> Any:
    """What make(sms) gave when it was first called with this key; `sms` as kinds tell of arrays."""
    with _compiled_lock:
        if (sms, key) not in _programs:
            _programs[sms, key] = make(sms)
        return _programs[sms, key]


def use_programs(sms: int, key: Any, made: Any) -> None:
    """programs() gives these for the key from now on."""
    with _compiled_lock:
        _programs[sms, key] = made


def _copy_of(kind: Any, target: Any, source: Any) -> Optional[Tuple[Any, ...]]:
    """A step that copies rows of bytes; None where the arrays are no rows that lie evenly apart."""
    if tuple(target.shape) != tuple(source.shape) or kind.dtype(target) != kind.dtype(source):
        return None
    row = kind.itemsize(target)
    strides = zip(target.shape, kind.strides_bytes(target), kind.strides_bytes(source))
    dims = [dim for dim in strides if dim[0] != 1]
    while dims and dims[-1][1:] == (row, row):
        row *= dims.pop()[0]
    rows, there, here = dims.pop() if dims else (1, row, row)
    while dims and dims[-1][1:] == (rows * there, rows * here):
        rows *= dims.pop()[0]
    if dims or min(there, here) < row:
        return None
    return None, [kind.address(target), kind.address(source)], [rows, row, there, here], ""


def _name_of(op: Callable[..., Any]) -> str:
    """What users call it: the first option of a body that several calls share, or else the body's name."""
    options = getattr(op, "args", ())
    if options and isinstance(options[0], str):
        return options[0]
    return getattr(op, "func", op).__name__.strip("_")


def _proved(name: _Name, make: Callable[[int], Any]) -> Any:
    """For a GPU with its kernel, which is compiled beside the proof."""
    sms, _, at_bounds = name
    on_gpu = {"num_sms": sms, "with_kernel": True} if sms else {}
    return make(sms).compile(bounds_only=at_bounds, **on_gpu)


def _compile(name: _Name, make: Callable[[int], Any]) -> Any:
    """Once in a process, whoever asks first; who fails raises it, and the next one tries again."""
    while True:
        mine = threading.Event()
        try:
            with _compiled_lock:
                if name in _compiled:
                    return _compiled[name]
                under_way = _under_way.setdefault(name, mine)
            if under_way is mine:
                return _make(name, make)
        finally:  # an interrupt may come at any line above
            _end(name, mine)
        under_way.wait()  # as long as its maker's thread lives, which ends it


def _make(name: _Name, make: Callable[[int], Any]) -> Any:
    made = _proved(name, make)
    with _compiled_lock:
        return _compiled.setdefault(name, made)


def _end(name: _Name, under_way: threading.Event) -> None:
    """Whoever waits for it looks again."""
    with _compiled_lock:
        if _under_way.get(name) is under_way:
            del _under_way[name]
    under_way.set()


def _begin(name: _Name, make: Callable[[int], Any]) -> None:
    """Begins to compile it on a thread of its own, for a _compile() that comes soon, and raises what this
    one does."""
    mine = threading.Event()
    with _compiled_lock:
        if name in _compiled or _under_way.setdefault(name, mine) is not mine:
            return

    def work():
        try:
            with contextlib.suppress(Exception):
                _make(name, make)
        finally:
            _end(name, mine)

    try:
        threading.Thread(target=work, name=f"stretto compiles {name[1][0]}").start()
    except RuntimeError:  # no thread is left, or the process ends: the launch compiles it
        _end(name, mine)
    except BaseException:
        _end(name, mine)
        raise


def _begin_anew() -> None:
    """In a process made by fork: nobody there ends what the other threads had under way, nor gives the
    lock back."""
    global _compiled_lock  # pylint: disable=global-statement
    _compiled_lock = threading.Lock()
    _under_way.clear()


os.register_at_fork(after_in_child=_begin_anew)


def compile_ahead(name: _Name, make: Callable[[int], Any]) -> str:
    """Of a launch() that will come. The program's name."""
    compiled = _proved(name, make)
    with _compiled_lock:
        return _compiled.setdefault(name, compiled).program.name
