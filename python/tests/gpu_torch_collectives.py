"""Reductions other than sums, one rank with the others, messages and lists of sizes on GPUs, against the same in
PyTorch over what torch.distributed gathers; see gpu_torch.py for how it is run.

    torchrun --standalone --nproc-per-node 2 python/tests/gpu_torch_collectives.py
"""

import functools

import torch

import stretto
from gpu_testing import (  # setUpModule, tearDownModule: for unittest
    DTYPES,
    RANK,
    SIZE,
    GpuTest,
    from_all,
    main,
    randn,
    setUpModule,
    tearDownModule,
)


class MoreCollectives(GpuTest):
    def test_reductions(self):
        functions = {"min": torch.minimum, "max": torch.maximum, "product": torch.mul}
        for dtype in (*DTYPES, torch.int32):
            for shape in ((64 * SIZE, 256), (3 * SIZE, 5), (1024 * SIZE, 512)):
                x = (randn(*shape, dtype=torch.float32) * 2).round().to(dtype)
                for name, function in functions.items():
                    want = functools.reduce(function, from_all(x))
                    self.assertTrue(torch.equal(stretto.all_reduce(x, reduce_op=name), want), (dtype, name))
                    part = stretto.reduce_scatter(x, reduce_op=name)
                    self.assertTrue(torch.equal(part, want.chunk(SIZE)[RANK]), (dtype, shape, name))
        x = (randn(300, 7, dtype=torch.float32) * 2**20).to(torch.int32)
        self.assertTrue(torch.equal(stretto.all_reduce(x), sum(from_all(x))))

    def test_to_and_from_one_rank(self):
        for dtype in (*DTYPES, torch.int32):
            for shape in ((64 * SIZE, 256), (3 * SIZE, 5), (1024 * SIZE, 512)):
                x = (randn(*shape, dtype=torch.float32) * 2).round().to(dtype)
                every = from_all(x)
                for root in range(SIZE):
                    got = stretto.reduce(x, root), stretto.reduce(x, root, reduce_op="max"), stretto.gather(x, root)
                    want = sum(every), functools.reduce(torch.maximum, every), torch.cat(every)
                    for result, right in zip(got, want):
                        self.assertTrue(torch.equal(result, right) if RANK == root else result is None, (dtype, shape))
                    self.assertTrue(torch.equal(stretto.scatter(x, root), every[root].chunk(SIZE)[RANK]))

    def test_messages(self):
        """Round the ring, and between the ranks of a world of two."""
        for dtype in (*DTYPES, torch.int64, torch.uint8):
            for shape in ((64, 256), (3, 5), (1024, 512)):
                x = (randn(*shape, dtype=torch.float32) * 50).to(dtype)
                got, every = torch.empty_like(x), from_all(x)
                stretto.batch_send_recv([(x, (RANK + 1) % SIZE)], [(got, (RANK - 1) % SIZE)])
                self.assertTrue(torch.equal(got, every[RANK - 1]), (dtype, shape))
                for source in range(SIZE if SIZE == 2 else 0):
                    if RANK == source:
                        stretto.send(x)
                    else:
                        self.assertTrue(torch.equal(stretto.recv(torch.empty_like(x)), every[source]), (dtype, shape))

    def test_gathered_sizes(self):
        sizes = [5 + 3 * r for r in range(SIZE)]
        for dtype in (*DTYPES, torch.int64):
            whole = (randn(sum(sizes), 33, dtype=torch.float32) * 50).to(dtype)
            whole = from_all(whole)[0]
            got = stretto.all_gather(whole.split(sizes)[RANK], sizes=sizes)
            self.assertTrue(torch.equal(got, whole), dtype)

    def test_even_sizes_as_lists(self):
        x = randn(4 * SIZE, 96)
        for _ in range(3):
            self.assertTrue(torch.equal(stretto.all_to_all(x, [4] * SIZE, [4] * SIZE), stretto.all_to_all(x)))


if __name__ == "__main__":
    main()
