"""Launches on GPUs by processes that do not wait for each other, on simulated ones
(docs/internals/simulated_gpus.md), which take NumPy arrays for theirs: calls that a rank refuses, and little
room for what calls keep."""

import os

import pytest

from test_processes import finish, start

BEGIN = """
import ctypes, os, pathlib, sys, time, warnings
import numpy as np, stretto
from stretto import _arrays, _group

cuda, device, streams = ctypes.CDLL("libcuda.so.1"), int(os.environ["LOCAL_RANK"]), []

def stream(_):
    if not streams:
        context, made = ctypes.c_void_p(), ctypes.c_void_p()
        assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
        assert cuda.cuCtxSetCurrent(context) == 0
        assert cuda.cuStreamCreateWithPriority(ctypes.byref(made), 1, 0) == 0
        streams.append(made.value)
    return streams[0]

kind = _arrays.NumpyKind
kind.on_gpu, kind.stream, kind.device = True, staticmethod(stream), staticmethod(lambda x: device)
kind.num_sms = staticmethod(lambda x: _arrays._core.gpu_sms(device))
kind.is_capturing, kind.alignment = staticmethod(lambda: False), staticmethod(lambda x: 16)
kind.synchronize = staticmethod(lambda: None)
add_plan, _group.Group._add_plan = _group.Group._add_plan, lambda *_: None  # NumPy has no streams

stretto.init(timeout=60)
r, alive = stretto.rank(), []

def synchronize():
    stretto._world.group_of().session.record(False)

def ones(*shape):
    alive.append(np.ones(shape, np.float32))
    return alive[-1]

def launch(rows=16):
    alive.append(stretto.all_reduce(ones(rows, 64)))
    return alive[-1]

def works(*sizes):
    for rows in sizes:
        y = launch(rows)
        synchronize()
        assert (y == 2).all()

def refuse():
    stretto.all_reduce(np.ones((4, 4), np.int64))

def told(error, call):
    try:  # at the deadline it is a Fault that says so
        call()
    except error as said:
        assert "all_reduce: element type int64" in str(said), said
        assert r == 1 or "rank 1 has refused the call in this place" in str(said), said
        return
    raise SystemExit("not told")

def turn(name, rank):
    # Of this rank first.
    gate = pathlib.Path(os.environ["GATES"]) / name
    if r == rank:
        return gate.touch
    while not gate.exists():
        time.sleep(0.01)
    time.sleep(0.1)
    return lambda: None

"""
ALL_REFUSE = """
works(16)
for _ in range(9):
    try:
        refuse()
    except stretto.UserError:
        launch()
works(16, 16)
stretto.barrier()
"""
FIRST_CALLS = """
works(16)
for rows in (32, 48):
    told(stretto.UserError, refuse if r == 1 else lambda: launch(rows))
    works(16, rows)
# without rows, and of hosts
for call in (lambda: stretto.all_reduce(ones(0, 4)), stretto.barrier):
    told(stretto.UserError, refuse if r == 1 else call)
    works(16, 32)
"""
LAUNCHED_BEFORE = """
works(16, 32)
for again in range(12):  # whenever the other looks, the reason is there
    if r == 0:
        launch()
        turn(f"launched {again}", 0)()
        while True:
            try:
                stretto.barrier()
            except stretto.UserError as error:  # before the kernel has ended
                assert "rank 1 has refused" in str(error), error
            except stretto.Fault as error:
                assert "rank 1 has refused the call in this place: all_reduce:" in str(error), error
                break
    else:
        turn(f"launched {again}", 0)
        told(stretto.UserError, refuse)
    stretto.recover()
    works(16, 32, 48)
"""
REFUSED_BEFORE = """
works(16, 32)
for again in (False, True):
    if r == 1:
        told(stretto.UserError, refuse)
        turn(f"refused {again}", 1)()
        if again:  # the very call that the other makes for the one that was refused
            try:
                launch()
                synchronize()
                while True:
                    stretto.barrier()
            except stretto.Fault as error:
                assert "rank 1 has refused" in str(error), error
    else:
        turn(f"refused {again}", 1)
        told(stretto.Fault, launch)
    stretto.recover()
    works(16, 32, 48)
"""
BROKEN_OFF = """
works(16, 32)
launched = _group.Group.launch
for again in range(4):
    def breaks(self, *args, **kwargs):
        alive.append(args)  # NumPy gives memory back at once, which the kernel still writes
        launched(self, *args, **kwargs)
        raise MemoryError("none left")
    if r == 1:
        _group.Group.launch = breaks
    try:
        launch(32)
        assert r == 0
    except MemoryError:
        assert r == 1
    except stretto.Fault:
        assert r == 0
    _group.Group.launch = launched
    if again % 2:
        turn(f"broken off {again}", 1)()
    try:
        while True:  # until it is known here; what is computed in between is void
            launch(16)
            synchronize()
    except stretto.Fault as error:
        assert "rank 1 has broken off a call" in str(error) and "none left" in str(error), error
    stretto.recover()
    works(16, 32, 48)
"""
LITTLE_ROOM = """
warnings.simplefilter("ignore", RuntimeWarning)
kept = stretto._world.group_of().kept
for rows in [*range(16, 192, 16), 16, 32]:
    x = ones(2 * rows, 64)
    x[:] = np.repeat(np.arange(2) + 10.0 * r, rows)[:, None]
    for _ in range(2):
        y = stretto.all_to_all(x)
        synchronize()
        assert (y == np.repeat(r + 10.0 * np.arange(2), rows)[:, None]).all()
    works(16)
assert sum(e.bytes for e in kept._made) <= 16 << 20
assert 1 < len(kept._made) < 8
"""

