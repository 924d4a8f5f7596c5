"""Tables and the bar of tables.py about decode. Steps of many sequences and the choice of tokens are gpu_batch's; rows
of the kind "decode" are of a step of one sequence that nothing runs any more, as docs/performance/decode.md says."""

from results import Interval, Results, apart, failure, interval, sources, table, times


def samples(row: dict, name: str) -> Interval | None:
    """Milliseconds a token: a median with its interval, or, of files before 2026-11-27, which have no samples, the
    median alone; None where it was not measured."""
    kept = row.get(f"{name}_samples_ms")
    if kept:
        return interval(kept)
    return Interval(row[f"{name}_ms"], None, None) if row.get(f"{name}_ms") else None


def fastest(row: dict) -> Interval:
    return min(filter(None, (samples(row, "replay"), samples(row, "early"))), key=lambda ms: ms.median)


def part_of_copy(row: dict) -> Interval:
    """Of what a copy moves, where reading the weights is all that takes time."""
    ms, reading = fastest(row), row["bytes_read"] / row["copy_bytes_per_s"] * 1e3
    return Interval(*(reading / bound if bound else None for bound in (ms.median, ms.high, ms.low)))


def shown(value: Interval | None) -> str:
    return "-" if value is None else times(value) if value.low else f"{value.median:.2f}"


def take(results: Results, found: dict):
    for row, run in found.values():
        results.take(run, "runs", [row])


def decode_table(results: Results, _ranks: int) -> str:
    runs = {}
    for run in results.runs:
        if run.kind == "decode":
            for row in run.data.get("runs", []):
                if "error" in row:
                    continue
                key = (run.data.get("model", ""), run.data.get("dtype", ""), row["tp"])
                runs[key] = (row, run)
    take(results, runs)
    lines, alone = [], {}
    for (model, dtype, tp), (row, _) in sorted(runs.items()):
        best = fastest(row)
        if tp == 1:
            alone[model, dtype] = best
        one = alone.get((model, dtype))
        lines.append([f"{model} {dtype}", tp, *(shown(samples(row, name)) for name in ("eager", "replay", "early")),
                      f"{1e3 / best.median:.0f}", shown(part_of_copy(row)),
                      "-" if not one else "1.00" if tp == 1 else shown(apart(one, best))])
    return table(["model", "GPUs", "ms a token, launch by launch", "replayed", "and launches that start early",
                  "tokens/s", "of what a copy moves", "faster than one GPU"], lines) + sources(runs)


def batch_table(results: Results, _ranks: int) -> str:
    """Of steps of many sequences of 1,024 tokens: the newest run's ways of attention, with weights and a cache of the
    activations' dtype, a row for each number of rows."""
    found = {}
    for run in results.runs:
        if run.kind != "batch" or run.data.get("context", 1024) != 1024 or run.data.get("weights", "auto") != "auto":
            continue
        timed = [row for row in run.data.get("runs", []) if row.get("steps") and "kv_dtype" not in row]
        if timed:
            found = {row["attention"]: (row, run) for row in timed}
    take(results, found)
    lines = {}
    by_gpu = {"greedy_ms": "with the GPU, ms", "all_ms": "with all options, ms"}  # newer runs have them
    by_gpu = {key: text for key, text in by_gpu.items() if any(key in s for row, _ in found.values()
                                                              for s in row["steps"])}
    for attention in sorted(found):
        for step in found[attention][0]["steps"]:
            ms = interval(step["samples_ms"])
            line = lines.setdefault(step["rows"], [step["rows"], f"{step['bound_ms']:.2f}"])
            line += [shown(ms), f"{step['bound_ms'] / ms.median:.2f}", f"{step['host_ms']:.1f}",
                     *(f"{step[key]:.2f}" if key in step else "-" for key in by_gpu)]
    columns = [text for name in sorted(found)
               for text in (f"{name}, ms", "of the bound", "with the host choosing, ms", *by_gpu.values())]
    return table(["rows", "bound, ms", *columns], [lines[rows] for rows in sorted(lines)]) + sources(found)


