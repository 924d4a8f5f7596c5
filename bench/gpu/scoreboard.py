"""The scoreboard: what was asked, and the newest figures of it on one, two and four GPUs."""

import collections
import statistics

import contest_tables as contests
import decode_tables as decoding
import expert_bars as experts
import user_tables as user
import verdicts
from kernel_tables import attention_key, loops
from lot_tables import lot
from rank_tables import gathering_hidden
from results import (
    Interval, Results, apart, geometric_mean, hidden, interval, median, on_same_cards, quantile, ratio, rounds,
    shape_key, spread, table,
)
from routing_tables import routed_hidden
from use_tables import over_cpp

# `measure(results, GPUs)` gives (what the cell says, whether the bar is met, None where it is not about so many GPUs),
# or None where there is no measurement. `whole(results)` gives the same of two and four GPUs together where that is
# what was asked: cells by GPUs are information then.
Bar = collections.namedtuple("Bar", "what asked page measure gpus whole", defaults=[(2, 4), None])

LONG = 4096  # rows from which on products are asked to hide what they can
MB = 1 << 20


def gemm(kind: str):
    def measure(results: Results, _ranks: int):
        rows = results.rows([kind], "gemm", lambda r: (r.get("label"), r["m"], r["n"], r["k"])).values()
        ratios = [ratio(row["eager"]["theirs_ms"], row["eager"]["ours_ms"]).median for row, _ in rows if "eager" in row]
        if not ratios:
            return None
        mean, least = geometric_mean(ratios), min(ratios)
        return f"{mean:.3f}, least {least:.3f}", mean >= 0.98 and least >= 0.93
    return measure


def fp8_key(row: dict) -> tuple:
    return row["scaling"], row["m"], row["n"], row["k"]


def fp8_rows(results: Results, _ranks: int):
    rows = results.rows(["fp8-pair"], "fp8_pair", fp8_key).values()
    ratios = [ratio(row["graph"]["scaled_mm"], row["graph"]["ours"]).median for row, _ in rows
              if row["scaling"] == "row-wise" and "scaled_mm" in row.get("graph", {})]
    return (spread(ratios, 3), min(ratios) >= 0.98) if ratios else None


def fp8_rows_of_cublaslt(results: Results, _ranks: int):
    rows = results.rows(["fp8"], "gemm_fp8", fp8_key).values()
    ratios = [ratio(row["theirs_ms"], row["ours_ms"]).median for row, _ in rows
              if row["scaling"] == "row-wise" and row.get("theirs_ms")]
    return (spread(ratios, 3), min(ratios) >= 0.98) if ratios else None


def fp8_blocks(results: Results, _ranks: int):
    row, _ = results.rows(["fp8"], "gemm_fp8", fp8_key).get(("block", 4096, 7168, 16384), ({}, None))
    if not row.get("ours_ms"):
        return None
    tflops = 2e-9 * row["m"] * row["n"] * row["k"] / median(row["ours_ms"])
    return f"{tflops:.0f} TFLOP/s", tflops >= 1200


def attention(head: int, bar: float):
    def measure(results: Results, _ranks: int):
        rows = results.rows(["attention-pair"], "attention_pair", attention_key).values()
        ratios = [ratio(row["cudnn"], row["ours"]) for row, _ in rows if row["head_dim"] == head]
        return verdicts.ratios_met(ratios, lambda r: verdicts.at_least(r, bar))
    return measure


def overlap_rows(results: Results, ranks: int, ops: tuple) -> list:
    """(row, run) of each product that was timed."""
    rows = results.rows(["overlap"], "overlap", shape_key, ranks, lambda row: row["op"] in ops and "error" not in row)
    return list(rows.values())


def beside_pytorch(results: Results, ranks: int, ops: tuple) -> list:
    """(ours, PyTorch's of another run) of products that both have on the same cards."""
    theirs = results.rows(["overlap-torch"], "overlap", shape_key, ranks)
    pairs = [(row, on_same_cards(theirs, shape_key(row), run)) for row, run in overlap_rows(results, ranks, ops)]
    return [(row, other) for row, other in pairs if other]


