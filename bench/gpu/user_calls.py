"""What a user's program calls: every operator at a size of a model, beside the same written with torch.distributed
where there is one. For user_rank.py. On the CPU sizes are divided, so that tests run it."""

import itertools
from typing import Callable, NamedTuple, Optional

import torch
import torch.distributed as dist
from torch_turns import DEVICE, ON_GPU

import stretto

BF16 = torch.bfloat16
HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM = (4096, 14336, 32, 8, 128) if ON_GPU else (64, 128, 4, 2, 16)
TOKENS = 4096 if ON_GPU else 16
EXPERTS, TOP_K, EXPERT_FFN = (32, 2, 4096) if ON_GPU else (4, 2, 32)
MB = 1 << 20 if ON_GPU else 1 << 8
DECODE_BLOCK = 64 if ON_GPU else 4


class Call(NamedTuple):
    ours: Callable
    theirs: Optional[Callable] = None  # the same in PyTorch and NCCL
    copies: bool = False  # whether copy engines take part, of the program or of what the call copies besides
    operators: int = 1  # of stretto's, each of which has its time of the host
    same_bits: bool = True  # as theirs, else near
    right: Optional[Callable] = None  # theirs but for its time, where theirs adds up in what it was given


PAIR = "pair {}"  # the group of ranks 2 i and 2 i + 1 of more than two


