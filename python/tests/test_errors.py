"""What a user gets who asks for something impossible: an exception that says what, on every rank,
and a world that still works."""

import os
import re
import subprocess
import sys
import threading

import numpy as np
import pytest

import stretto
from stretto import testing

X = np.ones((4, 4), np.float32)
H = X.reshape(2, 2, 4)  # two heads
COPY = stretto.operator("all_gather", ranks=1, m=4, n=4, target="cpu")


@pytest.fixture
def world():
    stretto.init()
    yield
    stretto.finalize()


def test_before_init_and_after_finalize(monkeypatch):
    monkeypatch.setattr(stretto._world._Thread, "member", stretto._world._Member())
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(stretto.UserError, match="^rank 0: .* before init"):
        stretto.all_reduce(X)
    monkeypatch.delenv("RANK")
    with pytest.raises(stretto.UserError, match="^stretto is used before init"):
        stretto.all_reduce(X)
    stretto.init()
    with pytest.raises(stretto.UserError, match="^rank 0: .* twice"):
        stretto.init()
    kept = stretto.symm_mem.empty(8)
    stretto.all_reduce(X)
    stretto.finalize()
    with pytest.raises(stretto.UserError, match="^rank 0: .* after finalize"):
        stretto.all_reduce(X)
    assert kept.sum() == 0
    stretto.finalize()
    stretto.init()
    stretto.finalize()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: stretto.all_reduce(X.astype(np.int64)), "element type int64 of x; .* float64"),
        (lambda: stretto.scaled_dot_product_attention(*[np.ones((1, 2, 4))] * 3), "type float64"),
        (lambda: stretto.prove("attention", m=4, n=4, dtype="float64"), "dtype is float64"),
        (lambda: stretto.prove("embedding", m=4, n=4, dtype="float64"), "dtype is float64"),
        (lambda: stretto.all_reduce([1.0]), "list: need a NumPy array"),
        (lambda: stretto.all_reduce(X, reduce_op="bor"), "reduce_op 'bor'"),
        (lambda: stretto.all_reduce(X, out=X[:2].copy()), "out is a NumPy array, float32 \\(2, 4\\)"),
        (lambda: stretto.all_gather(X, dim=2), "dim 2 of an array of 2"),
        (lambda: stretto.all_gather_matmul(X, X[:3]), "shapes \\(4, 4\\) and \\(3, 4\\)"),
        (lambda: stretto.all_gather_matmul(X, X.astype(np.float16)), "float32 and float16 differ"),
        (lambda: stretto.all_gather_matmul(X, X, gather_dim=2), "gather_dim 2 of an array of 2"),
        (lambda: stretto.all_gather_matmul(X, X[:3], gather_dim=-1), "shapes \\(4, 4\\) and \\(3, 4"),
        (lambda: stretto.broadcast(X, 1), "root 1 of 1"),
        (lambda: stretto.all_to_all(X, input_split_sizes=[3]), "input_split_sizes \\[3\\]"),
        (lambda: stretto.symm_mem.empty(-1), "shape"),
        (lambda: stretto.symm_mem.empty(2**62, 4), "are 73786976294838206464 bytes"),
        (lambda: stretto.all_gather(X, dim=2**70), "dim is 1180591620717411303424, need a number of 64 bits"),
        (lambda: stretto.scaled_dot_product_attention(H, H[:0], H[:0], enable_gqa=True), "without heads"),
        (lambda: stretto.scaled_dot_product_attention(*3 * [H[..., :0]]), "without heads or elements"),
        (lambda: stretto.moe_route(X, X, -1), "top_k is -1 of 4 experts"),
        (lambda: stretto.moe_route(X, X, 0), "top_k is 0 of 4 experts"),
        (lambda: stretto.moe_route(X, X, 5), "top_k is 5 of 4 experts"),
        (lambda: stretto.moe_route(X, X, 2**70), "top_k is 1180591620717411303424"),
        (lambda: COPY(X, m=2**63), "m is 9223372036854775808, need a number of 64 bits"),
        (lambda: COPY(X, m="4"), "m is '4', need a whole number"),
        (lambda: stretto.trace(3).__enter__(), r"trace\(3\): need a path"),
        (lambda: stretto.load(None), r"load\(None\): need a path"),
        (lambda: stretto.symm_mem.empty(4, dtype="nonsense"), "symm_mem.empty: 'nonsense' is no element type"),
        (lambda: stretto.explain("no_such"), "no_such"),
        (lambda: stretto.Program.parse("tile program"), "line 1|text:1|1:"),
        (lambda: stretto.load("/nowhere.cc"), "nowhere.cc"),
    ],
)
def test_bad_requests(world, call, message):
    with pytest.raises(stretto.UserError, match=message):
        call()
    np.testing.assert_array_equal(stretto.all_reduce(X), X)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"timeout": "soon"}, "timeout='soon'.*number of seconds"),
        ({"timeout": float("inf")}, "timeout=inf"),
        ({"timeout": 0}, "timeout=0"),
        ({"group": 3}, "need a torch.distributed group"),
        ({"group": "tp"}, "need a torch.distributed group"),
    ],
)
def test_what_init_refuses(options, message):
    with pytest.raises(stretto.UserError, match=message):
        stretto.init(**options)


