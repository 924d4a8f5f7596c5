"""One rank of overlap_torch.py, which starts it with a job as JSON and reads rank 0's messages. Every rank does
the same calls in the same order: what differs between them (times, failures) is agreed on before it decides
anything."""

import functools
import json
import os
import sys
import threading
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

NUM_SETS = 3  # one is larger than the L2 cache where it matters: its turn comes when it has left it
SYMMETRIC_BYTES = 128 << 20  # the largest: gemm_ar with m = n = 8192
WARMUP_MS = 300
GEMM_CALLS_PER_GRAPH = 6


def calls_per_graph(size: int) -> int:
    return 24 if size <= 1 << 20 else 6  # as collectives.cc


def say(rank: int, message: dict):
    if rank == 0:
        print(json.dumps({"overlap_torch": message}), flush=True)


def refuse_multicast(rank: int):
    """Ends the program where PyTorch would use NVLink multicast in spite of the environment."""
    try:
        from torch._C._autograd import DeviceType
        from torch._C._distributed_c10d import _SymmetricMemory
        multicast = _SymmetricMemory.has_multicast_support(DeviceType.CUDA, rank)
    except (ImportError, AttributeError, TypeError):
        multicast = os.environ.get("TORCH_SYMM_MEM_DISABLE_MULTICAST") != "1"  # a version that does not tell
    if multicast:
        raise SystemExit("overlap_torch: multicast is on; set TORCH_SYMM_MEM_DISABLE_MULTICAST=1")


