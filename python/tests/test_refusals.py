"""Calls that a rank refuses count as made: whoever waits in theirs is told at once which rank
refuses what and why, and the next calls of all belong together."""

import re
import threading
import time

import numpy as np
import pytest

import stretto
from stretto import testing
from test_processes import finish, start

X, X12 = np.ones((4, 4), np.float32), np.ones((12, 4), np.float32)


def ones(*shape):
    return np.ones(shape, np.float32)


def experts(bad):
    """[4, 2], of which two are there."""
    return np.where(bad, 9, np.arange(8).reshape(4, 2) % 2).astype(np.int32)


def tiles():
    made, of = stretto.all_gather_grouped_matmul(
        X, ones(2, 4, 3), np.zeros((4 * stretto.world_size(), 1), np.int32)
    )
    return made, of


# Calls that a rank may refuse by itself: (call(whether its argument is wrong), what it says).
CALLS = {
    "element type": (
        lambda bad: stretto.all_reduce(X.astype(np.int64) if bad else X),
        "all_reduce: element type int64",
    ),
    "no array": (lambda bad: stretto.all_gather([1.0] if bad else X), "list: need a NumPy array"),
    "reduction": (
        lambda bad: stretto.all_reduce(X, reduce_op="bor" if bad else "sum"),
        "all_reduce: reduce_op 'bor'",
    ),
    "option": (
        lambda bad: stretto.reduce_scatter(X12, reduce_op="bor" if bad else "avg"),
        "reduce_scatter: reduce_op 'bor'",
    ),
    "number": (
        lambda bad: stretto.all_gather(X, dim=2**70 if bad else 0),
        "dim is 1180591620717411303424, need a number of 64 bits",
    ),
    "root": (lambda bad: stretto.broadcast(X, 7 if bad else 0), "broadcast: root 7 of"),
    "out": (
        lambda bad: stretto.all_reduce(X, out=ones(2, 2) if bad else None),
        "all_reduce: out is a NumPy array",
    ),
    "factors": (
        lambda bad: stretto.all_gather_matmul(X[:, :3] if bad else X, X),
        "all_gather_matmul: shapes",
    ),
    "scales": (
        lambda bad: stretto.matmul_all_reduce(X, X, scale_a=X if bad else None),
        "matmul_all_reduce: scale_a and scale_b go together",
    ),
    "last dimension": (
        lambda bad: stretto.matmul_reduce_scatter(X[:, : 4 - bad], ones(4, 6), scatter_dim=-1),
        "shapes",
    ),
    "blocks": (
        lambda bad: stretto.all_to_all(X12, input_split_sizes=[1] if bad else None),
        "all_to_all: input_split_sizes",
    ),
    "norm": (
        lambda bad: stretto.all_reduce_add_rms_norm(X, X, X[0], eps="small" if bad else 1e-5),
        "eps is 'small'",
    ),
    "heads": (
        lambda bad: stretto.sequence_attention(*[ones(4, 2, 4)] * 3, tokens=1 if bad else None),
        "sequence_attention: 4 rows of tokens=1",
    ),
    "an expert that is not there": (
        lambda bad: stretto.ep_dispatch(X, experts(bad), ones(4, 2), 2),
        "experts breaks its contract: entry 0 is 9",
    ),
    "number of experts": (
        lambda bad: stretto.ep_dispatch(X, experts(False), ones(4, 2), 1 if bad else 2),
        "ep_dispatch: 2 of 1 experts",
    ),
    "rows of experts": (
        lambda bad: stretto.ep_combine(
            ones(3 if bad else 8 * stretto.world_size(), 4),
            stretto.ep_dispatch(X, experts(False), ones(4, 2), 2),
        ),
        r"ep_combine: y is \(3, 4\)",
    ),
    "second layer": (
        lambda bad: stretto.grouped_matmul_all_reduce(
            *(tiles()[0], ones(2, 2 if bad else 3, 4), tiles()[1]),
            ones(4 * stretto.world_size(), 1),
        ),
        "grouped_matmul_all_reduce: shapes",
    ),
    "symmetric memory": (
        lambda bad: stretto.symm_mem.empty(4, dtype="nonsense" if bad else "float32"),
        "symm_mem.empty: 'nonsense' is no element type",
    ),
    "large expert": (
        lambda bad: stretto.ep_dispatch(X, experts(False).astype(np.int64) + bad * 2**32, ones(4, 2), 2),
        "experts breaks its contract: entry 0 is 2147483647 or more, need",
    ),
    "group": (
        lambda bad: stretto.new_group([0, 99] if bad else [0, 1], name="g"),
        r"new_group\(\[0, 99\]\): the world has",
    ),
    "program": (
        lambda bad: PROGRAMS[stretto.world_size()](X[:2] if bad else X),
        r"got float32 \(2, 4\)",
    ),
}
PROGRAMS = {
    p: stretto.operator("all_gather", ranks=p, m=4 * p, n=4, target="cpu") for p in (2, 3)
}


