"""If these fail, what is collected at one rank, or handed out by it, is wrong or goes to another."""

import numpy as np
import pytest

import stretto
from forked_ranks import run_on_forks
from stretto import testing

try:
    import torch
except ImportError:
    torch = None

NUMPY = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_reduce(rng, size, dtype):
    """Small whole numbers, exact in every type; to every rank, into what is given and what is read."""
    x = [rng.integers(-2, 3, (5, 3)).astype(dtype) for _ in range(size)]
    for root in range(size):
        for name, function in NUMPY.items():

            def body(root=root, name=name):
                r = stretto.rank()
                mine, out = x[r].copy(), np.empty_like(x[r])
                first = stretto.reduce(mine, root, reduce_op=name)
                second = stretto.reduce(mine, root, reduce_op=name, out=out if r == root else None)
                assert (mine == x[r]).all()
                third = stretto.reduce(mine, root, reduce_op=name, out=mine if r == root else None)
                if r != root:
                    assert (mine == x[r]).all()
                else:
                    assert second is out and third is mine
                return first, second, third

            for r, results in enumerate(testing.run(size, body)):
                for got in results:
                    if r == root:
                        np.testing.assert_array_equal(got, function.reduce(np.stack(x)).astype(dtype))
                    else:
                        assert got is None


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64", "complex64"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_gather_and_scatter(rng, size, dtype):
    """Of any element type, of strided arrays, repeatedly with other rows."""
    for rows in (5, 1, 5):
        x = [rng.integers(0, 100, (rows, 3, 2)).astype(dtype) for _ in range(size)]
        for root in range(size):

            def body(root=root, x=x):
                r = stretto.rank()
                strided = np.asfortranarray(x[r])
                out = np.empty((size * len(x[r]), 3, 2), dtype) if r == root else None
                all_of = stretto.gather(strided, root)
                assert stretto.gather(x[r], root, out=out) is out
                parts = np.concatenate(x) if r == root else np.zeros((size * len(x[r]), 3, 2), dtype)
                return all_of, out, stretto.scatter(parts, root)

            for r, (first, second, part) in enumerate(testing.run(size, body)):
                np.testing.assert_array_equal(part, x[r])
                for got in (first, second):
                    if r == root:
                        np.testing.assert_array_equal(got, np.concatenate(x))
                    else:
                        assert got is None


def test_symmetric_arrays_and_nothing():
    def body():
        r = stretto.rank()
        shard = stretto.symm_mem.empty(2, 3, dtype="float32")
        shard[...] = r + 1
        total, every = stretto.reduce(shard, 1), stretto.gather(shard, 1)
        into = stretto.reduce(shard, 1, out=shard if r == 1 else None)
        empty = stretto.gather(np.empty((0, 3), np.float32)), stretto.scatter(np.empty((0, 3)), 1)
        assert empty[1].shape == (0, 3) and (empty[0] is None if r else empty[0].shape == (0, 3))
        return total, every, into, shard.copy()

    zero, one = testing.run(2, body)
    assert zero[:3] == (None, None, None) and (zero[3] == 1).all()
    assert (one[0] == 3).all() and (one[1][:2] == 1).all() and (one[1][2:] == 2).all()
    assert (one[2] == 3).all() and (one[3] == 3).all()


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda x: stretto.reduce(x, 2), "reduce: root 2 of 2 ranks"),
        (lambda x: stretto.gather(x, -1), "gather: root -1 of 2 ranks"),
        (lambda x: stretto.scatter(x, 0), "scatter: 3 rows cannot be split over 2 ranks"),
        (lambda x: stretto.gather(np.ones((), np.float32), 0), "gather: x needs at least one"),
        (lambda x: stretto.reduce(x.astype(np.int64)), "reduce: element type int64"),
        (lambda x: stretto.reduce(x, stretto.rank()), "root=[01]"),
        (lambda x: stretto.gather(x, 0, out=np.empty((6, 2), np.float32)), "gather: out is given on rank 1"),
    ],
)
def test_refusals(call, said):
    """On both ranks, and the world goes on."""

    def body():
        x = np.ones((3, 2), np.float32)
        with pytest.raises(stretto.UserError, match=said):
            call(x)
        return stretto.reduce(x, 1)

    assert (testing.run(2, body)[1] == 2).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int64"])
