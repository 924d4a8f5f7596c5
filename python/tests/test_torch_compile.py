"""What torch.compile makes of calls that the ranks must make in one order: each process compiles a
graph of its own, and may use the results in a way of its own. And what tracing passes outside of
it, tensors without memory."""

import shutil

import pytest

import stretto
from forked_ranks import run_on_forks
from stretto import testing

torch = pytest.importorskip("torch")
needs_compiler = pytest.mark.skipif(
    not (shutil.which("c++") or shutil.which("g++")), reason="torch.compile needs a C++ compiler"
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("inductor"))


def run(size, cache, body):
    """Compiled graphs are kept in `cache`, not with those of other versions of the package."""
    begin = "import torch, stretto\nstretto.init()\nr = stretto.rank()\n"
    variables = {"TORCHINDUCTOR_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
    run_on_forks(size, begin + body, **variables)


@pytest.mark.drawn(4)
@needs_compiler
def test_calls_keep_their_order(cache):
    """Of one shape, so that a call would take what another sends."""
    run(
        2,
        cache,
        """
def step(x, y):
    a, b = stretto.all_reduce(x), stretto.all_reduce(y)
    return (a.sum(), b.sum()) if r == 0 else (b.sum(), a.sum())

x, y = torch.full((2, 4), r + 1.0), torch.full((2, 4), 10.0 * (r + 1))
want = step(x, y)
assert [float(v) for v in want] == ([24, 240] if r == 0 else [240, 24])
torch.testing.assert_close(torch.compile(step, fullgraph=True)(x, y), want)
""",
    )


@pytest.mark.drawn(4)
@needs_compiler
def test_calls_of_gradients_keep_their_order(cache):
    run(
        2,
        cache,
        """
def step(x, w, v):
    a = stretto.all_gather_matmul(x, w)
    b = stretto.matmul_reduce_scatter(torch.relu(a), v)
    c = stretto.all_reduce(x)
    return b.sum() + c.sin().sum() if r == 0 else c.sin().sum() + 2 * b.sum()

def gradients(function):
    x, w, v = (torch.linspace(-1, 1, n * k).reshape(n, k) for n, k in ((2, 4), (4, 6), (6, 4)))
    leaves = [t.add(r).requires_grad_() for t in (x, w, v)]
    total = function(*leaves)
    total.backward()
    return total.detach(), *(t.grad for t in leaves)

for backend in ("aot_eager", "inductor"):
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    torch.testing.assert_close(gradients(compiled), gradients(step))
""",
    )


@needs_compiler
@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.drawn(4))]
)
def test_calls_are_kept_whose_result_a_rank_does_not_use(cache, backend):
    run(
        2,
        cache,
        f"""
def step(x, w):
    total = stretto.all_reduce(x)
    product = stretto.all_gather_matmul(x, w)
    return (total, x + 1) if r == 0 else (product, x + 1)

x, w = torch.full((2, 4), r + 1.0), torch.ones(4, 3)
got = torch.compile(step, fullgraph=True, backend="{backend}")(x, w)
torch.testing.assert_close(got, step(x, w))
assert r != 0 or (got[0] == 3).all()
""",
    )


@pytest.mark.drawn(4)
@needs_compiler
def test_kept_graphs_are_those_of_as_many_ranks(tmp_path):
    """The code is the same, and so is what each rank passes."""
    for size in (2, 3):
        run(
            size,
            str(tmp_path),
            f"""
@torch.compile(fullgraph=True)
def step(x):
    return stretto.all_gather(x).cos().sum(1), stretto.reduce_scatter(x).sin() * 2

gathered, scattered = step(torch.ones(6, 4))
assert gathered.shape == ({6 * size},) and scattered.shape == ({6 // size}, 4)
""",
        )


def test_only_operators_in_which_ranks_meet_have_an_order():
    effects = pytest.importorskip("torch._higher_order_ops.effects")
    if not hasattr(effects, "_get_effect"):
        pytest.skip("this PyTorch tells no effects")
    from stretto import _torch, _torch_forward

    def is_ordered(op):
        return effects._get_effect(op) is not None

    for module, names in (
        (_torch, ["all_gather", "sum_to_root", "matmul_reduce_scatter_gradients"]),
        (_torch_forward, ["sequence_attention", "flash_decode", "all_to_all_matmul"]),
        (_torch_forward, ["moe_combine", "grouped_matmul_all_reduce", "ep_dispatch", "ep_combine"]),
    ):
        assert all(is_ordered(getattr(module, name)) for name in names)
    for op in (_torch.copy_to_ranks, _torch_forward.moe_route, _torch_forward.grouped_matmul):
        assert not is_ordered(op)


