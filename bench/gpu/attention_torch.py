#!/usr/bin/env python3
"""Attention forward of PyTorch, the baseline of ours: cuDNN and FlashAttention-2 through scaled_dot_product_attention,
bfloat16, 16 heads, causal and full, each by itself, timed with events call by call, buffers rotated past L2. Prints a
table; -o writes JSON with every sample.

    bench/gpu/attention_torch.py [-o FILE] [--samples N] [--driver VERSION] [--commit COMMIT]
    bench/gpu/attention_torch.py --profile    one call of cuDNN for each head and mask, between marks for ncu
"""

import statistics
import time

import torch
from timing_options import parser_of
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch_results import facts, save

HEADS = 16
SHAPES = [(4, 4096), (2, 8192), (1, 16384)]  # batch, sequence
HEAD_DIMS = [64, 128]
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash2": SDPBackend.FLASH_ATTENTION}
WARMUP_S = 0.3


def make_sets(batch: int, sequence: int, head_dim: int, layout: str) -> list:
    """Sets of q, k, v as [batch, heads, sequence, head_dim]; in memory as `layout` says. Their bytes, the result's
    included, pass twice the L2 cache."""
    shape = (batch, HEADS, sequence, head_dim) if layout == "bhsd" else (batch, sequence, HEADS, head_dim)
    set_bytes = 4 * 2 * batch * HEADS * sequence * head_dim
    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    count = max(3, 2 * l2_bytes // set_bytes + 1)

    def operand():
        x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        return x if layout == "bhsd" else x.transpose(1, 2)

    return [tuple(operand() for _ in range(3)) for _ in range(count)]


def time_backends(sets: list, causal: bool, samples: int) -> dict:
    """Milliseconds per call: {backend: [sample, ...]}, of each by itself: what takes little power beside another one
    leaves it higher clocks than it has alone, and ours has."""
    return {name: time_alone(backend, sets, causal, samples) for name, backend in BACKENDS.items()}


def time_alone(backend: SDPBackend, sets: list, causal: bool, samples: int) -> list:
    """Milliseconds of each of `samples` calls, one right after the other, after a warm-up of the same calls."""
    calls = 0

    def call():
        nonlocal calls
        q, k, v = sets[calls % len(sets)]
        calls += 1
        with sdpa_kernel([backend]):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    begin = time.monotonic()
    while time.monotonic() - begin < WARMUP_S:
        call()
        torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(samples + 1)]
    call()  # the device is busy when the first sample is enqueued
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return [first.elapsed_time(second) for first, second in zip(events, events[1:])]


def check(sets: list, causal: bool) -> float:
    """Largest difference between the two backends: they must compute the same thing."""
    q, k, v = (x[:1, :1, :512] for x in sets[0])
    results = []
    for backend in BACKENDS.values():
        with sdpa_kernel([backend]):
            results.append(scaled_dot_product_attention(q, k, v, is_causal=causal).float())
    return (results[0] - results[1]).abs().max().item()


def profile() -> int:
    """One call of cuDNN for each head and mask at the longest sequence, each after one that is not looked at."""
    batch, sequence = SHAPES[-1]
    for head_dim in HEAD_DIMS:
        q, k, v = make_sets(batch, sequence, head_dim, "bhsd")[0]
        for causal in [True, False]:
            with sdpa_kernel([BACKENDS["cudnn"]]):
                scaled_dot_product_attention(q, k, v, is_causal=causal)
                torch.cuda.synchronize()
                torch.cuda.profiler.start()
                scaled_dot_product_attention(q, k, v, is_causal=causal)
                torch.cuda.synchronize()
                torch.cuda.profiler.stop()
            print(f"head {head_dim} {'causal' if causal else 'full'}, {batch} x {sequence}, {HEADS} heads")
    return 0


def main() -> int:
    parser = parser_of(__doc__, samples=30)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    if options.profile:
        return profile()
    result = {**facts(options), "heads": HEADS, "attention": []}
    print(f"{result['machine']}, torch {result['torch']}, cuDNN {result['cudnn']}; bf16, {HEADS} heads")
    print(f"{'head':>4} {'batch':>5} {'seq':>6} {'mask':6} {'memory':6}" +
          "".join(f" {name + ' TFLOP/s':>16}" for name in BACKENDS))
    for head_dim in HEAD_DIMS:
        for batch, sequence in SHAPES:
            for layout in ["bhsd", "bshd"]:
                sets = make_sets(batch, sequence, head_dim, layout)
                for causal in [True, False]:
                    flops = 4 * batch * HEADS * sequence**2 * head_dim / (2 if causal else 1)
                    times = time_backends(sets, causal, options.samples)
                    row = {"head_dim": head_dim, "batch": batch, "sequence": sequence, "causal": causal,
                           "memory": layout, "difference": check(sets, causal), "ms": times,
                           "tflops": {b: flops / statistics.median(ms) / 1e9 for b, ms in times.items()}}
                    result["attention"].append(row)
                    print(f"{head_dim:4} {batch:5} {sequence:6} {'causal' if causal else 'full':6} {layout:6}" +
                          "".join(f" {row['tflops'][b]:16.1f}" for b in BACKENDS), flush=True)
                del sets
    if options.out:
        save(result, options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
