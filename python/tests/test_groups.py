"""Worlds of some of the ranks: several in use at a time, each against NumPy on its members' arrays."""

import inspect
import os
import re
import signal
import threading
import time

import numpy as np
import pytest
from test_processes import finish, start

import stretto
from stretto import ops, testing

X = np.ones((4, 4), np.float32)
# Those that each rank calls by itself; ep_combine and the second layers work in the group that made
# their tables.
ALONE = {
    "grouped_matmul",
    "moe_route",
    "packed_attention",
    "paged_attention",
    "paged_decode",
    "scaled_dot_product_attention",
}
OF_THEIR_TABLES = {"ep_combine", "grouped_matmul_all_reduce", "grouped_matmul_reduce_scatter"}


def test_every_collective_operator_takes_a_group():
    for name in ops.__all__:
        takes = "group" in inspect.signature(getattr(ops, name)).parameters
        assert takes == (name not in ALONE | OF_THEIR_TABLES), name


def members(size, axes):
    """{axis: the ranks of each rank's group} of a mesh, by NumPy."""
    grid = np.arange(size).reshape(tuple(axes.values()))
    found = {}
    for d, axis in enumerate(axes):
        lines = np.moveaxis(grid, d, -1).reshape(-1, axes[axis])
        found[axis] = [next(line.tolist() for line in lines if r in line) for r in range(size)]
    return found


