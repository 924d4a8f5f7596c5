"""One rank of `bench/gpu/pytorch_suite pair`, under torchrun: products called from Python and the same programs, which
Python writes to files, launched by gpu_bench from processes of its own on the same GPUs, in turn, some rounds of each.
Rank 0 writes JSON with every sample.

Of each shape: 'plain' is a call on ordinary tensors that makes its result, 'in place' one with out=, and with GEMM+AR's
result, which peers write, in symmetric memory, as gpu_bench has it."""

import datetime
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from overlap_torch import make_cases
from overlap_torch_rank import NUM_SETS, Case, World, world_of_torchrun
from timing_options import parser_of

import stretto
from stretto import _world

BF16 = torch.bfloat16
ROWS = 256, 1024, 4096, 8192
LAYERS = (4096, 22016), (4096, 28672), (8192, 57344)  # hidden size, columns of gate and up: of Llamas
WARMUP_MS = 400  # as gpu_bench programs; GPUs that rested while a process began are faster for a while
MOST_CALLS = 5000
CPP_S = 100  # that a round of gpu_bench may take


def cases_of(ranks: int, only: str) -> list:
    """Those of overlap_torch.py with these rows, AG+GEMM and GEMM+RS of these layers."""
    found = []
    for case in make_cases(ranks):
        n, k = case.get("n", 0), case.get("k", 0)
        layer = (k, n * ranks) if case["op"] == "ag_gemm" else (n, 2 * k * ranks)
        if case.get("m") in ROWS and (layer in LAYERS or case["op"] == "gemm_ar") and only in label(case):
            found.append(case)
    return found


def label(case: dict) -> str:
    return f"{case['op']} {case.get('m')} n={case.get('n')} k={case.get('k')}"


def calls_of(world: World, case: dict) -> dict:
    """{form: call of a buffer set}"""
    op, m, n, k = (case[name] for name in ("op", "m", "n", "k"))
    rows = m // world.size
    a = [world.randn(rows if op == "ag_gemm" else m, k) for _ in range(NUM_SETS)]
    w = [world.randn(n, k).t() for _ in range(NUM_SETS)]
    made = torch.empty(rows if op == "gemm_rs" else m, n, device=world.device, dtype=BF16)
    results = [made] * NUM_SETS
    if op == "gemm_ar":
        results = [stretto.symm_mem.empty(m, n, dtype=BF16, device=world.device) for _ in range(NUM_SETS)]
    call = {"ag_gemm": stretto.all_gather_matmul, "gemm_rs": stretto.matmul_reduce_scatter,
            "gemm_ar": stretto.matmul_all_reduce}[op]
    return {"plain": lambda i: call(a[i], w[i]), "in_place": lambda i: call(a[i], w[i], out=results[i])}


def program_of(call) -> str:
    """The text of the one program that call() launches."""
    group, seen = _world.group_of(), []
    programs = group.programs

    def remember(*arguments):
        seen.append(programs(*arguments))
        return seen[-1]

    group.programs = remember
    try:
        call()
    finally:
        del group.programs
    ((program,),) = seen
    return program.explain()


def run_cpp(options, files: list, ranks: int, out: pathlib.Path) -> list:
    """Samples of each file. SystemExit where gpu_bench fails."""
    environment = dict(os.environ)
    if options.libraries:
        environment["LD_LIBRARY_PATH"] = options.libraries
    command = [options.binary, "programs", "--ranks", str(ranks), "--samples", str(options.samples), "-o", str(out)]
    done = subprocess.run([*command, *map(str, files)], env=environment, capture_output=True, text=True, timeout=CPP_S,
                          check=False)
    if done.returncode != 0:
        raise SystemExit(f"gpu_bench: status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [row["ms"] for row in json.loads(out.read_text(encoding="utf-8"))["programs"]]


def in_a_row(world: World, call, samples: int) -> list:
    """Milliseconds of calls without a pause between or before them, slowest rank, as gpu_bench programs has them."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(samples + 1)]
    begin = time.monotonic()
    for i in range(3):
        call(i % NUM_SETS)
    torch.cuda.synchronize()
    ms = max(world.slowest([1e3 * (time.monotonic() - begin)])[0] / 3, 1e-3)
    for i in range(int(min(max(WARMUP_MS / ms, 3), MOST_CALLS))):
        call(i % NUM_SETS)
    marks[0].record()
    for i in range(samples):
        call(i % NUM_SETS)
        marks[i + 1].record()
    torch.cuda.synchronize()
    return world.slowest([a.elapsed_time(b) for a, b in zip(marks, marks[1:])])


def summary(row: dict) -> str:
    cpp = statistics.median(row["cpp_ms"])
    forms = (f"{form.replace('_', ' ')} {statistics.median(row[form + '_ms']):.4f}, "
             f"{statistics.median(row[form + '_ms']) / cpp:.3f} of it" for form in ("plain", "in_place"))
    return f"{label(row):<34}C++ {cpp:.4f} ms  " + "  ".join(forms)


def main():
    parser = parser_of(__doc__, samples=8)
    parser.add_argument("--binary", required=True, help="gpu_bench")
    parser.add_argument("--libraries", default="", help="LD_LIBRARY_PATH of gpu_bench")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="products whose text contains this: 'gemm_rs 8192'")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("STRETTO_TEST_SEED", "1")))
    options = parser.parse_args()
    world = world_of_torchrun(options.seed)
    rank, size = world.rank, world.size
    stretto.init(timeout=2 * CPP_S, sequence=False)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="stretto-pair-"))

    begin, rows, files, contestants = time.monotonic(), [], [], []
    for at, case in enumerate(cases_of(size, options.only)):
        calls = calls_of(world, case)
        text = program_of(lambda calls=calls: calls["in_place"](0))
        files.append(folder / f"{at}-{case['op']}-{case['m']}.ir")
        files[-1].write_text(text, encoding="utf-8")
        contestants.append(Case(world, calls, "eager"))
        contestants[-1].try_each(lambda: None, 0.0)
        if contestants[-1].errors:
            raise SystemExit(f"{label(case)}: {contestants[-1].errors}")
        rows.append({**case, "cpp_ms": [], "plain_ms": [], "in_place_ms": []})
    result = {"machine": torch.cuda.get_device_name(rank), "driver": options.driver, "commit": options.commit,
              "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
              "torch": torch.__version__, "ranks": size, "seed": options.seed, "rounds": options.rounds,
              "samples_of_a_round": options.samples, "first_calls_s": time.monotonic() - begin, "pairs": rows}
    for _ in range(options.rounds):
        torch.cuda.synchronize()
        stretto.barrier()  # which leaves the GPUs alone
        if rank == 0:
            for row, ms in zip(rows, run_cpp(options, files, size, folder / "cpp.json"), strict=True):
                row["cpp_ms"] += ms
        stretto.barrier()
        for row, contestant in zip(rows, contestants):
            for form, call in contestant.calls.items():
                row[form + "_ms"] += in_a_row(world, call, options.samples)
    if rank == 0:
        for row in rows:
            print(summary(row), flush=True)
        print(f"first calls {result['first_calls_s']:.0f} s, all {time.monotonic() - begin:.0f} s")
        if options.out:
            pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(folder)
    dist.barrier(device_ids=[rank])
    sys.stdout.flush()
    stretto.finalize()
    os._exit(0)  # taking a group down that graphs have used may hang


if __name__ == "__main__":
    main()
