#!/usr/bin/env python3
"""Attention of several sequences on one GPU through the Python package and PyTorch, in turn in one process: packed
ones of unlike lengths, causal, beside FlashAttention-2 and cuDNN with cumulative lengths; steps of decoding over a
cache of pages, beside scaled_dot_product_attention over a contiguous cache. bfloat16, heads of 128; graphs, operands
rotated past the L2 cache, ours in the config that it takes by itself. Every result is compared with attention in
float32, sequence by sequence, before anything is timed. Prints a table; -o writes JSON with every sample, after every
row. Run by bench/gpu/pytorch_suite sequences.

    bench/gpu/sequences_pair.py [-o FILE] [--samples N] [--only TEXT] [--driver VERSION] [--commit COMMIT]
"""

from functools import cached_property, partial

import torch
from contests import RowWriter, parser_of_contest
from results import median
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch_turns import DEVICE, ON_GPU, in_turn, num_sets, relative_error

import stretto

BF16 = torch.bfloat16
HEAD_DIM = 128
# 16,384 tokens each
LENGTHS = {"4 of 4096": [4096] * 4, "16 of 1024": [1024] * 16,
           "8 of 128 to 8192": [128, *(2**i for i in range(7, 14))], "64 of 4 to 508": list(range(4, 509, 8))}
HEADS = [(16, 16), (32, 8)]  # of queries, of keys and values
DECODED = [(batch, tokens) for tokens in (4096, 32768) for batch in (1, 16, 64)]
PAGE = 64
MOST_ERROR = {"": 0.02}
WARMUP_S = 0.2
COPY_BYTES = 4 << 30


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=BF16)


