"""Operators as PyTorch's dispatcher has them: registered through its stable ABI where that is there,
their kernels reached below autograd, in inference mode and from graphs."""

import gc
import importlib
import shutil
import sys
import weakref

import numpy as np
import pytest

import stretto
from stretto import _route, testing

torch = pytest.importorskip("torch")
library = importlib.import_module("stretto._torch_library")
_route.load()

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
is_stable = library.registered_by() == "stable ABI"
needs_stable = pytest.mark.skipif(not is_stable, reason="this PyTorch has no stable ABI")
ops = torch.ops.stretto


@pytest.fixture(autouse=True)
def seed(rng):
    torch.manual_seed(int(rng.integers(1 << 30)))


def functions_of(call):
    """(what it returned, how many functions of stretto's ran in Python)."""
    count = 0

    def look(frame, event, _):
        nonlocal count
        name = frame.f_globals.get("__name__", "")
        count += event == "call" and name.partition(".")[0] == "stretto"

    sys.setprofile(look)
    try:
        return call(), count
    finally:
        sys.setprofile(None)


def test_who_registers():
    assert library.registered_by() == ("stable ABI" if VERSION >= (2, 10) else "Python")
    for name in ("all_reduce", "all_to_all", "moe_route_tables"):
        kernels = torch._C._dispatch_dump(f"stretto::{name}").splitlines()
        (own,) = (line for line in kernels if line.startswith("CompositeExplicitAutograd"))
        assert ("stretto/_core" in own) == is_stable, own
        assert torch.Tag.pt2_compliant_tag in getattr(ops, name).default.tags


def test_without_pytorch():
    from test_processes import finish, start

    code = """
    import numpy as np, stretto, stretto._core as core
    assert not core.OperatorLibrary.is_there()
    stretto.init()
    assert stretto.all_reduce(np.ones(3, np.float32)).sum() == 3
    """
    ((status, _, errors),) = finish(start(1, code))
    assert status == 0, errors


def cases():
    """name: arguments that differ in one thing each, of calls that plans make again."""
    x, w, norm = torch.randn(4, 6), torch.randn(8, 6), torch.randn(6)
    square, bias = torch.randn(6, 6), torch.randn(8)
    a8, w8 = torch.randn(4, 128).to(torch.float8_e4m3fn), torch.randn(8, 128).to(torch.float8_e4m3fn)
    rows, columns = torch.rand(4, 1), torch.rand(1, 8)
    scaled = a8, w8.t(), rows, columns
    q, k = torch.randn(6, 4, 8).transpose(0, 1), torch.randn(2, 6, 8)
    return {
        "all_gather": [(x, 0, ""), (x, 1, ""), (x.double(), 0, ""), (x[:, :4], 0, ""), (x[0], 0, "")],
        "reduce_scatter": [(x, 0, "sum", ""), (x, 0, "avg", ""), (square, 1, "sum", "")],
        "reduce_scatter_premul_sum": [(x, 0, 0.5, ""), (x, 0, 2.0, ""), (square, 1, 0.5, "")],
        "all_reduce": [(x, "sum", ""), (x, "avg", ""), (x.t(), "sum", ""), (x.bfloat16(), "sum", "")],
        "all_reduce_premul_sum": [(x, 0.5, ""), (x, 2.0, ""), (x.bfloat16(), 0.5, "")],
        "broadcast": [(x, 0, ""), (x, 1, "")],
        "all_gather_matmul": [(x, w.t(), 0, ""), (x, square, 0, ""), (x[:2], w.t(), 0, "")],
        "all_gather_and_matmul": [(x, w.t(), 0, ""), (x, square, 0, "")],
        "matmul_reduce_scatter": [(x, w.t(), 0, "sum", ""), (x, w.t(), 0, "avg", "")],
        "matmul_all_reduce": [(x, w.t(), True, ""), (x, w.t(), False, "")],
        "matmul_all_gather": [(x, w.t(), ""), (x, square, "")],
        "all_gather_scaled_matmul": [(*scaled, 0, "bfloat16", ""), (*scaled, 0, "float32", "")],
        "scaled_matmul_reduce_scatter": [(*scaled, 0, "sum", "float32", "")],
        "scaled_matmul_all_reduce": [(*scaled, "float16", ""), (*scaled, "float32", "")],
        "scaled_matmul_all_gather": [(*scaled, "float16", ""), (*scaled, "float32", "")],
        "all_reduce_add_rms_norm": [(x, x, norm, eps, "") for eps in (1e-5, 1e-1)],
        "matmul_all_to_all": [(x, w.t(), None, ""), (x, w.t(), bias, "")],
        "scaled_dot_product_attention": [
            (q, k, k, causal, scale, True, window, lse)
            for causal, scale, window, lse in (
                (True, None, 0, True),
                (False, None, 0, True),
                (True, 0.5, 0, True),
                (True, None, 2, False),
            )
        ],
        "moe_route": [
            (x, square, top_k, None, scoring, 1, 1, "best_two", norm_topk, 1.0)
            for top_k, scoring, norm_topk in ((2, "softmax", True), (2, "sigmoid", False))
        ],
    }


