"""What users of other servers complained about, each with a test here or elsewhere that would have caught it. Usage:
complaints_test.py PATH_OF_STRETTO [unittest arguments], from the root of the repository. STRETTO_SOAK: the soak asks
100,000 times.

| complaint | tests |
|---|---|
| an answer goes on after its client has gone | test_a_client_that_goes_ends_its_request, test_abort |
| a cancellation hits others | test_others_notice_nothing_of_those_who_go |
| memory grows | test_soak |
| wrong prompts | test_conversations_through_templates_of_the_families, test_lines_of_errors |
| wrong calls of tools | TakesCallsByLotApart, LosesNothingOfWhatIsNoCall, StrictToolsAreCalledAsTheySay |
| stop strings leak, repeat text | AllWaysToCutATextIntoTokensEndItAlike, RandomTextsAgreeWithTheDefinition |
| text is held back too long | HoldsBackNoMoreThanItMust, HoldsBackNoMoreThanATag |
| tokenising one prompt stops everybody | test_a_long_prompt_holds_up_nobody_of_2000 |
| a few long prompts hold up short ones | test_short_texts_do_not_wait_for_long_ones |
| the prefix cache changes answers | test_many_at_once_are_as_alone, FindsNothingUnderAnotherSalt |
| no memory, or a refusal, at the start or later | test_limits_that_do_not_fit_are_told, test_a_start_that_fails |
| temperature 0 says other things under load | AnswersAreThoseOfRequestsAlone, test_many_at_once_are_as_alone |
| metrics vanish or have other names | test_metrics_keep_their_names |
| log-probabilities are wrong | test_logprobs_are_the_models, test_many_at_once_are_as_alone |
| constrained answers hang or kill the engine | test_hostile_schemas, WhatCannotBeIsRefusedSoon |
| one bad request kills | test_no_input_is_a_server_error, test_requests_in_packets_cut_anywhere, test_random_bodies |
| a request with a priority waits like others | test_priorities_pass_those_who_wait |
| a server that starts says nothing for minutes | test_it_tells_what_it_does |
| proxies cut off who waits | test_a_stream_that_waits_says_so |
| an agent's broken call is refused ever after | test_forms_of_messages |
| the engine stays dead after a fault | WhoRunsIsToldAndWhoWaitsIsServed, ClientsHear503 |
| a trace of many requests ends the load generator | test_load_keeps_nothing_of_requests_that_ended |
"""

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import resource
import threading
import time

import cli_case
from cli_case import ROOT
from serve_case import WAIT, Server, ServeCase

SEED = int(os.environ.get("STRETTO_TEST_SEED") or random.randrange(1 << 32))
PROMPT = "libopenmpi-dev:"
# As vLLM 0.33 has them, and two older names; dashboards ask for these.
METRICS = """num_requests_running num_requests_waiting num_requests_waiting_by_reason kv_cache_usage_perc
gpu_cache_usage_perc cache_config_info prompt_tokens_total generation_tokens_total prefix_cache_queries_total
prefix_cache_hits_total num_preemptions_total prompt_tokens_cached_total request_success_total
admission_rejections_total""".split()
FINE = [.001, .002, .003, .005]  # below what vLLM has: tokens may come faster than it tells apart
BETWEEN = [.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80]
WHOLE = [.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680]
TOKENS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000]
HISTOGRAMS = {
    "time_to_first_token_seconds": [.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40,
                                    80, 160, 640, 2560],
    **dict.fromkeys(("inter_token_latency_seconds", "time_per_output_token_seconds",
                     "request_time_per_output_token_seconds"), FINE + BETWEEN),
    **dict.fromkeys(("e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds",
                     "request_prefill_time_seconds", "request_decode_time_seconds"), WHOLE),
    **dict.fromkeys(("request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens",
                     "request_params_max_tokens", "request_prefill_kv_computed_tokens"), TOKENS),
    "iteration_tokens_total": [1] + [2**i for i in range(3, 15)],
    "request_params_n": [1, 2, 5, 10, 20], "request_num_preemptions": [0, 1, 2, 5, 10, 20]}


