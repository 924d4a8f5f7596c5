"""If these fail, a first call takes long although it was prepared, or preparing it does what only a call
should."""

import contextlib
import os
import threading

import numpy as np
import pytest

import stretto
from stretto import _group, testing
from stretto._arrays import TorchKind


def made(*shape, dtype="float32"):
    return np.ones(shape, dtype)


def layer():
    """Of every kind: rows and columns, ordinary and symmetric arrays, workspaces, tables."""
    x, w = made(12, 10), made(6, 10)
    stretto.all_gather_matmul(x, w.T)
    stretto.all_gather_matmul(x, [w.T, made(10, 4)])
    stretto.matmul_reduce_scatter(x, w.T)
    stretto.matmul_all_reduce(stretto.symm_mem.empty(12, 10), w.T)
    stretto.matmul_all_gather(x, w.T)
    stretto.all_reduce(x, reduce_op="premul_sum", factor=0.5)
    stretto.all_to_all(x, [6, 6], [6, 6])
    stretto.all_to_all(x, None, [4, 8])
    stretto.reduce(x, 1)
    stretto.batch_send_recv([(x[0], 1 - stretto.rank())], [(np.empty(10, np.float32), 1 - stretto.rank())])
    weights, chosen = stretto.moe_route(x, made(4, 10), 2)
    up, down = made(4, 10, 8), made(4, 8, 10)
    stretto.moe_layer(x, up, up, down, np.tile(chosen, (2, 1)), np.tile(weights, (2, 1)))
    stretto.ep_moe_layer(x, up[:2], up[:2], down[:2], chosen, weights, 4)
    stretto.ring_attention(*(made(2, 8, 4) for _ in range(3)))
    stretto.packed_attention(made(4, 2, 8), made(4, 2, 8), made(4, 2, 8), np.array([0, 4], np.int32))
    stretto.matmul_all_to_all(x, made(10, 6))


