"""Calls that fail on one rank at any place: results that the rank cannot write are refused before anything is
launched, and whatever else goes wrong, no later call of the ranks meets another one of theirs."""

import functools
import math
import threading

import numpy as np
import pytest
import torch

import stretto
from stretto import _arrays, _group, testing

X = np.arange(16, dtype=np.float32).reshape(4, 4)


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def experts(size):
    return np.arange(size * 2, dtype=np.int32).reshape(size, 2) % 2


def is_last():
    return stretto.rank() == stretto.world_size() - 1


class Given:
    """What a call is given for its results: `make(shape, dtype)`, of one place in a list or for all."""

    def __init__(self, make, wrong=0):
        self._make, self._wrong, self._place = make, wrong, 0

    def __call__(self, *shape, dtype=np.float32):
        self._place += 1
        if self._make is not None and self._place - 1 == self._wrong:
            return self._make(shape, dtype)
        return np.zeros(shape, dtype)


def batch(out, **options):
    size = stretto.world_size()
    q = ones(2, 4, 2, 4)
    return stretto.ring_attention(q, q, q, tokens=4 * size, contiguous=True, out=out, **options)


# call(size, out): each writes out(*shape), or several of them.
CALLS = {
    "all_reduce": (1, lambda p, out: stretto.all_reduce(X, out=out(4, 4))),
    "all_reduce, int8": (1, lambda p, out: stretto.all_reduce(X, payload="int8", out=out(4, 4))),
    "all_gather": (1, lambda p, out: stretto.all_gather(X, out=out(4 * p, 4))),
    "all_gather of columns": (1, lambda p, out: stretto.all_gather(X, dim=1, out=out(4, 4 * p))),
    "all_gather, sizes": (1, lambda p, out: stretto.all_gather(X, sizes=[4] * p, out=out(4 * p, 4))),
    "all_gather, int8": (1, lambda p, out: stretto.all_gather(X, payload="int8", out=out(4 * p, 4))),
    "reduce_scatter": (1, lambda p, out: stretto.reduce_scatter(ones(2 * p, 4), out=out(2, 4))),
    "reduce_scatter of columns": (1, lambda p, out: stretto.reduce_scatter(ones(4, p * 2), dim=1, out=out(4, 2))),
    "reduce_scatter, int8": (
        1,
        lambda p, out: stretto.reduce_scatter(ones(2 * p, 4), payload="int8", out=out(2, 4)),
    ),
    "broadcast": (1, lambda p, out: stretto.broadcast(X, out=out(4, 4))),
    "reduce": (1, lambda p, out: stretto.reduce(X, p - 1, out=out(4, 4) if is_last() else None)),
    "gather": (1, lambda p, out: stretto.gather(X, p - 1, out=out(4 * p, 4) if is_last() else None)),
    "scatter": (1, lambda p, out: stretto.scatter(ones(2 * p, 4), out=out(2, 4))),
    "all_to_all": (1, lambda p, out: stretto.all_to_all(ones(2 * p, 4), out=out(2 * p, 4))),
    "all_to_all, uneven": (
        1,
        lambda p, out: stretto.all_to_all(
            ones(sum(range(2, p + 2)), 4), None, list(range(2, p + 2)), out=out(p * (stretto.rank() + 2), 4)
        ),
    ),
    "all_to_all, int8": (1, lambda p, out: stretto.all_to_all(ones(2 * p, 4), payload="int8", out=out(2 * p, 4))),
    "all_to_all_v": (
        1,
        lambda p, out: stretto.all_to_all_v(ones(2 * p, 3), np.ones(p, np.int32), out=out(3 * p, 3)),
    ),
    "all_gather_v": (1, lambda p, out: stretto.all_gather_v(ones(4, 3), np.int32([2]), out=out(3 * p, 3))),
    "batch_send_recv": (
        1,
        lambda p, out: stretto.batch_send_recv(
            [(ones(3, 3), (stretto.rank() + 1) % p)], [(out(3, 3), (stretto.rank() - 1) % p)]
        ),
    ),
    "all_gather_matmul": (1, lambda p, out: stretto.all_gather_matmul(X, ones(4, 6), out=out(4 * p, 6))),
    "all_gather_matmul and rows": (
        1,
        lambda p, out: stretto.all_gather_matmul(X, ones(4, 6), return_a=True, out=out(4 * p, 6)),
    ),
    "all_gather_matmul of columns": (
        1,
        lambda p, out: stretto.all_gather_matmul(X, ones(4 * p, 6), gather_dim=-1, out=out(4, 6)),
    ),
    "all_gather_matmul of columns and rows": (
        1,
        lambda p, out: stretto.all_gather_matmul(X, ones(4 * p, 6), gather_dim=-1, return_a=True, out=out(4, 6)),
    ),
    "all_gather_matmul, several": (
        2,
        lambda p, out: stretto.all_gather_matmul(X, [ones(4, 6), ones(4, 3)], out=[out(4 * p, 6), out(4 * p, 3)]),
    ),
    "all_gather_matmul, several of columns": (
        2,
        lambda p, out: stretto.all_gather_matmul(
            X, [ones(4 * p, 6), ones(4 * p, 3)], gather_dim=-1, out=[out(4, 6), out(4, 3)]
        ),
    ),
    "matmul_reduce_scatter": (1, lambda p, out: stretto.matmul_reduce_scatter(ones(2 * p, 4), X, out=out(2, 4))),
    "matmul_reduce_scatter of columns": (
        1,
        lambda p, out: stretto.matmul_reduce_scatter(X, ones(4, 2 * p), scatter_dim=-1, out=out(4, 2)),
    ),
    "matmul_all_reduce": (1, lambda p, out: stretto.matmul_all_reduce(X, X, out=out(4, 4))),
    "matmul_all_gather": (1, lambda p, out: stretto.matmul_all_gather(X, X, out=out(4, 4 * p))),
    "matmul_all_to_all": (1, lambda p, out: stretto.matmul_all_to_all(X, ones(4, 2 * p), out=out(4 * p, 2))),
    "all_to_all_matmul": (1, lambda p, out: stretto.all_to_all_matmul(ones(2 * p, 4), ones(4 * p, 3), out=out(2, 3))),
    "all_reduce_add_rms_norm": (
        2,
        lambda p, out: stretto.all_reduce_add_rms_norm(X, X, X[0], out=(out(4, 4), out(4, 4))),
    ),
    "reduce_scatter_add_rms_norm": (
        2,
        lambda p, out: stretto.reduce_scatter_add_rms_norm(ones(2 * p, 4), X[:2], X[0], out=(out(2, 4), out(2, 4))),
    ),
    "rms_norm_columns": (
        2,
        lambda p, out: stretto.rms_norm_columns(X, X[0], residual=X, out=(out(4, 4), out(4, 4))),
    ),
    "ring_attention": (
        2,
        lambda p, out: stretto.ring_attention(
            *[ones(4, 2, 4)] * 3, contiguous=True, return_lse=True, out=(out(4, 2, 4), out(2, 4))
        ),
    ),
    "ring_attention of a batch": (1, lambda p, out: batch(out(2, 4, 2, 4))),
    "ring_attention of a batch, lse": (2, lambda p, out: batch((out(2, 4, 2, 4), out(2, 2, 4)), return_lse=True)),
    "flash_decode": (
        2,
        lambda p, out: stretto.flash_decode(
            ones(2, 2, 4), *[ones(2, 8, 4)] * 2, 5, block=4, return_lse=True, out=(out(2, 2, 4), out(2, 2))
        ),
    ),
    "moe_combine": (
        1,
        lambda p, out: stretto.moe_combine(
            ones(8, 4), np.arange(8, dtype=np.int32).reshape(4, 2), ones(4, 2), out=out(4, 4)
        ),
    ),
    "moe_layer": (
        1,
        lambda p, out: stretto.moe_layer(
            X, *[ones(2, 4, 3)] * 2, ones(2, 3, 4), experts(4 * p), ones(4 * p, 2), out=out(4, 4)
        ),
    ),
    "ep_dispatch": (
        3,
        lambda p, out: stretto.ep_dispatch(
            X, experts(4), ones(4, 2), 2, out=(out(4 * p, 4), out(4 * p, 2), out(4 * p, 2, dtype=np.int32))
        ),
    ),
    "ep_combine": (
        1,
        lambda p, out: stretto.ep_combine(
            ones(8 * p, 4), stretto.ep_dispatch(X, experts(4), ones(4, 2), 2), out=out(4, 4)
        ),
    ),
    "ep_moe_layer": (
        1,
        lambda p, out: stretto.ep_moe_layer(
            X,
            *[ones(math.ceil(4 / p), 4, 3)] * 2,
            ones(math.ceil(4 / p), 3, 4),
            experts(4),
            ones(4, 2),
            4,
            out=out(4, 4),
        ),
    ),
}


