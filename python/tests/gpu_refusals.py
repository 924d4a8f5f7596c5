"""Calls that a rank refuses, and what is given back where calls take too much memory, on GPUs:
under torchrun, with STRETTO_KEPT_MB=64."""

import os
import time
import unittest

import torch
import torch.distributed as dist

import stretto
from gpu_testing import DEVICE, RANK, SIZE, GpuTest, main, setUpModule, tearDownModule  # noqa: F401

SOON = 5  # seconds; deadlines are longer
needs_ranks = unittest.skipUnless(SIZE > 1, "one rank waits for nobody")


def ones(*shape):
    return torch.ones(*shape, device=DEVICE)


class Refusals(GpuTest):
    def told(self, kind, call):
        begin = time.monotonic()
        with self.assertRaises(kind) as caught:
            call()
        self.assertLess(time.monotonic() - begin, SOON)
        return str(caught.exception)

    def works(self, rows=16):
        self.assertTrue((stretto.all_reduce(ones(rows, 64)) == SIZE).all())

    def test_where_all_refuse_the_world_goes_on(self):
        self.works()
        for _ in range(9):
            self.told(stretto.UserError, lambda: stretto.all_reduce(ones(4, 4).long()))
            stretto.all_reduce(ones(16, 64))
        self.works()
        stretto.barrier()

    @needs_ranks
    def test_a_first_call_that_one_refuses(self):
        for rows in (1000, 3000):
            x = ones(rows, 64)
            text = self.told(
                stretto.UserError, lambda: stretto.all_reduce(x.long() if RANK == SIZE - 1 else x)
            )
            self.assertIn("element type int64", text)
            self.works()
            self.works(rows)

    @needs_ranks
    def test_a_later_call_that_one_refuses(self):
        """Others have launched it, or come later; the world recovers."""
        for last_refuses_first in (False, True):
            self.works()
            dist.barrier()
            refuses = RANK == SIZE - 1
            if refuses != last_refuses_first:
                time.sleep(0.3)
            begin = time.monotonic()
            if refuses:
                self.told(stretto.UserError, lambda: stretto.all_reduce(ones(4, 4).long()))
            try:
                while refuses is False or last_refuses_first is False:
                    stretto.all_reduce(ones(16, 64))
                    torch.cuda.synchronize()
                    stretto.barrier()
            except stretto.UserError as error:  # of the barrier, before the kernels ended
                self.assertIn("has refused", str(error))
            except stretto.Fault as fault:
                self.assertIn("has refused the call in this place: all_reduce:", str(fault))
            self.assertLess(time.monotonic() - begin, SOON)
            dist.barrier()
            stretto.recover()
        self.works()
        self.works(1000)


class LittleRoom(GpuTest):
    def test_many_sizes_stay_within_it(self):
        def sizes():
            for rows in range(8, 8 * 60, 8):
                x = ones(SIZE * rows, 512) * RANK
                for _ in range(2):
                    got = stretto.all_to_all(x)
                want = torch.arange(SIZE, device=DEVICE).repeat_interleave(rows)
                self.assertTrue((got == want[:, None]).all())
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            return torch.cuda.mem_get_info()[0]

        first, second = sizes(), sizes()
        kept = stretto._world.group_of().kept
        counted = sum(e.bytes for e in kept._made)
        print(f"rank {RANK}: {len(kept._made)} programs, {counted >> 20} MB counted", flush=True)
        self.assertLess(counted, (int(os.environ["STRETTO_KEPT_MB"]) + 16) << 20)
        self.assertLess(first - second, 64 << 20)

    def test_what_graphs_have_captured_stays(self):
        x = ones(SIZE * 24, 256) * (RANK + 1)
        stretto.all_gather(x)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            stretto.all_gather(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = stretto.all_gather(x)
        for rows in range(8, 8 * 40, 8):
            stretto.all_to_all(ones(SIZE * rows, 512))
        for turn in range(3):
            x.fill_(turn + RANK)
            graph.replay()
            want = torch.arange(SIZE, device=DEVICE).repeat_interleave(SIZE * 24) + turn
            self.assertTrue((y == want[:, None]).all())

    def test_gradients_of_many_sizes(self):
        for rows in [*range(8, 100, 8), 8, 16]:
            a = torch.randn(SIZE * rows, 256, device=DEVICE, requires_grad=True)
            w = torch.randn(512, 256, device=DEVICE, requires_grad=True)
            y = stretto.matmul_reduce_scatter(a, w.t())
            y.sum().backward()
            want = ones(1, 512) @ w.detach()
            torch.testing.assert_close(a.grad, want.expand_as(a), rtol=1e-2, atol=1e-1)
            whole = a.detach().sum(0).expand(512, 256)
            torch.testing.assert_close(w.grad, whole, rtol=1e-2, atol=1e-1)


if __name__ == "__main__":
    main()
