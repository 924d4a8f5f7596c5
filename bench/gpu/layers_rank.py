"""One rank of bench/gpu/pytorch_suite layers-bench, under torchrun: mixtures of experts and attention through the
Python package against the same in PyTorch and NCCL, eager and in graphs. Rank 0 writes JSON with every sample and
prints medians."""

import datetime
import functools
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from overlap_torch_rank import NUM_SETS, Case, World, world_of_torchrun
from timing_options import command_line, parser_of

import stretto
from stretto import expert_layers

BF16 = torch.bfloat16
EAGER_ONLY = ("exchanged",)  # the host asks for sizes, which no graph can
# name: hidden, columns of an expert, experts, experts of a token
MODELS = {"mixtral-8x7b": (4096, 14336, 8, 2), "qwen2-moe": (2048, 1408, 60, 4), "phi-3.5-moe": (4096, 6400, 16, 2),
          "32-experts": (4096, 8192, 32, 2), "128-experts": (4096, 1536, 128, 8)}


def weights(world: World, experts: int, rows: int, columns: int) -> torch.Tensor:
    """[experts, columns, rows], the transpose of a dense tensor."""
    return world.randn(experts * rows, columns, columns**-0.5).view(experts, rows, columns).mT


def numbers(world: World, experts: int) -> torch.Tensor:
    return torch.arange(experts, device=world.device, dtype=torch.int32)


