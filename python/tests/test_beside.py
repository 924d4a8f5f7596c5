"""Calls with async_op=True. If these fail, what a rank computes meanwhile waits for them, they get in each
other's way, or what goes wrong in them is lost."""

import contextlib
import gc
import threading
import time

import numpy as np
import pytest

import stretto
from stretto import _beside, testing
from test_ops import near, parts, wide

torch = pytest.importorskip("torch")
SIZES = [1, 2, 3, 4]


def made_of(rng, form, shape):
    x = rng.uniform(-1, 1, shape).astype(np.float32)
    return torch.from_numpy(x) if form == "torch" else x


def same(got, want):
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for g, w in zip(got, want):
            same(g, w)
    elif want is not None and not isinstance(want, str):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_they_give_what_the_same_calls_give(rng, size, form):
    """Of every kind, all started before the first is waited for, ragged sizes among them."""
    rows, hidden, ffn = 3, 10, 6
    shapes = {"x": (rows, hidden), "tall": (rows * size, hidden)}
    mine = [{name: made_of(rng, form, shape) for name, shape in shapes.items()} for _ in range(size)]
    w, up, down = (made_of(rng, form, s) for s in ((hidden, ffn), (4, hidden, ffn), (4, ffn, hidden)))
    heads = made_of(rng, form, (rows, 2, 8))
    chosen = rng.permuted(np.tile(np.arange(4), (rows * size, 1)), axis=1)[:, :2].astype(np.int32)
    weights = rng.uniform(0, 1, chosen.shape).astype(np.float32)
    if form == "torch":
        chosen, weights = torch.from_numpy(chosen), torch.from_numpy(weights)

    def body():
        r = stretto.rank()
        x, tall = mine[r]["x"], mine[r]["tall"]
        calls = [
            (stretto.all_reduce, (x,), {"reduce_op": "max"}),
            (stretto.all_gather, (x[: r + 1],), {"sizes": [min(q + 1, rows) for q in range(size)]}),
            (stretto.reduce_scatter, (tall,), {}),
            (stretto.broadcast, (x,), {"root": size - 1}),
            (stretto.all_to_all, (tall,), {}),
            (stretto.all_gather_matmul, (x, w), {}),
            (stretto.matmul_all_reduce, (x, w), {}),
            (stretto.batch_send_recv, ([(x, (r + 1) % size)], [(x * 0, (r - 1) % size)]), {}),
            (stretto.gather, (x,), {"root": 0}),
            (stretto.ring_attention, (heads, heads, heads), {"contiguous": True}),
            (stretto.all_gather_grouped_matmul, (x, up, chosen), {"up": up}),
            (stretto.moe_layer, (x, up, up, down, chosen, weights), {}),
        ]
        want = [op(*args, **options) for op, args, options in calls]
        for _ in range(2):
            works = [op(*args, async_op=True, **options) for op, args, options in calls]
            assert all(isinstance(work, stretto.Work) for work in works)
            same(stretto.all_reduce(x), want_of_sum)
            got = [work.wait() for work in works]
            assert all(work.is_completed() for work in works)
            same(got, want)
            same([work.wait() for work in works], want)  # again
        h, tiles = got[10]
        return stretto.grouped_matmul_reduce_scatter(h, down, tiles, weights), got[11]

    want_of_sum = testing.run(size, lambda: stretto.all_reduce(mine[stretto.rank()]["x"]))[0]
    for two_calls, layer in testing.run(size, body):
        near(np.asarray(two_calls), wide([layer])[0], "float32", hidden * ffn)


def test_two_are_under_way_beside_a_third_thing(rng):
    """While rank 1 has not come to them, rank 0 computes, and calls another group."""
    xs = parts(rng, 2, (5, 7))
    begun, computed = threading.Event(), threading.Event()

    def body():
        r = stretto.rank()
        alone = stretto.new_group([0], name="first")
        for _ in range(2):  # makes both lanes
            stretto.all_reduce(xs[r], async_op=True).wait()
        if r == 1:
            assert begun.wait(60)
            assert computed.wait(60)
            works = [stretto.all_gather(xs[r], async_op=True), stretto.all_reduce(xs[r], async_op=True)]
        else:
            works = [stretto.all_gather(xs[r], async_op=True), stretto.all_reduce(xs[r], async_op=True)]
            begun.set()
            product = xs[0] @ xs[0].T
            assert (stretto.all_reduce(product, group=alone) == product).all()
            assert not any(work.is_completed() for work in works)
            computed.set()
        return [work.wait() for work in works]

    for gathered, total in testing.run(2, body, timeout=60):
        np.testing.assert_array_equal(gathered, np.concatenate(xs))
        near(total, sum(wide(xs)), "float32", 2)


