"""The operators on GPUs, against the same in PyTorch over what torch.distributed gathers. One process
per rank:

    torchrun --standalone --nproc-per-node 2 python/tests/gpu_torch.py
    STRETTO_TEST_SHARE_GPU=1 torchrun --standalone --nproc-per-node 2 ...    two ranks on one GPU

Every rank runs all tests in the same order. Skipped without CUDA. Attention and mixtures of experts:
gpu_torch_layers.py.
"""

import json
import os
import tempfile

import torch
import torch.distributed as dist

import stretto
from stretto import _world
from gpu_testing import (  # setUpModule, tearDownModule: for unittest
    DEVICE,
    DTYPES,
    RANK,
    SEED,
    SIZE,
    GpuTest,
    from_all,
    main,
    randn,
    setUpModule,
    tearDownModule,
    total,
)


class Collectives(GpuTest):
    def test_all_gather(self):
        for dtype in (*DTYPES, torch.int64, torch.uint8, torch.bool):
            for shape in ((64, 256), (3, 5), (7,), (2, 3, 130)):
                x = (randn(*shape, dtype=torch.float32) * 50).to(dtype)
                got = stretto.all_gather(x)
                self.assertEqual((got.dtype, got.device), (dtype, DEVICE))
                self.assertTrue(torch.equal(got, torch.cat(from_all(x))), (dtype, shape))
        x = randn(4, 6, 32)
        self.assertTrue(torch.equal(stretto.all_gather(x, dim=1), torch.cat(from_all(x), 1)))

    def test_all_reduce(self):
        for dtype in DTYPES:
            for shape in ((1024, 1024), (16, 64), (5, 3), (300, 1000)):
                x = randn(*shape, dtype=dtype)
                self.same(stretto.all_reduce(x), total(x))
        x = randn(100, 100)
        want = total(x)
        self.assertIs(stretto.all_reduce(x, out=x), x)
        self.same(x, want)
        x = randn(8, 64)
        self.same(stretto.all_reduce(x, reduce_op="avg"), total(x) / SIZE)

    def test_reduce_scatter(self):
        for dtype in DTYPES:
            for shape in ((64 * SIZE, 256), (3 * SIZE, 5)):
                x = randn(*shape, dtype=dtype)
                self.same(stretto.reduce_scatter(x), total(x).chunk(SIZE)[RANK])
        x = randn(4, 2 * SIZE, 64)
        self.same(stretto.reduce_scatter(x, dim=1), total(x).chunk(SIZE, 1)[RANK])

    def test_numbers_of_rows_that_share_a_program(self):
        """Arrays end before the program's bound does."""
        weight = randn(64)
        for rows in (SIZE * 97, SIZE * 103, SIZE * 99):
            x, residual = randn(rows, 64), randn(rows, 64)
            self.assertTrue(torch.equal(stretto.all_gather(x), torch.cat(from_all(x))))
            self.assertTrue(torch.equal(stretto.broadcast(x), from_all(x)[0]))
            self.same(stretto.all_reduce(x), total(x))
            self.same(stretto.reduce_scatter(x), total(x).chunk(SIZE)[RANK])
            shared = from_all(residual)[0]
            _, added = stretto.all_reduce_add_rms_norm(x, shared, weight)
            self.same(added, total(x) + shared.float())
            sent = [rows] + [0] * (SIZE - 1)
            got = stretto.all_to_all(x, None, sent)
            everything = torch.cat(from_all(x))
            self.assertTrue(torch.equal(got, everything if RANK == 0 else x[:0]))

    def test_broadcast(self):
        for root in range(SIZE):
            x = randn(33, 77)
            self.assertTrue(torch.equal(stretto.broadcast(x, root), from_all(x)[root]))

    def test_all_to_all(self):
        x = randn(6 * SIZE, 96)
        want = torch.cat([y.chunk(SIZE)[RANK] for y in from_all(x)])
        self.assertTrue(torch.equal(stretto.all_to_all(x), want))
        x = randn(6 * SIZE, 5)
        want = torch.cat([y.chunk(SIZE)[RANK] for y in from_all(x)])
        self.assertTrue(torch.equal(stretto.all_to_all(x), want))
        sent = [(RANK + to) % 3 for to in range(SIZE)]
        x = torch.full((sum(sent), 40), float(RANK), device=DEVICE)
        got = stretto.all_to_all(x, None, sent)
        want = [float(r) for r in range(SIZE) for _ in range((r + RANK) % 3)]
        self.assertEqual(got[:, 0].tolist(), want)

    def test_add_norm(self):
        for shape in ((32, 1024), (2, 5, 256)):
            for _ in range(3):
                x, residual, weight = randn(*shape), randn(*shape), randn(shape[-1])
                normed, summed = stretto.all_reduce_add_rms_norm(x, residual, weight, eps=1e-5)
                want = total(x) + residual.float()
                self.same(summed, want)
                want = torch.nn.functional.rms_norm(want, shape[-1:], weight.float(), 1e-5)
                self.same(normed, want)

    def test_attention(self):
        attention = torch.nn.functional.scaled_dot_product_attention
        for heads, kv_heads, rows, tokens, width, causal in (
            (8, 8, 256, 256, 128, True),
            (8, 2, 100, 100, 64, True),
            (4, 4, 64, 192, 128, False),
        ):
            gqa = heads != kv_heads
            for _ in range(3):
                q = randn(2, rows, heads, width).transpose(1, 2)
                k, v = (randn(2, kv_heads, tokens, width) for _ in range(2))
                got = stretto.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=gqa)
                self.same(got, attention(q, k, v, is_causal=causal, enable_gqa=gqa))


