"""Calls that are made again and again, for tests of what repeats them."""

import numpy as np

import stretto
from stretto import _group, testing


def repeated(size, make, monkeypatch, times=4):
    """Runs make(fill) on `size` ranks: `fill(array)` gives an array new values, call() is the call, and
    check(result, round) holds its result against what it has to be. From the second round on no rank may
    come to the operator's code."""
    first = _group.Group._first_call
    came = []

    def counted(group, op, *rest):
        came.append(group.rank)
        return first(group, op, *rest)

    monkeypatch.setattr(_group.Group, "_first_call", counted)

    def body():
        fill, call, check = make()
        for i in range(times):
            fill(i)
            check(call(), i)
            if i == 0:
                stretto.barrier()
                before = len(came)
        return before

    before = testing.run(size, body)
    assert len(came) == before[0] > 0, "came to Python code again"


def of_rank(r, i, shape, dtype=np.float32):
    return np.random.default_rng([r, i, 7]).integers(-8, 9, shape).astype(dtype)