def test_one_that_is_slow_holds_up_none_in_the_other_world(rng):
    """The second of two ends although the first does not: worlds of their own."""
    xs = parts(rng, 2, (4,))
    ended = threading.Event()

    def body():
        r = stretto.rank()
        for _ in range(2):
            stretto.barrier()
            stretto.all_reduce(xs[r], async_op=True).wait()
        group = stretto._world.group_of()
        held = group.lanes.groups[0].lanes.on_worker(lambda: ended.wait(60)) if r == 1 else None
        first, second = (stretto.all_reduce(xs[r], async_op=True) for _ in range(2))
        total = second.wait()
        assert not first.is_completed()
        stretto.barrier()
        ended.set()
        assert held is None or held.result()
        same(first.wait(), total)
        return total

    for total in testing.run(2, body, timeout=60):
        near(total, sum(wide(xs)), "float32", 2)


def test_what_goes_wrong_is_told_where_it_is_waited_for(rng):
    xs = parts(rng, 2, (4, 4))

    def body():
        r = stretto.rank()
        wrong = stretto.all_reduce(xs[r] if r == 0 else np.ones((4, 4), np.int64), async_op=True)
        right = stretto.all_reduce(xs[r], async_op=True)
        with pytest.raises(stretto.UserError, match="int64.*rank 1"):
            wrong.wait()
        first = right.wait()
        same(stretto.all_reduce(xs[r]), first)
        same(stretto.all_reduce(xs[r], async_op=True).wait(), first)
        return first

    for total in testing.run(2, body):
        near(total, sum(wide(xs)), "float32", 2)


def test_who_does_not_come_is_a_fault_which_recover_ends(rng):
    xs = parts(rng, 2, (4, 4))
    waits = threading.Barrier(2)

    def body():
        r = stretto.rank()
        stretto.all_reduce(xs[r], async_op=True).wait()
        stretto.all_reduce(xs[r], async_op=True).wait()
        if r == 0:
            with pytest.raises(stretto.Fault, match="async 1"):
                stretto.all_reduce(xs[r], async_op=True).wait()
        waits.wait(60)
        if r == 1:
            with pytest.raises(stretto.Fault):
                stretto.all_reduce(xs[r], async_op=True).wait()
        stretto.recover()
        return stretto.all_reduce(xs[r], async_op=True).wait(), stretto.all_reduce(xs[r])

    for beside, total in testing.run(2, body, timeout=1):
        same(beside, total)
        near(total, sum(wide(xs)), "float32", 2)


def test_a_failure_that_nobody_waits_for_is_warned_of():
    def body():
        work = stretto.all_reduce(np.ones(3, np.int64), async_op=True)
        while not work.is_completed():
            pass
        with pytest.warns(RuntimeWarning, match=r"all_reduce\(async_op=True\) failed, and nobody waited"):
            del work
            gc.collect()

    testing.run(1, body)


def test_gradients_and_calls_that_are_not_to_go_on():
    def body():
        x = torch.ones(3, requires_grad=True)
        with pytest.raises(stretto.UserError, match="all_reduce: async_op=True of tensors that require gradients"):
            stretto.all_reduce(x, async_op=True)
        with torch.no_grad():
            assert (stretto.all_reduce(x, async_op=True).wait() == 1).all()
        assert (stretto.all_reduce(x, async_op=False).detach() == 1).all()

    testing.run(1, body)


def test_a_world_that_is_left_ends_them_before():
    xs = [np.full(3, r, np.float32) for r in range(2)]

    def body():
        group = stretto.new_group([0, 1], name="both")
        work = stretto.all_reduce(xs[stretto.rank()], group="both", async_op=True)
        stretto.finalize(group)
        with pytest.raises(stretto.UserError, match="used after finalize"):
            stretto.all_reduce(xs[0], group=group, async_op=True)
        return work.wait()

    for total in testing.run(2, body):
        assert (total == 1).all()


