#!/usr/bin/env python3
"""Keeps of runs what the tables of docs/performance are made of, in bench/results: KIND.jsonl, or
KIND-xN.jsonl of N GPUs, has a row a line, with its samples and the run that it is of. The first line of a run says
its date, commit, cards, command and libraries. Rows that no table reads any more are left out; bench/gpu/tables.py
writes the tables then.

    bench/gpu/keep.py [--results DIR] [RUN.json...]    files as `gpu_bench -o` and the scripts beside it write them
"""

import argparse
import collections
import json
import pathlib
import re
import sys

import tables
import user_tables
from results import Error, Results, Run

LIBRARIES = ("driver", "cublaslt", "nccl", "nvrtc", "torch", "cudnn")
OF_A_RUN = (*LIBRARIES, "machine", "date", "commit", "command", "with", "cuda_driver_api", "cuda", "summary", "note")
NOT_KEPT = {"configs", "errors", "algorithm"}  # what no table reads of a row: other configs than the chosen one


def compact(value):
    """Of a row what is kept: six digits of a number, as many as GPUs time in."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [compact(v) for v in value]
    if isinstance(value, dict):
        return {k: compact(v) for k, v in value.items() if k not in NOT_KEPT}
    return value


def with_few_samples(row: dict) -> dict:
    return {k: user_tables.few_samples(v) if k.endswith("_ms") else v for k, v in row.items()}


def card(run: Run) -> str:
    """'H200' of 'GPU 0: NVIDIA H200 (0000:00:06), sm_90, ..'"""
    found = re.search(r"H[12]00[\w ]*", str(run.data.get("machine") or ""))
    return found[0].strip() if found else "H200"


def libraries(run: Run) -> str:
    if "with" in run.data:
        return run.data["with"]
    said = ((name, re.sub(r" *\(.*", "", str(run.data[name]))) for name in LIBRARIES if run.data.get(name))
    return ", ".join(text if text.lower().startswith(name) else f"{name} {text}" for name, text in said)


def about(run: Run) -> dict:
    said = {k: compact(v) for k, v in run.data.items()
            if k not in OF_A_RUN and isinstance(v, (bool, int, float, str))}
    return {"date": run.data.get("date", run.day), "commit": run.data.get("commit"), "card": card(run),
            "command": run.data.get("command"), "with": libraries(run), "said": said}


def line(run: Run, field: str, row, is_first: bool) -> str:
    if run.kind == "user" and field in ("lot", "named"):
        row = with_few_samples(row)
    kept = {"run": run.name, **(about(run) if is_first else {}), "of": field,
            **({} if isinstance(run.data[field], list) else {"alone": True}), "row": compact(row)}
    return json.dumps(kept, separators=(",", ":")) + "\n"


def kept_files(results: Results) -> dict:
    """{name: lines} of what tables were made of; rows in the order of the tables, then of their runs."""
    files = collections.defaultdict(dict)
    runs = sorted(results.read, key=lambda read: read[0].order)
    for run, field in sorted(runs, key=lambda read: (read[0].kept_in, read[1])):
        inside = run.data[field] if isinstance(run.data[field], list) else [run.data[field]]
        for row in inside:
            if id(row) in results.read[run, field]:
                files[run.kept_in][id(row)] = run, field, row
    return {name: lines_of(sorted(kept.values(), key=lambda of: results.rank.get(id(of[2]), len(results.rank))))
            for name, kept in files.items()}


def lines_of(kept: list) -> list:
    """Of (run, field, row)."""
    told, lines = set(), []
    for run, field, row in kept:
        lines.append(line(run, field, row, run not in told))
        told.add(run)
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=pathlib.Path, metavar="RUN.json")
    parser.add_argument("--results", type=pathlib.Path, default=tables.ROOT / "bench" / "results")
    options = parser.parse_args()
    try:
        results = Results(options.results, tuple(options.runs))
        for page in tables.pages():
            tables.rewrite(page.read_text(encoding="utf-8"), results)
        files = kept_files(results)
        for path in options.results.glob("*.jsonl"):
            if path.name not in files:
                path.unlink()
        for name, lines in files.items():
            (options.results / name).write_text("".join(lines), encoding="utf-8")
    except (Error, OSError) as e:
        print(f"keep: {e}", file=sys.stderr)
        return 2
    kept = collections.Counter(run.name for (run, _), rows in results.read.items() for _ in rows)
    for path in options.runs:
        count = kept[path.stem]
        print(f"keep: {count} rows of {path.name}" if count else f"keep: no table reads {path.name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
