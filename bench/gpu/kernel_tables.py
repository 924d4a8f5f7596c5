"""Tables of tables.py about kernels on one GPU."""

import re

from results import (
    Error, Results, failure, faster, footnote, geometric_mean, mark, median, ratio, sources, table, times,
)


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
            found = mine.get(attention_key(row))
            if "error" not in row and value(row) is not None and (not found or value(row) > value(found)):
                mine[attention_key(row)] = row
        best.update({key: (row, run) for key, row in mine.items()})
    for row, run in best.values():
        results.take(run, "attention", [row])
    return {key: (value(row), run) for key, (row, run) in best.items()}


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


TENSOR_CORE_FLOPS, HBM_BYTES = 989e12, 4.8e12  # a second, of an H200's data sheet


def loop_rows(results: Results, held_out: bool) -> dict:
    """Of the loops that passes were written beside, or of those held out, whichever file they are in."""
    return results.rows(["loops", "loops-held-out"], "loops", lambda r: r["name"],
                        wanted=lambda row: row.get("held_out", False) == held_out)


def reached(row: dict) -> str:
    """Of what bounds the loop, and how much of that the data sheet promises."""
    seconds = 1e-3 * median(row["ms"])
    if row["flops"] / TENSOR_CORE_FLOPS > row["bytes"] / HBM_BYTES:
        return f"{row['flops'] / seconds * 1e-12:.0f} TFLOP/s, {row['flops'] / seconds / TENSOR_CORE_FLOPS:.2f}"
    return f"{row['bytes'] / seconds * 1e-12:.2f} TB/s, {row['bytes'] / seconds / HBM_BYTES:.2f}"


def loops_table(results: Results, _ranks: int, held_out: bool = False) -> str:
    rows = loop_rows(results, held_out)
    lines = [[name + mark(rows, name), f"{median(row['ms']):.3f}", f"{row['roofline_ms']:.3f}",
              f"{row['roofline_ms'] / median(row['ms']):.2f}", reached(row)] if row.get("ms")
             else [name + mark(rows, name), failure(row), "", "", ""] for name, (row, _) in rows.items()]
    text = table(["loop", "ms", "roofline ms", "of its roofline", "reached, and of the data sheet"], lines)
    return text + footnote(text) + sources(rows)


def loops(results: Results, _ranks: int):
    """Of the scoreboard: the eight; beside them those held out, once they were measured, of which the same is asked."""
    def parts_of(held_out: bool) -> dict:
        return {name: row["roofline_ms"] / median(row["ms"]) if row.get("ms") else 0.0  # one that failed
                for name, (row, _) in loop_rows(results, held_out).items()}

    def said(parts: dict) -> str:
        least = min(parts, key=parts.get)
        return f"{sum(p >= 0.8 for p in parts.values())} of {len(parts)}; least {parts[least]:.2f} ({least})"

    eight, held_out = parts_of(False), parts_of(True)
    if not eight:
        return None
    met = min([*eight.values(), *held_out.values()]) >= 0.8
    return said(eight) + (f"; held out {said(held_out)}" if held_out else ""), met
