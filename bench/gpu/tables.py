#!/usr/bin/env python3
"""Writes the tables of docs/performance.md from bench/results/gpu-KIND[-xN]-DATE[-PART].json, between the lines
'<!-- table: NAME -->' and '<!-- end -->'; the text around them is written by hand. NAME is a kind, with -xN where a
table is of N GPUs: gemm, gemm-tp2, attention, attention-pair, attention-ranks-xN, fp8, fp8-pair, overlap-xN, moe-xN,
pytorch-xN, sweep-xN, async-tp-xN, collectives-xN, exchange-xN, startup-xN, decode, decode-launches-xN, points.

    bench/gpu/tables.py [--check | --print NAME] [--results DIR] [DOCUMENT]

A row is taken from the newest file that has it (date in the name, then the date inside); below a table stands where
its rows come from. --check changes nothing and exits with 1 where the document is not up to date.
"""

import argparse
import collections
import pathlib
import re
import statistics
import sys
import textwrap

from decode_tables import decode_launches_table, decode_table
from results import (
    Error, ROOT, Results, failure, faster, fields, footnote, geometric_mean, interval, mark, median, operator,
    ratio, short, sources, table, times,
)

TABLE = re.compile(r"(?P<open><!-- table: (?P<name>[\w-]+) -->\n)(?P<text>.*?)(?P<close><!-- end -->)", re.S)

MANY_ROWS = 4096  # from which on products are asked to hide what they can
PYTORCHS = {"async_tp": "async-TP", "one_shot": "one-shot", "two_shot": "two-shot"}


def shape_key(row: dict) -> tuple:
    return row["op"], row["m"], row["n"], row["k"]


def overlap_table(results: Results, ranks: int) -> str:
    ours = results.rows(["overlap"], "overlap", shape_key, ranks)
    torch = results.rows(["overlap-torch"], "overlap", shape_key, ranks)
    lines, won, long, asynchronous = [], collections.Counter(), collections.defaultdict(list), []
    for key, (row, _) in ours.items():
        for mode in ("eager", "graph"):
            if mode not in row:
                continue
            t = row[mode]
            r = ratio(t["sequence_ms"], t["ours_ms"])
            hidden = interval([1 - (o - g) / (s - g) if s != g else 0.0
                               for o, g, s in zip(t["ours_ms"], t["gemm_ms"], t["sequence_ms"], strict=True)])
            theirs = torch.get(key, ({}, None))[0].get(mode, {})
            best = min(((median(theirs[name + "_ms"]), way) for name, way in PYTORCHS.items()
                        if name + "_ms" in theirs), default=None)
            won[faster(r, "sequence").strip("*")] += 1
            if mode == "eager" and row["m"] >= MANY_ROWS and row["op"] != "gemm_ar":
                long[operator(row).split()[0]].append(hidden.median)
                if best:
                    asynchronous.append((best[0] / median(t["ours_ms"]), operator(row)))
            lines.append([operator(row) + (", graph" if mode == "graph" else "") + mark(ours, key),
                          f"{median(t['ours_ms']):.3f}", short(row.get("chosen", "")),
                          *(f"{median(t[n]):.3f}" if n in t else "-"
                            for n in ("gemm_ms", "gemm_beside_traffic_ms", "nccl_ms", "sequence_ms")),
                          times(r), times(hidden), f"{best[0]:.3f} {best[1]}" if best else "-",
                          faster(r, "sequence")])
        if "error" in row:
            lines.append([operator(row) + mark(ours, key), failure(row), *[""] * 9])
    text = table(["operator (m, n or k of a rank)", "ours ms", "config", "GEMM", "GEMM beside traffic", "NCCL",
                  "sequence", "sequence / ours", "E_overlap", "PyTorch", "faster"], lines)
    summary = (f"\nOf {sum(won.values())} rows ours is faster than the sequence in {won['ours']}, the sequence in "
               f"{won['sequence']}, neither in {won['neither']}.\n") if lines else ""
    summary += hidden_summary(long, asynchronous)
    return text + summary + footnote(text) + sources(ours) + (sources(torch) if any(k in ours for k in torch) else "")