# Of sizes that need no copies, which NumPy would make at once, before the launch has ended.
COLLECTIVES = """
def same(got, want):
    synchronize()
    assert (got == want).all(), (got, want)

functions = {"max": np.maximum, "product": np.multiply}
for dtype in (np.float32, np.int32):
    for shape in ((8, 128), (2, 1), (6, 35)):
        every = [np.random.default_rng(7 + rank).integers(-2, 3, shape).astype(dtype) for rank in range(2)]
        x = every[r]
        alive.append(x)
        for name, function in functions.items():
            want = function(*every)
            same(stretto.all_reduce(x, reduce_op=name), want)
            same(stretto.reduce_scatter(x, reduce_op=name), np.split(want, 2)[r])
        for root in range(2):
            for got, want in (
                (stretto.reduce(x, root, reduce_op="max"), np.maximum(*every)),
                (stretto.gather(x, root), np.concatenate(every)),
            ):
                synchronize()
                assert got is None if r != root else (got == want).all(), (dtype, shape, root)
            same(stretto.scatter(x, root), np.split(every[root], 2)[r])
            got = np.zeros_like(x)
            alive.append(got)
            if r == root:
                stretto.send(x)
            else:
                same(stretto.recv(got), every[root])
        if dtype == np.float32:
            for factor in (0.25, -3):
                want, how = factor * sum(every), {"reduce_op": "premul_sum", "factor": factor}
                same(stretto.all_reduce(x, **how), want)
                same(stretto.reduce_scatter(x, **how), np.split(want, 2)[r])
            whole = np.concatenate([e @ e.T for e in every], 1)  # [8, 2 * 8]
            for _ in range(3 if shape == (8, 128) else 0):
                same(stretto.matmul_all_gather(x, x.T), whole)
        rows = shape[0] // 2
        same(stretto.all_to_all(x, [rows] * 2, [rows] * 2), np.concatenate([np.split(e, 2)[r] for e in every]))
for elements in (1, 3, 7, 129):  # two of which are as wide as what travels at once
    every = [np.random.default_rng(7 + rank).integers(-99, 99, elements).astype(np.float16) for rank in range(2)]
    x = every[r]
    alive.append(x)
    same(stretto.all_reduce(x), sum(every))
    same(stretto.all_gather(x), np.concatenate(every))
    same(stretto.broadcast(x, 1), every[1])
assert not stretto._world.group_of().kept._rooms
"""

# What is whole steps of a row's scale arrives as it is.
PAYLOADS = """
def same(got, want):
    synchronize()
    assert (got == want).all(), (got, want)

every = [np.random.default_rng(7 + rank).integers(-126, 127, (8, 128)).astype(np.float32) for rank in range(2)]
for x in every:
    x[:, ::32] = 127
x = every[r]
alive.append(x)
for payload, block in (("int8", None), ("int8", 32), ("fp8", None)):
    how = {"payload": payload, "scale_block": block}
    if payload == "fp8":
        for part in every:
            part[:, ::2], part[:, 1::2] = 448, -96
    same(stretto.all_gather(x, **how), np.concatenate(every))
    rows = [np.split(e, 2)[r] for e in every]
    same(stretto.all_to_all(x, **how), np.concatenate(rows))
    same(stretto.reduce_scatter(x, **how), sum(rows))
    got = stretto.all_reduce(x, **how)
    synchronize()
    most = np.abs(sum(every)).max(1, keepdims=True) / (254 if payload == "int8" else 28)
    assert (np.abs(got - sum(every)) <= most * (1 + 1e-5)).all()
"""