def e_overlap(op: str):
    def measure(results: Results, ranks: int):
        parts = [hidden(row["eager"]).median for row, _ in overlap_rows(results, ranks, (op,))
                 if row["m"] >= LONG and "eager" in row]
        if not parts:
            return None
        return (f"{statistics.mean(parts):.2f}, least {min(parts):.2f}",
                statistics.mean(parts) >= 0.90 and min(parts) >= 0.75)
    return measure


def than_sequence(results: Results, ranks: int):
    rows = [row["eager"] for row, _ in overlap_rows(results, ranks, ("ag_gemm", "gemm_rs")) if row["m"] >= LONG]
    return verdicts.ratios_met([ratio(t["sequence_ms"], t["ours_ms"]) for t in rows], verdicts.faster)


def than_async_tp(results: Results, ranks: int):
    """Calls of ordinary tensors from Python, in turn in one process."""
    ops = ("ag_gemm", "gemm_rs")
    rows = sum(row["m"] >= LONG and "eager" in row for row, _ in overlap_rows(results, ranks, ops))
    ratios = [ratio(t["async_tp_ms"], t["staged_ms"])
              for row, _ in results.rows(["pytorch"], "products", shape_key, ranks).values()
              if row["op"] in ops and row["m"] >= LONG and "async_tp_ms" in (t := row["eager"])]
    if not ratios:
        return None
    found, left = [verdicts.faster(r) for r in ratios], max(rows - len(ratios), 0)
    met = None if left and False not in found else verdicts.of_all(found)  # asked of every row
    return (f"{spread([r.median for r in ratios])}x; {verdicts.counted(found, len(found) + left)}"
            + (f", {left} not timed" if left else ""), met)


def gemm_ar(results: Results, ranks: int):
    bars = {1024: 1.45, 4096: 1.25, 8192: 1.22}
    found = {row["m"]: ratio(row["graph"]["sequence_ms"], row["graph"]["ours_ms"])
             for row, _ in overlap_rows(results, ranks, ("gemm_ar",)) if row["m"] in bars and "graph" in row}
    if not found:
        return None
    return ", ".join(f"{found[m].median:.2f}x" if m in found else "-" for m in bars), verdicts.of_all(
        [m in found and verdicts.at_least(found[m], bar) for m, bar in bars.items()])


def gemm_ar_few_rows(results: Results, ranks: int):
    bars = {1: 34, 64: 40, 256: 66}
    found = {row["m"]: interval([1e3 * ms for ms in row["graph"]["ours_ms"]])
             for row, _ in overlap_rows(results, ranks, ("gemm_ar",)) if row["m"] in bars and "graph" in row}
    if len(found) < len(bars):
        return None
    return (", ".join(f"{found[m].median:.1f}" for m in bars) + " us",
            verdicts.of_all([verdicts.at_most(found[m], us) for m, us in bars.items()]))


def gemm_ar_pytorch(results: Results, ranks: int):
    ratios = {}
    for row, theirs in beside_pytorch(results, ranks, ("gemm_ar",)):
        t = theirs.get("graph", {})
        ways = [interval(t[way]) for way in ("one_shot_ms", "two_shot_ms") if way in t]
        if ways and "graph" in row:
            ratios[row["m"]] = apart(min(ways), interval(row["graph"]["ours_ms"]))
    return verdicts.ratios_met(list(ratios.values()), verdicts.faster)


def sweep(results: Results, ranks: int):
    rows = [row for row, _ in results.rows(["sweep"], "sweep", shape_key, ranks).values() if "error" not in row]
    highs = [ratio(row["fused_ms"], min((row["nccl_ms"], row["own_ms"]), key=median)).high for row in rows
             if row["winner"] == "fused"]
    return (f"at most {max(highs):.3f}; fused in {len(highs)} of {len(rows)}",
            max(highs) <= 1.02) if highs else None


