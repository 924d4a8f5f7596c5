#!/usr/bin/env python3
"""Tokens a second of Hugging Face transformers' continuous batching with random weights, on one GPU, in this process:
what bench/gpu/served measures of `stretto serve`, without HTTP between the client and the model. beside.py runs it:

    bench/gpu/engines/served_transformers.py CONFIG.json JOB

where JOB is JSON with "attention", "loads", "input_tokens", "output_tokens", "seconds" and "seed", a load with the
fields of Load. It stands in a folder of its own because PyTorch imports `profile`, and bench/gpu has one.

Each line of its output that begins with {"served_transformers": is a message: "facts", then of each load "begin" (what
warms it up is done) and "row", which has the keys of `stretto load --json`, or an "error".

Attention is one of ATTENTION: "sdpa" is what transformers takes where no flash-attn is installed, PyTorch's attention
with a mask over the keys of all sequences; "flash" gives transformers the FlashAttention-2 that PyTorch is built with,
over sequences one behind the other, and CUDA graphs and batches in flight as it has with flash-attn. The path with a
block table, flash_attn_with_kvcache, PyTorch has no kernel for.
"""

import argparse
import collections
import dataclasses
import gc
import itertools
import json
import math
import pathlib
import random
import sys
import time

ATTENTION = {"sdpa": "paged|sdpa", "flash": "paged|torch_varlen"}  # as transformers 5.17 names them
BLOCK = 256  # tokens of transformers' cache, its default
MAX_BATCH_TOKENS = 8192  # its default
FIRST_TOKEN, NUM_TOKENS = 32, 200  # as `stretto load` draws them
PATIENCE = 2  # a load that takes so many times as long as it was given is aborted

Load = collections.namedtuple("Load", "name concurrency requests seconds")


@dataclasses.dataclass
class Answer:
    first_s: float  # from sending it to its first token
    whole_s: float  # to its last one
    tokens: int
    failure: str


class Aborted(Exception):
    pass


class TooSlow(Aborted):
    pass


def prompts(seed, tokens):
    draw = random.Random(seed)
    while True:
        yield [FIRST_TOKEN + draw.randrange(NUM_TOKENS) for _ in range(tokens)]


def closed_loop(manager, asked, load, output_tokens, clock=time.perf_counter):
    """Sends load.concurrency requests, the next one when one has ended: in all load.requests, or fewer where the first
    one takes too long for load.seconds, but whole rounds. ([Answer], seconds from the first sent to the last ended)"""
    sent, answers, most = {}, [], load.requests
    begin = clock()

    def send():
        at = clock()
        request = manager.add_request(next(asked), max_new_tokens=output_tokens, record_timestamps=True)
        if request is None:
            raise Aborted("transformers refuses a request")
        sent[request] = at

    for _ in range(min(load.concurrency, most)):
        send()
    while sent:
        output, now = manager.get_result(timeout=1), clock()
        if output is None and not manager.is_running():
            raise Aborted(f"transformers stopped: {manager.background_thread_status.fatal_error}")
        if now - begin > PATIENCE * load.seconds:
            raise TooSlow(f"{len(answers)} of {most} requests were answered within {now - begin:.0f} s")
        if output is None or not output.is_finished():
            continue
        at = sent.pop(output.request_id)
        tokens, times = len(output.generated_tokens), output.timestamps or [now]
        wrong = "" if tokens == output_tokens else f"{tokens} tokens in place of {output_tokens}"
        answers.append(Answer(times[0] - at, now - at, tokens, output.error or wrong))
        if len(answers) == 1:
            rounds = max(1, int(load.seconds / (now - begin)))
            most = min(most, rounds * load.concurrency)
        if len(answers) + len(sent) < most:
            send()
    return answers, clock() - begin


def quantile(values, part):
    """The least value that is at least as large as so many of all, as `stretto load` has it."""
    ordered = sorted(values)
    return ordered[max(math.ceil(part * len(ordered)), 1) - 1] if ordered else 0


def quantiles_ms(seconds):
    return {f"p{round(100 * part)}": 1e3 * quantile(seconds, part) for part in (0.5, 0.9, 0.99)}