def test_a_bad_request_names_its_rank():
    def body():
        wrong = X[:, :3] if stretto.rank() == 1 else X
        named = r"\(4, 3\).* \(on rank 1 of 2\)$"
        with pytest.raises(stretto.UserError, match=named):
            stretto.all_gather_matmul(wrong, X)
        return stretto.all_reduce(X)

    for got in testing.run(2, body):
        np.testing.assert_array_equal(got, 2 * X)


def test_read_only_out(world):
    out = X.copy()
    out.flags.writeable = False
    with pytest.raises(stretto.UserError, match="read-only"):
        stretto.all_reduce(X, out=out)


def test_two_threads_of_one_rank():
    def body():
        group = stretto._world.group_of()
        with group.used():
            with pytest.raises(stretto.UserError, match="another thread"):
                stretto.all_reduce(X)
        return stretto.all_reduce(X)

    np.testing.assert_array_equal(testing.run(1, body)[0], X)


def test_after_fork(world):
    child = os.fork()
    if child == 0:
        try:
            stretto.all_reduce(X)
            os._exit(1)
        except stretto.UserError as error:
            os._exit(0 if "rank 0: " in str(error) and "fork" in str(error) else 2)
    assert os.waitpid(child, 0)[1] == 0
    stretto.all_reduce(X)


def test_ranks_that_disagree_get_the_same_error():
    errors = []

    def body():
        r = stretto.rank()
        try:
            stretto.all_gather(X[: 2 + r])
        except stretto.UserError as error:
            errors.append(str(error))
        return stretto.all_reduce(X)

    for got in testing.run(2, body):
        np.testing.assert_array_equal(got, 2 * X)
    assert len(errors) == 2 and errors[0] == errors[1]


@pytest.mark.parametrize("columns", [2, 3])
def test_a_first_call_of_another_shape_that_needs_the_same_memory(columns):
    """The call that some have made ready meanwhile works once all make it."""

    def body():
        own = columns if stretto.rank() == 1 else 5 - columns
        with pytest.raises(stretto.UserError, match="differ between ranks"):
            stretto.matmul_reduce_scatter(X[:, :own], X[:own])
        return [stretto.matmul_reduce_scatter(X[:, :k], X[:k]) for k in (2, 3)]

    for r, results in enumerate(testing.run(2, body)):
        for k, got in zip((2, 3), results):
            np.testing.assert_array_equal(got, np.split(2 * X[:, :k] @ X[:k], 2)[r])


X8 = np.ones((8, 8), np.float32)


