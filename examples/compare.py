"""Runs 05_gemm_scatter.cc and 06_route.cc on CPU ranks and compares what they compute with NumPy, in float64.

    python examples/compare.py        1 to 4 ranks, each a thread of this process
"""

import pathlib

import numpy as np
import stretto
import stretto.testing

HERE = pathlib.Path(__file__).parent
SCATTER = stretto.load(HERE / "05_gemm_scatter.cc")
ROUTE = stretto.load(HERE / "06_route.cc")


def gelu(x):
    return x / (1 + np.exp(-1.5957691 * (x + 0.044715 * x**3)))


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def compare_scatter(rng, ranks, m, n, k):
    """Rows and columns of a rank are rounded up, so inputs are padded where `ranks` does not divide the sizes."""
    rows, cols = -(-m // ranks), -(-n // ranks)
    a, b, bias = normal(rng, ranks, rows, k), normal(rng, ranks * cols, k), normal(rng, 1, ranks * cols)
    program = SCATTER.program(ranks, m=m, n=n, k=k)
    got = stretto.testing.run(ranks, lambda: program(a[stretto.rank()], b, bias))
    want = gelu(a.reshape(-1, k).astype(np.float64) @ b.T + bias)
    np.testing.assert_allclose(np.concatenate(got, axis=1), want, rtol=1e-4, atol=1e-4)


def compare_route(rng, ranks, tokens=48, hidden=64):
    x, gate = normal(rng, ranks, tokens, hidden), normal(rng, ranks, tokens, 1)
    rank_of = rng.integers(ranks, size=(ranks, tokens), dtype=np.int32)
    row_of = rng.integers(tokens, size=(ranks, tokens), dtype=np.int32)

    def launch():
        r = stretto.rank()
        return ROUTE(x[r], gate[r], rank_of[r], row_of[r])

    for r, got in enumerate(stretto.testing.run(ranks, launch)):
        np.testing.assert_array_equal(got, gate[r] * x[rank_of[r], row_of[r]])


def main():
    seed = np.random.SeedSequence().entropy
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    for ranks in range(1, 5):
        compare_scatter(rng, ranks, m=150, n=200, k=96)
        compare_route(rng, ranks)
        print(f"{ranks} ranks: as NumPy has it")


if __name__ == "__main__":
    main()