def products(layer, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Of the layer's experts, in PyTorch."""
    inner = torch.nn.functional.silu(torch._grouped_mm(rows, layer.gate, ends))
    inner *= torch._grouped_mm(rows, layer.up, ends)
    return torch._grouped_mm(inner, layer.down, ends)


class Layer:
    """A mixture of experts over the ranks: `m` tokens of all, this rank's columns of every expert."""

    def __init__(self, world: World, model: str, m: int):
        self.hidden, ffn, self.experts, self.top_k = MODELS[model]
        self.world, self.m, columns = world, m, ffn // world.size
        self.x = [world.randn(m // world.size, self.hidden) for _ in range(NUM_SETS)]
        self.gate, self.up = (weights(world, self.experts, columns, self.hidden) for _ in range(2))
        self.down = weights(world, self.experts, self.hidden, columns)
        scores = torch.rand(m, self.experts, device=world.device)
        dist.broadcast(scores, 0)
        self.weights, self.chosen = scores.topk(self.top_k, -1)
        self.chosen = self.chosen.int()
        self.gathered = torch.empty(m, self.hidden, device=world.device, dtype=BF16)
        self.out = torch.empty(m // world.size, self.hidden, device=world.device, dtype=BF16)

    def sequence(self, i):
        dist.all_gather_into_tensor(self.gathered, self.x[i])
        order = self.chosen.flatten().argsort()
        ends = torch.searchsorted(self.chosen.flatten()[order], numbers(self.world, self.experts), right=True).int()
        rows = self.gathered[order // self.top_k]
        y = products(self, rows, ends)
        back = torch.empty_like(y)
        back[order] = y
        sums = (back.view(self.m, self.top_k, -1) * self.weights[:, :, None]).sum(1).to(BF16)
        dist.reduce_scatter_tensor(self.out, sums)
        return self.out

    def first(self, i):
        return stretto.all_gather_grouped_matmul(self.x[i], self.gate, self.chosen, up=self.up)

    def tables(self, _):
        routed = expert_layers.routed_desc(self.world.size, self.m, self.top_k, self.experts)
        group, kind = expert_layers.group_of(None), stretto._arrays.TorchGpuKind
        sizes = self.gate.shape[2], self.hidden
        return expert_layers._tables(group, kind, routed, "bfloat16", self.chosen, sizes, True, "tables")[1][-1]

    def ours(self, i):
        y, tiles = self.first(i)
        return stretto.grouped_matmul_reduce_scatter(y, self.down, tiles, self.weights)

    def at_once(self, i):
        return stretto.moe_layer(self.x[i], self.gate, self.up, self.down, self.chosen, self.weights)

    def calls(self) -> dict:
        return {"sequence": self.sequence, "ours": self.ours, "in one launch": self.at_once}

    def parts(self) -> dict:
        """Of ours, not compared with anything."""
        y, tiles = self.first(0)
        second = functools.partial(stretto.grouped_matmul_reduce_scatter, y, self.down, tiles, self.weights)
        return {"tables": self.tables, "tables and first": lambda i: self.first(i)[0], "second": lambda i: second()}


class SpreadLayer:
    """A mixture of experts of which every rank has some, whole: `m` tokens of all, whose experts their ranks know."""

    def __init__(self, world: World, model: str, m: int):
        self.hidden, ffn, self.experts, self.top_k = MODELS[model]
        self.world, self.m, self.share = world, m, self.experts // world.size
        tokens = m // world.size
        self.x = [world.randn(tokens, self.hidden) for _ in range(NUM_SETS)]
        self.gate, self.up = (weights(world, self.share, ffn, self.hidden) for _ in range(2))
        self.down = weights(world, self.share, self.hidden, ffn)
        self.weights, chosen = torch.rand(tokens, self.experts, device=world.device).topk(self.top_k, -1)
        self.chosen = chosen.int()

    def gathered(self, i):
        """All tokens to all, sums back: no sizes that the host would have to know."""
        x, chosen, shares = (torch.empty(self.m, mine.shape[1], device=self.world.device, dtype=mine.dtype)
                             for mine in (self.x[i], self.chosen, self.weights))
        for everyones, mine in ((x, self.x[i]), (chosen, self.chosen), (shares, self.weights)):
            dist.all_gather_into_tensor(everyones, mine)
        own = chosen.flatten() - self.world.rank * self.share
        own[(own < 0) | (own >= self.share)] = self.share  # others' come last
        order = own.argsort()
        ends = torch.searchsorted(own[order], numbers(self.world, self.share), right=True).int()
        y = products(self, x[order // self.top_k], ends)
        y.masked_fill_((own[order] == self.share)[:, None], 0)
        back = torch.empty_like(y)
        back[order] = y
        sums = (back.view(self.m, self.top_k, -1) * shares[:, :, None]).sum(1).to(BF16)
        out = torch.empty_like(self.x[i])
        dist.reduce_scatter_tensor(out, sums)
        return out

    def exchanged(self, i):
        """Each row to the rank of its expert and back, once the host knows how many there are; in no graph."""
        ranks, flat = self.world.size, self.chosen.flatten()
        order = flat.argsort(stable=True)
        sent = torch.bincount(flat, minlength=self.experts)
        arriving = torch.empty_like(sent)
        dist.all_to_all_single(arriving, sent)
        sizes = torch.stack((sent, arriving)).view(2, ranks, -1).sum(2).tolist()
        rows = torch.empty(sum(sizes[1]), self.hidden, device=self.world.device, dtype=BF16)
        dist.all_to_all_single(rows, self.x[i][order // self.top_k], sizes[1], sizes[0])
        own = numbers(self.world, self.share).repeat(ranks).repeat_interleave(arriving)
        by_expert = own.argsort(stable=True)
        ends = torch.searchsorted(own[by_expert], numbers(self.world, self.share), right=True).int()
        y = torch.empty_like(rows)
        y[by_expert] = products(self, rows[by_expert], ends)
        back = torch.empty(len(flat), self.hidden, device=self.world.device, dtype=BF16)
        dist.all_to_all_single(back, y, sizes[0], sizes[1])
        of_pairs = torch.empty_like(back)
        of_pairs[order] = back
        return (of_pairs.view(-1, self.top_k, self.hidden) * self.weights[:, :, None]).sum(1).to(BF16)

    def at_once(self, i):
        return stretto.ep_moe_layer(self.x[i], self.gate, self.up, self.down, self.chosen, self.weights, self.experts)

    def calls(self) -> dict:
        return {"gathered": self.gathered, "exchanged": self.exchanged, "in one launch": self.at_once}


def exchange_calls(world: World, rows: int, hidden: int, experts: int, top_k: int) -> dict:
    """Dispatch and combine of a step of decoding; the copy that PyTorch would make at least."""
    x = world.randn(rows, hidden)
    shares, chosen = torch.rand(rows, experts, device=world.device).topk(top_k, -1)
    everywhere = rows * world.size
    out = tuple(
        stretto.symm_mem.empty(everywhere, columns, dtype=dtype, device=world.device)
        for columns, dtype in ((hidden, BF16), (top_k, torch.float32), (top_k, torch.int32)))
    out_fp8 = tuple(
        stretto.symm_mem.empty(everywhere, columns, dtype=dtype, device=world.device)
        for columns, dtype in ((hidden, torch.float8_e4m3fn), (top_k, torch.float32), (top_k, torch.int32),
                               (hidden // 128, torch.float32)))
    chosen = chosen.int()
    sent = x.repeat(world.size, 1)
    arrived = torch.empty_like(sent)
    d = stretto.ep_dispatch(x, chosen, shares, experts, out=out)
    y = world.randn(everywhere * top_k, hidden)
    return {
        "all_to_all of all tokens": lambda i: dist.all_to_all_single(arrived, sent),
        "dispatch": lambda i: stretto.ep_dispatch(x, chosen, shares, experts, out=out).x,
        "dispatch as e4m3": lambda i: stretto.ep_dispatch(x, chosen, shares, experts, fp8=True, out=out_fp8).x,
        "combine": lambda i: stretto.ep_combine(y, d),
    }


def packed_calls(world: World, sequences: int, length: int, heads: int, kv_heads: int) -> dict:
    rows = sequences * length
    q, k, v = (world.randn(rows, h * 128).view(rows, h, 128) for h in (heads, kv_heads, kv_heads))
    starts = torch.arange(0, rows + 1, length, device=world.device, dtype=torch.int32)
    batched = [x.view(sequences, length, -1, 128).transpose(1, 2).contiguous() for x in (q, k, v)]

    def padded(_):
        out = torch.nn.functional.scaled_dot_product_attention(*batched, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).reshape(rows, heads, 128)

    return {"sdpa": padded, "packed": lambda i: stretto.packed_attention(q, k, v, starts)}


def paged_calls(world: World, sequences: int, tokens: int, heads: int, kv_heads: int) -> dict:
    """A step of decoding: bytes of the cache over time is the measure."""
    page, pages = 64, sequences * (tokens // 64)
    k, v = (world.randn(pages * kv_heads * page, 128).view(pages, kv_heads, page, 128) for _ in range(2))
    q = world.randn(sequences, heads * 128).view(sequences, heads, 128)
    table = torch.randperm(pages, device=world.device).view(sequences, -1).int()
    starts = torch.arange(sequences + 1, device=world.device, dtype=torch.int32)
    cached = torch.full((sequences,), tokens, device=world.device, dtype=torch.int32)
    return {
        "paged": lambda i: stretto.paged_attention(q, k, v, starts, table, cached),
        "decode": lambda i: stretto.paged_decode(q, k, v, table, cached),
    }


def cases(world: World):
    """(text, what makes the calls, whether they are compared with the first)."""
    for model, m in (("qwen2-moe", 8192), ("qwen2-moe", 2048), ("mixtral-8x7b", 4096), ("phi-3.5-moe", 4096)):
        layer = functools.cache(functools.partial(Layer, world, model, m))
        yield f"layer {model} m={m}", lambda layer=layer: layer().calls(), True
        yield f"layer {model} m={m}, parts", lambda layer=layer: layer().parts(), False
    for model in ("32-experts", "128-experts"):
        for m in (16, 64, 4096, 8192, 16384):
            yield f"whole {model} m={m}", lambda model=model, m=m: Layer(world, model, m).calls(), True
            yield f"spread {model} m={m}", lambda model=model, m=m: SpreadLayer(world, model, m).calls(), True
    for rows in (16, 128):
        yield (f"exchange {rows} tokens a rank", functools.partial(exchange_calls, world, rows, 7168, 256, 8), False)
    yield "attention 4 x 4096", functools.partial(packed_calls, world, 4, 4096, 32, 8), True
    for sequences, tokens in ((64, 4096), (4, 65536)):
        yield f"decoding {sequences} x {tokens}", functools.partial(paged_calls, world, sequences, tokens, 32, 8), True


def unseen(call, i):
    """The call, whose result nobody compares."""
    call(i)


def run(world: World, text: str, calls: dict, compared: bool, samples: int) -> dict:
    if not compared:
        calls = {name: functools.partial(unseen, call) for name, call in calls.items()}
    eager, row = Case(world, dict(calls), "eager"), {"case": text}
    eager.try_each(lambda: None, 0.0625 * world.size)
    row["eager"] = eager.time(samples)
    captured = {name: call for name, call in eager.calls.items() if name not in EAGER_ONLY}
    graph = Case(world, captured, "graph", NUM_SETS)
    graph.capture()
    row["graph"] = graph.time(samples)
    row["errors"] = {**eager.errors, **{f"graph {name}": why for name, why in graph.errors.items()}}
    return row


def main():
    parser = parser_of(__doc__, samples=20)
    parser.add_argument("--only", default="", help="cases whose text contains one of these: 'm=64,decoding'")
    options = parser.parse_args()
    world, rows = world_of_torchrun(int(os.environ.get("STRETTO_TEST_SEED", "1"))), []
    rank, size = world.rank, world.size
    stretto.init(timeout=60)
    out = {"machine": torch.cuda.get_device_name(rank), "driver": options.driver, "commit": options.commit,
           "command": command_line(),
           "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "ranks": size,
           "rows": rows}
    for text, make, compared in cases(world):
        if not any(part in text for part in options.only.split(",")):
            continue
        begin = time.monotonic()
        rows.append(run(world, text, make(), compared, options.samples))
        if rank != 0:
            continue
        for mode in ("eager", "graph"):
            ms = {name[:-3]: statistics.median(values) for name, values in rows[-1][mode].items()}
            times = "".join(f"  {name} {value:.4f}" for name, value in ms.items())
            print(f"{text:<36}{mode:<6}{times} ms", flush=True)
        print(f"{text}: {time.monotonic() - begin:.1f} s", flush=True)
        for name, why in rows[-1]["errors"].items():
            print(f"{text}: {name}: {why}", flush=True)
        if options.out:
            with open(options.out, "w", encoding="utf-8") as file:
                json.dump(out, file, indent=1)
    dist.barrier(device_ids=[rank])
    stretto.finalize()
    os._exit(0)  # taking a group down that graphs have used may hang


if __name__ == "__main__":
    main()