def hidden_summary(hidden: dict, asynchronous: list) -> str:
    """Arithmetic means and minima of E_overlap ({operator: values}), and how async-TP compares (theirs / ours, row)."""
    if not hidden:
        return ""
    parts = [f"{op} {statistics.mean(values):.2f} on average over {len(values)} rows, {min(values):.2f} at least"
             for op, values in hidden.items()]
    text = f"E_overlap from {MANY_ROWS} rows on: {'; '.join(parts)}."
    if asynchronous:
        least, where = min(asynchronous)
        text += (f" Async-TP, from another run, is slower in {sum(r > 1 for r, _ in asynchronous)} of "
                 f"{len(asynchronous)} of them; it takes {least:.2f} of our time at the least ({where}).")
    return "\n" + textwrap.fill(text, 118, break_on_hyphens=False) + "\n"


def sweep_table(results: Results, ranks: int) -> str:
    rows = results.rows(["sweep"], "sweep", shape_key, ranks)
    lines, won, worst = [], collections.Counter(), []
    for key, (row, _) in rows.items():
        if "error" in row:
            lines.append([operator(row) + mark(rows, key), failure(row), *[""] * 6])
            continue
        sequence = min((row["nccl_ms"], row["own_ms"]), key=median)
        r = ratio(row["fused_ms"], sequence)
        won[row["winner"]] += 1
        if row["winner"] == "fused":
            worst.append((r.high, operator(row)))
        lines.append([operator(row) + mark(rows, key), row["mode"], f"{median(row['fused_ms']):.3f}",
                      short(row["config"]), f"{median(row['nccl_ms']):.3f}", f"{median(row['own_ms']):.3f}",
                      times(r, 3), row["winner"]])
    text = table(["operator (m, n or k of a rank)", "launched", "fused ms", "config", "with NCCL",
                  "with our collective", "fused / faster sequence", "chosen"], lines)
    if worst:
        high, where = max(worst)
        text += (f"\nChosen: the fused operator in {won['fused']} of {sum(won.values())} rows, cuBLASLt and NCCL in "
                 f"{won['NCCL']}, cuBLASLt and our collective in {won['own collective']}. Where fused is chosen, the "
                 f"upper end of the interval is at most {high:.3f} ({where}).\n")
    return text + footnote(text) + sources(rows)


def startup_table(results: Results, ranks: int) -> str:
    rows = results.rows(["startup"], "startup", lambda r: r["op"], ranks)
    lines = []
    for key, (row, _) in rows.items():
        if "error" in row:
            lines.append([key + mark(rows, key), failure(row), *[""] * 4])
            continue
        lines.append([key + mark(rows, key), f"{row['cold_s']:.2f}", f"{row['nvrtc_s']:.2f}",
                      f"{median(row['warm_ms']):.1f}, at most {max(row['warm_ms']):.1f}",
                      f"{median(row['new_m_ms']):.3f}, at most {max(row['new_m_ms']):.3f} ({len(row['new_m_ms'])})",
                      row["compiled"]])
    text = table(["operator", "cold start s", "of which NVRTC", "warm start ms", "host ms of a launch with a new m",
                  "compiled meanwhile"], lines)
    return text + footnote(text) + sources(rows)


def async_tp_table(results: Results, ranks: int) -> str:
    rows = results.rows(["overlap-torch"], "overlap", shape_key, ranks)
    lines = []
    for row, _ in rows.values():
        for mode in ("eager", "graph"):
            t = row.get(mode, {})
            if "sequence_ms" not in t:
                continue
            for name, way in PYTORCHS.items():
                if name + "_ms" in t:
                    r = ratio(t["sequence_ms"], t[name + "_ms"])
                    gemm = f"{median(t['gemm_ms']):.3f}" if "gemm_ms" in t else "-"
                    lines.append([operator(row) + (", graph" if mode == "graph" else ""), way,
                                  f"{median(t[name + '_ms']):.3f}", gemm, f"{median(t['sequence_ms']):.3f}", times(r)])
    return table(["operator (m, n or k of a rank)", "PyTorch's", "ms", "mm", "mm and NCCL in sequence",
                  "sequence / PyTorch's"], lines) + sources(rows)


