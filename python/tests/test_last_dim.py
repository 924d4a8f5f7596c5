"""Products that gather what they sum over, or scatter their columns, as PyTorch calls them: gradients, graphs of
torch.compile, and calls that plans make again. References are computed in one process."""

import pytest

import stretto
from forked_ranks import run_on_forks
from stretto import _route, testing

torch = pytest.importorskip("torch")
_route.load()

SIZES = (1, 2, 3, 4)
NEAR = {torch.float32: {"rtol": 1e-4, "atol": 1e-4}, torch.bfloat16: {"rtol": 3e-2, "atol": 6e-2}}


@pytest.fixture(autouse=True)
def seed(rng):
    torch.manual_seed(int(rng.integers(1 << 30)))


def of_ranks(size, *shape, dtype=torch.float32):
    return [torch.randn(*shape).to(dtype) for _ in range(size)]


def leaves(tensors, needed=True):
    return [t.clone().requires_grad_(needed) for t in tensors]


def drawn(rng, size):
    """(dimensions before the last of a rank's factor, its k, n of its weights): ragged ones."""
    lead = [(int(rng.integers(1, 40)),), (int(rng.integers(1, 6)), int(rng.integers(1, 9)))][int(rng.integers(2))]
    return lead, int(rng.integers(1, 33)), int(rng.integers(1, 33))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("needed", ["a", "b", "both"])
@pytest.mark.parametrize("turned", [True, False])
def test_gradients(rng, size, dtype, needed, turned):
    """Of the sum of all ranks' losses, in float32 of what the ranks have."""
    lead, k, n = drawn(rng, size)
    a, w = of_ranks(size, *lead, k, dtype=dtype), of_ranks(size, n, size * k, dtype=dtype)
    full, v = of_ranks(size, *lead, k, dtype=dtype), of_ranks(size, size * n, k, dtype=dtype)
    up, down, of_gathered = of_ranks(size, *lead, n), of_ranks(size, *lead, n), of_ranks(size, *lead, size * k)
    of_a, of_b = needed != "b", needed != "a"

    whole = [t.float() for t in (*a, *w, *full, *v)]
    flags = [*[of_a] * size, *[of_b] * size, *[of_a] * size, *[of_b] * size]
    whole = [t.requires_grad_(flag) for t, flag in zip((t.clone() for t in whole), flags)]
    ra, rw, rf, rv = (whole[i * size : (i + 1) * size] for i in range(4))
    loss = sum((torch.cat(ra, -1) @ rw[r].t() * (up[r] + down[r])).sum() for r in range(size))
    loss = loss + sum((torch.cat(ra, -1) * of_gathered[r]).sum() for r in range(size))
    scattered = sum(x @ y.t() for x, y in zip(rf, rv)).chunk(size, -1)
    loss = loss + sum((s * d).sum() for s, d in zip(scattered, down)) / size
    loss.backward()

    def body():
        r = stretto.rank()
        mine = [*leaves([a[r]], of_a), *leaves([w[r]], of_b), *leaves([full[r]], of_a), *leaves([v[r]], of_b)]
        lay = (lambda x: x.t()) if turned else (lambda x: x.t().contiguous())
        y = stretto.all_gather_matmul(mine[0], lay(mine[1]), gather_dim=-1)
        gathered, again = stretto.all_gather_matmul(mine[0], lay(mine[1]), gather_dim=len(lead), return_a=True)
        z = stretto.matmul_reduce_scatter(mine[2], lay(mine[3]), scatter_dim=-1, reduce_op="avg")
        assert y.dtype == again.dtype == z.dtype == dtype and z.shape == (*lead, n)
        terms = (y, up), (again, down), (gathered, of_gathered), (z, down)
        sum((x.float() * of[r]).sum() for x, of in terms).backward()
        return y.detach(), z.detach(), [t.grad for t in mine]

    near = NEAR[dtype]
    scale = {"rtol": near["rtol"], "atol": near["atol"] * max(1, (size * k) ** 0.5, (size * n * size) ** 0.5)}
    for r, (y, z, got) in enumerate(testing.run(size, body)):
        torch.testing.assert_close(y.float(), (torch.cat(ra, -1) @ rw[r].t()).detach(), **scale)
        torch.testing.assert_close(z.float(), scattered[r].detach() / size, **scale)
        for g, want in zip(got, (ra[r].grad, rw[r].grad, rf[r].grad, rv[r].grad)):
            assert (g is None) == (want is None)
            if g is not None:
                torch.testing.assert_close(g.float(), want, **scale)