def pair_of(rank: int, size: int) -> Optional[str]:
    return PAIR.format(rank // 2) if size > 2 else None


def make_pairs(size: int) -> None:
    """Collective, once in a program."""
    for i in range(size // 2 if size > 2 else 0):
        stretto.new_group([2 * i, 2 * i + 1], name=PAIR.format(i))


def randn(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=BF16).mul_(scale)


def like_rows(x: torch.Tensor, rows: int) -> torch.Tensor:
    return torch.empty(rows, *x.shape[1:], device=x.device, dtype=x.dtype)


def collective_calls(rank: int, size: int) -> dict:
    word, kilobytes, megabytes = randn(1), randn(8192), randn(16 * MB)
    rows = randn(MB // 2 // HIDDEN * size + size, HIDDEN)
    own = rows[: len(rows) // size]
    whole, part, moved = torch.empty_like(rows), torch.empty_like(own), torch.empty_like(rows)
    even = [len(own)] * size

    def sum_of(x):
        def call():
            dist.all_reduce(x)
            return x

        return call

    def all_reduce(x):
        return Call(lambda: stretto.all_reduce(x), sum_of(x.clone()), right=lambda: sum_of(x.clone())(),
                    same_bits=False)

    def gathered(async_op=False):
        work = dist.all_gather_into_tensor(whole, own, async_op=async_op)
        if async_op:
            work.wait()
        return whole

    def scattered():
        dist.reduce_scatter_tensor(part, rows)
        return part

    def exchanged():
        dist.all_to_all_single(moved, rows)
        return moved

    def exchanged_lists():
        dist.all_to_all_single(moved, rows, even, even)
        return moved

    brought = rows.clone()

    def broadcast():
        dist.broadcast(brought, 0)
        return brought

    return {
        "all_reduce of 2 bytes": all_reduce(word),
        "all_reduce of 16 KB": all_reduce(kilobytes),
        "all_reduce of 32 MB": all_reduce(megabytes),
        "all_reduce of 16 KB, int8": Call(lambda: stretto.all_reduce(kilobytes.view(64, -1), payload="int8")),
        "all_gather": Call(lambda: stretto.all_gather(own), gathered),
        "all_gather, async_op": Call(lambda: stretto.all_gather(own, async_op=True).wait(), lambda: gathered(True)),
        "all_gather, fp8": Call(lambda: stretto.all_gather(own, payload="fp8")),
        "reduce_scatter": Call(lambda: stretto.reduce_scatter(rows), scattered, same_bits=False),
        "reduce_scatter, int8": Call(lambda: stretto.reduce_scatter(rows, payload="int8")),
        "all_to_all": Call(lambda: stretto.all_to_all(rows), exchanged),
        "all_to_all of even lists": Call(lambda: stretto.all_to_all(rows, even, even), exchanged_lists),
        "broadcast": Call(lambda: stretto.broadcast(rows), broadcast),
        **uneven_calls(rank, size, own),
        **rooted_calls(rank, size, rows, own),
    }


def uneven_calls(rank: int, size: int, own: torch.Tensor) -> dict:
    """Of sizes that differ by rank: in lists, or in tensors, which theirs exchange first."""
    lengths = [len(own) - i for i in range(size)]
    uneven = randn(lengths[rank], HIDDEN)
    blocks = [len(own) + (1 if to > rank else -1 if to < rank else 0) for to in range(size)]
    ragged = randn(sum(blocks), HIDDEN)
    given = randn(size * (len(own) + 1), HIDDEN)  # of which blocks leave some out
    sizes, length = torch.tensor(blocks, device=DEVICE), torch.tensor([lengths[rank]], device=DEVICE)
    landed, theirs_landed, gathered, theirs_gathered = (torch.zeros_like(given) for _ in range(4))

    def exchange(x, sent, out=None):
        sent = torch.tensor(blocks, device=DEVICE) if sent is None else sent
        there = torch.empty_like(sent)
        dist.all_to_all_single(there, sent)
        received = there.tolist()
        taken = like_rows(x, sum(received)) if out is None else out[: sum(received)]
        dist.all_to_all_single(taken, x, received, blocks)
        return taken if out is None else out

    def gathered_uneven():
        parts = [like_rows(own, n) for n in lengths]
        dist.all_gather(parts, uneven)
        return torch.cat(parts)

    def gathered_sizes():
        table = torch.empty(size, dtype=length.dtype, device=DEVICE)
        dist.all_gather_into_tensor(table, length)
        counts = table.tolist()
        dist.all_gather(list(theirs_gathered[: sum(counts)].split(counts)), own[: counts[rank]])
        return theirs_gathered

    return {
        "all_to_all of uneven lists": Call(lambda: stretto.all_to_all(ragged, None, blocks),
                                           lambda: exchange(ragged, None), True),
        "all_to_all_v": Call(lambda: stretto.all_to_all_v(given, sizes, out=landed).rows,
                             lambda: exchange(given[: sum(blocks)], sizes, theirs_landed)),
        "all_gather of different sizes": Call(lambda: stretto.all_gather(uneven, sizes=lengths),
                                              gathered_uneven if ON_GPU else None, True),
        "all_gather_v": Call(lambda: stretto.all_gather_v(own, length, out=gathered).rows,
                             gathered_sizes if ON_GPU else None),
    }


def rooted_calls(rank: int, size: int, rows: torch.Tensor, own: torch.Tensor) -> dict:
    """One rank with the others."""
    summed, whole, part = rows.clone(), torch.empty_like(rows), torch.empty_like(own)
    peers, pair = ((rank + 1) % size, (rank - 1) % size), pair_of(rank, size)
    inbox, theirs_inbox = torch.empty_like(own), torch.empty_like(own)

    def to_root(x):
        dist.reduce(x, 0)
        return x if rank == 0 else None

    def gathered():
        dist.gather(own, list(whole.chunk(size)) if rank == 0 else None, 0)
        return whole if rank == 0 else None

    def scattered():
        dist.scatter(part, list(rows.chunk(size)) if rank == 0 else None, 0)
        return part

    def sent():
        if rank % 2:
            return stretto.recv(inbox, group=pair)
        return stretto.send(own, group=pair)

    def theirs_sent():
        if rank % 2:
            dist.recv(theirs_inbox, rank - 1)
            return theirs_inbox
        return dist.send(own, rank + 1)

    def messages():
        came = torch.empty_like(own)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, own, peers[0]),
                                            dist.P2POp(dist.irecv, came, peers[1])]):
            work.wait()
        return came

    def sent_around():
        came = torch.empty_like(own)
        stretto.batch_send_recv([(own, peers[0])], [(came, peers[1])])
        return came

    return {
        "reduce": Call(lambda: stretto.reduce(rows), lambda: to_root(summed), right=lambda: to_root(rows.clone()),
                       same_bits=False),
        "gather": Call(lambda: stretto.gather(own), gathered),
        "scatter": Call(lambda: stretto.scatter(rows), scattered),
        "send and recv": Call(sent, theirs_sent),
        "batch_send_recv": Call(sent_around, messages, True),
    }


def product_calls(rank: int, size: int) -> dict:
    x, x_few = randn(TOKENS // size, HIDDEN), randn(16 // size, HIDDEN)
    up = randn(2 * FFN // size, HIDDEN, scale=HIDDEN**-0.5).t()
    wide, down = randn(TOKENS, FFN // size), randn(HIDDEN, FFN // size, scale=FFN**-0.5).t()
    few, columns = randn(16, FFN // size), randn(TOKENS // size, HIDDEN // size)
    square = randn(HIDDEN, HIDDEN, scale=HIDDEN**-0.5).t()
    heads = randn(TOKENS, HIDDEN // size)

    def gathered(x):
        whole = like_rows(x, len(x) * size)
        dist.all_gather_into_tensor(whole, x)
        return whole

    def gather_then_multiply(x):
        return lambda: gathered(x) @ up

    def multiply_then_scatter():
        product = wide @ down
        out = like_rows(product, len(product) // size)
        dist.reduce_scatter_tensor(out, product)
        return out

    def multiply_then_sum(a):
        def call():
            product = a @ down
            dist.all_reduce(product)
            return product

        return call

    def columns_then_multiply():
        parts = gathered(columns).view(size, *columns.shape)
        return parts.transpose(0, 1).reshape(len(columns), -1) @ square

    def multiply_then_columns():
        parts = gathered(x @ up).view(size, len(x), -1)
        return parts.transpose(0, 1).reshape(len(x), -1)

    def exchanged(blocks):
        out = torch.empty_like(blocks)
        dist.all_to_all_single(out, blocks)
        return out

    def multiply_then_heads():
        product = (x @ square).view(len(x), size, -1)
        return exchanged(product.transpose(0, 1).contiguous()).flatten(0, 1)

    def heads_then_multiply():
        parts = exchanged(heads).view(size, len(x), -1)
        return parts.transpose(0, 1).reshape(len(x), -1) @ square

    near = {"same_bits": False}
    return {
        "all_gather_matmul": Call(lambda: stretto.all_gather_matmul(x, up), gather_then_multiply(x), True, **near),
        "all_gather_matmul of 16 rows": Call(lambda: stretto.all_gather_matmul(x_few, up), gather_then_multiply(x_few),
                                             **near),
        "all_gather_matmul of columns": Call(lambda: stretto.all_gather_matmul(columns, square, gather_dim=-1),
                                             columns_then_multiply, True, **near),
        "matmul_reduce_scatter": Call(lambda: stretto.matmul_reduce_scatter(wide, down), multiply_then_scatter, True,
                                      **near),
        "matmul_all_reduce": Call(lambda: stretto.matmul_all_reduce(wide, down), multiply_then_sum(wide), True, **near),
        "matmul_all_reduce of 16 rows": Call(lambda: stretto.matmul_all_reduce(few, down), multiply_then_sum(few),
                                             **near),
        "matmul_all_gather": Call(lambda: stretto.matmul_all_gather(x, up), multiply_then_columns, **near),
        "matmul_all_to_all": Call(lambda: stretto.matmul_all_to_all(x, square), multiply_then_heads, **near),
        "all_to_all_matmul": Call(lambda: stretto.all_to_all_matmul(heads, square), heads_then_multiply, True, **near),
    }


def norm_calls(rank: int, size: int) -> dict:
    x, residual = randn(TOKENS, HIDDEN), randn(TOKENS, HIDDEN)
    own, weight = residual[: TOKENS // size], torch.ones(HIDDEN, device=DEVICE, dtype=BF16)
    columns = randn(TOKENS // size, HIDDEN // size)

    def summed():
        y = x.clone()
        dist.all_reduce(y)
        y += residual
        return torch.nn.functional.rms_norm(y, (HIDDEN,), weight, 1e-5)

    def scattered():
        y = like_rows(x, len(own))
        dist.reduce_scatter_tensor(y, x)
        y += own
        return torch.nn.functional.rms_norm(y, (HIDDEN,), weight, 1e-5)

    def spread():
        squares = columns.float().square().sum(-1, keepdim=True)
        dist.all_reduce(squares)
        return (columns * torch.rsqrt(squares / HIDDEN + 1e-5) * weight[: HIDDEN // size]).to(BF16)

    return {
        "all_reduce_add_rms_norm": Call(lambda: stretto.all_reduce_add_rms_norm(x, residual, weight)[0], summed,
                                        same_bits=False),
        "reduce_scatter_add_rms_norm": Call(lambda: stretto.reduce_scatter_add_rms_norm(x, own, weight)[0], scattered,
                                            same_bits=False),
        "rms_norm_columns": Call(lambda: stretto.rms_norm_columns(columns, weight[: HIDDEN // size]), spread,
                                 same_bits=False),
    }


def attention_calls(rank: int, size: int) -> dict:
    rows = TOKENS // size
    q, k, v = (randn(rows, heads * HEAD_DIM).view(rows, heads, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
    page, pages = 64, 8
    step = randn(8, HEADS * HEAD_DIM).view(8, HEADS, HEAD_DIM)
    cache = [randn(8 * pages * KV_HEADS * page, HEAD_DIM).view(8 * pages, KV_HEADS, page, HEAD_DIM) for _ in range(2)]
    table = torch.arange(8 * pages, device=DEVICE, dtype=torch.int32).view(8, pages)
    cached = torch.full((8,), pages * page, device=DEVICE, dtype=torch.int32)
    starts = torch.tensor([0, rows], device=DEVICE, dtype=torch.int32)
    steps = torch.arange(0, 8 * page + 1, page, device=DEVICE, dtype=torch.int32)  # the last page of each is new
    prompts = randn(8 * page, HEADS * HEAD_DIM).view(8 * page, HEADS, HEAD_DIM)
    spread = [randn(KV_HEADS * rows, HEAD_DIM).view(KV_HEADS, rows, HEAD_DIM) for _ in range(2)]
    token = randn(1, HEADS * HEAD_DIM).view(1, HEADS, HEAD_DIM)
    dist.broadcast(token, 0)
    held = itertools.count(rows * size // 2)  # a loop of decoding has one more each time
    first = [x.transpose(0, 1)[None].contiguous() for x in (q, k, v)]  # [1, heads, rows, head size]
    causal = {"is_causal": True, "enable_gqa": True}
    return {
        "scaled_dot_product_attention": Call(
            lambda: stretto.scaled_dot_product_attention(*first, **causal),
            lambda: torch.nn.functional.scaled_dot_product_attention(*first, **causal), same_bits=False),
        "ring_attention": Call(lambda: stretto.ring_attention(q, k, v), copies=True),
        "sequence_attention": Call(lambda: stretto.sequence_attention(q, k, v), copies=True),
        "packed_attention": Call(lambda: stretto.packed_attention(q, k, v, starts)),
        "paged_attention": Call(lambda: stretto.paged_attention(prompts, *cache, steps, table, cached)),
        "paged_decode": Call(lambda: stretto.paged_decode(step, *cache, table, cached)),
        "flash_decode": Call(lambda: stretto.flash_decode(token, *spread, rows * size, block=DECODE_BLOCK)),
        "flash_decode of one token more": Call(
            lambda: stretto.flash_decode(token, *spread, next(held) % (rows * size) + 1, block=DECODE_BLOCK)),
    }


def expert_calls(rank: int, size: int) -> dict:
    columns, share = EXPERT_FFN // size, EXPERTS // size
    x = randn(TOKENS // size, HIDDEN)

    def stacked(experts, rows, width):
        return randn(experts * rows, width, scale=width**-0.5).view(experts, rows, width).mT

    gate, up = (stacked(EXPERTS, columns, HIDDEN) for _ in range(2))
    down = stacked(EXPERTS, HIDDEN, columns)
    own_gate, own_up = (stacked(share, EXPERT_FFN, HIDDEN) for _ in range(2))
    own_down = stacked(share, HIDDEN, EXPERT_FFN)
    scores = torch.rand(TOKENS, EXPERTS, device=DEVICE)
    dist.broadcast(scores, 0)
    weights, chosen = scores.topk(TOP_K, -1)
    chosen = chosen.int()
    own = slice(rank * TOKENS // size, (rank + 1) * TOKENS // size)
    own_weights, own_chosen = weights[own].contiguous(), chosen[own].contiguous()

    def two_calls():
        y, tiles = stretto.all_gather_grouped_matmul(x, gate, chosen, up=up)
        return stretto.grouped_matmul_reduce_scatter(y, down, tiles, weights)

    router = randn(EXPERTS, HIDDEN, scale=HIDDEN**-0.5)
    products = randn(TOKENS * TOP_K, HIDDEN)
    slots = torch.arange(TOKENS * TOP_K, device=DEVICE, dtype=torch.int32).view(TOKENS, TOP_K)
    first_layer = []

    def route():
        best, numbers = (x @ router.t()).float().softmax(-1).topk(TOP_K, -1)
        return best / best.sum(-1, keepdim=True), numbers.int()

    def combine():
        sums = (products.view(TOKENS, TOP_K, HIDDEN) * weights[:, :, None]).sum(1).to(BF16)
        dist.all_reduce(sums)
        return sums

    def second_layer():
        """Of what the first has left, which the first call makes."""
        if not first_layer:
            first_layer.extend(stretto.all_gather_grouped_matmul(x, gate, chosen, up=up))
        return stretto.grouped_matmul_all_reduce(first_layer[0], down, first_layer[1], weights)

    def there_and_back():
        d = stretto.ep_dispatch(x, own_chosen, own_weights, EXPERTS)
        h = stretto.grouped_matmul(d.x, own_gate, d.offsets, tokens=d.tokens, up=own_up)
        return stretto.ep_combine(stretto.grouped_matmul(h, own_down, d.offsets), d)

    return {
        "moe_route": Call(lambda: stretto.moe_route(x, router, TOP_K)[0], lambda: route()[0], same_bits=False),
        "moe_combine": Call(lambda: stretto.moe_combine(products, slots, weights), combine, same_bits=False),
        "layers of experts, both calls": Call(two_calls, copies=True, operators=2),
        "grouped_matmul_all_reduce": Call(second_layer),
        "moe_layer": Call(lambda: stretto.moe_layer(x, gate, up, down, chosen, weights), copies=True),
        "ep_dispatch to ep_combine, four calls": Call(there_and_back, operators=4),
        "ep_moe_layer": Call(lambda: stretto.ep_moe_layer(x, own_gate, own_up, own_down, own_chosen, own_weights,
                                                          EXPERTS)),
    }


def all_calls(rank: int, size: int) -> dict:
    """{name: Call}, in one order on all ranks. make_pairs() comes before they are called."""
    calls = {}
    for make in (collective_calls, product_calls, norm_calls, attention_calls, expert_calls):
        calls |= make(rank, size)
    return calls


def step_calls(rank: int, size: int) -> dict:
    """Several calls among other work, as programs have them."""
    a, b = randn(HIDDEN // 2, HIDDEN // 2), randn(HIDDEN // 2, HIDDEN // 2, scale=HIDDEN**-0.5)
    scalar = torch.ones((), device=DEVICE)
    grads = [randn(32 * MB // HIDDEN * size, HIDDEN) for _ in range(4)]
    params = [randn(32 * MB // HIDDEN, HIDDEN) for _ in range(4)]
    moments = [torch.zeros_like(p, dtype=torch.float32) for p in params]
    weights = [randn(HIDDEN // size, HIDDEN, scale=HIDDEN**-0.5) for _ in range(4)]
    x = randn(TOKENS // 2, HIDDEN)
    e4m3, scales = randn(TOKENS, HIDDEN).to(torch.float8_e4m3fn), torch.rand(TOKENS, HIDDEN // 16, device=DEVICE)

    def norms(sum_of):
        """A scalar's sum after every product."""
        def call():
            y = a
            for _ in range(4):
                y = y @ b
                y = y * sum_of(scalar).to(BF16)
            return y

        return call

    def theirs_sum(x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    def zero(scatter, gather):
        """A step of an optimizer whose states are spread over the ranks."""
        def call():
            out = None
            for grad, param, moment in zip(grads, params, moments):
                mine = scatter(grad)
                moment.lerp_(mine.float(), 0.1)
                out = gather((param - 1e-3 * moment).to(BF16))
            return out

        return call

    def theirs_scatter(grad):
        out = like_rows(grad, len(grad) // size)
        dist.reduce_scatter_tensor(out, grad)
        return out

    def theirs_gather(part):
        out = like_rows(part, len(part) * size)
        dist.all_gather_into_tensor(out, part)
        return out

    def sharded(gather_next):
        """Layers whose weights are spread over the ranks: the next one's come while one is multiplied."""
        def call():
            y, coming = x, gather_next(weights[0])
            for i in range(len(weights)):
                weight = coming()
                if i + 1 < len(weights):
                    coming = gather_next(weights[i + 1])
                y = y @ weight.t()
            return y

        return call

    def theirs_ahead(part):
        out = like_rows(part, len(part) * size)
        work = dist.all_gather_into_tensor(out, part, async_op=True)

        def wait():
            work.wait()
            return out

        return wait

    def exchange_theirs():
        moved, of_scales = torch.empty_like(e4m3), torch.empty_like(scales)
        dist.all_to_all_single(moved.view(torch.uint8), e4m3.view(torch.uint8))
        dist.all_to_all_single(of_scales, scales)
        return of_scales

    def exchange_ours():
        stretto.all_to_all(e4m3)
        return stretto.all_to_all(scales)

    return {
        "sums of a scalar among products": Call(norms(stretto.all_reduce), norms(theirs_sum), same_bits=False),
        "e4m3 and its scales to all": Call(exchange_ours, exchange_theirs),
        "step of ZeRO": Call(zero(stretto.reduce_scatter, stretto.all_gather), zero(theirs_scatter, theirs_gather),
                             same_bits=False),
        "layers of FSDP": Call(sharded(lambda part: stretto.all_gather(part, async_op=True).wait),
                               sharded(theirs_ahead), same_bits=False),
    }