def test_send_and_receive(rng, dtype):
    """Of any type, in both directions, arrays of any size and strides, one after the other."""
    x = [rng.integers(0, 100, shape).astype(dtype) for shape in ((3, 5), (1,), (300, 40), (0, 4), ())]

    def body():
        for a in x:
            for source in (0, 1, 1):
                if stretto.rank() == source:
                    assert stretto.send(np.array(a, order="F")) is None
                else:
                    into = np.full_like(a, 7)
                    assert stretto.recv(into) is into
                    np.testing.assert_array_equal(into, a)
                    strided = np.zeros((*a.shape, 2), dtype)[..., 0]
            if stretto.rank():
                stretto.recv(strided)
                np.testing.assert_array_equal(strided, a)
            else:
                stretto.send(a)

    testing.run(2, body)


def test_pairs_of_a_larger_world():
    def body():
        r = stretto.rank()
        pairs = [stretto.new_group(p, name=f"pair {p}") for p in ([0, 1], [1, 2])]
        x = np.full(4, r, np.float32)
        if r < 2:
            stretto.send(x, group=pairs[0]) if r == 0 else stretto.recv(x, group=pairs[0])
        if r > 0:
            stretto.send(x, group="pair [1, 2]") if r == 1 else stretto.recv(x, group="pair [1, 2]")
        with pytest.raises(stretto.UserError, match="send: a group of 3 ranks"):
            stretto.send(x)
        return x

    for x in testing.run(3, body):
        assert (x == 0).all()


def test_two_that_both_send_are_told():
    def body():
        with pytest.raises(stretto.UserError, match="from rank"):
            stretto.send(np.ones(2, np.float32))
        with pytest.raises(stretto.UserError, match=r"\[2\].*\[3\]|\[3\].*\[2\]"):
            x = np.ones(2 + stretto.rank(), np.float32)
            stretto.send(x) if stretto.rank() else stretto.recv(x)
        x = np.full(2, stretto.rank(), np.float32)
        return stretto.send(x) if stretto.rank() else stretto.recv(x)

    assert (testing.run(2, body)[0] == 1).all()


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_batches(rng, size, dtype):
    """Messages by lot, several between some ranks, none between others."""
    for _ in range(3):
        lot = [
            (*rng.integers(0, size, 2), rng.integers(0, 100, rng.integers(0, 90, 2)).astype(dtype))
            for _ in range(3 * size)
        ]
        lot += [(r, r, np.empty(0, dtype)) for r in range(size)]

        def body(lot=lot):
            r = stretto.rank()
            outs = [(np.full_like(x, 7), source) for source, to, x in lot if to == r]
            stretto.batch_send_recv([(x, to) for source, to, x in lot if source == r], outs)
            return [out for out, _ in outs]

        for r, outs in enumerate(testing.run(size, body)):
            for got, want in zip(outs, [x for _, to, x in lot if to == r]):
                np.testing.assert_array_equal(got, want)


def test_refusals_of_batches():
    x = np.ones(3, np.float32)
    for call, said in (
        (lambda r: stretto.batch_send_recv([(x, 1 - r)], [(x[:2].copy(), 1 - r)]), "expects .* they send"),
        (lambda r: stretto.batch_send_recv([], []), "no messages"),
        (lambda r: stretto.batch_send_recv([x], []), "need pairs"),
        (lambda r: stretto.batch_send_recv([(x, 2)], []), "sends names rank 2 of 2"),
        (lambda r: stretto.batch_send_recv([(x, 0), (np.ones(1), 0)], []), "float64 beside"),
    ):

        def body(call=call, said=said):
            with pytest.raises(stretto.UserError, match=said):
                call(stretto.rank())
            return stretto.all_reduce(x)

        for got in testing.run(2, body):
            assert (got == 2).all()

