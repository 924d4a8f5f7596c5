"""Operators without a gradient in PyTorch: equal to the same calls with NumPy arrays, which
test_attention.py and test_experts.py compare with NumPy; compiled in one graph; and what autograd is
told. On one rank."""

import pytest

import stretto
from stretto import testing

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def seed(rng):
    torch.manual_seed(int(rng.integers(1 << 30)))


FORMS = [("sequence_attention", False), ("ring_attention", True), ("token_ring", False)]


def forward_cases():
    """name: (function of tensors, the tensors, arguments of its operator in torch.library)."""
    q, k = torch.randn(6, 4, 8), torch.randn(6, 2, 8)
    pages, starts = torch.randn(5, 2, 4, 8), torch.tensor([0, 2, 6], dtype=torch.int32)
    table, tokens = torch.tensor([[3, 0], [1, 4]]), torch.tensor([5, 4])
    a, w, bias = torch.randn(4, 6), torch.randn(8, 6), torch.randn(8)
    paged = (pages, starts, table, tokens)
    return {
        "packed_attention": (
            lambda *x: stretto.packed_attention(*x, return_lse=True),
            (q, k, k, starts),
            [(q, k, k, starts, True, None, 2, lse) for lse in (False, True)],
        ),
        "sequence_attention": (
            lambda *x: stretto.sequence_attention(*x, window=4, contiguous=True, return_lse=True),
            (q, k, k),
            [(q, k, k, form, None, True, None, 4, lse, "", lse) for form, lse in FORMS],
        ),
        "flash_decode": (
            lambda *x: (
                *stretto.flash_decode(*x, 5, block=2, window=3, return_lse=True),
                stretto.flash_decode(*x, 5, block=2, window=3),
            ),
            (q[:2], *torch.randn(2, 2, 6, 8)),
            [(q[:2], *torch.randn(2, 2, 6, 8), 5, 2, None, 3, "", lse) for lse in (False, True)],
        ),
        "paged_attention": (
            lambda *x: (
                *stretto.paged_attention(*x, window=2, return_lse=True),
                stretto.paged_attention(*x, window=2),
            ),
            (q, pages, *paged),
            [(q, pages, *paged, None, None, True, None, 2, lse) for lse in (False, True)],
        ),
        "paged_decode": (
            lambda *x: stretto.paged_decode(*x, return_lse=True),
            (q[:2], pages, pages, table, tokens),
            [(q[:2], pages, pages, table, tokens, *[None] * 3, 2, lse) for lse in (False, True)],
        ),
        "reduce_scatter_add_rms_norm": (
            lambda x, y, z: stretto.reduce_scatter_add_rms_norm(x, y, z),
            (a, a + 1, a[0]),
            [(a, a + 1, a[0], eps, "") for eps in (1e-5, 1e-1)],
        ),
        "rms_norm_columns": (
            lambda x, y, z: (
                stretto.rms_norm_columns(x, y),
                *stretto.rms_norm_columns(x, y, residual=z),
            ),
            (a, a[0], a + 1),
            [(a, a[0], z, 1e-5, "") for z in (None, a + 1)],
        ),
        "matmul_all_to_all": (
            lambda x, y, z: stretto.matmul_all_to_all(x, y.T, bias=z),
            (a, w, bias),
            [(a, w.t(), z, "") for z in (None, bias)],
        ),
        "all_to_all_matmul": (
            lambda x, y: stretto.all_to_all_matmul(x, y.T),
            (a, w),
            [(a, w.t(), z, "") for z in (None, bias)],
        ),
        **expert_cases(),
        **expert_layer_cases(),
    }