@pytest.mark.parametrize("axes", [{"dp": 2, "tp": 2}, {"dp": 3, "tp": 2}, {"pp": 2, "cp": 1, "tp": 2}])
def test_mesh(rng, axes):
    size = int(np.prod(list(axes.values())))
    groups = members(size, axes)
    x, w = rng.standard_normal((size, 12, 8)), rng.standard_normal((size, 8, 5))

    def body():
        r, made = stretto.rank(), stretto.mesh(**axes)
        assert list(made) == list(axes)
        results = {}
        for turn in range(3):  # the first makes programs, the others follow plans
            for axis, group in made.items():
                assert (group.name, group.size) == (axis, axes[axis])
                assert group.ranks == groups[axis][r] and group.ranks[group.rank] == r
                assert stretto.rank(axis) == group.rank
                assert stretto.world_size(group) == axes[axis]
                given = (group, axis)[turn % 2]
                results[axis] = (
                    stretto.all_gather(x[r], group=given),
                    stretto.all_reduce(x[r], reduce_op="avg", group=given),
                    stretto.reduce_scatter(x[r], group=given),
                    stretto.broadcast(x[r], group.size - 1, group=given),
                    stretto.all_to_all(x[r], group=given),
                    stretto.all_gather_matmul(x[r], w[r], group=given),
                    stretto.matmul_reduce_scatter(x[r], w[r], group=given),
                    stretto.matmul_all_reduce(x[r], w[r], group=given),
                )
        return results, stretto.all_reduce(x[r])

    for r, (results, total) in enumerate(testing.run(size, body)):
        np.testing.assert_allclose(total, x.sum(0), rtol=1e-12)
        for axis, got in results.items():
            of = groups[axis][r]
            at, parts = of.index(r), 12 // len(of)
            rows = slice(at * parts, (at + 1) * parts)
            product = sum(x[i] @ w[i] for i in of)
            want = (
                np.concatenate(x[of]),
                x[of].mean(0),
                x[of].sum(0)[rows],
                x[of[-1]],
                np.concatenate([x[i][rows] for i in of]),
                np.concatenate(x[of]) @ w[r],
                product[rows],
                product,
            )
            for a, b in zip(got, want):
                np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_groups_of_any_ranks_one_in_another(rng):
    """Ranks 1 and 3 are in all of them; who is not in a group calls new_group, too."""
    x, lists = rng.standard_normal((4, 6, 3)).astype(np.float32), [[3, 1], [0, 1, 3], [1, 2, 3], [1, 3]]

    def body():
        r = stretto.rank()
        made = [stretto.new_group(ranks) for ranks in lists]
        names = [group.name for group in made]
        assert names == ["ranks 1, 3", "ranks 0, 1, 3", "ranks 1, 2, 3", "ranks 1, 3 (2)"]
        sums = [np.zeros_like(x[r])] * len(made)
        for _ in range(5):
            for i, group in enumerate(made):
                if group.rank < 0:
                    assert r not in group.ranks
                    with pytest.raises(stretto.UserError, match=f"rank {r} is not among them"):
                        stretto.all_reduce(x[r], group=group)
                    with pytest.raises(stretto.UserError, match="is not among them"):
                        stretto.all_reduce(x[r], group=group.name)
                else:
                    assert group.ranks[group.rank] == r
                    sums[i] = stretto.all_reduce(x[r], group=group)
        for group in made:
            stretto.finalize(group)
            with pytest.raises(stretto.UserError, match="after finalize"):
                stretto.all_reduce(x[r], group=group.name)
        return sums

    for r, sums in enumerate(testing.run(4, body)):
        for ranks, got in zip(lists, sums):
            want = x[sorted(ranks)].sum(0) if r in ranks else np.zeros((6, 3))
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_attention_and_experts_within_groups(rng):
    """As the same calls in a world of two ranks, bit for bit."""
    q, k = rng.random((4, 4, 2, 8), np.float32), rng.random((4, 4, 1, 8), np.float32)
    x, gate = rng.random((4, 6, 8), np.float32), rng.random((4, 8), np.float32)
    b, down = rng.random((4, 8, 8), np.float32), rng.random((4, 8, 8), np.float32)
    cache = rng.random((4, 1, 8, 8), np.float32)

    def layers(r, group):
        weights, chosen = stretto.moe_route(x[r], gate, 2)
        own = weights, chosen
        weights, chosen = (stretto.all_gather(t, group=group) for t in own)
        h, tiles = stretto.all_gather_grouped_matmul(x[r], b, chosen, group=group)
        d = stretto.ep_dispatch(x[r], own[1], own[0], 4, group=group)
        back = stretto.ep_combine(d.x[d.tokens], d)
        routed = stretto.moe_route(x[0], gate, 2, tables=True)
        y = stretto.grouped_matmul(x[0], b, routed.offsets, tokens=routed.tokens)
        return (
            stretto.sequence_attention(q[r], k[r], k[r], group=group),
            stretto.ring_attention(q[r], k[r], k[r], group=group),
            stretto.flash_decode(q[0], cache[r], cache[r], 12, block=4, group=group),
            np.array(stretto.zigzag(8, group=group)),
            stretto.grouped_matmul_reduce_scatter(h, down, tiles, weights),
            stretto.grouped_matmul_all_reduce(h, down, tiles, weights),
            stretto.moe_layer(x[r], b, b, down, chosen, weights, group=group),
            stretto.ep_moe_layer(x[r], *(w[:2] for w in (b, b, down)), own[1], own[0], 4, group=group),
            back,
            stretto.moe_combine(y, routed.slots, routed.weights, group=group),
            stretto.matmul_all_to_all(x[r], gate.T, group=group),
            stretto.all_to_all_matmul(x[r], np.tile(gate.T, (2, 1)), group=group),
            stretto.all_reduce_add_rms_norm(x[r], x[0], x[0, 0], group=group)[0],
        )

    def of_pair():
        return layers(stretto.rank() + 2 * number, None)

    def of_mesh():
        stretto.mesh(dp=2, tp=2)
        return layers(stretto.rank(), "tp")

    got = testing.run(4, of_mesh)
    for number in range(2):
        for at, want in enumerate(testing.run(2, of_pair)):
            for a, b_ in zip(got[2 * number + at], want):
                np.testing.assert_array_equal(a, b_)