@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_as_torch_distributed():
    code = """
    import torch, stretto
    import torch.distributed as dist
    dist.init_process_group("gloo")
    stretto.init(dist.group.WORLD)
    r, size = stretto.rank(), stretto.world_size()
    g = torch.Generator().manual_seed(r)
    for root in range(size):
        for dtype in (torch.float32, torch.bfloat16, torch.int32):
            x = torch.randint(-3, 4, (size * 2, 7), generator=g).to(dtype)
            want = x.clone()
            dist.reduce(want, root, dist.ReduceOp.MAX)
            got = stretto.reduce(x, root, reduce_op="max")
            assert torch.equal(got, want) if r == root else got is None
            parts = [torch.empty_like(x) for _ in range(size)] if r == root else None
            dist.gather(x, parts, root)
            got = stretto.gather(x, root)
            assert torch.equal(got, torch.cat(parts)) if r == root else got is None
            want = torch.empty_like(x[:2])
            dist.scatter(want, list(x.chunk(size)) if r == root else None, root)
            assert torch.equal(stretto.scatter(x, root), want)
            if r == root:
                dist.send(x, 1 - root)
                stretto.send(x)
            else:
                want, got = torch.empty_like(x), torch.empty_like(x)
                dist.recv(want, root)
                assert torch.equal(stretto.recv(got), want)
    x, want, got = torch.randn(9, 5), torch.empty(9, 5), torch.empty(9, 5)
    P2POp = dist.P2POp
    for work in dist.batch_isend_irecv([P2POp(dist.isend, x, 1 - r), P2POp(dist.irecv, want, 1 - r)]):
        work.wait()
    stretto.batch_send_recv([(x, 1 - r)], [(got, 1 - r)])
    assert torch.equal(got, want)
    stretto.finalize()
    dist.destroy_process_group()
    """
    run_on_forks(2, code)


def test_messages_of_the_same_form_are_checked_again():
    """What was right once is not looked at again; another form is, and what comes is this call's."""

    def body():
        r, inbox = stretto.rank(), np.empty(5, np.float32)
        got = []
        for turn in range(4):
            stretto.batch_send_recv([(np.full(5, 10 * turn + r, np.float32), 1 - r)], [(inbox, 1 - r)])
            got.append(inbox[0])
        fixed = inbox.copy()
        fixed.flags.writeable = False
        told = []
        for out, to in ((fixed, 1 - r), (np.empty(5, np.float64), 1 - r), (inbox, 2)):
            try:
                stretto.batch_send_recv([(np.ones(5, np.float32), 1 - r)], [(out, to)])
            except stretto.UserError as error:
                told.append(str(error))
        stretto.batch_send_recv([(np.full(5, 7, np.float32), 1 - r)], [(inbox, 1 - r)])
        return got, told, inbox.tolist()

    for rank, (got, told, last) in enumerate(testing.run(2, body, timeout=20)):
        assert got == [10 * turn + 1 - rank for turn in range(4)] and last == [7] * 5
        assert len(told) == 3 and "read-only" in told[0] and "float64" in told[1] and "rank 2" in told[2], told


def test_a_batch_beside_another_call_is_told_by_its_name():
    texts = [None, None]

    def body():
        r, x = stretto.rank(), np.ones(3, np.float32)
        with pytest.raises(stretto.UserError) as told:
            if r == 0:
                stretto.batch_send_recv([(x, 1)], [(x.copy(), 1)])
            else:
                stretto.all_to_all(np.ones((4, 2), np.float32), None, [1, 3])
        texts[r] = str(told.value)

    testing.run(2, body, timeout=20)
    for text in texts:
        assert "rank 0 called batch_send_recv(messages of float32)" in text, text
        assert "rank 1 called all_to_all(x float32 rows of [2], with sizes)" in text, text


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_sizes_of_messages_are_told_once(size, monkeypatch):
    """Ranks that send what they sent before only ask whether all do; a rank alone does not even ask."""
    launched = []
    launch = stretto.Group.launch_operator
    monkeypatch.setattr(
        stretto.Group,
        "launch_operator",
        lambda group, kind, program, *rest, **options: (
            launched.append((group.rank, program)),
            launch(group, kind, program, *rest, **options),
        ),
    )

    def body():
        r, inbox = stretto.rank(), np.empty(5, np.float32)
        for turn in range(4):
            x = np.full(5, 10 * turn + r, np.float32)
            stretto.batch_send_recv([(x, (r + 1) % size)], [(inbox, (r - 1) % size)])
            assert (inbox == 10 * turn + (r - 1) % size).all()

    testing.run(size, body, timeout=20)
    assert [launched.count((r, "all_gather")) for r in range(size)] == [1] * size