def collective_us(results: Results, ranks: int, kinds: str, size: str) -> list:
    """[(us, NCCL's over ours)] in graphs, of the collectives that begin with one of `kinds`, fastest first."""
    rows = results.rows(["collectives"], "collectives", lambda r: r["op"], ranks)
    found = [row["graph"] for op, (row, _) in rows.items()
             if op.replace("_", " ").startswith(kinds) and op.endswith(" " + size) and "graph" in row]
    return sorted((median(t["ours_ms"]) * 1e3, ratio(t["nccl_ms"], t["ours_ms"]).median) for t in found)


def all_reduce(results: Results, ranks: int):
    sizes = {"4 KB": 5, "16 KB": 5, "512 KB": 8.5, "1 MB": 11}
    best = {size: collective_us(results, ranks, "all reduce", size) for size in [*sizes, "64 MB"]}
    if not all(best.values()):
        return None
    met = [best[size][0][0] <= bar for size, bar in sizes.items()] + [best["64 MB"][0][1] >= 1]
    us = [best[size][0][0] for size in sizes]
    return (f"{us[0]:.1f} and {us[1]:.1f}, {us[2]:.1f}, {us[3]:.1f} us; {best['64 MB'][0][1]:.2f}x at 64 MB", all(met))


def moved(size: str, bar: float):
    def measure(results: Results, ranks: int):
        found = {name: collective_us(results, ranks, name, size)
                 for name in ("all gather", "reduce scatter", "all to all")}
        if not all(found.values()):
            return None
        ratios = [f[0][1] for f in found.values()]
        return ", ".join(f"{r:.2f}x" for r in ratios), min(ratios) >= bar
    return measure


def all_reduce_norm(results: Results, ranks: int):
    us = [collective_us(results, ranks, "all reduce norm", rows + "x8192") for rows in ("1", "16", "64")]
    if not all(us):
        return None
    one, few, many = (u[0][0] for u in us)
    return f"{one:.1f} and {few:.1f}, {many:.1f} us", max(one, few) <= 9 and many <= 13


def measured_points(results: Results, ranks: int) -> list:
    """Points that were predicted beforehand, of the newest run that has `ranks` GPUs."""
    runs = [run for run in results.runs if run.kind == "points" and
            any(point["ranks"] == ranks for point in run.data["points"])]
    found = [p for run in runs[-1:] for p in run.data["points"] if p["ranks"] == ranks and p.get("measured_ms", 0) > 0]
    if runs:
        results.take(runs[-1], "points", found)
    return found


def of_points(judge):
    """(the measure of a number of GPUs, of whom nothing is asked; the judgement of two and four together)"""
    def measure(results: Results, ranks: int):
        found = judge(measured_points(results, ranks))
        return (found[0], None) if found else None
    return measure, lambda results: judge([p for ranks in (2, 4) for p in measured_points(results, ranks)])


def prediction(points: list):
    errors = [abs(p["predicted_ms"] / p["measured_ms"] - 1) for p in points]
    if not errors:
        return None
    mean, most = statistics.mean(errors), quantile(errors, 0.9)
    return (f"{100 * mean:.0f} %, {100 * most:.0f} % of {len(errors)} points",
            mean <= 0.10 and most <= 0.20 if len(errors) >= 200 else None)


def choosing(points: list):
    shapes = collections.defaultdict(list)
    for p in points:
        shapes[p["op"], p["ranks"], p["m"], p["n"], p["k"]].append((p["predicted_ms"], p["measured_ms"]))
    losses, of_first = [], []
    for (_, _, rows, _, _), configs in shapes.items():
        if len(configs) < 2:
            continue
        fastest, first = min(ms for _, ms in configs), min(configs, key=lambda config: config[0])
        # The default, which comes first, unless another is predicted to take less (part_to_be_chosen() of choose.cc).
        surely = first[0] < (0.9 if rows <= 256 else 0.95) * configs[0][0]
        losses.append((first if surely else configs[0])[1] / fastest - 1)
        of_first.append(first[1] / fastest - 1)
    return (f"{100 * statistics.mean(losses):.1f} % over {len(losses)} shapes, the first in prediction "
            f"{100 * statistics.mean(of_first):.1f} %", statistics.mean(losses) <= 0.03) if losses else None


