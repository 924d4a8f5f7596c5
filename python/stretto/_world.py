"""The worlds that this process is in: that of all its ranks, and groups of some of them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import math
import operator
import os
import secrets
import socket
import sys
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from . import _beside, _core, _route
from ._arguments import checked
from ._group import Group, Options
from ._torch_names import name_of_torch, ranks_of_torch
from .errors import UserError


class Outsider:
    """What `new_group` returns on a rank that is not in the group: `rank` is -1, and operators that
    are given it raise a UserError."""

    rank = -1

    def __init__(self, name: str, ranks: Sequence[int]):
        self.name = name
        self.ranks = list(ranks)
        self.size = len(self.ranks)

    def __repr__(self) -> str:
        return f"<not in stretto group '{self.name}' of ranks {self.ranks}>"


_MOST_MILLISECONDS = 86_400_000
# What operators take as group=: None, a Group, its name, or a torch.distributed group that
# new_group() or init() was given.
GroupLike = Any


class _Member:
    """The groups of a process, or of a thread of stretto.testing.run."""

    def __init__(self) -> None:
        self.groups: Dict[str, Group] = {}  # by name; "": that of init()
        self.others: Dict[str, Outsider] = {}
        self.closed: Dict[str, str] = {}  # who says so, by name
        self.of_torch: Dict[str, Optional[List[int]]] = {}  # their ranks there, by name
        self.forked: List[Group] = []  # the parent's, in a child
        self.rehearses = False  # calls for warm_up(), whose other ranks do not come

    def each(self) -> List[Group]:
        """Every group once, the last that was made first."""
        return list(dict.fromkeys(reversed(self.groups.values())))

    def add(self, group: Union[Group, Outsider], *names: str) -> None:
        known: Dict[str, Any] = self.groups if isinstance(group, Group) else self.others
        for name in names:
            known[name] = group
            self.closed.pop(name, None)

    def leave(self, groups: Sequence[Group]) -> None:
        """Closes all of them, or none where a call of one is under way."""
        with contextlib.ExitStack() as stack:
            for group in groups:
                group.lanes.settle()
                stack.enter_context(group.idle())
            for group in groups:
                self.close(group)

    def close(self, group: Group, *, at_once: bool = False) -> None:
        for name in [name for name, g in self.groups.items() if g is group]:
            del self.groups[name]
            self.closed[name] = f"rank {group.rank}: "
        group.close(at_once=at_once)

    def fail(self, error: BaseException) -> None:
        """The others' waits for this rank fail with this."""
        for group in self.each():
            group.session.fail(group.rank, f"rank {group.rank} died: {type(error).__name__}: {error}")


_process = _Member()


class _Thread(threading.local):
    """`member`: of a thread that is a rank its own, of others the process's, which is found as an
    attribute of the class sooner than a default by getattr()."""

    member = _process


_thread = _Thread()


def _member() -> _Member:
    return _thread.member


def _after_fork() -> None:
    _process.forked += _process.groups.values()
    _process.groups = {}


os.register_at_fork(after_in_child=_after_fork)


def _check_is_same(group: Any, name: str) -> None:
    """torch.distributed gives the names of groups that were destroyed to others."""
    import torch  # pylint: disable=import-outside-toplevel

    if torch.compiler.is_compiling():
        return
    member = _member()
    known = member.of_torch.get(name) if name in member.groups else None
    if known is None:
        return
    ranks = ranks_of_torch(group)
    if ranks is not None and ranks != known:
        raise UserError(
            f"{name} has the ranks {ranks}; new_group() or init() was given another of that name, "
            f"with the ranks {known}: finalize() what it returned first"
        )


def name_of(group: GroupLike) -> str:
    """Of what an operator was given as its group; "" for None, all ranks."""
    if group is None:
        return ""
    if isinstance(group, str):
        return group
    if isinstance(group, (Group, Outsider)):
        return group.name
    name = name_of_torch(group)
    if name is None:
        raise UserError(
            f"group is {type(group).__name__}: need what new_group() or mesh() returned, its name, "
            "or the torch.distributed group that new_group() was given"
        )
    _check_is_same(group, name)
    return name


def group_of(group: GroupLike = None) -> Group:
    """This rank's place in the group, None: that of init(). UserError before `init`, after
    `finalize`, in a forked child, and on a rank that is not in it."""
    member = _thread.member
    if group is None:
        found = member.groups.get("")
    elif isinstance(group, Group):
        found = group if member.groups.get(group.name) is group else None
    else:
        found = None if isinstance(group, Outsider) else member.groups.get(name_of(group))
    if found is None:
        raise _refusal(member, group)
    return found