class World:
    """This rank's device, group and symmetric buffers."""

    def __init__(self, rank: int, size: int, init_method: str):
        self.rank, self.size = rank, size
        self.device = torch.device("cuda", rank)
        torch.cuda.set_device(self.device)
        dist.init_process_group("nccl", init_method=init_method, rank=rank, world_size=size,
                                timeout=timedelta(seconds=60), device_id=self.device)
        dist.barrier(device_ids=[rank])
        refuse_multicast(rank)
        self.group = dist.group.WORLD.group_name
        if hasattr(symm_mem, "enable_symm_mem_for_group"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                symm_mem.enable_symm_mem_for_group(self.group)
        self.symmetric = [self._shared(SYMMETRIC_BYTES // 2) for _ in range(NUM_SETS)]
        self._meeting = self._shared(1024)  # with signals of its own
        self._meeting_handle = symm_mem.rendezvous(self._meeting, self.group)

    def _shared(self, elements: int) -> torch.Tensor:
        x = symm_mem.empty(elements, dtype=torch.bfloat16, device=self.device)
        symm_mem.rendezvous(x, self.group)
        return x.zero_()

    def meet(self):
        """On the stream: the ranks begin the next call together."""
        self._meeting_handle.barrier(channel=0)

    def slowest(self, values: list) -> list:
        x = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        return x.tolist()

    def randn(self, rows: int, cols: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, cols, device=self.device, dtype=torch.bfloat16).mul_(scale)


def world_of_torchrun(seed: int) -> World:
    """Of this process, whose random tensors are its own."""
    world = World(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://")
    torch.manual_seed(seed * 64 + world.rank)
    return world


class Case:
    """Contestants of one case: a call takes the number of a buffer set and returns the result, the reference first."""

    def __init__(self, world: World, calls: dict, mode: str, per_graph: int = 1):
        self.world, self.calls, self.mode, self.per_graph = world, calls, mode, per_graph
        self.errors = {}

    def _drop_failed(self, name: str, why: str):
        """Called by every rank; drops the contestant where it failed on any."""
        if self.world.slowest([1.0 if why else 0.0])[0]:
            self.errors[name] = why or "failed on another rank"
            del self.calls[name]

    def try_each(self, prepare, tolerance: float):
        """Runs each once after `prepare` and compares it with the first; also loads kernels and makes workspaces."""
        want = None
        for name in list(self.calls):
            why, got = "", None
            prepare()
            torch.cuda.synchronize()
            try:
                got = self.calls[name](0)
                torch.cuda.synchronize()
            except Exception as e:  # whatever PyTorch throws belongs into the result
                why = f"{type(e).__name__}: {e}"[:400]
            if want is None and got is not None:
                want = got.float().clone()
            elif got is not None and not why:
                worst = (got.float() - want).abs().max().item()
                if not worst <= tolerance:
                    why = f"differs from the first by {worst:g}, allowed {tolerance:g}"
            self._drop_failed(name, why)

    def capture(self):
        """Replaces each call by a graph of some. A replay ignores the number of the set: all are in it."""
        for name, call in list(self.calls.items()):
            why, graph = "", torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    for i in range(self.per_graph):
                        call(i % NUM_SETS)
            except Exception as e:
                why = f"captured: {type(e).__name__}: {e}"[:400]
            self.calls[name] = functools.partial(self._replay, graph)
            self._drop_failed(name, why)

    @staticmethod
    def _replay(graph, _set):
        graph.replay()

    def _round(self, i: int, events=None):
        for at, call in enumerate(self.calls.values()):
            self.world.meet()
            if events:
                events[at][0].record()
            call(i % NUM_SETS)
            if events:
                events[at][1].record()

    def time(self, samples: int, warmup_ms: float = WARMUP_MS) -> dict:
        """Milliseconds of a call on the slowest rank, in turn: {name + '_ms': [sample, ...]}."""
        if not self.calls:
            return {}
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._round(0)
        torch.cuda.synchronize()
        begin.record()
        self._round(1)
        end.record()
        torch.cuda.synchronize()
        ms = self.world.slowest([begin.elapsed_time(end)])[0]
        for i in range(int(min(max(warmup_ms / max(ms, 1e-3), 3), 300))):
            self._round(i)
        torch.cuda.synchronize()
        self._round(0)  # the device is busy when the first sample is enqueued
        events = [[[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in self.calls]
                  for _ in range(samples)]
        for i in range(samples):
            self._round(i, events[i])
        torch.cuda.synchronize()
        times = {}
        for at, name in enumerate(self.calls):
            mine = [e[at][0].elapsed_time(e[at][1]) / self.per_graph for e in events]
            times[name + "_ms"] = self.world.slowest(mine)
        return times


def make_ag_gemm(world: World, m: int, n: int, k: int) -> Case:
    a = [world.randn(m // world.size, k) for _ in range(NUM_SETS)]
    w = [world.randn(n, k, k**-0.5) for _ in range(NUM_SETS)]
    gathered = [torch.empty(m, k, device=world.device, dtype=torch.bfloat16) for _ in range(NUM_SETS)]
    out = torch.empty(m, n, device=world.device, dtype=torch.bfloat16)

    def sequence(i):
        dist.all_gather_into_tensor(gathered[i], a[i])
        return torch.mm(gathered[i], w[i].t(), out=out)

    def async_tp(i):
        return torch.ops.symm_mem.fused_all_gather_matmul(a[i], [w[i].t()], 0, world.group, return_A=False)[1][0]

    def gemm(i):
        return torch.mm(gathered[i], w[i].t(), out=out)

    case = Case(world, {"sequence": sequence, "async_tp": async_tp}, "eager")
    case.try_each(lambda: None, 0.0625 * world.size)
    for i in range(NUM_SETS):
        sequence(i)  # gathers what the product alone reads
    case.calls["gemm"] = gemm
    return case


def make_gemm_rs(world: World, m: int, n: int, k: int) -> Case:
    a = [world.randn(m, k) for _ in range(NUM_SETS)]
    w = [world.randn(n, k, (k * world.size)**-0.5) for _ in range(NUM_SETS)]
    partial = torch.empty(m, n, device=world.device, dtype=torch.bfloat16)
    out = torch.empty(m // world.size, n, device=world.device, dtype=torch.bfloat16)

    def sequence(i):
        torch.mm(a[i], w[i].t(), out=partial)
        dist.reduce_scatter_tensor(out, partial)
        return out

    def async_tp(i):
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(a[i], w[i].t(), "sum", 0, world.group)

    def gemm(i):
        return torch.mm(a[i], w[i].t(), out=partial)

    case = Case(world, {"sequence": sequence, "async_tp": async_tp}, "eager")
    case.try_each(lambda: None, 0.0625 * world.size)
    case.calls["gemm"] = gemm
    return case


def make_gemm_ar(world: World, m: int, n: int, k: int) -> Case:
    a = [world.randn(m, k) for _ in range(NUM_SETS)]
    w = [world.randn(n, k, (k * world.size)**-0.5) for _ in range(NUM_SETS)]
    shared = [s[:m * n].view(m, n) for s in world.symmetric]
    plain = torch.empty(m, n, device=world.device, dtype=torch.bfloat16)

    def sequence(i):
        torch.mm(a[i], w[i].t(), out=plain)
        dist.all_reduce(plain)
        return plain

    def one_shot(i):
        torch.mm(a[i], w[i].t(), out=shared[i])
        return torch.ops.symm_mem.one_shot_all_reduce(shared[i], "sum", world.group)

    def two_shot(i):
        torch.mm(a[i], w[i].t(), out=shared[i])
        return torch.ops.symm_mem.two_shot_all_reduce_(shared[i], "sum", world.group)

    def gemm(i):
        return torch.mm(a[i], w[i].t(), out=plain)

    case = Case(world, {"sequence": sequence, "one_shot": one_shot, "two_shot": two_shot}, "graph",
                GEMM_CALLS_PER_GRAPH)
    case.try_each(lambda: None, 0.0625 * world.size)
    case.calls["gemm"] = gemm
    gemm(0)
    torch.cuda.synchronize()
    case.capture()
    return case


def make_all_reduce(world: World, count: int) -> Case:
    elements = count // 2
    shared = [s[:elements] for s in world.symmetric]
    plain = [torch.zeros(elements, device=world.device, dtype=torch.bfloat16) for _ in range(NUM_SETS)]
    values = torch.randn(elements, device=world.device, dtype=torch.bfloat16)

    def prepare():
        for x in (shared[0], plain[0]):
            x.copy_(values)

    def nccl(i):
        dist.all_reduce(plain[i])
        return plain[i]

    def one_shot(i):
        return torch.ops.symm_mem.one_shot_all_reduce(shared[i], "sum", world.group)

    def two_shot(i):
        return torch.ops.symm_mem.two_shot_all_reduce_(shared[i], "sum", world.group)

    case = Case(world, {"nccl": nccl, "one_shot": one_shot, "two_shot": two_shot}, "graph", calls_per_graph(count))
    case.try_each(prepare, 0.0625 * world.size)
    for x in (*shared, *plain):
        x.zero_()  # sums in place, again and again, stay finite
    torch.cuda.synchronize()
    case.capture()
    return case


def run_case(world: World, case: dict, samples: int) -> dict:
    torch.cuda.synchronize()
    dist.barrier(device_ids=[world.rank])
    if "bytes" in case:
        made = make_all_reduce(world, case["bytes"])
    else:
        make = {"ag_gemm": make_ag_gemm, "gemm_rs": make_gemm_rs, "gemm_ar": make_gemm_ar}[case["op"]]
        made = make(world, case["m"], case["n"], case["k"])
    row = {**case, made.mode: made.time(samples)}
    if made.errors:
        row["errors"] = made.errors
    return row


def main():
    job = json.loads(sys.argv[1])
    limit = threading.Timer(job["seconds"] + 10, os._exit, (4,))  # where nobody else ends this process
    limit.daemon = True
    limit.start()
    rank = job["rank"]
    world = World(rank, job["world"], f"tcp://127.0.0.1:{job['port']}")
    torch.manual_seed(job["seed"] + rank)
    say(rank, {"facts": {"machine": torch.cuda.get_device_name(rank), "torch": torch.__version__,
                         "cuda": torch.version.cuda, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}})
    for index, case in job["cases"].items():
        say(rank, {"begin": index})
        row = run_case(world, case, job["samples"])
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        say(rank, {"end": index, "row": row})
    sys.stdout.flush()
    os._exit(0)  # taking a group down that graphs have used may hang


if __name__ == "__main__":
    main()
