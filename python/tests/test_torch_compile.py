"""What torch.compile makes of calls that the ranks must make in one order: each process compiles a
graph of its own, and may use the results in a way of its own. And what tracing passes outside of
it, tensors without memory."""

import shutil

import pytest

import stretto
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
    from test_processes import finish, start

    begin = "import torch, stretto\nstretto.init()\nr = stretto.rank()\n"
    variables = {"TORCHINDUCTOR_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
    ends = finish(start(size, begin + body, **variables), 240)
    for rank, (code, _, errors) in enumerate(ends):
        assert code == 0, f"rank {rank}: {errors}"


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
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
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
                torch.Tensor, Wrapper, func(*(getattr(x, "inner", x) for x in args), **(kwargs or {}))
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
        (lambda: FakeTensorMode().from_tensor(torch.ones(4)), "FakeTensor of 4 elements has no memory"),
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


def test_calls_that_no_graph_holds_run_beside_it():
    """Of blocks whose sizes the ranks have yet to tell each other, which torch.compile leaves out where it may;
    and of calls that are refused."""
    from test_processes import finish, start

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
        (lambda: stretto.all_reduce(x, reduce_op="max"), "one of sum, avg"),
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
    for rank, (status, _, errors) in enumerate(finish(start(2, code), 240)):
        assert status == 0, f"rank {rank}: {errors}"
