"""Reductions other than sums, payloads, norms over ranks, one rank with the others, messages, lists of sizes and
calls that go on, on GPUs, against the same in PyTorch over what torch.distributed gathers; see gpu_torch.py for how it
is run.

    torchrun --standalone --nproc-per-node 2 python/tests/gpu_torch_collectives.py
"""

import functools

import torch
import torch.distributed as dist

import stretto
from gpu_testing import (  # setUpModule, tearDownModule: for unittest
    DEVICE,
    DTYPES,
    RANK,
    SHARE,
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

FUNCTIONS = {"min": torch.minimum, "max": torch.maximum, "product": torch.mul}
# Each compiles programs of its own: all kinds of elements, rows that are long, few and odd.
ARRAYS = (
    (torch.bfloat16, (1024 * SIZE, 512)),
    (torch.float16, (3 * SIZE, 5)),
    (torch.float32, (65 * SIZE, 256)),
    (torch.int32, (7 * SIZE, 33)),
)
PART = {"int8": 1 / 254, "fp8": 1 / 28}  # of the largest that shares a scale
ROUNDING = {torch.float32: 2.0**-22, torch.bfloat16: 2.0**-8}
PAYLOADS = (
    (torch.bfloat16, (6 * SIZE, 96), "int8", None),
    (torch.bfloat16, (500 * SIZE, 1024), "fp8", 128),
    (torch.float32, (6 * SIZE, 96), "fp8", None),
    (torch.float32, (500 * SIZE, 1024), "int8", 128),
)
HIDDEN, EPS, WIDE = 1024, 1e-6, 2048


def whole_numbers(dtype, shape):
    """So small that sums and products are exact in every type."""
    return torch.randint(-2, 3, shape, device=DEVICE).to(dtype)


def reductions(x):
    made = {}
    for name in FUNCTIONS:
        made[name] = stretto.all_reduce(x, reduce_op=name), stretto.reduce_scatter(x, reduce_op=name)
    return made


def premultiplied(x, factor):
    how = {"reduce_op": "premul_sum", "factor": factor}
    return stretto.all_reduce(x, **how), stretto.reduce_scatter(x, **how)


def rooted(x, root):
    """Of all ranks, to rank `root` and from it."""
    to_root = stretto.reduce(x, root), stretto.reduce(x, root, reduce_op="max"), stretto.gather(x, root)
    return to_root, stretto.scatter(x, root)


def quantised(x, payload, block):
    how = {"payload": payload, "scale_block": block}
    moved = stretto.all_gather(x, **how), stretto.all_to_all(x, **how)
    return *moved, stretto.reduce_scatter(x, **how), stretto.all_reduce(x, **how)


def norms(x, residual, weight, columns, of_columns):
    own = residual.chunk(SIZE)[stretto.rank()]
    of_sums = stretto.all_reduce_add_rms_norm(x, residual, weight, eps=EPS)
    of_own = stretto.reduce_scatter_add_rms_norm(x, own, weight, eps=EPS)
    alone = stretto.rms_norm_columns(columns, of_columns, eps=EPS)
    return of_sums, of_own, alone, stretto.rms_norm_columns(columns, of_columns, residual=columns, eps=EPS)


def norm_arguments(rows):
    """x, the same residual and weight on all ranks, this rank's columns and their weight."""
    shared = from_all(randn(rows, HIDDEN))[0], from_all(randn(HIDDEN))[0]
    return randn(rows, HIDDEN), *shared, randn(rows, HIDDEN // 2), randn(HIDDEN // 2)


class Ahead(FirstCalls):
    def test_first_calls(self):
        calls = []
        for dtype, shape in ARRAYS:
            x = whole_numbers(dtype, shape)
            calls.append(functools.partial(reductions, x))
            calls += [functools.partial(rooted, x, root) for root in range(SIZE)]
            if dtype != torch.int32:
                calls.append(functools.partial(premultiplied, x, 0.5))
        for dtype, shape, *how in PAYLOADS:
            calls.append(functools.partial(quantised, randn(*shape, dtype=dtype), *how))
        calls.append(functools.partial(norms, *norm_arguments(64 * SIZE)))
        self.warmed(calls)


class MoreCollectives(GpuTest):
    def test_reductions(self):
        for dtype, shape in ARRAYS:
            x = whole_numbers(dtype, shape)
            for name, (whole, part) in reductions(x).items():
                want = functools.reduce(FUNCTIONS[name], from_all(x))
                self.assertTrue(torch.equal(whole, want), (dtype, name))
                self.assertTrue(torch.equal(part, want.chunk(SIZE)[RANK]), (dtype, shape, name))
        x = (randn(300, 7, dtype=torch.float32) * 2**20).to(torch.int32)
        self.assertTrue(torch.equal(stretto.all_reduce(x), sum(from_all(x))))

    def test_premultiplied_sums(self):
        """Factors that change from call to call, sums that float16 does not hold."""
        for dtype, shape in ARRAYS:
            if dtype == torch.int32:
                continue
            x = (20000 * (1 + torch.rand(shape, device=DEVICE))).to(dtype)
            for factor in (0.25, -1 / 3, 0.0, 1, 0.1):
                scaled = functools.reduce(torch.add, [y.float() for y in from_all(x)]) * torch.tensor(factor).float()
                whole, part = premultiplied(x, factor)
                self.assertTrue(torch.equal(whole, scaled.to(dtype)), (dtype, factor))
                self.assertTrue(torch.equal(part, scaled.to(dtype).chunk(SIZE)[RANK]), (dtype, factor))

    def test_to_and_from_one_rank(self):
        for dtype, shape in ARRAYS:
            for root in range(SIZE):
                x = whole_numbers(dtype, shape)
                every = from_all(x)
                to_root, mine = rooted(x, root)
                want = sum(every), functools.reduce(torch.maximum, every), torch.cat(every)
                for result, right in zip(to_root, want):
                    is_right = torch.equal(result, right) if RANK == root else result is None
                    self.assertTrue(is_right, (dtype, shape, root))
                self.assertTrue(torch.equal(mine, every[root].chunk(SIZE)[RANK]), (dtype, shape, root))
                self.as_distributed(x, root, to_root, mine)

    def as_distributed(self, x, root, to_root, mine):
        if SHARE or SIZE == 1 or not dist.is_initialized():
            return
        summed = x.clone()
        dist.reduce(summed, root)
        parts = [torch.empty_like(x) for _ in range(SIZE)] if RANK == root else None
        dist.gather(x, parts, root)
        part = torch.empty_like(mine)
        dist.scatter(part, list(x.chunk(SIZE)) if RANK == root else None, root)
        self.assertTrue(torch.equal(mine, part))
        if RANK == root:
            self.assertTrue(torch.equal(to_root[0], summed))
            self.assertTrue(torch.equal(to_root[2], torch.cat(parts)))

    def bound(self, x, payload, block):
        """Of each element that has travelled once."""
        blocks = x.double().abs().unflatten(-1, (-1, block or x.shape[-1]))
        return (blocks.amax(-1, keepdim=True) * PART[payload]).expand_as(blocks).flatten(-2)

    def near(self, got, want, slack):
        off = (got.double() - want.double()).abs()
        allowed = slack + ROUNDING[got.dtype] * (want.double().abs() + slack)
        self.assertTrue(bool((off <= allowed).all()), (got.dtype, tuple(got.shape), (off - allowed).max().item()))
        self.assertTrue(SIZE == 1 or off.max().item() > 0, "nothing was quantised")

    def test_payloads(self):
        for dtype, shape, payload, block in PAYLOADS:
            for _ in range(2):
                rows = torch.randint(-2, 3, (shape[0], 1), device=DEVICE)  # of very different magnitudes
                x = (torch.randn(shape, device=DEVICE) * 10.0**rows).to(dtype)
                every = from_all(x)
                whole, mine = torch.cat(every), torch.cat([y.chunk(SIZE)[RANK] for y in every])
                gathered, exchanged, part, summed = quantised(x, payload, block)
                self.near(gathered, whole, self.bound(whole, payload, block))
                self.near(exchanged, mine, self.bound(mine, payload, block))
                own = slice(RANK * shape[0] // SIZE, (RANK + 1) * shape[0] // SIZE)
                self.assertTrue(torch.equal(exchanged[own], x[own]))
                off = [self.bound(y, payload, block) for y in every]
                sums = sum(y.double() for y in every)
                self.near(part, sums.chunk(SIZE)[RANK], (sum(off) - off[RANK]).chunk(SIZE)[RANK])
                again = self.bound(sums.abs() + sum(off), payload, block)
                self.near(summed, sums, sum(off) + again)
                for result in (gathered, summed):  # the same bits on every rank
                    self.assertTrue(all(torch.equal(y, result) for y in from_all(result)))

    def test_norms(self):
        """Of sums over the ranks, and of rows whose columns are spread over them."""
        norm = torch.nn.functional.rms_norm
        for rows in (64 * SIZE, 5 * SIZE):
            for _ in range(2):
                x, residual, weight, columns, of_columns = norm_arguments(rows)
                of_sums, of_own, alone, (added_to, doubled) = norms(x, residual, weight, columns, of_columns)
                sums = total(x) + residual.float()
                self.same(of_sums[1], sums)
                self.same(of_sums[0], norm(sums, (HIDDEN,), weight.float(), EPS))
                for own, all_rows in zip(of_own, of_sums):
                    self.assertTrue(torch.equal(own, all_rows.chunk(SIZE)[RANK]))
                whole, weights = torch.cat(from_all(columns), -1).float(), torch.cat(from_all(of_columns)).float()
                for got, wide in ((alone, whole), (added_to, 2 * whole)):
                    want = norm(wide, wide.shape[-1:], weights, EPS)
                    self.same(got, want.chunk(SIZE, -1)[RANK])
                self.assertTrue(torch.equal(doubled, 2 * columns))

    def test_messages(self):
        """Round the ring, and between the ranks of a world of two."""
        for dtype in (torch.bfloat16, torch.float32, torch.int64, torch.uint8):
            for shape in ((3, 5), (1024, 512)):
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

    def test_calls_that_go_on(self):
        """Two under way beside products and beside calls that are waited for at once, waited for in any order."""
        a, b = randn(WIDE, WIDE), randn(WIDE, WIDE, scale=WIDE**-0.5)
        for turn in range(6):
            x, y = randn(1024 * SIZE, 512), randn(777, WIDE)
            z = randn(5 * SIZE, 96)
            begun = [
                (lambda: stretto.all_reduce(x, async_op=True), total(x).to(x.dtype)),
                (lambda: stretto.all_gather(y, async_op=True), torch.cat(from_all(y))),
                (lambda: stretto.all_to_all(z, async_op=True), torch.cat([v.chunk(SIZE)[RANK] for v in from_all(z)])),
            ]
            begun = begun[turn % 3 :] + begun[: turn % 3]
            torch.cuda.synchronize()
            works = [(call(), want) for call, want in begun[:2]]
            product = a @ b
            beside = stretto.all_reduce(z)
            product = product @ b
            if turn % 2:
                works.reverse()
            for work, want in works:
                self.equal(work.wait(), want)
            third, want = begun[2][0](), begun[2][1]
            self.equal(beside, total(z).to(z.dtype))
            self.equal(third.wait(), want)
            self.same(product, (a @ b) @ b)

    def equal(self, got, want):
        """Sums, too: total() adds in the order of the ranks, as all_reduce() does."""
        self.assertTrue(torch.equal(got, want), (got.dtype, tuple(got.shape)))

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
        for dtype in (torch.bfloat16, torch.int64):
            for shape in ((3, 5), (1024, 4096), (777, 33)):
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
        for dtype in (torch.bfloat16, torch.int64):
            for shape in ((3, 5), (1024, 4096)):
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
