"""One rank, under torchrun: what a user meets who calls the package with ordinary tensors. Parts, by --parts:
first: seconds of every operator's first call; host: microseconds of the host to enqueue a later one; single: one eager
call after a synchronisation, until the GPU is done; eager: calls one after the other; steps: several calls among other
work; sizes: collectives from 2 bytes to 256 MB, eager and captured; lot: products of shapes that a seed draws (a file
of `gpu_bench lot --list`), eager and captured. All beside torch.distributed over NCCL, products beside PyTorch's
async-TP too, in turn; what has a reference is compared first. Rank 0 prints medians and with -o writes every sample.

Two parts have a process of their own, since they begin with nothing made: warmed: stretto.warm_up() of all operators'
calls on rank 0, from an empty cache, then seconds of every first call; proofs: seconds of what a first call has to rank
and to prove, of each by itself on rank 0 from an empty cache, without the compiler of kernels.

    gpu_bench --seed 7 lot --list --ranks 2 > shapes.json
    torchrun --standalone --nproc-per-node 2 bench/gpu/user_rank.py --parts first,host,lot --shapes shapes.json
"""

import datetime
import json
import os
import random
import statistics
import sys
import tempfile
import time
import unittest.mock
from typing import Optional

import torch
import torch.distributed as dist
from timing_options import command_line, parser_of
from torch_turns import DEVICE, ON_GPU, captured, event, synchronize
from user_calls import BF16, all_calls, make_pairs, pair_of, randn, step_calls

import stretto
from stretto import _warm

PARTS = "first", "host", "single", "eager", "steps", "sizes", "lot"
ALONE = "warmed", "proofs"  # in a process
# A host is at times half as fast for some seconds, so all calls are made, and then all of them again.
HOST_CALLS, HOST_ROUNDS, HOST_PASSES = (20, 3, 3) if ON_GPU else (1, 1, 2)
LEAST_SAMPLES, MS_OF_SAMPLES = (20, 250.0) if ON_GPU else (2, 1.0)
MOST_PAIRS = 600  # rounds of the lot
WARMUP_MS = 60.0
MS_OF_GRAPH = 0.2  # at least, of the lot's
SIZES = [2 << shift for shift in range(0, 28, 3)]  # bytes of bf16: 2, 16, 128 .. 256 MB
NUM_SETS = 3
if not ON_GPU:
    SIZES = SIZES[:3]


class Ranks:
    """This rank among the others."""

    def __init__(self, seed: int, one_gpu: bool = False):
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        timeout = datetime.timedelta(minutes=9)  # one rank may be compiling
        self.world = None
        if ON_GPU and not one_gpu:
            from overlap_torch_rank import World
            torch.cuda.set_device(self.rank)
            self.world = World(self.rank, self.size, "env://")
        else:
            if ON_GPU:
                torch.cuda.set_device(0)
            dist.init_process_group("gloo")
        self.host = dist.new_group(backend="gloo", timeout=timeout)
        torch.manual_seed(64 * seed + self.rank)

    def meet(self):
        if self.world is not None:
            self.world.meet()
        else:
            dist.barrier()

    def end(self):
        """Ends the process, once all ranks have come here."""
        dist.barrier(group=self.host)
        stretto.finalize()
        sys.stdout.flush()
        os._exit(0)  # taking a group down that graphs have used may hang

    def slowest(self, values: list) -> list:
        x = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(x, dist.ReduceOp.MAX, group=self.host)
        return x.tolist()

    def say(self, text: str):
        if self.rank == 0:
            print(text, flush=True)


def closest(ranks: Ranks, ours: Optional[torch.Tensor], theirs: Optional[torch.Tensor]) -> float:
    """|ours - theirs| / |theirs| at the worst rank; some may have no result."""
    if ours is None or theirs is None:
        return ranks.slowest([0.0 if ours is theirs else float("inf")])[0]
    if ours.shape != theirs.shape:
        raise SystemExit(f"user_rank: shapes {tuple(ours.shape)} and {tuple(theirs.shape)}")
    if not theirs.numel():
        return ranks.slowest([0.0])[0]
    error = (ours.float() - theirs.float()).norm() / theirs.float().norm().clamp_min(1e-20)
    return ranks.slowest([error.item()])[0]


