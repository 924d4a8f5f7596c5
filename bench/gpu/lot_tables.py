"""Table and bar of shapes drawn by lot, of what is chosen where nothing is measured (gpu_bench lot)."""

import collections
import statistics

import verdicts
from results import Interval, Results, failure, footnote, mark, median, operator, ratio, shape_key, short, sources
from results import table, times

ALLOWED = 1.02  # of the faster sequence's time
FEW, SOME = 256, 4096  # rows up to which they come from decoding, and are some


def lot_rows(results: Results, ranks: int) -> dict:
    """Of the newest run alone: rows of two draws are no draw."""
    runs = [run for run in results.runs if run.kind == "lot" and run.ranks == ranks]
    for run in runs[-1:]:
        results.take(run, "lot", run.data["lot"])
    return {shape_key(row): (row, run) for run in runs[-1:] for row in run.data["lot"]}


def over_sequence(row: dict) -> Interval:
    """The chosen one's time over that of the faster sequence: cuBLASLt with NCCL's or with our collective."""
    chosen = row["own_ms"] if row["is_sequence"] else row["fused_ms"]
    return ratio(chosen, min((row["nccl_ms"], row["own_ms"]), key=median))


def outcome(row: dict) -> str:
    """A sequence that was chosen has nobody to win against but NCCL's."""
    r = over_sequence(row)
    if row["is_sequence"]:
        return "sequence" if verdicts.at_most(r, ALLOWED) is True else "sequence, NCCL's is faster"
    return {True: f"at most {ALLOWED}", verdicts.WITHIN: "within", False: f"**over {ALLOWED}**"}[
        verdicts.at_most(r, ALLOWED)]


def lot_table(results: Results, ranks: int) -> str:
    """By number of rows; lot_shapes_table has every shape."""
    rows = lot_rows(results, ranks)
    return summary(rows) + sources(rows)


def lot_shapes_table(results: Results, ranks: int) -> str:
    rows = lot_rows(results, ranks)
    lines = []
    for key, (row, _) in rows.items():
        if "error" in row:
            lines.append([operator(row), row["layer"], failure(row), *[""] * 6])
            continue
        chosen = row["own_ms"] if row["is_sequence"] else row["fused_ms"]
        lines.append([operator(row) + mark(rows, key), row["layer"], row["mode"],
                      "sequence" if row["is_sequence"] else short(row["chosen"]), f"{median(chosen):.4f}",
                      f"{median(row['nccl_ms']):.4f}", f"{median(row['own_ms']):.4f}", times(over_sequence(row), 3),
                      outcome(row)])
    text = table(["operator (m, n or k of a rank)", "layer", "launched", "chosen", "ms", "with NCCL",
                  "with our collective", "chosen / faster sequence", f"asked: {ALLOWED}"], lines)
    return text + footnote(text) + sources(rows)


def summary(rows: dict) -> str:
    by_rows = collections.defaultdict(list)
    for row, _ in rows.values():
        if "error" not in row:
            name = "1 to 256" if row["m"] <= FEW else "257 to 4095" if row["m"] < SOME else "4096 to 32768"
            by_rows[name].append(row)
    lines = []
    for name, found in sorted(by_rows.items(), key=lambda item: int(item[0].split()[0])):
        fused = [over_sequence(row) for row in found if not row["is_sequence"]]
        met = [verdicts.at_most(r, ALLOWED) for r in fused]
        lines.append([name, len(found), len(found) - len(fused), len(fused), sum(r.high < 1 for r in fused),
                      met.count(True), met.count(verdicts.WITHIN), met.count(False),
                      f"{statistics.median(r.median for r in fused):.3f}" if fused else "-",
                      f"{max(r.median for r in fused):.3f}" if fused else "-"])
    return table(["rows", "shapes", "sequence chosen", "fused chosen", "of them faster", f"at most {ALLOWED}",
                  "within", "over", "median of chosen / sequence", "greatest"], lines) if lines else ""


def lot(results: Results, ranks: int):
    """Of the scoreboard: of those that chose a fused operator; sequences that were chosen count by themselves."""
    rows = [row for row, _ in lot_rows(results, ranks).values()]
    timed = [row for row in rows if "error" not in row]
    fused = [over_sequence(row) for row in timed if not row["is_sequence"]]
    if not fused:
        return None
    met = [verdicts.at_most(r, ALLOWED) for r in fused]
    theirs = [verdicts.at_most(over_sequence(row), ALLOWED) for row in timed if row["is_sequence"]]
    failed = [False] * (len(rows) - len(timed))
    text = f"fused: {verdicts.counted(met)}, at most {max(r.median for r in fused):.2f}; sequence: {len(theirs)} rows"
    slower = len(theirs) - theirs.count(True)
    text += (f", in {slower} NCCL's is faster" if slower else "") + (f"; {len(failed)} failed" if failed else "")
    return text, verdicts.of_all(met + theirs + failed)
