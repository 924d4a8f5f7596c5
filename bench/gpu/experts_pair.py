#!/usr/bin/env python3
"""Mixtures of experts on one GPU through the Python package and PyTorch, in turn in one process: products of the
experts' rows (bfloat16 beside torch._grouped_mm; e4m3 with scales of blocks beside torch._scaled_grouped_mm, which has
scales of rows) and routing (beside softmax, topk and sort). Graphs, operands rotated past the L2 cache, ours in the
config that it takes by itself. Every result is compared with one product for each expert, or with scores in float32,
before anything is timed. Prints a table; -o writes JSON with every sample, after every row. Run by
bench/gpu/pytorch_suite experts.

    bench/gpu/experts_pair.py [-o FILE] [--samples N] [--only TEXT] [--driver VERSION] [--commit COMMIT]
"""

from functools import partial

import torch
from contests import RowWriter, parser_of_contest
from results import median
from torch_turns import DEVICE, ON_GPU, num_sets, relative_error

import stretto

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
# name: hidden, columns of an expert, experts, experts of a token; a rank of PARTS has its part of every expert
MODELS = {"mixtral-8x7b": (4096, 14336, 8, 2), "qwen2-moe": (2048, 1408, 60, 4), "phi-3.5-moe": (4096, 6400, 16, 2)}
PARTS = 4
TOKENS = (2048, 4096, 8192, 16384)
ROUTED = [(experts, top_k, m) for experts, top_k in ((8, 2), (128, 8)) for m in (128, 4096, 16384)]
ROUTED_HIDDEN = 4096
BLOCK = 128  # elements that have one scale, in e4m3
WARMUP_S = 0.2
# Of routing PyTorch's scores are rounded to bfloat16 before their softmax, and all but equal ones change places.
MOST_ERROR = {"": 0.02, "pytorch": 0.05, "pytorch_tables": 0.05}


def powers_of_two(*shape: int) -> torch.Tensor:
    """Scales by which e4m3 numbers are multiplied exactly, in bfloat16 too."""
    return torch.exp2(torch.randint(-1, 2, shape, device=DEVICE).float())


def randn(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=BF16).mul_(scale)


def unwritten(*shape: int) -> torch.Tensor:
    return torch.full(shape, float("nan"), device=DEVICE, dtype=BF16)