def seconds_of(ranks: Ranks, call) -> float:
    synchronize()
    dist.barrier(group=ranks.host)
    begin = time.perf_counter()
    call()
    synchronize()
    return ranks.slowest([time.perf_counter() - begin])[0]


def turns(ranks: Ranks, calls: dict, limit: int = 200, per_call: int = 1, least: int = LEAST_SAMPLES) -> dict:
    """Milliseconds {name: [sample, ..]} of the slowest rank. The calls take turns, in every round in another order:
    what the same call comes after takes some per cent of it. Ranks begin each together."""

    def once(number: int, marks=None):
        order = list(calls.items())
        random.Random(number).shuffle(order)  # the same on all ranks
        for name, call in order:
            ranks.meet()
            if marks is not None:
                marks[name][-1][0].record()
            call()
            if marks is not None:
                marks[name][-1][1].record()

    once(0)
    ms = 1e3 * seconds_of(ranks, lambda: once(1)) / len(calls)
    for number in range(int(WARMUP_MS / max(ms, 0.05)) if ON_GPU else 0):
        once(number)
    samples = min(max(int(MS_OF_SAMPLES / max(ms, 1e-3)), least), limit)
    marks = {name: [] for name in calls}
    once(0)  # the device is busy when the first sample is enqueued
    for number in range(samples):
        for pairs in marks.values():
            pairs.append((event(), event()))
        once(number, marks)
    synchronize()
    return {name: ranks.slowest([begin.elapsed_time(end) / per_call for begin, end in pairs])
            for name, pairs in marks.items()}


def host_us(ranks: Ranks, call) -> list:
    """Microseconds of the slowest rank to enqueue a call, in each of some rounds of calls that the GPU has room for."""
    rounds = []
    for _ in range(HOST_ROUNDS):
        synchronize()
        dist.barrier(group=ranks.host)
        begin = time.perf_counter()
        for _ in range(HOST_CALLS):
            call()
        rounds.append(1e6 * (time.perf_counter() - begin) / HOST_CALLS)
    synchronize()
    return ranks.slowest(rounds)


def single_ms(ranks: Ranks, calls: dict, rounds: int = 30) -> dict:
    times = {name: [] for name in calls}
    for _ in range(rounds if ON_GPU else 2):
        for name, call in calls.items():
            synchronize()
            dist.barrier(group=ranks.host)
            begin = time.perf_counter()
            call()
            synchronize()
            times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: ranks.slowest(ms) for name, ms in times.items()}


def said_of(ranks: Ranks, name: str, row: dict) -> None:
    """A line with the medians of what was measured."""
    words = [name, f"first {row['first_s']:.2f} s" if "first_s" in row else ""]
    for part in ("host_us", "single_ms", "eager_ms", "graph_ms"):
        if part in row:
            words.append(f"| {part} " + "  ".join(f"{who} {statistics.median(t):.4f}" for who, t in row[part].items()))
    ranks.say(" ".join([*words, f"| {row['error']}" if "error" in row else ""]))


def compare_call(ranks: Ranks, call, row: dict):
    error = closest(ranks, call.ours(), (call.right or call.theirs)())
    if not error <= (0.0 if call.same_bits else 0.02):
        row["error"] = f"off by {error:.3g}"


def contestants_of(call) -> dict:
    return {"ours": call.ours} if call.theirs is None else {"theirs": call.theirs, "ours": call.ours}


