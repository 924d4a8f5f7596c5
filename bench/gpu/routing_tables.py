"""Table and bar of fused layers of experts with routings that a seed draws (gpu_bench routings)."""

import statistics

from results import Results, failure, faster, footnote, hidden, mark, median, ratio, sources, table, times

ASKED = {1: 0.75, 2: 0.65}  # of layers, on four GPUs, on average


def routed_rows(results: Results, ranks: int) -> dict:
    """Of the newest run alone: rows of two draws are no draw."""
    runs = [run for run in results.runs if run.kind == "routings" and run.ranks == ranks][-1:]
    for run in runs:
        results.take(run, "routings", run.data["routings"])
    return {(row["model"], row["m"], row["routing"], row["routing_seed"], row["layer"]): (row, run)
            for run in runs for row in run.data["routings"]}


def parts_hidden(rows: dict, layer: int) -> list:
    """(part, whose) of rows that were timed, and whose results were right."""
    return [(hidden(row["eager"]).median, f"{row['model']}, {row['m']} tokens, {row['routing']}")
            for row, _ in rows.values() if row["layer"] == layer and "error" not in row]


def routings_table(results: Results, ranks: int) -> str:
    rows, lines = routed_rows(results, ranks), []
    for key, (row, _) in rows.items():
        name = [row["routing"] + mark(rows, key), f"{row['model']}, layer {row['layer']}, {row['m']} tokens"]
        if "error" in row:
            lines.append([*name, failure(row), *[""] * 6])
            continue
        t = row["eager"]
        r = ratio(t["sequence_ms"], t["ours_ms"])
        lines.append([*name, *(f"{median(t[n]):.3f}" for n in ("ours_ms", "gemm_ms", "nccl_ms", "sequence_ms")),
                      times(r), times(hidden(t)), faster(r, "sequence")])
    text = table(["routing", "layer", "ours ms", "products alone", "NCCL", "sequence", "sequence / ours", "hidden",
                  "faster"], lines)
    for layer in ASKED:
        if parts := parts_hidden(rows, layer):
            worst, where = min(parts)
            text += (f"\nLayer {layer} of {len(parts)} routings: {statistics.mean(p for p, _ in parts):.2f} of the "
                     f"communication hidden on average, {worst:.2f} at least ({where}).\n")
    return text + footnote(text) + sources(rows)


def routed_hidden(results: Results, ranks: int):
    """Of the scoreboard: on average and at least, by layer. What failed hides nothing."""
    rows = routed_rows(results, ranks)
    failed = sum("error" in row for row, _ in rows.values())
    parts = {layer: [part for part, _ in parts_hidden(rows, layer)] for layer in ASKED}
    if not all(parts.values()):
        return None
    means = {layer: statistics.mean(found) for layer, found in parts.items()}
    text = (" and ".join(f"{mean:.2f}" for mean in means.values())
            + "; at least " + " and ".join(f"{min(found):.2f}" for found in parts.values())
            + (f"; {failed} failed" if failed else ""))
    met = not failed and all(means[layer] >= asked for layer, asked in ASKED.items())
    return text, met if ranks == 4 else None