def test_tensors_without_memory_are_refused():
    """Where reading them would end the process."""
    from torch._subclasses import FakeTensorMode
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner):
            self.inner = inner

        def __tensor_flatten__(self):
            return ["inner"], None

        @staticmethod
        def __tensor_unflatten__(inner, _, size, stride):
            return Wrapper(inner["inner"])

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return torch.utils._pytree.tree_map_only(
                torch.Tensor,
                Wrapper,
                func(*(getattr(x, "inner", x) for x in args), **(kwargs or {})),
            )

    class Spread(Wrapper):
        def to_local(self):
            return self.inner

    def freed():
        x = torch.ones(4)
        x.untyped_storage().resize_(0)
        return x

    assert is_traceable_wrapper_subclass(Wrapper(torch.ones(4)))
    cases = [
        (freed, "Tensor of 4 elements has no memory"),
        (
            lambda: FakeTensorMode().from_tensor(torch.ones(4)),
            "FakeTensor of 4 elements has no memory",
        ),
        (lambda: Wrapper(torch.ones(4)), "Wrapper of 4 elements has no memory"),
        (lambda: Spread(torch.ones(4)), r"pass this rank's part, x\.to_local\(\)"),
    ]

    def body():
        for make, said in cases:
            with pytest.raises(stretto.UserError, match=said):
                stretto.all_reduce(make())
        total = stretto.all_reduce(torch.ones(4))
        with pytest.raises(stretto.UserError, match="no memory"):  # also where calls are repeated
            stretto.all_gather(torch.ones(4), out=Wrapper(torch.ones(8)))
        assert stretto.all_gather(torch.empty(0, 3)).shape == (0, 3)
        return total

    for total in testing.run(2, body):
        assert torch.equal(total, torch.full((4,), 2.0))


@pytest.mark.drawn(4)
def test_calls_that_no_graph_holds_run_beside_it():
    """Of blocks whose sizes the ranks have yet to tell each other, which torch.compile leaves out where it may;
    and of calls that are refused."""
    code = """
    import torch, stretto
    stretto.init()
    r = stretto.rank()
    x = torch.arange(6.0).reshape(3, 2) + 10 * r
    rows = [[1, 2], [3, 0]]

    def exchange(x):
        return stretto.all_to_all(x + 0, None, rows[r]) * 2

    want = exchange(x)
    torch.testing.assert_close(torch.compile(exchange, backend="aot_eager")(x), want)
    for wrong, said in (
        (lambda: stretto.all_to_all(x, None, [1, 1]), "[1, 1] of 3 rows"),
        (lambda: stretto.all_reduce(x, reduce_op="bor"), "one of sum, avg"),
    ):
        for _ in range(2):
            try:
                torch.compile(wrong, backend="aot_eager")()
            except stretto.UserError as error:
                assert said in str(error), error
            else:
                raise AssertionError("compiled")
    assert stretto.all_reduce(torch.ones(1))[0] == 2
    stretto.finalize()
    """
    run_on_forks(2, code)


def with_out():
    """name: (a call with out=, its result), of operators of all modules."""
    x, w, norm = torch.randn(4, 6), torch.randn(6, 6), torch.ones(6)
    q, starts = torch.randn(6, 4, 8), torch.tensor([0, 2, 6], dtype=torch.int32)
    a, b = (torch.randn(n, 32).to(torch.float8_e4m3fn) for n in (4, 6))
    scales = {"scale_a": torch.rand(4, 1), "scale_b": torch.rand(1, 6)}
    return {
        "all_reduce": (lambda out: stretto.all_reduce(x, reduce_op="avg", out=out), (4, 6)),
        "all_to_all": (lambda out: stretto.all_to_all(x, out=out), (4, 6)),
        "all_gather_matmul": (lambda out: stretto.all_gather_matmul(x, w, out=out), (4, 6)),
        "a list": (lambda out: stretto.all_gather_matmul(x, [w, w], out=[None, out])[1], (4, 6)),
        "scales": (lambda out: stretto.all_gather_matmul(a, b.t(), out=out, **scales), (4, 6)),
        "matmul_reduce_scatter": (
            lambda out: stretto.matmul_reduce_scatter(x, w, out=out),
            (4, 6),
        ),
        "norm": (
            lambda out: stretto.all_reduce_add_rms_norm(x, x, norm, out=(out, None))[0],
            (4, 6),
        ),
        "packed_attention": (
            lambda out: stretto.packed_attention(q, q, q, starts, out=out),
            (6, 4, 8),
        ),
        "ring_attention": (lambda out: stretto.ring_attention(q, q, q, out=out), (6, 4, 8)),
        "grouped_matmul": (
            lambda out: stretto.grouped_matmul(q[:, 0], torch.ones(1, 8, 6), starts[::2], out=out),
            (6, 6),
        ),
    }


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", with_out())
def test_calls_with_out_are_made_beside_graphs(rng, name):
    """Where a graph has to hold all, the error says what to do."""
    torch.manual_seed(int(rng.integers(1 << 30)))
    call, shape = with_out()[name]
    stretto.init()
    try:
        want, out = call(torch.empty(shape)), torch.full(shape, float("nan"))
        with pytest.raises(Exception, match="for out= copy the result, such as out.cop"):
            torch.compile(call, fullgraph=True, backend="eager")(torch.empty(shape))
        torch._dynamo.reset()
        got = torch.compile(lambda out: call(out) * 2, backend="eager")(out)
        assert torch.equal(out, want) and torch.equal(got, want * 2)
    finally:
        stretto.finalize()
        torch._dynamo.reset()


