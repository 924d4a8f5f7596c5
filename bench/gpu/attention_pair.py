#!/usr/bin/env python3
"""Attention forward of the Python package and cuDNN's through PyTorch, call by call in turn in one process: both meet
the clocks that the two together leave. bfloat16, 16 heads, causal and full; ours in the config that it takes by itself.
Prints a table; -o writes JSON with every sample. Run by bench/gpu/pytorch_suite attention.

    bench/gpu/attention_pair.py [-o FILE] [--samples N] [--driver VERSION] [--commit COMMIT]
"""

from functools import partial

import torch
from attention_torch import HEAD_DIMS, HEADS, SHAPES, make_sets
from results import median, ratio, times
from timing_options import parser_of
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch_results import facts, save
from torch_turns import in_turn

import stretto


class Pair:
    """Calls of both. Ours has queries and results as [batch, sequence, heads, head_dim] and the rest by heads, which it
    does not copy; cuDNN all by heads, where it is the faster (attention_torch.py)."""

    def __init__(self, batch: int, sequence: int, head_dim: int, causal: bool):
        self.causal = causal
        self.sets = []
        for q, k, v in make_sets(batch, sequence, head_dim, "bhsd"):
            tokens = q.transpose(1, 2).contiguous().transpose(1, 2)
            self.sets.append((q, tokens, k, v, torch.empty_like(tokens)))

    def ours(self, i: int) -> torch.Tensor:
        _, q, k, v, out = self.sets[i]
        return stretto.scaled_dot_product_attention(q, k, v, is_causal=self.causal, out=out)

    def cudnn(self, i: int) -> torch.Tensor:
        q, _, k, v, _ = self.sets[i]
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            return scaled_dot_product_attention(q, k, v, is_causal=self.causal)

    def difference(self) -> float:
        """Between the results of both, the largest."""
        return (self.ours(0).float() - self.cudnn(0).float()).abs().max().item()

    def measure(self, samples: int) -> dict:
        """Milliseconds {"ours": [sample, ..], "cudnn": [..]}."""
        each = range(len(self.sets))
        return in_turn({"ours": [partial(self.ours, i) for i in each], "cudnn": [partial(self.cudnn, i) for i in each]},
                       samples)


def main() -> int:
    options = parser_of(__doc__, samples=60).parse_args()
    torch.cuda.set_device(0)
    stretto.init()
    rows = []
    print("head sequence mask    ours ms   cuDNN ms   cuDNN / ours")
    for head_dim in HEAD_DIMS:
        for batch, sequence in SHAPES:
            for causal in (True, False):
                pair = Pair(batch, sequence, head_dim, causal)
                row = {"head_dim": head_dim, "batch": batch, "sequence": sequence, "causal": causal,
                       "difference": pair.difference(), **pair.measure(options.samples)}
                rows.append(row)
                print(f"{head_dim:4} {batch} x {sequence:5} {'causal' if causal else 'full':6} "
                      f"{median(row['ours']):8.3f} {median(row['cudnn']):8.3f} "
                      f"{times(ratio(row['cudnn'], row['ours']), 3)} difference {row['difference']:.4f}", flush=True)
                del pair
    stretto.finalize()
    if options.out:
        save({**facts(options), "heads": HEADS, "attention_pair": rows}, options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