def test_symmetric_memory_is_a_groups_own():
    def body():
        r, tp = stretto.rank(), stretto.mesh(dp=2, tp=2)["tp"]
        mine = stretto.symm_mem.empty(2, 3, group="tp")
        mine[...] = r
        assert tp.is_symmetric(mine.ctypes.data)
        assert not stretto._world.group_of().is_symmetric(mine.ctypes.data)
        here, everywhere = stretto.all_gather(mine, group=tp), stretto.all_gather(mine)
        stretto.finalize(tp)
        return here[:, 0].tolist(), everywhere[:, 0].tolist(), mine[0, 0]

    for r, got in enumerate(testing.run(4, body)):
        pair = [2 * (r // 2)] * 2 + [2 * (r // 2) + 1] * 2
        assert got == (pair, [0, 0, 1, 1, 2, 2, 3, 3], r)


def test_a_program_of_its_own_in_a_group(root):
    ring = stretto.load(root / "examples" / "03_ring_pass.cc")

    def body():
        stretto.mesh(dp=2, tp=2)
        rows = np.full((16, 32), stretto.rank() + 1, np.float32)
        by_name = stretto.Program.parse(str(ring.program(2)))(rows, group="dp")
        with pytest.raises(stretto.UserError, match="written for 2 ranks"):
            ring.program(2)(rows)
        return ring(rows)[0, 0], ring(rows, group="tp")[0, 0], by_name[0, 0]

    got = testing.run(4, body)
    assert got == [(10, 3, 4), (10, 3, 6), (10, 7, 4), (10, 7, 6)]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: stretto.new_group([]), "one at least"),
        (lambda: stretto.new_group([0, 0]), "each rank once"),
        (lambda: stretto.new_group([0, 2]), "ranks 0 to 1"),
        (lambda: stretto.new_group([-1]), "ranks 0 to 1"),
        (lambda: stretto.new_group("tp"), "numbers of ranks"),
        (lambda: stretto.new_group(3), "numbers of ranks"),
        (lambda: stretto.new_group([0], name="taken"), "there is a group named 'taken'"),
        (lambda: stretto.mesh(dp=2, tp=2), "mesh\\(dp=2, tp=2\\): there are 2 ranks"),
        (lambda: stretto.mesh(dp=2, tp=0), "positive number"),
        (lambda: stretto.mesh(), "there are 2 ranks"),
        (lambda: stretto.mesh(taken=2), "there is a group named 'taken'"),
        (lambda: stretto.all_reduce(X, group="no"), "there is no group 'no': new_group"),
        (lambda: stretto.all_gather(X, group=3), "group is int: need what new_group"),
        (lambda: stretto.symm_mem.empty(4, group="no"), "there is no group 'no'"),
        (lambda: stretto.barrier("no"), "there is no group 'no'"),
        (lambda: stretto.recover("no"), "there is no group 'no'"),
        (lambda: stretto.broadcast(X, 2, group="taken"), "root 2 of 2"),
    ],
)
def test_bad_requests(call, message):
    def body():
        stretto.new_group([0, 1], name="taken")
        with pytest.raises(stretto.UserError, match=message):
            call()
        return stretto.all_reduce(X, group="taken"), stretto.all_reduce(X)

    for both in testing.run(2, body):
        for got in both:
            np.testing.assert_array_equal(got, 2 * X)


@pytest.mark.parametrize(
    "mine, theirs, named",
    [
        ([0, 1], [0], r"new_group\(\[0, 1\].*new_group\(\[0\]"),
        ([0], [1], r"new_group\(\[0\].*new_group\(\[1\]"),
        (None, [0, 1], r"mesh\(dp=2\), dp.*new_group"),
    ],
)
def test_ranks_that_disagree_about_a_group(mine, theirs, named):
    errors = [None, None]

    def body():
        r = stretto.rank()
        with pytest.raises(stretto.UserError) as caught:
            ranks = (mine, theirs)[r]
            stretto.mesh(dp=2) if ranks is None else stretto.new_group(ranks)
        errors[r] = str(caught.value)
        return stretto.all_reduce(X, group=stretto.new_group([0, 1]))

    for got in testing.run(2, body):
        np.testing.assert_array_equal(got, 2 * X)
    assert errors[0] == errors[1] and re.search(named, errors[0]), errors