def test_warming_finds_what_they_launch(monkeypatch, tmp_path):
    monkeypatch.setenv("STRETTO_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(stretto._group, "_compiled", {})
    x = np.ones((4, 6), np.float32)

    def calls():
        stretto.all_reduce(x, async_op=True).wait()

    assert stretto.warm_up(calls, world_size=2) == 1
    known = set(stretto._group._compiled)
    assert [(y == 2).all() for y in testing.run(2, lambda: stretto.all_reduce(x, async_op=True).wait())] == [True] * 2
    assert set(stretto._group._compiled) == known


class Stream:
    """In place of a GPU's: what was made on it; an event is where the stream then was."""

    def __init__(self, device):
        self.device, self.made, self.held, self.current = device, [], [], "own"

    def call(self, call, args, kwargs):
        self.made.append(call(*args, **kwargs))
        return self.made[-1], Event(len(self.made)), self.current

    def come_after(self, event):
        event.waits.append(self.current)
        return self.current

    def hold(self, tensors):
        self.held += [id(x) for x in tensors]

    def reuse(self, event):
        assert event.waits != "reused"
        event.waits = "reused"


class Event:
    def __init__(self, at):
        self.at, self.waits = at, []

    def query(self):
        return True


def test_on_gpus_lanes_are_streams(rng, monkeypatch):
    """CPU ranks run what GPUs would; which stream each call is on, what it holds, and what waits."""
    from test_gpu_path import HostAsGpu, aligned

    from stretto import _arrays, _core, _group

    def make(group, kind, entry, staged, records, said):
        return _core.Executable.make(
            group.session, group.rank, entry.compiled, list(staged), False, records=records, said=said
        )

    monkeypatch.setattr(_arrays, "torch_kind", lambda device_type: HostAsGpu)
    monkeypatch.setattr(_group.Group, "open_gpu", lambda group, device: None)
    monkeypatch.setattr(_group.Group, "_make_executable", make)
    monkeypatch.setattr(_beside, "streams", Stream)
    recorded = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda x, stream: recorded.append((id(x), stream)))
    torch.manual_seed(int(rng.integers(1 << 30)))
    xs = [aligned(4, 64) for _ in range(2)]

    def body():
        x, out = xs[stretto.rank()], torch.empty(4, 64)
        works = [stretto.all_reduce(x, async_op=True), stretto.all_gather(x, async_op=True)]
        works.append(stretto.all_reduce(x, out=out, async_op=True))
        lanes = [lane.lanes._streams[0] for lane in stretto._world.group_of().lanes.groups]
        assert [lane.device for lane in lanes] == [0, 0] and [w._event.at for w in works] == [1, 1, 2]
        assert [id(y) for y in lanes[0].made] == [id(works[0]._result), id(out)]
        # Waited for where it was made, a call needs nothing of the allocator but for its result, once.
        events = [work._event for work in works]
        got = [works[0].wait(), works[0].wait()]
        assert got[0] is got[1] and events[0].waits == ["own", "own"] and works[0]._arrays == []
        assert [(id(got[0]), "own")] == [each for each in recorded if each[0] == id(got[0])]
        assert lanes[0].held == [] and works[2]._arrays != []
        # Elsewhere, or not at all: what it reads and writes stays until the lane is done with it.
        lanes[0].current = lanes[1].current = "other"
        got = [got[0], works[1].wait(), works[2].wait()]
        assert got[2] is out and (id(out), "other") in recorded and (id(got[1]), "other") in recorded
        assert lanes[1].held == [id(x)] and sorted(lanes[0].held) == sorted([id(x), id(out)])
        del works[:]
        gc.collect()
        assert [event.waits for event in events] == ["reused"] * 3 and len(lanes[1].held) == 1
        left = stretto.all_gather(x, async_op=True)
        del left
        gc.collect()
        assert lanes[1].held == [id(x)] * 2
        return got

    for total, gathered, again in testing.run(2, body):
        torch.testing.assert_close(total, sum(xs))
        torch.testing.assert_close(again, sum(xs))
        assert torch.equal(gathered, torch.cat(xs))