def unwritten(*shape: int) -> torch.Tensor:
    return torch.full(shape, float("nan"), device=DEVICE, dtype=BF16)


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """[rows, Hq, E] of one sequence's q [rows, Hq, E] and k, v [tokens, Hkv, E], in float32."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.float().transpose(0, 1) for x in (q, *(x.repeat_interleave(group, 1) for x in (k, v))))
    return scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal)[0].transpose(0, 1)


class Packed:
    """Causal attention of sequences of the given lengths, one after another in one array."""

    EAGER = frozenset({"cudnn"})  # its capture fails in PyTorch 2.11, and with it everything after it

    def __init__(self, lengths: list, heads: int, kv_heads: int):
        self.lengths, rows = lengths, sum(lengths)
        self.starts = torch.tensor([0, *lengths]).cumsum(0).int().to(DEVICE)
        set_bytes = 2 * rows * HEAD_DIM * 2 * (heads + kv_heads)
        self.sets = [(randn(rows, heads, HEAD_DIM), *(randn(rows, kv_heads, HEAD_DIM) for _ in range(2)),
                      unwritten(rows, heads, HEAD_DIM)) for _ in range(num_sets(set_bytes))]

    def ours(self, q, k, v, out):
        return stretto.packed_attention(q, k, v, self.starts, out=out)

    def flash2(self, q, k, v, _):
        """What torch.nn.attention.varlen.varlen_attn calls."""
        of_both = [self.starts] * 2 + [max(self.lengths)] * 2
        return torch.ops.aten._flash_attention_forward(q, k, v, *of_both, 0.0, True, False)[0]

    def cudnn(self, q, k, v, _):
        of_both = [self.starts] * 2 + [max(self.lengths)] * 2
        return torch.ops.aten._cudnn_attention_forward(q, k, v, None, *of_both, False, 0.0, True, False)[0]

    def calls(self) -> dict:
        return {call.__name__: [partial(call, *s) for s in self.sets] for call in (self.ours, self.flash2, self.cudnn)}

    @cached_property
    def want(self) -> torch.Tensor:
        q, k, v = (x.split(self.lengths) for x in self.sets[0][:3])
        return torch.cat([attended(*one, causal=True) for one in zip(q, k, v)])

    def error(self, _, got: torch.Tensor) -> float:
        return relative_error(got.view_as(self.want), self.want)


class Decoded:
    """A new token of each of `batch` sequences, whose caches hold `tokens` each: in pages that lie anywhere, for
    PyTorch one after another."""

    def __init__(self, batch: int, tokens: int, heads: int, kv_heads: int):
        pages = batch * (tokens // PAGE)
        self.cached = torch.full((batch,), tokens, device=DEVICE, dtype=torch.int32)
        self.starts = torch.arange(batch + 1, device=DEVICE, dtype=torch.int32)
        self.sets = [DecodedSet(batch, pages, heads, kv_heads)
                     for _ in range(num_sets(2 * 2 * batch * tokens * kv_heads * HEAD_DIM))]

    def decode(self, s: "DecodedSet"):
        return stretto.paged_decode(s.q, *s.pages, s.table, self.cached, out=s.out)

    def attention(self, s: "DecodedSet"):
        return stretto.paged_attention(s.q, *s.pages, self.starts, s.table, self.cached, out=s.out2)

    def sdpa(self, backend: SDPBackend, s: "DecodedSet"):
        with sdpa_kernel([backend]):
            return scaled_dot_product_attention(s.q[:, :, None], *s.dense, enable_gqa=True)[:, :, 0]

    def calls(self) -> dict:
        contestants = {"decode": self.decode, "attention": self.attention,
                       "flash2": partial(self.sdpa, SDPBackend.FLASH_ATTENTION),
                       "cudnn": partial(self.sdpa, SDPBackend.CUDNN_ATTENTION)}
        return {name: [partial(call, s) for s in self.sets] for name, call in contestants.items()}

    @cached_property
    def want(self) -> torch.Tensor:
        k, v = (x.transpose(1, 2) for x in self.sets[0].dense)
        queries = self.sets[0].q[:, None]
        return torch.cat([attended(q, k[i], v[i], causal=False) for i, q in enumerate(queries)])

    def error(self, _, got: torch.Tensor) -> float:
        return relative_error(got.view_as(self.want), self.want)


class DecodedSet:
    """One set of operands, keys and values as `pages` [pages, heads, PAGE, size] and as `dense` [batch, heads, tokens,
    size], the same numbers."""

    def __init__(self, batch: int, pages: int, heads: int, kv_heads: int):
        self.q, self.out = randn(batch, heads, HEAD_DIM), unwritten(batch, heads, HEAD_DIM)
        self.out2 = unwritten(batch, heads, HEAD_DIM)
        self.table = torch.randperm(pages, device=DEVICE).view(batch, -1).int()
        self.pages = [randn(pages, kv_heads, PAGE, HEAD_DIM) for _ in range(2)]
        self.dense = [x[self.table.long()].transpose(1, 2).flatten(2, 3).contiguous() for x in self.pages]


def copy_rate(samples: int) -> float:
    """Bytes a second of a copy of gigabytes, those read and those written."""
    size = COPY_BYTES if ON_GPU else 1 << 20
    a, b = (torch.zeros(size, device=DEVICE, dtype=torch.uint8) for _ in range(2))
    return 2e3 * size / median(in_turn({"copy": [partial(b.copy_, a)]}, samples, WARMUP_S)["copy"])


def cases():
    """(field, text, what a row says of it, how it is made)."""
    heads_of = HEADS if ON_GPU else [(4, 2)]
    for name, lengths in (LENGTHS if ON_GPU else {"small": [5, 1, 40]}).items():
        for heads, kv_heads in heads_of:
            said = {"sequences": name, "lengths": lengths, "heads": heads, "kv_heads": kv_heads}
            yield "packed", f"packed {name}, heads {heads}/{kv_heads}", said, partial(Packed, lengths, heads, kv_heads)
    for batch, tokens in DECODED if ON_GPU else [(2, 256)]:
        heads, kv_heads = heads_of[-1]
        said = {"batch": batch, "tokens": tokens, "heads": heads, "kv_heads": kv_heads, "page": PAGE,
                "bytes": 2 * 2 * batch * tokens * kv_heads * HEAD_DIM}
        yield "paged", f"paged {batch} x {tokens}", said, partial(Decoded, batch, tokens, heads, kv_heads)


def show(row: dict) -> str:
    if "bytes" in row:
        return ", ".join(f"{name} {1e3 * median(ms):.1f} us, {row['bytes'] / median(ms) / 1e9:.2f} TB/s"
                         for name, ms in row.get("graph", {}).items())
    flops = 2 * row["heads"] * HEAD_DIM * sum(length**2 for length in row["lengths"])
    return ", ".join(f"{name} {flops / median(ms) / 1e9:.1f} TFLOP/s" for name, ms in row.get("graph", {}).items())


def main() -> int:
    options = parser_of_contest(__doc__, samples=20).parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(1)
    stretto.init()
    writer = RowWriter(options, {"head_dim": HEAD_DIM, "copy_bytes_per_s": copy_rate(options.samples)})
    for field, text, said, make in cases():
        writer.add(field, text, said, make, MOST_ERROR, WARMUP_S, show)
    stretto.finalize()
    return writer.status()


if __name__ == "__main__":
    raise SystemExit(main())