@pytest.mark.parametrize("name", cases())
def test_repeated_calls_are_those_of_their_arguments(name):
    """In turn, so that none is taken for another; without Python code where a plan makes them."""
    given = cases()[name]

    def body():
        packet, counts = getattr(ops, name), []
        scale = stretto.rank() + 1

        def call(arguments):
            mine = [
                x * scale if isinstance(x, torch.Tensor) and x.dtype is torch.float32 else x
                for x in arguments
            ]
            with torch.no_grad():
                want = packet(*mine)  # by Python's kernel
            with torch.inference_mode():
                got, count = functions_of(lambda: packet(*mine))
            counts.append(count)
            pairs = zip(want, got) if isinstance(want, tuple) else [(want, got)]
            for a, b in pairs:
                assert torch.equal(a, b) and a.stride() == b.stride() and a.dtype is b.dtype
                assert b.is_inference()

        for _ in range(4):
            counts.clear()
            for arguments in given:
                call(arguments)
        return counts

    for counts in testing.run(2, body):
        assert not is_stable or counts[0] == 0, counts


def test_what_is_more_than_a_launch_is_done_each_time():
    def body():
        r, got = stretto.rank(), []
        x = torch.full((4,), r + 1.0)
        with torch.inference_mode():
            for _ in range(4):
                got.append(ops.sum_to_root(x, 0, "") * 1)
                blocks = ops.all_to_all(x, None, [[1, 3], [3, 1]][r], "")
                assert blocks.tolist() == ([1, 2, 2, 2] if r == 0 else [1, 1, 1, 2])
                copy = ops.copy_to_ranks(x, "")
                assert torch.equal(copy, x) and copy.data_ptr() != x.data_ptr()
        return [total.sum().item() for total in got]

    assert testing.run(2, body) == [[12] * 4, [0] * 4]


@pytest.fixture(scope="module")
def echo():
    """An operator with an argument of every type; its body keeps what it got."""
    got = []

    def body(x, y, *values):
        got.append((x, y, *values))
        return x + 1, x * 2

    op = library.define(
        "echo_of_tests(Tensor x, Tensor? y, int a, int? b, bool c, bool? d, float e, float? f, str g,"
        " str? h, SymInt[]? i, int[] j, SymInt k) -> (Tensor, Tensor)",
        body,
        lambda x, *_: (torch.empty_like(x), torch.empty_like(x)),
        meets=False,
    )
    return op, got


@pytest.mark.parametrize(
    "values",
    [
        (-3, 2**62, True, False, 0.5, -1e300, "größer", "", [1, -2, 2**40], [], 7),
        (0, None, False, None, float("inf"), None, "a text of more than a few words", None, None, [5], 1),
    ],
)
def test_arguments_of_every_type(echo, values):
    op, got = echo
    x = torch.arange(3.0)
    for y in (None, torch.nn.Parameter(torch.ones(2))):
        with torch.inference_mode():
            made = op(x, y, *values)
        assert len(made) == 2 and torch.equal(made[0], x + 1) and torch.equal(made[1], x * 2)
        seen = got.pop()
        assert seen[0] is x and seen[1] is y
        assert seen[2:] == values and [type(v) for v in seen[2:]] == [type(v) for v in values]


def test_tensors_are_not_kept(echo):
    """After first calls, repeated ones, and those that fail."""
    stretto.init()
    op, got = echo
    values = 0, None, True, None, 1.0, None, "", None, None, [], 1
    try:
        for turn in range(4):
            x = torch.ones(5)
            with torch.inference_mode():
                made = ops.all_reduce(x, "sum", "")
                if turn == 0:
                    made = op(x, x, *values)[0]
                    got.clear()
                with pytest.raises(stretto.UserError):
                    ops.all_reduce(x, "bor", "")
            left = weakref.ref(x), weakref.ref(made)
            del x, made
            gc.collect()
            assert [ref() for ref in left] == [None, None]
    finally:
        stretto.finalize()


def test_errors_keep_their_types():
    def body():
        x = torch.ones(4)
        with torch.inference_mode():
            for call in (ops.all_reduce, ops.all_reduce.default):
                with pytest.raises(stretto.UserError, match="one of sum, avg") as caught:
                    call(x, "bor", "")
                assert caught.traceback[-1].name == "reduction"
            with pytest.raises(stretto.UserError, match="there is no group 'other'"):
                ops.all_reduce(x, "sum", "other")
            with pytest.raises(stretto.UserError, match="has no memory"):
                freed = torch.ones(4)
                freed.untyped_storage().resize_(0)
                ops.all_reduce(freed, "sum", "")
            with pytest.raises(RuntimeError, match="missing value") as other:  # PyTorch's own
                ops.all_reduce(x, "sum")
            assert type(other.value) is RuntimeError
            assert ops.all_reduce(x, "sum", "").sum() == 8  # the ranks still agree on which call is which

    testing.run(2, body)