def repeated(shape, dtype):
    return np.lib.stride_tricks.as_strided(np.zeros(1, dtype), shape, (0,) * len(shape))


def sliding(shape, dtype):
    """Windows of which each begins in the one before."""
    step = np.dtype(dtype).itemsize
    return np.lib.stride_tricks.as_strided(np.zeros(100, dtype), shape, (step,) * len(shape))


def read_only(shape, dtype):
    made = np.zeros(shape, dtype)
    made.flags.writeable = False
    return made


# What a rank cannot write, and what is said of it.
WRONG = {
    "one element for all": (repeated, "share memory"),
    "windows": (sliding, "share memory"),
    "read-only": (read_only, "read-only"),
    "shape": (lambda shape, dtype: np.zeros((*shape[:-1], shape[-1] + 1), dtype), ""),
    "element type": (lambda shape, dtype: np.zeros(shape, np.float64), ""),
    "kind": (lambda shape, dtype: torch.zeros(shape), ""),
}


def sums(size):
    """That the next calls of all belong together: else one has another's."""
    for value in (1.0, 10.0, 100.0):
        assert stretto.all_reduce(np.float32([value])).tolist() == [size * value]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_what_a_rank_cannot_write_is_refused_before_anything_is_launched(name, size):
    """By that rank; the others are told in the same call."""
    count, call = CALLS[name]
    texts = []

    def body():
        call(size, Given(None))
        for wrong, (make, says) in WRONG.items():
            for place in range(count):
                stretto.barrier()
                with pytest.raises(stretto.UserError) as caught:
                    call(size, Given(make if is_last() else None, place))
                texts.append((is_last(), wrong, place, says, str(caught.value)))
                sums(size)
        call(size, Given(None))

    testing.run(size, body, timeout=30)
    for refuses, *case, says, text in texts:
        assert says in text, (case, text)
        assert size == 1 or f"rank {size - 1}" in text, (case, text)
        assert refuses or f"rank {size - 1} has refused the call in this place" in text, (case, text)