def test_ranks_of_a_group_that_disagree_get_the_same_error_and_others_none():
    errors = {}

    def body():
        r = stretto.rank()
        stretto.mesh(dp=2, tp=2)
        stretto.all_reduce(X, group="tp")
        try:
            stretto.all_reduce(X[: 1 + r] if r < 2 else X, group="tp")
        except stretto.UserError as error:
            errors[r] = str(error)
        return stretto.all_reduce(X, group="tp"), stretto.all_reduce(X, group="dp")

    for both in testing.run(4, body):
        for got in both:
            np.testing.assert_array_equal(got, 2 * X)
    assert set(errors) == {0, 1} and errors[0] == errors[1]


def test_use_before_and_after():
    with pytest.raises(stretto.UserError, match="before init|after finalize"):
        stretto.new_group([0])
    stretto.init()
    group = stretto.new_group([0], name="one")
    stretto.all_reduce(X, group=group)
    stretto.finalize(group)
    for given in (group, "one"):
        with pytest.raises(stretto.UserError, match="'one': used after finalize"):
            stretto.all_reduce(X, group=given)
    again = stretto.new_group([0], name="one")
    np.testing.assert_array_equal(stretto.all_reduce(X, group="one"), X)
    with pytest.raises(stretto.UserError, match="'one': used after finalize"):
        stretto.all_reduce(X, group=group)
    child = os.fork()
    if child == 0:
        try:
            stretto.all_reduce(X, group=again)
            os._exit(1)
        except stretto.UserError as error:
            os._exit(0 if "fork" in str(error) else 2)
    assert os.waitpid(child, 0)[1] == 0
    stretto.finalize()
    for given in (again, "one"):
        with pytest.raises(stretto.UserError, match="after finalize"):
            stretto.all_reduce(X, group=given)


def test_a_fault_stays_in_its_group():
    gate = threading.Barrier(4)

    def body():
        r = stretto.rank()
        stretto.mesh(dp=2, tp=2)
        stretto.all_reduce(X, group="tp")
        if r == 0:
            with pytest.raises(stretto.Fault) as caught:
                stretto.all_reduce(X, group="tp")
            assert caught.value.record["waited_for"] == 1
        elif r > 1:
            stretto.all_reduce(X, group="tp")
        gate.wait(20)
        along = stretto.all_reduce(X, group="dp")
        if r < 2:
            with pytest.raises(stretto.Fault):
                stretto.all_reduce(X, group="tp")
            gate.wait(20)
            stretto.recover("tp")
        else:
            gate.wait(20)
        return along, stretto.all_reduce(X, group="tp"), stretto.all_reduce(X) / 2

    for results in testing.run(4, body, timeout=1):
        for got in results:
            np.testing.assert_array_equal(got, 2 * X)


@pytest.mark.parametrize("repeated", [False, True])
def test_a_fault_in_a_group_says_who_that_is_among_all(repeated):
    gate = threading.Barrier(2)

    def body():
        odd = stretto.new_group([1, 3], name="odd")
        if odd.rank < 0:
            return
        if repeated:
            stretto.all_reduce(X, group=odd)
            stretto.all_reduce(X, group=odd)
        if odd.rank == 0:
            with pytest.raises(stretto.Fault) as caught:
                stretto.all_reduce(X, group=odd)
            record, text = caught.value.record, str(caught.value)
            assert (record["rank"], record["waited_for"], record["group"]) == (0, 1, "odd")
            assert text.endswith("(in group 'odd': its rank 0 is rank 1 of all, its rank 1 is rank 3 of all)")
        gate.wait(20)
        stretto.recover(odd)

    testing.run(4, body, timeout=1)