def row_of(load, answers, seconds):
    good = [a for a in answers if not a.failure]
    failures = [a.failure for a in answers if a.failure]
    row = {"load": load.name, "concurrency": load.concurrency, "requests": len(answers), "completed": len(good),
           "failed": len(failures), "output_tokens": sum(a.tokens for a in good), "seconds": seconds}
    if failures:
        return {**row, "error": f"{len(failures)} of {len(answers)} requests failed: {failures[0]}"}
    return {**row, "output_tokens_per_second": row["output_tokens"] / seconds,
            "ttft_ms": quantiles_ms([a.first_s for a in good]), "e2e_ms": quantiles_ms([a.whole_s for a in good]),
            "tpot_ms": quantiles_ms([(a.whole_s - a.first_s) / (a.tokens - 1) for a in good if a.tokens > 1])}


def varlen_attention(query, key, value, starts_q, starts_k, max_q, max_k, scale):
    """Causal attention of sequences one behind the other, their last queries at their last keys. query: [tokens, heads,
    dim], key and value: [keys, heads of keys, dim], starts: [sequences + 1]."""
    import torch
    if query.is_cuda:
        return torch.ops.aten._flash_attention_forward(query, key, value, starts_q, starts_k, max_q, max_k, 0.0, True,
                                                       False, scale=scale)[0]
    out = torch.zeros_like(query)
    for (q0, q1), (k0, k1) in zip(*(itertools.pairwise(s.tolist()) for s in (starts_q, starts_k)), strict=True):
        if q1 > q0:
            out[q0:q1] = one_sequence(query[q0:q1], key[k0:k1], value[k0:k1], scale)
    return out


def one_sequence(query, key, value, scale):
    import torch
    seen = torch.ones(len(query), len(key), dtype=torch.bool, device=query.device).tril(len(key) - len(query))
    heads_first = (t.transpose(0, 1).unsqueeze(0) for t in (query, key, value))
    out = torch.nn.functional.scaled_dot_product_attention(*heads_first, attn_mask=seen, scale=scale, enable_gqa=True)
    return out.squeeze(0).transpose(0, 1)


def check_varlen(device):
    """PyTorch's kernel is called by no documented function; it must do what transformers expects of flash-attn."""
    import torch
    lengths = [(5, 5), (1, 300), (70, 133), (0, 0), (128, 128)]  # queries, keys
    torch.manual_seed(1)
    starts = [torch.tensor([0, *itertools.accumulate(x)], dtype=torch.int32, device=device) for x in zip(*lengths)]
    query, key, value = (torch.randn(int(s[-1]), heads, 128, device=device).bfloat16()
                         for s, heads in zip((starts[0], starts[1], starts[1]), (8, 2, 2)))
    scale = 128 ** -0.5
    got = varlen_attention(query, key, value, *starts, *map(max, zip(*lengths)), scale).float().cpu()
    want = varlen_attention(*(t.cpu().float() for t in (query, key, value)), *(s.cpu() for s in starts), 0, 0, scale)
    if not (got - want).abs().max().item() < 0.03:  # bfloat16's rounding of values up to about 3
        raise Aborted(f"PyTorch's varlen attention differs by {(got - want).abs().max().item()}")


def torch_varlen(module, query, key, value, attention_mask, *, cache, cu_seq_lens_q, cu_seq_lens_k, max_seqlen_q,
                 max_seqlen_k, read_index, write_index, scaling=None, **_):
    """What transformers' paged_attention_forward does without a block table. query: [1, heads, tokens, dim]."""
    import torch
    key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, read_index=read_index,
                              write_index=write_index)
    out = varlen_attention(query.transpose(1, 2).squeeze(0).contiguous(), key.contiguous(), value.contiguous(),
                           cu_seq_lens_q.to(torch.int32), cu_seq_lens_k.to(torch.int32).clone(), max_seqlen_q,
                           max_seqlen_k, scaling)
    return out, None


def takes_ours():
    """Whether this transformers batches with an attention that others register; newer than some 5.20 it does not."""
    import transformers
    return ATTENTION["sdpa"] in transformers.AttentionInterface()