def test_tensors_with_elements_that_share_memory():
    def body():
        r = stretto.rank()
        for shape in ((4,), (3, 4)):
            x = torch.ones(shape)
            out = torch.zeros(1).expand(shape) if r == 0 else torch.zeros(shape)
            with pytest.raises(stretto.UserError, match="all_reduce: out.*share memory"):
                stretto.all_reduce(x, out=out)
            sums(2)
            with pytest.raises(stretto.UserError, match="share memory"):
                stretto.all_reduce(x, out=out, async_op=True).wait()
            sums(2)
        for whole in (torch.zeros(1, 5).expand(1, 5), torch.zeros(3, 4).t()[:2], torch.zeros(9, 9).diagonal()):
            assert (stretto.all_reduce(torch.ones(whole.shape), out=whole) == 2).all()

    testing.run(2, body, timeout=30)


def test_tensors_made_in_inference_mode_may_be_written():
    """In it and outside, where PyTorch's own functions refuse that, dense or not."""

    def body():
        with torch.inference_mode():
            whole, made = torch.zeros(4, 8), torch.zeros(4, 4)
        for out in (made, whole[:, :4]):
            for _ in range(3):
                assert (stretto.all_reduce(torch.ones(4, 4), out=out) == 2).all()
                assert (out == 2).all()
                with torch.inference_mode():
                    stretto.all_reduce(torch.ones(4, 4), out=out.zero_())
                    assert (out == 2).all()
            stretto.all_reduce(torch.full((4, 4), 2.0), out=out, async_op=True).wait()
            assert (out == 4).all()
        stretto.batch_send_recv([(torch.ones(4), 1 - stretto.rank())], [(whole[:, 5], 1 - stretto.rank())])
        assert (whole[:, 5] == 1).all()
        sums(2)

    testing.run(2, body, timeout=30)


