#!/usr/bin/env python3
"""Result files of gpu_bench gemm-suite, overlap, sweep, collectives and points as one list of measured points, on which
`gpu_bench refit` predicts today's programs without a GPU:

    bench/gpu/prediction/as_points.py build/results/gpu-overlap-x4-*.json -o points.json
    build/bin/gpu_bench refit points.json --ranks 4 --machine h200x4

Of a shape every config that was timed counts, and of the one that was chosen the longer series. Decoding is timed in
graphs; what was timed launch by launch there is left out: the launches are most of it.
"""
import argparse
import json
import statistics

GRAPH_ROWS = 256  # up to so many rows of a fused operator come from decoding


def point(op, row, config, ms):
    """A fused operator's shape is one rank's in results, of all ranks in points."""
    ranks, n, k = row.get("ranks", 1), row["n"], row.get("k", 0)
    if op == "ag_gemm":
        n *= ranks
    elif op in ("gemm_rs", "gemm_ar"):
        k *= ranks
    return {"op": op, "ranks": ranks, "m": row["m"], "n": n, "k": k, "dtype": "bfloat16", "config": config,
            "predicted_ms": 0.0, "measured_ms": ms}


def of_configs(op, row, chosen_ms):
    ms = {c["config"]: c["ms"] for c in row["configs"] if "error" not in c and c.get("ms", 0) > 0}
    if "chosen" in row and chosen_ms:
        ms[row["chosen"]] = statistics.median(chosen_ms)
    return [point(op, row, config, value) for config, value in ms.items()]


def of_gemm(row):
    return of_configs("gemm", row, None)


def of_overlap(row):
    if row["m"] <= GRAPH_ROWS:
        graph = row.get("graph", {}).get("ours_ms")
        return [point(row["op"], row, row["chosen"], statistics.median(graph))] if graph else []
    return of_configs(row["op"], row, row.get("eager", {}).get("ours_ms"))


def of_sweep(row):
    return [point(row["op"], row, row["config"], statistics.median(row["fused_ms"]))] if row.get("fused_ms") else []


def of_collective(row):
    words = row["op"].split()
    op = "_".join(words[:2]) if words[0] == "all_reduce" else words[0]
    if op in ("all_to_all", "all_reduce_norm"):  # not among the points
        return []
    return of_configs(op, row, row.get("graph", {}).get("ours_ms"))


def of_points(row):
    return [row] if row.get("measured_ms", 0) > 0 else []


READERS = {"gemm": of_gemm, "overlap": of_overlap, "sweep": of_sweep, "collectives": of_collective, "points": of_points}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("-o", "--out", required=True)
    args = parser.parse_args()
    points = {}
    for name in args.files:
        with open(name, encoding="utf-8") as file:
            data = json.load(file)
        for kind, read in READERS.items():
            for row in data.get(kind, []):
                for p in read(row):  # the last file that has a point counts
                    points[(p["op"], p["ranks"], p["m"], p["n"], p["k"], p["config"])] = p
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump({"points": list(points.values())}, file, indent=1)
    print(f"{len(points)} points in {args.out}")


if __name__ == "__main__":
    main()
