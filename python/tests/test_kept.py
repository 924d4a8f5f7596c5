"""What calls of a shape need is kept up to a limit, then goes, what was not used for longest
first, on all ranks alike; calls are right before and after."""

import threading
import types
import warnings

import numpy as np
import pytest

import stretto
from stretto import testing
from test_processes import finish, start


def kept():
    return stretto._world.group_of().kept


def kept_bytes():
    """Of programs made ready and arrays of calls."""
    of = kept()
    return sum(e.bytes for e in of._made) + sum(x.size_bytes for x in of._arrays.values())


pytestmark = pytest.mark.filterwarnings("ignore:stretto makes a program ready again")


@pytest.fixture
def little(monkeypatch):
    """A megabyte."""
    monkeypatch.setenv("STRETTO_KEPT_MB", "1")
    return 1 << 20


def exchange(rows, columns=64):
    """all_to_all of so many rows for each rank, checked."""
    r, size = stretto.rank(), stretto.world_size()
    x = np.repeat(np.arange(size) + 10.0 * r, rows).astype(np.float32)[:, None] * np.ones(columns)
    got = stretto.all_to_all(x.astype(np.float32))
    want = np.repeat(r + 10.0 * np.arange(size), rows)[:, None] * np.ones(columns)
    np.testing.assert_array_equal(got, want)


def multiply(rows, weight=np.ones((8, 4), np.float32)):
    a = np.ones((rows * stretto.world_size(), 8), np.float32)
    got = stretto.matmul_reduce_scatter(a, weight)
    np.testing.assert_array_equal(got, np.full((rows, 4), 8.0 * stretto.world_size()))


def test_many_sizes_take_no_more_than_the_limit(little):
    most = [0, 0]

    def body():
        r, made = stretto.rank(), 0
        for rows in [*range(1, 200, 7), *range(1, 200, 7)]:
            exchange(rows)
            made = max(made, max(e.bytes for e in kept()._made))
            most[r] = max(most[r], kept_bytes())
            exchange(rows)  # as a plan
        return len(kept()._made)

    counts = testing.run(2, body, timeout=60)
    assert counts[0] == counts[1] < 29
    assert most[0] == most[1] <= little


def test_what_goes_gives_its_memory_back(little):
    code = """
    import gc, numpy as np, stretto
    stretto.init()
    def mapped():
        gc.collect()
        with open("/proc/self/maps", encoding="utf-8") as maps:
            return maps.read().count("stretto ")
    def call(rows):
        stretto.all_to_all(np.ones((2 * rows, 256), np.float32))
    for rows in range(100, 200): call(rows)
    before = mapped()
    for rows in range(200, 300): call(rows)
    print(mapped() <= before, flush=True)
    stretto.finalize()
    """
    for exit_code, output, errors in finish(start(2, code)):
        assert (exit_code, output) == (0, "True\n"), errors


def test_what_was_used_last_stays(little, monkeypatch):
    made = []
    make = stretto._group.Group._make_executable

    def noted(group, kind, entry, staged, records, said):
        made.append((group.rank, entry.compiled.program.name))
        return make(group, kind, entry, staged, records, said)

    monkeypatch.setattr(stretto._group.Group, "_make_executable", noted)

    def body():
        multiply(3)
        for rows in range(1, 200, 7):
            exchange(rows)
            multiply(3)
        return made.count((stretto.rank(), "gemm_rs"))

    assert testing.run(2, body, timeout=60) == [1, 1]


def test_a_call_of_several_launches_keeps_its_own(monkeypatch):
    """Also where nothing has room."""
    monkeypatch.setenv("STRETTO_KEPT_MB", "0")

    def body():
        for rows in (3, 5, 3, 3, 5, 7, 9, 11, 13, 3):
            multiply(rows)
            exchange(rows)

    testing.run(2, body, timeout=60, sequence=True)


def test_it_is_told_once_that_there_is_no_room(little):
    said = []

    def body():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for rows in (3000, 4000, 3000, 4000, 3000):
                exchange(rows)
        said.append([w for w in caught if "STRETTO_KEPT_MB=1" in str(w.message)])

    testing.run(1, body)
    assert len(said[0]) == 1
    with open(__file__, encoding="utf-8") as file:  # at the user's line, which exchange() stands for
        line = file.readlines()[said[0][0].lineno - 1]
    assert said[0][0].filename == __file__ and "stretto.all_to_all(" in line


class FakeExecutable:
    def __init__(self, num_bytes, is_captured=False):
        self.bytes, self.is_captured = num_bytes, is_captured
        self.content, self.last_use = id(self), 0


@pytest.mark.parametrize("captured", [0, 1, 10, 100])
def test_what_graphs_have_captured_takes_no_room_from_others(captured):
    """However much it is: of programs that fit, none goes, and of those that do not, the oldest."""
    alone = types.SimpleNamespace(size=1)
    plans = types.SimpleNamespace(forget=lambda executable: None)
    of, gone = stretto._kept.Kept(alone, 0, plans, limit=100), []

    def add(executable, use):
        executable.last_use = use
        of.add(executable, lambda: gone.append(executable), [])
        return executable

    for use in range(captured):
        add(FakeExecutable(10, is_captured=True), use)
    first, second = (add(FakeExecutable(50), 1000 + i) for i in range(2))
    assert not gone
    third = add(FakeExecutable(30), 1002)
    assert gone == [first]
    add(FakeExecutable(60), 1003)
    assert gone == [first, second] and third in of._made


