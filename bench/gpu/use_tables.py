"""Tables of tables.py about what a user meets beside kernels: starting, Python, predictions."""

import statistics

from results import (
    Interval, Results, failure, faster, footnote, mark, median, operator, quantile, ratio, rounds, shape_key, sources,
    table, times,
)


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


def enqueue_table(results: Results, ranks: int) -> str:
    rows = results.rows(["enqueue"], "enqueue", lambda r: r["op"], ranks)
    lines = []
    for key, (row, _) in rows.items():
        if "error" in row:
            lines.append([key + mark(rows, key), failure(row), *[""] * 4])
            continue
        lines.append([key + mark(rows, key),
                      *(text for way in ("one_by_one", "replayed")
                        for text in (f"{row[way]['calls']:.0f}", f"{median(row[way]['us']):.1f}")),
                      f"{row['new_us'][-1]:.0f}"])
    text = table(["operator", "calls of the driver", "us", "calls, copies replayed", "us", "us on new memory"], lines)
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


def over_cpp(row: dict, form: str) -> Interval:
    """Of a form's time: the mean over rounds with their interval, or of older runs the median of launches."""
    r = row.get("over_cpp", {}).get(form)
    if r is None or r["low"] is None:
        return ratio(row[form + "_ms"], row["cpp_ms"])
    return Interval(r["mean"], r["low"], r["high"])


def pair_table(results: Results, ranks: int) -> str:
    rows = results.rows(["pytorch-pair"], "pairs", shape_key, ranks)
    lines = []
    for key, (row, _) in rows.items():
        lines.append([operator(row) + mark(rows, key),
                      *(f"{median(row[name]):.3f}" for name in ("cpp_ms", "in_place_ms", "plain_ms")),
                      *(times(over_cpp(row, form), 3) for form in ("in_place", "plain"))])
    text = table(["call (m, n or k of a rank)", "C++ ms", "in place", "plain", "in place / C++", "plain / C++"], lines)
    return text + footnote(text) + sources(rows)


def points_table(results: Results, _ranks: int) -> str:
    newest = {}  # of each operator and number of GPUs: what the model of that day says of all of them
    for run in results.runs:
        measured = [row for row in run.data.get("points", []) if row.get("measured_ms", 0) > 0]
        for group in {(row["op"], row["ranks"]) for row in measured} if run.kind == "points" else ():
            newest[group] = run, [row for row in measured if (row["op"], row["ranks"]) == group]
    rows = {}
    for run, measured in newest.values():
        results.take(run, "points", measured)
        rows |= {(r["op"], r["ranks"], r["m"], r["n"], r["k"], r["config"]): (r, run) for r in measured}
    by_op = {}
    for row, _ in rows.values():
        error = row["predicted_ms"] / row["measured_ms"] - 1
        by_op.setdefault((row["op"], row["ranks"]), []).append(error)
    lines = []
    groups = sorted(by_op.items()) + ([("all", [e for es in by_op.values() for e in es])] if len(by_op) > 1 else [])
    for key, errors in groups:
        distances = list(map(abs, errors))
        name, ranks = key if key != "all" else ("all", "")
        lines.append([name, ranks, len(errors), f"{statistics.mean(distances):.2f}",
                      f"{quantile(distances, 0.9):.2f}",
                      f"{statistics.mean(errors):+.2f}"])
    return table(["operator", "GPUs", "points", "mean error", "90 % within", "bias"], lines) + sources(rows)


def newest_per_ranks(results: Results, field: str) -> dict:
    """{GPUs: (what the newest run of PyTorch's side holds in `field`, run)}"""
    found = {run.ranks: (run.data[field], run) for run in results.runs if run.kind == "pytorch" and field in run.data}
    for values, run in found.values():
        results.take(run, field, [values])
    return dict(sorted(found.items()))


def calls_table(results: Results, _ranks: int) -> str:
    rows = newest_per_ranks(results, "overhead_us")
    names = list(dict.fromkeys(name for calls, _ in rows.values() for name in calls))
    lines = [[f"`{name}`" if "(" in name else name,
              *(f"{median(rounds(calls[name])):.1f}" if name in calls else "-" for calls, _ in rows.values())]
             for name in names]
    return table(["call, host us", *(f"{n} GPUs" for n in rows)], lines) + sources(rows)


def reductions_table(results: Results, ranks: int) -> str:
    rows = results.rows(["reductions"], "reductions", lambda r: r["case"], ranks, lambda row: "nccl" in row)
    lines = []
    for case, (row, _) in rows.items():
        ours, nccl = row["stretto"], row["nccl"]
        lines.append([case, f"{median(ours['gpu_us']):.1f}", f"{median(nccl['gpu_us']):.1f}",
                      times(ratio(nccl["gpu_us"], ours["gpu_us"])), f"{median(ours['host_us']):.1f}",
                      f"{median(nccl['host_us']):.1f}"])
    return table(["call", "ours, us", "NCCL", "NCCL / ours", "host: ours, us", "NCCL"], lines) + sources(rows)


def device_sizes_table(results: Results, ranks: int) -> str:
    is_sized = lambda row: "stretto, captured" in row
    rows, lines = results.rows(["reductions"], "reductions", lambda r: r["case"], ranks, is_sized), []
    for case, (row, _) in rows.items():
        theirs, eager, graph = (row[who] for who in ("nccl, with sizes", "stretto", "stretto, captured"))
        lines.append([case + mark(rows, case),
                      *(f"{median(t['gpu_us']):.0f} ({median(t['host_us']):.0f})" for t in (theirs, eager, graph)),
                      times(ratio(theirs["gpu_us"], graph["gpu_us"]))])
    text = table(["exchange", "NCCL and sizes, us (host)", "ours, eager", "ours, in a graph", "NCCL / ours in a graph"],
                 lines)
    return text + footnote(text) + sources(rows)


def mlp_table(results: Results, _ranks: int) -> str:
    rows = newest_per_ranks(results, "mlp")
    lines = []
    for ranks, (t, _) in rows.items():
        parts = [f"{median(t[f'ours {part}_ms']):.2f} / {median(t[f'sequence {part}_ms']):.2f}"
                 for part in ("forward", "columns", "columns forward", "rows", "rows forward")]
        lines.append([ranks, f"{median(t['ours_ms']):.2f}", f"{median(t['sequence_ms']):.2f}",
                      times(ratio(t["sequence_ms"], t["ours_ms"])), *parts])
    return table(["GPUs", "ours ms", "sequence", "sequence / ours", "forward: ours / sequence", "layer of columns",
                  "its forward", "layer of rows", "its forward"], lines) + sources(rows)


def watchdog_table(results: Results, ranks: int) -> str:
    rows = results.rows(["watchdog"], "watchdog", lambda r: r["case"], ranks)
    lines = [[case.replace("|", ",") + mark(rows, case), f"{median(row['without_ms']):.4f}",
              f"{median(row['with_ms']):.4f}", times(ratio(row["with_ms"], row["without_ms"]), 3)]
             for case, (row, _) in rows.items()]
    text = table(["case", "without, ms", "with", "with / without"], lines)
    return text + footnote(text) + sources(rows)