def long_contexts_table(results: Results, _ranks: int) -> str:
    """Of the same steps with longer contexts, of some layers: of each context the newest run, a column for each of both
    ways of attention and how much longer the first one takes."""
    found = {}
    for run in results.runs:
        context = run.data.get("context", 1024)
        if run.kind != "batch" or context <= 1024 or run.data.get("weights", "auto") != "auto":
            continue
        for row in run.data.get("runs", []):
            if row.get("steps") and "kv_dtype" not in row and "experts" not in row:
                found[context, row["attention"]] = row, run
    take(results, found)
    contexts = sorted({context for context, _ in found})
    lines = {}
    for context in contexts:
        (served, run), (fastest, _) = (found[context, way] for way in ("as served", "paged_decode"))
        for step, other in zip(served["steps"], fastest["steps"]):
            ms, least = interval(step["samples_ms"]), interval(other["samples_ms"])
            lines.setdefault(step["rows"], [step["rows"]])
            lines[step["rows"]] += [shown(ms), shown(least), f"{ms.median / least.median:.2f}"]
    columns = [text for context in contexts for text in (f"{context} tokens, ms", "fastest order, ms", "times as long")]
    return table(["rows", *columns], [lines[rows] for rows in sorted(lines)]) + sources(found)


def experts_factor_table(results: Results, _ranks: int) -> str:
    """Steps with experts, of the newest run that timed both left factors: rows in all steps, and weights where an
    expert has few rows. A run times each several times; their samples are taken together."""
    found = {}
    for run in results.runs:
        rows = run.data.get("runs", []) if run.kind == "batch" else []
        if any(row.get("experts") == "few" for row in rows):
            found = {i: (row, run) for i, row in enumerate(rows) if row.get("experts", "rows") in ("rows", "few")}
    take(results, found)
    times_of = {}
    for row, _ in found.values():
        for step in row["steps"]:
            of_rows = times_of.setdefault(step["rows"], {"rows": [], "few": []})
            of_rows[row.get("experts", "rows")] += step["samples_ms"]
    lines = []
    for count, of in sorted(times_of.items()):
        rows, few = interval(of["rows"]), interval(of["few"])
        lines.append([count, shown(rows), shown(few), f"{rows.median / few.median:.2f}"])
    return table(["rows", "rows on the left, ms", "weights, ms", "times as fast"], lines) + sources(found)


def sampling_table(results: Results, _ranks: int) -> str:
    """The choice of tokens: a row for each way of sampling and number of rows, as they were measured."""
    found = results.rows(["sampling"], "choices", lambda row: (row["kind"], row["rows"]))
    asked = {("greedy", 256): 60, ("all", 256): 400}
    lines = []
    for key, (row, _) in found.items():
        us, call = interval(row["us"]), interval(row["call_us"])
        limit = asked.get(key)
        text = f"{us.median:.1f} [{us.low:.1f}, {us.high:.1f}]"
        lines.append([row["kind"], row["rows"], f"{row['bound_us']:.1f}",
                      f"**{text}**" if limit and us.median > limit else text, limit or "", f"{call.median:.0f}",
                      row["wrong"] or "none"])
    return table(["sampling", "rows", "logits read once, us", "the launch, us", "asked", "with copies and the host, us",
                  "other tokens than the definition's"], lines) + sources(found)


def decode_runs(results: Results) -> dict:
    """{GPUs: the newest row of Llama-3-8B in bf16}"""
    found = {}
    for run in results.runs:
        if run.kind == "decode" and run.data.get("model") == "llama-3-8b" and run.data.get("dtype") == "bf16":
            found.update({row["tp"]: (row, run) for row in run.data["runs"] if "error" not in row})
    take(results, found)
    return {tp: row for tp, (row, _) in found.items()}


ATTENTIONS = {"sdpa": "its SDPA", "flash": "PyTorch's FlashAttention-2"}
TIMES_TRANSFORMERS = 3  # asked of output tokens a second