FEWER_SMS = COLLECTIVES + """
x = ones(4096, 1024)  # more tiles than SMs
same(stretto.all_gather(x), np.ones((2 * 4096, 1024), np.float32))
proved = _group._compiled
assert len(proved) > 9 and {key[0] for key in proved} == {p.num_sms for p in proved.values()} == {114}
"""

# What a launch costs the host, by phases: the driver's calls under their names, on this thread while it is measured.
PHASES = """
stretto._core.phase_driver_calls()
works(16, 16)
phases = stretto._core.HostPhases()
begin = time.perf_counter()
for _ in range(3):
    launch()
whole_ns = 1e9 * (time.perf_counter() - begin)
spent = phases.finish()
launch()
synchronize()
times = {name: times for name, (times, _) in spent.items()}
assert times["cuLaunchKernelEx"] == times["launch: words of the ranks compared"] == 3, times
assert times["launch: arguments checked"] == times["launch: prepared one found"] == 3, times
assert "meeting of the hosts" not in times and 0 < sum(ns for _, ns in spent.values()) <= whole_ns
assert phases.finish() == {}
"""

# Plans of several launches and copies as graphs, in place of one call of the driver each.
GRAPHS = """
_group.Group._add_plan = add_plan
stretto._core.phase_driver_calls()
plans = stretto._world.group_of().plans
plans.take_numpy_for(device, stream(0))
rng = np.random.default_rng(5)  # the same on both ranks

def assign(out, x):  # of first calls, on the host
    assert cuda.cuStreamSynchronize(ctypes.c_void_p(stream(0))) == 0
    out[...] = x

kind.assign = staticmethod(assign)

def array(*shape):
    alive.append(np.zeros(shape, np.float32))
    return alive[-1]

def counted(call):
    phases = stretto._core.HostPhases()
    call()
    times = {name: times for name, (times, _) in phases.finish().items()}
    # Of the launch that the graph has, too: else a rank that makes another call is not noticed.
    assert times["launch: words of the ranks compared"] == 1, times
    return {name: n for name, n in times.items() if name.startswith("cu")}

# Different numbers of rows: copies around a launch, on memory that is the same each time.
class Gathered:
    def __init__(self, *sizes):
        self.sizes, self.x, self.out = sizes, array(sizes[r], 24), array(sum(sizes), 24)
        self.turns = 0

    def fill(self):
        synchronize()
        every = rng.integers(-99, 99, self.out.shape).astype(np.float32)
        self.x[:] = every[:self.sizes[0]] if r == 0 else every[self.sizes[0]:]
        self.out[:] = np.nan
        return every

    def call(self):
        stretto.all_gather(self.x, sizes=self.sizes, out=self.out)

gathered = [Gathered(5, 3), Gathered(2, 7)]
for turn in range(8):
    for one in gathered[: 1 + turn % 2]:
        every = one.fill()
        times = counted(one.call)
        synchronize()
        assert (one.out == every).all(), (turn, one.sizes, times)
        one.turns += 1  # a plan, the memory seen, the graph made
        if one.turns > 3:
            assert times.get("cuGraphLaunch") == 1 and "cuLaunchKernelEx" not in times, times
            assert not any(name.startswith("cuMemcpy") for name in times), times
    works(16)
# Without waiting between them, in turn with launches that no graph has.
for turn in range(6):
    want = [one.fill() for one in gathered]
    for again in range(3):
        for one in gathered:
            one.call()
            launch(16)
    synchronize()
    for one, every in zip(gathered, want):
        assert (one.out == every).all(), (turn, one.sizes)
# Other memory than before: as it comes, then a graph of its own.
one = gathered[0]
one.x, one.out = array(one.sizes[r], 24), array(sum(one.sizes), 24)
for turn in range(3):
    every = one.fill()
    times = counted(one.call)
    synchronize()
    assert (one.out == every).all() and times.get("cuGraphLaunch", 0) == (turn > 0), (turn, times)

# One launch, and the copy into memory that its peers read.
sent, got = array(6, 96), array(6, 96)
for turn in range(8):
    root = turn // 4
    synchronize()
    every = [rng.integers(-99, 99, sent.shape).astype(np.float32) for _ in range(2)]
    sent[:], got[:] = every[r], np.nan
    times = counted(lambda: stretto.broadcast(sent, root, out=got))
    synchronize()
    assert (got == every[root]).all(), (turn, times)
    if turn % 4 == 3:
        assert times.get("cuGraphLaunch") == 1 and "cuLaunchKernelEx" not in times, times
        assert not any(name.startswith("cuMemcpy") for name in times), times

# More memories than graphs are kept of a plan, and more graphs than are kept at all: made anew, and right.
made = launched = 0
every = one.fill()
memories = [(one.x, array(*one.out.shape)) for _ in range(20)]
for turn in range(540):
    one.x, one.out = memories[turn // 2 % len(memories)]
    times = counted(one.call)
    made += times.get("cuGraphInstantiateWithFlags", 0)
    launched += times.get("cuGraphLaunch", 0)
    if turn % 60 == 59:
        synchronize()
        for _, out in memories if turn > 120 else ():
            assert (out == every).all(), turn
            out[:] = np.nan
assert made == launched == 270, (made, launched)

# Both layers of experts: tables, then a launch whose copy engines send and whose kernel waits for the other rank.
def half(*shape):
    alive.append(rng.integers(-3, 4, shape).astype(np.float16))
    return alive[-1]

tokens, hidden, ffn, experts = 16, 64, 32, 4
x, down = half(2, tokens // 2, hidden), half(2, experts, hidden, ffn)
gate, up = (half(2, experts, ffn, hidden) for _ in range(2))
chosen = np.stack([rng.permutation(experts)[:2] for _ in range(tokens)]).astype(np.int32)
weights = np.full((tokens, 2), 0.5, np.float32)
alive += [chosen, weights]
out = np.zeros((tokens // 2, hidden), np.float16)

def layer():
    stretto.moe_layer(x[r], *(w[r].transpose(0, 2, 1) for w in (gate, up, down)), chosen, weights, out=out)

whole = x.reshape(tokens, hidden).astype(np.float32)
want = np.zeros((tokens, hidden), np.float32)
for t in range(tokens):
    for e in chosen[t]:
        for part in range(2):
            g, u = (w[part, e].astype(np.float32) @ whole[t] for w in (gate, up))
            h = (g / (1 + np.exp(-g)) * u).astype(np.float16).astype(np.float32)
            want[t] += 0.5 * (down[part, e].astype(np.float32) @ h)
want = np.split(want, 2)[r]
for turn in range(6):
    synchronize()
    out[:] = np.nan
    phases = stretto._core.HostPhases()
    layer()
    times = {name: n for name, (n, _) in phases.finish().items()}
    synchronize()
    assert np.abs(out - want).max() <= 0.02 * np.abs(want).max(), (turn, np.abs(out - want).max(), np.abs(want).max())
    if turn > 2:
        assert times["cuGraphLaunch"] == 1 and "cuLaunchKernelEx" not in times, times
        assert times["launch: words of the ranks compared"] == 2, times
"""

