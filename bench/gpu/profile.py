#!/usr/bin/env python3
"""What holds kernels back: Nsight Compute's counters of one launch each of ours and of the libraries' beside it, and
the instructions at which their warps wait. Writes gpu-profile-DAY.json (every metric) and gpu-profile-DAY.tar.gz
(samples of every instruction), and prints what is chosen here.

    bench/gpu/profile.py [--binary build/bin/gpu_bench] [-o FOLDER] [--only TEXT] [--list]

Needs ncu, a GPU whose counters it may read, and for cuDNN PyTorch.
"""

import argparse
import csv
import datetime
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SECTIONS = ["SpeedOfLight", "ComputeWorkloadAnalysis", "SchedulerStats", "WarpStateStats", "MemoryWorkloadAnalysis",
            "Occupancy", "LaunchStats", "SourceCounters"]
# What gpu_bench runs, by label: the kernels of a case are ours, then the library's.
CASES = {
    "gemm 4096x14336x4096": ["gemm", "-m", "4096", "-n", "14336", "-k", "4096", "--config",
                             "128x160x64 stages 5 consumers 2 raster 4"],
    "gemm 8192x14336x4096": ["gemm", "-m", "8192", "-n", "14336", "-k", "4096", "--config",
                             "128x160x64 stages 5 consumers 2 raster 4"],
    "gemm 8192x36864x4608": ["gemm", "-m", "8192", "-n", "36864", "-k", "4608", "--config",
                             "128x256x64 stages 4 stagger 2"],
    "fp8 rows 8192^3": ["gemm-fp8", "--only", "cube row-wise", "--config",
                        "128x192x128 stages 4 stagger 3"],
    "fp8 blocks 4096x7168x16384": ["gemm-fp8", "--only", "down block", "--config",
                                   "256x128x128 stages 4 cluster 2 raster 8"],
    "attention 128 causal": ["attention-suite", "--only", "d=128 causal 1x16384"],
    "attention 128 full": ["attention-suite", "--only", "d=128 full 1x16384"],
    "attention 64 causal": ["attention-suite", "--only", "d=64 causal 1x16384"],
    "attention 64 full": ["attention-suite", "--only", "d=64 full 1x16384"],
    "loop scaled dot": ["loops", "--only", "scaled dot"],
    "loop masked ragged edge": ["loops", "--only", "masked ragged edge"],
    "held-out loop normalised rows": ["loops", "--held-out", "--only", "normalised rows"],
    "held-out loop banded operand": ["loops", "--held-out", "--only", "banded operand"],
    "held-out loop sum as right operand": ["loops", "--held-out", "--only", "sum as right operand"],
    "experts, both layers": ["moe", "--ranks", "1", "--only", "32-experts P=1 m=8192"],
    "experts, both layers, 128": ["moe", "--ranks", "1", "--only", "128-experts P=1 m=8192"],
    "experts, layer 2": ["moe", "--ranks", "1", "--only", "moe-2 mixtral-8x7b P=1 m=8192"],
}
TORCH_CASE = "cuDNN attention"  # of head 64 and 128, causal and full, in the order of attention_torch.py
# Printed where the report has them: a word for it, and the metric.
METRICS = [
    ("ms", r"gpu__time_duration\.sum$"),
    ("SM clock", r"(smsp|gpc)__cycles_elapsed\.avg\.per_second$"),
    ("tensor pipe", r"pipe_tensor\w*(cycles_active|inst_executed\w*)\.avg\.pct_of_peak_sustained_active$"),
    ("other pipes", r"sm__inst_executed_pipe_(fma|fmaheavy|alu|xu|lsu|uniform)\w*\.avg\.pct_of_peak_sustained_active$"),
    ("issue slots", r"s\w+__(issue_active|inst_issued)\.avg\.(pct_of_peak_sustained_active|per_cycle_active)$"),
    ("warps", r"sm__warps_active\.avg\.pct_of_peak_sustained_active$"),
    ("registers", r"launch__registers_per_thread$"),
    ("L2", r"lts__t_(bytes|sectors)\.(sum\.per_second|avg\.pct_of_peak_sustained_elapsed)$"),
    ("L2 hits", r"lts__t_sector_hit_rate\.pct$"),
    ("DRAM", r"dram__(bytes|bytes_read)\.sum\.per_second$"),
    ("L1", r"l1tex__(m_xbar2l1tex_read_\w+|data_bank_\w+|data_pipe_lsu_wavefronts\w*)\.(sum|avg\.pct_of\w+)$"),
]
STALL = re.compile(r"smsp__average_warps?_(?:latency_)?issue_stalled_(\w+?)_per_(?:issue|warp)_active\.(?:ratio|pct)$")
NUM_INSTRUCTIONS = 24  # with the most samples, that are printed of a kernel


def number(text: str):
    try:
        return float(text.replace(",", ""))
    except (ValueError, AttributeError):
        return text


def kernels_of(report: pathlib.Path) -> list:
    """[{"kernel": name, "metrics": {name: value}}, ...] in the order of the launches."""
    out = subprocess.run(["ncu", "--import", str(report), "--page", "raw", "--csv", "--print-units", "base"],
                         capture_output=True, text=True, check=True).stdout
    lines = [line for line in out.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))
    return [{"kernel": row["Kernel Name"], "metrics": {k: number(v) for k, v in row.items() if k and "__" in k and v}}
            for row in rows[1:]]  # the first has the units


def instructions_of(report: pathlib.Path) -> str:
    """ncu's table of samples by instruction, of all kernels one after another."""
    run = subprocess.run(["ncu", "--import", str(report), "--page", "source", "--csv", "--print-source", "sass"],
                         capture_output=True, text=True, check=False)
    return run.stdout if run.returncode == 0 else run.stdout + run.stderr