def told(call, bad):
    """What the call raised; at the deadline it would be a Fault."""
    with pytest.raises(stretto.UserError) as caught:
        call(bad)
    return str(caught.value)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", CALLS)
def test_the_others_are_told_who_refuses_what(name, size):
    """The one that refuses comes last, so that they wait; its next call is none of theirs."""
    call, says = CALLS[name]
    texts = [None] * size

    def body():
        r, bad = stretto.rank(), stretto.rank() == size - 1
        call(False)
        if name == "group":
            stretto.finalize("g")
        for _ in range(2):
            stretto.barrier()
            if bad:
                time.sleep(0.05)
            texts[r] = told(call, bad)
            assert (stretto.all_reduce(X + r) == (X * size + size * (size - 1) / 2)).all()
        if name != "group":
            call(False)

    testing.run(size, body, timeout=60)
    for text in texts:
        assert re.search(says, text), text
    for text in texts[:-1]:
        assert f"rank {size - 1} has refused the call in this place" in text


@pytest.mark.parametrize("name", CALLS)
def test_where_all_refuse_the_world_goes_on(name):
    call, _ = CALLS[name]

    def body():
        for turn in range(9):
            if turn % 3 == stretto.rank():
                time.sleep(0.01)
            told(call, True)
        return stretto.all_reduce(X)

    for got in testing.run(3, body, timeout=60):
        np.testing.assert_array_equal(got, 3 * X)


def test_a_rank_refuses_without_waiting_for_the_others():
    """Which are elsewhere."""
    gate = threading.Barrier(2)

    def body():
        for _ in range(3):
            if stretto.rank() == 1:
                for _ in range(3):
                    told(CALLS["element type"][0], True)
                gate.wait(20)
            else:
                gate.wait(20)
                for _ in range(3):
                    assert "rank 1 has refused" in told(CALLS["element type"][0], False)
            assert (stretto.all_gather(X)[4:] == X).all()

    testing.run(2, body, timeout=60)


def test_a_call_that_is_made_again_is_no_call_of_before_to_the_others():
    """All make it again once they are told. Else what the one that refused it makes meets what the
    others made first, and from then on each gets their results of a call before."""

    def body():
        for step in range(6):
            x = X + step
            if step % 2 == 0:
                refuses = step == 2 or stretto.rank() == 1
                told(lambda bad: stretto.all_reduce(x.astype(np.int64) if bad else x), refuses)
            np.testing.assert_array_equal(stretto.all_reduce(x), 2 * x)

    testing.run(2, body, timeout=60)