@pytest.fixture(autouse=True)
def empty_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("STRETTO_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_group, "_compiled", {})
    monkeypatch.setattr(_group, "_programs", {})
    return tmp_path


def proofs(directory):
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_first_calls_prove_nothing_then(empty_caches, monkeypatch):
    said = []
    count = stretto.warm_up(layer, world_size=2, progress=lambda *step: said.append(step))
    assert count == len(said) == len(_group._compiled) > 12
    assert [step[:2] for step in said] == [(i + 1, count) for i in range(count)]
    assert "gemm_ag" in {step[2] for step in said}
    known, kept = set(_group._compiled), proofs(empty_caches)
    assert len(kept) >= count // 2
    testing.run(2, layer)
    assert set(_group._compiled) == known
    monkeypatch.setattr(_group, "_compiled", {})  # as in another process
    testing.run(2, layer)
    assert set(_group._compiled) == known and proofs(empty_caches) == kept


def test_nothing_runs_and_worlds_stay_as_they_are():
    out, threads = made(3), threading.active_count()

    def body():
        before = stretto.rank(), stretto.world_size()
        stretto.warm_up(lambda: stretto.all_reduce(out, out=out), world_size=64)
        assert (stretto.rank(), stretto.world_size()) == before
        return stretto.all_reduce(made(2))

    for got in testing.run(2, body):
        assert (got == 2).all()
    assert (out == 1).all() and threading.active_count() == threads


def test_groups_by_name_and_the_world_as_it_is():
    sizes = []

    def calls():
        sizes.append((stretto.world_size(), stretto.world_size("tp"), stretto.rank("tp")))
        stretto.all_gather(made(3), group="tp")

    def body():
        return stretto.warm_up(calls, groups={"tp": 2})

    assert testing.run(3, body) == [1] * 3
    assert sizes == [(3, 2, 0)] * 3


def test_errors_are_those_of_the_calls():
    with pytest.raises(stretto.UserError, match="all_reduce: reduce_op 'bor'"):
        stretto.warm_up(lambda: stretto.all_reduce(made(3), reduce_op="bor"), world_size=2)
    with pytest.raises(stretto.UserError, match="a world of 65 ranks; need 1 to 64"):
        stretto.warm_up(lambda: None, world_size=65)


def test_what_calls_begin_to_compile_they_launch(monkeypatch):
    torch = pytest.importorskip("torch")
    begun, launched = [], []

    def launch(_, kind, key, make, names, arrays, extents, *, said, at_bounds=False):
        launched.append((kind.num_sms(arrays[0]), key, at_bounds))

    monkeypatch.setattr(TorchKind, "num_sms", staticmethod(lambda _: 132))
    monkeypatch.setattr(_group, "_begin", lambda name, make: begun.append((name, make(132).name)))
    monkeypatch.setattr(_group.Group, "launch", launch)

    def layers():
        x, wide = torch.ones(6, 64).bfloat16(), torch.ones(4, 64, 32).bfloat16()
        chosen, weights = torch.zeros(6, 2, dtype=torch.int32), torch.ones(6, 2)
        of_all, weights_of_all = torch.zeros(12, 2, dtype=torch.int32), torch.ones(12, 2)
        for residual in (None, x):
            stretto.moe_layer(x, wide, wide, wide.mT, of_all, weights_of_all, residual=residual)
        for up in (None, wide):
            stretto.all_gather_grouped_matmul(x, wide, of_all, up=up)
        stretto.ep_dispatch(x, chosen, weights, 4)

    testing.run(2, layers)
    assert {made for _, made in begun} == {"moe_layer", "ag_grouped_gemm", "ep_place"}
    assert len({name for name, _ in begun}) == 5
    assert {name for name, _ in begun} <= set(launched)


class Slow:
    """Stands for programs: counts how often it is made, and fails so many times first."""

    name = "slow"

    def __init__(self, failures=0):
        self.failures, self.made, self.go = failures, 0, threading.Event()

    def __call__(self, sms):
        self.made += 1
        assert self.go.wait(30)
        return self

    def compile(self, **_):
        if self.made <= self.failures:
            raise stretto.UserError(f"failure {self.made}")
        return self


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_who_comes_while_a_program_is_compiled_waits_for_it(failures):
    name, slow, got = (132, ("slow",), True), Slow(failures), []
    _group._begin(name, slow)
    _group._begin(name, slow)

    def ask():
        try:
            got.append(_group._compile(name, slow))
        except stretto.UserError as error:
            got.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    slow.go.set()
    for thread in threads:
        thread.join(30)
    # What the thread ahead raises nobody sees; each who asks tries again until one has it.
    assert got.count(slow) == 3 - max(failures - 1, 0)
    assert slow.made == failures + 1 and not _group._under_way
    assert [text for text in got if text is not slow] == ["failure 2"] * max(failures - 1, 0)


def test_where_no_thread_is_left_the_launch_compiles(monkeypatch):
    name, slow = (132, ("slow",), True), Slow()
    slow.go.set()

    def start(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        _group._begin(name, slow)
    got = run_for(30, lambda: _group._compile(name, slow))
    assert got == [slow] and slow.made == 1 and not _group._under_way


@pytest.mark.parametrize("line", range(2))
def test_an_interrupted_first_call_leaves_nothing_under_way(monkeypatch, line):
    """A signal's handler raises between any two lines."""
    name, slow = (132, ("interrupted", line), True), Slow()
    slow.go.set()
    calls = iter([KeyboardInterrupt, None, None])

    def interrupted(*given):
        error = next(calls)
        if error:
            raise error
        return made_by[line](*given)

    made_by = [_group._make, _group._proved]
    monkeypatch.setattr(_group, made_by[line].__name__, interrupted)
    with pytest.raises(KeyboardInterrupt):
        _group._compile(name, slow)
    assert run_for(30, lambda: _group._compile(name, slow)) == [slow]
    assert not _group._under_way


def run_for(seconds, call):
    """What it returns, in a list; nothing where it does not end."""
    got = []
    thread = threading.Thread(target=lambda: got.append(call()), daemon=True)
    thread.start()
    thread.join(seconds)
    return got


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.parametrize("held", [False, True])
def test_a_fork_does_not_wait_for_threads_that_it_has_not(held):
    """Neither for what they compile, nor for the lock."""
    name, slow = (132, ("forked", held), True), Slow()
    _group._begin(name, slow)
    with _group._compiled_lock if held else contextlib.nullcontext():
        pid = os.fork()
        if pid == 0:
            slow.go.set()
            os._exit(0 if run_for(30, lambda: _group._compile(name, slow)) == [slow] else 1)
    slow.go.set()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert run_for(30, lambda: _group._compile(name, slow)) == [slow]


def test_what_calls_do_between_collectives():
    """Barriers and recoveries are nothing, and groups are those of the first rank."""
    seen = []

    def calls():
        stretto.barrier()
        groups = stretto.mesh(dp=2, tp=3)
        seen.append([groups[axis].ranks for axis in ("dp", "tp")])
        mine, other = stretto.new_group([4, 0]), stretto.new_group([2, 3], name="others")
        seen.append((mine.rank, mine.ranks, other.rank))
        stretto.all_gather(made(6, 5), group="tp")
        stretto.all_gather(made(6, 5), group=mine)
        stretto.all_reduce(made(6, 5), group="dp", async_op=True).wait()
        stretto.barrier(mine)
        stretto.recover()

    for _ in range(2):
        assert stretto.warm_up(calls, world_size=6) == 3
    assert seen == [[[0, 3], [0, 1, 2]], (0, [0, 4], -1)] * 2
    known = set(_group._compiled)

    def ranks():
        groups = stretto.mesh(dp=2, tp=3)
        stretto.all_gather(made(6, 5), group=groups["tp"])
        stretto.all_reduce(made(6, 5), group=groups["dp"])

    testing.run(6, ranks, timeout=60)
    assert set(_group._compiled) == known


def nothing():
    pass


@pytest.mark.parametrize(
    "arguments, says",
    [
        ({"calls": None}, "calls is None, need a function"),
        ({"calls": nothing, "progress": 3}, "progress is 3, need a function"),
        ({"calls": nothing, "groups": ["tp"]}, r"groups is \['tp'\], need sizes by name"),
        ({"calls": nothing, "groups": {"tp": "2"}}, "the size of group 'tp' is '2', need a whole number"),
        ({"calls": nothing, "groups": {"tp": 2.5}}, "the size of group 'tp' is 2.5, need a whole number"),
        ({"calls": nothing, "groups": {3: 2}}, "the name of a group is 3, need a str"),
        ({"calls": nothing, "groups": {"": 2}}, "a group without a name"),
        ({"calls": nothing, "groups": {"tp": 0}}, "a world of 0 ranks"),
        ({"calls": lambda: stretto.trace("x.json").__enter__(), "world_size": 2}, "trace.. within warm_up"),
        ({"calls": stretto.init, "world_size": 2}, "init.. within warm_up"),
        ({"calls": lambda: stretto.new_group([0, 2]), "world_size": 2}, "the world has the ranks 0 to 1"),
        ({"calls": lambda: stretto.mesh(tp=3), "world_size": 2}, r"mesh\(tp=3\): there are 2 ranks"),
    ],
)
def test_what_cannot_be_warmed(arguments, says):
    with pytest.raises(stretto.UserError, match=says):
        stretto.warm_up(**arguments)
    assert not _group._compiled


@pytest.mark.parametrize("size", ["abc", "-1", "2.5", "0"])
def test_a_number_of_ranks_from_the_environment(size, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(stretto.UserError, match="warm_up: (WORLD_SIZE is|a world of)"):
        stretto.warm_up(nothing)


def test_a_group_of_torch_is_not_met_by_a_warm_up():
    torch = pytest.importorskip("torch")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(stretto.UserError, match="torch.distributed group within warm_up"):
            stretto.warm_up(lambda: stretto.new_group(torch.distributed.group.WORLD), world_size=2)
    finally:
        torch.distributed.destroy_process_group()