@pytest.mark.parametrize(
    "mine, theirs, named",
    [
        (lambda: stretto.all_reduce(X), lambda: stretto.all_gather(X), "all_reduce.*all_gather"),
        (lambda: stretto.all_reduce(X), lambda: stretto.all_reduce(X8), r"\[4, 4\].*\[8, 8\]"),
        (
            lambda: stretto.all_reduce(X),
            lambda: stretto.all_reduce(X.astype(np.float16)),
            "float32.*float16",
        ),
        (lambda: stretto.broadcast(X, 0), lambda: stretto.broadcast(X, 1), "broadcast.*broadcast"),
        (lambda: stretto.all_reduce(X), stretto.barrier, "all_reduce.*barrier"),
        (
            lambda: stretto.all_reduce(X),
            lambda: stretto.all_reduce(X, reduce_op="avg"),
            "all_reduce.*avg",
        ),
        (lambda: stretto.all_reduce(X8), lambda: stretto.all_reduce(X8.reshape(4, 16)), ", 8.*, 16"),
        (lambda: stretto.all_gather(X), lambda: stretto.all_gather(X, dim=1), "dim=0.*dim=1"),
        (
            lambda: stretto.all_gather(X.view(np.uint8)),
            lambda: stretto.all_gather(X.view(np.uint8).astype(bool)),
            "uint8.*bool",
        ),
        (
            lambda: stretto.reduce_scatter(X),
            lambda: stretto.reduce_scatter(X, reduce_op="avg"),
            "reduce_scatter.*avg",
        ),
        (
            lambda: stretto.matmul_reduce_scatter(X, X),
            lambda: stretto.matmul_reduce_scatter(X, X, reduce_op="avg"),
            "matmul_reduce_scatter.*avg",
        ),
        (
            lambda: stretto.all_gather_matmul(X8.reshape(4, 4, 4), X),
            lambda: stretto.all_gather_matmul(X8.reshape(4, 4, 4), X, gather_dim=1),
            "dim=0.*dim=1",
        ),
        (
            lambda: stretto.all_gather(X),
            lambda: stretto.all_gather(stretto._world.group_of().shared),
            r"all_gather\(.*all_gather\(.*in symmetric memory at byte 0",
        ),
    ],
)
def test_ranks_that_call_differently_what_they_called_before(mine, theirs, named):
    """Else they wait for each other until the deadline and the world is lost."""
    errors = [None, None]

    def body():
        stretto._world.group_of().shared = stretto.symm_mem.empty(4, 4)
        for call in (mine, theirs, mine, theirs):
            call()
        with pytest.raises(stretto.UserError) as caught:  # at the deadline it is a Fault
            (mine, theirs)[stretto.rank()]()
        errors[stretto.rank()] = str(caught.value)
        return stretto.all_reduce(X)

    for got in testing.run(2, body):
        np.testing.assert_array_equal(got, 2 * X)
    assert errors[0] == errors[1]
    assert re.search(named, errors[0]), errors[0]


def test_a_rank_that_does_not_come_is_named_and_the_world_recovers():
    gate = threading.Barrier(2)

    def body():
        stretto.all_gather(X)
        if stretto.rank() == 0:
            with pytest.raises(stretto.Fault) as caught:
                stretto.all_gather(X)
            assert caught.value.record["waited_for"] == 1, caught.value.record
        gate.wait(20)
        stretto.recover()
        return stretto.all_reduce(X)

    for got in testing.run(2, body, timeout=1):
        np.testing.assert_array_equal(got, 2 * X)


def test_devices_of_symmetric_memory_that_there_are_not(world):
    for device in ("cuda:x", "cuda:-1", -1, "cuda:"):
        with pytest.raises(stretto.UserError, match="device .*need a type and a number"):
            stretto.symm_mem.empty(4, device=device)
    assert isinstance(stretto.symm_mem.empty(4, device="cpu:0"), np.ndarray)


def test_a_number_is_that_of_a_gpu(world, monkeypatch):
    """As torch.device has it, 0 as well."""
    asked = []

    def of_numpy(device_type):
        asked.append(device_type)
        raise stretto.UserError("no GPU here")

    monkeypatch.setattr(stretto.symm_mem, "kind_of_numpy", of_numpy)
    for device in (0, 1, np.int64(0), "cuda:0"):
        with pytest.raises(stretto.UserError, match="no GPU here"):
            stretto.symm_mem.empty(4, device=device)
    assert asked == ["cuda"] * 4


E4, E128 = np.ones((4, 8), np.float32), np.ones((4, 128), np.float32)
WEIGHTS, ROWS = np.ones((4, 2), np.float32), np.ones((4, 1, 8), np.float32)
PAGES = np.ones((2, 1, 64, 8), np.float32)
SLOTS, STARTS = np.arange(8, dtype=np.int32).reshape(4, 2), np.array([0, 4], np.int32)
TABLE, TOKENS = np.zeros((4, 1), np.int32), np.full(4, 4, np.int32)


