"""Tensors whose elements are not what is in memory, or are not aligned, and what autograd is told of a
tensor that results are written to; against the same calls on plain copies."""

import contextlib

import pytest

import stretto
from stretto import testing

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def seed(rng):
    torch.manual_seed(int(rng.integers(1 << 30)))


def misaligned(x):
    raw = torch.frombuffer(bytearray(x.numel() * x.element_size() + 1), dtype=x.dtype, offset=1)
    return raw.view(x.shape).copy_(x)


VIEWS = [  # each of 4 x 6
    lambda: torch.randn(4, 6, dtype=torch.complex64).conj(),
    lambda: torch.randn(6, 4, dtype=torch.complex64).mH,
    lambda: torch._neg_view(torch.randn(4, 6)),
    lambda: torch.randn(4, 6, dtype=torch.complex64).conj().imag,
    lambda: misaligned(torch.randn(4, 6)),
    lambda: misaligned(torch.randn(4, 6, dtype=torch.complex128)),
]


@pytest.mark.parametrize("make", VIEWS)
def test_views_are_read_as_what_they_show(make):
    """Also after a call of plain tensors of that layout, which is repeated without a look at them."""
    x = [make() for _ in range(2)]
    plain = [torch.empty(4, 6, dtype=v.dtype).copy_(v) for v in x]

    def body():
        r, made = stretto.rank(), []
        for _ in range(2):
            made += [stretto.all_gather(v) for v in (plain[r], plain[r], x[r], x[r])]
        return made, stretto.broadcast(x[r], 1), stretto.all_to_all(x[r])

    for r, (gathered, sent, exchanged) in enumerate(testing.run(2, body)):
        for got in gathered:
            assert torch.equal(got, torch.cat(plain))
        assert torch.equal(sent, plain[1])
        assert torch.equal(exchanged, torch.cat([v[2 * r : 2 * r + 2] for v in plain]))


@pytest.mark.parametrize("make", [make for make in VIEWS if not make().is_complex()])
def test_views_are_computed_with_as_what_they_show(make):
    a, w = [make() for _ in range(2)], [make() for _ in range(2)]

    def body():
        r, made = stretto.rank(), []
        for v in (torch.randn(4, 6), a[r], a[r]):
            made.append(stretto.all_gather_matmul(v, w[r].t()))
            made.append(stretto.all_reduce(v))
        return made[-2:]

    for r, (product, total) in enumerate(testing.run(2, body)):
        torch.testing.assert_close(product, torch.cat(a) @ w[r].t(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(total, a[0] + a[1])


@pytest.mark.parametrize("make", VIEWS)
def test_views_are_written_to(make):
    x = [torch.empty(4, 6, dtype=make().dtype).copy_(make()) for _ in range(2)]
    outs = [make() for _ in range(2)]

    def body():
        r = stretto.rank()
        for out in (torch.empty_like(x[r]), torch.empty_like(x[r]), outs[r], outs[r]):
            assert stretto.broadcast(x[r], 1, out=out) is out
            assert torch.equal(out, x[1])

    testing.run(2, body)


def test_autograd_notices_results_that_are_written_over_what_it_saved():
    """Calls that are repeated among them."""
    added = torch.randn(3, 4)
    tables = torch.arange(3, dtype=torch.int32).view(3, 1), torch.ones(3, 1)
    program = stretto.operator("all_reduce_one_shot", ranks=1, m=3, n=4, target="cpu")
    calls = [
        lambda out: stretto.all_reduce(added, out=out),
        lambda out: stretto.all_reduce_add_rms_norm(added, added, added[0], out=(out, added.clone()))[0],
        lambda out: stretto.moe_combine(added, *tables, out=out),
        lambda out: stretto.scaled_dot_product_attention(*3 * [added[None]], out=out[None])[0],
        lambda out: program(added, out),
    ]

    def body():
        for call in calls:
            for _ in range(3):
                leaf = torch.randn(3, 4, requires_grad=True)
                kept = leaf.detach().clone()
                loss = (leaf * kept).sum()
                call(kept)
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    loss.backward()
            with torch.inference_mode():
                call(torch.empty(3, 4))

    testing.run(1, body)


@pytest.mark.parametrize("around", ["nothing", "inference", "meta"])
def test_results_of_repeated_calls_are_like_the_first(around):
    """What they are does not hang on what a first call was made in, nor on PyTorch's defaults."""
    x, w = torch.randn(4, 6), torch.randn(5, 6)
    contexts = {
        "nothing": contextlib.nullcontext,
        "inference": torch.inference_mode,
        "meta": lambda: torch.device("meta"),
    }

    def calls():
        return (
            stretto.all_reduce(x),
            stretto.all_gather_matmul(x, w.t()),
            stretto.all_gather(x.to(torch.bfloat16), dim=1),
            *stretto.all_reduce_add_rms_norm(x, x, x[0]),
        )

    def body():
        made = []
        for context in (contextlib.nullcontext, contexts[around], contextlib.nullcontext):
            for _ in range(2):
                with context():
                    made.append((context, calls()))
        return made

    def reversed_body():
        with contexts[around]():
            calls()
        return [(contextlib.nullcontext, calls())] + body()

    for made in testing.run(2, body) + testing.run(2, reversed_body):
        first = made[0][1]
        for context, results in made:
            for want, got in zip(first, results):
                assert got.device.type == "cpu" and got.dtype == want.dtype
                assert got.stride() == want.stride() and not got.requires_grad
                assert got.is_inference() == (context is torch.inference_mode)
                assert torch.equal(got, want) and got.untyped_storage().nbytes() > 0
        memory = [got.data_ptr() for _, results in made for got in results]
        assert len(set(memory)) == len(memory)
        for got in made[-1][1]:
            got.requires_grad_().sum().backward()
