"""Tables of tables.py of what the Python package is timed with on one GPU beside PyTorch: grouped products, routing,
attention of several sequences (contests.py)."""

from results import Results, failure, faster, footnote, geometric_mean, mark, median, ratio, sources, table, times


def of_row(row: dict) -> dict:
    """Milliseconds {contestant: [sample, ..]} of a row."""
    return row.get("graph", {})


def cell(row: dict, name: str, text) -> str:
    """What text(milliseconds) says of a contestant, or why there are none."""
    if name in of_row(row):
        return text(median(of_row(row)[name]))
    why = row.get("refused", {}).get(name)
    return "-" if not why and "error" not in row else failure({"error": why or row["error"]})


def theirs(row: dict, name: str, text) -> str:
    """The same of PyTorch's, whose reasons are its own."""
    return cell(row, name, text) if name in of_row(row) else "refused" if name in row.get("refused", {}) else "-"


def against(row: dict, name: str, baselines: tuple):
    """The interval of the fastest baseline's time over that of a contestant, None where one is not there."""
    found = [of_row(row)[baseline] for baseline in baselines if baseline in of_row(row)]
    return ratio(min(found, key=median), of_row(row)[name]) if found and name in of_row(row) else None


def compared(r, baseline: str) -> list:
    return [times(r, 3), faster(r, baseline)] if r else ["-", "-"]


def mean_of(ratios: list) -> str:
    return f"\nGeometric mean of the ratios {geometric_mean(ratios):.3f}, least {min(ratios):.3f}.\n" if ratios else ""


def grouped_key(row: dict) -> tuple:
    return row["model"], row["layer"], row["m"]


def grouped_tflops(row: dict, ms: float) -> float:
    return 2e-9 * row["m"] * row["top_k"] * row["n"] * row["k"] / ms


def layer_of(rows: dict, key: tuple) -> str:
    return f"{key[0]}, layer {key[1]}, {key[2]} tokens" + mark(rows, key)


def grouped_pair_table(results: Results, _ranks: int) -> str:
    rows = results.rows(["experts-pair"], "grouped", grouped_key)
    lines, ratios = [], {"ours": [], "masked": []}
    for key, (row, _) in rows.items():
        def tflops(ms, row=row):
            return f"{grouped_tflops(row, ms):.0f}"
        found = {name: against(row, name, ("grouped_mm",)) for name in ratios}
        for name, r in found.items():
            ratios[name] += [r.median] if r else []
        lines.append([layer_of(rows, key), cell(row, "ours", tflops), cell(row, "masked", tflops),
                      theirs(row, "grouped_mm", tflops), *compared(found["ours"], "PyTorch"),
                      *compared(found["masked"], "PyTorch")])
    text = table(["layer", "ours TFLOP/s", "masked", "torch._grouped_mm", "PyTorch / ours", "faster",
                  "PyTorch / masked", "faster"], lines)
    if ratios["ours"]:
        text += mean_of(ratios["ours"])
    if ratios["masked"]:
        text += mean_of(ratios["masked"]).replace("ratios", "ratios with masked rows")
    return text + footnote(text) + sources(rows)


def grouped_fp8_pair_table(results: Results, _ranks: int) -> str:
    rows = results.rows(["experts-pair"], "grouped", grouped_key)
    lines, ratios = [], []
    for key, (row, _) in rows.items():
        def tflops(ms, row=row):
            return f"{grouped_tflops(row, ms):.0f}"
        r, of_bf16 = (against(row, "fp8", (name,)) for name in ("scaled_grouped_mm", "grouped_mm"))
        ratios += [r.median] if r else []
        lines.append([layer_of(rows, key), cell(row, "fp8", tflops), theirs(row, "scaled_grouped_mm", tflops),
                      *compared(r, "PyTorch"), times(of_bf16) if of_bf16 else "-"])
    text = table(["layer", "ours, scales of blocks, TFLOP/s", "torch._scaled_grouped_mm, of rows", "PyTorch / ours",
                  "faster", "torch._grouped_mm bf16 / ours"], lines)
    return text + mean_of(ratios) + footnote(text) + sources(rows)


def routing_key(row: dict) -> tuple:
    return row["m"], row["experts"], row["top_k"]


def routing_pair_table(results: Results, _ranks: int) -> str:
    rows = results.rows(["experts-pair"], "routing", routing_key)
    lines = []
    for key, (row, _) in rows.items():
        for tables, ours, pytorch in (("no", "ours", "pytorch"), ("yes", "ours_tables", "pytorch_tables")):
            lines.append([f"{key[0]} tokens, {key[2]} of {key[1]} experts" + mark(rows, key), tables,
                          cell(row, ours, us), theirs(row, pytorch, us),
                          *compared(against(row, ours, (pytorch,)), "PyTorch")])
    text = table(["routing", "tables", "ours us", "PyTorch us", "PyTorch / ours", "faster"], lines)
    return text + footnote(text) + sources(rows)


def us(ms: float) -> str:
    return f"{1e3 * ms:.1f}"


PYTORCH_ATTENTION = ("flash2", "cudnn")


def packed_key(row: dict) -> tuple:
    return row["sequences"], row["heads"], row["kv_heads"]


def packed_pair_table(results: Results, _ranks: int) -> str:
    rows = results.rows(["sequences-pair"], "packed", packed_key)
    lines, ratios = [], []
    for key, (row, run) in rows.items():
        flops = 2 * row["heads"] * run.data["head_dim"] * sum(length**2 for length in row["lengths"])

        def tflops(ms, flops=flops):
            return f"{flops / ms / 1e9:.0f}"
        r = against(row, "ours", PYTORCH_ATTENTION)
        ratios += [r.median] if r else []
        lines.append([f"{key[0]}" + mark(rows, key), f"{key[1]}, {key[2]}", cell(row, "ours", tflops),
                      *(theirs(row, name, tflops) for name in PYTORCH_ATTENTION), *compared(r, "PyTorch")])
    text = table(["sequences", "heads, of keys", "ours TFLOP/s", "FlashAttention-2", "cuDNN", "fastest / ours",
                  "faster"], lines)
    return text + mean_of(ratios) + footnote(text) + sources(rows)


def paged_key(row: dict) -> tuple:
    return row["batch"], row["tokens"]


def part_of_copy(row: dict, run, ms: float) -> float:
    return 1e3 * row["bytes"] / ms / run.data["copy_bytes_per_s"]


def paged_pair_table(results: Results, _ranks: int) -> str:
    rows = results.rows(["sequences-pair"], "paged", paged_key)
    lines = []
    for key, (row, run) in rows.items():
        def part(ms, row=row, run=run):
            return f"{us(ms)} ({part_of_copy(row, run, ms):.2f})"
        lines.append([f"{key[0]} x {key[1]}" + mark(rows, key), cell(row, "decode", part), cell(row, "attention", part),
                      *(theirs(row, name, part) for name in PYTORCH_ATTENTION),
                      *compared(against(row, "decode", PYTORCH_ATTENTION), "PyTorch")])
    text = table(["sequences x tokens", "paged_decode us (part of a copy's bandwidth)", "paged_attention",
                  "FlashAttention-2", "cuDNN", "fastest / paged_decode", "faster"], lines)
    rates = {run.name: run.data["copy_bytes_per_s"] for _, run in rows.values()}
    if rates:
        text += "\nA copy: " + ", ".join(f"{rate / 1e12:.2f}" for rate in rates.values()) + " TB/s.\n"
    return text + footnote(text) + sources(rows)
