"""What the first call of each operator from Python takes to lower and prove on the host: processor seconds of
one rank, nothing in the cache, at sizes of models, with the programs that GPUs run. Nothing is launched.

    build/python/bin/python bench/first_proofs.py [--ranks 4] [--json FILE]
"""

import argparse
import json
import resource
import tempfile
import os

os.environ["STRETTO_CACHE_DIR"] = tempfile.mkdtemp()  # nothing is kept there before

import torch

import stretto
from stretto import _group, testing

NUM_SMS = 132
TOKENS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 8192, 4096, 14336, 32, 8, 128
EXPERTS = 64
ROWS = []


def of(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype)


def whole(*shape):
    return torch.zeros(shape, dtype=torch.int32)


def calls(ranks):
    """Name -> what is called, on every rank alike."""
    share = TOKENS // ranks
    x, shard = of(TOKENS, HIDDEN), of(share, HIDDEN)
    q, kv = of(TOKENS, HEADS, HEAD_DIM), of(TOKENS, KV_HEADS, HEAD_DIM)
    q_share, kv_share = q[:share], kv[:share]
    pages, table = of(512, KV_HEADS, 64, HEAD_DIM), whole(16, 32)
    return {
        "all_gather": lambda: stretto.all_gather(shard),
        "reduce_scatter": lambda: stretto.reduce_scatter(x),
        "all_reduce 32 KiB": lambda: stretto.all_reduce(of(4, HIDDEN)),
        "all_reduce 64 MiB": lambda: stretto.all_reduce(x),
        "broadcast": lambda: stretto.broadcast(x),
        "all_to_all": lambda: stretto.all_to_all(x),
        "all_gather_matmul": lambda: stretto.all_gather_matmul(shard, of(HIDDEN, INNER // ranks)),
        "matmul_reduce_scatter": lambda: stretto.matmul_reduce_scatter(
            of(TOKENS, INNER // ranks), of(INNER // ranks, HIDDEN)),
        "matmul_all_reduce 16 rows": lambda: stretto.matmul_all_reduce(
            of(16, INNER // ranks), of(INNER // ranks, HIDDEN)),
        "matmul_all_reduce": lambda: stretto.matmul_all_reduce(
            of(TOKENS, INNER // ranks), of(INNER // ranks, HIDDEN)),
        "all_reduce_add_rms_norm": lambda: stretto.all_reduce_add_rms_norm(of(64, HIDDEN), of(64, HIDDEN), of(HIDDEN)),
        "scaled_dot_product_attention": lambda: stretto.scaled_dot_product_attention(
            q.transpose(0, 1), kv.transpose(0, 1), kv.transpose(0, 1), is_causal=True, enable_gqa=True),
        "sequence_attention": lambda: stretto.sequence_attention(q_share, kv_share, kv_share),
        "ring_attention": lambda: stretto.ring_attention(q_share, kv_share, kv_share),
        "packed_attention": lambda: stretto.packed_attention(q, kv, kv, torch.tensor([0, TOKENS], dtype=torch.int32)),
        "paged_attention": lambda: stretto.paged_attention(
            q[:512], pages, pages, torch.arange(17, dtype=torch.int32) * 32, table, whole(16) + 512),
        "paged_decode": lambda: stretto.paged_decode(of(16, HEADS, HEAD_DIM), pages, pages, table, whole(16) + 512),
        "grouped_matmul": lambda: stretto.grouped_matmul(
            x, of(EXPERTS, HIDDEN, 1024), torch.arange(EXPERTS + 1, dtype=torch.int32) * (TOKENS // EXPERTS)),
    }


def spent():
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime + resource.getrusage(resource.RUSAGE_SELF).ru_stime


class Done(Exception):
    """Raised in place of a launch."""


def prove_only(name):
    """In place of Group.launch: the program that GPUs run is lowered and proved."""

    def launch(self, kind, key, make, names, arrays, extents, *, said, at_bounds=False):
        if self.rank == 0:
            begin, why, program = spent(), "", make(NUM_SMS)
            try:
                program.compile(bounds_only=at_bounds)
            except stretto.Error as error:
                why = str(error).splitlines()[0]
            ROWS.append({"call": name, "program": program.name, "at_bounds": at_bounds,
                         "cpu_s": round(spent() - begin, 3), "refused": why})
        raise Done

    return launch


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--only", default="", help="calls whose name contains this")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    for name in [name for name in calls(options.ranks) if options.only in name]:

        def body():
            _group.Group.launch = prove_only(name)
            try:
                calls(options.ranks)[name]()
            except Done:
                return ""
            except Exception as error:  # shown, and no row
                return f"{type(error).__name__}: {error}"
            return "launched nothing"

        said = testing.run(options.ranks, body)
        if said[0]:
            print(f"{name:30} {said[0][:150]}", flush=True)
        else:
            row = ROWS[-1]
            sizes = "bounds" if row["at_bounds"] else "sizes"
            print(f"{name:30} {row['program']:28} {row['cpu_s']:8.3f} s  {sizes} {row['refused']}", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"ranks": options.ranks, "rows": ROWS}, file, indent=1)


if __name__ == "__main__":
    main()