def collectives_table(results: Results, ranks: int) -> str:
    ours = results.rows(["collectives"], "collectives", lambda r: r["op"], ranks)
    torch = results.rows(["overlap-torch"], "collectives", lambda r: r["op"], ranks)
    lines = []
    for op, (row, _) in ours.items():
        if "error" in row:
            lines.append([op.replace("_", " ") + mark(ours, op), failure(row), *[""] * 4])
            continue
        mode = "graph" if "graph" in row else "eager"
        if mode not in row:
            continue
        t, words = row[mode], op.split()
        r = ratio(t["nccl_ms"], t["ours_ms"])
        theirs = torch.get(" ".join([words[0], *words[-2:]]), ({}, None))[0].get(mode, {})
        way = words[1] + "_ms" if words[1] + "_ms" in theirs else ""
        lines.append([op.replace("_", " ") + (", eager" if mode == "eager" else "") + mark(ours, op),
                      f"{median(t['ours_ms']) * 1e3:.1f}", f"{median(t['nccl_ms']) * 1e3:.1f}", times(r),
                      f"{median(theirs[way]) * 1e3:.1f}" if way else "-", faster(r, "NCCL")])
    text = table(["collective, in a graph", "ours us", "NCCL", "NCCL / ours", "PyTorch's symmetric memory", "faster"],
                 lines)
    return text + footnote(text) + sources(ours) + (sources(torch) if torch else "")


def gemm_table(results: Results, _ranks: int, kind: str = "gemm") -> str:
    rows = results.rows([kind], "gemm", lambda r: (r.get("label"), r["m"], r["n"], r["k"]))
    groups, every, lines = {}, [], []
    for row, _ in rows.values():
        if "error" in row:
            lines.append([f"{row['m']}, n = {row['n']}, k = {row['k']}", 1, failure(row), "", ""])
            continue
        r = ratio(row["eager"]["theirs_ms"], row["eager"]["ours_ms"])
        square = row["m"] == row["n"] == row["k"]
        tflops = 2e-9 * row["m"] * row["n"] * row["k"] / median(row["eager"]["ours_ms"])
        groups.setdefault(f"{row['m']}^3" if square else f"{row['m']}", []).append((r.median, r, tflops, row))
        every.append(r.median)
    for name, group in groups.items():
        least = min(group, key=lambda g: g[0])
        where = f"{least[0]:.3f} ({least[3].get('label', '')} n = {least[3]['n']}, k = {least[3]['k']})"
        if len(group) == 1:
            lines.append([name, 1, times(least[1], 3), f"{least[0]:.3f}", f"{least[2]:.0f}"])
        else:
            lines.append([name, len(group), f"{geometric_mean(g[0] for g in group):.3f}", where,
                          f"{min(g[2] for g in group):.0f} to {max(g[2] for g in group):.0f}"])
    if len(every) > 1:
        lines.append(["all", len(every), f"{geometric_mean(every):.3f}", f"{min(every):.3f}", ""])
    return table(["m", "shapes", "geometric mean of theirs / ours", "least", "TFLOP/s"], lines) + sources(rows)


def fp8_table(results: Results, _ranks: int) -> str:
    rows = results.rows(["fp8"], "gemm_fp8", lambda r: (r.get("label"), r["scaling"], r["m"], r["n"], r["k"]))
    lines = []
    for key, (row, _) in rows.items():
        cells = [f"{row['m']}, n = {row['n']}, k = {row['k']}" + mark(rows, key), row["scaling"]]
        ours, theirs = row.get("ours_ms"), row.get("theirs_ms")
        if "error" in row or not ours:
            lines.append([*cells, failure({"error": row.get("error", "not timed")}), "", "", "", ""])
            continue
        r = ratio(theirs, ours) if theirs else None
        tflops = 2e-9 * row["m"] * row["n"] * row["k"] / median(ours)
        lines.append([*cells, f"{median(ours):.3f}", f"{tflops:.0f}", f"{median(theirs):.3f}" if theirs else "none",
                      times(r, 3) if r else "-", faster(r, "cuBLASLt") if r else "-"])
    text = table(["m, n, k", "scales", "ours ms", "TFLOP/s", "cuBLASLt", "cuBLASLt / ours", "faster"], lines)
    return text + footnote(text) + sources(rows)


