"""CuPy arrays on CuPy's current stream, on the ranks of torchrun, as gpu_torch.py; what is expected comes of
torch.distributed. Skipped without CuPy."""

import unittest

import numpy as np
import torch

import stretto
from gpu_testing import DEVICE, HAS_CUDA, RANK, SIZE, GpuTest, from_all, main, setUpModule, tearDownModule  # noqa: F401

try:
    import cupy
except ImportError:
    cupy = None


@unittest.skipIf(cupy is None, "no CuPy")
class Cupy(GpuTest):
    def setUp(self):
        device = cupy.cuda.Device(DEVICE.index)
        device.__enter__()
        self.addCleanup(device.__exit__, None, None, None)
        self.random = np.random.default_rng(int(torch.randint(1 << 30, ()).item()))

    def randn(self, *shape, scale=1.0):
        return cupy.asarray((self.random.standard_normal(shape) * scale).astype(np.float32))

    def from_all(self, x):
        """Every rank's x, in float64 on the host."""
        cupy.cuda.get_current_stream().synchronize()
        mine = torch.from_numpy(cupy.asnumpy(x)).to(DEVICE)
        return [y.cpu().double().numpy() for y in from_all(mine)]

    def near(self, got, want, tolerance=1e-3):
        self.assertIsInstance(got, cupy.ndarray)
        self.assertEqual(got.device.id, DEVICE.index)
        np.testing.assert_allclose(cupy.asnumpy(got), want, rtol=tolerance, atol=tolerance)

    def products(self, a, rows, w):
        """Of [m, k] and [m * SIZE, k] times [n, k]^T: what the calls give, and what they should."""
        got = (stretto.all_reduce(a), stretto.all_gather_matmul(a, w.T), stretto.matmul_reduce_scatter(rows, w.T))
        partial = sum(x @ y.T for x, y in zip(self.from_all(rows), self.from_all(w)))
        own = cupy.asnumpy(w).astype(np.float64)
        want = (sum(self.from_all(a)), np.concatenate(self.from_all(a)) @ own.T, np.split(partial, SIZE)[RANK])
        return zip(got, want)

    def test_calls(self):
        for m, n, k in ((32, 64, 128), (7, 24, 64), (256, 128, 256)):
            for _ in range(2):
                arrays = self.randn(m, k), self.randn(m * SIZE, k), self.randn(n, k, scale=k**-0.5)
                for got, want in self.products(*arrays):
                    self.near(got, want, 2e-3)

    def test_results_of_the_caller(self):
        x, out = self.randn(16, 64), cupy.zeros((16, 64), np.float32)
        self.assertIs(stretto.all_reduce(x, out=out), out)
        self.near(out, sum(self.from_all(x)))

    def test_symmetric_arrays(self):
        mine = stretto.symm_mem.empty(32, 64, dtype="float32", device="cuda")
        self.assertIsInstance(mine, cupy.ndarray)
        mine[...] = RANK
        self.near(stretto.all_gather(mine)[::32, 0], np.arange(SIZE))

    def test_work_is_on_the_current_stream(self):
        x, big = cupy.zeros((64, 64), np.float32), self.randn(4096, 4096)
        stretto.all_reduce(x)
        cupy.cuda.get_current_stream().synchronize()
        for i in range(3):
            with cupy.cuda.Stream(non_blocking=True) as stream:
                for _ in range(10):
                    big @ big  # keeps the stream busy until x is written
                x[...] = RANK + i
                got = stretto.all_reduce(x)
                first = float(got[0, 0])  # waits for this stream
                stream.synchronize()
            self.assertEqual(first, sum(r + i for r in range(SIZE)))

    def test_graphs(self):
        x, out = self.randn(64, 128), cupy.zeros((64, 128), np.float32)
        cupy.cuda.get_current_stream().synchronize()
        with cupy.cuda.Stream(non_blocking=True) as stream:
            for _ in range(2):
                stretto.all_reduce(x, out=out)
            stream.synchronize()
            stream.begin_capture()
            stretto.all_reduce(x, out=out)
            graph = stream.end_capture()
            for _ in range(3):
                x[...] = self.randn(64, 128)
                graph.launch(stream)
                stream.synchronize()
                self.near(out, sum(self.from_all(x)))

    def test_kinds_are_not_mixed(self):
        with self.assertRaisesRegex(stretto.UserError, "different kinds"):
            stretto.all_gather_matmul(self.randn(8, 64), torch.ones(64, 64, device=DEVICE))


if __name__ == "__main__":
    main()
