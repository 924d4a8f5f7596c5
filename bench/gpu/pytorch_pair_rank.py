"""One rank of `bench/gpu/pytorch_suite pair`, under torchrun: products called from Python and the same programs, which
Python writes to files, launched by gpu_bench from processes of its own on the same GPUs, in turn, some rounds of each.
Rank 0 writes JSON with every sample.

Launches of one process are alike, and processes are not: each has its memory elsewhere. So a round is one observation.
In each, gpu_bench starts anew, and Python's ranks make a world of their own (a group: its kernels, signals and
buffers); both allocate anew for every product, beside memory of random sizes that Python holds, and fill it with normal
values, have three sets of operands and results, and rest and then launch for as long before the first launch that is
timed: without the rest those that came second had clocks of 0.9 to 1.1 GHz, not 1.4, to the end of it. Whoever
is first in one round is last in the next. When gpu_bench's turn comes, Python has given back all but what it holds.

Forms of a call: 'plain' takes ordinary tensors and makes its result; 'in place' is one with out=, and with GEMM+AR's
result, which peers write, in symmetric memory, as gpu_bench has it; 'symmetric' has everything there, as gpu_bench."""

import datetime
import json
import os
import pathlib
import random
import statistics
import subprocess
import tempfile
import time

import torch
import torch.distributed as dist
from overlap_torch import make_cases
from timing_options import command_line, parser_of
from torch_rounds import mean_ratio
from torch_turns import DEVICE, ON_GPU, event, synchronize

import stretto
from stretto import _products

BF16 = torch.bfloat16
ROWS = 256, 1024, 4096, 8192
LAYERS = (4096, 22016), (4096, 28672), (8192, 57344)  # hidden size, columns of gate and up: of Llamas
FORMS = "plain", "in_place", "symmetric"
NUM_SETS = 3  # as gpu_bench programs has of these sizes
WARMUP_MS = 400  # as gpu_bench programs; GPUs that rested while a process began are faster for a while
REST_MS = 300  # as gpu_bench programs; launches soon after others' end are slowed down beyond their warm-up
MOST_CALLS = 5000
CPP_S = 100  # that a round of gpu_bench may take
HELD_UNITS, HELD_UNIT_BYTES = 64, 64 << 20  # at most, of memory that moves the rest
if not ON_GPU:
    WARMUP_MS, REST_MS, HELD_UNIT_BYTES = 1, 1, 1