def attention_key(row: dict) -> tuple:
    """(head, mask, batch, sequence) of ours, which has a label, and of PyTorch's, which has fields."""
    if "label" not in row:
        return row["head_dim"], "causal" if row["causal"] else "full", row["batch"], row["sequence"]
    match = re.fullmatch(r"d=(\d+) (causal|full) (\d+)x(\d+)", row["label"])
    if not match:
        raise Error(f"attention: unknown label '{row['label']}'")
    return int(match[1]), match[2], int(match[3]), int(match[4])


def best_tflops(results: Results, kinds: list, value) -> dict:
    """{key: (TFLOP/s of the best config or layout, run)} of the newest run that has the key."""
    best = {}
    for run in results.runs:
        if run.kind not in kinds:
            continue
        mine = {}
        for row in run.data.get("attention", []):
            if "error" not in row and value(row) is not None:
                mine[attention_key(row)] = max(value(row), mine.get(attention_key(row), 0))
        best.update({key: (tflops, run) for key, tflops in mine.items()})
    return best


def attention_table(results: Results, _ranks: int) -> str:
    baselines = {"attention-torch", "attention-pair"}
    kinds = sorted({r.kind for r in results.runs if r.kind.startswith("attention")} - baselines)
    ours = best_tflops(results, kinds, lambda row: row.get("tflops"))
    cudnn = best_tflops(results, ["attention-torch"], lambda row: row["tflops"].get("cudnn"))
    sizes = sorted({key[2:] for key in ours}, key=lambda s: s[1])
    newest = max((run.order for _, run in ours.values()), default=())
    lines = []
    for head, mask in sorted({key[:2] for key in ours}, key=lambda h: (-h[0], h[1])):
        cells = []
        for size in sizes:
            key = (head, mask, *size)
            if key not in ours:
                cells.append("-")
                continue
            tflops, run = ours[key]
            older = "" if run.order == newest else "\\*"
            theirs = cudnn.get(key, (0, None))[0]
            cells.append(f"{tflops:.0f}{older}" + (f" / {theirs:.0f} = {tflops / theirs:.2f}" if theirs else ""))
        lines.append([f"{head} {mask}", *cells])
    text = table(["head, mask: ours / cuDNN", *(f"{b} x {s}" for b, s in sizes)], lines)
    older = "\n\\* from an older run than the others.\n" if any("*" in c for line in lines for c in line) else ""
    used = {**{("ours", k): v for k, v in ours.items()}, **{("cudnn", k): v for k, v in cudnn.items() if k in ours}}
    return text + older + sources(used)


def attention_ranks_table(results: Results, ranks: int) -> str:
    rows = results.rows(["attention-ranks"], "attention_ranks", lambda r: r["label"], ranks)
    lines = []
    for key, (row, _) in rows.items():
        if "all_ms" not in row:
            lines.append([row["label"] + mark(rows, key), failure(row), *[""] * 5])
            continue
        one, every = median(row["one_ms"]), median(row["all_ms"])
        alone = median(row["exchange_ms"]) if "exchange_ms" in row else 0
        rate = f"{row['flops'] / every / 1e9:.0f} TFLOP/s" if row.get("flops") else ""
        rate = f"{row['bytes'] / every / 1e9:.2f} TB/s" if row.get("bytes") else rate
        hidden = f"{1 - max(every - one / ranks, 0) / alone:.2f}" if alone else "-"
        lines.append([row["label"] + mark(rows, key), f"{one:.3f}", f"{every:.3f}", rate,
                      f"{one / (ranks * every):.2f}", f"{alone:.3f}" if alone else "-", hidden])
    text = table(["attention", "one GPU ms", f"{ranks} GPUs", "all together", f"of 1 / {ranks}",
                  "keys and values gathered alone", "of that hidden"], lines)
    return text + footnote(text) + sources(rows)


