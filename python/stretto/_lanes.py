"""Where a group's calls go on beside its own (_beside.py): other groups of its ranks, its lanes, each with
a thread or, on GPUs, a stream."""

from __future__ import annotations

import concurrent.futures
from typing import Any, Callable, Dict, List, Optional

NUM_LANES = 2


class Lanes:
    """Of a group: its lanes; and of a lane what its calls are made on."""

    def __init__(self) -> None:
        self.groups: List[Any] = []
        self.join_thread: Optional[Callable[[], None]] = None  # what the lane's thread does first
        self._num_calls = 0  # with async_op=True so far or since start_anew(), the same on all ranks
        self._worker: Optional[concurrent.futures.ThreadPoolExecutor] = None
        self._streams: Dict[int, Any] = {}  # by device

    def next(self, make: Callable[[int], Any]) -> Any:
        """That of the next call. The first one makes all of them by make(number, from 1 on)."""
        while len(self.groups) < NUM_LANES:
            self.groups.append(make(len(self.groups) + 1))
        self._num_calls += 1
        return self.groups[(self._num_calls - 1) % NUM_LANES]

    def start_anew(self) -> None:
        """On all ranks: the next call is on the first lane, whatever each of them has counted."""
        self._num_calls = 0

    def on_worker(self, call: Callable[[], Any]) -> concurrent.futures.Future:
        """Calls it on the lane's thread, after those before it."""
        if self._worker is None:
            self._worker = concurrent.futures.ThreadPoolExecutor(1, "stretto", self.join_thread)
        return self._worker.submit(call)

    def stream(self, device: int, new: Callable[[int], Any]) -> Any:
        """That of the lane's calls on this GPU."""
        if device not in self._streams:
            self._streams[device] = new(device)
        return self._streams[device]

    def settle(self) -> None:
        """Returns when the calls on the lane's thread have ended."""
        if self._worker is not None:
            self._worker.submit(int).result()

    def end(self) -> None:
        """The same, and the thread ends."""
        if self._worker is not None:
            self._worker.shutdown()
