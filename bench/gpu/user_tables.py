"""Tables and bars of what a user meets who calls the package with ordinary tensors (user_rank.py)."""

import collections
import statistics

import verdicts
from results import (
    Interval, Results, failure, footnote, hidden, mark, median, operator, quantile, ratio, shape_key, sources, table,
    times,
)

FIRST_S, KEPT_S = 4, 0.2
HOST_US, COPIES_US = 15, 40  # of the host for a call; where copy engines take part
ALLOWED = 1.02
MANY_ROWS = 2048
KEPT_SAMPLES = 60  # of a product by lot; each contestant comes in every place as often in them
MODES = "eager", "graph"
SIZE_NAMES = (30, "GB"), (20, "MB"), (10, "KB"), (0, "bytes")


def of_call(row: dict) -> str:
    return row["call"]


def calls(results: Results, ranks: int, field: str = "calls") -> dict:
    return results.rows(["user"], field, of_call, ranks)


def cell(row: dict, part: str, who: str, digits: int) -> str:
    samples = row.get(part, {}).get(who)
    return f"{median(samples):.{digits}f}" if samples else "-"


def gain(row: dict, part: str) -> Interval | None:
    t = row.get(part, {})
    return ratio(t["theirs"], t["ours"]) if "theirs" in t else None


def user_calls_table(results: Results, ranks: int) -> str:
    rows, lines = calls(results, ranks), []
    again = calls(results, ranks, "calls_again")
    for key, (row, _) in rows.items():
        later, _ = again.get(key, ({}, None))
        single, eager = gain(row, "single_ms"), gain(row, "eager_ms")
        lines.append([key + mark(rows, key),
                      *(f"{of['first_s']:.2f}" if "first_s" in of else "-" for of in (row, later)),
                      cell(row, "host_us", "ours", 0), cell(row, "host_us", "theirs", 0),
                      cell(row, "single_ms", "ours", 3), times(single) if single else "-",
                      cell(row, "eager_ms", "ours", 3), times(eager) if eager else "-", row.get("error", "")[:60]])
    text = table(["call", "first, s", "kept, s", "host, us", "theirs", "one call, ms", "theirs / ours", "in a row, ms",
                  "theirs / ours", "failed"], lines)
    return text + footnote(text) + sources(rows)


def user_steps_table(results: Results, ranks: int) -> str:
    rows, lines = calls(results, ranks, "steps"), []
    for key, (row, _) in rows.items():
        r = gain(row, "eager_ms")
        lines.append([key + mark(rows, key), cell(row, "eager_ms", "ours", 3), cell(row, "eager_ms", "theirs", 3),
                      times(r) if r else failure(row)])
    text = table(["step", "ours, ms", "torch.distributed", "theirs / ours"], lines)
    return text + footnote(text) + sources(rows)


def size_name(count: int) -> str:
    shift, unit = next((shift, unit) for shift, unit in SIZE_NAMES if count >> shift)
    return f"{count >> shift} {unit}"


def sizes(results: Results, ranks: int) -> dict:
    return results.rows(["user"], "sizes", lambda row: (row["op"], row["bytes"]), ranks)


def user_sizes_table(results: Results, ranks: int) -> str:
    rows, lines = sizes(results, ranks), []
    for key, (row, _) in rows.items():
        line = [f"{row['op']} {size_name(row['bytes'])}" + mark(rows, key)]
        for mode in MODES:
            t = row.get(mode + "_ms")
            line += [f"{1e3 * median(t['ours']):.1f}", times(ratio(t["nccl"], t["ours"]))] if t else ["-", "-"]
        lines.append(line)
    text = table(["collective", "eager, us", "NCCL / ours", "graph, us", "NCCL / ours"], lines)
    return text + footnote(text) + sources(rows)


def lot(results: Results, ranks: int) -> dict:
    return results.rows(["user"], "lot", shape_key, ranks)


