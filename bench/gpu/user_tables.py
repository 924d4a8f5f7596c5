"""Tables and bars of what a user meets who calls the package with ordinary tensors (user_rank.py)."""

import collections
import statistics

import verdicts
from results import (
    Interval, Results, failure, footnote, hidden, mark, median, operator, quantile, ratio, shape_key, sources, table,
    times,
)

FIRST_S, KEPT_S = 4, 0.2
HOST_US, COPIES_US = 15, 40  # of the host for an operator; where copy engines take part
OPERATORS = {"layers of experts, both calls": 2, "ep_dispatch to ep_combine, four calls": 4}  # older files do not say
ALLOWED = 1.02
MANY_ROWS = 2048
OWN_SPREAD = 0.01  # of the sequence against itself, beyond which a shape is undecided
PROOF_S = 1
KEPT_SAMPLES = 12  # of a product by lot, beside what is said of all
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


def host_asked(row: dict) -> int:
    """Microseconds."""
    return (COPIES_US if row["copies"] else HOST_US) * operators_of(row)


def operators_of(row: dict) -> int:
    """Of stretto's that a call is."""
    return row.get("operators") or OPERATORS.get(row["call"], 1)


def user_calls_table(results: Results, ranks: int) -> str:
    rows, lines = calls(results, ranks), []
    others = [calls(results, ranks, field) for field in ("calls_again", "calls_warmed", "proofs")]
    for key, (row, _) in rows.items():
        single, eager = gain(row, "single_ms"), gain(row, "eager_ms")
        firsts = row, *(of.get(key, ({}, None))[0] for of in others)
        lines.append([key + mark(rows, key),
                      *(f"{of['first_s']:.2f}" if "first_s" in of else "-" for of in firsts),
                      cell(row, "host_us", "ours", 0), f"{host_asked(row)}", cell(row, "host_us", "theirs", 0),
                      cell(row, "single_ms", "ours", 3), times(single) if single else "-",
                      cell(row, "eager_ms", "ours", 3), times(eager) if eager else "-", row.get("error", "")[:60]])
    text = table(["call", "first, s", "kept, s", "warmed, s", "rank and prove, s", "host, us", "asked", "theirs",
                  "one call, ms", "theirs / ours", "in a row, ms", "theirs / ours", "failed"], lines)
    return text + footnote(text) + sources(rows)


def shared_proofs_table(results: Results, ranks: int) -> str:
    """Of ranks that share a GPU: what takes longer than asked, and all."""
    rows = results.rows(["shared"], "proofs", of_call, ranks)
    seconds = {key: row["first_s"] for key, (row, _) in rows.items()}
    lines = [[key, f"{s:.2f}"] for key, s in seconds.items() if s > PROOF_S]
    if seconds:
        lines.append([f"{sum(s <= PROOF_S for s in seconds.values())} of {len(seconds)} calls",
                      f"at most {PROOF_S}, median {median(list(seconds.values())):.2f}"])
    return table(["call", "rank and prove, s"], lines) + sources(rows)


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


def lot(results: Results, ranks: int, field: str = "lot") -> dict:
    """Shapes that a seed drew; with "named" those that somebody chose."""
    return results.rows(["user"], field, shape_key, ranks)


def few_samples(t: dict) -> dict:
    """Of a product's times the first KEPT_SAMPLES, and what is said of all of them."""
    if len(t["ours"]) <= KEPT_SAMPLES:
        return t
    of_all = t.get("of_all") or said_of_all(t)
    if "symmetric" in t and "symmetric" not in of_all:
        of_all["symmetric"] = over_ordinary(t)._asdict()
    return {**{who: samples[:KEPT_SAMPLES] for who, samples in t.items() if who != "of_all"}, "of_all": of_all}


def said_of_all(t: dict) -> dict:
    part = part_hidden(t)
    said = {"over_faster": over_faster(t), "itself": itself(t), **({"hidden": part} if part else {})}
    return {"samples": len(t["ours"]), "medians": {who: median(samples) for who, samples in t.items()},
            **{name: r._asdict() for name, r in said.items()}}