def attention_pair_table(results: Results, _ranks: int) -> str:
    rows = results.rows(["attention-pair"], "attention_pair", attention_key)
    lines = []
    for key, (row, run) in rows.items():
        flops = 4 * row["batch"] * run.data["heads"] * row["sequence"] ** 2 * row["head_dim"] / (1 + row["causal"])
        r = ratio(row["cudnn"], row["ours"])
        lines.append([f"{key[0]} {key[1]} {row['batch']} x {row['sequence']}" + mark(rows, key),
                      *(f"{flops / median(row[name]) / 1e9:.0f}" for name in ("ours", "cudnn")), times(r, 3),
                      faster(r, "cuDNN")])
    text = table(["head, mask, sequences", "ours TFLOP/s", "cuDNN TFLOP/s", "cuDNN / ours", "faster"], lines)
    if lines:
        ratios = [ratio(row["cudnn"], row["ours"]).median for row, _ in rows.values()]
        text += (f"\nGeometric mean of the ratios {geometric_mean(ratios):.3f}, least {min(ratios):.3f}.\n")
    return text + footnote(text) + sources(rows)


def fp8_pair_table(results: Results, _ranks: int) -> str:
    rows = results.rows(["fp8-pair"], "fp8_pair", lambda r: (r["scaling"], r["m"], r["n"], r["k"]))
    lines, ratios = [], []
    for key, (row, _) in rows.items():
        for how in ("eager", "graph"):
            cells = [f"{row['m']}, n = {row['n']}, k = {row['k']}" + mark(rows, key), row["scaling"], how]
            both = row.get(how, {})
            if "ours" not in both:
                lines.append([*cells, failure(row), "", "", ""])
                continue
            tflops = {name: 2e-9 * row["m"] * row["n"] * row["k"] / median(ms) for name, ms in both.items()}
            if "scaled_mm" not in both:
                lines.append([*cells, f"{tflops['ours']:.0f}", "refused", "-", "-"])
                continue
            r = ratio(both["scaled_mm"], both["ours"])
            ratios.append(r.median)
            lines.append([*cells, f"{tflops['ours']:.0f}", f"{tflops['scaled_mm']:.0f}", times(r, 3),
                          faster(r, "PyTorch")])
    text = table(["m, n, k", "scales", "launched", "ours TFLOP/s", "torch._scaled_mm", "PyTorch / ours", "faster"],
                 lines)
    if ratios:
        text += f"\nGeometric mean of the ratios {geometric_mean(ratios):.3f}, least {min(ratios):.3f}.\n"
    return text + footnote(text) + sources(rows)


def points_table(results: Results, _ranks: int) -> str:
    rows = results.rows(["points"], "points", lambda r: (r["op"], r["ranks"], r["m"], r["n"], r["k"], r["config"]))
    newest = {}  # of each operator and number of GPUs: what the model of that day says of all of them
    for row, run in rows.values():
        group = (row["op"], row["ranks"])
        if row.get("measured_ms", 0) > 0 and (group not in newest or newest[group].order < run.order):
            newest[group] = run
    rows = {k: (row, run) for k, (row, run) in rows.items()
            if row.get("measured_ms", 0) > 0 and run is newest[row["op"], row["ranks"]]}
    by_op = {}
    for row, _ in rows.values():
        error = row["predicted_ms"] / row["measured_ms"] - 1
        by_op.setdefault((row["op"], row["ranks"]), []).append(error)
    lines = []
    groups = sorted(by_op.items()) + ([("all", [e for es in by_op.values() for e in es])] if len(by_op) > 1 else [])
    for key, errors in groups:
        distances = sorted(map(abs, errors))
        name, ranks = key if key != "all" else ("all", "")
        lines.append([name, ranks, len(errors), f"{statistics.mean(distances):.2f}",
                      f"{distances[min(len(distances) - 1, len(distances) * 9 // 10)]:.2f}",
                      f"{statistics.mean(errors):+.2f}"])
    return table(["operator", "GPUs", "points", "mean error", "90 % within", "bias"], lines) + sources(rows)


