#!/usr/bin/env python3
"""Writes the tables of README.md, docs/performance/*.md and docs/lab/*.md from the rows that keep.py keeps in
bench/results, between the lines '<!-- table: NAME -->' and '<!-- end -->'; the text around them is written by hand.
NAME is one of MAKERS below, with -xN where a table is of N GPUs. A folder of --results may hold files of runs as
benchmarks write them, gpu-KIND[-xN]-DATE[-PART].json, as well.

    bench/gpu/tables.py [--check | --print NAME] [--results DIR] [DOCUMENT...]

A row is taken from the newest run that has it (date in the name, then the date inside); below a table stands where
its rows come from. --check changes nothing and exits with 1 where a document is not up to date.
"""

import argparse
import pathlib
import re
import sys

import contest_tables as contests
import kernel_tables as kernels
import rank_tables as ranks
import use_tables as use
import user_tables as user
from decode_tables import (batch_table, decode_table, experts_factor_table, long_contexts_table, sampling_table,
                           served_experts_table, served_table)
from lot_tables import lot_shapes_table, lot_table
from results import Error, ROOT, Results
from routing_tables import routings_table
from scoreboard import front_table, scoreboard_table

TABLE = re.compile(r"(?P<open><!-- table: (?P<name>[\w-]+) -->\n)(?P<text>.*?)(?P<close><!-- end -->)", re.S)

# name: (results, number of GPUs) -> text
MAKERS = {
    "front": front_table, "scoreboard": scoreboard_table,
    "gemm": kernels.gemm_table, "gemm-tp2": lambda results, n: kernels.gemm_table(results, n, "gemm-tp2"),
    "fp8": kernels.fp8_table, "fp8-pair": kernels.fp8_pair_table, "loops": kernels.loops_table,
    "loops-held-out": lambda results, n: kernels.loops_table(results, n, held_out=True),
    "attention": kernels.attention_table, "attention-pair": kernels.attention_pair_table,
    "packed-pair": contests.packed_pair_table, "paged-pair": contests.paged_pair_table,
    "attention-ranks": ranks.attention_ranks_table,
    "overlap": ranks.overlap_table, "gemm-ar": lambda results, n: ranks.overlap_table(results, n, ("gemm_ar",)),
    "async-tp": ranks.async_tp_table, "sweep": ranks.sweep_table, "lot": lot_table,
    "lot-shapes": lot_shapes_table,
    "collectives": ranks.collectives_table,
    "grouped-pair": contests.grouped_pair_table, "grouped-fp8-pair": contests.grouped_fp8_pair_table,
    "routing-pair": contests.routing_pair_table,
    "moe": ranks.moe_table, "routings": routings_table,
    "whole-layers": ranks.whole_layers_table, "ep-moe": ranks.ep_moe_table,
    "spread-layers": ranks.spread_layers_table, "exchange": ranks.exchange_table,
    "decode": decode_table, "batch": batch_table, "long-contexts": long_contexts_table,
    "experts-factor": experts_factor_table,
    "sampling": sampling_table, "served": served_table,
    "served-experts": served_experts_table,
    "pytorch": use.pytorch_table, "pytorch-pair": use.pair_table, "python-calls": use.calls_table,
    "mlp": use.mlp_table, "reductions": use.reductions_table,
    "device-sizes": use.device_sizes_table,
    "startup": use.startup_table, "enqueue": use.enqueue_table, "watchdog": use.watchdog_table,
    "points": use.points_table,
    "user-calls": user.user_calls_table, "user-steps": user.user_steps_table,
    "shared-proofs": user.shared_proofs_table, "user-sizes": user.user_sizes_table,
    "user-lot": user.user_lot_table, "user-lot-shapes": user.user_lot_shapes_table,
    "user-named": lambda results, n: user.user_lot_shapes_table(results, n, "named")}


def make(name: str, results: Results) -> str:
    match = re.fullmatch(r"(?P<kind>[a-z][a-z0-9-]*?)(?:-x(?P<ranks>\d+))?", name)
    if not match or match["kind"] not in MAKERS:
        raise Error(f"no table '{name}'; there are {', '.join(MAKERS)}")
    text = MAKERS[match["kind"]](results, int(match["ranks"] or 0))
    return text if text.count("\n") > 2 else "Not measured yet.\n"


def rewrite(document: str, results: Results) -> tuple:
    """(the document with fresh tables, the names of those that changed)"""
    names, changed = [], []

    def fresh(match: re.Match) -> str:
        text = make(match["name"], results)
        names.append(match["name"])
        if text != match["text"]:
            changed.append(match["name"])
        return match["open"] + text + match["close"]

    out = TABLE.sub(fresh, document)
    if len(names) != document.count("<!-- table:") or len(names) != document.count("<!-- end -->"):
        raise Error("a table's first line has no '<!-- end -->', or the other way round")
    return out, changed


def pages() -> list:
    folders = (ROOT / "docs" / "performance", ROOT / "docs" / "lab")
    return [ROOT / "README.md", *(page for folder in folders for page in sorted(folder.glob("*.md")))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", nargs="*", type=pathlib.Path, metavar="DOCUMENT")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "bench" / "results")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--print", metavar="NAME", help="prints one table and changes nothing")
    options = parser.parse_args()
    try:
        results = Results(options.results)
        if options.print:
            print(make(options.print, results), end="")
            return 0
        stale = {path: rewrite(path.read_text(encoding="utf-8"), results) for path in options.documents or pages()}
    except (Error, OSError) as e:
        print(f"tables: {e}", file=sys.stderr)
        return 2
    changed = [f"'{name}' of {path.name}" for path, (_, names) in stale.items() for name in names]
    if options.check:
        for what in changed:
            print(f"tables: {what} is out of date; bench/gpu/tables.py writes it")
        return 1 if changed else 0
    for path, (text, names) in stale.items():
        if names:
            path.write_text(text, encoding="utf-8")
    print(f"tables: {len(changed)} changed" + (f": {', '.join(changed)}" if changed else ""))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