def expert_cases():
    x, gate, bias, offsets = torch.randn(6, 8), torch.randn(4, 8), torch.rand(4), (0, 2, 2, 9, 12)
    b, up = (torch.randn(4, 5, 8).transpose(1, 2) for _ in range(2))
    of_b = torch.randn(2, 4, 5).unbind()
    tokens, table = torch.randint(6, (12,)), torch.tensor(offsets, dtype=torch.int32)
    options = "softmax", 1, 1, "best", True, 1.0
    y, slots, weights = torch.randn(12, 8), torch.randperm(12).reshape(6, 2), torch.rand(6, 2)
    counted = (torch.randn(4, 3, 8), b, None, torch.tensor([0, 3, 3, 3]))
    return {
        "moe_route": (
            lambda *z: stretto.moe_route(z[0], z[1], 2, bias=z[2]),
            (x, gate, bias),
            [(x, gate, 2, z, *options) for z in (None, bias)],
        ),
        "moe_route_tables": (
            lambda *z: tuple(stretto.moe_route(*z, 2, tables=True)),
            (x, gate),
            [(x, gate, 2, None, *options)],
        ),
        "grouped_matmul": (
            lambda *z: stretto.grouped_matmul(*z[:3], tokens=z[3], up=z[4], bias=z[5], up_bias=z[6]),
            (x, b, table, tokens, up, *of_b),
            [
                (x, b, table, None, tokens, up, *[None] * 5, *GPT_OSS, None),
                (x, b, table, None, tokens, up, *of_b, *[None] * 3, *stretto.SwiGLU(), None),
                (y, b, table, *[None] * 8, *stretto.SwiGLU(), None),
                (*counted, *[None] * 7, *stretto.SwiGLU(), None),
            ],
        ),
        "moe_combine": (
            lambda *z: stretto.moe_combine(*z[:3], residual=z[3]),
            (y, slots, weights, x),
            [(y, slots, weights, z, True, "") for z in (None, x)],
        ),
    }


GPT_OSS = stretto.SwiGLU(1.702, 1, 7)


def biases_of_layer(biases):
    return dict(zip(("gate_bias", "up_bias", "down_bias"), biases))


def expert_layer_cases():
    x, weights = torch.randn(6, 8), torch.rand(6, 2)
    experts, biases = torch.argsort(torch.rand(6, 4), 1)[:, :2], torch.randn(3, 4, 8).unbind()
    b, up, down = (torch.randn(4, 8, 8).transpose(1, 2) for _ in range(3))

    def second(op):
        def call(y, w, used, experts, slots, weights, bias):
            tiles = stretto.expert_layers.ExpertTiles(used, experts, None, None, slots)
            return op(y, w, tiles, weights, bias=bias)

        return call

    def back(y, *tables):
        d = stretto.expert_parallel.Dispatched(None, tables[1], None, None, tables[0], tables[2])
        return stretto.ep_combine(y, d)

    stretto.init()
    made, tiles = stretto.all_gather_grouped_matmul(x, b, experts, up=up)
    there = stretto.ep_dispatch(x, experts, weights, 4)
    stretto.finalize()
    y = torch.randn(12, 8)
    tiles, tables = (tiles.used, tiles.experts, tiles.slots), (there.slots, there.weights, there.positions)
    return {
        "all_gather_grouped_matmul": (
            lambda *z: stretto.all_gather_grouped_matmul(*z[:3], up=z[3], bias=z[4], up_bias=z[5])[0],
            (x, b, experts, up, *biases[:2]),
            [
                (x, b, experts, *z, "")
                for z in (
                    (*[None] * 3, *stretto.SwiGLU()),
                    (None, biases[0], None, *stretto.SwiGLU()),
                    (up, *biases[:2], *GPT_OSS),
                )
            ],
        ),
        "grouped_matmul_reduce_scatter": (
            second(stretto.grouped_matmul_reduce_scatter),
            (made, down, *tiles, weights, biases[0]),
            [(made, down, *tiles, weights, *z, "") for z in ((None, None), (biases[0], x))],
        ),
        "grouped_matmul_all_reduce": (
            second(stretto.grouped_matmul_all_reduce),
            (made, down, *tiles, weights, biases[0]),
            [(made, down, *tiles, weights, *z, "") for z in ((None, None), (biases[0], x))],
        ),
        "moe_layer": (
            lambda *z: stretto.moe_layer(*z[:6], residual=z[6], **biases_of_layer(z[7:])),
            (x, b, up, down, experts, weights, x, *biases),
            [
                (x, b, up, down, experts, weights, *z, "")
                for z in ((*[None] * 4, *stretto.SwiGLU()), (*biases, x, *GPT_OSS))
            ],
        ),
        "ep_dispatch": (
            lambda *z: tuple(stretto.ep_dispatch(*z, 4))[:6],
            (x, experts, weights),
            [(x, experts, weights, 4, False, "")],
        ),
        "ep_combine": (back, (y, *tables), [(y, *tables, z, "") for z in (None, x)]),
        "ep_moe_layer": (
            lambda *z: stretto.ep_moe_layer(*z[:6], 4, residual=z[6], **biases_of_layer(z[7:])),
            (x, b, up, down, experts, weights, x, *biases),
            [
                (x, b, up, down, experts, weights, 4, *z, "")
                for z in ((None, *[None] * 3, x, *stretto.SwiGLU()), (1, *biases, None, *GPT_OSS))
            ],
        ),
    }