def tables_of_instructions(text: str) -> list:
    """A list of rows for each kernel."""
    tables = []
    columns = None
    for row in csv.reader(line for line in text.splitlines() if line.startswith('"')):
        if "Source" in row:
            columns = row
            tables.append([])
        elif columns and len(row) == len(columns):
            tables[-1].append(dict(zip(columns, row)))
    return tables


def samples_column(rows: list) -> str:
    names = rows[0].keys()
    return next((n for n in names if "(All Samples)" in n), next((n for n in names if "Samples" in n), ""))


def print_instructions(rows: list) -> None:
    """The instructions with the most samples, in the order of the program, each with its reasons."""
    column = samples_column(rows) if rows else ""
    if not column:
        return print("    no samples of instructions")
    counts = [number(row[column]) or 0 for row in rows]
    counts = [c if isinstance(c, float) else 0 for c in counts]
    total = sum(counts) or 1
    most = sorted(sorted(range(len(rows)), key=lambda i: -counts[i])[:NUM_INSTRUCTIONS])
    for i in most:
        reasons = {k[6:]: number(v) for k, v in rows[i].items() if k.startswith("stall_") and "issued" not in k.lower()}
        top = sorted(((v, k) for k, v in reasons.items() if isinstance(v, float) and v > 0), reverse=True)[:3]
        text = ", ".join(f"{k} {v:.0f}" for v, k in top)
        print(f"    {i:5} {100 * counts[i] / total:5.1f} %  {rows[i]['Source'][:72]:72} {text}")
    return None


def print_kernel(label: str, kernel: dict) -> None:
    metrics = kernel["metrics"]
    print(f"-- {label}: {kernel['kernel'][:100]}")
    for word, pattern in METRICS:
        found = {k: v for k, v in metrics.items() if re.search(pattern, k) and isinstance(v, float) and v}
        if found:
            print(f"  {word}: " + ", ".join(f"{k} {v:.6g}" for k, v in sorted(found.items())))
    stalls = sorted(((v, m.group(1)) for k, v in metrics.items() if (m := STALL.search(k)) and isinstance(v, float)),
                    reverse=True)
    print("  stalls, warps of an issue: " + ", ".join(f"{k} {v:.2f}" for v, k in stalls[:8]))


def profile(label: str, command: list, folder: pathlib.Path, seconds: int) -> list:
    """Runs the command under ncu; [(kernel, its instructions)], which are printed too."""
    report = folder / (re.sub(r"\W+", "-", label) + ".ncu-rep")
    ncu = ["ncu", "--profile-from-start", "off", "--clock-control", "none", "--target-processes", "all", "-f", "-o",
           str(report.with_suffix(""))]
    for section in SECTIONS:
        ncu += ["--section", section]
    try:
        run = subprocess.run(ncu + command, capture_output=True, text=True, timeout=seconds, check=False)
        print(f"== {label}: {' '.join(command)}: status {run.returncode}")
        print("\n".join(line for line in run.stdout.splitlines() if not line.startswith("==PROF==")), flush=True)
        if not report.exists():
            print(run.stderr)
            return []
        kernels = kernels_of(report)
        text = instructions_of(report)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        print(f"== {label}: {error}")
        return []
    (folder / (report.stem + ".csv")).write_text(text, encoding="utf-8")
    tables = tables_of_instructions(text)
    for i, kernel in enumerate(kernels):
        print_kernel(label, kernel)
        if i < len(tables):
            print_instructions(tables[i])
        else:
            print("    no table of instructions: " + text[:300].replace("\n", " | "))
    sys.stdout.flush()
    return kernels


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/bin/gpu_bench")
    parser.add_argument("-o", "--out", default="build/results", help="folder")
    parser.add_argument("--only", default="", help="cases whose label contains this")
    parser.add_argument("--seconds", type=int, default=60, help="that one case may take")
    parser.add_argument("--commit", default="")
    parser.add_argument("--driver", default="")
    parser.add_argument("--list", action="store_true", help="print the commands of the cases and do nothing")
    options = parser.parse_args()
    commands = {label: [options.binary, *case, "--profile"] for label, case in CASES.items()}
    commands[TORCH_CASE] = [sys.executable, str(HERE / "attention_torch.py"), "--profile"]
    commands = {label: command for label, command in commands.items() if options.only in label}
    if options.list:
        for label, command in commands.items():
            print(f"{label}: {' '.join(command)}")
        return 0
    if shutil.which("ncu") is None:
        print("profile: no ncu on the path", file=sys.stderr)
        return 2
    now = datetime.datetime.now(datetime.timezone.utc)
    found = {"date": now.isoformat(timespec="seconds"), "commit": options.commit, "driver": options.driver,
             "profiles": {}}
    name = os.path.join(options.out, f"gpu-profile-{now:%F}")
    with tempfile.TemporaryDirectory() as folder:
        for label, command in commands.items():
            found["profiles"][label] = profile(label, command, pathlib.Path(folder), options.seconds)
            with open(name + ".json", "w", encoding="utf-8") as file:
                json.dump(found, file, indent=1)
        with tarfile.open(name + ".tar.gz", "w:gz") as archive:
            for file in sorted(pathlib.Path(folder).glob("*.csv")):
                archive.add(file, arcname=file.name)
    missing = [label for label, kernels in found["profiles"].items() if not kernels]
    print(f"profile: {len(commands)} cases, {len(missing)} without a kernel: {', '.join(missing)}")
    return 1 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
