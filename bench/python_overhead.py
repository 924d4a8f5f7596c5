#!/usr/bin/env python3
"""What a call from Python costs over the launch itself: 4x4 arrays on one rank, on the CPU.
    bench/python_overhead.py        where the package is installed; with PyTorch, its ways too
Each figure is the best of many short rounds, in microseconds per call."""

import time

import numpy as np

import stretto
from stretto import _world

ROUNDS, CALLS = 300, 40


def best_us(call) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter_ns() - begin) / CALLS / 1000)
    return best


def launch_alone(x, out):
    """The launch that all_reduce(x, out=out) comes to, without the way there."""
    stretto.all_reduce(x, out=out)
    (entry,) = _world.group_of()._entries.values()
    (executable,) = entry.executables.values()
    addresses = [{"in": x, "out": out}[t[0]].ctypes.data for t in entry.compiled.program.tensors]
    return lambda: executable.launch(*addresses, extents=[1])


def row(name: str, call) -> None:
    print(f"{name:<58}{best_us(call):8.2f}")


def main() -> None:
    stretto.init()
    x = np.ones((4, 4), np.float32)
    out = np.empty_like(x)
    print(f"{'call':<58}{'us':>8}")
    row("the launch of all_reduce alone", launch_alone(x, out))
    row("NumPy  all_reduce(x, out=out)", lambda: stretto.all_reduce(x, out=out))
    row("NumPy  all_reduce(x)", lambda: stretto.all_reduce(x))
    w = np.ones((4, 4), np.float32).T
    row("NumPy  all_gather_matmul(x, wt, out=out)", lambda: stretto.all_gather_matmul(x, w, out=out))
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed")
        stretto.finalize()
        return
    t, w = torch.ones(4, 4), torch.ones(4, 4)
    o, wt = torch.empty(4, 4), w.t()
    row("torch  all_reduce(x, out=out)", lambda: stretto.all_reduce(t, out=o))
    row("torch  all_reduce(x)", lambda: stretto.all_reduce(t))
    row("torch  all_gather_matmul(x, wt, out=out)", lambda: stretto.all_gather_matmul(t, wt, out=o))
    row("torch  all_gather_matmul(x, wt)", lambda: stretto.all_gather_matmul(t, wt))
    ops = torch.ops.stretto
    row("torch.library  all_reduce", lambda: ops.all_reduce(t, "sum", ""))
    row("torch.library  all_gather_matmul", lambda: ops.all_gather_matmul(t, wt, 0, ""))
    compiled = torch.compile(lambda x: ops.all_reduce(x, "sum", ""), fullgraph=True, backend="aot_eager")
    with torch.inference_mode():
        row("inference_mode  all_reduce(x)", lambda: stretto.all_reduce(t))
        row("inference_mode  torch.library all_reduce", lambda: ops.all_reduce(t, "sum", ""))
        row("inference_mode  torch.library all_reduce.default", lambda: ops.all_reduce.default(t, "sum", ""))
        row("inference_mode  torch.library all_gather_matmul", lambda: ops.all_gather_matmul(t, wt, 0, ""))
        row("inference_mode  all_reduce compiled", lambda: compiled(t))
    leaf = torch.ones(4, 4, requires_grad=True)
    row("with gradient  all_reduce(x)", lambda: stretto.all_reduce(leaf))
    row("with gradient  all_gather_matmul(x, wt)", lambda: stretto.all_gather_matmul(leaf, wt))
    row("  for comparison: torch.nn.functional.linear(x, w)", lambda: torch.nn.functional.linear(t, w))
    row("  the same with gradient", lambda: torch.nn.functional.linear(leaf, w))
    row("  torch.empty(4, 4)", lambda: torch.empty(4, 4))
    stretto.finalize()


if __name__ == "__main__":
    main()
