#!/usr/bin/env python3
"""PyTorch's overlapped operators, the baseline of ours: async tensor parallelism (fused_all_gather_matmul,
fused_matmul_reduce_scatter) beside the plain sequence and the product alone, eager; products with an all-reduce in
symmetric memory or NCCL, and all-reduces from 4 KB to 64 MB, in captured graphs. bfloat16, the shapes of
overlap_shapes.cc, one process a GPU, events, slowest rank. -o writes JSON with every sample.

    bench/gpu/overlap_torch.py [-o FILE] [--ranks N] [--samples N] [--only TEXT] [--driver VERSION] [--commit ID]

This process starts the ranks (overlap_torch_rank.py) and never waits without a limit: where one dies or says nothing
for too long, all are killed, the case gets an 'error', and new ones go on with the rest. Exit status 1 where a case
failed. NVLink multicast stays off.
"""

import argparse
import datetime
import json
import os
import pathlib
import queue
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

from timing_options import command_line

RANK_PROGRAM = pathlib.Path(__file__).resolve().parent / "overlap_torch_rank.py"
START_S = 120  # PyTorch imported, NCCL connected
MAX_STARTS = 5
# A program that uses multicast can put a shared host's GPUs out of service.
NO_MULTICAST = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "0", "NVSHMEM_DISABLE_NVLS": "1"}

LAYERS = [  # operator, m, k, n of all ranks: see overlap_shapes.cc
    ("ag_gemm", 8192, 4096, 22016),
    ("ag_gemm", 8192, 4096, 28672),
    ("ag_gemm", 8192, 8192, 57344),
    ("ag_gemm", 8192, 3584, 28672),
    ("ag_gemm", 8192, 4608, 73728),
    ("ag_gemm", 8192, 8192, 59136),
    ("ag_gemm", 4096, 4096, 28672),
    ("ag_gemm", 4096, 8192, 57344),
    ("ag_gemm", 1024, 8192, 57344),
    ("gemm_rs", 8192, 11008, 4096),
    ("gemm_rs", 8192, 14336, 4096),
    ("gemm_rs", 8192, 28672, 8192),
    ("gemm_rs", 8192, 14336, 3584),
    ("gemm_rs", 8192, 36864, 4608),
    ("gemm_rs", 8192, 29568, 8192),
    ("gemm_rs", 4096, 14336, 4096),
    ("gemm_rs", 4096, 28672, 8192),
    ("gemm_rs", 1024, 28672, 8192),
]
AR_ROWS = [1, 16, 64, 256, 1024, 4096, 8192]
AR_COLS, AR_DEPTH = 8192, 7168
KILOBYTE, MEGABYTE = 1 << 10, 1 << 20
BYTES = [4 * KILOBYTE, 16 * KILOBYTE, 64 * KILOBYTE, 256 * KILOBYTE, 512 * KILOBYTE, MEGABYTE, 4 * MEGABYTE,
         16 * MEGABYTE, 64 * MEGABYTE]