FORWARD = [
    "sequence_attention",
    "flash_decode",
    "packed_attention",
    "paged_attention",
    "paged_decode",
    "reduce_scatter_add_rms_norm",
    "rms_norm_columns",
    "matmul_all_to_all",
    "all_to_all_matmul",
    "moe_route",
    "moe_route_tables",
    "grouped_matmul",
    "moe_combine",
    "all_gather_grouped_matmul",
    "grouped_matmul_reduce_scatter",
    "grouped_matmul_all_reduce",
    "moe_layer",
    "ep_dispatch",
    "ep_combine",
    "ep_moe_layer",
]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", FORWARD)
def test_operators_without_a_gradient(name):
    call, tensors, arguments = forward_cases()[name]
    stretto.init()
    try:
        want, got = call(*(x.numpy() for x in tensors)), call(*tensors)
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")(*tensors)
        if not isinstance(want, tuple):
            want, got, compiled = (want,), (got,), (compiled,)
        for x, y, z in zip(want, got, compiled):
            assert torch.equal(torch.from_numpy(x), y) and torch.equal(y, z)
        leaf = tensors[0].clone().requires_grad_()
        with pytest.raises(stretto.UserError, match="has no gradient"):
            call(leaf, *tensors[1:])
        with torch.no_grad():
            call(leaf, *tensors[1:])
        op, checks = getattr(torch.ops.stretto, name), ("test_schema", "test_faketensor")
        for given in arguments:
            torch.library.opcheck(op, given, test_utils=checks)
    finally:
        stretto.finalize()


def test_traced_second_layers_have_the_rows_that_a_rank_gets():
    """Of two ranks, where those of a scatter and of an all-reduce differ."""
    x, w = torch.randn(2, 3, 8), torch.randn(2, 4, 8, 8).transpose(2, 3)
    experts, weights = torch.argsort(torch.rand(6, 4), 1)[:, :2], torch.rand(6, 2)
    names = {"grouped_matmul_reduce_scatter": 3, "grouped_matmul_all_reduce": 6}

    def body():
        mine = w[stretto.rank()]
        h, tiles = stretto.all_gather_grouped_matmul(x[stretto.rank()], mine, experts)
        arguments = h, mine, tiles.used, tiles.experts, tiles.slots, weights
        for name, rows in names.items():
            op = getattr(torch.ops.stretto, name)
            with torch._subclasses.FakeTensorMode() as mode:
                traced = op(*(mode.from_tensor(x) for x in arguments), None, None, "")
            assert traced.shape == op(*arguments, None, None, "").shape == (rows, 8), name

    testing.run(2, body)


@pytest.mark.parametrize("of_rows", [False, True])
def test_products_with_scales_are_as_torch_has_them(of_rows):
    a, w = (torch.randn(n, 32).to(torch.float8_e4m3fn) for n in (16, 48))
    scales = (torch.rand(16, 1), torch.rand(1, 48)) if of_rows else tuple(torch.rand(2))
    if of_rows:  # torch._scaled_mm of 2.11 has these on GPUs only
        want = ((a.double() * scales[0]) @ (w.t().double() * scales[1])).to(torch.bfloat16)
    else:
        want = torch._scaled_mm(a, w.t(), *scales, out_dtype=torch.bfloat16)

    def all_of(x, y, *scales):  # arguments: of captured tensors a graph of 2.11 forgets who needs grad
        by = dict(zip(("scale_a", "scale_b"), scales))
        return (
            stretto.all_gather_matmul(x, y.t(), **by),
            stretto.matmul_reduce_scatter(x, y.t(), out_dtype=torch.bfloat16, **by),
            stretto.matmul_all_reduce(x, y.t(), **by),
        )

    stretto.init()
    try:
        compiled = torch.compile(all_of, fullgraph=True, backend="aot_eager")
        for got in (*all_of(a, w, *scales), *compiled(a, w, *scales)):
            torch.testing.assert_close(got, want)
        scales[0].requires_grad_()
        for call in (all_of, compiled):
            with pytest.raises(Exception, match="has no gradient"):
                call(a, w, *scales)
    finally:
        stretto.finalize()