def cases_of(ranks: int, only: str, divisor: int) -> list:
    """Those of overlap_torch.py with these rows, AG+GEMM and GEMM+RS of these layers."""
    found = []
    for case in make_cases(ranks):
        n, k = case.get("n", 0), case.get("k", 0)
        layer = (k, n * ranks) if case["op"] == "ag_gemm" else (n, 2 * k * ranks)
        if case.get("m") in ROWS and (layer in LAYERS or case["op"] == "gemm_ar") and only in label(case):
            found.append({**case, **{name: case[name] // divisor for name in "mnk"}})
    return found


def label(case: dict) -> str:
    return f"{case['op']} {case.get('m')} n={case.get('n')} k={case.get('k')}"


class Ranks:
    """Of this world; this rank's device."""

    def __init__(self, seed: int):
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.device = torch.device(DEVICE, self.rank) if ON_GPU else torch.device(DEVICE)
        if ON_GPU:
            torch.cuda.set_device(self.device)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo")  # for times: no memory and no kernels
        torch.manual_seed(seed * 64 + self.rank)
        self.random = random.Random(seed * 64 + self.rank)

    def slowest(self, values: list) -> list:
        x = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        return x.tolist()

    def held(self) -> torch.Tensor:
        """Memory of a random size, so that what is allocated beside it lies elsewhere in every round."""
        size_bytes = self.random.randrange(1, HELD_UNITS) * HELD_UNIT_BYTES
        return torch.empty(size_bytes, dtype=torch.uint8, device=self.device)


def call_of(ranks: Ranks, case: dict, form: str, group):
    """The call of a set of operands, which are new."""
    op, m, n, k = (case[name] for name in ("op", "m", "n", "k"))
    rows = m // ranks.size

    def made(symmetric: bool, *shape):
        if symmetric:
            return stretto.symm_mem.empty(*shape, dtype=BF16, device=ranks.device, group=group)
        return torch.empty(*shape, dtype=BF16, device=ranks.device)

    everything = form == "symmetric"
    a, w, out = [], [], []
    for _ in range(NUM_SETS):
        a.append(made(everything, rows if op == "ag_gemm" else m, k).normal_())
        w.append(made(everything, n, k).normal_().t())
        if form != "plain":
            out.append(made(everything or op == "gemm_ar", rows if op == "gemm_rs" else m, n))
    call = {"ag_gemm": stretto.all_gather_matmul, "gemm_rs": stretto.matmul_reduce_scatter,
            "gemm_ar": stretto.matmul_all_reduce}[op]
    if form == "plain":
        return lambda i: call(a[i], w[i], group=group)
    return lambda i: call(a[i], w[i], group=group, out=out[i])


def program_of(call) -> str:
    """The text of the one program that call() launches."""
    seen, programs = [], _products.programs

    def remember(*arguments):
        seen.append(programs(*arguments))
        return seen[-1]

    _products.programs = remember
    try:
        call()
    finally:
        _products.programs = programs
    ((_, steps),) = seen
    (program,) = steps
    return program.explain()


def write_programs(ranks: Ranks, cases: list, forms: list, folder: pathlib.Path) -> list:
    """The files of the programs, one of each case, which all its forms launch and whose results are the same."""
    files, group = [], stretto.new_group(range(ranks.size), name="programs")
    for at, case in enumerate(cases):
        texts, results = set(), []
        for form in forms:
            torch.manual_seed(at * 64 + ranks.rank)  # the same values
            call = call_of(ranks, case, form, group)
            texts.add(program_of(lambda call=call, results=results: results.append(call(0).clone())))
            del call
        if len(texts) != 1 or any(not torch.equal(x, results[0]) for x in results):
            raise SystemExit(f"{label(case)}: {len(texts)} programs in {', '.join(forms)}, or results differ")
        files.append(folder / f"{at}-{case['op']}-{case['m']}.ir")
        files[-1].write_text(texts.pop(), encoding="utf-8")
    stretto.finalize(group)
    return files


def run_cpp(options, files: list, ranks: int) -> list:
    """Samples of each file. SystemExit where gpu_bench fails."""
    out = files[0].with_name("cpp.json")
    environment = dict(os.environ)
    if options.libraries:
        environment["LD_LIBRARY_PATH"] = options.libraries
    command = [options.binary, "programs", "--ranks", str(ranks), "--samples", str(options.samples), "-o", str(out)]
    if options.warmup != WARMUP_MS:
        command += ["--warmup", str(options.warmup)]
    done = subprocess.run([*command, *map(str, files)], env=environment, capture_output=True, text=True, timeout=CPP_S,
                          check=False)
    if done.returncode != 0:
        raise SystemExit(f"gpu_bench: status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [row["ms"] for row in json.loads(out.read_text(encoding="utf-8"))["programs"]]


def cpp_turn(ranks: Ranks, options, files: list) -> list:
    """[case] on rank 0; the other ranks leave the GPUs alone meanwhile."""
    stretto.barrier()
    samples = run_cpp(options, files, ranks.size) if ranks.rank == 0 else []
    stretto.barrier()
    return samples


def in_a_row(ranks: Ranks, call, options) -> list:
    """Milliseconds of calls without a pause between or before them, slowest rank, as gpu_bench programs has them."""
    time.sleep(1e-3 * REST_MS)
    call(0)
    synchronize()
    begin = time.monotonic()
    for i in range(1, 4):
        call(i % NUM_SETS)
    synchronize()
    ms = max(ranks.slowest([1e3 * (time.monotonic() - begin)])[0] / 3, 1e-3)
    ahead = int(min(max(options.warmup / ms, 3), MOST_CALLS))
    marks = [event() for _ in range(options.samples + 1)]
    for i in range(4, ahead + 4):
        call(i % NUM_SETS)
    marks[0].record()
    for i in range(options.samples):
        call((ahead + 4 + i) % NUM_SETS)
        marks[i + 1].record()
    synchronize()
    return ranks.slowest([a.elapsed_time(b) for a, b in zip(marks, marks[1:])])


def python_turn(ranks: Ranks, options, cases: list, number: int) -> list:
    """[case]{form: samples}, in a world of its own."""
    group = stretto.new_group(range(ranks.size), name=f"round {number}")
    first = number % len(options.forms)
    turns, samples = options.forms[first:] + options.forms[:first], []
    for case in cases:
        samples.append({})
        for form in turns:
            call = call_of(ranks, case, form, group)
            samples[-1][form] = in_a_row(ranks, call, options)
            del call
            give_back()
    stretto.finalize(group)
    give_back()
    return samples


def give_back() -> None:
    """To the GPU, so that what is allocated next may lie elsewhere."""
    if ON_GPU:
        torch.cuda.empty_cache()


def summary(row: dict, forms: list) -> str:
    text = f"{label(row):<34}C++ {statistics.median(row['cpp_ms']):.4f} ms"
    for form in forms:
        r = row["over_cpp"][form]
        interval = "" if r["low"] is None else f" [{r['low']:.3f}, {r['high']:.3f}]"
        ms = statistics.median(row[form + "_ms"])
        text += f"  {form.replace('_', ' ')} {ms:.4f}, {r['mean']:.3f}{interval} of it"
    return text


def of_rounds(case: dict, samples: dict) -> dict:
    """A row of results of {maker: [round][sample]}: a round's figure is the median of its launches."""
    row = {**case, "samples_ms": samples}
    for maker, rounds in samples.items():
        row[maker + "_ms"] = [statistics.median(ms) for ms in rounds]
    row["over_cpp"] = {form: mean_ratio(row[form + "_ms"], row["cpp_ms"]) for form in samples if form != "cpp"}
    return row


def options_of_arguments():
    parser = parser_of(__doc__, samples=8)
    parser.add_argument("--binary", required=True, help="gpu_bench")
    parser.add_argument("--libraries", default="", help="LD_LIBRARY_PATH of gpu_bench")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no round begins that would end later")
    parser.add_argument("--warmup", type=int, default=WARMUP_MS, help="milliseconds of launches before the first timed")
    parser.add_argument("--forms", default="plain,in_place", help=f"of {', '.join(FORMS)}")
    parser.add_argument("--only", default="", help="products whose text contains this: 'gemm_rs 8192'")
    parser.add_argument("--divisor", type=int, default=1, help="of all sizes, to try this program without GPUs")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("STRETTO_TEST_SEED", "1")))
    options = parser.parse_args()
    options.forms = options.forms.split(",")
    if not options.forms or not set(options.forms) <= set(FORMS):
        parser.error(f"--forms: of {', '.join(FORMS)}")
    return options


def a_round(ranks: Ranks, options, cases: list, files: list, number: int, samples: list) -> None:
    """Both sides once; adds to samples [case]{maker: [round][sample]}."""
    give_back()
    held = ranks.held()
    turns = {"cpp": lambda: cpp_turn(ranks, options, files),
             "python": lambda: python_turn(ranks, options, cases, number)}
    order = ("cpp", "python") if number % 2 == 0 else ("python", "cpp")
    of_round = {name: turns[name]() for name in order}
    for at, ms in enumerate(of_round["cpp"]):
        samples[at]["cpp"].append(ms)
    for at, forms in enumerate(of_round["python"]):
        for form, ms in forms.items():
            samples[at][form].append(ms)
    del held


def main():
    options, begin = options_of_arguments(), time.monotonic()
    ranks = Ranks(options.seed)
    stretto.init(timeout=2 * CPP_S, sequence=False)
    cases = cases_of(ranks.size, options.only, options.divisor)
    samples = [{maker: [] for maker in ("cpp", *options.forms)} for _ in cases]
    result = {"machine": torch.cuda.get_device_name(0) if ON_GPU else "CPU", "driver": options.driver,
              "commit": options.commit, "command": command_line(),
              "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
              "torch": torch.__version__, "ranks": ranks.size, "seed": options.seed, "rest_ms": REST_MS,
              "warmup_ms": options.warmup,
              "samples_of_a_round": options.samples, "rounds_s": []}
    with tempfile.TemporaryDirectory(prefix="stretto-pair-") as folder:
        files = write_programs(ranks, cases, options.forms, pathlib.Path(folder))
        result["first_calls_s"] = round(time.monotonic() - begin, 1)
        for number in range(options.rounds):
            (spent,) = ranks.slowest([time.monotonic() - begin])
            if spent + max(result["rounds_s"], default=0) > options.seconds:
                break
            a_round(ranks, options, cases, files, number, samples)
            result["rounds_s"].append(round(ranks.slowest([time.monotonic() - begin])[0] - spent, 1))
            if ranks.rank == 0:
                print(f"round {number + 1}: {result['rounds_s'][-1]} s", flush=True)
                result["pairs"] = [of_rounds(case, of_case) for case, of_case in zip(cases, samples)]
                if options.out:
                    pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for row in result.get("pairs", []):
        print(summary(row, options.forms), flush=True)
    if ranks.rank == 0:
        print(f"first calls {result['first_calls_s']} s, all {time.monotonic() - begin:.0f} s", flush=True)
    stretto.finalize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