def test_random_refusals(rng):
    """By any ranks at any time, in the world and in groups that share ranks."""
    size, seed = 4, [int(rng.integers(1 << 30))]

    def body():
        draw, r = np.random.default_rng(seed), stretto.rank()
        groups = [None, *map(stretto.new_group, ([0, 1, 2], [1, 3], [2, 3]))]
        for step in range(200):
            group = groups[draw.integers(4)]
            refusing = draw.random(size) < (0.15 if draw.random() < 0.5 else 0)
            ranks = list(range(size)) if group is None else group.ranks
            late = draw.random(size) < 0.05
            if r not in ranks:
                continue
            if late[r]:
                time.sleep(0.002)
            x = X * (step + r)
            try:
                got = stretto.all_reduce(x.astype(np.int64) if refusing[r] else x, group=group)
            except stretto.UserError as error:
                assert any(refusing[q] for q in ranks), error
                continue
            assert not any(refusing[q] for q in ranks)
            np.testing.assert_array_equal(got, sum(X * (step + q) for q in ranks))

    testing.run(size, body, timeout=60)


def test_in_a_group_its_ranks_alone_are_told():
    texts = {}

    def body():
        r = stretto.rank()
        group = stretto.new_group([1, 2], name="pair")
        if r == 0:
            return stretto.all_reduce(X)
        wrong = X.astype(np.int64) if r == 2 else X
        texts[r] = told(lambda _: stretto.all_reduce(wrong, group=group), True)
        assert (stretto.all_reduce(X, group=group) == 2).all()
        return stretto.all_reduce(X)

    for got in testing.run(3, body, timeout=60):
        np.testing.assert_array_equal(got, 3 * X)
    assert "rank 1 has refused" in texts[1], texts[1]
    assert "rank 1 of 2 of group 'pair', rank 2 of all" in texts[1], texts[1]


def test_what_is_no_error_of_arguments_is_told_too(monkeypatch):
    """Such as memory that one rank has not got."""
    from stretto import _arrays

    empty = _arrays.NumpyKind.empty

    def without_memory(shape, like):
        if stretto.rank() == 1 and len(shape) == 3:
            raise MemoryError("none left")
        return empty(shape, like)

    monkeypatch.setattr(_arrays.NumpyKind, "empty", staticmethod(without_memory))

    def body():
        x = ones(2, 3, 4)
        if stretto.rank() == 1:
            with pytest.raises(MemoryError):
                stretto.all_reduce(x)
        else:
            text = told(lambda _: stretto.all_reduce(x), False)
            assert "all_reduce: MemoryError: none left" in text
        return stretto.all_reduce(X)

    for got in testing.run(2, body, timeout=60):
        np.testing.assert_array_equal(got, 2 * X)


def test_processes(tmp_path):
    """And one that ends with what it refused for, once the others have left the call before, which
    its end would break off."""
    code = """
    import os, pathlib, time, numpy as np, stretto
    stretto.init(timeout=60)
    r, x = stretto.rank(), np.ones((4, 4), np.float32)
    stretto.all_reduce(x)
    for step in range(3):
        try:
            if r == 1:
                time.sleep(0.1)
            stretto.all_reduce(x.astype(np.int64) if r == 1 else x)
            raise SystemExit("not told")
        except stretto.UserError as error:
            assert "element type int64" in str(error), error
            assert r == 1 or "rank 1 has refused the call in this place" in str(error), error
        assert (stretto.all_gather(x + r)[::4, 0] == [1, 2, 3]).all()
    left = pathlib.Path(os.environ["LEFT"])
    (left / str(r)).touch()
    end = time.monotonic() + 60
    while r == 1 and len(list(left.iterdir())) < 3 and time.monotonic() < end:
        time.sleep(0.01)
    stretto.all_reduce(x.astype(np.int64)) if r == 1 else None
    try:
        stretto.all_reduce(x)
    except stretto.Error as error:  # a Fault for who comes after rank 1 has ended
        print("element type int64" in str(error), flush=True)
    """
    for rank, (exit_code, output, errors) in enumerate(finish(start(3, code, LEFT=str(tmp_path)))):
        if rank == 1:
            assert exit_code != 0 and "element type int64" in errors
        else:
            assert (exit_code, output) == (0, "True\n"), f"rank {rank}: {errors}"