class Grouped:
    """Products of one layer: expert e multiplies the counts[e] rows whose tokens have chosen it, at random."""

    def __init__(self, experts: int, top_k: int, m: int, n: int, k: int):
        chosen = torch.rand(m, experts).topk(top_k, -1).indices.to(DEVICE)
        self.counts = chosen.flatten().bincount(minlength=experts).int()
        self.parts = self.counts.tolist()
        self.ends = self.counts.cumsum(0).int()
        self.offsets = torch.nn.functional.pad(self.ends, (1, 0))
        rows, most = m * top_k, -(-max(self.parts) // BLOCK) * BLOCK
        set_bytes = 2 * (rows * (k + n) + experts * n * k)
        self.sets = [GroupedSet(self.parts, rows, most, n, k) for _ in range(num_sets(set_bytes))]
        self.rows, self.most = rows, most

    def ours(self, s: "GroupedSet") -> torch.Tensor:
        return stretto.grouped_matmul(s.a, s.b.mT, self.offsets, out=s.out)

    def masked(self, s: "GroupedSet") -> torch.Tensor:
        return stretto.grouped_matmul(s.padded, s.b.mT, counts=self.counts, out=s.padded_out)

    def fp8(self, s: "GroupedSet") -> torch.Tensor:
        scales = {"scale_a": s.scale_a, "scale_b": s.scale_b.mT}
        return stretto.grouped_matmul(s.a8, s.b8.mT, self.offsets, **scales, out=s.out)

    def grouped_mm(self, s: "GroupedSet") -> torch.Tensor:
        return torch._grouped_mm(s.a, s.b.mT, self.ends)

    def scaled_grouped_mm(self, s: "GroupedSet") -> torch.Tensor:
        return torch._scaled_grouped_mm(s.a8, s.b8.mT, s.row_scale_a, s.row_scale_b, self.ends, out_dtype=BF16,
                                        use_fast_accum=True)

    def calls(self) -> dict:
        contestants = (self.ours, self.masked, self.grouped_mm, self.fp8, self.scaled_grouped_mm)
        return {call.__name__: [partial(call, s) for s in self.sets] for call in contestants}

    def error(self, name: str, got: torch.Tensor) -> float:
        """Against a product for each expert of the numbers that the factors stand for."""
        if name == "masked":
            got = torch.cat([rows[:count] for rows, count in zip(got, self.parts)])
        factors = {"fp8": GroupedSet.of_blocks, "scaled_grouped_mm": GroupedSet.of_rows}
        a, b = factors.get(name, GroupedSet.as_they_are)(self.sets[0])
        return relative_error(got, torch.cat([rows @ w.t() for rows, w in zip(a.split(self.parts), b)]))


class GroupedSet:
    """One set of operands: b [experts, n, k]; rows of `padded` are those of `a`, in blocks of `most` an expert."""

    def __init__(self, parts: list, rows: int, most: int, n: int, k: int):
        self.a, self.b = randn(rows, k), randn(len(parts), n, k, scale=k**-0.5)
        self.padded = torch.zeros(len(parts), most, k, device=DEVICE, dtype=BF16)
        for block, part in zip(self.padded, self.a.split(parts)):
            block[:len(part)] = part
        self.out, self.padded_out = unwritten(rows, n), unwritten(len(parts), most, n)
        self.a8, self.b8 = randn(rows, k).to(FP8), randn(len(parts), n, k).to(FP8)
        blocks = -(-k // BLOCK)
        self.scale_a, self.scale_b = powers_of_two(rows, blocks), powers_of_two(len(parts), -(-n // BLOCK), blocks)
        self.row_scale_a, self.row_scale_b = powers_of_two(rows), powers_of_two(len(parts), n)

    def as_they_are(self) -> tuple:
        return self.a, self.b

    def of_blocks(self) -> tuple:
        """The factors that e4m3 numbers and scales of blocks are."""
        (_, n, k), scale_b = self.b8.shape, self.scale_b.repeat_interleave(BLOCK, 1)
        scale_a, scale_b = (scale.repeat_interleave(BLOCK, -1)[..., :k] for scale in (self.scale_a, scale_b))
        return self.a8.to(BF16) * scale_a.to(BF16), self.b8.to(BF16) * scale_b[:, :n].to(BF16)

    def of_rows(self) -> tuple:
        return (self.a8.to(BF16) * self.row_scale_a[:, None].to(BF16),
                self.b8.to(BF16) * self.row_scale_b[:, :, None].to(BF16))


class Routed:
    """Routing of m tokens, with and without the tables of the sorted order; PyTorch's product with the gate is rounded
    to bfloat16, as in models."""

    def __init__(self, experts: int, top_k: int, m: int, hidden: int):
        self.experts, self.top_k, self.m = experts, top_k, m
        gate = randn(experts, hidden, scale=hidden**-0.5)
        self.sets = [(randn(m, hidden), gate) for _ in range(num_sets(2 * m * hidden))]
        self.numbers = torch.arange(experts + 1, device=DEVICE)
        self.rows = torch.arange(m * top_k, device=DEVICE, dtype=torch.int32)

    def ours(self, x: torch.Tensor, gate: torch.Tensor) -> tuple:
        return stretto.moe_route(x, gate, self.top_k)

    def ours_tables(self, x: torch.Tensor, gate: torch.Tensor) -> tuple:
        return stretto.moe_route(x, gate, self.top_k, tables=True)

    def pytorch(self, x: torch.Tensor, gate: torch.Tensor) -> tuple:
        scores = torch.nn.functional.linear(x, gate).softmax(-1, dtype=torch.float32)
        weights, chosen = scores.topk(self.top_k, -1)
        return weights / weights.sum(-1, keepdim=True), chosen

    def pytorch_tables(self, x: torch.Tensor, gate: torch.Tensor) -> tuple:
        weights, chosen = self.pytorch(x, gate)
        ordered, order = chosen.flatten().sort(stable=True)
        slots = torch.empty_like(self.rows).scatter_(0, order, self.rows)
        offsets = torch.searchsorted(ordered, self.numbers, out_int32=True)
        return weights, slots.view(self.m, self.top_k), offsets, (order // self.top_k).int()

    def calls(self) -> dict:
        contestants = (self.ours, self.pytorch, self.ours_tables, self.pytorch_tables)
        return {call.__name__: [partial(call, *s) for s in self.sets] for call in contestants}

    def error(self, name: str, got: tuple) -> float:
        """The largest error of a weight, and of the score of an expert that was chosen, relative to what each should
        be; infinite where the tables are not those of the sorted order."""
        x, gate = (t.double() for t in self.sets[0])
        scores = (x @ gate.t()).softmax(-1)
        best = scores.topk(self.top_k, -1).values
        chosen = self.chosen_by(*got) if name.endswith("tables") else got[1].long()
        if chosen is None:
            return float("inf")
        weights = best / best.sum(-1, keepdim=True)
        return torch.stack([scores.gather(1, chosen) / best - 1, got[0] / weights - 1]).abs().max().item()

    def chosen_by(self, _, slots: torch.Tensor, offsets: torch.Tensor, tokens: torch.Tensor):
        """[m, top_k], the experts of each token that the tables are of; None where they do not fit together."""
        slots, offsets, tokens = slots.long(), offsets.long(), tokens.flatten().long()
        expert = torch.searchsorted(offsets[1:].contiguous(), self.rows.long(), right=True)
        place = expert * self.m + tokens  # rows are sorted by expert, within an expert by token
        if (offsets[0] != 0 or offsets[-1] != len(self.rows) or not (place.diff() > 0).all() or
                not torch.equal(slots.flatten().sort().values, self.rows.long()) or
                not (tokens[slots] == torch.arange(self.m, device=DEVICE)[:, None]).all()):
            return None
        return expert[slots]


def grouped_cases():
    """(text, what a row says of it, how it is made)."""
    for model, (hidden, ffn, experts, top_k) in MODELS.items():
        for layer, n, k in ((1, 2 * ffn // PARTS, hidden), (2, hidden, ffn // PARTS)):
            for m in TOKENS:
                said = {"model": model, "layer": layer, "m": m, "experts": experts, "top_k": top_k, "n": n, "k": k}
                yield f"grouped {model} layer {layer} m={m}", said, partial(Grouped, experts, top_k, m, n, k)


def routed_cases():
    for experts, top_k, m in ROUTED:
        said = {"experts": experts, "top_k": top_k, "m": m, "hidden": ROUTED_HIDDEN}
        yield f"routing experts={experts} m={m}", said, partial(Routed, experts, top_k, m, ROUTED_HIDDEN)


def small_cases():
    """On the CPU, to see that the script works."""
    for m in (16, 33):
        yield f"grouped small m={m}", {"m": m, "top_k": 2, "n": 64, "k": 192}, partial(Grouped, 4, 2, m, 64, 192)
        yield f"routing small m={m}", {"m": m}, partial(Routed, 8, 2, m, 64)


def show_grouped(row: dict) -> str:
    flops = 2 * row["m"] * row["top_k"] * row["n"] * row["k"]
    return ", ".join(f"{name} {flops / median(ms) / 1e9:.1f} TFLOP/s" for name, ms in row.get("graph", {}).items())


def show_routed(row: dict) -> str:
    return ", ".join(f"{name} {1e3 * median(ms):.1f} us" for name, ms in row.get("graph", {}).items())


def main() -> int:
    options = parser_of_contest(__doc__, samples=20).parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(1)
    stretto.init()
    writer = RowWriter(options, {"parts": PARTS})
    cases = [*grouped_cases(), *routed_cases()] if ON_GPU else small_cases()
    for text, said, make in cases:
        field, show = ("grouped", show_grouped) if text.startswith("grouped") else ("routing", show_routed)
        writer.add(field, text, said, make, MOST_ERROR, WARMUP_S, show)
    stretto.finalize()
    return writer.status()


if __name__ == "__main__":
    raise SystemExit(main())
