"""PyTorch tensors: against torch.distributed's meaning computed in one process, gradients,
torch.compile."""

import pytest

import stretto
from forked_ranks import run_on_forks
from stretto import testing

torch = pytest.importorskip("torch")
SIZES = [1, 2, 3]


def parts(size, *shape, dtype=torch.float32):
    return [torch.randn(*shape).to(dtype) for _ in range(size)]


@pytest.fixture(autouse=True)
def seed(rng):
    torch.manual_seed(int(rng.integers(1 << 30)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_operators(size, dtype):
    a, w = parts(size, 4, 24, dtype=dtype), parts(size, 5, 24, dtype=dtype)
    tolerance = (
        {"rtol": 2e-2, "atol": 2e-1} if dtype != torch.float32 else {"rtol": 1e-5, "atol": 1e-5}
    )
    whole = torch.cat(a).float()

    def body():
        r = stretto.rank()
        return (
            stretto.all_gather(a[r]),
            stretto.all_reduce(a[r]),
            stretto.all_gather_matmul(a[r], w[r].t()),
            stretto.matmul_all_reduce(a[r], w[r].t()),
            stretto.reduce_scatter(a[r].t(), dim=1) if size == 2 else None,
        )

    for r, (gathered, total, c, ar, rs) in enumerate(testing.run(size, body)):
        assert gathered.dtype == dtype and torch.equal(gathered, torch.cat(a))
        torch.testing.assert_close(total.float(), sum(x.float() for x in a), **tolerance)
        torch.testing.assert_close(c.float(), whole @ w[r].float().t(), **tolerance)
        torch.testing.assert_close(
            ar.float(), sum(x.float() @ y.float().t() for x, y in zip(a, w)), **tolerance
        )
        if rs is not None:
            want = sum(x.float().t() for x in a)[:, 2 * r : 2 * r + 2]
            torch.testing.assert_close(rs.float(), want, **tolerance)


def test_symmetric_tensors():
    def body():
        x = stretto.symm_mem.empty(2, 3, dtype=torch.bfloat16)
        x.fill_(stretto.rank())
        return stretto.all_gather(x)

    for got in testing.run(2, body):
        assert got.dtype == torch.bfloat16 and got[:, 0].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_are_those_of_the_sum_of_all_losses(size, dim):
    """The whole computation in one process, differentiated by PyTorch, is the reference."""
    a, w = parts(size, 3, 2, 8), parts(size, 5, 8)
    up = parts(size, *((3 * size, 2, 5) if dim == 0 else (3, 2 * size, 5)))
    full, v = parts(size, 2 * size, 2 * size, 8), parts(size, 5, 8)
    down = parts(size, *((2, 2 * size, 5) if dim == 0 else (2 * size, 2, 5)))

    def leaves(tensors):
        return [t.clone().requires_grad_() for t in tensors]

    ra, rw, rf, rv = leaves(a), leaves(w), leaves(full), leaves(v)
    loss = sum((torch.cat(ra, dim) @ rw[r].t() * up[r]).sum() for r in range(size))
    scattered = sum(f @ x.t() for f, x in zip(rf, rv)).chunk(size, dim)
    loss = loss + sum((s * d).sum() for s, d in zip(scattered, down)) / size
    loss.backward()

    def body():
        r = stretto.rank()
        mine = leaves([a[r], w[r], full[r], v[r]])
        y = stretto.all_gather_matmul(mine[0], mine[1].t(), gather_dim=dim)
        z = stretto.matmul_reduce_scatter(mine[2], mine[3].t(), scatter_dim=dim, reduce_op="avg")
        ((y * up[r]).sum() + (z * down[r]).sum()).backward()
        return [t.grad for t in mine]

    for r, got in enumerate(testing.run(size, body)):
        for g, want in zip(got, (ra[r].grad, rw[r].grad, rf[r].grad, rv[r].grad)):
            torch.testing.assert_close(g, want, rtol=1e-4, atol=1e-4)


def test_layers_of_one_shape_and_gradients_of_gradients():
    """What the backward of one layer has gathered does not show in another's; and with create_graph
    gradients have some themselves."""
    size = 2
    x, w, v = parts(size, 2 * size, 8), parts(size, 8, 8), parts(size, 8, 8)
    up = parts(size, 2, 8)

    def leaves(r):
        return [t[r].clone().requires_grad_() for t in (x, w, v)]

    def layer(y, weight):
        return stretto.matmul_reduce_scatter(y, weight.t())

    def body(create_graph):
        r = stretto.rank()
        mine = leaves(r)
        y = torch.cat([layer(mine[0], mine[1])] * size)  # the two layers' gradients differ
        loss = (layer(y, mine[2]) * up[r]).sum()
        return [g.detach() for g in torch.autograd.grad(loss, mine, create_graph=create_graph)]

    of_ranks = [leaves(r) for r in range(size)]

    def scattered(ys, weights):
        return sum(y @ u.t() for y, u in zip(ys, weights)).chunk(size)

    ys = [torch.cat([y] * size) for y in scattered([m[0] for m in of_ranks], [m[1] for m in of_ranks])]
    results = scattered(ys, [m[2] for m in of_ranks])
    loss = sum((z * u).sum() for z, u in zip(results, up))
    want = torch.autograd.grad(loss, [t for m in of_ranks for t in m])
    for create_graph in (False, True):
        got = testing.run(size, lambda given=create_graph: body(given))
        for g, same in zip([t for of_rank in got for t in of_rank], want):
            torch.testing.assert_close(g, same, rtol=1e-4, atol=1e-4)


class AllRanks(torch.autograd.Function):
    """body(*inputs) on every rank as one function of all ranks' inputs, rank by rank. Its gradient
    is what the ranks' own backward passes give."""

    # pylint: disable=abstract-method,arguments-differ

    @staticmethod
    def forward(ctx, size, body, *inputs):
        ctx.size, ctx.body = size, body
        ctx.save_for_backward(*inputs)
        return tuple(y.detach() for y in AllRanks.run(size, body, inputs))

    @staticmethod
    def backward(ctx, *grads):
        leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]

        def both(*mine):
            ctx.body(*mine).backward(grads[stretto.rank()])

        AllRanks.run(ctx.size, both, leaves)
        return None, None, *(x.grad for x in leaves)

    @staticmethod
    def run(size, body, inputs):
        count = len(inputs) // size
        return testing.run(
            size, lambda: body(*inputs[stretto.rank() * count : (stretto.rank() + 1) * count])
        )


def doubles(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def mlp(x, up, up_bias, down):
    """The parallel layers, with these parameters."""
    from stretto import nn

    size, call = stretto.world_size(), torch.func.functional_call
    options = {"dtype": torch.float64}
    first = nn.ColumnParallelLinear(x.shape[1], up.shape[0] * size, **options)
    second = nn.RowParallelLinear(down.shape[1] * size, down.shape[0], bias=False, **options)
    hidden = call(first, {"weight": up, "bias": up_bias}, (x,))
    return call(second, {"weight": down}, (torch.tanh(hidden),))


def uneven_blocks():
    """Rows that this rank sends to each of the others, and those that come from each: two of every
    rank's three go to rank 0, one stays."""
    r, size = stretto.rank(), stretto.world_size()
    sent = [2 * (to == 0) + (to == r) for to in range(size)]
    return sent, [2 * (r == 0) + (source == r) for source in range(size)]


# name: (function of a rank's inputs, their shapes on P ranks)
DIFFERENTIABLE = {
    "all_gather": (lambda x: stretto.all_gather(x, dim=1), lambda p: [(2, 3)]),
    "reduce_scatter": (
        lambda x: stretto.reduce_scatter(x, reduce_op="avg"),
        lambda p: [(2 * p, 2)],
    ),
    "all_reduce": (stretto.all_reduce, lambda p: [(2, 3)]),
    "all_gather_matmul": (
        lambda a, w: stretto.all_gather_matmul(a, w.t()),
        lambda p: [(2, 3), (2, 3)],
    ),
    "all_gather_matmul_of_several": (
        lambda a, w, v: torch.cat(stretto.all_gather_matmul(a, [w.t(), v.t()]), 1),
        lambda p: [(2, 3), (2, 3), (1, 3)],
    ),
    "matmul_reduce_scatter": (
        lambda a, w: stretto.matmul_reduce_scatter(a, w.t(), scatter_dim=1),
        lambda p: [(1, p, 3), (2, 3)],
    ),
    "matmul_of_gathered_columns": (
        lambda a, w: stretto.all_gather_matmul(a, w.t(), gather_dim=-1),
        lambda p: [(2, 1, 2), (3, 2 * p)],
    ),
    "matmul_of_scattered_columns": (
        lambda a, w: stretto.matmul_reduce_scatter(a, w.t(), scatter_dim=2),
        lambda p: [(2, 1, 3), (2 * p, 3)],
    ),
    "matmul_all_reduce": (
        lambda a, w: stretto.matmul_all_reduce(a, w.t()),
        lambda p: [(2, 3), (2, 3)],
    ),
    "matmul_all_gather": (
        lambda a, w: stretto.matmul_all_gather(a, w.t()),
        lambda p: [(1, 2, 3), (2, 3)],
    ),
    "broadcast": (lambda x: stretto.broadcast(x, stretto.world_size() - 1), lambda p: [(2, 3)]),
    "all_to_all": (stretto.all_to_all, lambda p: [(2 * p, 3)]),
    "all_to_all_of_known_blocks": (
        lambda x: stretto.all_to_all(x, uneven_blocks()[1], uneven_blocks()[0]),
        lambda p: [(3, 2)],
    ),
    "all_to_all_of_blocks": (
        lambda x: stretto.all_to_all(x, None, uneven_blocks()[0]),
        lambda p: [(3, 2)],
    ),
    "all_reduce_add_rms_norm": (
        lambda *x: torch.cat(stretto.all_reduce_add_rms_norm(*x)),
        lambda p: [(2, 3), (2, 3), (3,)],
    ),
    "norm_of_all_reduce_add_rms_norm": (
        lambda *x: stretto.all_reduce_add_rms_norm(*x, eps=0.5)[0],
        lambda p: [(1, 2, 3), (1, 2, 3), (3,)],
    ),
    "sum_of_all_reduce_add_rms_norm": (
        lambda x, y: stretto.all_reduce_add_rms_norm(x, y, torch.ones(3, dtype=x.dtype))[1],
        lambda p: [(2, 3), (2, 3)],
    ),
    "parallel_layers": (mlp, lambda p: [(2, 3), (2, 3), (2,), (3, 2)]),
}


@pytest.mark.drawn(3)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_the_slopes_in_float64(size, name):
    """By finite differences of all ranks' results in all ranks' inputs. What was rounded to float32
    anywhere would miss by 1e-2."""
    body, shapes = DIFFERENTIABLE[name]
    inputs = [doubles(*shape).requires_grad_() for _ in range(size) for shape in shapes(size)]
    assert torch.autograd.gradcheck(
        lambda *x: AllRanks.apply(size, body, *x), inputs, atol=1e-7, rtol=1e-7
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_norm_of_a_sum_has_the_gradients_of_its_steps(dtype):
    """In 16 bits, with weights in 32, against PyTorch's steps on all ranks' inputs."""
    size, hidden = 2, 32
    x, residual = parts(size, 6, hidden, dtype=dtype), parts(size, 6, hidden, dtype=dtype)
    weight, up = torch.rand(hidden) + 0.5, parts(size, 2, 6, hidden)

    def leaves(*tensors):
        return [t.clone().requires_grad_() for t in tensors]

    def loss_of(normed, total, r):
        return (normed.float() * up[r][0] + total.float() * up[r][1]).sum()

    whole = [leaves(x[r], residual[r], weight) for r in range(size)]
    loss = 0
    for r in range(size):
        total = sum(w[0].float() for w in whole) + whole[r][1].float()
        normed = torch.nn.functional.rms_norm(total, (hidden,), whole[r][2], 1e-5)
        loss = loss + loss_of(normed, total, r)
    loss.backward()

    def body():
        r = stretto.rank()
        mine = leaves(x[r], residual[r], weight)
        loss_of(*stretto.all_reduce_add_rms_norm(*mine), r).backward()
        return [t.grad for t in mine]

    for r, got in enumerate(testing.run(size, body)):
        for g, leaf in zip(got, whole[r]):
            assert g.dtype == leaf.dtype
            torch.testing.assert_close(g.float(), leaf.grad.float(), rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_layers_equal_the_whole_ones(sequence_parallel):
    size, nn = 2, torch.nn
    first, second = nn.Linear(6, 8), nn.Linear(8, 6)
    x = torch.randn(4, 6)
    whole_x = x.clone().requires_grad_()
    y = second(torch.relu(first(whole_x)))
    y.square().sum().backward()

    def body():
        from stretto.nn import ColumnParallelLinear, RowParallelLinear

        r = stretto.rank()
        up = ColumnParallelLinear.from_linear(first, sequence_parallel=sequence_parallel)
        down = RowParallelLinear.from_linear(second, sequence_parallel=sequence_parallel)
        mine = (x.chunk(size)[r] if sequence_parallel else x).clone().requires_grad_()
        out = down(torch.relu(up(mine)))
        out.square().sum().backward()
        return (
            out.detach(),
            mine.grad,
            up.weight.grad,
            up.bias.grad,
            down.weight.grad,
            down.bias.grad,
        )

    for r, (out, gx, up, up_bias, down, down_bias) in enumerate(testing.run(size, body)):
        rows = slice(2 * r, 2 * r + 2) if sequence_parallel else slice(None)
        for got, want in (
            (out, y.detach()[rows]),
            (gx, whole_x.grad[rows]),
            (up, first.weight.grad.chunk(2, 0)[r]),
            (up_bias, first.bias.grad.chunk(2)[r]),
            (down, second.weight.grad.chunk(2, 1)[r]),
            (down_bias, second.bias.grad),
        ):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_compiled_in_one_graph():
    a, w = torch.randn(4, 8), torch.randn(5, 8)

    def block(x, y):
        c = stretto.all_gather_matmul(x, y.t())
        return stretto.matmul_reduce_scatter(torch.relu(c), y) + stretto.all_reduce(x)

    stretto.init()
    try:
        want = block(a, w)
        compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(a, w), want)
        leaf = a.clone().requires_grad_()
        compiled(leaf, w).sum().backward()
        plain = a.clone().requires_grad_()
        (torch.relu(plain @ w.t()) @ w + plain).sum().backward()
        torch.testing.assert_close(leaf.grad, plain.grad, rtol=1e-4, atol=1e-4)
        leaf, b = torch.randn(4, 8, requires_grad=True), torch.randn(8, 5)
        ops = torch.ops.stretto
        torch.library.opcheck(ops.all_gather_matmul, (leaf, b, 0, ""))
        torch.library.opcheck(ops.matmul_reduce_scatter, (leaf, b, 0, "sum", ""))
        gradients = ops.matmul_reduce_scatter_gradients
        for weight in (b.t().contiguous().t(), torch.randn(8, 5)):
            torch.library.opcheck(gradients, (torch.randn(4, 5), leaf.detach(), weight, ""))
        torch.library.opcheck(ops.broadcast, (leaf, 0, ""))
        torch.library.opcheck(ops.sum_to_root, (leaf, 0, ""))
        torch.library.opcheck(ops.all_to_all, (leaf, None, None, ""))
        torch.library.opcheck(ops.all_to_all, (leaf, [4], [4], ""))
        # A leaf: opcheck runs backward twice through whatever a tensor was made by (2.11).
        residual = torch.randn(4, 8, requires_grad=True)
        scale = torch.rand(8, requires_grad=True)
        torch.library.opcheck(ops.all_reduce_add_rms_norm, (leaf, residual, scale, 1e-5, ""))
    finally:
        stretto.finalize()


def test_moved_rows_compiled_in_one_graph():
    """In processes: graphs are a rank's own."""
    run_on_forks(
        2,
        """
        import torch, stretto
        stretto.init()
        r = stretto.rank()

        def block(x, w, sent, received):
            moved = stretto.all_to_all(stretto.broadcast(x, 1) * x, received, sent)
            back = stretto.all_to_all(moved.square(), sent, received)
            even = stretto.all_to_all(torch.cat([back, x[:1]]))
            normed, total = stretto.all_reduce_add_rms_norm(even, even, w)
            return normed + total

        def gradients(function):
            x = torch.arange(12.0).reshape(3, 4).add(r).requires_grad_()
            w = torch.linspace(0.5, 1, 4).requires_grad_()
            sent = [2, 1] if r else [3, 0]
            received = [0, 1] if r else [3, 2]
            y = function(x, w, sent, received)
            (y * (r + 1)).sum().backward()
            return y.detach(), x.grad, w.grad

        compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(gradients(compiled), gradients(block))

        @torch.compile(fullgraph=True, backend="aot_eager")
        def unknown(x):
            return stretto.all_to_all(x, None, [1, 2])

        try:
            unknown(torch.ones(3, 4, requires_grad=True))
        except Exception as error:
            assert "needs output_split_sizes" in str(error), error
        else:
            raise AssertionError("compiled")
        stretto.finalize()
        """,
    )


def test_a_group_of_torch_distributed():
    run_on_forks(
        3,
        """
        import torch, torch.distributed as dist, stretto
        dist.init_process_group("gloo")
        r = dist.get_rank()
        pair = dist.new_group([0, 2])
        if r != 1:
            stretto.init(pair)
            assert stretto.world_size() == 2 and stretto.rank() == r // 2
            x = torch.randn(6, 4)
            want = x.clone()
            dist.all_reduce(want, group=pair)
            torch.testing.assert_close(stretto.all_reduce(x), want)
            stretto.finalize()
        stretto.init(dist.group.WORLD)
        x, b = torch.randn(2, 4), torch.randn(4, 5)
        whole = [torch.empty_like(x) for _ in range(3)]
        dist.all_gather(whole, x)
        torch.testing.assert_close(stretto.all_gather_matmul(x, b), torch.cat(whole) @ b)
        stretto.finalize()
        dist.destroy_process_group()
        """,
    )


def test_layout_of_attention():
    q, k, v = (torch.randn(1, 3, n, 8) for n in (4, 5, 5))
    stretto.init()
    try:
        got = stretto.scaled_dot_product_attention(q, k, v)
        torch.testing.assert_close(got, torch.nn.functional.scaled_dot_product_attention(q, k, v))
        op = torch.ops.stretto.scaled_dot_product_attention
        for lse in (False, True):
            args = (q, k, v, False, None, False, 0, lse)
            torch.library.opcheck(op, args, test_utils="test_faketensor")
    finally:
        stretto.finalize()


def test_tensors_elsewhere_are_refused():
    stretto.init()
    try:
        with pytest.raises(stretto.UserError, match="tensor on meta"):
            stretto.all_reduce(torch.empty(3, device="meta"))
    finally:
        stretto.finalize()


def test_no_gradient_is_lost_silently():
    x = torch.ones(2, 2, requires_grad=True)
    stretto.init()
    try:
        for call in (
            lambda: stretto.all_reduce(x, out=torch.empty(2, 2)),
            lambda: stretto.all_to_all(x, out=torch.empty(2, 2)),
            lambda: stretto.matmul_all_to_all(x, x),
            lambda: stretto.scaled_dot_product_attention(x[None], x[None], x[None]),
            lambda: stretto.sequence_attention(x[:, None], x[:, None], x[:, None]),
            lambda: stretto.flash_decode(x[None], x[None], x[None], 1, block=2),
        ):
            with pytest.raises(stretto.UserError, match="gradient"):
                call()
            with torch.no_grad():
                call()
    finally:
        stretto.finalize()
