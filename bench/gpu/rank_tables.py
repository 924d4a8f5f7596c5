"""Tables of tables.py about operators on several GPUs."""

import collections
import statistics
import textwrap

from results import (
    Interval, Results, failure, faster, footnote, hidden, interval, mark, median, on_same_cards, operator, ratio,
    shape_key, short, sources, table, times,
)

MANY_ROWS = 4096  # from which on products are asked to hide what they can
PYTORCHS = {"async_tp": "async-TP", "one_shot": "one-shot", "two_shot": "two-shot"}


def overlap_table(results: Results, ranks: int, ops: tuple = ("ag_gemm", "gemm_rs")) -> str:
    ours = {k: v for k, v in results.rows(["overlap"], "overlap", shape_key, ranks).items() if k[0] in ops}
    torch = results.rows(["overlap-torch"], "overlap", shape_key, ranks)
    lines, won, long = [], collections.Counter(), collections.defaultdict(list)
    for key, (row, run) in ours.items():
        for mode in ("eager", "graph"):
            if mode not in row:
                continue
            t = row[mode]
            r = ratio(t["sequence_ms"], t["ours_ms"])
            part = hidden(t)
            theirs = on_same_cards(torch, key, run).get(mode, {})
            best = min(((median(theirs[name + "_ms"]), way) for name, way in PYTORCHS.items()
                        if name + "_ms" in theirs), default=None)
            won[faster(r, "sequence").strip("*")] += 1
            if row["m"] >= MANY_ROWS and row["op"] != "gemm_ar":
                long[mode, operator(row).split()[0]].append(part.median)
            lines.append([operator(row) + (", graph" if mode == "graph" else "") + mark(ours, key),
                          f"{median(t['ours_ms']):.3f}", short(row.get("chosen", "")),
                          *(f"{median(t[n]):.3f}" if n in t else "-"
                            for n in ("gemm_ms", "gemm_beside_traffic_ms", "nccl_ms", "sequence_ms")),
                          times(r), times(part), f"{best[0]:.3f} {best[1]}" if best else "-",
                          faster(r, "sequence")])
        if "error" in row:
            lines.append([operator(row) + mark(ours, key), failure(row), *[""] * 9])
    text = table(["operator (m, n or k of a rank)", "ours ms", "config", "GEMM", "GEMM beside traffic", "NCCL",
                  "sequence", "sequence / ours", "E_overlap", "PyTorch, another run",
                  "faster, ours or sequence"], lines)
    summary = (f"\nOf {sum(won.values())} rows ours is faster than the sequence in {won['ours']}, the sequence in "
               f"{won['sequence']}, neither in {won['neither']}.\n") if lines else ""
    summary += hidden_summary(long)
    return text + summary + footnote(text) + sources(ours) + (sources(torch) if any(k in ours for k in torch) else "")


def hidden_summary(parts: dict) -> str:
    """Arithmetic means and minima of E_overlap ({(mode, operator): values})."""
    if not parts:
        return ""
    said = [f"{op} {statistics.mean(values):.2f} on average over {len(values)} rows, {min(values):.2f} at least"
            for (mode, op), values in parts.items() if mode == "eager"]
    graphs = [f"{op} {statistics.mean(values):.2f}, {min(values):.2f}"
              for (mode, op), values in parts.items() if mode == "graph"]
    text = f"E_overlap from {MANY_ROWS} rows on: {'; '.join(said)} (eager)"
    text += f"; in graphs {', '.join(graphs)}." if graphs else "."
    return "\n" + textwrap.fill(text, 118, break_on_hyphens=False) + "\n"


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


def collectives_table(results: Results, ranks: int) -> str:
    ours = results.rows(["collectives"], "collectives", lambda r: r["op"], ranks)
    torch = results.rows(["overlap-torch"], "collectives", lambda r: r["op"], ranks)
    lines = []
    for op, (row, run) in ours.items():
        if "error" in row:
            lines.append([op.replace("_", " ") + mark(ours, op), failure(row), *[""] * 4])
            continue
        mode = "graph" if "graph" in row else "eager"
        if mode not in row:
            continue
        t, words = row[mode], op.split()
        r = ratio(t["nccl_ms"], t["ours_ms"])
        theirs = on_same_cards(torch, " ".join([words[0], *words[-2:]]), run).get(mode, {})
        way = words[1] + "_ms" if words[1] + "_ms" in theirs else ""
        lines.append([op.replace("_", " ") + (", eager" if mode == "eager" else "") + mark(ours, op),
                      f"{median(t['ours_ms']) * 1e3:.1f}", f"{median(t['nccl_ms']) * 1e3:.1f}", times(r),
                      f"{median(theirs[way]) * 1e3:.1f}" if way else "-", faster(r, "NCCL")])
    text = table(["collective, in a graph", "ours us", "NCCL", "NCCL / ours", "PyTorch's symmetric memory, another run",
                  "faster, ours or NCCL"], lines)
    return text + footnote(text) + sources(ours) + (sources(torch) if torch else "")


def gathering_hidden(row: dict) -> Interval:
    """Of the copies of keys and values, timed alone: what they do not add to the launch without them, sample by sample.
    Files from before that was timed do not say: one GPU's time / P differs by more than copies, by its clock above all.
    """
    copies = median(row["exchange_ms"])
    return interval([1 - (every - without) / copies
                     for every, without in zip(row["all_ms"], row["without_ms"], strict=True)])