def test_threads_of_a_process_with_a_group_each():
    """One waits for a rank in its group, the other goes on in another."""
    for rank, (code, _, said) in enumerate(
        finish(
            start(
                2,
                """
                import threading, time, numpy as np, stretto
                stretto.init()
                r, x = stretto.rank(), np.ones(4, np.float32)
                slow, quick = (stretto.new_group([0, 1]) for _ in range(2))
                stretto.all_reduce(x, group=slow)
                got, done = [], threading.Event()

                def other():
                    got.append(stretto.all_reduce(x, group=slow)[0])
                    done.set()

                thread = threading.Thread(target=other)
                if r == 0:
                    thread.start()
                    time.sleep(0.2)
                for _ in range(100):
                    assert (stretto.all_reduce(x, group=quick) == 2).all()
                if r == 0:
                    assert not done.is_set()
                stretto.all_reduce(x, group=quick)  # rank 1 joins only after rank 0 has looked
                if r == 1:
                    thread.start()
                stretto.barrier()
                thread.join()
                assert got == [2]
                """,
            )
        )
    ):
        assert code == 0, f"rank {rank}: {said}"


def test_a_process_that_dies_concerns_its_groups_alone():
    processes = start(
        4,
        """
        import sys, numpy as np, stretto
        stretto.init()
        r, x = stretto.rank(), np.ones(4, np.float32)
        groups = stretto.mesh(dp=2, tp=2)
        for group in (None, *groups.values()):
            stretto.all_reduce(x, group=group)
        print("ready", flush=True)
        if r == 3:
            sys.stdin.readline()
        try:
            while True:
                stretto.all_reduce(x)
        except stretto.Fault as fault:
            assert "rank 3" in str(fault), fault
        outcome = []
        for axis, group in groups.items():
            try:
                for _ in range(20):
                    assert (stretto.all_reduce(x, group=group) == 2).all()
                outcome.append("good")
            except stretto.Fault as fault:
                outcome.append("rank 1" in str(fault))
        print(outcome)
        """,
    )
    assert processes[3].stdout.readline() == "ready\n"
    time.sleep(0.1)
    processes[3].send_signal(signal.SIGKILL)
    want = ["['good', 'good']", "[True, 'good']", "['good', True]"]
    for rank, (code, output, errors) in enumerate(finish(processes)[:3]):
        assert (code, output) == (0, f"ready\n{want[rank]}\n"), f"rank {rank}: {errors}"


def test_groups_come_and_go_and_leave_nothing():
    code = """
    import gc, os, numpy as np, stretto
    stretto.init()
    x = np.ones((4, 6), np.float32)

    def cycle(named):
        tp = stretto.mesh(**named)["tp"]
        mine = stretto.symm_mem.empty(4, 6, group=tp)
        assert (stretto.all_reduce(x, group=tp) == 2).all() and not stretto.all_gather(mine, group=tp).any()
        for name in named:
            stretto.finalize(name)

    def state():
        gc.collect()
        maps = open("/proc/self/maps", encoding="utf-8").read().count("stretto ")
        return maps, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    for _ in range(3):
        cycle({"dp": 1, "tp": 2})
    stretto.barrier()
    before = state()
    for _ in range(30):
        cycle({"dp": 1, "tp": 2})
    stretto.barrier()
    assert state() == before, (before, state())
    """
    for rank, (code_of_rank, _, errors) in enumerate(finish(start(2, code))):
        assert code_of_rank == 0, f"rank {rank}: {errors}"


def test_trace_of_all_groups(tmp_path):
    import json

    stretto.init()
    try:
        stretto.new_group([0], name="one")
        with stretto.trace(tmp_path / "t.json"):
            stretto.all_reduce(X)
            stretto.all_gather(X, group="one")
    finally:
        stretto.finalize()
    text = json.dumps(json.loads((tmp_path / "t.json").read_text(encoding="utf-8")))
    assert "group one, rank 0" in text and "all_gather" in text and "all_reduce" in text