def run_calls(ranks: Ranks, calls: dict, parts: set, keep) -> None:
    """The parts that every operator has."""
    rows = {}
    for name, call in calls.items():
        row = rows[name] = {"call": name, "copies": call.copies, "operators": call.operators}
        try:
            row["first_s"] = seconds_of(ranks, call.ours)
            contestants = contestants_of(call)
            if call.theirs is not None:
                compare_call(ranks, call, row)
            if parts & {"host"}:
                row["host_us"] = {who: host_us(ranks, c) for who, c in contestants.items()}
            if parts & {"single"}:
                row["single_ms"] = single_ms(ranks, contestants)
            if parts & {"eager", "steps"}:
                row["eager_ms"] = turns(ranks, contestants)
            if call.theirs is not None:
                compare_call(ranks, call, row)  # as a graph by now
        except stretto.Error as error:
            row["error"] = str(error)[:400]
        keep(row)
        said_of(ranks, f"{name:<40}", row)
    for _ in range(HOST_PASSES - 1 if parts & {"host"} else 0):
        for name, row in rows.items():
            for who, us in row.get("host_us", {}).items() if "error" not in row else ():
                us += host_us(ranks, contestants_of(calls[name])[who])
    for name, row in rows.items():
        if "host_us" in row:
            said_of(ranks, f"{name:<40}, all passes", {"host_us": row["host_us"]})


def warm_up(ranks: Ranks, calls) -> None:
    pair = pair_of(ranks.rank, ranks.size)
    stretto.warm_up(calls, world_size=ranks.size, groups={pair: 2} if pair else None)


def run_warmed(ranks: Ranks, make_calls, keep) -> float:
    """Seconds that warming took; on disk for all ranks, and in the process of rank 0."""
    calls, begin, error = make_calls(), time.perf_counter(), ""
    if ranks.rank == 0:
        try:
            warm_up(ranks, lambda: [call.ours() for call in calls.values()])
        except stretto.Error as caught:  # the other ranks wait
            error = str(caught)[:400]
    seconds = ranks.slowest([time.perf_counter() - begin if ranks.rank == 0 else 0.0])[0]
    ranks.say(f"warm_up of {len(calls)} calls: {seconds:.1f} s{error and ' | ' + error}")
    for name, call in make_calls().items():  # others: what the calls above have made holds anything
        row = {"call": name, **({"error": error} if error else {})}
        try:
            row["first_s"] = seconds_of(ranks, call.ours)
        except stretto.Error as caught:
            row["error"] = str(caught)[:400]
        keep(row)
        said_of(ranks, f"{name:<40}", row)
    return seconds


def proof_seconds(ranks: Ranks, call) -> tuple:
    """(to rank, to prove) what the call launches, where that is not kept yet."""
    seconds = {"rank": 0.0, "prove": 0.0}

    def make(needed, _):
        for (sms, _, at_bounds), make_program in needed.items():
            begin = time.perf_counter()
            program = make_program(sms)
            ranked = time.perf_counter()
            program.compile(bounds_only=at_bounds, **({"num_sms": sms} if sms else {}))
            seconds["rank"] += ranked - begin
            seconds["prove"] += time.perf_counter() - ranked

    begin = time.perf_counter()
    with unittest.mock.patch.object(_warm, "_make", make):
        warm_up(ranks, call)  # products of several ranks are ranked in the call
    seconds["rank"] = time.perf_counter() - begin - seconds["prove"]
    return seconds["rank"], seconds["prove"]


def run_proofs(ranks: Ranks, calls: dict, keep) -> None:
    for name, call in calls.items():
        row = {"call": name, "first_s": 0.0}
        if ranks.rank == 0:
            try:
                row["rank_s"], row["prove_s"] = proof_seconds(ranks, call.ours)
                row["first_s"] = row["rank_s"] + row["prove_s"]
            except stretto.Error as error:
                row["error"] = str(error)[:400]
        keep(row)
        said_of(ranks, f"{name:<40}", row)


def begin_with_nothing(ranks: Ranks) -> None:
    folder = [tempfile.mkdtemp(prefix="stretto-user-") if ranks.rank == 0 else None]
    dist.broadcast_object_list(folder, 0, group=ranks.host)
    os.environ["STRETTO_CACHE_DIR"] = folder[0]