def _sent_to_itself(x):
    received = torch.empty_like(x)
    stretto.batch_send_recv([(x, 0)], [(received, 0)])
    return received


BESIDE_GRAPHS = {
    "reduce": lambda x: stretto.reduce(x),
    "gather": lambda x: stretto.gather(x),
    "scatter": lambda x: stretto.scatter(x),
    "batch_send_recv": lambda x: _sent_to_itself(x),
    "all_gather_v": lambda x: stretto.all_gather_v(x, torch.tensor(2)).rows[:2],
    "sizes=": lambda x: stretto.all_gather(x, sizes=[2]),
    "payload=": lambda x: stretto.all_gather(x, payload="int8"),
    "async_op=": lambda x: stretto.all_gather(x, async_op=True).wait(),
}


@pytest.mark.parametrize("name", BESIDE_GRAPHS)
def test_calls_that_no_graph_holds_end_it(name):
    """And the error of fullgraph=True says that they are such."""
    call, x = BESIDE_GRAPHS[name], torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    stretto.init()
    try:
        want = call(x)
        with pytest.raises(Exception, match="sizes=, payload= or async_op=True, nor reduce, gather"):
            torch.compile(call, fullgraph=True, backend="eager")(x)
        torch._dynamo.reset()
        got = torch.compile(lambda x: call(x + 0) * 2, backend="eager")(x)
        assert torch.equal(got, want * 2)
    finally:
        stretto.finalize()
        torch._dynamo.reset()


@pytest.mark.drawn(4)
@needs_compiler
def test_what_is_called_for_instead_of_out(cache):
    run(
        2,
        cache,
        """
@torch.compile(fullgraph=True)
def step(x, w, out):
    return out.copy_(stretto.all_gather_matmul(x, w)).sum(), stretto.all_reduce(x)

x, w, out = torch.full((2, 4), r + 1.0), torch.ones(4, 3), torch.full((4, 3), -1.0)
for _ in range(2):
    total, _ = step(x, w, out.fill_(-1))
    torch.testing.assert_close(out, stretto.all_gather_matmul(x, w))
    assert total == out.sum() == 2 * 3 * (4 + 8)
""",
    )


@needs_compiler
@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.drawn(4))]
)
def test_a_list_of_weights_with_scales(rng, cache, backend):
    """Gathered in the order of the other ranks' calls, whatever a rank makes of the results."""
    run(
        2,
        cache,
        f"""
torch.manual_seed({rng.integers(1 << 30)} + r)
f8 = torch.float8_e4m3fn
a, scale_a = torch.randn(4, 32).to(f8), torch.rand(4, 1)
weights = [torch.randn(n, 32).to(f8).t() for n in (16, 3)]
scales = [torch.rand(1, n) for n in (16, 3)]

def step(a, scale_a, *given):
    weights, scales = given[:2], given[2:]
    both = stretto.all_gather_matmul(a, weights, scale_a=scale_a, scale_b=scales)
    return both[1] * 2 if r == 0 else both[0] + 1, stretto.all_reduce(scale_a)

want = step(a, scale_a, *weights, *scales)
compiled = torch.compile(step, fullgraph=True, backend="{backend}")
for _ in range(2):
    torch.testing.assert_close(compiled(a, scale_a, *weights, *scales), want)
""",
    )
