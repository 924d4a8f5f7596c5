#!/usr/bin/env python3
"""What a call from Python costs over the launch itself: small arrays on one rank, on the CPU.
    bench/python_overhead.py [PART]     where the package is installed; with PyTorch, its ways too; of calls
                                        whose name contains PART
    torchrun --nproc-per-node 2 bench/python_overhead.py    on two ranks, which wait for each other
Each figure is the best of many short rounds, in microseconds per call; of direct calls that are one launch
also that of their launch alone, called from Python, and what the call takes over it."""

import os
import sys
import time

import numpy as np

import stretto
from stretto._group import Group

ROUNDS, CALLS = 300, 40
ONLY = sys.argv[1] if len(sys.argv) > 1 else ""
FIRST = os.environ.get("RANK", "0") == "0"  # the rank that prints


def best_us(call) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter_ns() - begin) / CALLS / 1000)
    return best


def launch_alone(call):
    """The one launch that `call` comes to, without the way there, None where it is more; before its first
    call."""
    kept, add = [], Group._add_plan
    Group._add_plan = lambda group, *given: kept.append(given)
    call()
    Group._add_plan = add
    if len(kept) != 1 or len(kept[0][-1]) != 1:
        return None
    ((*_, launches),) = kept
    ((executable, addresses, extents, said),) = launches

    def launch(_arrays=kept):  # which it writes
        executable.launch(*addresses, extents=extents, said=said)

    return launch


def say(text: str) -> None:
    if FIRST:
        print(text, flush=True)


def row(name: str, call) -> None:
    if ONLY in name:
        say(f"{name:<58}{best_us(call):8.2f}")


def direct_row(name: str, call) -> None:
    if ONLY not in name:
        return
    alone = launch_alone(call)
    if alone is None:
        return row(name, call)
    launch = best_us(alone)
    us = best_us(call)
    say(f"{name:<58}{us:8.2f}{launch:8.2f}{us - launch:8.2f}")


def direct_rows(kind: str, ones, ints) -> None:
    """Of operators on arrays that ones(*shape) and ints(values) make."""
    x, wt, weight = ones(4, 4), ones(4, 4).T, ones(4)
    out, tokens, starts = ones(4, 4), ones(4, 2, 8), ints([0, 2, 4])
    rank, size = stretto.rank(), stretto.world_size()
    even, sizes = [4 // size] * size, [4 - r % 2 for r in range(size)]
    uneven = [4 // size + (1 if to > rank else -1 if to < rank else 0) for to in range(size)]
    own, ragged = ones(sizes[rank], 4), ones(sum(uneven), 4)
    word, inbox, rows = ones(1), ones(4, 4), ones(4 // size, 4)
    peers = (rank + 1) % size, (rank - 1) % size
    calls = {
        "all_reduce(x, out=out)": lambda: stretto.all_reduce(x, out=out),
        "all_reduce(x)": lambda: stretto.all_reduce(x),
        "all_gather(x)": lambda: stretto.all_gather(x),
        "reduce_scatter(x)": lambda: stretto.reduce_scatter(x),
        "all_reduce of one element": lambda: stretto.all_reduce(word),
        "all_gather of different sizes": lambda: stretto.all_gather(own, sizes=sizes),
        "broadcast(x)": lambda: stretto.broadcast(x),
        "reduce(x)": lambda: stretto.reduce(x),
        "gather(x)": lambda: stretto.gather(x),
        "scatter(x)": lambda: stretto.scatter(x),
        "all_to_all(x)": lambda: stretto.all_to_all(x),
        "all_to_all of even lists": lambda: stretto.all_to_all(x, even, even),
        "all_to_all of uneven lists": lambda: stretto.all_to_all(ragged, None, uneven),
        "batch_send_recv": lambda: stretto.batch_send_recv([(x, peers[0])], [(inbox, peers[1])]),
        "all_reduce(x, async_op=True).wait()": lambda: stretto.all_reduce(x, async_op=True).wait(),
        "all_gather_matmul(x, wt, out=out)": lambda: stretto.all_gather_matmul(x, wt, out=out),
        "all_gather_matmul(x, wt)": lambda: stretto.all_gather_matmul(x, wt),
        "matmul_reduce_scatter(x, wt)": lambda: stretto.matmul_reduce_scatter(x, wt),
        "matmul_all_reduce(x, wt)": lambda: stretto.matmul_all_reduce(x, wt),
        "matmul_all_gather(x, wt)": lambda: stretto.matmul_all_gather(x, wt),
        "all_reduce_add_rms_norm, 2 results": lambda: stretto.all_reduce_add_rms_norm(x, x, weight),
        "reduce_scatter_add_rms_norm, 2 results": lambda: stretto.reduce_scatter_add_rms_norm(x, rows, weight),
        "ring_attention": lambda: stretto.ring_attention(tokens, tokens, tokens),
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
    say(f"{'call':<58}{'us':>8}{'launch':>8}{'over':>8}")
    direct_rows("NumPy", lambda *shape: np.ones(shape, np.float32), lambda v: np.array(v, np.int32))
    try:
        import torch
    except ImportError:
        say("PyTorch is not installed")
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
