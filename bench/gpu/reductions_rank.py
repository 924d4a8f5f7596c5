"""One rank, under torchrun: reductions by least, greatest and product, sums of int32, even exchanges whose sizes are
given as lists, and uneven ones whose sizes are in tensors (NCCL's time has their exchange), each against NCCL through
torch.distributed, eager, in turn on every rank, compared before they are timed. Rank 0 prints a line for each with
medians over samples: microseconds of the GPU, of the slowest rank, and of the host while the GPU keeps up; with -o it
writes every sample as JSON.

    torchrun --standalone --nproc-per-node 2 bench/gpu/reductions_rank.py
"""

import argparse
import datetime
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

import stretto
from torch_turns import ON_GPU, event, synchronize

THERE = {
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}
WARMUP, HOST_CALLS = (20, 20) if ON_GPU else (1, 2)


def all_reduce_calls(x, word):
    """{contestant: call that gives its result}; the reference first."""
    theirs, ours = x.clone(), torch.empty_like(x)

    def reference():
        theirs.copy_(x)
        dist.all_reduce(theirs, THERE[word])
        return theirs

    return {"nccl": reference, "stretto": lambda: stretto.all_reduce(x, reduce_op=word, out=ours)}


def all_to_all_calls(x, size):
    theirs, ours = torch.empty_like(x), torch.empty_like(x)
    sizes = [x.shape[0] // size] * size

    def reference():
        dist.all_to_all_single(theirs, x, sizes, sizes)
        return theirs

    return {
        "nccl": reference,
        "stretto": lambda: stretto.all_to_all(x, sizes, sizes, out=ours),
        "stretto, no lists": lambda: stretto.all_to_all(x, out=ours),
    }


def shared_copy(x):
    """Where peers can read it: rows that lie elsewhere are copied there first, all of them."""
    made = stretto.symm_mem.empty(*x.shape, dtype=x.dtype, device=x.device)
    return made.copy_(x)


def captured_too(calls, into, call, name="stretto"):
    """The calls, and one that replays call(into) of memory like that, which a graph has captured."""
    if ON_GPU:
        captured = torch.zeros_like(into)
        call(captured)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call(captured)

        def replay():
            graph.replay()
            return captured

        calls[f"{name}, captured"] = replay
    return calls


def sized_calls(x, size, split):
    """Blocks of a size for each rank that is in a tensor: NCCL's exchange of them and what waits for it, against ours,
    also captured."""
    sizes = torch.tensor(split, dtype=torch.int64, device=x.device)
    came, ours = torch.empty_like(sizes), torch.zeros(size * x.shape[0], x.shape[1], dtype=x.dtype, device=x.device)
    theirs = torch.zeros_like(ours)
    numbers = sizes.int()

    def reference():
        dist.all_to_all_single(came, sizes)
        received, sent = came.tolist(), sizes.tolist()
        dist.all_to_all_single(theirs[: sum(received)], x[: sum(sent)], received, sent)
        return theirs

    shared = shared_copy(x)

    def eager(out=ours, given=x):
        stretto.all_to_all_v(given, numbers, out=out)
        return out

    def symmetric(out=ours):
        return eager(out, shared)

    calls = {"nccl, with sizes": reference, "stretto": eager, "stretto, symmetric": symmetric}
    captured_too(calls, ours, eager)
    return captured_too(calls, ours, symmetric, "stretto, symmetric")


def gathered_calls(x, size, length):
    """The same of the first rows of each rank, for all."""
    own = torch.tensor([length], dtype=torch.int64, device=x.device)
    table = torch.empty(size, dtype=torch.int64, device=x.device)
    ours = torch.zeros(size * x.shape[0], x.shape[1], dtype=x.dtype, device=x.device)
    theirs, number = torch.zeros_like(ours), own.int()

    def reference():
        dist.all_gather_into_tensor(table, own)
        lengths = table.tolist()
        if ON_GPU:
            dist.all_gather(list(theirs[: sum(lengths)].split(lengths)), x[:length])
        else:  # gloo gathers what is as long everywhere
            every = [torch.empty_like(x) for _ in lengths]
            dist.all_gather(every, x)
            torch.cat([rows[:n] for rows, n in zip(every, lengths)], out=theirs[: sum(lengths)])
        return theirs

    shared = shared_copy(x)

    def eager(out=ours, given=x):
        stretto.all_gather_v(given, number, out=out)
        return out

    def symmetric(out=ours):
        return eager(out, shared)

    calls = {"nccl, with sizes": reference, "stretto": eager, "stretto, symmetric": symmetric}
    captured_too(calls, ours, eager)
    return captured_too(calls, ours, symmetric, "stretto, symmetric")


def splits(rows, rank, size):
    """{name: rows of this rank's block for each}: by lot, half of them to one rank, all to the next."""
    lot = torch.rand(size)
    skewed = [rows // (2 * size)] * size
    skewed[0] += rows // 2
    one = [rows if to == (rank + 1) % size else 0 for to in range(size)]
    return {"by lot": (lot / lot.sum() * rows).long().tolist(), "skewed": skewed, "one-sided": one}


def cases(device, size):
    """(name, calls)."""
    for rows in (16, 1024, 4096):
        for dtype in (torch.bfloat16, torch.float32, torch.int32):
            x = torch.randint(-2, 3, (rows, 4096), device=device).to(dtype)
            for word in THERE if dtype == torch.int32 else list(THERE)[1:]:
                yield f"all_reduce {word} {rows} x 4096 {str(dtype)[6:]}", all_reduce_calls(x, word)
        x = torch.randn(rows, 4096, device=device).to(torch.bfloat16)
        yield f"all_to_all of even lists {rows} x 4096 bfloat16", all_to_all_calls(x, size)
    for rows in (64, 1024, 4096, 16384):
        x = torch.randn(rows, 4096, device=device).to(torch.bfloat16)
        for name, split in splits(rows, dist.get_rank(), size).items():
            yield f"all_to_all of sizes on the device, {name}, {rows} x 4096 bfloat16", sized_calls(x, size, split)
        yield (f"all_gather of sizes on the device, by lot, {rows} x 4096 bfloat16",
               gathered_calls(x, size, int(torch.randint(1, rows + 1, ()))))


def slowest(values):
    x = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(x, dist.ReduceOp.MAX, group=slowest.group)
    return x.tolist()


def run(calls, samples):
    """{contestant: {"gpu_us": samples, "host_us": samples}}, once all have given the same."""
    results = [call().clone() for call in calls.values()]
    if not all(torch.equal(result, results[0]) for result in results):
        raise SystemExit("reductions_rank: results differ")
    for _ in range(WARMUP):
        for call in calls.values():
            call()
    marks = {name: [(event(), event()) for _ in range(samples)] for name in calls}
    for sample in range(samples):
        for name, call in calls.items():
            begin, end = marks[name][sample]
            begin.record()
            call()
            end.record()
    synchronize()
    row = {}
    for name, call in calls.items():
        gpu = slowest([1e3 * begin.elapsed_time(end) for begin, end in marks[name]])
        host = []
        for _ in range(5):
            dist.barrier(group=slowest.group)
            begin = time.perf_counter()
            for _ in range(HOST_CALLS):
                call()
            host.append(1e6 * (time.perf_counter() - begin) / HOST_CALLS)
            synchronize()
        row[name] = {"gpu_us": gpu, "host_us": slowest(host)}
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--only", default="", help="cases whose names have this in them")
    parser.add_argument("-o", "--output")
    arguments = parser.parse_args()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank) if ON_GPU else torch.device("cpu")
    if ON_GPU:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if ON_GPU else "gloo")
    slowest.group = dist.new_group(backend="gloo")
    stretto.init(dist.group.WORLD)
    torch.manual_seed(rank)
    rows = {}
    for name, calls in cases(device, size):
        if arguments.only not in name:
            continue
        rows[name] = run(calls, arguments.samples)
        if rank == 0:
            told = [
                f"{who} {statistics.median(t['gpu_us']):.1f} ({statistics.median(t['host_us']):.1f})"
                for who, t in rows[name].items()
            ]
            print(f"{name}: us of the GPU (of the host): {', '.join(told)}", flush=True)
    if rank == 0 and arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            json.dump(
                {
                    "machine": torch.cuda.get_device_name() if ON_GPU else "CPU",
                    "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                    "commit": os.environ.get("STRETTO_COMMIT"),
                    "command": " ".join(sys.argv),
                    "torch": torch.__version__,
                    "reductions": [{"case": name, **row} for name, row in rows.items()],
                },
                file,
            )
    stretto.finalize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