def over_ordinary(t: dict) -> Interval:
    """Time with what peers read or write in symmetric memory over that of ordinary tensors."""
    found = t.get("of_all", {}).get("symmetric")
    return Interval(**found) if found else ratio(t["symmetric"], t["ours"])


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
    """Undecided where the sequence against itself, by its interval, differs by more than OWN_SPREAD."""
    same = itself(t)
    if same.high > 1 + OWN_SPREAD or same.low < 1 - OWN_SPREAD:
        return "undecided"
    return {True: "met", verdicts.WITHIN: "within", False: "over"}[verdicts.at_most(over_faster(t), ALLOWED)]


def draws(rows: dict) -> str:
    """'94 shapes of 2 seeds'"""
    seeds = {(run.ranks, run.data.get("seed")) for _, run in rows.values()}
    return f"{len(rows)} shapes of {len(seeds)} seed{'s' * (len(seeds) > 1)}"


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
    shared = {mode: [over_ordinary(t).median for row, _ in rows.values()
                     if "symmetric" in (t := row.get(mode + "_ms", {}))] for mode in MODES}
    if any(shared.values()):
        of_modes = [f"{mode} {statistics.mean(r):.3f} on average, {max(r):.3f} at most ({len(r)} shapes)"
                    for mode, r in shared.items() if r]
        text += ("\nWith what peers read or write in symmetric memory, time over that of ordinary tensors: "
                 f"{'; '.join(of_modes)}.\n")
    if told:
        text += f"\nPart of communication hidden, AG+GEMM and GEMM+RS from {MANY_ROWS} rows on: {'; '.join(told)}.\n"
    return text + sources(rows)


def user_lot_shapes_table(results: Results, ranks: int, field: str = "lot") -> str:
    rows, lines = lot(results, ranks, field), []
    for key, (row, _) in rows.items():
        for mode in MODES:
            t = row.get(mode + "_ms")
            if not t:
                continue
            part = part_hidden(t)
            lines.append([operator(row) + mark(rows, key), row["layer"], mode, f"{row['first_s']:.1f}",
                          *(f"{median_of(t, who):.4f}" if who in t else "-" for who in
                            ("ours", "sequence", "async_tp", "gemm")),
                          times(over_faster(t), 3), times(itself(t), 3), f"{part.median:.2f}" if part else "-",
                          outcome(t)])
    text = table(["operator (m, n or k of a rank)", "layer", "launched", "first call, s", "ours, ms", "sequence",
                  "async-TP", "product alone", "ours / faster of theirs", "sequence / itself", "hidden",
                  f"asked: {ALLOWED}"], lines)
    return text + footnote(text) + sources(rows)


# ---- Bars of the scoreboard: (text, verdict) or None.


def host_bar(results: Results, ranks: int):
    found = [(row["host_us"]["ours"], row) for row, _ in calls(results, ranks).values() if "host_us" in row]
    if not found:
        return None
    met = [median(us) <= host_asked(row) for us, row in found]
    values, rounds = sorted(median(us) for us, _ in found), [us for of_call, _ in found for us in of_call]
    return (f"{values[0]:.0f} to {values[-1]:.0f} us, median {median(values):.0f}, of rounds {min(rounds):.0f} to "
            f"{max(rounds):.0f}; {verdicts.counted(met)}", verdicts.of_all(met))


def first_bar(results: Results, ranks: int):
    cold = [row["first_s"] for row, _ in calls(results, ranks).values() if "first_s" in row]
    kept = [row["first_s"] for row, _ in calls(results, ranks, "calls_again").values() if "first_s" in row]
    if not cold or not kept:
        return None
    fast, few = sum(s <= FIRST_S for s in cold), sum(s <= KEPT_S for s in kept)
    return (f"up to {max(cold):.1f} s, {fast} of {len(cold)} met; up to {max(kept):.2f} s",
            fast == len(cold) and few == len(kept))