def attention_ranks_table(results: Results, ranks: int) -> str:
    rows = results.rows(["attention-ranks"], "attention_ranks", lambda r: r["label"], ranks)
    lines = []
    for key, (row, _) in rows.items():
        if "all_ms" not in row:
            lines.append([row["label"] + mark(rows, key), failure(row), *[""] * 6])
            continue
        one, every = median(row["one_ms"]), median(row["all_ms"])
        rate = f"{row['flops'] / every / 1e9:.0f} TFLOP/s" if row.get("flops") else ""
        rate = f"{row['bytes'] / every / 1e9:.2f} TB/s" if row.get("bytes") else rate
        copies = (f"{median(row[n]):.3f}" if n in row else "-" for n in ("without_ms", "exchange_ms"))
        lines.append([row["label"] + mark(rows, key), f"{one:.3f}", f"{every:.3f}", rate,
                      f"{one / (ranks * every):.2f}", *copies,
                      times(gathering_hidden(row)) if "without_ms" in row else "-"])
    text = table(["attention", "one GPU ms", f"{ranks} GPUs", "all together", f"of 1 / {ranks}",
                  "without its communication", "keys and values gathered alone", "of that hidden"], lines)
    return text + footnote(text) + sources(rows)


def moe_rows(results: Results, ranks: int, wanted=lambda row: True) -> dict:
    return results.rows(["moe"], "moe", lambda r: (r["model"], r["layer"], r.get("all_reduce", False), r["m"]), ranks,
                        wanted)


def moe_table(results: Results, ranks: int) -> str:
    rows, lines = moe_rows(results, ranks), []
    for key, (row, _) in sorted(rows.items()):
        layer = f"{row['layer'] or '1 and 2'}{' with all-reduce' if row.get('all_reduce') else ''}"
        name = f"{row['model']}, layer {layer}, {row['m']} tokens" + mark(rows, key)
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


def in_one_launch(row: dict, mode: str, theirs: str) -> bool:
    return {theirs, "in one launch_ms"} <= row.get(mode, {}).keys()


def python_layer_rows(results: Results, ranks: int, kind: str, mode: str, theirs: str) -> dict:
    rows = results.rows(["layers"], "rows", lambda r: tuple(r["case"].split(" m=")), ranks)
    return {key: found for key, found in rows.items()
            if key[0].startswith(kind + " ") and in_one_launch(found[0], mode, theirs)}


def whole_layer_rows(results: Results, ranks: int) -> dict:
    """Rows of layers_rank.py in which all launches of a layer were captured in graphs."""
    return python_layer_rows(results, ranks, "whole", "graph", "sequence_ms")


def spread_layer_rows(results: Results, ranks: int) -> dict:
    """Rows of layers_rank.py of whole experts over the ranks, whose one launch ran."""
    return python_layer_rows(results, ranks, "spread", "eager", "gathered_ms")


def fastest_of(t: dict, names: tuple) -> list:
    return min((t[name] for name in names if name in t), key=median)


def python_layers_table(rows: dict, others: tuple, theirs: tuple, heads: list) -> str:
    """Beside one launch the `others`, and how many times as long the fastest of `theirs` takes."""
    lines = []
    for key, (row, _) in sorted(rows.items(), key=lambda item: (item[0][0], int(item[0][1]))):
        for mode in ("graph", "eager"):
            if not in_one_launch(row, mode, theirs[0]):
                continue
            t = row[mode]
            r = ratio(fastest_of(t, theirs), t["in one launch_ms"])
            name = f"{key[0].split(' ', 1)[1]}, {key[1]} tokens" + (", eager" if mode == "eager" else "")
            lines.append([name + mark(rows, key),
                          *(f"{median(t[n]):.3f}" if n in t else "-" for n in ("in one launch_ms", *others)),
                          times(r), faster(r, "PyTorch")])
    text = table(["whole layer", "one launch ms", *heads, "faster"], lines)
    return text + footnote(text) + sources(rows)


def whole_layers_table(results: Results, ranks: int) -> str:
    return python_layers_table(whole_layer_rows(results, ranks), ("ours_ms", "sequence_ms"), ("sequence_ms",),
                               ["two launches", "PyTorch and NCCL", "PyTorch / one launch"])


SPREAD_IN_PYTORCH = ("gathered_ms", "exchanged_ms")  # the second in no graph


def spread_layers_table(results: Results, ranks: int) -> str:
    return python_layers_table(
        spread_layer_rows(results, ranks), SPREAD_IN_PYTORCH, SPREAD_IN_PYTORCH,
        ["all tokens to all", "each row to its expert", "fastest of PyTorch's / one launch"])


def ep_moe_rows(results: Results, ranks: int) -> dict:
    return results.rows(["ep-moe"], "ep_moe", lambda r: (r["model"], r["m"]), ranks)


def ep_moe_table(results: Results, ranks: int) -> str:
    rows, lines = ep_moe_rows(results, ranks), []
    for key, (row, _) in sorted(rows.items()):
        name = f"{row['model']}, {row['m']} tokens" + mark(rows, key)
        if "graph" not in row:
            lines.append([name, failure(row), *[""] * 6])
            continue
        t = row["graph"]
        r = ratio(t["sequence_ms"], t["ours_ms"])
        lines.append([name, *(f"{median(t[n]):.3f}" for n in ("ours_ms", "products_ms", "exchange_ms", "sequence_ms")),
                      times(r), f"{row['flops'] / median(t['ours_ms']) / 1e9:.0f}", faster(r, "sequence")])
    text = table(["whole layer, in a graph", "one launch ms", "products alone", "exchange alone", "sequence",
                  "sequence / one launch", "TFLOP/s", "faster"], lines)
    return text + footnote(text) + sources(rows)


def exchange_table(results: Results, ranks: int) -> str:
    """Without the rows of older files whose tokens went by lists, which is no more."""
    rows = results.rows(["exchange"], "exchange", lambda r: (r["op"], r["way"], r["dtype"], r["tokens"]), ranks,
                        lambda r: r["way"] == "one-hop")
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
