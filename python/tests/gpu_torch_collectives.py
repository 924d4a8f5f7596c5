"""Reductions other than sums, one rank with the others, messages and lists of sizes on GPUs, against the same in
PyTorch over what torch.distributed gathers; see gpu_torch.py for how it is run.

    torchrun --standalone --nproc-per-node 2 python/tests/gpu_torch_collectives.py
"""

import functools

import torch

import stretto
from gpu_testing import (  # setUpModule, tearDownModule: for unittest
    DEVICE,
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

    def exchanged(self, x, sizes, got):
        """The rows that came, which are those of every rank's block for this one."""
        every = [(y, s.tolist()) for y, s in zip(from_all(x), from_all(sizes))]
        want = torch.cat([y[: sum(s)].split(s)[RANK] for y, s in every])
        rows, received = got
        self.assertEqual(received.tolist(), [s[RANK] for _, s in every])
        self.assertTrue(torch.equal(rows[: len(want)], want), (x.dtype, tuple(x.shape), sizes.tolist()))
        return len(want)

    def splits(self, rows):
        """None, all to one rank, by lot, even."""
        one = [0] * SIZE
        one[(RANK + 1) % SIZE] = rows
        lot = torch.randint(0, rows // SIZE + 1, (SIZE,)).tolist()
        return [[0] * SIZE, one, lot, [rows // SIZE] * SIZE]

    def test_sizes_on_the_device(self):
        for dtype in (*DTYPES, torch.int64):
            for shape in ((64, 256), (3, 5), (1024, 4096), (777, 33)):
                x = (randn(*shape, dtype=torch.float32) * 50).to(dtype)
                for split in self.splits(shape[0]):
                    for number in (torch.int32, torch.int64):
                        sizes = torch.tensor(split, dtype=number, device=DEVICE)
                        out = torch.full((SIZE * shape[0] + 2, shape[1]), 77, device=DEVICE).to(dtype)
                        got = stretto.all_to_all_v(x, sizes, out=out)
                        count = self.exchanged(x, sizes, got)
                        self.assertTrue(bool((out[count:] == 77).all()))
                        self.exchanged(x, sizes, stretto.all_to_all_v(x, sizes))

    def test_lengths_on_the_device(self):
        for dtype in (*DTYPES, torch.int64):
            for shape in ((64, 256), (3, 5), (1024, 4096)):
                x = (randn(*shape, dtype=torch.float32) * 50).to(dtype)
                every = from_all(x)
                for turn in range(3):
                    lengths = [(7 * turn + 5 * r) % (shape[0] + 1) for r in range(SIZE)]
                    want = torch.cat([e[:n] for e, n in zip(every, lengths)])
                    rows, sizes = stretto.all_gather_v(x, torch.tensor(lengths[RANK], device=DEVICE))
                    self.assertEqual(sizes.tolist(), lengths)
                    self.assertTrue(torch.equal(rows[: len(want)], want), (dtype, shape))

    def test_sizes_of_a_graph(self):
        """Captured once, replayed with sizes that the capture has not seen."""
        for symmetric in (False, True):
            like = randn(1024, 2048)
            x = torch.empty_like(like)
            if symmetric:
                x = stretto.symm_mem.empty(1024, 2048, dtype=torch.bfloat16, device=DEVICE)
            sizes = torch.zeros(SIZE, dtype=torch.int64, device=DEVICE)

            def calls(x=x, sizes=sizes):
                return stretto.all_to_all_v(x, sizes), stretto.all_gather_v(x, sizes[:1])

            calls()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                exchanged, gathered = calls()
            for _ in range(3):
                for split in self.splits(1024):
                    x.copy_(torch.randn_like(like))
                    sizes.copy_(torch.tensor(split))
                    exchanged.rows.zero_()
                    gathered.rows.zero_()
                    torch.cuda.synchronize()
                    stretto.barrier()
                    graph.replay()
                    self.exchanged(x, sizes, exchanged)
                    lengths = from_all(sizes[:1])
                    want = torch.cat([e[: int(n)] for e, n in zip(from_all(x), lengths)])
                    self.assertTrue(torch.equal(gathered.rows[: len(want)], want))


if __name__ == "__main__":
    main()