class ComplaintsTest(ServeCase):
    def test_the_tests_that_the_table_names(self):
        named = set(re.findall(r"\b(?:test_[a-z0-9_]+|[A-Z][a-z]+(?:[A-Z][a-z]*){2,})\b", __doc__))
        sources = [*ROOT.glob("tests/*.py"), *ROOT.glob("tests/*_test.cc"), *ROOT.glob("stretto/**/*_test.cc")]
        code = "\n".join(source.read_text() for source in sources)
        known = set(re.findall(r"def (test_\w+)|TEST(?:_[FP])?\(\w+, (\w+)\)", code))
        known = {name for pair in known for name in pair if name}
        self.assertGreater(len(named), 20)
        self.assertEqual(named - known, set())

    def test_others_notice_nothing_of_those_who_go(self):
        """Half of the clients close in some state of their request, streamed or not."""
        draw = random.Random(SEED)
        bodies = [{"prompt": PROMPT + " x" * i, "max_tokens": 60, "temperature": 0.8, "seed": i, "ignore_eos": True}
                  for i in range(24)]
        way = draw.choice(["--async-scheduling", "--no-async-scheduling"])
        with Server("--dtype", "float32", "--max-num-seqs", 6, way) as server:
            alone = [server.complete(**body)["choices"][0]["text"] for body in bodies[::2]]

            def go(body):
                text = json.dumps({**body, "stream": draw.random() < 0.5, "max_tokens": 800}).encode()
                with server.connect() as sock:
                    sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(text))
                    sock.sendall(text[:draw.randrange(1, len(text) + 1)] if draw.random() < 0.2 else text)
                    time.sleep(draw.random())

            with concurrent.futures.ThreadPoolExecutor(24) as pool:
                going = [pool.submit(go, body) for body in bodies[1::2]]
                staying = [pool.submit(server.complete, **body) for body in bodies[::2]]
                together = [answer.result()["choices"][0]["text"] for answer in staying]
                for one in going:
                    one.result()
            self.assertEqual(together, alone, f"seed {SEED}, {way}")
            server.until(lambda: server.metric("vllm:num_requests_running") == 0, "idle")
            self.assertEqual(server.metric("vllm:kv_cache_usage_perc"), 0)

    def streams_that_wait(self, server, count):
        """Sockets whose streams have begun and have no token yet: others go first."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        body = json.dumps({"prompt": PROMPT, "max_tokens": 1, "stream": True, "priority": 9}).encode()
        out = []
        for _ in range(count):
            out.append(self.enterContext(server.connect()))
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            out[-1].sendall(head + body)
        for sock in out:
            self.assertTrue(sock.recv(100).startswith(b"HTTP/1.1 200"))
        return out

    def gaps(self, server, ends):
        """Seconds between the tokens of one stream after the other, until `ends` is set."""
        body = json.dumps({"prompt": PROMPT, "max_tokens": 900, "stream": True, "ignore_eos": True, "logprobs": 0})
        out = []
        while not ends.is_set():
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT)) as connection:
                connection.request("POST", "/v1/completions", body)
                answer = connection.getresponse()
                last = None
                while not ends.is_set() and (line := answer.readline()) and line != b"data: [DONE]\n":
                    if not line.startswith(b"data: "):
                        continue
                    now = time.monotonic()
                    if last is not None:
                        out.append(now - last)
                    last = now
        return out

    def measured(self, server, ends):
        """Gaps between tokens of two streams and waits for /health, until `ends` is set."""
        waits = []
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            streams = [pool.submit(self.gaps, server, ends) for _ in range(2)]
            while not ends.wait(0.02):
                before = time.monotonic()
                self.assertEqual(server.call("GET", "/health")[0], 200)
                waits.append(time.monotonic() - before)
            return sorted(sum((s.result() for s in streams), [])), sorted(waits)

    def test_a_long_prompt_holds_up_nobody_of_2000(self):
        """20 MB are turned into tokens, and 2,000 streams wait, while /health is asked and others get their tokens.
        What is asserted holds on a busy machine, too; the figures are printed."""
        with Server("--max-num-seqs", 2, "--no-access-log", "--max-wait-steps", 0) as server:
            waiting = self.streams_that_wait(server, 2000)
            # Made first: it takes as long as others may wait.
            body = json.dumps({"prompt": "gcc documentation " * 1_100_000}).encode()
            alone, beside = [], []
            for _ in range(3):
                for kept, tokenises in ((alone, False), (beside, True)):
                    ends = threading.Event()

                    def long():
                        if tokenises:
                            self.assertEqual(server.call("POST", "/tokenize", body)[0], 200)
                        else:
                            time.sleep(4)
                        ends.set()
                    thread = threading.Thread(target=long)
                    thread.start()
                    kept.append(self.measured(server, ends))
                    thread.join()
            part = lambda values, of: values[min(len(values) - 1, int(len(values) * of))] * 1e3
            for name, runs in (("alone", alone), ("beside 20 MB", beside)):
                for gaps, waits in runs:
                    print(f"{name}: load {os.getloadavg()[0]:.1f}, /health p50 {part(waits, .5):.1f} ms, p99 "
                          f"{part(waits, .99):.1f} of {len(waits)}; between tokens p50 {part(gaps, .5):.2f} ms, p99 "
                          f"{part(gaps, .99):.2f} of {len(gaps)}")
            self.assertGreater(server.metric("stretto:connections"), 1900)
            self.assertLess(min(part(waits, .5) for _, waits in beside), 200)
            for sock in waiting:
                sock.close()
            server.until(lambda: server.stats()["running"] + server.stats()["waiting"] == 0, "idle")
            self.assertEqual(server.metric("vllm:kv_cache_usage_perc"), 0)

    def test_health_is_told_beside_a_long_prompt(self):
        """20 MB are turned into tokens while /health is asked."""
        with Server() as server:
            began = time.monotonic()
            done = threading.Event()
            status = []

            def long():
                status.append(server.call("POST", "/tokenize", {"prompt": "gcc documentation " * 1_100_000})[0])
                done.set()

            thread = threading.Thread(target=long)
            thread.start()
            waits = []
            while not done.wait(0.02):
                before = time.monotonic()
                self.assertEqual(server.call("GET", "/health")[0], 200)
                waits.append(time.monotonic() - before)
            thread.join()
            self.assertEqual(status, [200])
            whole = time.monotonic() - began
            self.assertGreater(len(waits), 3)
            waits.sort()
            self.assertLess(waits[len(waits) // 2], max(0.1, whole / 10), f"{len(waits)} asked in {whole:.1f} s")

    def test_metrics_keep_their_names(self):
        with Server() as server:
            server.complete(prompt=["x", "y"], max_tokens=12, n=2, temperature=1, ignore_eos=True)
            text = server.call("GET", "/metrics")[2].decode()
            labels = f'model_name="{pathlib.Path(cli_case.MODEL).name}",engine="0"'
            for name in METRICS:
                self.assertRegex(text, rf"(?m)^vllm:{name}\{{{labels}(,[a-z_]+=\"[^\"]*\")*\}} [0-9.]+$", name)
            for name, bounds in HISTOGRAMS.items():
                with self.subTest(name=name):
                    found = re.findall(rf'(?m)^vllm:{name}_bucket\{{{labels},le="([^"]+)"\}} (\d+)$', text)
                    self.assertLessEqual(set(bounds), {float(bound) for bound, _ in found})
                    counts = [int(count) for _, count in found]
                    self.assertEqual((counts, found[-1][0]), (sorted(counts), "+Inf"))
                    self.assertEqual(server.metric(f"vllm:{name}_count"), counts[-1])
                    self.assertGreater(counts[-1], 0)
            for name, value in (("request_params_n_sum", 2), ("request_params_n_count", 1),
                                ("request_params_max_tokens_sum", 12), ("request_max_num_generation_tokens_sum", 12),
                                ("request_generation_tokens_sum", 4 * 12), ("request_num_preemptions_sum", 0),
                                ("request_generation_tokens_count", 4)):
                self.assertEqual(server.metric("vllm:" + name), value, name)
            rows = server.metric("vllm:iteration_tokens_total_sum")
            prompts = server.metric("vllm:request_prefill_kv_computed_tokens_sum")
            self.assertEqual(rows, prompts + 4 * 11)  # the last tokens are no rows

    def test_an_answer_is_counted_before_it_is_sent(self):
        """Who asks for metrics right after an answer finds it in all of them."""
        with Server() as server:
            for number in range(1, 41):
                server.complete(prompt="x", max_tokens=2, ignore_eos=True)
                text = server.call("GET", "/metrics")[2].decode()
                for name in ("request_max_num_generation_tokens", "request_generation_tokens", "request_params_n",
                             "e2e_request_latency_seconds"):
                    self.assertRegex(text, rf"(?m)^vllm:{name}_count\{{[^}}]*\}} {number}$")
                self.assertRegex(text, rf"(?m)^vllm:iteration_tokens_total_count\{{[^}}]*\}} {2 * number}$")


class SoakTest(ServeCase):
    def memory(self, server):
        """What is its own, in KiB, swapped out or not."""
        text = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
        return sum(int(n) for n in re.findall(r"^(?:RssAnon|VmSwap):\s+(\d+) kB", text, re.M))

    def hostile(self, server, draw, body):
        kind = draw.randrange(4)
        text = json.dumps({**body, "max_tokens": 300, "stream": kind < 2}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(text)
        if kind == 0:  # goes at some time
            with server.connect() as sock:
                sock.sendall(head + text)
                time.sleep(draw.random() * 0.03)
        elif kind == 1:  # before it has said all
            with server.connect() as sock:
                sock.sendall((head + text)[:draw.randrange(1, len(head + text))])
        elif kind == 2:  # is ended by another
            name = f"s{draw.getrandbits(60)}"
            thread = threading.Thread(target=server.post, args=("/v1/completions", {**body, "max_tokens": 300},
                                                                {"X-Request-Id": name}))
            thread.start()
            time.sleep(draw.random() * 0.03)
            server.post("/abort_requests", {"request_ids": [name]})
            thread.join()
        else:
            got = server.raw(draw.choice([b"x\r\n\r\n", head + b"{" * len(text), b"GET / HTTP/9\r\n\r\n"]), True)
            self.assertNotIn(b"HTTP/1.1 5", got)

    def test_soak(self):
        """Every fifth request is hostile, cancelled or cut off: no answer is lost or wrong, no block or connection is
        left, and memory does not grow."""
        count = 100_000 if os.environ.get("STRETTO_SOAK") else int(os.environ.get("STRETTO_TEST_REQUESTS", 1000))
        print(f"seed {SEED}, {count} requests")
        bodies = [{"prompt": PROMPT + " y" * i, "max_tokens": 2 + i % 7, "temperature": 0.7, "seed": i}
                  for i in range(40)]
        with Server("--max-num-seqs", 8, "--no-access-log", "--max-model-len", 512) as server:
            wanted = [server.complete(**body)["choices"][0]["text"] for body in bodies]
            points = []

            def ask(number):
                draw = random.Random(SEED * 1_000_003 + number)
                body = draw.choice(bodies)
                if draw.random() < 0.2:
                    return self.hostile(server, draw, body)
                try:
                    text = server.complete(**body)["choices"][0]["text"]
                except OSError as error:
                    self.fail(f"request {number} was lost: {error!r}; the server says {server.said()[-2000:]}")
                self.assertEqual(text, wanted[bodies.index(body)])

            began = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                for part in range(20):
                    list(pool.map(ask, range(part * count // 20, (part + 1) * count // 20)))
                    points.append(self.memory(server))
            server.until(lambda: server.stats()["running"] == 0, "idle")
            self.assertEqual(server.metric("vllm:kv_cache_usage_perc"), 0)
            self.assertEqual(server.call("GET", "/health")[0], 200)
            late = points[len(points) // 2:]  # caches are full by then
            steps = len(late) - 1
            mean = steps / 2
            slope = (sum((i - mean) * kib for i, kib in enumerate(late)) /
                     sum((i - mean) ** 2 for i in range(len(late))) / (count / 20))
            print(f"{count} requests in {time.monotonic() - began:.0f} s, {points[0]} to {points[-1]} KiB, "
                  f"{slope * 1024:.0f} bytes a request in the second half")
            if count >= 10_000:
                self.assertLess(slope, 1)


if __name__ == "__main__":
    cli_case.main(__doc__)
