"""What stretto.trace leaves, also of ranks that are threads and of blocks that fail."""

import json

import numpy as np
import pytest

import stretto
from stretto import testing

X = np.ones((4, 4), np.float32)


def launches(path):
    """How many of all_gather, of all ranks, there are."""
    events = json.loads(path.read_text())["traceEvents"]
    return sum(e.get("cat") == "launch" and "all_gather" in e["name"] for e in events)


def test_ranks_that_are_threads(tmp_path):
    """None ends another's recording, and each file has all of them."""
    paths, again = ([tmp_path / f"{name}{r}.json" for r in range(3)] for name in ("", "again"))

    def body():
        with stretto.trace(paths[stretto.rank()]):
            for _ in range(3):
                stretto.all_gather(X)
        stretto.all_gather(X)
        with stretto.trace(again[stretto.rank()]):
            stretto.all_gather(X)

    testing.run(3, body)
    assert [launches(path) for path in paths] == 3 * [9]
    assert [launches(path) for path in again] == 3 * [3]


def test_within_another(tmp_path):
    def body():
        with stretto.trace(tmp_path / "outer.json"):
            stretto.all_gather(X)
            with pytest.raises(stretto.UserError, match="within another"):
                with stretto.trace(tmp_path / "inner.json"):
                    pass
            stretto.all_gather(X)

    testing.run(1, body)
    assert not (tmp_path / "inner.json").exists()
    assert launches(tmp_path / "outer.json") > 0


def test_a_block_that_fails(tmp_path):
    """Its recording is what one looks at then."""
    path = tmp_path / "t.json"
    stretto.init()
    try:
        with pytest.raises(KeyError, match="mine"):
            with stretto.trace(path):
                stretto.all_gather(X)
                raise KeyError("mine")
        assert launches(path) > 0
        with stretto.trace(path):
            pass
        assert launches(path) == 0
        with pytest.raises(stretto.UserError, match="cannot be written"):
            with stretto.trace("/nowhere/t.json"):
                stretto.all_gather(X)
        with stretto.trace(path):
            pass
        assert launches(path) == 0
    finally:
        stretto.finalize()


def test_a_group_that_the_block_finalizes(tmp_path):
    """Is not recorded; the others are, and further blocks record again."""
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    stretto.init()
    try:
        group, other = (stretto.new_group([0], name=name) for name in ("one", "other"))
        with stretto.trace(first):
            for each in (None, group, other):
                stretto.all_gather(X, group=each)
            stretto.finalize(group)
        assert not other.records
        with stretto.trace(second):
            stretto.all_gather(X, group=other)
        assert launches(first) == 2 * launches(second) > 0
        with stretto.trace(first):
            stretto.finalize()
        assert launches(first) == 0
    finally:
        stretto.finalize()