@pytest.mark.parametrize("text", ["-1", "much", "1.5", "9" * 10])
def test_a_limit_that_is_no_number(monkeypatch, text):
    monkeypatch.setenv("STRETTO_KEPT_MB", text)
    with pytest.raises(stretto.UserError, match=f"STRETTO_KEPT_MB is '{text}'"):
        stretto.init()


def test_ranks_with_limits_of_their_own_keep_all(little):
    """They would go out of step."""

    def body():
        if stretto.rank() == 1:
            kept()._limit = 1 << 30
        for rows in range(1, 100, 7):
            exchange(rows)
            exchange(rows)
        return len(kept()._made)

    assert testing.run(2, body, timeout=60) == [15, 15]


def test_after_a_fault_the_ranks_still_decide_alike(little, rng):
    """One may have counted a launch that another has not."""
    gate, seed = threading.Barrier(3), int(rng.integers(1 << 30))

    def body():
        draw = np.random.default_rng(seed)
        for turn in range(4):
            for rows in draw.integers(1, 200, 15):
                exchange(int(rows))
            if stretto.rank() != turn % 3:
                with pytest.raises(stretto.Fault):
                    exchange(3)
            gate.wait(60)
            stretto.recover()
        return [e.content for e in kept()._made]

    contents = testing.run(3, body, timeout=1)
    assert contents[0] == contents[1] == contents[2]


def test_random_calls_with_little_room(rng, little):
    """Of several kinds and groups, some refused."""
    seed = int(rng.integers(1 << 30))

    def body():
        draw, pair = np.random.default_rng(seed), stretto.new_group([0, 2], name="pair")
        for _ in range(150):
            kind, rows = int(draw.integers(4)), int(draw.integers(1, 120))
            refuses = draw.random(3) < 0.1
            if kind == 0:
                exchange(rows)
            elif kind == 1:
                multiply(rows)
            elif kind == 2 and pair.rank >= 0:
                x = np.ones((rows, 32), np.float32)
                assert (stretto.all_gather(x, group=pair) == 1).all()
            elif kind == 3:
                x = np.ones((rows, 16), np.float32)
                x = x.astype(np.int64) if refuses[stretto.rank()] else x
                try:
                    assert (stretto.all_reduce(x) == 3).all() and not refuses.any()
                except stretto.UserError:
                    assert refuses.any()
        return [e.content for e in kept()._made]

    contents = testing.run(3, body, timeout=60)
    assert contents[0] == contents[1] == contents[2]


def test_a_backward_pass_after_calls_that_made_room(monkeypatch):
    """Its products write where what came before has gone."""
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("STRETTO_KEPT_MB", "0")

    def body():
        for rows in (2, 3, 2):
            a = torch.ones(2 * rows, 8, requires_grad=True)
            w = torch.full((4, 8), 1.0 + stretto.rank(), requires_grad=True)
            x = torch.ones(rows, 8, requires_grad=True)
            total = stretto.matmul_reduce_scatter(a, w.t()).sum()
            total = total + stretto.all_gather_matmul(x, w.t()).sum()
            for other in range(1, 9):
                exchange(other)
            total.backward()
            assert (a.grad == 4 * (1 + stretto.rank())).all()
            assert (w.grad == 4 * rows).all()
            assert (x.grad == 4 * 3).all()

    testing.run(2, body, timeout=60)


def test_rooms_last_as_long_as_plans_that_copy_through_them(monkeypatch):
    """One call launches on a room that another, of the same size class but no whole rows, only copies
    through. The program of the first goes for a third one's; the second goes on, as a plan."""
    monkeypatch.setenv("STRETTO_KEPT_MB", "11")
    code = """
    import numpy as np, stretto
    stretto.init()
    r = stretto.rank()
    def gather(elements):
        x = np.full(elements - 3 * r, r + 1, np.float32)
        got = stretto.all_gather(x, sizes=[elements, elements - 3])
        return bool((got[:elements] == 1).all() and (got[elements:] == 2).all())
    few, more = (1 << 20) + 64, (1 << 20) + 65
    right = [gather(few), gather(more), gather(more), gather(more)]
    stretto.all_gather(np.ones(1 << 18, np.float32))
    others = [np.full(5 << 18, 7.0, np.float32) for _ in range(3)]  # takes memory that is free
    right += [gather(more), gather(more), all((x == 7).all() for x in others)]
    print(right, flush=True)
    stretto.finalize()
    """
    for exit_code, output, errors in finish(start(2, code)):
        assert (exit_code, output) == (0, f"{[True] * 7}\n"), errors


def test_rooms_stay_within_a_part_of_the_limit(monkeypatch):
    """Messages of many sizes, which no launch has as arguments."""
    monkeypatch.setenv("STRETTO_KEPT_MB", "8")

    def body():
        r, most = stretto.rank(), 0
        for elements in [*range(1000, 400_000, 37_777), 1000, 2000, 3000, 4000, 5000, 6000]:
            x, got = np.full(elements, r + 1, np.float32), np.empty(elements, np.float32)
            for _ in range(3):
                stretto.batch_send_recv([(x, 1 - r)], [(got, 1 - r)])
                assert (got == 2 - r).all()
            rooms = [x.nbytes for x in kept()._rooms.values()]
            most = max(most, sum(rooms[:-8]))
        return most

    assert max(testing.run(2, body, timeout=60)) <= 2 << 20