@pytest.mark.parametrize(
    "call",
    [
        lambda f: stretto.scaled_dot_product_attention(*[ROWS] * 3, is_causal=f, return_lse=f),
        lambda f: stretto.scaled_dot_product_attention(*[ROWS] * 3, enable_gqa=f),
        lambda f: stretto.packed_attention(*[ROWS] * 3, STARTS, is_causal=f, return_lse=f),
        lambda f: stretto.paged_attention(
            ROWS, *[PAGES] * 2, STARTS, TABLE[:1], TOKENS[:1], is_causal=f, return_lse=f
        ),
        lambda f: stretto.paged_decode(ROWS, *[PAGES] * 2, TABLE, TOKENS, return_lse=f),
        lambda f: stretto.flash_decode(ROWS, *[PAGES[0]] * 2, 4, return_lse=f),
        lambda f: stretto.sequence_attention(*[ROWS] * 3, is_causal=f, return_lse=f),
        lambda f: stretto.ring_attention(*[ROWS] * 3, is_causal=f, queries_travel=f, return_lse=f),
        lambda f: stretto.moe_route(E4, E4, 2, norm_topk_prob=f, tables=f),
        lambda f: stretto.moe_combine(np.ones((8, 8), np.float32), SLOTS, WEIGHTS, scatter=f),
        lambda f: stretto.ep_dispatch(E128, SLOTS % 4, WEIGHTS, 4, fp8=f).weights,
        lambda f: stretto.all_gather_matmul(E4, E4.T, return_a=f),
    ],
)
@pytest.mark.parametrize("flag", [True, False])
def test_flags_are_what_counts_as_true_or_false(world, call, flag):
    """NumPy's, too; none makes a later call fail."""
    stretto._calls.with_options.cache_clear()
    got = [call(given) for given in (np.bool_(flag), int(flag), flag)]
    for one in got[1:]:
        assert type(one) is type(got[0])
        both = ((one,), (got[0],)) if isinstance(one, np.ndarray) else (one, got[0])
        for x, y in zip(*both):
            np.testing.assert_array_equal(x, y)


def test_numbers_of_groups_of_experts_are_whole_ones(world):
    for given in (2.0, None):
        with pytest.raises(stretto.UserError, match="n_group is .*need a whole number"):
            stretto.moe_route(E4, E4, 2, n_group=given)
    stretto.moe_route(E4, E4, 2, n_group=2)


def test_a_rank_that_raises_ends_the_others():
    def body():
        if stretto.rank() == 1:
            raise KeyError("mine")
        with pytest.raises(stretto.Fault, match="rank 1 died"):
            stretto.all_reduce(X)

    with pytest.raises(KeyError):
        testing.run(2, body)


def test_exit_without_finalize():
    code = "import numpy, stretto; stretto.init(); x = stretto.symm_mem.empty(4); stretto.all_reduce(x)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("on_rank", [0, 1])
@pytest.mark.parametrize("name, dim", [("matmul_reduce_scatter", "scatter_dim"), ("all_gather_matmul", "gather_dim")])
def test_pytorchs_own_products_refuse_with_our_errors(name, dim, on_rank):
    """Columns are multiplied by PyTorch in autocast, where a gradient is wanted. What is scattered after it the
    other rank does not get; what was gathered before it has. Elsewhere no rank gets anything."""
    torch = pytest.importorskip("torch")

    def body():
        a = torch.ones(4, 4 if dim == "scatter_dim" else 2, dtype=torch.float64, requires_grad=True)
        b = torch.ones(4, 4, dtype=torch.float32 if stretto.rank() == on_rank else torch.float64)
        with pytest.raises(stretto.Error, match=name):
            getattr(stretto, name)(a, b, **{dim: -1})
        with torch.autocast("cpu", dtype=torch.bfloat16):
            if name == "all_gather_matmul" and stretto.rank() != on_rank:
                assert stretto.all_gather_matmul(a, b, gather_dim=-1).shape == (4, 4)
            else:
                with pytest.raises(stretto.Error, match=name):
                    getattr(stretto, name)(a, b, **{dim: -1})
        return float(stretto.all_reduce(torch.ones(1)))

    assert testing.run(2, body, timeout=60) == [2, 2]
