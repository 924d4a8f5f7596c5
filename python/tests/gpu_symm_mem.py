"""Products that gather or scatter along every dimension, beside PyTorch's torch.ops.symm_mem.fused_all_gather_matmul
and fused_matmul_reduce_scatter, on the ranks of torchrun, as gpu_torch.py. What this PyTorch refuses is skipped."""

import unittest
import warnings

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

import stretto
from gpu_testing import SHARE, SIZE, GpuTest, main, randn, setUpModule, tearDownModule  # noqa: F401

SHAPES = ((64 * 4, 128), (8, 16, 128), (4, 8, 16, 128))  # 4 ranks at the most divide every dimension
COLUMNS = 256


class BesideSymmMem(GpuTest):
    def setUp(self):
        if SIZE == 1 or SHARE:
            self.skipTest("needs a GPU for each of several ranks")
        self.group = dist.group.WORLD.group_name
        if hasattr(symm_mem, "enable_symm_mem_for_group"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                symm_mem.enable_symm_mem_for_group(self.group)

    def theirs(self, op, *arguments):
        """Their result, or SkipTest on all ranks where one refuses."""
        made, why = None, ""
        try:
            made = getattr(torch.ops.symm_mem, op)(*arguments)
            torch.cuda.synchronize()
        except (AttributeError, NotImplementedError, RuntimeError, ValueError, AssertionError) as error:
            why = f"{op}: {type(error).__name__}: {error}"[:200]
        said = [None] * SIZE
        dist.all_gather_object(said, why)
        if any(said):
            raise unittest.SkipTest(next(text for text in said if text))
        return made

    def each_dim(self, results_of):
        """results_of(shape, dim): pairs of ours and theirs, which are compared when all calls have been made, so
        that ranks stay together whatever one finds. What is refused is skipped by itself."""
        done = 0
        for shape in SHAPES:
            for dim in range(len(shape)):
                with self.subTest(shape=shape, dim=dim):
                    for got, want in results_of(shape, dim):
                        self.same(got, want)
                    done += 1
        print(f"{done} shapes and dimensions compared with PyTorch's", flush=True)

    def test_all_gather_matmul(self):
        def results_of(shape, dim):
            last = dim == len(shape) - 1
            a, k = randn(*shape), shape[-1] * (SIZE if last else 1)
            weights = [randn(n, k, scale=k**-0.5).t() for n in (COLUMNS, 64)]
            whole, want = self.theirs("fused_all_gather_matmul", a, weights, dim, self.group)
            pairs = []
            for ours in (dim, dim - len(shape)):
                gathered, made = stretto.all_gather_matmul(a, weights, gather_dim=ours, return_a=True)
                pairs += [(gathered, whole), *zip(made, want)]
                pairs.append((stretto.all_gather_matmul(a, weights[0], gather_dim=ours), want[0]))
            return pairs

        self.each_dim(results_of)

    def test_matmul_reduce_scatter(self):
        def results_of(shape, dim):
            a, w = randn(*shape), randn(COLUMNS, shape[-1], scale=(shape[-1] * SIZE) ** -0.5).t()
            pairs = []
            for reduce_op in ("sum", "avg"):
                want = self.theirs("fused_matmul_reduce_scatter", a, w, reduce_op, dim, self.group)
                for ours in (dim, dim - len(shape)):
                    got = stretto.matmul_reduce_scatter(a, w, scatter_dim=ours, reduce_op=reduce_op)
                    pairs.append((got, want))
            return pairs

        self.each_dim(results_of)


if __name__ == "__main__":
    main()