@pytest.mark.parametrize("repeated", [False, True])
def test_faults_are_faults(repeated):
    def body():
        x = torch.ones(4)
        with torch.inference_mode():
            for _ in range(3 if repeated else 0):
                ops.all_reduce(x, "sum", "")
            if stretto.rank() == 1:
                return None
            with pytest.raises(stretto.Fault) as caught:
                ops.all_reduce(x, "sum", "")
            return caught.value.record

    record = testing.run(2, body, timeout=0.5)[0]
    assert record["rank"] == 0 and record["waited_for"] == 1


def test_calls_that_differ_are_refused_on_both_ranks():
    def body():
        x = torch.ones(4, 2)
        with torch.inference_mode():
            for _ in range(3):
                ops.all_reduce(x, "sum", "")
                ops.all_gather(x, 0, "")
            with pytest.raises(stretto.UserError):
                if stretto.rank() == 0:
                    ops.all_gather(x, 0, "")
                else:
                    ops.all_reduce(x, "sum", "")
            return ops.all_reduce(x, "sum", "").sum().item()

    assert testing.run(2, body) == [16, 16]


def test_after_finalize():
    stretto.init()
    x = torch.ones(4)
    with torch.inference_mode():
        for _ in range(3):
            ops.all_reduce(x, "sum", "")
        stretto.finalize()
        with pytest.raises(stretto.UserError, match="after finalize"):
            ops.all_reduce(x, "sum", "")
        stretto.init()
        assert torch.equal(ops.all_reduce(x, "sum", ""), x)
    stretto.finalize()


@needs_stable
def test_callers_that_are_not_python_get_the_text():
    stretto.init()
    op, keys = ops.all_reduce.default, torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    try:
        with pytest.raises(RuntimeError, match="^UserError: all_reduce: reduce_op 'bor': one of") as other:
            op.redispatch(keys, torch.ones(4), "bor", "")
        assert type(other.value) is RuntimeError
        with pytest.raises(stretto.UserError):  # of the next call, not what was left
            op(torch.ones(4), "bxor", "")
    finally:
        stretto.finalize()


def test_graphs_in_inference_mode():
    if not (shutil.which("c++") or shutil.which("g++")):
        pytest.skip("torch.compile needs a C++ compiler")
    from test_processes import finish, start

    code = """
    import os, signal, threading, torch, stretto
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
    stretto.init(timeout=60)
    r = stretto.rank()
    x, w = torch.full((2, 4), r + 1.0), torch.ones(4, 3)

    def step(x, w):
        y = stretto.all_gather_matmul(x, w) * 2
        return stretto.reduce_scatter(y), stretto.all_reduce(x).sin()

    with torch.inference_mode():
        for backend in ("aot_eager", "inductor"):
            torch._dynamo.reset()
            compiled = torch.compile(step, fullgraph=True, backend=backend)
            for _ in range(4):
                torch.testing.assert_close(compiled(x, w), step(x, w))
        if r == 0:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                compiled(x, w)
            except KeyboardInterrupt:
                print("interrupted")
        else:
            threading.Event().wait(1.5)
        try:
            compiled(x, w)
        except stretto.Fault as fault:
            print(type(fault).__name__, fault.record is not None)
    """
    ends = finish(start(2, code))
    for status, _, errors in ends:
        assert status == 0, errors
    assert ends[0][1].splitlines() == ["interrupted", "Fault True"], ends
    assert ends[1][1].splitlines() == ["Fault True"], ends


def test_groups_have_calls_of_their_own():
    def body():
        r = stretto.rank()
        pair = stretto.new_group([0, 1], name="pair")
        x, got = torch.full((2,), r + 1.0), []
        with torch.inference_mode():
            for _ in range(4):
                got.append(ops.all_reduce(x, "sum", "")[0].item())
                if pair.rank >= 0:
                    got.append(ops.all_reduce(x, "sum", "pair")[0].item())
        if pair.rank < 0:
            with torch.inference_mode(), pytest.raises(stretto.UserError, match="not among them"):
                ops.all_reduce(x, "sum", "pair")
        return got

    assert testing.run(3, body) == [[6, 3] * 4, [6, 3] * 4, [6] * 4]


def test_symmetric_tensors():
    def body():
        shard = stretto.symm_mem.empty(4, 4, dtype=torch.float32)
        shard.fill_(stretto.rank())
        own = torch.full((4, 4), float(stretto.rank()))
        with torch.inference_mode():
            for _ in range(4):
                for x in (shard, own):
                    assert ops.all_gather(x, 0, "")[:, 0].tolist() == [0] * 4 + [1] * 4
        return np.asarray(shard)[0, 0]

    assert testing.run(2, body) == [0, 1]