def seconds_bar(field: str, asked: float):
    """Of first calls, each asked to take no longer."""
    def measure(results: Results, ranks: int):
        rows = [row for row, _ in calls(results, ranks, field).values()]
        met = [row.get("first_s", asked + 1) <= asked and "error" not in row for row in rows]
        if not met:
            return None
        most = max((row["first_s"] for row in rows if "first_s" in row), default=0.0)
        return f"up to {most:.2f} s; {verdicts.counted(met)}", verdicts.of_all(met)
    return measure


warmed_bar, proofs_bar = seconds_bar("calls_warmed", KEPT_S), seconds_bar("proofs", PROOF_S)


def single_bar(results: Results, ranks: int):
    """Theirs / ours of the call that is slowest beside theirs."""
    found = [r for row, _ in calls(results, ranks).values() if (r := gain(row, "single_ms"))]
    if not found:
        return None
    met = [verdicts.faster(r) for r in found]
    least = min(found, key=lambda r: r.median)
    return f"{times(least)} at least; {verdicts.counted(met)}", verdicts.of_all(met)


def sizes_bar(results: Results, ranks: int):
    found = [verdicts.at_most(ratio(t["ours"], t["nccl"]), ALLOWED) for row, _ in sizes(results, ranks).values()
             for mode in MODES if (t := row.get(mode + "_ms"))]
    return (verdicts.counted(found), verdicts.of_all(found)) if found else None


# Beside steps: calls that torch.distributed makes with several of its own, or hosts that meet.
EXCHANGES = "even lists", "different sizes", "batch_send_recv", "of columns", "all_to_all_v", "all_gather_v"


def steps_bar(results: Results, ranks: int):
    rows = [row for row, _ in calls(results, ranks, "steps").values()]
    rows += [row for key, (row, _) in calls(results, ranks).items() if any(word in key for word in EXCHANGES)]
    found = [r for row in rows if (r := gain(row, "eager_ms"))]
    return verdicts.ratios_met(found, lambda r: verdicts.at_least(r, 0.97))


def device_sizes_bar(results: Results, ranks: int):
    """Exchanges in graphs whose sizes are on the device (reductions_rank.py), over NCCL's with its own of sizes."""
    rows = results.rows(["reductions"], "reductions", lambda row: row["case"], ranks,
                        lambda row: "stretto, captured" in row)
    found = [ratio(row["nccl, with sizes"]["gpu_us"], row["stretto, captured"]["gpu_us"]) for row, _ in rows.values()]
    return verdicts.ratios_met(found, lambda r: verdicts.at_least(r, 1.5))


def hidden_bar(results: Results, ranks: int):
    rows = lot(results, ranks)
    parts = hidden_parts(rows, "graph")
    if not parts:
        return None
    mean, low = statistics.mean(parts), quantile(parts, 0.1)
    return (f"{mean:.2f}, {low:.2f}; worst {min(parts):.2f}; {len(parts)} of {draws(rows)}",
            mean >= 0.8 and low >= 0.6)


def timed_lot(rows: dict) -> list:
    return [row[mode + "_ms"] for row, _ in rows.values() for mode in MODES if mode + "_ms" in row]


def front_lot(results: Results, ranks: int):
    """Of the first page: as lot_bar()."""
    found = lot_bar(results, ranks)
    if not found:
        return None
    timed = timed_lot(lot(results, ranks))
    counts, worst = collections.Counter(map(outcome, timed)), max(over_faster(t).median for t in timed)
    return (f"{counts['met']} of {len(timed) - counts['undecided']} rows told apart, the longest {worst:.2f}; "
            f"{counts['undecided']} undecided", found[1])


def lot_bar(results: Results, ranks: int):
    rows = lot(results, ranks)
    timed = timed_lot(rows)
    counts = collections.Counter(map(outcome, timed))
    decided = len(timed) - counts["undecided"]
    if not decided:
        return None
    ratios = [over_faster(t).median for t in timed]
    return (f"{counts['met']} of {decided}, {counts['within']} within; {counts['undecided']} undecided; mean "
            f"{statistics.mean(ratios):.2f}, nine in ten at most {quantile(ratios, 0.9):.2f}, worst {max(ratios):.2f}; "
            f"{draws(rows)}", counts["met"] >= 0.99 * decided)