class Cuda:
    """torch.cuda as TorchStream uses it, which writes down what is asked of the GPU."""

    def __init__(self, device):
        self.device, self.did, self.streams = device, [], {}
        self.set_stream(CudaStream(self, "own", device))
        self.did.clear()
        self.num_events = 0

    def current_device(self):
        return self.device

    def current_stream(self, device=None):
        index = self.device if device is None else torch.device("cuda", device).index
        return self.streams.setdefault(index, CudaStream(self, f"own of {index}", index))

    def set_stream(self, stream):
        self.streams[stream.device_index] = stream
        self.did.append(f"set {stream.name}")

    @contextlib.contextmanager
    def stream(self, stream):
        before = self.current_stream(stream.device_index)
        self.set_stream(stream)
        yield
        self.set_stream(before)

    def Stream(self, device):  # pylint: disable=invalid-name
        return CudaStream(self, "lane", device)

    def Event(self):  # pylint: disable=invalid-name
        self.num_events += 1
        return CudaEvent(self.num_events)


class CudaEvent:
    def __init__(self, number):
        self.number, self.of = number, None

    def record(self, stream):
        self.of = stream.name


class CudaStream:
    def __init__(self, cuda, name, device):
        self.cuda, self.name, self.device_index = cuda, name, device

    def wait_event(self, event):
        self.cuda.did.append(f"{self.name} after {event.of}")


class CudaTensor:
    def __init__(self, cuda, name):
        self.cuda, self.name = cuda, name

    def record_stream(self, stream):
        self.cuda.did.append(f"{self.name} used on {stream.name}")


@pytest.mark.parametrize("device, current", [(0, 0), (1, 0), (1, 1)])
def test_what_streams_of_pytorch_are_asked(device, current, monkeypatch):
    """The call is on the lane's stream after what was there; who waits comes after it, once a GPU; whatever
    the call does, the stream that was current is current again. Events are made once."""
    cuda = Cuda(current)
    monkeypatch.setattr(torch, "cuda", cuda)
    handle = lambda index: id(cuda.current_stream(index))  # pylint: disable=unnecessary-lambda-assignment
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", handle, raising=False)
    lane, x = _beside.TorchStream(device), CudaTensor(cuda, "x")
    own = cuda.current_stream(device)

    def call(*args, **kwargs):
        cuda.did.append(f"call on {cuda.current_stream(device).name}")
        return (*args, *kwargs.values())

    made = 0
    for turn in range(3):
        cuda.did.clear()
        result, event, caller = lane.call(call, (1,), {"x": x})
        assert result == (1, x) and event.of == "lane" and caller is own and cuda.current_stream(device) is own
        assert cuda.did == [f"lane after {own.name}", "set lane", "call on lane", f"set {own.name}"]
        cuda.did.clear()
        assert lane.come_after(event) is own
        assert sorted(cuda.did) == sorted({"own after lane", f"{own.name} after lane"})
        cuda.did.clear()
        lane.hold((x,))
        assert cuda.did == ["x used on lane"]
        lane.reuse(event)
        made = made or cuda.num_events
        assert turn == 0 or cuda.num_events == made == 2
    first, second = lane.call(call, (), {})[1], lane.call(call, (), {})[1]
    assert first is event and second is not first  # while it is in use, another

    def fails():
        raise ValueError("within")

    if device == current:
        with pytest.raises(ValueError, match="within"):
            lane.call(fails, (), {})
        assert cuda.current_stream(device) is own