def random_model(config_file, attention, device, seed):
    import torch
    import transformers
    if attention == "flash" and not takes_ours():
        raise Aborted(f"transformers {transformers.__version__} takes no attention of others")
    transformers.AttentionInterface.register(ATTENTION["flash"], torch_varlen)
    # Where nobody sees it, it warns of each request that it computed a token too many.
    transformers.utils.logging.get_logger("ContinuousBatchingLogger").setLevel("ERROR")
    config = transformers.AutoConfig.for_model(**json.loads(pathlib.Path(config_file).read_text(encoding="utf-8")))
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(seed)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype,
                                                              attn_implementation=ATTENTION[attention])
    return model.eval()


def manager_of(model, concurrency, input_tokens, output_tokens, graphs=None):
    """With CUDA graphs and batches in flight, without them, or as transformers has it by itself."""
    import transformers
    from transformers.generation.continuous_batching import utils
    blocks = math.ceil((input_tokens + output_tokens) / BLOCK) + 1
    config = transformers.ContinuousBatchingConfig(
        block_size=BLOCK, num_blocks=math.ceil(concurrency * blocks * 1.25) + MAX_BATCH_TOKENS // BLOCK,
        max_batch_tokens=MAX_BATCH_TOKENS, max_requests_per_batch=concurrency, allow_block_sharing=False,
        max_blocks_per_request=0, use_cuda_graph=graphs, use_async_batching=graphs)
    greedy = transformers.GenerationConfig(do_sample=False, max_new_tokens=output_tokens, eos_token_id=-1,
                                           pad_token_id=0)
    hints = utils.WorkloadHints(max_prompt_length=input_tokens, max_generated_length=output_tokens,
                                num_requests=concurrency)
    return model.init_continuous_batching(generation_config=greedy, continuous_batching_config=config,
                                          workload_hints=hints)


def measure(model, job, load, tell, graphs=None):
    """The row of a load; before it a round or two that nobody times, in which graphs are captured."""
    import torch
    tokens = job["input_tokens"], job["output_tokens"]
    manager = manager_of(model, load.concurrency, *tokens, graphs)
    asked = prompts(job["seed"], tokens[0])
    manager.start()
    try:
        warm = load._replace(requests=2 * load.concurrency, seconds=load.seconds / 2)
        closed_loop(manager, asked, warm, tokens[1])
        tell({"begin": load.name})
        answers, seconds = closed_loop(manager, asked, load, tokens[1])
    finally:
        manager.stop(block=True, timeout=20, hard_stop=True)
        manager.destroy()
        del manager
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return {**row_of(load, answers, seconds), "graphs": bool(graphs)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("job", type=json.loads)
    options = parser.parse_args()
    job, end = options.job, time.perf_counter() + options.job["seconds"]

    def tell(message):
        print(json.dumps({"served_transformers": message}), flush=True)

    import torch
    import transformers
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tell({"facts": {"engine": f"transformers {transformers.__version__}", "torch": torch.__version__,
                    "attention": job["attention"]}})
    wrong = (Aborted, RuntimeError, MemoryError, ValueError)
    loads = [Load(**fields) for fields in job["loads"]]
    try:
        if job["attention"] == "flash":
            check_varlen(device)
        model = random_model(options.config, job["attention"], device, job["seed"])
    except wrong as error:
        for load in loads:
            tell({"row": {"load": load.name, "error": str(error)[:300]}})
        return
    ways = [True, False] if job["attention"] == "flash" and device == "cuda" else [None]
    for load in loads:
        row = {"load": load.name, "error": "left out for time"}
        while (left := (end - time.perf_counter()) / 2) > 1:  # half as long as the load it is warmed up
            try:
                row = measure(model, job, load._replace(seconds=min(load.seconds, left)), tell, ways[0])
            except wrong as error:
                row = {"load": load.name, "error": str(error)[:300]}
                if len(ways) > 1 and not isinstance(error, TooSlow):
                    print(f"with graphs: {error}", file=sys.stderr, flush=True)
                    ways.pop(0)
                    continue
            break
        tell({"row": row})


if __name__ == "__main__":
    main()