# What is made ahead is what first calls launch, with symmetric memory among it.
WARMED = """
def half(*shape):
    alive.append(np.random.default_rng(5).integers(-3, 4, shape).astype(np.float16))
    return alive[-1]

x, gate, down = half(8, 64), half(4, 32, 64), half(4, 64, 32)
chosen = np.tile(np.array([[0, 1], [2, 3]], np.int32), (8, 1))
weights = np.full((16, 2), 0.5, np.float32)
alive += [chosen, weights]

def calls():
    alive.append(stretto.all_gather(x))
    alive.append(stretto.moe_layer(x, *(w.transpose(0, 2, 1) for w in (gate, gate, down)), chosen, weights))

before = stretto.warm_up(calls)
known = set(_group._compiled)
assert before == len(known) > 1, (before, known)
calls()
synchronize()
assert set(_group._compiled) == known, set(_group._compiled) - known
"""


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    "code",
    [COLLECTIVES, PAYLOADS, PHASES, GRAPHS, FEWER_SMS, WARMED, ALL_REFUSE]
    + [FIRST_CALLS, LAUNCHED_BEFORE, REFUSED_BEFORE, BROKEN_OFF, LITTLE_ROOM],
)
def test_on_simulated_gpus(code, root, tmp_path):
    build = os.environ.get("STRETTO_BUILD") or root / "build"
    library = os.path.join(build, "simulated_gpu", "libcuda.so.1")
    if not os.path.exists(library):
        pytest.skip("simulated GPUs are not built")
    variables = {
        "LD_LIBRARY_PATH": f"{os.path.dirname(library)}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "STRETTO_NVRTC": library,
        "GATES": str(tmp_path),
    }
    if code is LITTLE_ROOM:
        variables["STRETTO_KEPT_MB"] = "16"
    if code is FEWER_SMS:
        variables["STRETTO_SIMULATED_SMS"] = "114"
    end = "\nstretto.finalize()\nprint('good')\n"
    ends = finish(start(2, BEGIN + code + end, **variables))
    for rank, (exit_code, output, errors) in enumerate(ends):
        assert (exit_code, output) == (0, "good\n"), f"rank {rank}: {errors}"