def of_size(op: str, elements: int, size: int) -> tuple:
    """(ours, theirs) of a collective whose whole array has so many elements."""
    elements = max(elements // size * size, size)
    whole, part = randn(elements), randn(elements // size)
    out, out_part = torch.empty_like(whole), torch.empty_like(part)
    ours, ours_part = torch.empty_like(whole), torch.empty_like(part)

    def summed():
        out.copy_(whole)
        dist.all_reduce(out)
        return out

    if op == "all_reduce":
        return lambda: stretto.all_reduce(whole, out=ours), summed
    if op == "all_gather":
        return (lambda: stretto.all_gather(part, out=ours),
                lambda: dist.all_gather_into_tensor(out, part) and None)
    if op == "reduce_scatter":
        return (lambda: stretto.reduce_scatter(whole, out=ours_part),
                lambda: dist.reduce_scatter_tensor(out_part, whole) and None)
    return lambda: stretto.all_to_all(whole, out=ours), lambda: dist.all_to_all_single(out, whole) and None


def in_place(elements: int) -> tuple:
    """(ours, theirs) of sums that take the place of what was added up."""
    mine, other = torch.zeros(elements, device=DEVICE, dtype=BF16), torch.zeros(elements, device=DEVICE, dtype=BF16)
    return lambda: stretto.all_reduce(mine, out=mine), lambda: dist.all_reduce(other) and None


def run_sizes(ranks: Ranks, sizes: list, keep) -> None:
    for op in ("all_reduce", "all_reduce in place", "all_gather", "reduce_scatter", "all_to_all"):
        for count in sizes:
            elements = count // 2
            ours, theirs = in_place(elements) if op.endswith("place") else of_size(op, elements, ranks.size)
            row = {"op": op, "bytes": count, "first_s": seconds_of(ranks, ours)}
            theirs()
            row["eager_ms"] = turns(ranks, {"nccl": theirs, "ours": ours}, 100)
            if ON_GPU:
                per_graph = 24 if count <= 1 << 20 else 6
                graphs = {name: captured(lambda call=call: [call() for _ in range(per_graph)])
                          for name, call in (("nccl", theirs), ("ours", ours))}
                row["graph_ms"] = turns(ranks, graphs, 40, per_graph)
            keep(row)
            said_of(ranks, f"{op} {count} bytes", row)


class Product:
    """A product of the lot with ordinary tensors, and its contestants."""

    def __init__(self, ranks: Ranks, shape: dict):
        op, size = shape["op"], ranks.size
        m, n, k = (shape[name] for name in "mnk")
        rows = m // size if op == "ag_gemm" else m
        self.op, self.size = op, size
        depth = k if op == "ag_gemm" else k * size
        self.a = [randn(rows, k) for _ in range(NUM_SETS)]
        self.w = [randn(n, k, scale=depth**-0.5).t() for _ in range(NUM_SETS)]
        self.whole = torch.empty(m, k if op == "ag_gemm" else n, device=DEVICE, dtype=BF16)
        made = m // size if op == "gemm_rs" else m
        self.out, self.mine = (torch.empty(made, n, device=DEVICE, dtype=BF16) for _ in range(2))
        # What peers read or write, where they can: the rows that are gathered, or the sums.
        self.shared_a, self.shared_out = self.a, self.mine
        if op == "ag_gemm":
            self.shared_a = [stretto.symm_mem.empty(rows, k, dtype=BF16, device=DEVICE) for _ in self.a]
            for to, x in zip(self.shared_a, self.a):
                to.copy_(x)
        elif op == "gemm_ar":
            self.shared_out = stretto.symm_mem.empty(made, n, dtype=BF16, device=DEVICE)

    def ours(self, i: int):
        return self.call()(self.a[i], self.w[i], out=self.mine)

    def symmetric(self, i: int):
        return self.call()(self.shared_a[i], self.w[i], out=self.shared_out)

    def call(self):
        return {"ag_gemm": stretto.all_gather_matmul, "gemm_rs": stretto.matmul_reduce_scatter,
                "gemm_ar": stretto.matmul_all_reduce}[self.op]

    def sequence(self, i: int):
        if self.op == "ag_gemm":
            dist.all_gather_into_tensor(self.whole, self.a[i])
            torch.mm(self.whole, self.w[i], out=self.out)
        elif self.op == "gemm_rs":
            torch.mm(self.a[i], self.w[i], out=self.whole)
            dist.reduce_scatter_tensor(self.out, self.whole)
        else:
            torch.mm(self.a[i], self.w[i], out=self.out)
            dist.all_reduce(self.out)
        return self.out

    def gemm(self, i: int):
        if self.op == "ag_gemm":
            torch.mm(self.whole, self.w[i], out=self.out)
        else:
            torch.mm(self.a[i], self.w[i], out=self.whole if self.op == "gemm_rs" else self.out)

    def async_tp(self, i: int):
        group = dist.group.WORLD.group_name
        if self.op == "ag_gemm":
            return torch.ops.symm_mem.fused_all_gather_matmul(self.a[i], [self.w[i]], 0, group, return_A=False)[1][0]
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(self.a[i], self.w[i], "sum", 0, group)

    def contestants(self, graph: bool) -> dict:
        named = {"sequence": self.sequence, "again": self.sequence, "ours": self.ours, "gemm": self.gemm}
        if self.op != "gemm_rs":  # which leaves nothing where peers do
            named["symmetric"] = self.symmetric
        if ON_GPU and not graph and self.op != "gemm_ar":
            named["async_tp"] = self.async_tp
        return named


def each_set(call):
    """The call, of one set of operands after the other."""
    turn = [0]

    def one():
        turn[0] += 1
        return call(turn[0] % NUM_SETS)

    return one


def tuned(product: Product) -> dict:
    """What stretto.tune measured of it, and took."""
    (found,) = stretto.tune(lambda: product.ours(0)) or [None]
    return {} if found is None else found._asdict()


def calls_of_graph(ranks: Ranks, product: Product) -> int:
    """So many that a graph takes longer than the host needs to enqueue it, in whole turns of the operands."""
    product.ours(0)
    once = captured(lambda: [product.ours(i) for i in range(NUM_SETS)] and None)
    once()
    begin, end = event(), event()
    synchronize()
    begin.record()
    once()
    end.record()
    synchronize()
    ms = ranks.slowest([begin.elapsed_time(end)])[0]
    return NUM_SETS * min(max(round(MS_OF_GRAPH / max(ms, 1e-3)), 1), 8)


def run_lot(ranks: Ranks, shapes: list, ends: float, least: int, tunes: bool, keep) -> int:
    """Until `ends` of time.monotonic(); returns how many shapes were left."""
    for at, shape in enumerate(shapes):
        if ranks.slowest([time.monotonic() - ends])[0] > 0:
            return len(shapes) - at
        product = Product(ranks, shape)
        row = dict(shape)
        try:
            row["first_s"] = seconds_of(ranks, lambda: product.ours(0))
            error = closest(ranks, product.ours(0), product.sequence(0))
            error = max(error, closest(ranks, product.symmetric(0), product.sequence(0)))
            if not error <= 0.02:
                row["error"] = f"off by {error:.3g}"
            calls = calls_of_graph(ranks, product) if ON_GPU else NUM_SETS
            predicted = {}
            if tunes and ON_GPU:  # as it runs without measuring, beside what measuring takes
                predicted = {"predicted": captured(lambda: [product.ours(i % NUM_SETS) for i in range(calls)] and None)}
                begin = time.perf_counter()
                row["tuned"] = tuned(product)
                row["tune_s"] = ranks.slowest([time.perf_counter() - begin])[0]
            row["eager_ms"] = turns(ranks, {name: each_set(c) for name, c in product.contestants(False).items()},
                                    MOST_PAIRS, least=least)
            if ON_GPU:
                graphs = {name: captured(lambda call=call: [call(i % NUM_SETS) for i in range(calls)] and None)
                          for name, call in product.contestants(True).items()} | predicted
                row["graph_ms"] = turns(ranks, graphs, MOST_PAIRS, calls, least)
        except stretto.Error as error:
            row["error"] = str(error)[:400]
        keep(row)
        said_of(ranks, f"{shape['op']} {shape['m']} n={shape['n']} k={shape['k']}", row)
        del product
        if ON_GPU:
            torch.cuda.empty_cache()
    return 0


def main():
    begin = time.monotonic()
    parser = parser_of(__doc__, samples=0)
    parser.add_argument("--parts", default="first,host,single,eager,steps,sizes")
    parser.add_argument("--only", default="", help="calls whose name contains this, or one of A|B")
    parser.add_argument("--again", action="store_true", help="programs of an earlier run are kept; said in the JSON")
    parser.add_argument("--bytes", default="", help="sizes of collectives, with commas; default: 2 bytes to 256 MB")
    parser.add_argument("--shapes", help="of lot")
    parser.add_argument("--one-gpu", action="store_true", help="all ranks on the first GPU, of --parts proofs, which "
                        "launch nothing")
    parser.add_argument("--named", action="store_true", help="the shapes were chosen and not drawn; said in the JSON")
    parser.add_argument("--pairs", type=int, default=LEAST_SAMPLES, help="rounds of the lot at least")
    parser.add_argument("--tune", action="store_true", help="the lot as stretto.tune has it, and as predicted")
    parser.add_argument("--seconds", type=float, default=500, help="after which no further shape of the lot begins")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("STRETTO_TEST_SEED", "1")))
    options = parser.parse_args()
    parts, only = set(options.parts.split(",")), options.only.split("|")
    if parts - {*PARTS, *ALONE}:
        raise SystemExit(f"user_rank: no part {', '.join(sorted(parts - {*PARTS, *ALONE}))}; "
                         f"there are {', '.join([*PARTS, *ALONE])}")
    if parts & set(ALONE) and len(parts) > 1:
        raise SystemExit(f"user_rank: {' and '.join(ALONE)} have a process of their own")
    if options.one_gpu and parts != {"proofs"}:
        raise SystemExit("user_rank: --one-gpu is for --parts proofs")
    ranks = Ranks(options.seed, options.one_gpu)
    stretto.init(timeout=60, share_gpus=options.one_gpu)
    make_pairs(ranks.size)
    result = {
        "machine": torch.cuda.get_device_name() if ON_GPU else "CPU", "driver": options.driver,
        "commit": options.commit, "command": command_line(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "torch": torch.__version__, "ranks": ranks.size, "seed": options.seed,
        "calls": [], "calls_again": [], "calls_warmed": [], "proofs": [], "steps": [], "sizes": [], "lot": [],
        "named": [],
    }

    def asked(calls: dict) -> dict:
        return {name: call for name, call in calls.items() if any(text in name for text in only)}

    def write():
        if ranks.rank == 0 and options.out:
            with open(options.out, "w", encoding="utf-8") as file:
                json.dump(result, file)

    def keeper(name: str):
        def keep(row: dict):
            result[name].append(row)
            write()

        return keep

    if parts & set(ALONE):
        begin_with_nothing(ranks)
    if "proofs" in parts:
        run_proofs(ranks, asked(all_calls(ranks.rank, ranks.size)), keeper("proofs"))
    if "warmed" in parts:
        make_calls = lambda: asked(all_calls(ranks.rank, ranks.size))
        result["warm_s"] = run_warmed(ranks, make_calls, keeper("calls_warmed"))
        write()
    if parts & {"first", "host", "single", "eager"}:
        calls = all_calls(ranks.rank, ranks.size)
        run_calls(ranks, asked(calls), parts, keeper("calls_again" if options.again else "calls"))
        del calls
    if "steps" in parts:
        calls = step_calls(ranks.rank, ranks.size)
        run_calls(ranks, asked(calls), parts, keeper("steps"))
        del calls
    if "sizes" in parts:
        run_sizes(ranks, [int(b) for b in options.bytes.split(",") if b] or SIZES, keeper("sizes"))
    if "lot" in parts:
        with open(options.shapes, encoding="utf-8") as file:
            name = "named" if options.named else "lot"
            result["left"] = run_lot(ranks, json.load(file), begin + options.seconds, options.pairs,
                                     options.tune, keeper(name))
        ranks.say(f"{name}: {len(result[name])} shapes, {result['left']} left")
    write()
    ranks.end()


if __name__ == "__main__":
    main()
