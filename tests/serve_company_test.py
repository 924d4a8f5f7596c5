"""Many clients of `stretto serve` at once, on CPU ranks: what each of them reads is what it would read alone. Usage:
serve_company_test.py PATH_OF_STRETTO [unittest arguments], from the root of the repository."""

import json
import os
import random
import re
import subprocess
import threading
import time

import cli_case
from cli_case import ROOT, run
from serve_case import WAIT, Server, ServeCase

SEED = int(os.environ.get("STRETTO_TEST_SEED") or random.randrange(1 << 32))
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
        for way in ("--no-async-scheduling", "--async-scheduling"):
            with self.subTest(way=way):
                self.are_as_alone(bodies, alone, way)

    def are_as_alone(self, bodies, alone, way):
        with Server("--dtype", "float32", "--tp", 1, "--kv-memory", "6MiB", "--max-model-len", 512, way) as server:
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
            self.assertEqual(server.metric("stretto:tokens_chosen_total"),
                             server.metric("vllm:generation_tokens_total"))
            self.assertGreater(server.metric("stretto:device_busy_seconds_total"), 0)
            self.assertGreater(server.metric("stretto:device_wait_seconds_total"), 0)

    def test_a_cache_of_fp8_holds_more_and_answers_alike_in_company(self):
        draw = random.Random(SEED)
        start = "gcc-doc: documentation for the GNU compilers " * 3
        bodies = [dict(prompt=start + draw.choice(["", " a", " the", " lib"]), max_tokens=draw.randrange(60, 150),
                       temperature=0, seed=1, logprobs=2, return_token_ids=True, ignore_eos=True) for _ in range(8)]
        options = ("--dtype", "float32", "--max-model-len", 384)
        with Server(*options, "--kv-dtype", "fp8", "--max-num-seqs", 1, "--no-prefix-caching") as server:
            self.assertEqual(server.stats()["cache"]["dtype"], "fp8")
            self.assertIn('cache_dtype="fp8"', server.call("GET", "/metrics")[2].decode())
            alone = [server.complete(**body)["choices"] for body in bodies]
        with Server(*options, "--kv-memory", "2MiB") as server:
            self.assertEqual(server.stats()["cache"]["dtype"], "float32")
            tokens = server.stats()["cache"]["tokens"]
        with Server(*options, "--kv-memory", "2MiB", "--kv-dtype", "fp8") as server:
            self.assertGreater(server.stats()["cache"]["tokens"], 3 * tokens)
            together = [None] * len(bodies)

            def ask(i):
                together[i] = server.complete(**bodies[i])["choices"]

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for i, (one, other) in enumerate(zip(alone, together)):
                self.assertEqual(one, other, f"seed {SEED}, request {i}")

    def test_limits_that_do_not_fit_are_told(self):
        for args, words in (
                (["--max-num-seqs", 8, "--max-num-batched-tokens", 4],
                 "--max-num-batched-tokens: 4 rows.*--max-num-seqs"),
                (["--kv-memory", "1KiB"], "hold no page"),
                (["--kv-memory", "1MiB", "--max-model-len", 512], "less than --max-model-len 512"),
                (["--kv-memory", "12 elephants"], "--kv-memory: 12 elephants: need a number of bytes"),
                (["--sequence-parallel"], "--sequence-parallel: a server keeps whole rows")):
            with self.assertRaisesRegex(AssertionError, words):
                Server(*args, model=str(ROOT / "checkpoints/debian-llama-8m"))

    def test_salts_keep_prefixes_apart(self):
        prompt = "gcc-doc: documentation for the GNU compilers " * 12
        with Server() as server:
            hits = [0]
            for salt, found in ((None, False), (None, True), ("a", False), ("a", True), ("b", False)):
                body = dict(prompt=prompt, max_tokens=2, temperature=0, **({"cache_salt": salt} if salt else {}))
                self.assertEqual(server.post("/v1/completions", body)[0], 200)
                hits.append(server.metric("vllm:prefix_cache_hits_total"))
                self.assertEqual(hits[-1] > hits[-2], found, salt)

    def test_a_stream_that_waits_says_so(self):
        """Proxies close what is silent: comments come until the first token does, and the answer is the same."""
        long = dict(prompt=PROMPT, max_tokens=900, temperature=0, ignore_eos=True, n=3)
        asks = {"/v1/completions": {"prompt": PROMPT, "max_tokens": 3, "stream": True},
                "/v1/chat/completions": {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3,
                                         "stream": True},
                "/v1/responses": {"input": PROMPT, "max_output_tokens": 3, "stream": True}}
        for seconds, comments in (("0.0009", True), ("0", False)):  # less than a millisecond is not never
            with Server("--max-num-seqs", 1, "--sse-keep-alive", seconds) as server:
                answers = {}

                def ask(path, body):
                    answers[path] = server.call("POST", path, body)[2].decode()
                first = threading.Thread(target=server.post, args=("/v1/completions", long))
                first.start()
                server.until(lambda: server.metric("vllm:num_requests_running") == 1, "running")
                clients = [threading.Thread(target=ask, args=item) for item in asks.items()]
                for client in clients:
                    client.start()
                for client in clients:
                    client.join()
                first.join()
                for path, text in answers.items():
                    with self.subTest(path=path, seconds=seconds):
                        self.assertEqual(text.count(": keep-alive\n\n") > 1, comments, text[:300])
                        events = [e for e in text.split("\n\n") if e and not e.startswith(":")]
                        self.assertTrue(all(e.startswith(("data: ", "event: ")) for e in events), text[:300])
                        if comments:
                            self.assertTrue(text.startswith(":"), text[:100])
                        if path != "/v1/responses":
                            self.assertEqual(events[-1], "data: [DONE]")

    def test_priorities_pass_those_who_wait(self):
        self.assertEqual(self.order_of_priorities("--max-wait-steps", 0), [2, 4, 0, 3, 1])

    def test_who_has_waited_for_long_passes_all_priorities(self):
        order = self.order_of_priorities("--max-wait-steps", 20, apart=5)
        self.assertEqual(sorted(order[:2]), [0, 1], order)  # who came first, though 1 has the lowest priority

    def order_of_priorities(self, *options, apart=0):
        """In which five requests end that waited for one of 900 steps, and came so many steps apart at least."""
        with Server("--max-num-seqs", 1, *options) as server:
            long = dict(prompt=PROMPT, max_tokens=900, temperature=0, ignore_eos=True, priority=-2, n=2)

            def ask(name, body):
                self.assertEqual(server.post("/v1/completions", body, {"X-Request-Id": f"asks-{name}"})[0], 200)
            clients = [threading.Thread(target=ask, args=("first", long))]
            clients[0].start()
            server.until(lambda: server.metric("vllm:num_requests_running") == 1, "running")
            short = dict(prompt=PROMPT, max_tokens=30, ignore_eos=True)
            for number, priority in enumerate((0, 5, -1, 0, -1)):
                clients.append(threading.Thread(target=ask, args=(number, {**short, "priority": priority})))
                clients[-1].start()
                server.until(lambda: server.metric("vllm:num_requests_waiting") >= 2 + number, "waiting")
                then = server.metric("vllm:iteration_tokens_total_count") + apart
                server.until(lambda: server.metric("vllm:iteration_tokens_total_count") >= then, "steps")
            for client in clients:
                client.join()
            answered = re.compile(r'"id":"asks-(\w+)"')  # the access log's order; clients may wake in another
            server.until(lambda: len(answered.findall(server.said())) == 6, "logged")
            first, *ended = answered.findall(server.said())
            self.assertEqual(first, "first")
            return [int(number) for number in ended]

    def test_usage_tells_what_was_in_the_cache(self):
        """Of prompts, choices counted once, whole and streamed; the histogram of computed tokens agrees."""
        prompt = "gcc-doc: documentation for the GNU compilers " * 12
        with Server() as server:
            def cached(**more):
                usage = server.complete(prompt=prompt, max_tokens=2, **more)["usage"]
                return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
            tokens, none = cached()
            self.assertEqual(none, 0)
            there = (tokens - 1) // 64 * 64
            self.assertGreater(there, 0)
            self.assertEqual(cached(), (tokens, there))
            self.assertEqual(cached(n=3), (tokens, there))
            self.assertEqual(cached(cache_salt="a"), (tokens, 0))
            self.assertEqual(server.metric("vllm:request_prefill_kv_computed_tokens_sum"),
                             6 * tokens - 4 * there)
            last = server.stream(prompt=prompt, max_tokens=2, stream_options={"include_usage": True})[-1]
            self.assertEqual(last["usage"]["prompt_tokens_details"], {"cached_tokens": there})
            talk = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 2}
            for body in (talk, talk):
                chat = server.post("/v1/chat/completions", body)[1]["usage"]
            self.assertEqual(chat["prompt_tokens_details"]["cached_tokens"], (chat["prompt_tokens"] - 1) // 64 * 64)
            responses = server.post("/v1/responses", {"input": prompt, "max_output_tokens": 2})[1]["usage"]
            self.assertEqual(responses["input_tokens_details"]["cached_tokens"], there)

    def test_fastest_is_taken_and_told(self):
        with Server("--fastest") as server:
            self.assertIn("--fastest: on CPU ranks nothing is faster", server.said())
            self.assertEqual(server.complete(prompt="x", max_tokens=3)["object"], "text_completion")

    def test_a_request_may_have_a_time_limit(self):
        """What runs, what waits, and what was late before it came; the others do not notice."""
        with Server("--max-num-seqs", 1, "--max-num-batched-tokens", 64) as server:
            long = dict(prompt=PROMPT, max_tokens=400, temperature=0, ignore_eos=True)
            answers = {}

            def ask(name, **more):
                answers[name] = server.post("/v1/completions", dict(long, **more))
            clients = [threading.Thread(target=ask, args=("first",))]
            clients[0].start()
            server.until(lambda: server.metric("vllm:num_requests_running") == 1, "running")
            for name, limit in (("waits", 0.01), ("none", 0)):
                clients.append(threading.Thread(target=ask, args=(name,), kwargs={"timeout_s": limit}))
                clients[-1].start()
            for client in clients:
                client.join()
            ask("runs", timeout_s=0.02, max_tokens=450)
            self.assertEqual(answers["first"][0], 200)
            self.assertEqual(answers["first"][1]["usage"]["completion_tokens"], 400)
            for name in ("waits", "none", "runs"):
                status, answer = answers[name]
                self.assertEqual((status, "time limit" in answer["error"]["message"]), (408, True), answer)
            server.until(lambda: server.metric("vllm:num_requests_running") == 0, "idle")
            self.assertEqual(server.metric("vllm:kv_cache_usage_perc"), 0)
            for field, bad in (("timeout_s", -1), ("timeout_s", "1"), ("priority", 1.5), ("priority", 1 << 40),
                               ("cache_salt", ""), ("cache_salt", 3), ("cache_salt", "s" * 2000)):
                self.refusal(server, {"prompt": "a", field: bad}, param=field)
            self.assertEqual(server.post("/v1/completions", {"prompt": "a", "priority": -3})[0], 200)
        with Server("--request-timeout", 0.02) as server:
            self.assertEqual(server.post("/v1/completions", dict(long, timeout_s=100))[0], 408)
            self.assertRegex(server.said(), r"on each rank weights [\d.]+ MiB, steps [\d.]+ MiB \([\d.]+ without")

    def test_load_tells_how_long_requests_took(self):
        args = ["--requests", 12, "--input-tokens", 20, "--output-tokens", 8, "--json"]
        with Server() as server:
            url = f"http://127.0.0.1:{server.port}"
            for how in (["--concurrency", 4], ["--rate", 200, "--slo-ttft-ms", 60000]):
                got = json.loads(run("load", "--url", url, *args, *how).stdout)
                self.assertEqual(set(got), {"requests", "completed", "failed", "output_tokens_per_second", "goodput",
                                            "ttft_ms", "tpot_ms", "e2e_ms"})
                self.assertEqual((got["requests"], got["completed"], got["failed"]), (12, 12, 0))
                self.assertGreater(got["output_tokens_per_second"], 0)
                for times in (got["ttft_ms"], got["tpot_ms"], got["e2e_ms"]):
                    self.assertTrue(0 < times["p50"] <= times["p90"] <= times["p99"], times)
            self.assertEqual(server.metric("vllm:generation_tokens_total"), 2 * 12 * 8)
            table = run("load", "--url", url, *args[:-1], "--concurrency", 2).stdout.decode()
            self.assertIn("12 requests, 12 completed, 0 failed", table)
            too_long = run("load", "--url", url, "--requests", 2, "--input-tokens", 100000, "--output-tokens", 1,
                           "--concurrency", 1, "--json")
            self.assertEqual(too_long.returncode, 1)
            self.assertIn("maximum context length", too_long.stderr.decode())
            self.assertEqual(json.loads(too_long.stdout)["failed"], 2)
            before = server.metric("vllm:generation_tokens_total")
            bursts = json.loads(run("load", "--url", url, *args, "--rate", 200, "--burstiness", 0.2).stdout)
            self.assertEqual(bursts["completed"], 12)
            self.assertEqual(server.metric("vllm:generation_tokens_total"), before + 12 * 8)
        gone = run("load", "--url", url, *args, "--concurrency", 1)
        self.assertEqual((gone.returncode, gone.stdout), (2, b""))
        for bad in ("localhost:8000", "http://:80", "http://h:8x", "https://h"):
            told = run("load", "--url", bad, *args, "--concurrency", 1).stderr.decode()
            self.assertIn("need http://HOST:PORT", told)
        self.assertIn("either --rate or --concurrency", run("load", "--url", url, *args).stderr.decode())

    def test_load_keeps_nothing_of_requests_that_ended(self):
        """A trace of many requests in little memory: each one's thread ends with its answer. 400 stacks of threads
        are 3 GiB."""
        trace = self.tmp / "many.csv"
        trace.write_text("Timestamp,Request tokens,Response tokens\n" +
                         "".join(f"{i * 0.02:.2f},4,1\n" for i in range(400)))
        with Server("--max-num-seqs", 32) as server:
            command = ["sh", "-c", 'ulimit -v 1500000; exec "$@"', "sh", cli_case.STRETTO, "load", "--url",
                       f"http://127.0.0.1:{server.port}", "--trace", str(trace), "--json"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, cwd=ROOT, check=False)
            if "ReserveShadowMemoryRange" in done.stderr or "Sanitizer" in done.stderr:
                self.skipTest("sanitizers need more")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["completed"], 400)

    # The first lines of BurstGPT's files, whose rows with 0 response tokens are failures.
    TRACE = ("Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\r\n"
             "5.5,a,1,ChatGPT,30,5,35,Conversation log\r\n5,b,1,GPT-4,12,0,12,API log\r\n"
             "6.25,,2,ChatGPT,7,3,10,API log\r\n")

    def test_load_replays_a_trace(self):
        trace = self.tmp / "burst.csv"
        trace.write_bytes(self.TRACE.encode())
        with Server() as server:
            url = f"http://127.0.0.1:{server.port}"
            begin = time.monotonic()
            got = json.loads(run("load", "--url", url, "--trace", trace, "--json").stdout)
            self.assertGreater(time.monotonic() - begin, 1.25)
            self.assertEqual((got["requests"], got["completed"]), (3, 3))
            self.assertEqual(server.metric("vllm:generation_tokens_total"), 5 + 1 + 3)
            self.assertEqual(server.metric("vllm:prompt_tokens_total"), 30 + 12 + 7)
            run("load", "--url", url, "--trace", trace, "--requests", 1, "--concurrency", 1)
            self.assertEqual(server.metric("vllm:prompt_tokens_total"), 30 + 12 + 7 + 12)  # the earliest
            for line, told in (("x,a,1,M,1,1,2,l", ":5: Timestamp: need a number"),
                               ("1,a,1,M,-1,1,2,l", ":5: Request tokens: need a number"),
                               ("1,a,1,M,1,1e3,2,l", ":5: Response tokens: need a number"),
                               ("1,2", ":5: has 2 columns, the first line 8")):
                trace.write_text(self.TRACE + line)
                self.assertIn(f"{trace}{told}", run("load", "--url", url, "--trace", trace).stderr.decode())
            trace.write_text("Timestamp,Tokens\n1,2\n")
            self.assertIn(f"{trace}:1: has no column 'Request tokens'",
                          run("load", "--url", url, "--trace", trace).stderr.decode())


if __name__ == "__main__":
    cli_case.main(__doc__)