def watchdog(results: Results, ranks: int):
    rows = results.rows(["watchdog"], "watchdog", lambda r: r["case"], ranks).values()
    costs = [Interval(*(100 * (x - 1) for x in ratio(row["with_ms"], row["without_ms"]))) for row, _ in rows]
    if not costs:
        return None
    met = [verdicts.at_most(cost, 1) for cost in costs]
    most, end = max(cost.median for cost in costs), max(cost.high for cost in costs)
    return f"at most {most:.1f} %, upper end {end:.1f} %; {verdicts.counted(met)}", verdicts.of_all(met)


def startup(results: Results, ranks: int):
    rows = [row for row, _ in results.rows(["startup"], "startup", lambda r: r["op"], ranks).values()
            if "error" not in row]
    if not rows:
        return None
    cold, warm = [row["cold_s"] for row in rows], [max(row["warm_ms"]) for row in rows]
    new = max(max(row["new_m_ms"]) for row in rows)
    return (f"{spread(cold, 1)} s, {max(warm):.0f} ms, {new:.1f} ms",
            max(cold) < 3 and max(warm) < 50 and new < 10)


def contested(kind: str, field: str, key, name: str, baselines: tuple, more=lambda rows: ""):
    """The fastest baseline's time over that of a contestant (contest_tables.py); `more(rows)` stands behind it."""
    def measure(results: Results, _ranks: int):
        rows = [row for row, _ in results.rows([kind], field, key).values()]
        ratios = [r for row in rows if (r := contests.against(row, name, baselines))]
        met = [verdicts.at_least(r, 1) for r in ratios]
        return (f"{spread([r.median for r in ratios])}x; {verdicts.counted(met, len(rows))}{more(rows)}",
                verdicts.of_all(met + [False] * (len(rows) - len(met)))) if ratios else None
    return measure


def grouped(name: str, baseline: str):
    def rate(rows: list) -> str:
        return "; " + spread([contests.grouped_tflops(row, median(contests.of_row(row)[name])) for row in rows
                              if name in contests.of_row(row)], 0) + " TFLOP/s"
    return contested("experts-pair", "grouped", contests.grouped_key, name, (baseline,), rate)


def paged_bandwidth(results: Results, _ranks: int):
    rows = results.rows(["sequences-pair"], "paged", contests.paged_key).values()
    parts = [contests.part_of_copy(row, run, median(contests.of_row(row)["decode"])) for row, run in rows
             if row["batch"] * row["tokens"] >= 262144 and "decode" in contests.of_row(row)]
    return (spread(parts), min(parts) >= 0.80) if parts else None


def newest(results: Results, ranks: int, field: str):
    found = [run for run in results.runs if run.kind == "pytorch" and run.ranks == ranks and field in run.data]
    for run in found[-1:]:
        results.take(run, field, [run.data[field]])
    return found[-1].data[field] if found else None


def python_calls(results: Results, ranks: int):
    us = newest(results, ranks, "overhead_us")
    if not us:
        return None
    def over(name: str, *less: str):
        beside = [rounds(us[other]) for other in ("launch alone", *less)]
        return interval([t - sum(others) for t, *others in zip(rounds(us[name]), *beside, strict=True)])
    likeness = [name for name in ("torch.empty_like(x)",) if name in us]  # what PyTorch's makes a result by
    out, op = over("all_reduce(x, out=out)"), over("torch.ops.stretto.all_reduce(x)")
    made = over("all_reduce(x)", *likeness)
    beside = f" + {median(us[likeness[0]]):.1f}" if likeness else ""
    return (f"{out.median:.1f}, {made.median:.1f}{beside}, {op.median:.1f} us",
            verdicts.of_all([verdicts.at_most(out, 5), verdicts.at_most(made, 5), verdicts.at_most(op, 15)]))


