"""The ways in which stretto fails, each its own type: a bad argument, a program that the proof
refuses or does not show whole, a rank that stalled or died, a device that refused, a bug of stretto's."""

from __future__ import annotations


class Error(RuntimeError):
    """What all errors of stretto derive from."""

    # The other ranks know of the call that raised it, or it counts for nothing (Group.refuse).
    is_settled = False


class UserError(Error, ValueError):
    """A bad argument, program, file or request; the message says which one and where."""


class Rejected(Error):
    """The proof found a race, a deadlock or an uncovered read; the message is its report."""


class NotComplete(Error):
    """A program that is not launched: the proof found nothing wrong and did not show everything; the
    message says what, and what may help."""


class Fault(Error):
    """A rank stalled or died. `record` says who waited for whom: program, role, rank, tile, signal,
    channel, expected, seen, waited_for, reason; of a group with a name, also group, among whose
    ranks the numbers are. `stretto.recover()` makes the world usable again where nobody died."""

    record: dict | None = None


class DeviceError(Error):
    """The device or its driver refused a call."""


class InternalError(Error):
    """A bug of stretto's."""
