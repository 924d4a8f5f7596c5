"""Many clients of `stretto serve` at once, on CPU ranks: what each of them reads is what it would read alone. Usage:
serve_company_test.py PATH_OF_STRETTO [unittest arguments], from the root of the repository."""

import os
import random
import threading

import cli_case
from serve_case import Server, ServeCase

SEED = int(os.environ.get("STRETTO_SEED") or random.randrange(1 << 32))
PROMPT = "libopenmpi-dev:"


class CompanyTest(ServeCase):
    def test_many_at_once_are_as_alone(self):
        """In a cache too small for all of them, so that some are cut short and begin again."""
        draw = random.Random(SEED)
        starts = [PROMPT, "gcc-doc: documentation for the GNU compilers " * 8]
        bodies = [dict(prompt=draw.choice(starts) + draw.choice(["", " a", " the", " lib"]),
                       max_tokens=draw.randrange(100, 260), temperature=draw.choice([0, 0, 0.9]),
                       seed=draw.randrange(1000), logprobs=2, echo=draw.random() < 0.3, return_token_ids=True,
                       ignore_eos=True) for _ in range(32)]
        with Server("--dtype", "float32", "--max-num-seqs", 1, "--no-prefix-caching") as server:
            alone = [server.complete(**body)["choices"] for body in bodies]
            self.assertEqual(server.metric("vllm:prefix_cache_hits_total"), 0)
        with Server("--dtype", "float32", "--tp", 1, "--kv-memory", "6MiB", "--max-model-len", 512) as server:
            together = [None] * len(bodies)

            def ask(i):
                together[i] = server.complete(**bodies[i])["choices"]

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
            for thread in threads:
                thread.start()
            most, use = 0, 0
            while any(thread.is_alive() for thread in threads):
                most = max(most, server.metric("vllm:num_requests_running"))
                use = max(use, server.metric("vllm:kv_cache_usage_perc"))
            for thread in threads:
                thread.join()
            for i, (one, other) in enumerate(zip(alone, together)):
                self.assertEqual(one, other, f"seed {SEED}, request {i}")
            self.assertGreater(most, 1)
            self.assertGreater(use, 0.5)
            self.assertGreater(server.metric("vllm:num_preemptions_total"), 0)
            self.assertGreater(server.metric("vllm:prefix_cache_hits_total"), 0)
            server.until(lambda: server.metric("vllm:num_requests_running") == 0, "idle")
            self.assertEqual(server.metric("vllm:kv_cache_usage_perc"), 0)

    def test_limits_that_do_not_fit_are_told(self):
        for args, words in (
                (["--max-num-seqs", 8, "--max-num-batched-tokens", 4], "8 running requests and 4 rows"),
                (["--kv-memory", "1KiB"], "hold no page"),
                (["--kv-memory", "1MiB", "--max-model-len", 512], "less than --max-model-len 512"),
                (["--kv-memory", "12 elephants"], "--kv-memory: 12 elephants: need a number of bytes"),
                (["--sequence-parallel"], "--sequence-parallel: a server on CPU ranks")):
            with self.assertRaisesRegex(AssertionError, words):
                Server(*args)


if __name__ == "__main__":
    cli_case.main(__doc__)