@pytest.mark.parametrize("size", SIZES)
def test_calls_that_come_again_run_no_python(rng, size):
    """By PyTorch's dispatcher, with values that have changed since."""
    from stretto._torch_library import registered_by
    from test_torch_operators import functions_of

    if registered_by() != "stable ABI":
        pytest.skip("this PyTorch has no stable ABI")
    lead, k, n = drawn(rng, size)
    ops, rounds = torch.ops.stretto, 4
    shapes = (*lead, k), (n, size * k), (size * n, k)
    given = [[of_ranks(size, *shape) for shape in shapes] for _ in range(rounds)]

    def body():
        r, last = stretto.rank(), len(lead)
        counts = []
        for a, w, v in given:
            whole, total = torch.cat(a, -1), sum(x @ y.t() for x, y in zip(a, v))
            products = whole @ w[r].t(), total.chunk(size, -1)[r]
            calls = {
                "all_gather": (lambda: ops.all_gather(a[r], last, ""), whole),
                "reduce_scatter": (
                    lambda: ops.reduce_scatter(whole, last, "sum", ""),
                    size * whole.chunk(size, -1)[r],
                ),
                "all_gather_matmul": (lambda: ops.all_gather_matmul(a[r], w[r].t(), -1, ""), products[0]),
                "all_gather_and_matmul": (
                    lambda: ops.all_gather_and_matmul(a[r], w[r].t(), -1, ""),
                    (whole, products[0]),
                ),
                "matmul_reduce_scatter": (
                    lambda: ops.matmul_reduce_scatter(a[r], v[r].t(), -1, "avg", ""),
                    products[1] / size,
                ),
            }
            ran = {}
            for name, (call, want) in calls.items():
                with torch.inference_mode():
                    got, ran[name] = functions_of(call)
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)
            counts.append(ran)
        return counts

    for counts in testing.run(size, body):
        assert all(counts[0].values())
        assert not any(counts[-1].values()), counts[-1]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("op", ["matmul_reduce_scatter", "all_gather_matmul"])
def test_factors_that_are_copied_first(rng, size, op):
    """What a launch of the first call reads in a copy of its own is not taken for a part of the result, which
    may lie in the same memory later."""
    rows, columns = [int(rng.integers(2, 9)) for _ in range(12)], [int(rng.integers(1, 33)) for _ in range(12)]
    shapes = list(zip(rows, columns, columns[::-1]))
    factors = [[torch.randn(m, k, m) for m, k, _ in shapes] for _ in range(size)]
    weights = [[torch.randn(k, n * size) for _, k, n in shapes] for _ in range(size)]

    def body():
        r = stretto.rank()
        for i in range(len(shapes)):
            if op == "matmul_reduce_scatter":
                want = sum(x[i].mT @ w[i] for x, w in zip(factors, weights)).chunk(size, -1)[r]
            else:
                whole = torch.cat([x[i].mT for x in factors], -1)
                tall = weights[r][i].repeat(size, 1)
                want = whole, whole @ tall
            for _ in range(3):
                a = factors[r][i].mT
                if op == "matmul_reduce_scatter":
                    got = stretto.matmul_reduce_scatter(a, weights[r][i], scatter_dim=-1)
                else:
                    got = stretto.all_gather_matmul(a, tall, gather_dim=-1, return_a=True)
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)

    testing.run(size, body)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("size", [2, 3])
