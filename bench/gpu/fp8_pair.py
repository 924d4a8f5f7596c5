#!/usr/bin/env python3
"""Products of e4m3 factors on one GPU through the Python package and PyTorch's torch._scaled_mm, call by call in turn
in one process: both meet the clocks that the two together leave. Launch by launch and as captured graphs, operands
rotated past the L2 cache, results in bfloat16; ours in the config that it takes by itself. Scales of rows, and of
blocks where PyTorch takes them. Prints a table; -o writes JSON with every sample. Run by bench/gpu/pytorch_suite fp8.

    bench/gpu/fp8_pair.py [-o FILE] [--samples N] [--only TEXT] [--driver VERSION] [--commit COMMIT]
"""

import torch
from results import median, ratio, times
from timing_options import parser_of
from torch_results import facts, save
from torch_turns import captured, in_turn

import stretto

# (scaling, m, n, k): those of gpu_bench gemm-fp8.
SHAPES = [("row-wise", 8192, 8192, 8192), ("row-wise", 4096, 16384, 7168), ("block", 4096, 7168, 16384)]
BLOCK = 128  # elements that have one scale
MOST_ERROR = 0.01  # ours, of the norm of the product in float32


class Operands:
    """One set of factors, scales and results: c = (a * scale_a) @ (b * scale_b), with b [K, N] the transpose of what
    lies in memory. PyTorch wants the scales of a's blocks column by column, we row by row."""

    def __init__(self, scaling: str, m: int, n: int, k: int):
        self.a, w = (factor(rows, k) for rows in (m, n))
        self.b = w.t()
        self.rows = scaling == "row-wise"  # sums of blocks PyTorch keeps in float32
        if scaling == "row-wise":
            self.scale_a, self.scale_b = scales(m, 1), scales(1, n)
            self.their_scale_a = self.scale_a
        else:
            self.scale_a, self.scale_b = scales(m, -(-k // BLOCK)), scales(-(-n // BLOCK), -(-k // BLOCK)).t()
            self.their_scale_a = self.scale_a.t().contiguous().t()
        self.ours, self.theirs = (torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def run_ours(self) -> None:
        stretto.all_gather_matmul(self.a, self.b, scale_a=self.scale_a, scale_b=self.scale_b, out=self.ours)

    def run_theirs(self) -> None:
        torch._scaled_mm(self.a, self.b, self.their_scale_a, self.scale_b, out_dtype=torch.bfloat16,
                         use_fast_accum=self.rows, out=self.theirs)

    def errors(self, names) -> dict:
        """By name, |c - product| / |product| over 256 rows, with the product of the scaled factors in float32."""
        rows = slice(0, 256)
        a = spread(self.scale_a[rows], self.a.shape[1], 1) * self.a[rows].float()
        b = spread(spread(self.scale_b, self.b.shape[0], 0), self.b.shape[1], 1) * self.b.float()
        want = a.double() @ b.double()
        return {name: ((c[rows].double() - want).norm() / want.norm()).item()
                for name, c in (("ours", self.ours), ("scaled_mm", self.theirs)) if name in names}


def factor(rows: int, columns: int) -> torch.Tensor:
    return torch.empty(rows, columns, device="cuda").uniform_(-1, 1).to(torch.float8_e4m3fn)


def scales(rows: int, columns: int) -> torch.Tensor:
    return torch.empty(rows, columns, device="cuda").uniform_(0.5, 2)


def spread(scale: torch.Tensor, size: int, dim: int) -> torch.Tensor:
    """Each scale for the elements that it is of, along `dim`."""
    if scale.shape[dim] == 1:
        return scale
    return scale if scale.shape[dim] == size else scale.repeat_interleave(BLOCK, dim).narrow(dim, 0, size)


def compare(scaling: str, m: int, n: int, k: int, samples: int) -> dict:
    """A row of results."""
    row = {"scaling": scaling, "m": m, "n": n, "k": k}
    set_bytes = m * k + n * k + 2 * m * n
    sets = [Operands(scaling, m, n, k)
            for _ in range(max(2, 2 * torch.cuda.get_device_properties(0).L2_cache_size // set_bytes + 1))]
    both = {"ours": [s.run_ours for s in sets], "scaled_mm": [s.run_theirs for s in sets]}
    try:
        sets[0].run_theirs()
    except (RuntimeError, ValueError) as error:
        row["error"] = "torch._scaled_mm: " + str(error).split("\n", maxsplit=1)[0]
        both.pop("scaled_mm")
    sets[0].run_ours()
    row["errors"] = sets[0].errors(both)
    if row["errors"]["ours"] > MOST_ERROR:
        row["error"] = f"ours is off by {row['errors']['ours']:.3g}"
        return row
    row["eager"] = in_turn(both, samples)
    graphs = {name: [captured(call) for call in calls] for name, calls in both.items()}
    row["graph"] = in_turn(graphs, samples)
    return row


def show(row: dict) -> None:
    print(f"{row['scaling']:8} {row['m']} x {row['n']} x {row['k']}", end="")
    for how in ("eager", "graph"):
        if how not in row:
            continue
        ours, theirs = row[how]["ours"], row[how].get("scaled_mm")
        print(f"  {how} {median(ours):.4f} ms", end="")
        if theirs:
            print(f" {median(theirs):.4f} ms {times(ratio(theirs, ours), 3)}", end="")
    print(" ", {name: f"{e:.2g}" for name, e in row.get("errors", {}).items()}, row.get("error", ""), flush=True)


def main() -> int:
    parser = parser_of(__doc__, samples=60)
    parser.add_argument("--only", default="", help="shapes whose 'scaling m' contains this")
    options = parser.parse_args()
    torch.cuda.set_device(0)
    stretto.init()
    rows = []
    print("scales   m x n x k   ours, torch._scaled_mm, theirs / ours")
    for scaling, m, n, k in SHAPES:
        if options.only not in f"{scaling} {m}":
            continue
        rows.append(compare(scaling, m, n, k, options.samples))
        show(rows[-1])
        torch.cuda.empty_cache()
    stretto.finalize()
    if options.out:
        save({**facts(options), "fp8_pair": rows}, options.out)
    return 1 if any("ours" in row.get("error", "") for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