class Broken(Exception):
    pass


class Places:
    """Of a rank's calls, where something may go wrong: before and after each launch and each copy, and
    when a plan is kept. Raises at one of them."""

    def __init__(self, monkeypatch, rank):
        self.rank, self.stop, self.passed, self.has_met = rank, None, [], False
        for owner, name in (
            (_group.Group, "launch"),
            (_group.Group, "agree_on_nothing"),
            (_group.Group, "_add_plan"),
            (_group.Group, "assign"),
        ):
            monkeypatch.setattr(owner, name, self._around(name, getattr(owner, name)))
        monkeypatch.setattr(_group.Group, "call", self._noting_end(_group.Group.call))
        monkeypatch.setattr(_arrays.NumpyKind, "assign", staticmethod(self._around("copy", _arrays.NumpyKind.assign)))

    def begin(self, stop):
        self.stop, self.passed, self.has_met = stop, [], False

    def _around(self, name, function):
        def call(*args, **kwargs):
            of_all = name == "copy" or args[0].size > 1
            if of_all:
                self._pass("before", name)
            result = function(*args, **kwargs)
            if of_all:
                self._pass("after", name)
            return result

        return call

    def _noting_end(self, function):
        def call(group, *args):
            result = function(group, *args)
            if group.size > 1 and stretto.rank() == self.rank:
                self.has_met = True
            return result

        return call

    def _pass(self, *place):
        if stretto.rank() != self.rank:
            return
        if place in (("after", "launch"), ("after", "agree_on_nothing")):
            self.has_met = True
        if self.stop is None:
            return
        self.passed.append(" ".join(place))
        if len(self.passed) == self.stop:
            self.stop = None
            raise Broken(self.passed[-1])


@pytest.mark.parametrize("name", CALLS)
def test_what_goes_wrong_at_any_place_brings_no_wrong_sums(name, monkeypatch, rng):
    """Before the first launch it is a call that was made, and the world goes on. Afterwards calls are right or
    fail, until all recover."""
    size, call = int(rng.integers(2, 5)), CALLS[name][1]
    places, gate = Places(monkeypatch, 1), threading.Barrier(size, timeout=60)

    def strided(shape, dtype):
        return np.zeros((*shape, 2), dtype)[..., 0]

    def breaks_at(stop):
        """Whether there is such a place."""
        r, error = stretto.rank(), None
        stretto._world.group_of().plans.clear()
        if r == 1:
            places.begin(stop)
        gate.wait()
        try:
            call(size, Given(strided))
        except (Broken, stretto.Error) as raised:
            error = raised
        gate.wait()
        if places.stop is not None:
            assert error is None
            return False
        if r == 1:
            assert isinstance(error, Broken), error
        elif not places.has_met:
            assert isinstance(error, stretto.UserError) and "Broken" in str(error), (places.passed, error)
        for value in (1.0, 10.0, 100.0):
            try:
                got = stretto.all_reduce(np.float32([value]))
            except stretto.Fault as failed:
                assert places.has_met and "rank 1 has broken off a call" in str(failed), failed
                continue
            assert got.tolist() == [size * value], places.passed
        gate.wait()
        stretto.recover()
        sums(size)
        gate.wait()
        return True

    def body():
        call(size, Given(strided))
        stop = 1
        while breaks_at(stop):
            stop += 1
        return stop

    assert min(testing.run(size, body, timeout=20)) > 3