def moe_table(results: Results, ranks: int) -> str:
    rows = results.rows(["moe"], "moe", lambda r: (r["model"], r["layer"], r["m"]), ranks)
    lines = []
    for key, (row, _) in sorted(rows.items()):
        name = f"{row['model']}, layer {row['layer'] or '1 and 2'}, {row['m']} tokens" + mark(rows, key)
        if "eager" not in row:
            lines.append([name, failure(row), *[""] * 8])
            continue
        t = row["eager"]
        r = ratio(t["sequence_ms"], t["ours_ms"])
        made = [f"{median(t[n]):.3f}" if n in t else "-" for n in ("tables_ms", "with_tables_ms")]
        lines.append([name, *(f"{median(t[n]):.3f}" for n in ("ours_ms", "gemm_ms", "nccl_ms", "sequence_ms")),
                      times(r), f"{row['flops'] / median(t['ours_ms']) / 1e9:.0f}", *made, faster(r, "sequence")])
    text = table(["layer", "ours ms", "products alone", "NCCL", "sequence", "sequence / ours", "TFLOP/s", "tables",
                  "ours with them", "faster"], lines)
    return text + footnote(text) + sources(rows)


def exchange_table(results: Results, ranks: int) -> str:
    rows = results.rows(["exchange"], "exchange", lambda r: (r["op"], r["way"], r["dtype"], r["tokens"]), ranks)
    lines = []
    for key, (row, _) in rows.items():
        name = f"{row['op']} {row['dtype']}, {row['way']}, {row['tokens']} tokens a rank" + mark(rows, key)
        if "error" in row:
            lines.append([name, failure(row), *[""] * 6])
            continue
        t = row["graph"]
        r = ratio(t["nccl_ms"], t["ours_ms"])
        rates = (f"{row['bytes'] / median(t[n]) * 1e-6:.0f}" for n in ("ours_ms", "nccl_ms"))
        lines.append([name, *(f"{median(t[n]) * 1e3:.1f}" for n in ("ours_ms", "nccl_ms")), *rates, times(r),
                      row.get("chosen", ""), faster(r, "NCCL")])
    text = table(["exchange, in a graph", "ours us", "NCCL", "ours GB/s of a rank", "NCCL", "NCCL / ours", "config",
                  "faster"], lines)
    return text + footnote(text) + sources(rows)


def pytorch_table(results: Results, ranks: int) -> str:
    products = results.rows(["pytorch"], "products", shape_key, ranks)
    lines = []
    for key, (row, _) in products.items():
        for mode in ("eager", "graph"):
            t = {name[:-3]: values for name, values in row.get(mode, {}).items()}
            ours = "symmetric" if "symmetric" in t else "staged"
            if ours not in t:
                continue
            r = ratio(t["sequence"], t[ours])
            lines.append([operator(row) + (", graph" if mode == "graph" else "") + mark(products, key),
                          *(f"{median(t[n]):.3f}" if n in t else "-"
                            for n in ("staged", "symmetric", "async_tp", "sequence")),
                          times(r), faster(r, "sequence")])
    text = table(["call (m, n or k of a rank)", "ours ms", "symmetric input", "async-TP", "sequence", "sequence / ours",
                  "faster"], lines)
    return text + footnote(text) + sources(products)


MAKERS = {"overlap": overlap_table, "moe": moe_table, "pytorch": pytorch_table, "sweep": sweep_table,
          "async-tp": async_tp_table, "collectives": collectives_table, "exchange": exchange_table,
          "startup": startup_table, "gemm": gemm_table,
          "gemm-tp2": lambda results, ranks: gemm_table(results, ranks, "gemm-tp2"), "fp8": fp8_table,
          "fp8-pair": fp8_pair_table, "attention": attention_table,
          "attention-pair": attention_pair_table, "attention-ranks": attention_ranks_table,
          "decode": decode_table, "decode-launches": decode_launches_table, "points": points_table}


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("document", nargs="?", type=pathlib.Path, default=ROOT / "docs" / "performance.md")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "bench" / "results")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--print", metavar="NAME", help="prints one table and changes nothing")
    options = parser.parse_args()
    try:
        results = Results(options.results)
        if options.print:
            print(make(options.print, results), end="")
            return 0
        before = options.document.read_text(encoding="utf-8")
        after, changed = rewrite(before, results)
    except (Error, OSError) as e:
        print(f"tables: {e}", file=sys.stderr)
        return 2
    if options.check:
        for name in changed:
            print(f"tables: '{name}' is out of date; bench/gpu/tables.py writes it")
        return 1 if changed else 0
    if changed:
        options.document.write_text(after, encoding="utf-8")
    print(f"tables: {len(changed)} changed" + (f": {', '.join(changed)}" if changed else ""))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
