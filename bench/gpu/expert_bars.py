"""Bars of the scoreboard about mixtures of experts."""

import statistics

import verdicts
from rank_tables import SPREAD_IN_PYTORCH, ep_moe_rows, fastest_of, moe_rows, spread_layer_rows, whole_layer_rows
from results import Results, hidden, median, ratio, spread


def won(ratios: list):
    """Ratios of theirs to ours, as a cell, and whether ours is faster in all; None without any."""
    return verdicts.ratios_met(ratios, verdicts.faster)


def timed_layers(results: Results, ranks: int, layers: tuple, with_all_reduce: bool = False) -> list:
    def wanted(row: dict) -> bool:
        return row["layer"] in layers and "eager" in row and (with_all_reduce or not row.get("all_reduce"))
    return [row["eager"] for row, _ in moe_rows(results, ranks, wanted).values()]


def moe_layers(*layers: int):
    def measure(results: Results, ranks: int):
        return won([ratio(t["sequence_ms"], t["ours_ms"]) for t in timed_layers(results, ranks, layers, True)])
    return measure


# Hidden, inner columns and experts of the models whose layers run in one launch (moe_shapes.cc), and what the roofline
# of loops.h takes: our GEMM of 8192^3, copies of gigabytes.
WHOLE_MODELS = {"32-experts": (4096, 8192, 32), "128-experts": (4096, 1536, 128)}
ROOF_FLOPS, ROOF_BYTES = 700e12, 4.25e12


def part_of_roofline(rows: dict, ranks: int, mode: str):
    parts = []
    for row, _ in rows.values():
        asked = row["m"] >= 8192  # fewer tokens, which leave experts out, are not asked about
        if asked and row["model"] in WHOLE_MODELS and mode in row:
            hidden_size, ffn, experts = WHOLE_MODELS[row["model"]]
            weights = 3 * hidden_size * ffn * experts // ranks * 2  # parts of all experts, or whole ones of a part
            roof_ms = 1e3 * max(row["flops"] / ROOF_FLOPS, weights / ROOF_BYTES)
            parts.append(roof_ms / median(row[mode]["ours_ms"]))
    return (spread(parts), min(parts) >= 0.75) if parts else None


def moe_roofline(results: Results, ranks: int):
    return part_of_roofline(moe_rows(results, ranks, lambda row: row["layer"] == 0), ranks, "eager")


def ep_roofline(results: Results, ranks: int):
    return part_of_roofline(ep_moe_rows(results, ranks), ranks, "graph")


def moe_hidden(results: Results, ranks: int):
    means = [statistics.mean(hidden(t).median for t in rows) for layer in (1, 2)
             if (rows := timed_layers(results, ranks, (layer,)))]
    return (" and ".join(f"{mean:.2f}" for mean in means), min(means) >= 0.87) if means else None


def moe_of_longest(layer: int):
    """The longer of the products and the collective by themselves, over both in one launch."""
    def measure(results: Results, ranks: int):
        parts = [max(median(t["gemm_ms"]), median(t["nccl_ms"])) / median(t["ours_ms"])
                 for t in timed_layers(results, ranks, (layer,))]
        met = sum(part >= 0.9 for part in parts)
        return (f"{spread(parts)}; {met} of {len(parts)} rows", met == len(parts)) if parts else None
    return measure


def whole_layers(results: Results, ranks: int):
    rows = whole_layer_rows(results, ranks).values()
    return won([ratio(row["graph"]["sequence_ms"], row["graph"]["in one launch_ms"]) for row, _ in rows])


def ep_layers(results: Results, ranks: int):
    rows = ep_moe_rows(results, ranks).values()
    return won([ratio(row["graph"]["sequence_ms"], row["graph"]["ours_ms"]) for row, _ in rows if "graph" in row])


def spread_layers(results: Results, ranks: int):
    rows = [row["eager"] for row, _ in spread_layer_rows(results, ranks).values()]
    return won([ratio(fastest_of(t, SPREAD_IN_PYTORCH), t["in one launch_ms"]) for t in rows])


def exchange_rows(results: Results, ranks: int, *kinds: tuple) -> list:
    """Of (operator, way, type, tokens) what was timed, or nothing where one is missing."""
    def key(row: dict) -> tuple:
        return row["op"], row["way"], row["dtype"], row["tokens"]

    rows = results.rows(["exchange"], "exchange", key, ranks, lambda row: key(row) in kinds)
    return [rows[kind][0] for kind in kinds] if all("graph" in rows.get(kind, [{}])[0] for kind in kinds) else []


def exchange_of_few(results: Results, ranks: int):
    us = [median(row["graph"]["ours_ms"]) * 1e3 for row in exchange_rows(
        results, ranks, ("dispatch", "one-hop", "e4m3", 128), ("combine", "one-hop", "bf16", 128))]
    if not us:
        return None
    return f"{us[0]:.0f} + {us[1]:.0f} us", us[0] <= 25 and us[1] <= 40 if ranks == 4 else None


def exchange_of_many(*kinds: tuple):
    def measure(results: Results, ranks: int):
        rates = [row["bytes"] / median(row["graph"]["ours_ms"]) * 1e-6
                 for row in exchange_rows(results, ranks, *((*kind, 4096) for kind in kinds))]
        if not rates:
            return None
        return ", ".join(f"{rate:.0f}" for rate in rates) + " GB/s", min(rates) >= 300 if ranks == 4 else None
    return measure
