"""Bars of the scoreboard about mixtures of experts."""

import statistics

from rank_tables import SPREAD_IN_PYTORCH, ep_moe_rows, fastest_of, moe_rows, spread_layer_rows, whole_layer_rows
from results import Results, hidden, median, ratio, spread


def won(ratios: list):
    """Ratios of theirs to ours, as a cell, and whether ours is faster in all; None without any."""
    if not ratios:
        return None
    faster = sum(r.low > 1 for r in ratios)
    return f"{spread([r.median for r in ratios])}x; {faster} of {len(ratios)} rows", faster == len(ratios)


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


def moe_roofline(results: Results, ranks: int):
    rows = moe_rows(results, ranks, lambda row: row["layer"] == 0).values()
    parts = []
    for row, _ in rows:
        asked = row["m"] >= 8192  # fewer tokens, which leave experts out, are not asked about
        if asked and row["model"] in WHOLE_MODELS and "eager" in row:
            hidden_size, ffn, experts = WHOLE_MODELS[row["model"]]
            weights = 3 * hidden_size * ffn // ranks * experts * 2
            roof_ms = 1e3 * max(row["flops"] / ROOF_FLOPS, weights / ROOF_BYTES)
            parts.append(roof_ms / median(row["eager"]["ours_ms"]))
    return (spread(parts), min(parts) >= 0.75) if parts else None


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


def exchange(tokens: int):
    def measure(results: Results, ranks: int):
        rows = results.rows(["exchange"], "exchange", lambda r: (r["op"], r["way"], r["dtype"], r["tokens"]), ranks)
        kinds = (("dispatch", "e4m3"), ("combine", "bf16")) if tokens == 128 else (
            ("dispatch", "bf16"), ("combine", "bf16"))
        found = [rows[op, "one-hop", dtype, tokens][0] for op, dtype in kinds if (op, "one-hop", dtype, tokens) in rows]
        if len(found) < 2 or any("graph" not in row for row in found):
            return None
        us = [median(row["graph"]["ours_ms"]) * 1e3 for row in found]
        rates = [row["bytes"] / t * 1e-3 for row, t in zip(found, us, strict=True)]
        if tokens == 128:
            text, met = f"{us[0]:.0f} + {us[1]:.0f} us", us[0] <= 25 and us[1] <= 40
        else:
            text, met = f"{rates[0]:.0f} and {rates[1]:.0f} GB/s", min(rates) >= 300
        return text, met if ranks == 4 else None
    return measure