def few_samples(t: dict) -> dict:
    """Of a product's times the first KEPT_SAMPLES, and what is said of all of them."""
    count = len(t["ours"])
    if count <= KEPT_SAMPLES:
        return t
    part = part_hidden(t)
    said = {"over_faster": over_faster(t), "itself": itself(t), **({"hidden": part} if part else {})}
    return {**{who: samples[:KEPT_SAMPLES] for who, samples in t.items()},
            "of_all": {"samples": count, "medians": {who: median(samples) for who, samples in t.items()},
                       **{name: r._asdict() for name, r in said.items()}}}


def over_faster(t: dict) -> Interval:
    """Ours over the faster of sequence and async-TP."""
    if "of_all" in t:
        return Interval(**t["of_all"]["over_faster"])
    return ratio(t["ours"], min((t[who] for who in ("sequence", "async_tp") if who in t), key=median))


def median_of(t: dict, who: str) -> float:
    return t["of_all"]["medians"][who] if "of_all" in t else median(t[who])


def itself(t: dict) -> Interval:
    """The sequence over itself, in turn with it."""
    return Interval(**t["of_all"]["itself"]) if "of_all" in t else ratio(t["again"], t["sequence"])


def outcome(t: dict) -> str:
    """Undecided where it would be another if ours were off by as much as the sequence differs from itself."""
    r, same = over_faster(t), itself(t)
    off = max(same.high, 1 / same.low)
    words = {True: "met", verdicts.WITHIN: "within", False: "over"}
    found = {words[verdicts.at_most(Interval(*(x * by for x in r)), ALLOWED)] for by in (1 / off, 1, off)}
    return found.pop() if len(found) == 1 else "undecided"


def part_hidden(t: dict) -> Interval | None:
    """None where product and sequence take the same, or the part is below what is told apart."""
    if "of_all" in t:
        return Interval(**t["of_all"]["hidden"]) if "hidden" in t["of_all"] else None
    if median(t["sequence"]) < 1.02 * median(t["gemm"]):
        return None
    return hidden({"ours_ms": t["ours"], "gemm_ms": t["gemm"], "sequence_ms": t["sequence"]})


def hidden_parts(rows: dict, mode: str) -> list:
    found = (part_hidden(row[mode + "_ms"]) for row, _ in rows.values()
             if row["op"] != "gemm_ar" and row["m"] >= MANY_ROWS and mode + "_ms" in row)
    return [part.median for part in found if part]


def user_lot_table(results: Results, ranks: int) -> str:
    """By rows and how they were launched."""
    rows = lot(results, ranks)
    found = collections.defaultdict(list)
    for row, _ in rows.values():
        for mode in MODES:
            if mode + "_ms" in row:
                name = "under 256" if row["m"] < 256 else "256 to 2047" if row["m"] < MANY_ROWS else "2048 and more"
                found[name, mode].append(row[mode + "_ms"])
    lines = []
    for (name, mode), of_mode in sorted(found.items(), key=lambda item: (["u", "256", "2048"].index(
            item[0][0].split()[0].replace("under", "u")), item[0][1])):
        outcomes = collections.Counter(map(outcome, of_mode))
        ratios = [over_faster(t).median for t in of_mode]
        lines.append([name, mode, len(of_mode), f"{statistics.mean(ratios):.3f}", f"{quantile(ratios, 0.9):.3f}",
                      f"{max(ratios):.3f}", *(outcomes[word] for word in ("met", "within", "over", "undecided"))])
    text = table(["rows", "launched", "shapes", "ours / faster of theirs, mean", "nine in ten at most", "worst",
                  f"at most {ALLOWED}", "within", "over", "undecided"], lines) if lines else ""
    told = [f"{mode} {statistics.mean(parts):.2f} on average, tenth percentile {quantile(parts, 0.1):.2f}, "
            f"{min(parts):.2f} at least ({len(parts)} shapes)"
            for mode in MODES if (parts := hidden_parts(rows, mode))]
    shared = {mode: [ratio(t["symmetric"], t["ours"]).median for row, _ in rows.values()
                     if "symmetric" in (t := row.get(mode + "_ms", {}))] for mode in MODES}
    if any(shared.values()):
        of_modes = [f"{mode} {statistics.mean(r):.3f} on average, {max(r):.3f} at most ({len(r)} shapes)"
                    for mode, r in shared.items() if r]
        text += ("\nWith what peers read or write in symmetric memory, time over that of ordinary tensors: "
                 f"{'; '.join(of_modes)}.\n")
    if told:
        text += f"\nPart of communication hidden, AG+GEMM and GEMM+RS from {MANY_ROWS} rows on: {'; '.join(told)}.\n"
    return text + sources(rows)


