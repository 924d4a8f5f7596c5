"""Threads of a rank that call operators which are not collective at the same time."""

import threading

import numpy as np
import pytest

import stretto
from test_ops import near, softmax_attention


def run_threads(count, body):
    errors = []

    def caught(i):
        try:
            body(i)
        except BaseException as error:  # pylint: disable=broad-except
            errors.append(error)

    threads = [threading.Thread(target=caught, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


@pytest.fixture
def world():
    stretto.init()
    yield stretto._world.group_of()
    stretto.finalize()


def test_attention_by_several_threads_at_once(rng, world):
    """Beside collective calls of the first one."""
    q, k, v = (rng.uniform(-1, 1, (8, 100, 16)).astype(np.float32) for _ in range(3))
    want = softmax_attention(*(x.swapaxes(0, 1) for x in (q, k, v)), [100] * 100).swapaxes(0, 1)
    begin = threading.Barrier(4)

    def body(_):
        begin.wait(20)
        for _ in range(30):
            near(stretto.scaled_dot_product_attention(q, k, v), want, "float32")

    first = threading.Thread(target=run_threads, args=(3, body))
    first.start()
    begin.wait(20)
    for _ in range(30):
        near(stretto.all_reduce(q), q, "float32")
        near(stretto.scaled_dot_product_attention(q, k, v), want, "float32")
    first.join()
    assert len(world._alone) == 3


def test_threads_that_end_leave_their_place_to_others(rng, world, tmp_path):
    x, gate = rng.random((4, 8), np.float32), rng.random((3, 8), np.float32)
    with stretto.trace(tmp_path / "threads.json"):
        for _ in range(20):
            run_threads(1, lambda _: stretto.moe_route(x, gate, 2))
    assert len(world._alone) == 1
    assert "moe_route" in (tmp_path / "threads.json").read_text()