class Products(GpuTest):
    def factors(self, m, n, k, dtype, dims=2):
        a = randn(*((m,) if dims == 2 else (m // 4, 4)), k, dtype=dtype)
        return a, randn(n, k, dtype=dtype, scale=k**-0.5)

    def test_all_gather_matmul(self):
        for dtype in DTYPES:
            for m, n, k in ((512, 512, 256), (96, 128, 64), (7, 64, 128)):
                a, w = self.factors(m, n, k, dtype)
                want = torch.cat(from_all(a)).float() @ w.float().t()
                self.same(stretto.all_gather_matmul(a, w.t()), want)
        a, w = self.factors(64, 128, 64, torch.bfloat16, dims=3)
        gathered, c = stretto.all_gather_matmul(a, w.t(), gather_dim=1, return_a=True)
        want = torch.cat(from_all(a), 1)
        self.assertTrue(torch.equal(gathered, want))
        self.same(c, want.float() @ w.float().t())

    def test_matmul_reduce_scatter(self):
        for dtype in DTYPES:
            for m, n, k in ((512, 512, 256), (48, 128, 64)):
                a, w = self.factors(m * SIZE, n, k, dtype)
                want = total(a.float() @ w.float().t()).chunk(SIZE)[RANK]
                self.same(stretto.matmul_reduce_scatter(a, w.t()), want)
        a, w = self.factors(64, 128, 64, torch.bfloat16, dims=3)
        if 4 % SIZE == 0:
            got = stretto.matmul_reduce_scatter(a, w.t(), scatter_dim=1, reduce_op="avg")
            self.same(got, total(a.float() @ w.float().t()).chunk(SIZE, 1)[RANK] / SIZE)

    def test_matmul_all_reduce(self):
        for dtype in DTYPES:
            for m, n, k in ((1, 512, 256), (64, 512, 256), (1024, 512, 256)):
                a, w = self.factors(m, n, k, dtype)
                self.same(stretto.matmul_all_reduce(a, w.t()), total(a.float() @ w.float().t()))
                own = (a.float() @ w.float().t()).contiguous()
                every = [torch.empty_like(own) for _ in range(SIZE)]
                dist.all_gather(every, own)
                self.same(stretto.matmul_all_gather(a, w.t()), torch.cat(every, 1))

    def test_torch_can_use_a_weight_that_is_not_transposed(self):
        a, b = randn(64, 64), randn(64, 128, scale=0.125)
        want = torch.cat(from_all(a)).float() @ b.float()
        self.same(stretto.all_gather_matmul(a, b), want)


    def test_scales(self):
        fp8, m, n, k = torch.float8_e4m3fn, 128, 256, 512
        a, w = randn(m, k).to(fp8), randn(n, k, scale=k**-0.5 * 8).to(fp8)
        rows = torch.rand(m, 1, device=DEVICE) / 8, torch.rand(1, n, device=DEVICE)
        blocks = torch.rand(m, k // 128, device=DEVICE) / 8, torch.rand(k // 128, n // 128, device=DEVICE)
        for scale_a, scale_b in (rows, blocks):
            x = a.float() * scale_a.repeat_interleave(k // scale_a.shape[1], 1)
            y = w.t().float() * scale_b.repeat_interleave(k // scale_b.shape[0], 0).repeat_interleave(
                n // scale_b.shape[1], 1
            )
            scales = {"scale_a": scale_a, "scale_b": scale_b}
            for _ in range(2):
                got = stretto.all_gather_matmul(a, w.t(), **scales)
                self.same(got, torch.cat(from_all(x)) @ y)
                got = stretto.matmul_reduce_scatter(a, w.t(), **scales)
                self.same(got, total(x @ y).chunk(SIZE)[RANK])
                self.same(stretto.matmul_all_reduce(a, w.t(), **scales), total(x @ y))
                several = {"scale_a": scale_a, "scale_b": [scale_b] * 2}
                out = [torch.empty(SIZE * m, n, dtype=torch.bfloat16, device=DEVICE), None]
                for got in stretto.all_gather_matmul(a, [w.t()] * 2, out=out, **several):
                    self.same(got, torch.cat(from_all(x)) @ y)


class Memory(GpuTest):
    def test_symmetric_tensors(self):
        x = stretto.symm_mem.empty(32, 64, dtype=torch.bfloat16, device="cuda")
        self.assertEqual((x.device, x.abs().sum().item()), (DEVICE, 0))
        for i in range(5):
            x.fill_(RANK + i)
            got = stretto.all_gather(x)
            self.assertEqual(got[::32, 0].tolist(), [r + i for r in range(SIZE)])
        w = randn(64, 64)
        x.copy_(randn(32, 64))
        self.same(stretto.all_gather_matmul(x, w.t()), torch.cat(from_all(x)).float() @ w.float().t())
        self.same(stretto.all_gather(x[16:]), torch.cat(from_all(x[16:])))

    def test_strided_and_misaligned(self):
        x = randn(65, 66)
        for view in (x[:, 1:33], x[1:].t(), x.reshape(-1)[1 : 1 + 1024].view(16, 64)):
            self.same(stretto.all_reduce(view), total(view))
            self.same(stretto.all_reduce(view), total(view))  # now the call is known
        out = torch.zeros(65, 66, device=DEVICE, dtype=torch.bfloat16)
        stretto.all_reduce(x[:, :32], out=out[:, 1:33])
        self.same(out[:, 1:33], total(x[:, :32]))

    def test_repeated_calls_see_new_values(self):
        x, out = torch.empty(64, 64, device=DEVICE), torch.empty(64, 64, device=DEVICE)
        for i in range(200):
            x.fill_(float(i + RANK))
            stretto.all_reduce(x, out=out)
            if i % 50 == 0:
                self.assertEqual(out[3, 3].item(), sum(i + r for r in range(SIZE)))
        self.assertEqual(out[3, 3].item(), sum(199 + r for r in range(SIZE)))

    def test_wrong_device(self):
        if torch.cuda.device_count() < 2:
            self.skipTest("one GPU")
        other = torch.ones(4, 64, device=torch.device("cuda", (DEVICE.index + 1) % torch.cuda.device_count()))
        with self.assertRaisesRegex(stretto.UserError, "this rank is on GPU"):
            stretto.all_reduce(other)
        x = randn(4, 64)
        self.same(stretto.all_reduce(x), total(x))
        self.assertEqual(torch.cuda.current_device(), DEVICE.index)

    def test_arrays_of_two_devices(self):
        with self.assertRaisesRegex(stretto.UserError, "different kinds"):
            stretto.all_gather_matmul(randn(8, 64), torch.ones(64, 64, dtype=torch.bfloat16))

    def test_the_cpu_still_works(self):
        self.same(stretto.all_reduce(torch.ones(4, 4)), torch.full((4, 4), float(SIZE)))


class Streams(GpuTest):
    def test_work_is_on_the_current_stream(self):
        x, big = torch.zeros(64, 64, device=DEVICE), randn(4096, 4096)
        stretto.all_reduce(x)
        side = torch.cuda.Stream()
        for i in range(3):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(20):
                    big @ big  # keeps the stream busy until x is written
                x.fill_(float(RANK + i))
                got = stretto.all_reduce(x)
            torch.cuda.current_stream().wait_stream(side)
            self.assertEqual(got[0, 0].item(), sum(r + i for r in range(SIZE)))

    def test_the_host_does_not_wait(self):
        x, big = torch.zeros(64, 64, device=DEVICE), randn(8192, 8192)
        stretto.all_reduce(x)
        torch.cuda.synchronize()
        for _ in range(100):
            big @ big  # over 100 ms
        done = torch.cuda.Event()
        got = stretto.all_reduce(x)
        done.record()
        self.assertFalse(done.query())
        self.assertEqual(got.sum().item(), 0)

    def test_graphs(self):
        a, w = randn(128, 256), randn(256, 256, scale=1 / 16)
        down = randn(128, 256, scale=1 / 16)

        def block(x):
            c = stretto.all_gather_matmul(x, w.t())
            return stretto.all_reduce(stretto.matmul_all_reduce(c, down.t()))

        for _ in range(2):
            block(a)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = block(a)
        for _ in range(5):
            a.copy_(randn(128, 256))
            want = block(a)
            graph.replay()
            self.same(y, want)

    def test_operators_in_inference_mode(self):
        """Made by the kernel that PyTorch's dispatcher calls, behind work on another stream and in a graph, too."""
        x, w, ops = randn(64, 256), randn(128, 256, scale=1 / 16), torch.ops.stretto
        calls = [(ops.all_reduce, ("sum", "")), (ops.all_gather_matmul, (w.t(), 0, ""))]
        side = torch.cuda.Stream()
        for op, rest in calls:
            want = op(x, *rest)
            with torch.inference_mode():
                for _ in range(4):
                    self.assertTrue(torch.equal(op(x, *rest), want))
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    torch.cuda._sleep(10_000_000)  # pylint: disable=protected-access
                    late = op(x.clone(), *rest)
                torch.cuda.current_stream().wait_stream(side)
                self.assertTrue(torch.equal(late, want))
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    captured = op(x, *rest)
                captured.zero_()
                graph.replay()
                self.assertTrue(torch.equal(captured, want))

    def test_products_in_sequence(self):
        """Collective and product one after the other, in graphs too."""
        group = _world.group_of()
        how, m = group.options, 16 * SIZE
        a, w = randn(m, 256), randn(512, 256, scale=1 / 16)
        kn = w.t().contiguous()

        def products(b):
            return (
                *stretto.all_gather_matmul(a[:16], b, return_a=True),
                stretto.all_gather_matmul(a[:16], b),
                stretto.matmul_reduce_scatter(a, b),
                stretto.matmul_all_reduce(a, b),
            )

        try:
            group.options = how._replace(products="fused")
            group.plans.clear()
            want = products(w.t())
            group.options = how._replace(products="sequence")
            group.plans.clear()
            for b in (w.t(), kn, w.t()):
                for x, y in zip(products(b), want):
                    torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = products(w.t())
            for _ in range(3):
                a.copy_(randn(m, 256))
                graph.replay()
                for x, y in zip(captured, products(w.t())):
                    self.same(x, y)
        finally:
            group.options = how
            group.plans.clear()

    def test_trace(self):
        x, q = randn(32, 64), randn(1, 4, 64, 64)
        want = stretto.all_reduce(x)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            for _ in range(2):  # the second time with kernels that are there
                with stretto.trace(path):
                    self.same(stretto.all_reduce(x), want)
                    stretto.scaled_dot_product_attention(q, q, q)
                with open(path) as file:
                    events = json.load(file)["traceEvents"]
                launches = [e for e in events if e.get("cat") == "launch"]
                programs = sorted(e["args"]["program"] for e in launches)
                self.assertEqual([p.split("_")[0] for p in programs], ["all", "attention"], programs)
                self.assertTrue(any(e.get("cat") == "tile" and e["dur"] > 0 for e in events))
        self.same(stretto.all_reduce(x), want)

    def test_a_first_call_is_not_captured(self):
        x = randn(24, 64)
        graph = torch.cuda.CUDAGraph()
        with self.assertRaisesRegex(stretto.UserError, "call it once before"):
            with torch.cuda.graph(graph):
                stretto.broadcast(x)


class Gradients(GpuTest):
    def test_products(self):
        a, w = randn(64, 128), randn(96, 128, scale=0.1)
        up = randn(64 * SIZE, 96)
        leaf, weight = (t.clone().requires_grad_() for t in (a, w))
        y = stretto.all_gather_matmul(leaf, weight.t())
        (y * up).sum().backward()
        whole = torch.cat(from_all(a)).float()
        self.same(weight.grad, up.float().t() @ whole)
        want = total(up.float() @ w.float()).chunk(SIZE)[RANK]
        self.same(leaf.grad, want)

        leaf, weight = y.detach().clone().requires_grad_(), randn(128, 96, scale=0.1).requires_grad_()
        z = stretto.matmul_reduce_scatter(leaf, weight.t())
        back = randn(*z.shape)
        (z * back).sum().backward()
        gathered = torch.cat(from_all(back)).float()
        self.same(leaf.grad, gathered @ weight.detach().float())
        self.same(weight.grad, gathered.t() @ leaf.detach().float())

    def test_what_moves_rows(self):
        x, root = randn(2 * SIZE, 64), SIZE - 1
        leaf, back = x.clone().requires_grad_(), randn(2 * SIZE, 64)
        (stretto.broadcast(leaf, root) * back).sum().backward()
        everything = total(back)
        self.same(leaf.grad, everything if RANK == root else torch.zeros_like(back))

        leaf = x.clone().requires_grad_()
        (stretto.all_to_all(leaf) * back).sum().backward()
        self.assertTrue(torch.equal(leaf.grad, stretto.all_to_all(back)))
        sent = [0] * (SIZE - 1) + [2 * SIZE]
        leaf = x.clone().requires_grad_()
        y = stretto.all_to_all(leaf, None, sent)
        y.square().sum().backward()
        self.same(leaf.grad, 2 * x.float())

    def test_norm_of_a_sum(self):
        x, residual, weight = randn(24, 256), randn(24, 256), randn(256)
        leaves = [t.clone().requires_grad_() for t in (x, residual, weight)]
        up, down = randn(24, 256), randn(24, 256)
        normed, added = stretto.all_reduce_add_rms_norm(*leaves)
        ((normed * up).sum() + (added * down).sum()).backward()

        whole = added.detach().float().requires_grad_()
        scale = weight.float().requires_grad_()
        want = torch.nn.functional.rms_norm(whole, (256,), scale, 1e-5)
        ((want * up).sum() + (whole * down).sum()).backward()
        self.same(leaves[1].grad, whole.grad)
        self.same(leaves[0].grad, total(whole.grad))
        self.same(leaves[2].grad, scale.grad)

    def test_layers(self):
        from torch import nn

        from stretto.nn import ColumnParallelLinear, RowParallelLinear

        torch.manual_seed(SEED)  # the same whole layers on every rank
        first, second = nn.Linear(64, 128), nn.Linear(128, 64)
        x = torch.randn(32 * SIZE, 64)
        first, second, x = first.to(DEVICE), second.to(DEVICE), x.to(DEVICE)
        torch.manual_seed(SEED * 64 + RANK)
        whole = x.clone().requires_grad_()
        want = second(torch.relu(first(whole)))
        want.square().sum().backward()
        up, down = ColumnParallelLinear.from_linear(first), RowParallelLinear.from_linear(second)
        mine = x.chunk(SIZE)[RANK].clone().requires_grad_()
        got = down(torch.relu(up(mine)))
        got.square().sum().backward()
        loose = torch.bfloat16  # other orders of sums in float32, tf32 in kernels
        self.same(got, want.chunk(SIZE)[RANK], loose)
        self.same(mine.grad, whole.grad.chunk(SIZE)[RANK], loose)
        self.same(up.weight.grad, first.weight.grad.chunk(SIZE)[RANK], loose)
        self.same(down.bias.grad, second.bias.grad, loose)

    def test_compiled_in_one_graph(self):
        a, w = randn(64, 64), randn(64, 64, scale=0.1)

        def block(x, y):
            return stretto.matmul_reduce_scatter(torch.relu(stretto.all_gather_matmul(x, y.t())), y)

        want = block(a, w)
        compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
        self.same(compiled(a, w), want)


class Disagreements(GpuTest):
    def setUp(self):
        if SIZE == 1:
            self.skipTest("one rank")

    def test_first_calls(self):
        with self.assertRaises(stretto.UserError) as raised:
            stretto.all_reduce(randn(32 + 32 * RANK, 64))
        texts = [None] * SIZE
        dist.all_gather_object(texts, str(raised.exception))
        self.assertEqual(len(set(texts)), 1, texts)
        x = randn(32, 64)
        self.same(stretto.all_reduce(x), total(x))

    def test_z_repeated_calls(self):
        """Last: afterwards the world has recovered from a fault."""
        x, y = randn(128, 64), randn(16, 64)
        for _ in range(2):
            stretto.all_reduce(x)
            stretto.all_gather(y)
        torch.cuda.synchronize()
        dist.barrier()
        with self.assertRaises(stretto.Fault) as raised:
            stretto.all_reduce(x) if RANK == 0 else stretto.all_gather(y)
            for _ in range(1000):
                torch.cuda.synchronize()
                stretto.barrier()
        self.assertIn("another call", str(raised.exception))
        torch.cuda.synchronize()
        stretto.recover()
        for _ in range(3):
            self.same(stretto.all_reduce(x), total(x))
            self.assertTrue(torch.equal(stretto.all_gather(y), torch.cat(from_all(y))))


if __name__ == "__main__":
    main()