def user_lot_shapes_table(results: Results, ranks: int) -> str:
    rows, lines = lot(results, ranks), []
    for key, (row, _) in rows.items():
        for mode in MODES:
            t = row.get(mode + "_ms")
            if not t:
                continue
            part = part_hidden(t)
            lines.append([operator(row) + mark(rows, key), row["layer"], mode, f"{row['first_s']:.1f}",
                          *(f"{median_of(t, who):.4f}" if who in t else "-" for who in
                            ("ours", "sequence", "async_tp", "gemm")),
                          times(over_faster(t), 3), f"{part.median:.2f}" if part else "-", outcome(t)])
    text = table(["operator (m, n or k of a rank)", "layer", "launched", "first call, s", "ours, ms", "sequence",
                  "async-TP", "product alone", "ours / faster of theirs", "hidden", f"asked: {ALLOWED}"], lines)
    return text + footnote(text) + sources(rows)


# ---- Bars of the scoreboard: (text, verdict) or None.


def host_bar(results: Results, ranks: int):
    found = [(median(row["host_us"]["ours"]), row) for row, _ in calls(results, ranks).values() if "host_us" in row]
    if not found:
        return None
    met = [us <= (COPIES_US if row["copies"] else HOST_US) for us, row in found]
    values = sorted(us for us, _ in found)
    return (f"{values[0]:.0f} to {values[-1]:.0f} us, median {median(values):.0f}; {verdicts.counted(met)}",
            verdicts.of_all(met))


def first_bar(results: Results, ranks: int):
    cold = [row["first_s"] for row, _ in calls(results, ranks).values() if "first_s" in row]
    kept = [row["first_s"] for row, _ in calls(results, ranks, "calls_again").values() if "first_s" in row]
    if not cold or not kept:
        return None
    fast, few = sum(s <= FIRST_S for s in cold), sum(s <= KEPT_S for s in kept)
    return (f"up to {max(cold):.1f} s, {fast} of {len(cold)} met; up to {max(kept):.2f} s",
            fast == len(cold) and few == len(kept))


def sizes_bar(results: Results, ranks: int):
    found = [verdicts.at_most(ratio(t["ours"], t["nccl"]), ALLOWED) for row, _ in sizes(results, ranks).values()
             for mode in MODES if (t := row.get(mode + "_ms"))]
    return (verdicts.counted(found), verdicts.of_all(found)) if found else None


EXCHANGES = "uneven", "different sizes", "batch_send_recv", "of columns"


def steps_bar(results: Results, ranks: int):
    rows = [row for row, _ in calls(results, ranks, "steps").values()]
    rows += [row for key, (row, _) in calls(results, ranks).items() if any(word in key for word in EXCHANGES)]
    found = [r for row in rows if (r := gain(row, "eager_ms"))]
    return verdicts.ratios_met(found, lambda r: verdicts.at_least(r, 0.97))


def hidden_bar(results: Results, ranks: int):
    parts = hidden_parts(lot(results, ranks), "graph")
    if not parts:
        return None
    mean, low = statistics.mean(parts), quantile(parts, 0.1)
    return f"{mean:.2f}, {low:.2f}; worst {min(parts):.2f}", mean >= 0.8 and low >= 0.6


def lot_bar(results: Results, ranks: int):
    found = [outcome(row[mode + "_ms"]) for row, _ in lot(results, ranks).values() for mode in MODES
             if mode + "_ms" in row]
    decided = [word for word in found if word != "undecided"]
    if not decided:
        return None
    counts = collections.Counter(decided)
    return (f"{counts['met']} of {len(decided)} within the interval, {counts['within']} not told apart; "
            f"{len(found) - len(decided)} undecided", counts["met"] >= 0.99 * len(decided))
