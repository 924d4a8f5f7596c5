"""Attention and mixtures of experts on GPUs, against the same in PyTorch. One process per rank, as
gpu_torch.py:

    torchrun --standalone --nproc-per-node 2 python/tests/gpu_torch_layers.py
"""

import functools

import torch

import stretto
from gpu_testing import (  # setUpModule, tearDownModule: for unittest
    DEVICE,
    RANK,
    SIZE,
    FirstCalls,
    GpuTest,
    from_all,
    main,
    randn,
    setUpModule,
    tearDownModule,
    total,
)


# Attention of contiguous shards of SHARD_ROWS rows, in batches, and by itself.
SHARD_ROWS, BATCH = 77, 2
OF_SHARDS = (
    (stretto.sequence_attention, {}),
    (stretto.sequence_attention, {"is_causal": False}),
    (stretto.ring_attention, {}),
    (stretto.ring_attention, {"window": 50}),
    (functools.partial(stretto.ring_attention, queries_travel=True), {}),
)


def shards(call, options, q, k, v, tokens):
    """(result, logarithms) of the batch, and of its first sequence alone."""
    how = {"contiguous": True, "return_lse": True, "tokens": tokens, **options}
    return call(q, k, v, **how), call(q[0], k[0], v[0], **how) if not options else None