def several():
    """Of a rank: (its rows, weights, scales of the rows, of the weights), in e4m3."""
    rows = torch.randn(4, 32).to(torch.float8_e4m3fn)
    weights = [torch.randn(n, 32).to(torch.float8_e4m3fn).t() for n in (16, 1, 9)]
    return rows, weights, torch.rand(4, 1), [torch.rand(1, w.shape[1]) for w in weights]


@pytest.mark.parametrize("of_rows", [False, True])
@pytest.mark.parametrize("backend", [None, "eager", "aot_eager"])
def test_lists_with_scales_in_graphs(of_rows, backend):
    """By torch.library where a graph is compiled, else the same bits at once."""
    size = 2 if backend is None else 1  # ranks that are threads do not compile at the same time
    given = [several() for _ in range(size)]
    if not of_rows:
        given = [(a, w, torch.rand(()), list(torch.rand(3))) for a, w, *_ in given]

    def step(a, weights, scale_a, scale_b):
        return stretto.all_gather_matmul(
            a, weights, scale_a=scale_a, scale_b=scale_b, return_a=True, out_dtype="float32"
        )

    def body():
        a, weights, scale_a, scale_b = given[stretto.rank()]
        call = step if backend is None else torch.compile(step, fullgraph=True, backend=backend)
        out = [torch.full((4 * size, w.shape[1]), -1.0) for w in weights]
        made = stretto.all_gather_matmul(a, weights, scale_a=scale_a, scale_b=scale_b, out=out)
        assert all(x is y for x, y in zip(made, out))
        return *call(a, weights, scale_a, scale_b), out

    values = [a.double() * scale_a for a, _, scale_a, _ in given]
    for r, (rows, made, out) in enumerate(testing.run(size, body)):
        assert torch.equal(rows.float(), torch.cat([a for a, *_ in given]).float())
        for got, same, b, scale in zip(made, out, *given[r][1::2]):
            want = torch.cat(values) @ (b.double() * scale)
            torch.testing.assert_close(got, want.float(), rtol=1e-5, atol=1e-5)
            assert torch.equal(got, same)


def test_operators_of_lists_have_the_shapes_of_their_fakes():
    def body():
        a, weights, scale_a, scales = several()
        for given in (
            (a, weights[0], scale_a, scales[0]),
            (a, weights[0], torch.rand(()), torch.rand(1)),
            (a.view(2, 2, 32), weights[0], scale_a.view(2, 2, 1), scales[0]),
            (a.view(2, 2, 32), weights[0], torch.rand(1), torch.rand(1, 1)),
        ):
            for name, arguments in (
                ("all_gather_with_scales", (given[0], given[2], given[0].ndim - 2, "")),
                ("scaled_matmul", (*given, "float16", "")),
            ):
                op = getattr(torch.ops.stretto, name)
                with torch._subclasses.FakeTensorMode() as mode:
                    traced = op(
                        *torch.utils._pytree.tree_map_only(
                            torch.Tensor, mode.from_tensor, arguments
                        )
                    )
                made = op(*arguments)
                pairs = zip(traced, made) if isinstance(made, tuple) else [(traced, made)]
                for x, y in pairs:
                    assert (x.shape, x.dtype, x.stride()) == (y.shape, y.dtype, y.stride()), name

    testing.run(2, body)


def test_lists_with_scales_have_no_gradient():
    stretto.init()
    try:
        a, weights, scale_a, scales = several()
        scales[1].requires_grad_()
        for out in (None, [torch.empty(4, w.shape[1]) for w in weights]):
            with pytest.raises(stretto.UserError, match="has no gradient"):
                stretto.all_gather_matmul(a, weights, scale_a=scale_a, scale_b=scales, out=out)
    finally:
        stretto.finalize()