def served_row(name: str, row: dict, ours: dict | None = None) -> list:
    """Where `ours` is given the row is of another engine, and says how many times as many tokens ours has."""
    if "error" in row:
        return [name, failure(row), *[""] * 6]
    times_theirs = ""
    if ours:
        ratio = ours["output_tokens_per_second"] / row["output_tokens_per_second"]
        times_theirs = f"{ratio:.2f}" if ratio >= TIMES_TRANSFORMERS else f"**{ratio:.2f}**"
    return [name, f"{row['output_tokens_per_second']:,.0f}", f"{row['ttft_ms']['p50']:,.1f}",
            f"{row['ttft_ms']['p99']:,.1f}", f"{row['tpot_ms']['p50']:.2f}", f"{row['tpot_ms']['p99']:.2f}",
            "-" if row["gpu_busy"] is None else f"{row['gpu_busy']:.0f} %", times_theirs]


def is_served(run, model: str) -> bool:
    return run.kind == "served" and run.data.get("model", "llama-3-8b") == model


def served_at_saturation(results: Results, ranks: int):
    """Of the scoreboard: over transformers with FlashAttention-2 on one GPU, over one GPU's on several."""
    found, theirs = {}, None
    for run in results.runs:
        if not is_served(run, "llama-3-8b"):
            continue
        for row in run.data.get("runs", []):
            if row["load"] == "saturation":
                found[run.data["tp"]] = (row, run)
        for row in run.data.get("beside", []):
            if (row["load"], row["attention"]) == ("saturation", "flash") and "error" not in row:
                theirs = (row, run)
    other = theirs if ranks == 1 else found.get(1)
    if ranks not in found or other is None:
        return None
    take(results, {0: found[ranks], 1: other} if ranks != 1 else {0: found[ranks]})
    if ranks == 1:
        results.take(other[1], "beside", [other[0]])
    rate = found[ranks][0]["output_tokens_per_second"]
    ratio = rate / other[0]["output_tokens_per_second"]
    return f"{ratio:.2f}x; {rate:,.0f} tokens/s", ratio >= {1: TIMES_TRANSFORMERS, 2: 1.7, 4: 2.8}[ranks]


def served_experts_table(results: Results, ranks: int) -> str:
    """Loads of a server of a model of experts: by GPUs, and by the groups over which experts are spread."""
    found = {}
    for run in results.runs:
        if is_served(run, "qwen3-30b-a3b"):
            way = run.data["tp"], run.data["ep"]
            found = {key: at for key, at in found.items() if key[:2] != way}
            found |= {(*way, row["load"]): (row, run) for row in run.data.get("runs", [])}
    take(results, found)
    by_way = sorted(found.items(), key=lambda at: at[0][:2])
    lines = [[str(tp), str(ep), *served_row(load, row)[:-1]] for (tp, ep, load), (row, _) in by_way]
    columns = ["GPUs", "`--ep`", "load", "tokens/s", "TTFT p50, ms", "p99", "TPOT p50, ms", "p99", "GPU busy"]
    return table(columns, lines) + sources(found)


def served_table(results: Results, ranks: int) -> str:
    """Loads of a server of the newest run, and of other engines that were measured beside it."""
    found, beside = {}, {}
    for run in results.runs:
        if is_served(run, "llama-3-8b") and run.data.get("tp") == max(ranks, 1):
            found = {row["load"]: (row, run) for row in run.data.get("runs", [])}
            beside = {(row["load"], row["attention"]): (row, run) for row in run.data.get("beside", [])}
    take(results, found)
    for row, run in beside.values():
        results.take(run, "beside", [row])
    lines = [served_row(load, row) for load, (row, _) in found.items()]
    for (load, attention), (row, _) in beside.items():
        name = f"{load}, {row.get('engine', 'transformers')}, {ATTENTIONS[attention]}"
        if attention == "flash" and not row.get("graphs", True):
            name += ", without graphs"
        lines.append(served_row(name, row, found.get(load, (None, None))[0]))
    columns = ["load", "tokens/s", "TTFT p50, ms", "p99", "TPOT p50, ms", "p99", "GPU busy",
               f"times as many as theirs (asked {TIMES_TRANSFORMERS})"]
    last = len(columns) if beside else len(columns) - 1
    return table(columns[:last], [line[:last] for line in lines]) + sources(found)
