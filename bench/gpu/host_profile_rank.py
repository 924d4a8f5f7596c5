"""One rank, under torchrun: where the host's time of a call goes, of calls that user_rank.py times. Of each call that
takes longer than --over: its time to enqueue, and of that what Python takes, and by phases what the core and the driver
take (stretto/base/host_phases.h), most first. The driver's calls stand under their names. `Python` is what is left: the
package's own code, and PyTorch's beside what a plan makes. Phases are measured in calls of their own; what measuring
costs is told. With --python the functions of Python that take longest, by its profiler, which makes all of them slower.
With --graphs instead what each takes with its plan's steps enqueued one by one, and as one graph (decision 0085).

    torchrun --standalone --nproc-per-node 2 bench/gpu/host_profile_rank.py -o profile.json
"""

import _lsprof  # what cProfile wraps, which imports `profile`: another file here
import datetime
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from timing_options import command_line, parser_of
from torch_turns import ON_GPU, synchronize
from user_calls import all_calls, make_pairs, step_calls
from user_rank import HOST_CALLS, Ranks, host_us

import stretto
from stretto import _core

WARM_CALLS = 4  # first, plan, graph of copies, once more
GRAPH_TURNS = 6 if ON_GPU else 1
PHASE_ROUNDS = 9 if ON_GPU else 1
ASKED_US = {False: 15.0, True: 40.0}  # an operator's, by whether copy engines take part


def phases_us(ranks: Ranks, call) -> tuple:
    """(microseconds of a call while it is measured, {phase: (times, microseconds) of a call}) of this rank, of rounds
    as host_us() has them the one that took least."""
    rounds = []
    for _ in range(PHASE_ROUNDS):
        synchronize()
        dist.barrier(group=ranks.host)
        phases = _core.HostPhases()
        begin = time.perf_counter()
        for _ in range(HOST_CALLS):
            call()
        whole = 1e6 * (time.perf_counter() - begin) / HOST_CALLS
        spent = phases.finish()
        phases = {name: (times / HOST_CALLS, ns / 1e3 / HOST_CALLS) for name, (times, ns) in spent.items()}
        rounds.append((whole, phases))
    synchronize()
    return min(rounds, key=lambda found: found[0])


def by_graphs_us(ranks: Ranks, call) -> dict:
    """{"steps": [..], "graph": [..]}: a later call's microseconds where its plan enqueues its steps one by one, and
    where it is one graph, in turn in one process."""
    plans, found = stretto._world.group_of().plans, {"steps": [], "graph": []}
    for _ in range(GRAPH_TURNS):
        for way, us in found.items():
            _core.want_plan_graphs(way == "graph")
            plans.clear()
            for _ in range(2 * WARM_CALLS):
                call()
            us.append(statistics.median(host_us(ranks, call)))
    return found


def python_us(ranks: Ranks, call, most: int = 8) -> list:
    """[(function, times, microseconds of a call without functions within it)], the longest first."""
    synchronize()
    dist.barrier(group=ranks.host)
    profiler = _lsprof.Profiler()
    profiler.enable()
    for _ in range(HOST_CALLS):
        call()
    profiler.disable()
    synchronize()
    rows = []
    for entry in profiler.getstats():
        code = entry.code
        if not isinstance(code, str):
            code = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno} {code.co_name}"
        rows.append((code, entry.callcount / HOST_CALLS, 1e6 * entry.inlinetime / HOST_CALLS))
    return sorted(rows, key=lambda row: -row[2])[:most]


def profiled(ranks: Ranks, name: str, call, options) -> dict:
    for _ in range(WARM_CALLS):
        call.ours()
    us = statistics.median(host_us(ranks, call.ours))
    row = {"call": name, "copies": call.copies, "operators": call.operators, "host_us": us}
    if us < options.over:
        return row
    if options.graphs:
        row["by_graphs_us"] = by_graphs_us(ranks, call.ours)
        return row
    measured, phases = phases_us(ranks, call.ours)
    phases["Python"] = (1.0, measured - sum(us for _, us in phases.values()))
    everyone = [None] * ranks.size
    dist.all_gather_object(everyone, {"measured_us": measured, "phases": phases}, group=ranks.host)
    row["ranks"] = everyone
    if options.python:
        row["python"] = python_us(ranks, call.ours)
    return row


def lines_of(row: dict) -> list:
    """Of rank 0."""
    asked = ASKED_US[row["copies"]] * row["operators"]
    lines = [f"{row['call']:<40} {row['host_us']:7.1f} us, asked {asked:.0f}"]
    if "error" in row:
        lines[0] += f" | {row['error']}"
    if "by_graphs_us" in row:
        lines[0] += "; " + ", ".join(f"{way} {statistics.median(us):.1f} [{min(us):.1f}, {max(us):.1f}]"
                                     for way, us in row["by_graphs_us"].items())
    if "ranks" in row:
        own = row["ranks"][0]
        lines[0] += f"; measured {own['measured_us']:.1f}"
        phases = sorted(own["phases"].items(), key=lambda item: -item[1][1])
        lines += [f"    {us:7.2f} us {times:6.1f} x  {name}" for name, (times, us) in phases if us >= 0.05]
    lines += [f"    {us:7.2f} us {times:6.1f} x  by the profiler: {name}" for name, times, us in row.get("python", [])]
    return lines


def main():
    parser = parser_of(__doc__, samples=0)
    parser.add_argument("--only", default="", help="calls whose name contains this")
    parser.add_argument("--over", type=float, default=15.0, help="microseconds from which on a call is profiled")
    parser.add_argument("--graphs", action="store_true", help="instead: plans step by step and as graphs, in turn")
    parser.add_argument("--python", action="store_true", help="functions of Python, too")
    parser.add_argument("--steps", action="store_true", help="steps of several calls, too")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("STRETTO_TEST_SEED", "1")))
    options = parser.parse_args()
    ranks = Ranks(options.seed)
    stretto.init(timeout=60)
    make_pairs(ranks.size)
    if ON_GPU:
        _core.phase_driver_calls()
    result = {
        "machine": torch.cuda.get_device_name() if ON_GPU else "CPU", "driver": options.driver,
        "commit": options.commit, "command": command_line(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "torch": torch.__version__, "ranks": ranks.size, "seed": options.seed, "calls": [],
    }
    calls = all_calls(ranks.rank, ranks.size)
    if options.steps:
        calls |= step_calls(ranks.rank, ranks.size)
    for name, call in calls.items():
        if options.only not in name:
            continue
        try:
            row = profiled(ranks, name, call, options)
        except stretto.Error as error:
            row = {"call": name, "copies": call.copies, "operators": call.operators,
                   "host_us": float("nan"), "error": str(error)[:400]}
        result["calls"].append(row)
        ranks.say("\n".join(lines_of(row)))
        if ranks.rank == 0 and options.out:
            with open(options.out, "w", encoding="utf-8") as file:
                json.dump(result, file)
    ranks.end()


if __name__ == "__main__":
    main()
