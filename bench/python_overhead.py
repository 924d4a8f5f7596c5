#!/usr/bin/env python3
"""What a call from Python costs over the launch itself: small arrays on one rank, on the CPU.
    bench/python_overhead.py        where the package is installed; with PyTorch, its ways too
Each figure is the best of many short rounds, in microseconds per call; of direct calls also that of
their launch alone, called from Python, and what the call takes over it."""

import time

import numpy as np

import stretto
from stretto._group import Group

ROUNDS, CALLS = 300, 40


def best_us(call) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter_ns() - begin) / CALLS / 1000)
    return best


def launch_alone(call):
    """The one launch that `call` comes to, without the way there; before its first call."""
    kept, add = [], Group._add_plan
    Group._add_plan = lambda group, *given: kept.append(given)
    call()
    Group._add_plan = add
    ((*_, launches),) = kept
    ((executable, addresses, extents, said),) = launches

    def launch(_arrays=kept):  # which it writes
        executable.launch(*addresses, extents=extents, said=said)

    return launch


def row(name: str, call) -> None:
    print(f"{name:<58}{best_us(call):8.2f}")


def direct_row(name: str, call) -> None:
    launch = best_us(launch_alone(call))
    us = best_us(call)
    print(f"{name:<58}{us:8.2f}{launch:8.2f}{us - launch:8.2f}")


def direct_rows(kind: str, ones, ints) -> None:
    """Of operators on arrays that ones(*shape) and ints(values) make."""
    x, wt, weight = ones(4, 4), ones(4, 4).T, ones(4)
    out, tokens, starts = ones(4, 4), ones(4, 2, 8), ints([0, 2, 4])
    calls = {
        "all_reduce(x, out=out)": lambda: stretto.all_reduce(x, out=out),
        "all_reduce(x)": lambda: stretto.all_reduce(x),
        "all_gather(x)": lambda: stretto.all_gather(x),
        "reduce_scatter(x)": lambda: stretto.reduce_scatter(x),
        "broadcast(x)": lambda: stretto.broadcast(x),
        "all_to_all(x)": lambda: stretto.all_to_all(x),
        "all_gather_matmul(x, wt, out=out)": lambda: stretto.all_gather_matmul(x, wt, out=out),
        "all_gather_matmul(x, wt)": lambda: stretto.all_gather_matmul(x, wt),
        "matmul_reduce_scatter(x, wt)": lambda: stretto.matmul_reduce_scatter(x, wt),
        "matmul_all_reduce(x, wt)": lambda: stretto.matmul_all_reduce(x, wt),
        "all_reduce_add_rms_norm, 2 results": lambda: stretto.all_reduce_add_rms_norm(x, x, weight),
        "packed_attention": lambda: stretto.packed_attention(tokens, tokens, tokens, starts),
        "packed_attention, 2 results": lambda: stretto.packed_attention(
            tokens, tokens, tokens, starts, return_lse=True
        ),
        "moe_route, 2 results": lambda: stretto.moe_route(x, x, 2),
        "moe_route, 7 results": lambda: stretto.moe_route(x, x, 2, tables=True),
    }
    for name, call in calls.items():
        direct_row(f"{kind:<7}{name}", call)


def main() -> None:
    stretto.init()
    print(f"{'call':<58}{'us':>8}{'launch':>8}{'over':>8}")
    direct_rows("NumPy", lambda *shape: np.ones(shape, np.float32), lambda v: np.array(v, np.int32))
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed")
        stretto.finalize()
        return
    direct_rows("torch", torch.ones, lambda values: torch.tensor(values, dtype=torch.int32))
    t, w = torch.ones(4, 4), torch.ones(4, 4)
    wt = w.t()
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