def python_start(results: Results, ranks: int):
    seconds = newest(results, ranks, "startup_s")
    return (f"{seconds['import'] + seconds['init']:.2f} s",
            seconds["import"] + seconds["init"] < 2) if seconds else None


def python_and_cpp(form: str):
    def measure(results: Results, ranks: int):
        rows = results.rows(["pytorch-pair"], "pairs", shape_key, ranks).values()
        found = [over_cpp(row, form) for row, _ in rows]
        if not found:
            return None
        met = [verdicts.at_most(r, 1.02) for r in found]
        return f"{spread([r.median for r in found])}; {verdicts.counted(met)}", verdicts.of_all(met)
    return measure


def mlp(results: Results, ranks: int):
    t = newest(results, ranks, "mlp")
    if not t:
        return None
    faster = ratio(t["sequence_ms"], t["ours_ms"]).median
    return f"{faster:.2f}x", faster >= 1.15 if ranks == 4 else None  # of which it is asked


def sequence_rows(results: Results, ranks: int, kind: str, least: int) -> dict:
    """{tokens: row} of the attention over ranks that is called `kind`."""
    rows = results.rows(["attention-ranks"], "attention_ranks", lambda r: r["label"], ranks)
    found = {int(label.rpartition("=")[2]): row for label, (row, _) in rows.items() if label.startswith(kind + " ")}
    return {n: row for n, row in found.items() if n >= least and "all_ms" in row}


def ring(results: Results, ranks: int):
    rows = sequence_rows(results, ranks, "ring", 32768).values()
    parts = [median(row["one_ms"]) / (ranks * median(row["all_ms"])) for row in rows]
    return (spread(parts), min(parts) >= 0.90) if parts else None


def gathered(results: Results, ranks: int):
    parts = [gathering_hidden(row).median
             for row in sequence_rows(results, ranks, "gathered", 32768).values() if "without_ms" in row]
    return (spread(parts), min(parts) >= 0.90) if parts else None


def flash_decode(results: Results, ranks: int):
    copies = decoding.decode_runs(results)
    rows = sequence_rows(results, ranks, "decode", 262144)
    if not rows or 1 not in copies:
        return None
    bytes_read = {n: row["bytes"] for gpus in (2, 4) for n, row in sequence_rows(results, gpus, "decode", 0).items()
                  if row.get("bytes")}
    parts = [bytes_read[n] / median(row["all_ms"]) * 1e3 / (ranks * copies[1]["copy_bytes_per_s"])
             for n, row in rows.items() if n in bytes_read]
    return (spread(parts), min(parts) >= 0.80) if parts else None


