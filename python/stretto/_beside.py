"""Calls with async_op=True, which go on while the rank does something else. They are made in worlds of
their own, of the same ranks as the group that was named, two for each group in turn: so two may be under
way beside what the rank calls meanwhile, and each world's ranks launch the same programs in the same
order, as the proof takes it, whatever the speed of each."""

from __future__ import annotations

import concurrent.futures
import sys
import warnings
from typing import Any, Callable, Dict, Iterable, List, Tuple

from . import _route
from ._arrays import kind_of
from ._group import Group
from .errors import UserError


class Work:
    """A call that goes on; made by operators with async_op=True. Its arrays are not to be changed, nor
    what it writes read, before wait() has returned."""

    def wait(self) -> Any:
        """What the call returns, once it has ended; raises what it has raised. On GPUs work on the current
        stream comes after it then, and the host does not wait. May be called again."""
        raise NotImplementedError

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        raise NotImplementedError


class _HostWork(Work):
    def __init__(self, name: str, future: concurrent.futures.Future):
        self._name, self._future, self._is_told = name, future, False

    def wait(self) -> Any:
        self._is_told = True
        return self._future.result()

    def is_completed(self) -> bool:
        return self._future.done()

    def __del__(self):
        if self._is_told or not self._future.done() or self._future.exception() is None:
            return
        warnings.warn(
            f"stretto.{self._name}(async_op=True) failed, and nobody waited for it: {self._future.exception()}",
            RuntimeWarning,
        )


class _GpuWork(Work):
    """Keeps the call's arrays until it is waited for on the stream that it was made on, whose later work
    comes after it then: so their memory needs no event of its own."""

    __slots__ = ("_lane", "_result", "_event", "_caller", "_arrays", "_waits")

    def __init__(self, lane: Any, started: Any, arrays: List[Any]):
        self._lane = lane
        self._result, self._event, self._caller = started
        self._arrays = arrays
        self._waits: Any = None  # the stream that has done so last

    def wait(self) -> Any:
        here = self._lane.come_after(self._event)
        if here is not self._waits:
            self._waits = here
            self._give_back(here)
            _hold(_arrays_of((self._result,), []), here)
        return self._result

    def is_completed(self) -> bool:
        return self._event.query()

    def _give_back(self, here: Any) -> None:
        if here is not self._caller:
            self._lane.hold(self._arrays)
        self._arrays = []

    def __del__(self):
        if self._arrays:
            self._give_back(None)
        self._lane.reuse(self._event)


class TorchStream:
    """A stream of PyTorch that a lane's calls on a GPU are made on, with its events, which are used again."""

    def __init__(self, device: int):
        torch = sys.modules["torch"]
        self._cuda, self._device = torch.cuda, device
        self._handle_of_current = torch._C._cuda_getCurrentRawStream  # pylint: disable=protected-access
        self._known: Dict[int, Any] = {}  # streams that were current, by handle
        self._stream = torch.cuda.Stream(device)
        self._begin = torch.cuda.Event()
        self._events: List[Any] = []  # that nobody uses

    def _current(self, device: int) -> Any:
        handle = self._handle_of_current(device)
        found = self._known.get(handle)
        if found is None:
            found = self._known[handle] = self._cuda.current_stream(device)
        return found

    def call(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Tuple[Any, Any, Any]:
        """(what the call returns, made on the stream after all that the current one has; an event after it;
        the current stream)."""
        cuda, stream = self._cuda, self._stream
        current = self._current(self._device)
        self._begin.record(current)
        stream.wait_event(self._begin)
        if cuda.current_device() == self._device:  # what cuda.stream() does then, which asks for much more
            cuda.set_stream(stream)
            try:
                result = call(*args, **kwargs)
            finally:
                cuda.set_stream(current)
        else:
            with cuda.stream(stream):
                result = call(*args, **kwargs)
        event = self._events.pop() if self._events else cuda.Event()
        event.record(stream)
        return result, event, current

    def come_after(self, event: Any) -> Any:
        """The current stream of this GPU does so from now on, and that of the current device. The former."""
        device = self._cuda.current_device()
        current = self._current(self._device)
        current.wait_event(event)
        if device != self._device:
            self._cuda.current_stream(device).wait_event(event)
        return current

    def hold(self, arrays: Iterable[Any]) -> None:
        _hold(arrays, self._stream)

    def reuse(self, event: Any) -> None:
        self._events.append(event)


streams: Any = TorchStream


def _hold(arrays: Iterable[Any], stream: Any) -> None:
    """Their memory, once they are gone, is not given to others before what the stream has then has ended."""
    for x in arrays:
        if hasattr(x, "record_stream"):
            x.record_stream(stream)


def _arrays_of(given: Iterable[Any], found: List[Any]) -> List[Any]:
    """Puts all that are in there behind those that are found."""
    for part in given:
        if hasattr(part, "dtype"):
            found.append(part)
        elif isinstance(part, (tuple, list)):
            _arrays_of(part, found)
    return found


def _check(op: str, arrays: List[Any]) -> None:
    torch = sys.modules.get("torch")
    if _route.is_compiling():
        raise UserError(f"{op}: async_op=True has no place in graphs of torch.compile")
    if torch is None or not torch.is_grad_enabled():
        return
    for x in arrays:
        if isinstance(x, torch.Tensor) and x.requires_grad:
            raise UserError(
                f"{op}: async_op=True of tensors that require gradients: detach() them, or call it in torch.no_grad()"
            )


def _as_here(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call with what this thread has told PyTorch, for another one: whether gradients are kept, inference
    mode, autocast."""
    torch = sys.modules.get("torch")
    if torch is None:
        return call
    keeps_gradients, is_inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    casts, cast_to = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    keeps_casts = torch.is_autocast_cache_enabled()

    def there() -> Any:
        with torch.inference_mode(is_inference), torch.set_grad_enabled(keeps_gradients):
            with torch.autocast("cpu", dtype=cast_to, enabled=casts, cache_enabled=keeps_casts):
                return call()

    return there


def _at_home(result: Any, lane: Group, home: Group) -> Any:
    """Tables that say of which group's tokens they are name the one that the caller knows."""
    if not isinstance(result, tuple):
        return result
    if not hasattr(result, "_fields"):
        return tuple(_at_home(part, lane, home) for part in result)
    mine = getattr(result, "group", None) == lane.name
    return result._replace(group=home.name) if mine else result


def start(
    group: Group, lane: Group, call: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Work:
    """call(*args, group=lane, **kwargs), which goes on."""
    op = call.__name__
    arrays = _arrays_of(kwargs.values(), _arrays_of(args, []))
    _check(op, arrays)
    kind, device = None, -1
    for x in arrays:
        kind = kind_of(x)
        if kind is not None:
            device = kind.device(x) if kind.on_gpu else -1
            break
    kwargs["group"] = lane
    if device < 0:
        return _HostWork(op, lane.lanes.on_worker(_as_here(lambda: _at_home(call(*args, **kwargs), lane, group))))
    if not hasattr(kind, "is_of_torch"):
        raise UserError(f"{op}: async_op=True on GPUs takes tensors of PyTorch, not a {kind.name}")
    stream = lane.lanes.stream(device, streams)
    result, *started = stream.call(call, args, kwargs)
    return _GpuWork(stream, (_at_home(result, lane, group), *started), arrays)