def test_compiled_steps_have_the_gradients_of_eager_ones(size):
    """The shapes that tracing goes by are those of the results, and nothing leaves the graph."""
    run_on_forks(
        size,
        """
import torch, stretto
stretto.init()
r, size = stretto.rank(), stretto.world_size()
torch.manual_seed(r)

def step(x, w, v, u):
    y = stretto.all_gather_matmul(x, w, gather_dim=-1)
    z = stretto.matmul_reduce_scatter(torch.relu(y), v, scatter_dim=-1)
    gathered, c = stretto.all_gather_matmul(z, u, gather_dim=2, return_a=True)
    return y.shape, z.shape, gathered.shape, z.sin().sum() + gathered.cos().sum() + (c * c).sum()

def gradients(function, needed):
    inputs = [t.clone().requires_grad_(flag) for t, flag in zip(given, needed)]
    *shapes, total = function(*inputs)
    if total.requires_grad:
        total.backward()
    return shapes, [total.detach(), *(t.grad for t in inputs)]

given = [torch.randn(3, 2, 5), torch.randn(5 * size, 7), torch.randn(7, 4 * size), torch.randn(4 * size, 6)]
for needed in ((True, True, True, True), (True, False, False, False), (False, True, False, True), (False,) * 4):
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    shapes, want = gradients(step, needed)
    assert shapes == [(3, 2, 7), (3, 2, 4), (3, 2, 4 * size)]
    of_compiled, got = gradients(compiled, needed)
    assert list(map(tuple, of_compiled)) == list(map(tuple, shapes))
    for x, y in zip(got, want):
        assert (x is None) == (y is None)
        if y is not None:
            torch.testing.assert_close(x, y)
stretto.finalize()
""",
        OMP_NUM_THREADS="1",
    )


def test_tracing_knows_the_shapes():
    """By the operators' own fakes, beside what they compute."""
    from torch._subclasses import FakeTensorMode

    ops = torch.ops.stretto

    def body():
        a, b = torch.randn(3, 2, 6), torch.randn(12, 5)
        v = torch.randn(6, 8)
        for dim in (-1, 2):
            for op, arguments in (
                (ops.all_gather_matmul, (a, b, dim, "")),
                (ops.all_gather_and_matmul, (a, b, dim, "")),
                (ops.matmul_reduce_scatter, (a, v, dim, "sum", "")),
            ):
                made = op(*arguments)
                with FakeTensorMode() as mode:
                    fakes = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in arguments]
                    traced = op(*fakes)
                pairs = zip(made, traced) if isinstance(made, tuple) else [(made, traced)]
                for x, y in pairs:
                    assert x.shape == y.shape and x.stride() == y.stride() and x.dtype == y.dtype

    testing.run(2, body)


@pytest.mark.parametrize("size", [1, 2])
def test_in_autocast_pytorch_multiplies(size):
    """Factors of other types, as its own products take them there."""
    a, w = of_ranks(size, 4, 8), of_ranks(size, 6, size * 8, dtype=torch.bfloat16)
    v = of_ranks(size, size * 3, 8, dtype=torch.bfloat16)

    def body():
        r = stretto.rank()
        mine = leaves([a[r], w[r], v[r]])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = stretto.all_gather_matmul(mine[0], mine[1].t(), gather_dim=-1)
            z = stretto.matmul_reduce_scatter(mine[0], mine[2].t(), scatter_dim=-1)
        (y.float().sum() + z.float().sum()).backward()
        return y.detach(), z.detach(), mine[0].grad

    for r, (y, z, grad) in enumerate(testing.run(size, body)):
        assert y.dtype == z.dtype == torch.bfloat16 and grad.shape == (4, 8)
        total = sum(x @ u.float().t() for x, u in zip(a, v))
        near = {"rtol": 3e-2, "atol": 0.2}
        torch.testing.assert_close(y.float(), torch.cat(a, 1) @ w[r].float().t(), **near)
        torch.testing.assert_close(z.float(), total.chunk(size, 1)[r], **near)