ONE = (1,)
PREDICTION, PREDICTION_OF_ALL = of_points(prediction)
CHOOSING, CHOOSING_OF_ALL = of_points(choosing)
BARS = [
    Bar("GEMM bf16, 37 shapes of TP 4, part of cuBLASLt's speed", "mean 0.98, least 0.93", "gemm", gemm("gemm"), ONE),
    Bar("the same, shapes of TP 2", "mean 0.98, least 0.93", "gemm", gemm("gemm-tp2"), ONE),
    Bar("GEMM fp8, scales of rows, part of `torch._scaled_mm`'s speed", "0.98", "fp8", fp8_rows, ONE),
    Bar("the same, of cuBLASLt", "0.98", "fp8", fp8_rows_of_cublaslt, ONE),
    Bar("GEMM fp8, scales of blocks, 4096 x 7168 x 16384", "1,200 TFLOP/s", "fp8", fp8_blocks, ONE),
    Bar("attention forward, heads of 128, speed over cuDNN's", "1.00", "attention", attention(128, 1.0), ONE),
    Bar("the same, heads of 64", "0.95", "attention", attention(64, 0.95), ONE),
    Bar("attention of packed sequences, causal, heads of 128, speed over cuDNN's and FlashAttention-2's", "1.00",
        "attention",
        contested("sequences-pair", "packed", contests.packed_key, "ours", contests.PYTORCH_ATTENTION), ONE),
    Bar("decoding over pages, speed over PyTorch's over a contiguous cache", "-", "attention",
        contested("sequences-pair", "paged", contests.paged_key, "decode", contests.PYTORCH_ATTENTION), ONE),
    Bar("the same from 256 thousand tokens in all on, part of a copy's bandwidth", "0.80 (of a spread cache)",
        "attention", paged_bandwidth, ONE),
    Bar("grouped products bf16 of three models, speed over `torch._grouped_mm`'s", "-; it had 429 to 724 TFLOP/s",
        "experts", grouped("ours", "grouped_mm"), ONE),
    Bar("the same with masked rows", "-", "experts", grouped("masked", "grouped_mm"), ONE),
    Bar("grouped products e4m3, scales of blocks, over `torch._scaled_grouped_mm`'s, of rows", "-", "experts",
        grouped("fp8", "scaled_grouped_mm"), ONE),
    Bar("routing with its tables, in graphs, speed over PyTorch's", "-", "experts",
        contested("experts-pair", "routing", contests.routing_key, "ours_tables", ("pytorch_tables",)), ONE),
    Bar("eight loops that no operator uses, part of their rooflines", "0.80", "loops", loops, ONE),
    Bar("AG+GEMM from 4096 rows on, part of the communication hidden", "mean 0.90, least 0.75", "overlap",
        e_overlap("ag_gemm")),
    Bar("GEMM+RS from 4096 rows on, part of the communication hidden", "mean 0.90, least 0.75", "overlap",
        e_overlap("gemm_rs")),
    Bar("both, speed over the sequence's", "faster", "overlap", than_sequence),
    Bar("both called from PyTorch, speed over its async-TP", "faster", "pytorch", than_async_tp),
    Bar("GEMM+AR in graphs, 1024, 4096, 8192 rows, speed over the sequence's", "1.45, 1.25, 1.22x, by the interval",
        "gemm_ar", gemm_ar),
    Bar("the same, 1, 64, 256 rows", "34, 40, 66 us, by the interval", "gemm_ar", gemm_ar_few_rows),
    Bar("the same from 1 row on, over PyTorch's symmetric memory", "-", "gemm_ar", gemm_ar_pytorch),
    Bar("any number of rows: time where fused is chosen / faster sequence", "upper end 1.02", "sweep", sweep),
    Bar("the same of what the chooser takes from C++ without measuring, of shapes by lot", "upper end 1.02", "lot",
        lot),
    Bar("all-reduce in graphs: 4 and 16 KB, 512 KB, 1 MB; over NCCL's rate", "5, 8.5, 11 us; 1x at 64 MB",
        "collectives", all_reduce),
    Bar("all-gather, reduce-scatter, all-to-all, 1 MB in graphs, over NCCL's rate", "2x", "collectives",
        moved("1 MB", 2)),
    Bar("the same, 256 MB", "1.1x", "collectives", moved("256 MB", 1.1)),
    Bar("all-reduce + residual + RMSNorm, 1 and 16, 64 rows", "9, 13 us", "collectives", all_reduce_norm),
    Bar("Llama-3-8B served at saturation: tokens a second over transformers' with FlashAttention-2; over one GPU's",
        "3x; 1.7x; 2.8x", "decode", decoding.served_at_saturation, (1, 2, 4)),
    Bar("fused layers of mixtures of experts, speed over the sequence's", "faster", "moe", experts.moe_layers(1, 2)),
    Bar("the same, part of the communication hidden, layer 1 and 2 on average", "0.87", "moe", experts.moe_hidden),
    Bar("the same with 16 routings by lot: skewed, empty, one-sided; and the least", "0.75 and 0.65 on four", "moe",
        routed_hidden),
    Bar("layer 1, the longer of products and collective / ours", "0.90", "moe", experts.moe_of_longest(1)),
    Bar("layer 2, the same", "0.90", "moe", experts.moe_of_longest(2)),
    Bar("both layers in one launch, speed over the sequence's", "faster", "moe", experts.moe_layers(0), (1, 2, 4)),
    Bar("the same from 8,192 tokens on, part of the grouped products' roofline", "0.75", "moe", experts.moe_roofline,
        (1, 2, 4)),
    Bar("the same, speed over PyTorch's grouped products and NCCL", "faster", "whole_layers",
        experts.whole_layers, (1, 2, 4)),
    Bar("layers of spread experts in one launch, speed over the faster of two sequences", "-", "spread_experts",
        experts.ep_layers, (1, 2, 4)),
    Bar("the same from 8,192 tokens on, exchange and sums included, part of the products' roofline", "0.75",
        "spread_experts", experts.ep_roofline, (1, 2, 4)),
    Bar("the same, eager, speed over the faster of two of PyTorch and NCCL", "faster", "spread_experts",
        experts.spread_layers),
    Bar("dispatch (e4m3) + combine (bf16), 128 tokens of a rank", "25 + 40 us on four", "exchange",
        experts.exchange_of_few),
    Bar("dispatch and combine, 4096 tokens of a rank", "300 GB/s on four", "exchange",
        experts.exchange_of_many(("dispatch", "one-hop", "bf16"), ("combine", "one-hop", "bf16"))),
    Bar("dispatch as e4m3, 4096 tokens of a rank", "300 GB/s on four", "exchange",
        experts.exchange_of_many(("dispatch", "one-hop", "e4m3"))),
    Bar("ring attention from 32 thousand tokens on, one GPU's time / GPUs / ours", "0.90", "attention_ranks", ring),
    Bar("attention with keys and values gathered, part hidden", "0.90 from 32 k on", "attention_ranks", gathered),
    Bar("decoding over a spread cache, part of all GPUs' bandwidth", "0.80 from 256 k on", "attention_ranks",
        flash_decode),
    Bar("predicted before it was measured: mean error, 90 % within", "10 %, 20 %; 200 points of two and four together",
        "prediction", PREDICTION, (1, 2, 4), PREDICTION_OF_ALL),
    Bar("choosing by prediction loses", "3 %; two and four together", "prediction", CHOOSING, (1, 2, 4),
        CHOOSING_OF_ALL),
    Bar("watchdog costs", "1 %, by the interval", "runtime", watchdog),
    Bar("cold compile, warm start, new number of rows", "3 s, 50 ms, 10 ms", "runtime", startup),
    Bar("Python over a bare launch: direct with `out=`, without (+ `torch.empty_like`), through torch.library",
        "5, 5, 15 us", "pytorch", python_calls),
    Bar("Python's `import` + `init`", "2 s", "pytorch", python_start),
    Bar("AG+GEMM, GEMM+RS and GEMM+AR from PyTorch in place, time / C++'s", "1.02, by the interval", "pytorch",
        python_and_cpp("in_place")),
    Bar("the same of ordinary tensors, whose result is made", "1.02", "pytorch", python_and_cpp("plain")),
    Bar("host's time to enqueue a call of ordinary tensors; where copy engines take part", "15, 40 us", "first_hour",
        user.host_bar),
    Bar("one eager call of ordinary tensors after a synchronisation, torch.distributed's time / ours", "faster",
        "first_hour", user.single_bar),
    Bar("first call of any operator, empty cache; with what is kept", "4 s; 0.2 s", "first_hour", user.first_bar),
    Bar("the same after `stretto.warm_up`", "0.2 s", "first_hour", user.warmed_bar),
    Bar("what of a first call is ranking and proof", "1 s", "first_hour", user.proofs_bar),
    Bar("collectives of ordinary tensors, 2 bytes to 256 MB, time / NCCL's", "1.02, by the interval", "first_hour",
        user.sizes_bar),
    Bar("uneven exchanges and steps of several calls, eager, speed over torch.distributed's", "0.97", "first_hour",
        user.steps_bar),
    Bar("exchanges whose sizes are on the device, in graphs, speed over NCCL's with its exchange of sizes", "1.5x",
        "first_hour", user.device_sizes_bar),
    Bar("products by lot from 2048 rows on, part of communication hidden, captured: mean, tenth percentile",
        "0.80, 0.60", "first_hour", user.hidden_bar),
    Bar("products by lot of any rows, eager and captured, time / faster of the sequence and async-TP",
        "1.02 in 99 of 100, by the interval", "first_hour", user.lot_bar),
    Bar("MLP block forward and backward, 8192 tokens, over `torch.mm` and NCCL", "1.15x on four", "pytorch", mlp),
]


