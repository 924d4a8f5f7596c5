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
    def __init__(self, streams: Any, result: Any, event: Any, arrays: Any):
        self._streams, self._result, self._event = streams, result, event
        self._arrays = arrays  # which the call reads and writes, until it has ended

    def wait(self) -> Any:
        self._streams.come_after(self._event, _tensors(_arrays_of(self._result, [])))
        self._arrays = None
        return self._result

    def is_completed(self) -> bool:
        return self._event.query()


class TorchStreams:
    """What PyTorch's streams of a GPU do here; tests put others in their place."""

    @staticmethod
    def new(device: int) -> Any:
        return sys.modules["torch"].cuda.Stream(device)

    @staticmethod
    def call(stream: Any, device: int, call: Callable[[], Any], tensors: Tuple[Any, ...]) -> Tuple[Any, Any]:
        """(what call() returns, made on the stream after all that the current one has; an event after it).
        The tensors' memory is not given to others before that."""
        cuda = sys.modules["torch"].cuda
        current = cuda.current_stream(device)
        stream.wait_stream(current)
        if cuda.current_device() == device:  # what cuda.stream() does then, which asks for much more
            cuda.set_stream(stream)
            try:
                result = call()
            finally:
                cuda.set_stream(current)
        else:
            with cuda.stream(stream):
                result = call()
        for x in tensors:
            x.record_stream(stream)
        return result, stream.record_event()

    @staticmethod
    def come_after(event: Any, tensors: Iterable[Any]) -> None:
        cuda = sys.modules["torch"].cuda
        current = cuda.current_stream()
        current.wait_event(event)
        for x in tensors:
            there = current
            if x.get_device() != current.device_index:
                there = cuda.current_stream(x.device)
                there.wait_event(event)
            x.record_stream(there)


streams: Any = TorchStreams


def _arrays_of(given: Any, found: List[Any]) -> List[Any]:
    """Puts all that are in there behind those that are found."""
    if isinstance(given, dict):
        given = tuple(given.values())
    if isinstance(given, (tuple, list)):
        for part in given:
            _arrays_of(part, found)
    elif hasattr(given, "shape") and hasattr(given, "dtype"):
        found.append(given)
    return found


def _tensors(arrays: Iterable[Any]) -> Tuple[Any, ...]:
    return tuple(x for x in arrays if hasattr(x, "record_stream"))


def _check(op: str, arrays: Tuple[Any, ...]) -> None:
    torch = sys.modules.get("torch")
    if _route.is_compiling():
        raise UserError(f"{op}: async_op=True has no place in graphs of torch.compile")
    if torch is None or not torch.is_grad_enabled():
        return
    if any(isinstance(x, torch.Tensor) and x.requires_grad for x in arrays):
        raise UserError(
            f"{op}: async_op=True of tensors that require gradients: detach() them, or call it in torch.no_grad()"
        )


def _at_home(result: Any, lane: Group, home: Group) -> Any:
    """Tables that say of which group's tokens they are name the one that the caller knows."""
    if not isinstance(result, tuple):
        return result
    if not hasattr(result, "_fields"):
        return tuple(_at_home(part, lane, home) for part in result)
    mine = getattr(result, "group", None) == lane.name
    return result._replace(group=home.name) if mine else result


@_route.beside_graphs
def start(
    group: Group, lane: Group, call: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Work:
    """call(*args, group=lane, **kwargs), which goes on."""
    op = call.__name__
    arrays = tuple(_arrays_of((args, kwargs), []))
    _check(op, arrays)
    kind = next(filter(None, map(kind_of, arrays)), None)
    on_gpu = kind is not None and kind.on_gpu
    if on_gpu and not hasattr(kind, "is_of_torch"):
        raise UserError(f"{op}: async_op=True on GPUs takes tensors of PyTorch, not a {kind.name}")

    def made() -> Any:
        return _at_home(call(*args, **kwargs, group=lane), lane, group)

    if not on_gpu:
        return _HostWork(op, lane.lanes.on_worker(made))
    device = kind.device(next(x for x in arrays if kind_of(x) is kind))
    tensors = _tensors(arrays)
    result, event = streams.call(lane.lanes.stream(device, streams.new), device, made, tensors)
    return _GpuWork(streams, result, event, arrays)