class Ahead(FirstCalls):
    def test_first_calls(self):
        calls = []
        q, k, v = (randn(BATCH, SHARD_ROWS, heads, 128) for heads in (8, 2, 2))
        for call, options in OF_SHARDS:
            calls.append(functools.partial(shards, call, options, q, k, v, SHARD_ROWS * SIZE))
        q, k, v = (randn(128, heads, 128) for heads in (8, 2, 2))
        for window in (0, 50, 200):
            for travel in (False, True):
                calls.append(functools.partial(stretto.ring_attention, q, k, v, window=window, queries_travel=travel))
            calls.append(functools.partial(stretto.sequence_attention, q, k, v, window=window))
        for rows, n, k in ((777, 512, 256), (5, 64, 64)):
            a, w = randn(rows, k), randn(n, k * SIZE)
            calls.append(functools.partial(stretto.all_gather_matmul, a, w.t(), gather_dim=-1))
            calls.append(functools.partial(stretto.matmul_all_gather, a, randn(n // SIZE, k).t()))
        self.warmed(calls)


class Heads(GpuTest):
    """Attention of several sequences, and the products around heads that are spread."""

    def attended(self, q, k, v, past, window=0):
        """[L, Hq, E] over [S, Hkv, E]: row i sees past + i + 1 keys, of these the last `window`, if
        any."""
        scores = torch.einsum(
            "lhe,she->hls", q.float(), k.float().repeat_interleave(q.shape[1] // k.shape[1], 1)
        ) / (q.shape[2] ** 0.5)
        seen = past + 1 + torch.arange(len(q), device=DEVICE)[:, None]
        keys = torch.arange(len(k), device=DEVICE)
        hidden = (keys >= seen) | (keys < seen - (window or len(k)))
        scores.masked_fill_(hidden, float("-inf"))
        values = v.float().repeat_interleave(q.shape[1] // v.shape[1], 1)
        return torch.einsum("hls,she->lhe", scores.softmax(-1), values), scores.logsumexp(-1)

    def test_packed(self):
        for dtype in (torch.bfloat16, torch.float16):
            for lengths, heads, kv_heads, width in (
                ((100, 0, 1, 300), 8, 2, 128),
                ((64, 64, 37), 4, 4, 64),
            ):
                starts = torch.tensor((0, *lengths), device=DEVICE).cumsum(0).int()
                q, k, v = (
                    randn(sum(lengths), h, width, dtype=dtype) for h in (heads, kv_heads, kv_heads)
                )
                for _ in range(2):
                    got, lse = stretto.packed_attention(q, k, v, starts, return_lse=True)
                    begin = 0
                    for rows in filter(None, lengths):
                        part = slice(begin, begin + rows)
                        want, weights = self.attended(q[part], k[part], v[part], 0)
                        self.same(got[part], want)
                        self.same(lse[:, part], weights, torch.bfloat16)
                        begin += rows

    def test_paged(self):
        heads, kv_heads, width, page = 8, 2, 128, 64
        for new, tokens in (((1, 1, 1, 1), (200, 1, 64, 65)), ((70, 0, 1, 130), (170, 5, 40, 130))):
            starts = torch.tensor((0, *new), device=DEVICE).cumsum(0).int()
            cached = torch.tensor(tokens, device=DEVICE, dtype=torch.int32)
            table = torch.randperm(4 * 4, device=DEVICE).reshape(4, 4).int()
            k, v = (randn(16, kv_heads, page, width) for _ in range(2))
            q = randn(sum(new), heads, width)
            for _ in range(2):
                got, weights = stretto.paged_attention(
                    q, k, v, starts, table, cached, return_lse=True
                )
                self.same(stretto.paged_attention(q, k, v, starts, table, cached), got)
                begin = 0
                for s, (rows, total) in enumerate(zip(new, tokens)):
                    own = [x[table[s].long()].transpose(1, 2).flatten(0, 1)[:total] for x in (k, v)]
                    part = slice(begin, begin + rows)
                    if rows > 0:
                        want, logs = self.attended(q[part], *own, total - rows)
                        self.same(got[part], want)
                        self.same(weights[:, part], logs, torch.bfloat16)
                    begin += rows
                if max(new) == 1:  # of decoding, by runs of each sequence's tokens
                    again, lse = stretto.paged_decode(q, k, v, table, cached, return_lse=True)
                    self.same(again, got)
                    self.same(lse.T, weights, torch.bfloat16)

    def test_a_sequence_over_the_ranks(self):
        q, k, v = (randn(128, heads, 128) for heads in (8, 2, 2))
        tokens, own = 128 * SIZE, torch.tensor(stretto.zigzag(128 * SIZE), device=DEVICE)
        order = torch.cat([torch.tensor(stretto.zigzag(tokens, rank=r)) for r in range(SIZE)])
        whole = [torch.cat(from_all(x))[order.argsort().to(DEVICE)] for x in (q, k, v)]
        for window in (0, 50, 0, 200, 50):
            want = self.attended(*whole, 0, window)[0][own]
            self.same(stretto.sequence_attention(q, k, v, window=window), want)
            for travel in (False, True):
                got = stretto.ring_attention(q, k, v, queries_travel=travel, window=window)
                self.same(got, want)

    def test_contiguous_shards_and_batches(self):
        """As chunk() cuts a sequence: odd rows, tokens that the last rank has fewer of, with and without a mask."""
        rows = SHARD_ROWS
        for tokens in (rows * SIZE, rows * SIZE - SIZE + 1):
            every = [torch.stack(from_all(randn(BATCH, rows, h, 128))) for h in (8, 2, 2)]
            mine = [x[RANK].contiguous() for x in every]
            whole = [x.transpose(0, 1).flatten(1, 2)[:, :tokens] for x in every]  # [batch, tokens, heads, size]
            own = slice(RANK * rows, min((RANK + 1) * rows, tokens))
            kept = own.stop - own.start
            for call, options in OF_SHARDS:
                seen = (0, options.get("window", 0)) if options.get("is_causal", True) else (tokens, 4 * tokens)
                wants = [self.attended(*(x[b] for x in whole), *seen) for b in range(BATCH)]
                (got, lse), alone = shards(call, options, *mine, tokens)
                for b, (want, weights) in enumerate(wants):
                    self.same(got[b, :kept], want[own], torch.bfloat16)
                    self.same(lse[b, :, :kept], weights[:, own], torch.bfloat16)
                if alone is not None:
                    self.same(alone[0][:kept], wants[0][0][own], torch.bfloat16)

    def test_batches_of_zigzag_rows(self):
        batch, rows = 3, 128
        tokens = rows * SIZE
        order = torch.cat([torch.tensor(stretto.zigzag(tokens, rank=r)) for r in range(SIZE)]).argsort().to(DEVICE)
        own = torch.tensor(stretto.zigzag(tokens), device=DEVICE)
        q, k, v = (randn(batch, rows, h, 64) for h in (4, 4, 4))
        whole = [torch.cat(from_all(x), 1)[:, order] for x in (q, k, v)]
        got = stretto.ring_attention(q, k, v)
        for b in range(batch):
            self.same(got[b], self.attended(*(x[b] for x in whole), 0)[0][own])

    def test_decoding_over_a_cache_on_all_ranks(self):
        block, rows = 64, 256
        k, v = (randn(2, rows, 128) for _ in range(2))
        # [tokens, heads, size]: block b is the b // P-th of rank b % P.
        whole = [
            torch.stack([y.unflatten(1, (-1, block)) for y in from_all(x)], 2).flatten(1, 3)
            for x in (k, v)
        ]
        for length, tokens in ((1, 100), (2, rows * SIZE - 5), (1, rows * SIZE)):
            q = from_all(randn(length, 8, 128))[0]
            cached = [x.transpose(0, 1)[:tokens] for x in whole]
            for window in (0, 90, 0):
                want, weights = self.attended(q, *cached, tokens - length, window)
                options = {"block": block, "window": window}
                self.same(stretto.flash_decode(q, k, v, tokens, **options), want)
                got, lse = stretto.flash_decode(q, k, v, tokens, return_lse=True, **options)
                self.same(got, want)
                self.same(lse.T, weights, torch.bfloat16)

    def test_products_of_spread_columns(self):
        """Gathered columns times a weight, by themselves and of several, and columns of products that are gathered."""
        for rows, n, k in ((777, 512, 256), (5, 64, 64), (2048, 1024, 512)):
            w = from_all(randn(n, k * SIZE, scale=(k * SIZE) ** -0.5))[0]
            for _ in range(2):
                a, shared = randn(rows, k), from_all(randn(rows, k))[0]
                whole = torch.cat(from_all(a), 1)
                want = whole.float() @ w.float().t()
                self.same(stretto.all_gather_matmul(a, w.t(), gather_dim=-1), want)
                gathered, c = stretto.all_gather_matmul(a, w.t(), gather_dim=1, return_a=True)
                self.assertTrue(torch.equal(gathered, whole))
                self.same(c, want)
                part = randn(n // SIZE, k, scale=k**-0.5)
                columns = torch.cat(from_all(shared.float() @ part.float().t()), 1)
                self.same(stretto.matmul_all_gather(shared, part.t()), columns)

    def test_products_around_spread_heads(self):
        rows, n, k = 96, 64 * SIZE, 128 * SIZE
        a, spread = randn(rows, k), randn(rows * SIZE, k // SIZE)
        w = from_all(randn(n, k, scale=k**-0.5))[0]
        whole = torch.cat(from_all(a)).float() @ w.float().t()
        home = torch.cat(from_all(spread), 1).float() @ w.float().t()
        for _ in range(3):
            self.same(stretto.matmul_all_to_all(a, w.t()), whole.chunk(SIZE, 1)[RANK])
            self.same(stretto.all_to_all_matmul(spread, w.t()), home.chunk(SIZE)[RANK])


class Experts(GpuTest):
    """Mixtures of experts, against one product for each expert."""

    HIDDEN, FFN, EXPERTS, TOP_K = 256, 128, 8, 2

    def weights(self, scale=1.0):
        return randn(self.EXPERTS, self.FFN, self.HIDDEN, scale=scale * self.HIDDEN**-0.5).mT

    def routed(self, x, gate):
        scores = (x.float() @ gate.float().t()).softmax(-1)
        weights, experts = scores.topk(self.TOP_K, -1)
        return weights / weights.sum(-1, keepdim=True), experts

    def gated(self, x, gate, up):
        """[E, rows, FFN], of every expert."""
        x = x.float()
        return torch.nn.functional.silu(x @ gate.float()) * (x @ up.float())

    def test_route(self):
        for m in (1, 100, 513):
            x, gate = randn(m, self.HIDDEN), randn(self.EXPERTS, self.HIDDEN, scale=0.1)
            want, numbers = self.routed(x, gate)
            for _ in range(2):
                weights, experts = stretto.moe_route(x, gate, self.TOP_K)
                tables = stretto.moe_route(x, gate, self.TOP_K, tables=True)
            self.assertTrue(torch.equal(experts.long(), numbers))
            self.same(weights, want)
            order = numbers.flatten().argsort(stable=True)
            self.assertTrue(torch.equal(tables.tokens.long(), order // self.TOP_K))
            self.assertEqual(tables.offsets[-1].item(), m * self.TOP_K)
            self.assertTrue(torch.equal(tables.weights, weights))

    def test_layer(self):
        """From routing to the sum over the ranks, each with its columns of every expert."""
        gate = from_all(randn(self.EXPERTS, self.HIDDEN, scale=0.1))[0]
        w_gate, w_up, w_down = self.weights(), self.weights(), self.weights().mT * 2
        for m in (5, 200):
            x = from_all(randn(m, self.HIDDEN))[0]
            for _ in range(2):
                r = stretto.moe_route(x, gate, self.TOP_K, tables=True)
                h = stretto.grouped_matmul(x, w_gate, r.offsets, tokens=r.tokens, up=w_up)
                y = stretto.grouped_matmul(h, w_down, r.offsets)
                got = stretto.moe_combine(y, r.slots, r.weights, residual=x)
            weights, experts = self.routed(x, gate)
            products = self.gated(x, w_gate, w_up) @ w_down.float()  # [E, m, HIDDEN]
            token = torch.arange(m, device=DEVICE)
            own = sum(weights[:, [j]] * products[experts[:, j], token] for j in range(self.TOP_K))
            self.same(got, x.float() + total(own))

    def test_biases_of_one_rank(self):
        x, w_gate, w_up = randn(300, self.HIDDEN), self.weights(), self.weights()
        of_gate, of_up = randn(self.EXPERTS, self.FFN), randn(self.EXPERTS, self.FFN)
        offsets = torch.tensor((0, 0, 100, 101, 130, 130, 250, 299, 300), device=DEVICE)
        for _ in range(2):
            got = stretto.grouped_matmul(x, w_gate, offsets, up=w_up, bias=of_gate, up_bias=of_up)
            alone = stretto.grouped_matmul(x, w_gate, offsets, bias=of_gate)
        for e in range(self.EXPERTS):
            part = slice(int(offsets[e]), int(offsets[e + 1]))
            gate = x[part].float() @ w_gate[e].float() + of_gate[e].float()
            up = x[part].float() @ w_up[e].float() + of_up[e].float()
            self.same(alone[part], gate)
            self.same(got[part], torch.nn.functional.silu(gate) * up)

    def test_counted_rows_and_scales(self):
        fp8, rows, k, n = torch.float8_e4m3fn, 96, 512, 256
        counts = torch.tensor([rows, 0, 1, 65] * 2, device=DEVICE)
        a, b = randn(8, rows, k), randn(8, n, k, scale=k**-0.5)
        got = stretto.grouped_matmul(a, b.mT, counts=counts)
        for e, count in enumerate(counts.tolist()):
            self.same(got[e, :count], a[e, :count].float() @ b[e].float().t())
        a8, b8 = a.flatten(0, 1).to(fp8), (b * 8).to(fp8)
        scale_a = torch.rand(8 * rows, k // 128, device=DEVICE) / 8
        scale_b = torch.rand(8, n // 128, k // 128, device=DEVICE)
        offsets = torch.tensor((0, 0, 100, 101, 300, 300, 500, 600, 8 * rows), device=DEVICE)
        x = a8.float() * scale_a.repeat_interleave(128, 1)
        w = b8.float() * scale_b.repeat_interleave(128, 1).repeat_interleave(128, 2)
        for _ in range(2):
            scales = {"scale_a": scale_a, "scale_b": scale_b.mT}
            got = stretto.grouped_matmul(a8, b8.mT, offsets, **scales)
        for e in range(8):
            part = slice(int(offsets[e]), int(offsets[e + 1]))
            self.same(got[part], x[part] @ w[e].t())

    def chosen(self, m):
        """Weights and experts of the tokens of all ranks, the same on each."""
        weights, experts = torch.rand(m, self.EXPERTS, device=DEVICE).topk(self.TOP_K, -1)
        return from_all(weights)[0], from_all(experts)[0]

    def test_both_layers_over_the_ranks(self):
        w_gate, w_up, w_down = self.weights(), self.weights(), self.weights().mT * 2
        for rows in (24, 300):
            x, residual = randn(rows, self.HIDDEN), randn(rows, self.HIDDEN)
            whole, m = torch.cat(from_all(x)), rows * SIZE
            token = torch.arange(m, device=DEVICE)
            for i in range(3):  # other experts each time, the same kernels and memory
                weights, experts = self.chosen(m)
                y, tiles = stretto.all_gather_grouped_matmul(x, w_gate, experts, up=w_up)
                inner = self.gated(whole, w_gate, w_up)  # [E, m, FFN]
                want = inner[experts, token[:, None]].to(y.dtype)
                self.same(y[tiles.slots.long()], want)
                added = residual if i % 2 else None
                got = stretto.grouped_matmul_reduce_scatter(y, w_down, tiles, weights, residual=added)
                products = inner @ w_down.float()
                own = (products[experts, token[:, None]] * weights[:, :, None]).sum(1)
                sums = total(own).chunk(SIZE)[RANK]
                self.same(got, sums if added is None else sums + added.float())
                layer = w_gate, w_up, w_down, experts, weights
                self.same(stretto.moe_layer(x, *layer, residual=added), got)

    def test_layers_with_biases(self):
        w_gate, w_up, w_down = self.weights(), self.weights(), self.weights().mT * 2
        of_gate, of_up = randn(self.EXPERTS, self.FFN), randn(self.EXPERTS, self.FFN)
        of_down = from_all(randn(self.EXPERTS, self.HIDDEN))[0]
        biases = {"gate_bias": of_gate, "up_bias": of_up, "down_bias": of_down}
        for rows in (24, 300):
            x = randn(rows, self.HIDDEN)
            whole, token = torch.cat(from_all(x)), torch.arange(rows * SIZE, device=DEVICE)
            for _ in range(3):
                weights, experts = self.chosen(rows * SIZE)
                inner = [whole.float() @ w.float() + b.float()[:, None] for w, b in ((w_gate, of_gate), (w_up, of_up))]
                inner = torch.nn.functional.silu(inner[0]) * inner[1]  # [E, m, FFN]
                products = inner @ w_down.float()
                own = (products[experts, token[:, None]] * weights[:, :, None]).sum(1)
                sums = total(own) + (of_down.float()[experts] * weights[:, :, None]).sum(1)
                options = {"up": w_up, "bias": of_gate, "up_bias": of_up}
                y, tiles = stretto.all_gather_grouped_matmul(x, w_gate, experts, **options)
                self.same(y[tiles.slots.long()], inner[experts, token[:, None]])
                second = y, w_down, tiles, weights
                self.same(stretto.grouped_matmul_all_reduce(*second, bias=of_down), sums)
                mine = sums.chunk(SIZE)[RANK]
                self.same(stretto.grouped_matmul_reduce_scatter(*second, bias=of_down), mine)
                layer = w_gate, w_up, w_down, experts, weights
                self.same(stretto.moe_layer(x, *layer, **biases), mine)
                own = experts.chunk(SIZE)[RANK].contiguous(), weights.chunk(SIZE)[RANK].contiguous()
                spread = x, w_gate, w_up, w_down, *own, self.EXPERTS
                self.same(stretto.ep_moe_layer(*spread, expert_groups=1, **biases), mine)

    def test_tokens_to_their_experts_and_back(self):
        share = -(-self.EXPERTS // SIZE)
        w_gate, w_up, w_down = self.weights(), self.weights(), self.weights().mT * 2
        everyone = [torch.cat([w[:share] for w in from_all(v)]) for v in (w_gate, w_up, w_down)]
        for rows in (7, 64, 200, 1000):
            token = torch.arange(rows, device=DEVICE)
            for _ in range(3):
                x, residual = randn(rows, self.HIDDEN), randn(rows, self.HIDDEN)
                weights, experts = torch.rand(rows, self.EXPERTS, device=DEVICE).topk(self.TOP_K, -1)
                d = stretto.ep_dispatch(x, experts, weights, self.EXPERTS)
                h = stretto.grouped_matmul(
                    d.x, w_gate[:share], d.offsets, tokens=d.tokens, up=w_up[:share]
                )
                y = stretto.grouped_matmul(h, w_down[:share], d.offsets)
                got = stretto.ep_combine(y, d, residual=residual)
                inner = self.gated(x, *everyone[:2]) @ everyone[2].float()
                own = (inner[experts, token[:, None]] * weights[:, :, None]).sum(1)
                self.same(got, own + residual.float())
                layer = w_gate[:share], w_up[:share], w_down[:share], experts, weights, self.EXPERTS
                self.same(stretto.ep_moe_layer(x, *layer, residual=residual), own + residual.float())

    def test_tokens_that_travel_as_e4m3(self):
        share, rows, hidden = -(-self.EXPERTS // SIZE), 33, 7168
        for _ in range(3):
            x = randn(rows, hidden)
            weights, experts = torch.rand(rows, self.EXPERTS, device=DEVICE).topk(self.TOP_K, -1)
            d = stretto.ep_dispatch(x, experts, weights, self.EXPERTS, fp8=True)
            got = (d.x.float().unflatten(1, (-1, 128)) * d.scales[:, :, None]).flatten(1)
            sent, chosen = (torch.cat(from_all(v)) for v in (x.float(), experts))
            here = (chosen // share == RANK).any(1)
            largest = sent.unflatten(1, (-1, 128)).abs().amax(2, keepdim=True).expand(-1, -1, 128).flatten(1)
            allowed = torch.maximum(sent.abs() / 16, largest / 448 / 1024) * 1.001
            self.assertTrue(((got - sent).abs() <= allowed)[here].all())

    def test_graph(self):
        """A whole layer of both kinds, replayed with other tokens and experts."""
        w_gate, w_up, w_down = self.weights(), self.weights(), self.weights().mT * 2
        rows = 32
        x, gate = randn(rows, self.HIDDEN), from_all(randn(self.EXPERTS, self.HIDDEN))[0]
        share = -(-self.EXPERTS // SIZE)

        def layers():
            weights, experts = stretto.moe_route(x, gate, self.TOP_K)
            d = stretto.ep_dispatch(x, experts, weights, self.EXPERTS)
            h = stretto.grouped_matmul(
                d.x, w_gate[:share], d.offsets, tokens=d.tokens, up=w_up[:share]
            )
            back = stretto.ep_combine(stretto.grouped_matmul(h, w_down[:share], d.offsets), d)
            weights, experts = stretto.all_gather(weights), stretto.all_gather(experts)
            y, tiles = stretto.all_gather_grouped_matmul(x, w_gate, experts, up=w_up)
            return back, stretto.grouped_matmul_reduce_scatter(y, w_down, tiles, weights)

        for _ in range(2):
            layers()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = layers()
        for _ in range(5):
            x.copy_(randn(rows, self.HIDDEN))
            want = layers()
            graph.replay()
            for got, same in zip(made, want):
                self.assertTrue(torch.equal(got, same))


if __name__ == "__main__":
    main()