def make_cases(ranks: int) -> list:
    """What to time; n or k as one rank has it."""
    cases = []
    for op, m, k, n in LAYERS:
        columns = op == "ag_gemm"
        cases.append({"op": op, "ranks": ranks, "m": m, "n": n // ranks if columns else n,
                      "k": k if columns else k // ranks})
    for m in AR_ROWS:
        cases.append({"op": "gemm_ar", "ranks": ranks, "m": m, "n": AR_COLS, "k": AR_DEPTH})
    for count in BYTES:
        size = f"{count // KILOBYTE} KB" if count < MEGABYTE else f"{count // MEGABYTE} MB"
        cases.append({"op": f"all_reduce {size}", "ranks": ranks, "bytes": count})
    return cases


def label(case: dict) -> str:
    if "bytes" in case:
        return f"{case['op']} P={case['ranks']}"
    return f"{case['op']} P={case['ranks']} m={case['m']} n={case['n']} k={case['k']}"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Ranks:
    """One process per GPU, given cases; rank 0's messages arrive in `messages`, None at its end."""

    def __init__(self, options: argparse.Namespace, pending: dict, seconds: float):
        environment = {**os.environ, **NO_MULTICAST}
        environment.setdefault("NCCL_SOCKET_IFNAME", "lo")  # only to find each other
        job = {"world": options.ranks, "port": free_port(), "samples": options.samples, "seed": options.seed,
               "seconds": seconds, "cases": pending}
        self.messages = queue.Queue()
        self.processes = []
        try:
            for rank in range(options.ranks):
                self.processes.append(subprocess.Popen(
                    [sys.executable, str(options.rank_program), json.dumps({**job, "rank": rank})], env=environment,
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                    text=True, start_new_session=True))
        except BaseException:
            self.kill()
            raise
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.processes[0].stdout:
            if line.startswith("{\"overlap_torch\":"):
                self.messages.put(json.loads(line)["overlap_torch"])
        self.messages.put(None)

    def next_message(self, seconds: float):
        """A message, None at the end, or why there is none, as text."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                return self.messages.get(timeout=0.5)
            except queue.Empty:
                for rank, process in enumerate(self.processes):
                    if process.poll() not in (None, 0):
                        return f"rank {rank} ended with status {process.returncode}"
        return f"no answer within {seconds:.0f} s"

    def wait(self, seconds: float):
        until = time.monotonic() + seconds
        while time.monotonic() < until and any(p.poll() is None for p in self.processes):
            time.sleep(0.05)

    def kill(self):
        for process in self.processes:
            if process.poll() is None:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        for process in self.processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                print(f"process {process.pid} does not end", flush=True)


def show(row: dict):
    text = f"{label(row):36}"
    for mode in ("eager", "graph"):
        for name, ms in row.get(mode, {}).items():
            text += f" {name.removesuffix('_ms')} {statistics.median(ms):.4f}"
    for name, why in row.get("errors", {}).items():
        text += f"\n  {name}: {why}"
    print(text + (f"\n  FAILED: {row['error']}" if "error" in row else ""), flush=True)


def run_some(options: argparse.Namespace, pending: dict, rows: dict, facts: dict, until: float) -> bool:
    """Starts ranks and takes their rows until they end or fail, moving them from `pending`. False where they did not
    come as far as a first case."""
    ranks = Ranks(options, pending, until - time.monotonic())
    current, why = None, None
    try:
        while why is None:
            limit = options.case_seconds if current is not None else START_S
            message = ranks.next_message(max(min(limit, until - time.monotonic()), 0))
            if message is None:
                why = "the ranks ended early" if pending else ""
            elif isinstance(message, str):
                why = message
            elif "facts" in message:
                facts.update(message["facts"])
            elif "begin" in message:
                current = message["begin"]
            else:
                current = None
                row = message["row"]
                rows[message["end"]] = row
                pending.pop(message["end"], None)
                show(row)
                if not pending:
                    why = ""
        if not why:
            ranks.wait(5)
            return True
    finally:
        ranks.kill()
    if current not in pending:
        print(f"the ranks did not begin a case: {why}", flush=True)
        return bool(rows)
    rows[current] = {**pending.pop(current), "error": why}
    show(rows[current])
    return True


def count_gpus() -> int:
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def stop(_signal, _frame):
    raise SystemExit(128 + signal.SIGTERM)  # through the 'finally's, which end the ranks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out")
    parser.add_argument("--ranks", type=int, default=0, help="default: all GPUs")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=270, help="for everything")
    parser.add_argument("--case-seconds", type=float, default=40)
    parser.add_argument("--only", default="", help="cases whose text contains this: 'gemm_rs P=2 m=8192'")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little") >> 1)
    parser.add_argument("--driver", default="")
    parser.add_argument("--commit", default="")
    parser.add_argument("--rank-program", default=RANK_PROGRAM, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.ranks = options.ranks or count_gpus()
    if options.ranks < 2:
        print("overlap_torch: needs two GPUs", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, stop)
    until = time.monotonic() + options.seconds
    pending = {str(i): c for i, c in enumerate(make_cases(options.ranks)) if options.only in label(c)}
    order, rows, facts = list(pending), {}, {}
    try:
        for _ in range(MAX_STARTS):
            if not pending or time.monotonic() > until or not run_some(options, pending, rows, facts, until):
                break
    finally:
        for i, case in pending.items():
            rows[i] = {**case, "error": "not reached"}
        listed = [rows[i] for i in order]
        if options.out:
            result = {
                "machine": "", "driver": options.driver, "commit": options.commit,
                "command": command_line(),
                "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "seed": options.seed, "ranks": options.ranks, **facts,
                "overlap": [r for r in listed if "bytes" not in r],
                "collectives": [r for r in listed if "bytes" in r],
            }
            with open(options.out, "w", encoding="utf-8") as file:
                json.dump(result, file, indent=1)
                file.write("\n")
    failed = sum("error" in r or bool(r.get("errors")) for r in listed)
    print(f"overlap_torch: {len(listed)} cases, {failed} failed (seed {options.seed})")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