def refuse(group: GroupLike, call: str, error: Exception) -> None:
    """Tells the other ranks of the group that this one has raised this and does not make the call."""
    try:
        found = group_of(group)
    except Exception:  # pylint: disable=broad-except
        return  # nobody can tell which ranks that would be
    found.refuse(call, error)


def counted(
    function: Callable[..., Any], find: Optional[Callable[..., Any]] = None, goes_on: bool = True
) -> Any:
    """For collective operators: what they raise names what the user wrote, and counts as a call
    (Group.refuse). `find`: the group of these arguments; default: `group`, and then, unless `goes_on`
    is False, they take async_op=True."""

    def tell(error, args, kwargs):
        group = kwargs.get("group") if find is None else find(*args, **kwargs)
        refuse(group, function.__name__, error)

    return checked(function, tell, _beside_others if goes_on and find is None else None)


@_route.beside_graphs
def _beside_others(call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A call with async_op=True, which goes on: a Work."""
    group = group_of(kwargs.pop("group", None))
    lane = _lane_of(group)
    try:
        return _beside.start(group, lane, call, args, kwargs)
    except Exception as error:  # which counts as the lane's call, as on the ranks that make it
        lane.refuse(call.__name__, error)
        raise


def _lane_of(group: Group) -> Group:
    """Where the group's next call goes on that has async_op=True. Its first one is collective in the group."""
    member = _member()

    def made(number: int) -> Group:
        name = f"{group.name or 'all ranks'}, async {number}"
        lane = group._new_lane(_new_name(member, None, name))  # pylint: disable=protected-access
        lane.lanes.join_thread = functools.partial(setattr, _thread, "member", member)
        member.add(lane, lane.name)
        return lane

    return group.lanes.next(made)


def _rank_to_be() -> str:
    rank = os.environ.get("RANK", "")
    return f"rank {rank}: " if rank.isdigit() else ""


def _refusal(member: _Member, group: GroupLike) -> UserError:
    name = name_of(group)
    if member.forked:
        what = "stretto is used in a process forked after init(); start processes with 'spawn'"
        return UserError(f"rank {member.forked[0].rank}: {what}")
    if name == "":
        if name in member.closed:
            return UserError(f"{member.closed[name]}stretto is used after finalize()")
        return UserError(f"{_rank_to_be()}stretto is used before init()")
    outsider = group if isinstance(group, Outsider) else member.others.get(name)
    if outsider is not None:
        whole = member.groups.get("")
        who = "this rank" if whole is None else f"rank {whole.rank}"
        return UserError(f"group '{name}' has the ranks {outsider.ranks}, {who} is not among them")
    if name in member.closed or isinstance(group, Group):
        return UserError(f"{member.closed.get(name, '')}group '{name}': used after finalize()")
    return UserError(f"there is no group '{name}': new_group() and mesh() make groups")


def groups() -> List[Group]:
    """All that this rank is in, that of init() first. UserError before `init`."""
    whole = group_of()
    return [whole, *(g for g in reversed(_member().each()) if g is not whole)]


def alone() -> Group:
    """A world of this rank only, for operators that do not communicate."""
    return group_of().alone()


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
    is slow: for tests. `choose_configs`: products, and layers of experts that are split over the
    ranks, take on GPUs the config that prediction ranks first, which the first call of a shape on a
    machine looks for, some seconds of all cores; False: a default by rules. `sequence`: whether
    products with a collective run as collective and product one after the other; None: on GPUs
    where that is predicted to be faster, as it is with few rows, unless choose_configs is False.
    Those with scales and those of one rank are always fused. The same on every rank. Groups made
    later have the same.

    A rank's GPU is that of the first arrays that it passes; it is made ready then.

    Errors: UserError: called twice, or ranks disagree; Fault naming a rank that does not come.
    """
    _route.load()
    member = _member()
    if group is not None and name_of_torch(group) is None:
        raise UserError(f"stretto.init({group!r}): need a torch.distributed group, or none")
    if member.rehearses:
        raise UserError("stretto.init() within warm_up(), whose calls are in a world of their own: leave it out")
    if "" in member.groups:
        who = f"rank {member.groups[''].rank}: "
        raise UserError(f"{who}stretto.init(): called twice; finalize() first")
    milliseconds = 0 if timeout is None else _milliseconds(timeout)
    names = [""]
    if group is not None:
        session = _meet_through_torch("init", group, milliseconds)
        name = name_of_torch(group)
        member.of_torch[name] = ranks_of_torch(group)
        names.append(name)
    else:
        session = _core.Session.of_environment(milliseconds) or _core.Session.threads(
            1, milliseconds
        )
    options = Options(milliseconds, bool(share_gpus), how_products_run(choose_configs, sequence))
    made = Group(session, session.local_rank, options)
    member.forked = []
    member.add(made, *names)
    return made


def _milliseconds(timeout: Any) -> int:
    try:
        milliseconds = int(float(timeout) * 1000)
    except (TypeError, ValueError, OverflowError):
        milliseconds = 0
    if not 1 <= milliseconds <= _MOST_MILLISECONDS:
        raise UserError(
            f"stretto.init(timeout={timeout!r}): need a number of seconds from 0.001 to 86400"
        )
    return milliseconds


def how_products_run(choose_configs: bool, sequence: Optional[bool]) -> str:
    """As chosen.h names it."""
    if sequence:
        return "sequence"
    if not choose_configs:
        return "default"
    return "fastest" if sequence is None else "fused"


def new_group(ranks: Any, *, name: Optional[str] = None) -> Union[Group, Outsider]:
    """A world of its own for some ranks, for the operators' `group=`: with memory, signals and faults
    apart from those of other groups, any number of which may be in use at the same time.

    `ranks`: numbers of the world of all ranks, which are renumbered in ascending order. Collective
    over all ranks, as torch.distributed.new_group: those that are not in `ranks` call it too, and
    get an Outsider. Or a torch.distributed group, through which its ranks, and no others, meet;
    that works without init(), too. For the one that init() was given, which a device mesh of one
    dimension has as well, this returns the world of all ranks. `name`: by which operators know it
    on this rank, as they do by what this returns and by the torch.distributed group; default: the
    ranks.

    On each rank, one call comes after another in the same order whatever their groups are, unless
    threads of one process use one group each.

    Errors: UserError where the ranks do not exist, a name is taken, or ranks disagree (on all);
    Fault naming a rank that does not come.
    """
    member = _member()
    if name_of_torch(ranks) is not None:
        return _new_group_of_torch(member, ranks, name)
    try:
        return _new_group_of_ranks(member, ranks, name)
    except Exception as error:
        refuse(None, "new_group", error)
        raise


def _new_group_of_ranks(member: _Member, ranks, name: Optional[str]) -> Union[Group, Outsider]:
    whole = group_of()
    numbers = sorted(_numbers(ranks))
    if not numbers or numbers != sorted(set(numbers)):
        raise UserError(f"new_group({list(ranks)}): need each rank once, and one at least")
    if numbers[0] < 0 or numbers[-1] >= whole.size:
        raise UserError(f"new_group({numbers}): the world has the ranks 0 to {whole.size - 1}")
    named = _new_name(member, name, f"ranks {', '.join(map(str, numbers))}")
    own = numbers if whole.rank in numbers else []
    request = f"new_group({numbers}, name={named!r})"
    return _split(member, whole, own, request, named) or _outsider(member, named, numbers)


@functools.partial(counted, find=lambda *_, **__: None)
def mesh(**sizes: int) -> Dict[str, Group]:
    """The ranks as a grid, and this rank's group along each of its axes: mesh(dp=2, tp=4) of 8 ranks
    has "tp" groups of 4 ranks with numbers in a row, and "dp" groups of those with the same place
    in theirs. Axes are as torch.distributed.device_mesh has them, the last one's ranks next to each
    other. Collective over all ranks.

    Returns {axis: group}; groups are named after their axes, operators take group="tp", too.

    Errors: UserError where the sizes do not come to all ranks, a name is taken, or ranks disagree.
    """
    member, whole = _member(), group_of()
    shape = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
    counts = [_count(shape, size) for size in sizes.values()]
    if not sizes or math.prod(counts) != whole.size:
        raise UserError(f"mesh({shape}): there are {whole.size} ranks")
    for axis in sizes:
        _new_name(member, axis, axis)
    places = list(itertools.product(*(range(count) for count in counts)))
    own = places[whole.rank]
    groups = {}
    for d, axis in enumerate(sizes):
        along = [r for r, at in enumerate(places) if at[:d] + at[d + 1 :] == own[:d] + own[d + 1 :]]
        groups[axis] = _split(member, whole, along, f"mesh({shape}), {axis}", axis)
    return groups


def _count(shape: str, size: Any) -> int:
    try:
        count = operator.index(size)
    except TypeError:
        count = 0
    if count < 1:
        raise UserError(f"mesh({shape}): need a positive number of ranks along each axis")
    return count


def _numbers(ranks: Any) -> List[int]:
    try:
        return [int(r) for r in ranks]
    except (TypeError, ValueError) as error:
        raise UserError(
            f"new_group({ranks!r}): need numbers of ranks, or a torch.distributed group"
        ) from error


def _new_name(member: _Member, name: Optional[str], default: str) -> str:
    taken = {**member.groups, **member.others}
    if name is None:
        tries = itertools.chain([default], (f"{default} ({n})" for n in itertools.count(2)))
        return next(text for text in tries if text not in taken)
    if not isinstance(name, str):
        raise UserError(f"new_group: name is {name!r}, need a str")
    if name in taken or name == "":
        raise UserError(f"there is a group named {name!r} already")
    return name


def _split(member, whole: Group, ranks: List[int], request: str, name: str) -> Optional[Group]:
    """A group of these ranks, this one among them; None where there are none. Collective."""
    made = whole._new_part(ranks, request, name)  # pylint: disable=protected-access
    if made is not None:
        member.add(made, name)
    return made


def _outsider(member: _Member, name: str, ranks: Sequence[int]) -> Outsider:
    made = Outsider(name, ranks)
    member.add(made, name)
    return made


def _new_group_of_torch(member: _Member, group: Any, name: Optional[str]) -> Group:
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel

    if member.rehearses:
        raise UserError("new_group() of a torch.distributed group within warm_up(): give it numbers of ranks")
    of_torch, whole = name_of(group), member.groups.get("")
    if whole is not None and member.groups.get(of_torch) is whole:
        if name is not None:
            member.add(whole, _new_name(member, name, name))
        return whole
    if of_torch in member.groups:
        raise UserError(f"new_group(): has made a group of {of_torch} already")
    named = _new_name(member, name, of_torch)
    options = Options() if whole is None else whole.options
    session = _meet_through_torch("new_group", group, options.milliseconds, beside=whole)
    ranks = dist.get_process_group_ranks(group)
    made = Group(session, session.local_rank, options, name=named, ranks=ranks)
    member.of_torch[of_torch] = ranks
    member.add(made, named, of_torch)
    return made


def _meet_through_torch(caller: str, group, milliseconds: int, beside: Optional[Group] = None):
    """A world of the ranks of a torch.distributed group, which tells them where to meet."""
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel

    number, size = dist.get_rank(group), dist.get_world_size(group)
    if number < 0:
        raise UserError(f"stretto.{caller}(group): this process is not in the group")
    with contextlib.ExitStack() as stack:
        where, listener = [None], -1
        if number == 0:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=size))
            where, listener = [(server.getsockname()[1], secrets.token_hex(8))], server.fileno()
        dist.broadcast_object_list(where, src=dist.get_global_rank(group, 0), group=group)
        port, job = where[0]
        known = None if beside is None else beside.session
        return _core.Session.processes(
            number, size, "127.0.0.1", port, listener, job, milliseconds, beside=known
        )


def _at_exit() -> None:
    """A process that ends well leaves its worlds; one that ends with an exception tells the others,
    whose waits then fail. Where a user types, exceptions end nothing."""
    error = getattr(sys, "last_value", None)
    if error is not None and not hasattr(sys, "ps1"):
        _process.fail(error)
    for group in _process.each():
        _process.close(group, at_once=True)


atexit.register(_at_exit)


def finalize(group: GroupLike = None) -> None:
    """Leaves all worlds, or that of `group` alone. Symmetric arrays stay readable; operators raise
    UserError until the next `init`. Without a world, does nothing. A rank that is not in `group`
    forgets it. UserError, and no world is left, while a call of this rank in it is under way in
    another thread."""
    member = _member()
    if group is not None:
        name = name_of(group)
        if member.others.pop(name, None) is not None:
            member.closed[name] = ""
        else:
            found = group_of(group)
            member.leave([*found.lanes.groups, found])
        return
    member.leave(member.each())
    member.others.clear()
    if member.forked:
        _lost.extend(member.forked)
        member.forked = []


_lost: List[Group] = []  # of parents; their threads and locks did not come along


def recover(group: GroupLike = None) -> None:
    """After a Fault, on every rank of the group: makes its world usable again. Collective. Waits until
    this rank's GPU is idle. UserError while a call of this rank is under way in another thread."""
    group_of(group).recover()


def rank(group: GroupLike = None) -> int:
    """This rank's number in the group, 0 to world_size(group) - 1."""
    return group_of(group).rank


def world_size(group: GroupLike = None) -> int:
    """The number of ranks of the group."""
    return group_of(group).size


def barrier(group: GroupLike = None) -> None:
    """Returns when every rank of the group has called it; does not wait for GPUs. Fault where an
    earlier call on a GPU has failed. Collective."""
    found = group_of(group)
    with found.used():
        found.session.check()
        found.session.barrier(found.rank)