def machines(runs: set) -> str:
    """What a cell says of them where they are not H200s."""
    on_h100s = sum(run.on_h100s for run in runs)
    return "" if on_h100s == 0 else " (H100s)" if on_h100s == len(runs) else " (in part on H100s)"


# What the first page shows, by the row here: what differs there.
FRONT = {
    "GEMM bf16, 37 shapes of TP 4, part of cuBLASLt's speed": {},
    "attention forward, heads of 128, speed over cuDNN's": {},
    "AG+GEMM from 4096 rows on, part of the communication hidden": {},
    "GEMM+RS from 4096 rows on, part of the communication hidden": {},
    "both, speed over the sequence's": {"what": "both, speed over cuBLASLt and NCCL one after the other"},
    "both called from PyTorch, speed over its async-TP": {},
    "products by lot of any rows, eager and captured, time / faster of the sequence and async-TP": {
        "what": "products with collectives called from PyTorch, eager and captured, shapes drawn by lot: time over the "
                "faster of cuBLASLt with NCCL and async-TP",
        "asked": "at most 1.02 in 99 of 100", "measure": user.front_lot},
    "Llama-3-8B served at saturation: tokens a second over transformers' with FlashAttention-2; over one GPU's": {
        "what": "Llama-3-8B served at saturation, tokens a second: on one GPU over transformers' with "
                "FlashAttention-2, on more over our one GPU's",
        "asked": "3x on one, 1.7x on two, 2.8x on four"},
}


