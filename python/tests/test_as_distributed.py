"""What torch.distributed has no call for in one, written with its calls. If these fail, a program that is moved here
computes something else."""

import textwrap

import pytest

from forked_ranks import run_on_forks

pytest.importorskip("torch")

BODY = """
import torch, stretto
import torch.distributed as dist
import torch.nn.functional as F

dist.init_process_group("gloo")
stretto.init(dist.group.WORLD)
r, size = stretto.rank(), stretto.world_size()
common, own = torch.Generator().manual_seed(SEED), torch.Generator().manual_seed(SEED + 1 + r)

def randn(*shape, of=own):
    return torch.randn(*shape, generator=of)

def gathered(x, dim=0):
    parts = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim)

def summed(x):
    x = x.clone()
    dist.all_reduce(x)
    return x

def near(got, want):
    torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-4)

def poisoned(x):
    return torch.full_like(x, float("nan"))
"""


def run(rng, size, code):
    body = BODY.replace("SEED", str(int(rng.integers(1 << 30)))) + textwrap.dedent(code)
    body += "\nstretto.finalize()\ndist.destroy_process_group()\n"
    run_on_forks(size, body)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_products_and_norms(rng, size):
    run(rng, size, """
    m, k, n = 5, 12, 7
    x, weight = randn(m, k), randn(k, n)
    want = gathered(x @ weight, 1)                          # a layer whose columns are spread
    near(stretto.matmul_all_gather(x, weight), want)
    out = poisoned(want)
    assert stretto.matmul_all_gather(x, weight, out=out) is out
    near(out, want)
    whole = randn(k * size, n, of=common)
    near(stretto.all_gather_matmul(x, whole, gather_dim=-1), gathered(x, 1) @ whole)

    partial, residual, scale = randn(m * size, k), randn(m, k), randn(k, of=common)
    total = summed(partial)[r * m : (r + 1) * m] + residual
    normed, kept = stretto.reduce_scatter_add_rms_norm(partial, residual, scale, eps=1e-5)
    near(kept, total)
    near(normed, F.rms_norm(total, (k,), scale, 1e-5))
    columns, part = randn(m, k), randn(k)
    squares = summed(columns.square().sum(-1, keepdim=True))
    near(stretto.rms_norm_columns(columns, part, eps=1e-5), columns * (squares / (k * size) + 1e-5).rsqrt() * part)
    """)


@pytest.mark.parametrize("size", [2, 3])
def test_rows_of_different_numbers(rng, size):
    run(rng, size, """
    lengths = [3 + 2 * i for i in range(size)]
    x = randn(lengths[r], 5)
    most = torch.zeros(max(lengths), 5)
    most[: len(x)] = x
    want = torch.cat([part[:n] for part, n in zip(gathered(most).chunk(size), lengths)])
    assert torch.equal(stretto.all_gather(x, sizes=lengths), want)
    work = [stretto.all_gather(x, sizes=lengths, async_op=True), stretto.all_reduce(most, async_op=True)]
    assert torch.equal(work[0].wait(), want)
    near(work[1].wait(), summed(most))
    for turn in range(3):                                   # the second time in other sizes, the third as before
        shift = turn % 2
        to, come = (r + 1) % size, (r - 1) % size
        sends = [(randn(4 + shift, 3), to), (randn(2, 2), to), (randn(1), r)]
        receives = [(poisoned(torch.empty(4 + shift, 3)), come), (poisoned(torch.empty(2, 2)), come)]
        inbox = poisoned(torch.empty(1))
        works = [dist.isend(message.contiguous(), rank, tag=tag) for tag, (message, rank) in enumerate(sends[:2])]
        wants = [torch.empty_like(message) for message, _ in receives]
        for tag, want in enumerate(wants):
            dist.recv(want, come, tag=tag)
        for work in works:
            work.wait()
        stretto.batch_send_recv(sends, [*receives, (inbox, r)])
        assert all(torch.equal(got, want) for (got, _), want in zip(receives, wants)) and inbox == sends[2][0]
    """)


@pytest.mark.parametrize("size", [2, 3])
def test_attention_of_contiguous_shards(rng, size):
    run(rng, size, """
    batch, rows, heads, kv_heads, width = 2, 6, 4, 2, 8
    q, k, v = (randn(batch, rows, h, width) for h in (heads, kv_heads, kv_heads))
    q_all, k_all, v_all = (gathered(x, 1).transpose(1, 2) for x in (q, k, v))
    for causal in (True, False):
        want = F.scaled_dot_product_attention(q_all, k_all, v_all, is_causal=causal, enable_gqa=True).transpose(1, 2)
        want = want[:, r * rows : (r + 1) * rows]
        near(stretto.ring_attention(q, k, v, is_causal=causal, contiguous=True), want)
        near(stretto.ring_attention(q, k, v, is_causal=causal, contiguous=True, queries_travel=True), want)
    """)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_layers_of_experts_with_biases(rng, size):
    run(rng, size, """
    tokens, hidden, ffn, experts, top_k = 4, 16, 8, 2 * size, 2
    x = randn(tokens, hidden)
    gate, up = (randn(experts, hidden, ffn * size, of=common) for _ in range(2))
    down = randn(experts, ffn * size, hidden, of=common)
    gate_bias, up_bias = (randn(experts, ffn * size, of=common) for _ in range(2))
    down_bias = randn(experts, hidden, of=common)
    weights, chosen = torch.rand(tokens, experts, generator=own).topk(top_k)
    if r == size - 1:
        chosen[:] = torch.tensor([0, experts - 1])          # nobody of these for the others in between
    chosen = chosen.int()

    def layer(x, weights, chosen):
        out = torch.zeros_like(x)
        for token, (shares, numbers) in enumerate(zip(weights, chosen)):
            for share, e in zip(shares, numbers.long()):
                h = F.silu(x[token] @ gate[e] + gate_bias[e]) * (x[token] @ up[e] + up_bias[e])
                out[token] += share * (h @ down[e] + down_bias[e])
        return out

    def columns(w):
        return w[..., r * ffn : (r + 1) * ffn].contiguous()

    mine = slice(2 * r, 2 * r + 2)
    every, every_weights, every_chosen = gathered(x), gathered(weights), gathered(chosen)
    want = layer(every, every_weights, every_chosen)[r * tokens : (r + 1) * tokens]
    biases = {"gate_bias": columns(gate_bias), "up_bias": columns(up_bias), "down_bias": down_bias}
    parts = columns(gate), columns(up), down[:, r * ffn : (r + 1) * ffn].contiguous()
    near(stretto.moe_layer(x, *parts, every_chosen, every_weights, **biases), want)
    biases = {"gate_bias": gate_bias[mine], "up_bias": up_bias[mine], "down_bias": down_bias[mine]}
    near(stretto.ep_moe_layer(x, gate[mine], up[mine], down[mine], chosen, weights, experts, **biases), want)
    """)
