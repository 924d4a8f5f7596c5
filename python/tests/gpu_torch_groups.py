"""Groups of ranks on GPUs, against the same in PyTorch over what torch.distributed gathers; see
gpu_torch.py for how it is run.

    torchrun --standalone --nproc-per-node 2 python/tests/gpu_torch_groups.py
"""

import unittest

import torch
import torch.distributed as dist

import stretto
from gpu_testing import (  # setUpModule, tearDownModule: for unittest
    DEVICE,
    RANK,
    SHARE,
    SIZE,
    GpuTest,
    from_all,
    main,
    randn,
    setUpModule,
    tearDownModule,
)

AXES = {"outer": SIZE // 2, "inner": 2} if SIZE % 2 == 0 else {"outer": 1, "inner": SIZE}


class Groups(GpuTest):
    @classmethod
    def setUpClass(cls):
        stretto.mesh(**AXES)
        stretto.new_group(range(SIZE), name="again")
        for r in range(SIZE):
            stretto.new_group([r], name=f"alone {r}")
        cls.names = [None, *AXES, "again", f"alone {RANK}"]

    @classmethod
    def tearDownClass(cls):
        for name in (*AXES, "again", *(f"alone {r}" for r in range(SIZE))):
            stretto.finalize(name)

    def members(self, name):
        return stretto._world.group_of(name).ranks

    def calls(self, a, w, name):
        """Of two layers and a sum, with what they should be."""
        ranks = self.members(name)
        at, every_a, every_w = ranks.index(RANK), from_all(a), from_all(w)
        gathered = torch.cat([every_a[r] for r in ranks]).float()
        partial = sum(every_a[r].float() @ every_w[r].float().t() for r in ranks)
        return (
            (lambda: stretto.all_gather(a, group=name), gathered),
            (lambda: stretto.all_reduce(a, group=name), sum(every_a[r].float() for r in ranks)),
            (lambda: stretto.all_gather_matmul(a, w.t(), group=name), gathered @ w.float().t()),
            (
                lambda: stretto.matmul_reduce_scatter(a, w.t(), group=name),
                partial.chunk(len(ranks))[at],
            ),
            (lambda: stretto.matmul_all_reduce(a, w.t(), group=name), partial),
        )

    def test_operators_in_turn(self):
        for _ in range(3):
            a, w = randn(64 * SIZE, 256), randn(128, 256, scale=1 / 16)
            of_groups = [self.calls(a, w, name) for name in self.names]
            for calls in zip(*of_groups):  # one operator in every group, then the next
                for got, (_, want) in zip([call() for call, _ in calls], calls):
                    self.same(got, want)

    def test_symmetric_tensors(self):
        for name in self.names:
            x = stretto.symm_mem.empty(16, 64, dtype=torch.bfloat16, device=DEVICE, group=name)
            x.fill_(float(RANK))
            for given in self.names:
                got = stretto.all_gather(x, group=given)[::16, 0].tolist()
                self.assertEqual(got, [float(r) for r in self.members(given)])

    def test_one_graph_of_several_groups(self):
        a, w = randn(64, 256), randn(256, 256, scale=1 / 16)

        def block(x):
            for name in self.names:
                y = stretto.all_gather_matmul(x, w.t(), group=name)
                x = stretto.matmul_reduce_scatter(y, w.t(), reduce_op="avg", group=name)
            return x

        for _ in range(2):
            block(a)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = block(a)
        for _ in range(5):
            a.copy_(randn(64, 256))
            want = block(a)
            graph.replay()
            self.same(y, want)

    @unittest.skipIf(SHARE, "kernels of ranks on one GPU take turns")
    def test_streams_with_a_group_each(self):
        """Kernels that each take the whole GPU, enqueued without a wait between them: where one
        group's came first on one rank and last on another, neither would end."""
        a, w = randn(2048, 1024), randn(2048, 1024, scale=1 / 32)
        streams = {name: torch.cuda.Stream() for name in (None, "again")}
        for name in streams:
            stretto.all_gather_matmul(a, w.t(), group=name)
        gathered = torch.cat(from_all(a)).float() @ w.float().t()
        torch.cuda.synchronize()
        results = []
        for turn in range(30):
            if turn % 7 == RANK:
                torch.cuda._sleep(3_000_000)
            for name, stream in streams.items():
                with torch.cuda.stream(stream):
                    got = stretto.all_gather_matmul(a, w.t(), group=name)
                    if turn % 10 == 9:
                        results.append(got)
        torch.cuda.synchronize()
        for got in results:
            self.same(got, gathered)

    def test_layers(self):
        from stretto.nn import ColumnParallelLinear, RowParallelLinear

        for name in self.names:
            size = len(self.members(name))
            torch.manual_seed(7)
            options = {"device": DEVICE, "dtype": torch.bfloat16}
            whole = torch.nn.Linear(256, 128 * size, **options), torch.nn.Linear(128 * size, 256, **options)
            layers = (
                ColumnParallelLinear.from_linear(whole[0], group=name),
                RowParallelLinear.from_linear(whole[1], group=name),
            )
            torch.manual_seed(8)
            x = torch.randn(64 * size, 256, device=DEVICE).bfloat16()
            rows = slice(64 * self.members(name).index(RANK), None)
            mine = x[rows][:64].clone().requires_grad_()
            y = layers[1](torch.relu(layers[0](mine)))
            y.float().square().sum().backward()
            want = x.clone().requires_grad_()
            z = whole[1](torch.relu(whole[0](want)))
            z.float().square().sum().backward()
            self.same(y, z[rows][:64].float())
            torch.testing.assert_close(mine.grad, want.grad[rows][:64], rtol=5e-2, atol=0.2)

    def test_a_group_of_torch_distributed(self):
        if not dist.is_initialized():
            self.skipTest("not under torchrun")
        group, x = dist.new_group(list(range(SIZE))), randn(64, 64)
        ours = stretto.new_group(group)
        want = sum(y.float() for y in from_all(x))
        self.same(stretto.all_reduce(x, group=group), want)
        stretto.finalize(ours)
        self.same(stretto.all_reduce(x), want)

    def test_z_a_fault_stays_in_its_group(self):
        """Last: ranks make different calls in one group, and others go on."""
        x, y = randn(128, 64), randn(16, 64)
        for name in ("again", None):
            stretto.all_reduce(x, group=name)
            stretto.all_gather(y, group=name)
        torch.cuda.synchronize()
        dist.barrier()
        with self.assertRaises(stretto.Fault) as raised:
            stretto.all_reduce(x, group="again") if RANK == 0 else stretto.all_gather(y, group="again")
            for _ in range(1000):
                torch.cuda.synchronize()
                stretto.barrier("again")
        self.assertIn("another call", str(raised.exception))
        torch.cuda.synchronize()
        want = sum(z.float() for z in from_all(x))
        self.same(stretto.all_reduce(x), want)
        stretto.recover("again")
        self.same(stretto.all_reduce(x, group="again"), want)


if SIZE == 1:
    del Groups.test_z_a_fault_stays_in_its_group

if __name__ == "__main__":
    main()