def front_table(results: Results, _ranks: int) -> str:
    shown = [bar._replace(**FRONT[bar.what]) for bar in BARS if bar.what in FRONT]
    assert len(shown) == len(FRONT), "a row of FRONT is not there"
    lines = [row_of(bar, results)[:-1] for bar in shown]
    return table(["what", "asked", "one H200", "two", "four", "met"], lines)


def scoreboard_table(results: Results, _ranks: int) -> str:
    lines = [row_of(bar, results) for bar in BARS]
    return table(["what", "asked", "one H200", "two", "four", "met", "details"], lines)


def row_of(bar, results: Results) -> list:
    cells, met = [], []
    for gpus in (1, 2, 4):
        results.used.clear()
        found = bar.measure(results, gpus) if gpus in bar.gpus else None
        if found:
            found = found[0] + machines(results.used), found[1]
        if found and found[1] is not None:
            met.append(found[1])
        cells.append("" if gpus not in bar.gpus else "-" if not found else
                     f"**{found[0]}**" if found[1] is False else
                     f"{found[0]} (within)" if found[1] == verdicts.WITHIN else found[0])
    verdict = verdicts.of_gpus(met)
    whole = bar.whole(results) if bar.whole else None
    if whole and whole[1] is not None:
        verdict = f"yes: {whole[0]}" if whole[1] else f"no: **{whole[0]}**"
    return [bar.what, bar.asked, *cells, verdict, f"[{bar.page}]({bar.page}.md)"]