@contextlib.contextmanager
def within(mode):
    with contextlib.ExitStack() as stack:
        if mode != "autocast":
            stack.enter_context(torch.inference_mode() if mode == "inference" else torch.no_grad())
        if mode.startswith("autocast"):
            stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
        yield


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("mode", ["no_grad", "inference", "autocast", "autocast and no_grad"])
def test_they_obey_the_mode_that_they_are_made_in(rng, size, mode):
    """As the same calls without async_op, results written to parameters among them."""
    xs = [made_of(rng, "torch", (3, 4)) for _ in range(size)]
    w = made_of(rng, "torch", (4, 5))

    def body():
        r, learns = stretto.rank(), mode != "autocast"
        x, b = (torch.nn.Parameter(t.clone(), requires_grad=learns) for t in (xs[r], w))
        into = [torch.nn.Parameter(torch.zeros(size * 3, 4), requires_grad=learns) for _ in range(2)]
        told = []
        for options in ({}, {"async_op": True}):
            end = (lambda work: work.wait()) if options else (lambda result: result)
            with within(mode):
                results = [
                    end(stretto.all_gather(x, out=into[len(told)], **options)),
                    end(stretto.all_reduce(x, **options)),
                    end(stretto.all_gather_matmul(x, b, **options)),
                    end(stretto.all_gather_matmul(x, b.repeat(size, 1), gather_dim=-1, **options)),
                ]
            told.append([(t.requires_grad, t.grad_fn, t.is_inference(), t.dtype, t.detach().float()) for t in results])
        for sync, later in zip(*told):
            assert later[:4] == sync[:4]
            same(later[4], sync[4])
        assert x.grad is None and b.grad is None

    testing.run(size, body)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_one_that_a_rank_refuses_by_itself_is_told_to_the_others(rng, size, before):
    """And counts for all, so that later calls meet those that they belong to."""
    xs = [made_of(rng, "torch", (4,)) for _ in range(size)]
    one = int(rng.integers(size))

    def body():
        r = stretto.rank()
        for _ in range(before):
            stretto.all_reduce(xs[r], async_op=True).wait()
        for _ in range(3):  # an odd number, and more than there are worlds
            with pytest.raises(stretto.UserError, match=f"gradient.*(rank {one})" if r != one else "gradient"):
                stretto.all_reduce(xs[r].clone().requires_grad_(r == one), async_op=True).wait()
        works = [stretto.all_reduce(xs[r] * 10**i, async_op=True) for i in range(4)]
        return [stretto.all_reduce(xs[r]), *(work.wait() for work in works)]

    for sync, *results in testing.run(size, body):
        for i, result in enumerate(results):
            near(result.numpy() / 10**i, sync.double().numpy(), "float32", 10 * size)


@pytest.mark.parametrize("before", [0, 1, 2])
def test_recovery_from_one_that_a_rank_alone_has_made(rng, before):
    """As often as it happens: what each has counted is not what the others have."""
    xs = parts(rng, 3, (4,))
    want = sum(wide(xs))

    def body():
        r = stretto.rank()
        for _ in range(before):
            stretto.all_reduce(xs[r], async_op=True).wait()
        for again in range(2):
            if r == again:
                with pytest.raises(stretto.Fault):
                    stretto.all_reduce(xs[r], async_op=True).wait()
            else:
                time.sleep(1.3)  # so that its deadline is over
            stretto.recover()
            near(stretto.all_reduce(xs[r]), want, "float32", 3)
            works = [stretto.all_reduce(xs[r] * np.float32(10**i), async_op=True) for i in range(3)]
            for i, work in enumerate(works):
                near(work.wait() / 10**i, want, "float32", 30)

    testing.run(3, body, timeout=1)


def test_recovery_where_some_have_made_the_worlds(rng):
    """As a deadline between two of them may leave it."""
    xs = parts(rng, 2, (4,))

    def body():
        r, group = stretto.rank(), stretto._world.group_of()
        stretto.all_reduce(xs[r], async_op=True).wait()
        if r == 1:
            group.lanes.groups.pop()
        stretto.recover()
        works = [stretto.all_reduce(xs[r], async_op=True) for _ in range(3)]
        for work in works:
            near(work.wait(), sum(wide(xs)), "float32", 2)

    testing.run(2, body, timeout=5)


def test_the_first_one_comes_at_the_same_place_on_all_ranks(rng):
    xs = parts(rng, 2, (4,))

    def body():
        r = stretto.rank()
        with pytest.raises(stretto.UserError, match="first call with async_op=True"):
            stretto.all_reduce(xs[r], async_op=True) if r == 0 else stretto.all_gather(xs[r])
        works = [stretto.all_reduce(xs[r], async_op=True) for _ in range(3)]
        for work in works:
            near(work.wait(), sum(wide(xs)), "float32", 2)

    testing.run(2, body)
