"""One rank of bench/gpu/pytorch_suite, under torchrun: the package's calls against NCCL in sequence and PyTorch's
async-TP, eager and in captured graphs, at the shapes of overlap_torch.py; what a call costs the host; how long import
and init take; an MLP block forward and backward. Rank 0 writes JSON with every sample and prints medians."""

import time

START = time.perf_counter()
import stretto  # noqa: E402

IMPORT_S = time.perf_counter() - START

import datetime  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import statistics  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from overlap_torch import make_cases  # noqa: E402
from overlap_torch_rank import GEMM_CALLS_PER_GRAPH, NUM_SETS, Case, World, world_of_torchrun  # noqa: E402
from timing_options import command_line, parser_of  # noqa: E402
from torch import nn  # noqa: E402

import stretto.nn  # noqa: E402
from stretto import _world  # noqa: E402

BF16 = torch.bfloat16
SMALL_CALLS, SMALL_ROUNDS = 100, 20
TOKENS, HIDDEN, FFN = 8192, 4096, 14336  # Llama-3-8B
FEW_ROWS = 16, 256  # of which AG+GEMM and GEMM+RS run as collective and product, as its MLP has them


def timed(call) -> float:
    """Seconds."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


# ---- Products: {contestant: call of a buffer set}, the reference first.


def ag_gemm_calls(world: World, m: int, n: int, k: int) -> dict:
    a = [world.randn(m // world.size, k) for _ in range(NUM_SETS)]
    w = [world.randn(n, k, k**-0.5).t() for _ in range(NUM_SETS)]
    gathered = [torch.empty(m, k, device=world.device, dtype=BF16) for _ in range(NUM_SETS)]
    out, ours = (torch.empty(m, n, device=world.device, dtype=BF16) for _ in range(2))
    symmetric = [stretto.symm_mem.empty(m // world.size, k, dtype=BF16, device=world.device) for _ in range(NUM_SETS)]
    for to, x in zip(symmetric, a):
        to.copy_(x)

    def sequence(i):
        dist.all_gather_into_tensor(gathered[i], a[i])
        return torch.mm(gathered[i], w[i], out=out)

    return {
        "sequence": sequence,
        "async_tp": lambda i: torch.ops.symm_mem.fused_all_gather_matmul(a[i], [w[i]], 0, world.group,
                                                                         return_A=False)[1][0],
        "staged": lambda i: stretto.all_gather_matmul(a[i], w[i], out=ours),
        "symmetric": lambda i: stretto.all_gather_matmul(symmetric[i], w[i], out=ours),
    }


def gemm_rs_calls(world: World, m: int, n: int, k: int) -> dict:
    a = [world.randn(m, k) for _ in range(NUM_SETS)]
    w = [world.randn(n, k, (k * world.size)**-0.5).t() for _ in range(NUM_SETS)]
    partial = torch.empty(m, n, device=world.device, dtype=BF16)
    out, ours = (torch.empty(m // world.size, n, device=world.device, dtype=BF16) for _ in range(2))

    def sequence(i):
        torch.mm(a[i], w[i], out=partial)
        dist.reduce_scatter_tensor(out, partial)
        return out

    return {
        "sequence": sequence,
        "async_tp": lambda i: torch.ops.symm_mem.fused_matmul_reduce_scatter(a[i], w[i], "sum", 0, world.group),
        "staged": lambda i: stretto.matmul_reduce_scatter(a[i], w[i], out=ours),
    }


def gemm_ar_calls(world: World, m: int, n: int, k: int) -> dict:
    a = [world.randn(m, k) for _ in range(NUM_SETS)]
    w = [world.randn(n, k, (k * world.size)**-0.5).t() for _ in range(NUM_SETS)]
    plain, ours = (torch.empty(m, n, device=world.device, dtype=BF16) for _ in range(2))

    def sequence(i):
        torch.mm(a[i], w[i], out=plain)
        dist.all_reduce(plain)
        return plain

    return {"sequence": sequence, "staged": lambda i: stretto.matmul_all_reduce(a[i], w[i], out=ours)}


PRODUCTS = {"ag_gemm": ag_gemm_calls, "gemm_rs": gemm_rs_calls, "gemm_ar": gemm_ar_calls}


def run_product(world: World, case: dict, samples: int) -> dict:
    begin = time.perf_counter()
    calls = PRODUCTS[case["op"]](world, case["m"], case["n"], case["k"])
    eager = Case(world, dict(calls), "eager")
    eager.try_each(lambda: None, 0.0625 * world.size)
    row = {**case, "first_calls_s": time.perf_counter() - begin, "eager": eager.time(samples), "errors": eager.errors}
    graph = Case(world, {name: call for name, call in calls.items() if name in eager.calls and name != "async_tp"},
                 "graph", GEMM_CALLS_PER_GRAPH)
    graph.capture()
    row["graph"] = graph.time(samples)
    row["errors"].update({f"graph {name}": why for name, why in graph.errors.items()})
    return row


# ---- What a call costs the host.


def launch_alone(x, out):
    """The launch that all_reduce(x, out=out) comes to, without the way there."""
    group, seen = _world.group_of(), []
    launch = group.launch

    def remember(*arguments, **options):
        launch(*arguments, **options)
        seen[:] = group._steps[-1]

    group.plans.clear()
    group.launch = remember
    stretto.all_reduce(x, out=out)
    del group.launch
    executable, addresses, extents, said = seen
    stream = torch.cuda.current_stream().cuda_stream
    return lambda: executable.launch(*addresses, extents=extents, said=said, stream=stream)


def overheads(world: World) -> dict:
    """Microseconds of host time per call in each of some rounds, in which all calls take turns, while the GPU keeps
    up."""
    x, out = (torch.ones(16, 64, device=world.device, dtype=BF16) for _ in range(2))
    leaf = x.clone().requires_grad_()
    calls = {
        "launch alone": launch_alone(x, out),
        "all_reduce(x, out=out)": lambda: stretto.all_reduce(x, out=out),
        "all_reduce(x)": lambda: stretto.all_reduce(x),
        "torch.ops.stretto.all_reduce(x)": lambda: torch.ops.stretto.all_reduce(x, "sum", ""),
        "all_reduce(x) with gradient": lambda: stretto.all_reduce(leaf),
        "torch.empty_like(x)": lambda: torch.empty_like(x),
        "torch.add(x, x, out=out)": lambda: torch.add(x, x, out=out),
        "dist.all_reduce(x)": lambda: dist.all_reduce(out),
    }
    row = {name: [] for name in calls}
    for round_idx in range(-1, SMALL_ROUNDS):  # the first one warms up
        for name, call in calls.items():
            out.zero_()
            dist.barrier(device_ids=[world.rank])
            torch.cuda.synchronize()
            begin = time.perf_counter_ns()
            for _ in range(SMALL_CALLS):
                call()
            us = (time.perf_counter_ns() - begin) / SMALL_CALLS / 1000
            if round_idx >= 0:
                row[name].append(us)
    return row


# ---- An MLP block, forward and backward.


class GatherNccl(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = x.new_empty(x.shape[0] * dist.get_world_size(), *x.shape[1:])
        dist.all_gather_into_tensor(out, x)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(grad.shape[0] // dist.get_world_size(), *grad.shape[1:])
        dist.reduce_scatter_tensor(out, grad.contiguous())
        return out


class ScatterNccl(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = x.new_empty(x.shape[0] // dist.get_world_size(), *x.shape[1:])
        dist.reduce_scatter_tensor(out, x)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(grad.shape[0] * dist.get_world_size(), *grad.shape[1:])
        dist.all_gather_into_tensor(out, grad.contiguous())
        return out


def run_mlp(world: World, samples: int) -> dict:
    column, row = stretto.nn.ColumnParallelLinear, stretto.nn.RowParallelLinear
    options = {"bias": False, "device": world.device, "dtype": BF16}
    gate_up, down = column(HIDDEN, 2 * FFN, **options), row(FFN, HIDDEN, **options)
    linear = nn.functional.linear
    x = world.randn(TOKENS // world.size, HIDDEN)
    back = world.randn(TOKENS // world.size, HIDDEN, 1e-2)
    leaves = (x.requires_grad_(), gate_up.weight, down.weight)

    def gated(y):
        gate, up = y.chunk(2, -1)
        return nn.functional.silu(gate) * up

    def columns_nccl(rows):
        return linear(GatherNccl.apply(rows), gate_up.weight)

    def rows_nccl(hidden):
        return ScatterNccl.apply(linear(hidden, down.weight))

    whole = {
        "sequence": lambda: rows_nccl(gated(columns_nccl(x))),
        "ours": lambda: down(gated(gate_up(x))),
    }
    grads = {name: lambda _, block=block: torch.autograd.grad(block(), leaves, back) for name, block in whole.items()}
    first = [timed(whole["ours"]), timed(lambda: grads["ours"](0))]
    if world.rank == 0:  # most of it choosing, proving and compiling
        print("MLP: first forward {:.1f} s, then with its backward {:.1f} s".format(*first), flush=True)
    worst = 0.0
    for got, want in zip(grads["ours"](0), grads["sequence"](0)):
        worst = max(worst, ((got.float() - want.float()).norm() / want.float().norm()).item())
    # What it is made of: the block forward, and each layer by itself, forward and backward.
    wide, hidden = world.randn(TOKENS, 2 * FFN // world.size), world.randn(TOKENS, FFN // world.size)
    hidden.requires_grad_()
    layers = {
        "sequence columns": (columns_nccl, x, gate_up.weight, wide),
        "ours columns": (gate_up, x, gate_up.weight, wide),
        "sequence rows": (rows_nccl, hidden, down.weight, back),
        "ours rows": (down, hidden, down.weight, back),
    }
    calls = dict(grads)
    calls.update({f"{name} forward": lambda _, block=block: block() for name, block in whole.items()})
    for name, (layer, of, weight, grad) in layers.items():
        calls[f"{name} forward"] = lambda _, layer=layer, of=of: layer(of)
        calls[name] = lambda _, layer=layer, leaves=(of, weight), grad=grad: torch.autograd.grad(
            layer(leaves[0]), leaves, grad)
    case = Case(world, calls, "eager")
    return {"tokens": TOKENS, "hidden": HIDDEN, "ffn": FFN, "first_calls_s": first,
            "worst_gradient_error": world.slowest([worst])[0], **case.time(samples)}


def main():
    parser = parser_of(__doc__, samples=20)
    parser.add_argument("--only", default="", help="products whose text contains this: 'gemm_rs 8192'")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("STRETTO_TEST_SEED", "1")))
    options = parser.parse_args()
    world = world_of_torchrun(options.seed)
    rank, size = world.rank, world.size

    begin = time.perf_counter()
    stretto.init(timeout=60)
    init_s = time.perf_counter() - begin
    first = torch.ones(16, 64, device=world.device, dtype=BF16)
    first_s = timed(lambda: stretto.all_reduce(first))
    result = {
        "machine": torch.cuda.get_device_name(rank), "driver": options.driver, "commit": options.commit,
        "command": command_line(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "torch": torch.__version__, "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())), "ranks": size, "seed": options.seed,
        "startup_s": {"import": IMPORT_S, "init": init_s, "first call": first_s}, "products": [],
    }

    def show(text):
        if rank == 0:
            print(text, flush=True)

    def keep():
        if rank == 0 and options.out:
            with open(options.out, "w", encoding="utf-8") as file:
                json.dump(result, file, indent=1)
                file.write("\n")

    show(f"import {IMPORT_S:.2f} s, init {init_s:.2f} s, first call {first_s:.2f} s")
    result["overhead_us"] = overheads(world)
    for name, us in result["overhead_us"].items():
        show(f"  {name:<40}{statistics.median(us):8.2f} us")
    result["mlp"] = run_mlp(world, options.samples)
    medians = {name[:-3]: statistics.median(ms) for name, ms in result["mlp"].items() if name.endswith("_ms")}
    show(f"MLP block {TOKENS} x {HIDDEN} x {FFN}, forward and backward: sequence {medians['sequence']:.3f} ms, ours "
         f"{medians['ours']:.3f} ms, {medians['sequence'] / medians['ours']:.3f} times as fast, gradients differ by "
         f"{result['mlp']['worst_gradient_error']:.4f}")
    for what in ("forward", "columns forward", "columns", "rows forward", "rows"):
        show(f"  {what:<34}sequence {medians[f'sequence {what}']:.3f}  ours {medians[f'ours {what}']:.3f} ms")
    keep()
    products = [c for c in make_cases(size) if "bytes" not in c]
    for m in FEW_ROWS:
        products.append({"op": "ag_gemm", "ranks": size, "m": m, "n": 2 * FFN // size, "k": HIDDEN})
        products.append({"op": "gemm_rs", "ranks": size, "m": m, "n": HIDDEN, "k": FFN // size})
    for case in products:
        text = f"{case['op']} {case['m']} n={case['n']} k={case['k']}"
        if options.only not in text:
            continue
        row = run_product(world, case, options.samples)
        result["products"].append(row)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        for mode in ("eager", "graph"):
            ms = {name[:-3]: statistics.median(values) for name, values in row[mode].items()}
            show(f"{text:<34}{mode:<6}" + "".join(f"  {name} {value:.4f}" for name, value in ms.items()) + " ms")
        for name, why in row["errors"].items():
            show(f"{text}: {name}: {why}")
        keep()
    keep()
    dist.barrier(device_ids=[rank])
    stretto.finalize()
    os._exit(0)  # taking a group down that graphs have used may hang


if __name__ == "__main__":
    main()
