"""`stretto serve` as clients use and abuse it. Usage: serve_test.py PATH_OF_STRETTO [unittest arguments], from the root
of the repository."""

import contextlib
import http.server
import json
import os
import pathlib
import random
import re
import resource
import signal
import socket
import subprocess
import threading
import time

import cli_case
from cli_case import MODEL, ROOT, run
from serve_case import WAIT, Server, ServeCase

GOLDEN = ROOT / "checkpoints/debian-llama-8m"
SEED = int(os.environ.get("STRETTO_TEST_SEED") or random.randrange(1 << 32))
PROMPT = "libopenmpi-dev:"


class AnswersTest(ServeCase):
    """What is answered is what the model says."""

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--tp", 2, "--dtype", "float32"))

    def test_golden_texts(self):
        golden = json.loads((GOLDEN / "golden.json").read_text())["prompts"]
        with Server("--tp", 3, "--dtype", "float32", model=str(GOLDEN)) as server:
            for case in golden:
                got = server.complete(prompt=case["text"], max_tokens=64, temperature=0, return_token_ids=True,
                                      ignore_eos=True)["choices"][0]
                self.assertEqual(got["prompt_token_ids"], case["ids"])
                self.assertEqual(got["token_ids"][:len(case["greedy_ids"])], case["greedy_ids"])

    def test_same_as_generate(self):
        args = ["--max-tokens", 20, "--dtype", "float32", "--tp", 2, "--temperature", 0.8, "--top-k", 40,
                "--top-p", 0.9, "--min-p", 0.01, "--repetition-penalty", 1.1, "--seed", 7]
        want = self.json_of("generate", "--model", MODEL, "--prompt", PROMPT, *args, keys=[
            "finish_reason", "prefill_seconds", "prompt_token_ids", "text", "token_ids",
            "tokens_per_second"])
        got = self.server.complete(prompt=PROMPT, max_tokens=20, temperature=0.8, top_k=40, top_p=0.9,
                                   min_p=0.01, repetition_penalty=1.1, seed=7, return_token_ids=True)
        choice = got["choices"][0]
        self.assertEqual(choice["text"], want["text"])
        self.assertEqual(choice["token_ids"], want["token_ids"])
        self.assertEqual(choice["prompt_token_ids"], want["prompt_token_ids"])
        self.assertEqual(got["usage"]["prompt_tokens"], len(want["prompt_token_ids"]))
        self.assertEqual(got["usage"]["completion_tokens"], len(want["token_ids"]))
        # The same by ids.
        ids = self.server.complete(prompt=want["prompt_token_ids"], max_tokens=20, temperature=0.8,
                                   top_k=40, top_p=0.9, min_p=0.01, repetition_penalty=1.1, seed=7)
        self.assertEqual(ids["choices"][0]["text"], want["text"])

    def test_stream_is_the_same(self):
        body = dict(prompt=[PROMPT, "gcc:"], n=2, max_tokens=12, temperature=1, seed=SEED & 0xFFFF, logprobs=2,
                    echo=True, return_token_ids=True)
        whole = self.server.complete(**body)
        events = self.server.stream(**body, stream_options={"include_usage": True})
        self.assertEqual(events[-1]["choices"], [])
        self.assertEqual(events[-1]["usage"], whole["usage"])
        for choice in whole["choices"]:
            pieces = [e["choices"][0] for e in events[:-1]
                      if e["choices"][0]["index"] == choice["index"]]
            self.assertEqual("".join(p["text"] for p in pieces), choice["text"])
            self.assertEqual(sum((p["token_ids"] for p in pieces), []), choice["token_ids"])
            for key, values in choice["logprobs"].items():
                self.assertEqual(sum((p["logprobs"][key] for p in pieces), []), values)
            self.assertEqual([p["finish_reason"] for p in pieces[:-1]], [None] * (len(pieces) - 1))
            self.assertEqual(pieces[-1]["finish_reason"], choice["finish_reason"])
        self.assertTrue(all(e["usage"] is None for e in events[:-1]))
        self.assertEqual(len({e["id"] for e in events}), 1)
        running = [e["usage"]["completion_tokens"]
                   for e in self.server.stream(prompt=PROMPT, max_tokens=5, logprobs=0, stream_options={
                       "include_usage": True, "continuous_usage_stats": True})]
        self.assertEqual(running[-1], running[-2])
        self.assertEqual(running[:-1], list(range(1, len(running))))

    def test_logprobs_are_the_models(self):
        """Echoed logprobs against `score`, which adds up the same documents in another way."""
        text = (cli_case.DATA / "score_docs.txt").read_text().split("\0")[0]
        document = self.tmp / "one.txt"
        document.write_text(text)
        want = json.loads(self.good("score", "--model", MODEL, "--file", document, "--tp", 2, "--dtype",
                                    "float32", "--json").stdout)
        ids = self.server.post("/tokenize", {"prompt": text})[1]["tokens"]
        end = json.loads((ROOT / MODEL / "config.json").read_text())["eos_token_id"]
        ids.append(end)  # `score` predicts the end of a document, too
        got = self.server.complete(prompt=ids, max_tokens=1, temperature=0, echo=True, logprobs=1)
        logprobs = got["choices"][0]["logprobs"]
        values = logprobs["token_logprobs"]
        self.assertEqual((values[0], logprobs["top_logprobs"][0]), (0, {}))
        of_prompt = values[1:got["usage"]["prompt_tokens"]]
        self.assertEqual(len(of_prompt), want["tokens"])
        self.assertAlmostEqual(-sum(of_prompt) / len(of_prompt), want["nll_per_token"], places=5)
        self.assertEqual(len(logprobs["tokens"]), len(values))
        for value, top, token in zip(values[1:], logprobs["top_logprobs"][1:], logprobs["tokens"][1:]):
            self.assertIn(token, top)
            self.assertLessEqual(value, max(top.values()))
            self.assertLessEqual(len(top), 2)
        self.assertEqual(logprobs["top_logprobs"][-1][logprobs["tokens"][-1]],
                         max(logprobs["top_logprobs"][-1].values()))  # greedy
        prompt = self.server.complete(prompt=ids, max_tokens=1, prompt_logprobs=2)
        told = prompt["choices"][0]["prompt_logprobs"]
        self.assertIsNone(told[0])
        self.assertEqual([round(t[str(i)]["logprob"], 9) for t, i in zip(told[1:], ids[1:])],
                         [round(v, 9) for v in of_prompt])

    def test_an_echo_alone(self):
        """With max_tokens 0 what is asked about is the prompt: the same as beside an answer, which is left out."""
        ask = dict(prompt=[PROMPT, "gcc", [40]], n=2, echo=True, logprobs=2, temperature=0)
        whole = self.server.complete(max_tokens=1, ignore_eos=True, **ask)
        alone = self.server.complete(max_tokens=0, **ask)
        self.assertEqual([c["index"] for c in alone["choices"]], list(range(6)))
        for one, beside in zip(alone["choices"], whole["choices"]):
            self.assertTrue(beside["text"].startswith(one["text"]))
            self.assertEqual((one["finish_reason"], one["stop_reason"]), ("length", None))
            for field, values in one["logprobs"].items():
                self.assertEqual(values, beside["logprobs"][field][:-1], field)
        self.assertEqual((alone["usage"]["prompt_tokens"], alone["usage"]["completion_tokens"]),
                         (whole["usage"]["prompt_tokens"], 0))
        self.assertEqual(alone["choices"][0]["text"], PROMPT)
        chunks = self.server.stream(prompt=PROMPT, max_tokens=0, echo=True)
        self.assertEqual("".join(c["choices"][0]["text"] for c in chunks), PROMPT)
        self.refusal(self.server, {"prompt": "x", "max_tokens": 0}, param="max_tokens")

    def test_choices_draw_differently_and_again_alike(self):
        print(f"seed {SEED}")
        body = dict(prompt=["a", "b", "c"], n=3, max_tokens=8, temperature=1.5, seed=SEED)
        first, again = self.server.complete(**body), self.server.complete(**body)
        texts = [c["text"] for c in first["choices"]]
        self.assertEqual([c["index"] for c in first["choices"]], list(range(9)))
        self.assertEqual(texts, [c["text"] for c in again["choices"]])
        self.assertEqual(len(set(texts[:3])), 3)
        self.assertEqual(first["seed"], SEED)
        # A seed that was drawn is told, and gives the same again.
        drawn = self.server.complete(prompt="a", max_tokens=8, temperature=1.5)
        same = self.server.complete(prompt="a", max_tokens=8, temperature=1.5, seed=drawn["seed"])
        self.assertEqual(drawn["choices"][0]["text"], same["choices"][0]["text"])

    def test_stops(self):
        text = self.server.complete(prompt=PROMPT, max_tokens=24, temperature=0,
                                    ignore_eos=True)["choices"][0]["text"]
        for begin in range(1, len(text) - 6, 3):
            stop = text[begin:begin + 5]
            cut = text.index(stop)
            body = dict(prompt=PROMPT, max_tokens=24, temperature=0, ignore_eos=True, stop=stop)
            got = self.server.complete(**body)["choices"][0]
            self.assertEqual((got["text"], got["finish_reason"], got["stop_reason"]),
                             (text[:cut], "stop", stop))
            events = self.server.stream(**body)
            self.assertEqual("".join(e["choices"][0]["text"] for e in events), text[:cut])
        kept = self.server.complete(prompt=PROMPT, max_tokens=24, temperature=0, ignore_eos=True,
                                    stop=[text[3:8]], include_stop_str_in_output=True)
        self.assertEqual(kept["choices"][0]["text"], text[:text.index(text[3:8]) + 5])
        tokens = self.server.complete(prompt=PROMPT, max_tokens=24, temperature=0, ignore_eos=True,
                                      return_token_ids=True)["choices"][0]["token_ids"]
        got = self.server.complete(prompt=PROMPT, max_tokens=24, temperature=0, ignore_eos=True,
                                   stop_token_ids=[tokens[5]], return_token_ids=True)["choices"][0]
        first = tokens.index(tokens[5])
        self.assertEqual((got["token_ids"], got["stop_reason"]), (tokens[:first + 1], tokens[5]))
        more = self.server.complete(prompt=PROMPT, max_tokens=24, temperature=0, ignore_eos=True,
                                    stop_token_ids=[tokens[5]], min_tokens=24,
                                    return_token_ids=True)["choices"][0]
        self.assertEqual(len(more["token_ids"]), 24)
        self.assertNotIn(tokens[5], more["token_ids"][:23])

    def test_options_of_sampling(self):
        def tokens(**more):
            got = self.server.complete(prompt=PROMPT, max_tokens=12, temperature=0, ignore_eos=True,
                                       return_token_ids=True, **more)
            return got["choices"][0]["token_ids"]

        plain = tokens()
        self.assertEqual(tokens(logit_bias={str(plain[0]): -100})[0] == plain[0], False)
        self.assertEqual(set(tokens(logit_bias={"300": 100})), {300})
        self.assertLessEqual(set(tokens(allowed_token_ids=[300, 301, 302])), {300, 301, 302})
        self.assertEqual(len(set(tokens(logit_bias={"300": 100}, frequency_penalty=2))), 1)
        varied = tokens(allowed_token_ids=[300, 301, 302], presence_penalty=2, frequency_penalty=2)
        self.assertEqual(sorted(varied), [300] * 4 + [301] * 4 + [302] * 4)
        self.assertEqual(tokens(top_k=-1, top_p=1.0, seed=None, user="x", unknown_field={"a": 1}), plain)

    def test_tokens_and_text(self):
        status, told = self.server.post("/tokenize", {"prompt": "naïve ☃ text", "return_token_strs": True})
        self.assertEqual((status, told["count"]), (200, len(told["tokens"])))
        self.assertEqual(len(told["token_strs"]), told["count"])
        bare = self.server.post("/tokenize", {"prompt": "naïve ☃ text", "add_special_tokens": False})[1]
        spelled = {"prompt": "a</s>b", "add_special_tokens": False}
        ids = [self.server.post("/tokenize", {**spelled, "split_special_tokens": split})[1]["tokens"]
               for split in (False, True)]
        end = json.loads((ROOT / MODEL / "config.json").read_text())["eos_token_id"]
        self.assertEqual([end in i for i in ids], [True, False])
        for split in (False, True):
            usage = self.server.complete(prompt="a</s>b", max_tokens=1, split_special_tokens=split)["usage"]
            self.assertEqual(usage["prompt_tokens"], 1 + len(ids[split]))
        self.assertEqual(self.server.post("/detokenize", {"tokens": bare["tokens"]}),
                         (200, {"prompt": "naïve ☃ text"}))

    def test_an_answer_may_be_large(self):
        """Larger than what may wait for a client that is slow to take a stream."""
        tokens = self.server.post("/tokenize", {"prompt": " documentation", "add_special_tokens": False})[1]["tokens"]
        status, told = self.server.post("/detokenize", {"tokens": tokens * 2_000_000})
        self.assertEqual((status, told["prompt"][:28]), (200, " documentation documentation"))
        self.assertEqual(len(told["prompt"]), 2_000_000 * len(" documentation"))

    def test_the_other_paths(self):
        status, headers, data = self.server.call("GET", "/v1/models")
        card = json.loads(data)["data"][0]
        self.assertEqual((status, card["id"]), (200, os.path.basename(MODEL)))
        self.assertEqual(json.loads(self.server.call("GET", "/v1/models/" + card["id"])[2]), card)
        self.assertEqual(self.server.call("GET", "/v1/models/other")[0], 404)
        self.assertEqual(self.server.call("GET", "/health")[0::2], (200, b""))
        self.assertEqual(self.server.call("HEAD", "/version")[2], b"")
        self.assertIn("version", json.loads(self.server.call("GET", "/version?x=1")[2]))
        self.assertIn("/nothing", self.refusal(self.server, {}, status=404, path="/nothing"))
        for method, path, allowed in (("GET", "/v1/completions", "POST"), ("POST", "/health", "GET, HEAD"),
                                      ("DELETE", "/v1/models", "GET, HEAD"), ("OPTIONS", "/tokenize", "POST")):
            status, headers, data = self.server.call(method, path)
            self.assertEqual((status, headers["Allow"]), (405, allowed))
            self.assertEqual(json.loads(data)["error"]["message"], f"this path takes {allowed}")
        before = self.server.metric("vllm:generation_tokens_total")
        self.server.complete(prompt=PROMPT, max_tokens=7, ignore_eos=True)
        self.assertEqual(self.server.metric("vllm:generation_tokens_total") - before, 7)
        self.assertGreater(self.server.metric("vllm:time_to_first_token_seconds_count"), 0)
        self.assertEqual(self.server.call("GET", "/health", headers={"X-Request-Id": "mine-1"})[1]
                         ["X-Request-Id"], "mine-1")
        strange = self.server.call("GET", "/health", headers={"X-Request-Id": "a b\tc"})[1]
        self.assertNotIn(" ", strange["X-Request-Id"])


class RefusalsTest(ServeCase):
    """Bad input is answered, names the field, and leaves the server as it was."""

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--max-model-len", 128, "--dtype", "float32"))

    def tearDown(self):
        self.assertEqual(self.server.call("GET", "/health")[0], 200)
        self.assertEqual(len(self.server.complete(prompt="x", max_tokens=2, ignore_eos=True)["choices"]), 1)

    def test_fields(self):
        bad = [("prompt", v) for v in (None, 5, [], [[]], {"a": 1}, [1, "a"], [-1], [1 << 40], [1.5], [None],
                                       ["a"] * 1025, [[1], 2])]
        bad += [("max_tokens", v) for v in (0, -1, 1.5, "5", [], 1 << 62)]
        bad += [("temperature", v) for v in (-1, 1001, "hot", [1])]
        bad += [("top_p", v) for v in (-0.1, 1.1, "x")] + [("top_k", v) for v in (-2, 1.5)]
        bad += [("min_p", 2), ("n", 0), ("n", 129), ("best_of", 2), ("logprobs", 21), ("logprobs", -1),
                ("presence_penalty", 3), ("frequency_penalty", -3), ("repetition_penalty", 0),
                ("stop", [""]), ("stop", ["a"] * 5), ("stop", 3), ("stop", "x" * 2000), ("seed", 1.5),
                ("seed", "1"), ("stop_token_ids", ["a"]), ("stop_token_ids", [1 << 40]),
                ("allowed_token_ids", [-1]), ("logit_bias", {"x": 1}), ("logit_bias", {"1": 101}),
                ("logit_bias", [1]), ("logit_bias", {"99999999": 1}), ("echo", 1), ("stream", "yes"),
                ("stream_options", {"include_usage": True}), ("truncate_prompt_tokens", 0),
                ("truncate_prompt_tokens", 1000), ("min_tokens", 17), ("suffix", "x"),
                ("response_format", {"type": "xml"}), ("guided_json", 3), ("guided_regex", "("),
                ("structured_outputs", {}), ("bad_words", ["x"]), ("grammar", "x")]
        for field, value in bad:
            with self.subTest(field=field, value=str(value)[:40]):
                self.refusal(self.server, {"prompt": "x", field: value}, param=field)
        for seed in (1 << 64, -(1 << 63) - 1, 1e300, 1.5, "1", True, [1]):
            said = self.refusal(self.server, {"prompt": "x", "seed": seed}, param="seed")
            self.assertIn("need a whole number from -9223372036854775808 to 18446744073709551615, got ", said)
        for seed in (-(1 << 63), (1 << 64) - 1):
            self.assertEqual(self.server.complete(prompt="x", max_tokens=1, seed=seed)["object"], "text_completion")
        self.refusal(self.server, {"prompt": "x", "model": "other"}, param="model", status=404)
        self.refusal(self.server, {"prompt": "x", "stream": True, "prompt_logprobs": 1}, param="prompt_logprobs")
        said = self.refusal(self.server, {"prompt": [1] * 200, "max_tokens": 3}, param="prompt")
        self.assertIn("maximum context length is 128 tokens", said)
        self.assertIn("200 prompt + 3 completion", said)
        echo = {"max_tokens": 0, "echo": True}
        said = self.refusal(self.server, {"prompt": [1] * 128, **echo}, param="prompt")
        self.assertIn("128 tokens, all of which the prompt has: max_tokens 0 needs room for one, too", said)
        self.assertEqual(self.server.complete(prompt=[1] * 127, **echo)["usage"]["prompt_tokens"], 127)
        said = self.refusal(self.server, {"prompt": "x", "model": "a\0b\x1bc"}, param="model", status=404)
        self.assertIn(r"the model 'a\x00b\x1bc' is not served here; '", said)
        for null in ("temperature", "max_tokens", "stop", "logprobs", "response_format", "seed"):
            self.server.complete(**{"prompt": "x", "max_tokens": 2, null: None})

    def test_room_is_what_ends_long_answers(self):
        got = self.server.complete(prompt=[5] * 100, max_tokens=1000, ignore_eos=True)
        self.assertEqual((got["usage"]["completion_tokens"], got["choices"][0]["finish_reason"]),
                         (28, "length"))
        cut = self.server.complete(prompt=[5] * 500, max_tokens=2, truncate_prompt_tokens=-1)
        self.assertEqual(cut["usage"]["prompt_tokens"], 127)

    def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized(self):
        """And no sooner: what the context holds is never refused for its bytes."""
        vocabulary = json.loads((pathlib.Path(MODEL) / "tokenizer.json").read_text())["model"]["vocab"]
        longest = max((token for token in vocabulary if token.isascii()), key=len)
        fits = " ".join([longest] * 40)
        self.assertLess(len(self.server.post("/tokenize", {"prompt": fits})[1]["tokens"]), 128)
        self.server.complete(prompt=fits, max_tokens=1)
        long = "gcc documentation " * 500_000
        for path, body, field in (("/v1/completions", {"prompt": long}, "prompt"),
                                  ("/v1/completions", {"prompt": ["x", long]}, "prompt"),
                                  ("/v1/chat/completions", {"messages": [{"role": "user", "content": long}]},
                                   "messages"),
                                  ("/v1/responses", {"input": long}, "input")):
            begin = time.monotonic()
            said = self.refusal(self.server, body, field, path=path)
            self.assertRegex(said, r"maximum context length is 128 tokens, the prompt has \d+ bytes, which are \d+ "
                                   "tokens at least")
            print(f"{path}: refused {len(long)} bytes in {(time.monotonic() - begin) * 1e3:.0f} ms")
        said = self.refusal(self.server, {"prompt": "x y " * 200}, "prompt")  # of tokens, which are counted
        self.assertIn("you asked for", said)
        cut = self.server.complete(prompt=long[:1 << 20], max_tokens=2, truncate_prompt_tokens=-1)
        self.assertEqual(cut["usage"]["prompt_tokens"], 127)

    def test_fields_that_ask_for_nothing_count_as_absent(self):
        ask = {"max_tokens": 4, "temperature": 0}
        chat = {"messages": [{"role": "user", "content": PROMPT}], **ask}
        for path, body, empty in (
                ("/v1/completions", {"prompt": PROMPT, **ask},
                 {"suffix": "", "bad_words": [], "logits_processors": []}),
                ("/v1/chat/completions", chat, {"tools": [], "functions": [], "bad_words": []}),
                ("/v1/chat/completions", chat, {"tools": [], "tool_choice": "auto"}),
                ("/v1/chat/completions", chat, {"tools": [], "tool_choice": "none"})):
            without, beside = (self.server.post(path, more) for more in (body, {**body, **empty}))
            self.assertEqual((beside[0], beside[1].get("choices")), (200, without[1]["choices"]), beside)
        self.refusal(self.server, {**chat, "tools": [], "tool_choice": "required"}, "tool_choice",
                     path="/v1/chat/completions")

    def test_fields_of_responses(self):
        ask = {"input": "x", "max_output_tokens": 2}
        tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
        for tools in ({}, {"tools": None}, {"tools": []}):
            for choice in ("required", {"type": "function", "name": "f"}, 5, True, "some", ["auto"], {}):
                with self.subTest(tools=tools, choice=choice):
                    said = self.refusal(self.server, {**ask, **tools, "tool_choice": choice}, "tool_choice",
                                        path="/v1/responses")
                    self.assertTrue(said.startswith("tool_choice: need"), said)
            for choice in (None, "auto", "none"):
                status, answer = self.server.post("/v1/responses", {**ask, **tools, "tool_choice": choice})
                self.assertEqual((status, answer.get("tool_choice")), (200, "auto"), answer)
        for choice in (5, True, "some", {}):
            self.refusal(self.server, {**ask, "tools": [tool], "tool_choice": choice}, "tool_choice",
                         path="/v1/responses")
        for background in (True, 1, 0, "false", [], {}):
            self.refusal(self.server, {**ask, "background": background}, "background", path="/v1/responses")
        for background in (None, False):
            self.assertEqual(self.server.post("/v1/responses", {**ask, "background": background})[0], 200)

    def test_bodies(self):
        for body in (b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"prompt": "a", "prompt": "b"}',
                     b"[" * 100000, b'{"a":' * 200 + b"1" + b"}" * 200, b'{"prompt": "\xc3\x28"}'):
            status, _, data = self.server.call("POST", "/v1/completions", body)
            self.assertEqual(status, 400, body[:40])
            self.assertLess(len(data), 2000)
        for path in ("/tokenize", "/detokenize", "/abort_requests"):
            for body in (b"", b"[]", b"{}", b'{"prompt": 3, "tokens": "x", "request_ids": 1}'):
                self.assertEqual(self.server.call("POST", path, body)[0], 400, path)
        for path, fields in {"/tokenize": ("prompt", "add_special_tokens", "split_special_tokens", "return_token_strs"),
                             "/detokenize": ("tokens",), "/abort_requests": ("request_ids",)}.items():
            for field in (*fields, *(["model"] if path != "/abort_requests" else [])):
                for wrong in (3.5, {"a": 1}, [[]]):
                    body = {"prompt": "x", "tokens": [5], "request_ids": [], field: wrong}
                    self.assertIn(field, self.refusal(self.server, body, field, path=path))
            missing = self.refusal(self.server, {}, fields[0], path=path)
            self.assertIn("is missing", missing)
        self.assertEqual(self.server.call("POST", "/v1/completions", b"x" * (33 << 20))[0], 413)

    def test_random_bodies(self):
        print(f"seed {SEED}")
        draw = random.Random(SEED)

        def value(depth=0):
            if depth < 3 and draw.randrange(8) == 0:
                return [value(depth + 1) for _ in range(draw.randrange(3))]
            return draw.choice([None, draw.randrange(-5, 50), draw.random() * 4 - 2, True, "text", "", [], {}])

        fields = ["prompt", "max_tokens", "n", "stop", "logprobs", "echo", "stream", "temperature", "top_p",
                  "top_k", "seed", "logit_bias", "stop_token_ids", "stream_options", "min_tokens",
                  "prompt_logprobs", "allowed_token_ids", "response_format", "truncate_prompt_tokens"]
        statuses = set()
        for _ in range(400):
            body = {"prompt": "x", "max_tokens": 2}
            body.update({draw.choice(fields): value() for _ in range(draw.randrange(1, 4))})
            if isinstance(body.get("max_tokens"), int):
                body["max_tokens"] = min(body["max_tokens"], 3)
            statuses.add(self.server.call("POST", "/v1/completions", json.dumps(body))[0])
        self.assertEqual(statuses, {200, 400})

    def test_hostile_http(self):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
        cases = {
            b"\x16\x03\x01\x02\x00garbage\r\n\r\n": b"400",
            b"GET / HTTP/1.1\r\nX: " + b"a" * 20000 + b"\r\n\r\n": b"431",
            b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n": b"431",
            head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": b"400",
            head + b"Content-Length: -5\r\n\r\n": b"400",
            head + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello": b"400",
            head + b"Content-Length: 99999999999999999999\r\n\r\n": b"400",
            head + b"Content-Length: 99999999999\r\n\r\n": b"413",
            head + b"Content-Encoding: gzip\r\nContent-Length: 13\r\n\r\n" + b'{"prompt": 1}': b"415",
            head + b"Transfer-Encoding: gzip\r\n\r\n": b"501",
            head + b"Transfer-Encoding: gzip\r\nContent-Length: 13\r\n\r\n" + b'{"prompt": 1}': b"501",
            head + b"Transfer-Encoding: identity\r\nContent-Length: 13\r\n\r\n" + b'{"prompt": 1}': b"501",
            head + b"Content-Length: 13\r\nTransfer-Encoding: gzip\r\n\r\n" + b'{"prompt": 1}': b"400",
            head + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n": b"501",
            head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n": b"400",
            head + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n": b"400",
            head + b"Transfer-Encoding: chunked\r\n\r\n5;x=" + b"y" * 400000: b"431",
            head + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"y" * 400000: b"431",
            head + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 70000: b"431",
            b"GET /health HTTP/1.1\r\nHost : x\r\n\r\n": b"400",
            b"GET /health HTTP/1.1\r\n\r\n": b"400",
            b"GET /health HTTP/1.1\r\nHost: x\r\nhost: x\r\n\r\n": b"400",
            b"GET /health HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n": b"400",
            b"GET /health HTTP/1.1\r\nA: b\r\n c\r\nBad\x00: x\r\n\r\n": b"400",
        }
        for sent, status in cases.items():
            with self.subTest(sent=sent[:60]):
                got = self.server.raw(sent)
                self.assertEqual(got.split(b" ")[1:2], [status], got[:200])
                self.assertIn(b"Connection: close", got)
        for silent in (b"", b"POST /v1/comp", head, head + b"Content-Length: 50\r\n\r\nshort"):
            self.assertEqual(self.server.raw(silent, half_close=True), b"")

    def test_requests_in_packets_cut_anywhere(self):
        """What a request is answered does not depend on where packets end. Boost's parser takes a last chunk that is
        cut behind its first line for impossible."""
        head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        body = b'8;x=y\r\n{"prompt\r\n7\r\n": "a"}\r\n0\r\nA: b\r\n\r\n'
        for sent, status in ((head + body, b"200"), (head + b"0\r\n\r\n", b"400"),
                             (head + b"0\r\nA: b\r\n\r\n", b"400"),
                             (head + b"0\r\n{\n\r\r\nHEAD\r\n\r\n", b"400"), (head + b"0;;\r\n\r\n", b"400")):
            self.assertEqual(self.server.raw(sent).split(b" ")[1:2], [status], sent)
            for at in range(len(head) - 3, len(sent)):
                with self.subTest(sent=sent[len(head):], at=at), self.server.connect() as sock:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    sock.sendall(sent[:at])
                    time.sleep(0.003)
                    sock.sendall(sent[at:])
                    self.assertEqual(sock.recv(65536).split(b" ")[1:2], [status])

    def test_well_formed_but_rare_http(self):
        body = b'{"prompt": "x", "max_tokens": 2}'
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        post = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
        got = self.server.raw((post + length + body) * 3 + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertEqual(got.count(b"HTTP/1.1 200 OK"), 4)
        got = self.server.raw(post + b"Transfer-Encoding: chunked\r\n\r\n5\r\n" + body[:5] + b"\r\n" +
                              b"%x\r\n" % (len(body) - 5) + body[5:] + b"\r\n0\r\n\r\n")
        self.assertIn(b"200 OK", got)
        for path, status in ((b"http://127.0.0.1:80/version?a=/b", b"200"), (b"HTTP://x/health", b"200"),
                             (b"http://x", b"200"), (b"http://x?a=/health", b"200"), (b"http://x/none", b"404"),
                             (b"/http://x/health", b"404"), (b"http://", b"200")):
            got = self.server.raw(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            self.assertEqual(got.split(b" ")[1], status, path)
        got = self.server.raw(b"POST /v1/completions HTTP/1.0\r\n" + length + body)
        self.assertIn(b"200 OK", got)
        self.assertIn(b"Connection: close", got)
        streamed = body[:-1] + b', "stream": true}'
        old = self.server.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(streamed) +
                              streamed)
        self.assertNotIn(b"chunked", old)
        self.assertTrue(old.endswith(b"data: [DONE]\n\n"), old[-80:])
        with self.server.connect() as sock:
            sock.sendall(post + b"Expect: 100-continue\r\n" + length)
            self.assertIn(b"100 Continue", sock.recv(1000))
            sock.sendall(body)
            self.assertIn(b"200 OK", sock.recv(1000))


class LongTextsTest(ServeCase):
    """Texts of many megabytes, whose tokens take seconds: others do not wait for them, nobody computes what nobody
    wants, and they hold up no end."""

    SHORT = dict(prompt="gcc", max_tokens=4, temperature=0)

    @classmethod
    def setUpClass(cls):
        text = ("gcc-doc lib é😀\n " * 600_000)[:9_000_000]
        cls.long = json.dumps({"prompt": text, "return_token_strs": True}).encode()

    def begin(self, server, path="/tokenize", body=None):
        """A socket on which a request has been said whole."""
        body = self.long if body is None else json.dumps(body).encode()
        sock = server.connect()
        self.addCleanup(sock.close)
        sock.sendall(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)) + body)
        return sock

    def has_answer(self, sock):
        sock.settimeout(0.001)
        try:
            return sock.recv(1, socket.MSG_PEEK) != b""
        except TimeoutError:
            return False
        finally:
            sock.settimeout(WAIT)

    def status(self, sock):
        return int(sock.makefile("rb").readline().split()[1])

    def lines(self, server):
        return [json.loads(line) for line in server.said().splitlines() if line.startswith("{")]

    def test_short_texts_do_not_wait_for_long_ones(self):
        with Server() as server:
            server.complete(guided_choice=["documentation", "library"], **self.SHORT)  # a grammar that is known then
            long = [self.begin(server) for _ in range(3)]
            time.sleep(0.5)  # until they have been read
            server.complete(**self.SHORT)
            server.complete(guided_choice=["documentation", "library"], **self.SHORT)
            self.assertEqual(server.post("/tokenize", {"prompt": "gcc"})[0], 200)
            chat = {"messages": [{"role": "user", "content": "gcc"}]}
            self.assertEqual(server.post("/v1/chat/completions", dict(chat, max_tokens=2))[0], 200)
            # What may take long waits with its like.
            own = self.begin(server, "/v1/chat/completions/render", dict(chat, chat_template="{{ 'x' }}"))
            new = self.begin(server, "/v1/completions", dict(self.SHORT, guided_regex="[a-z]{3}"))
            self.assertEqual([self.has_answer(sock) for sock in long + [own, new]], [False] * 5)
            for sock in long[1:]:
                sock.close()
            self.assertEqual([self.status(sock) for sock in (long[0], own, new)], [200] * 3)

    def test_a_time_limit_counts_the_wait_for_a_long_text(self):
        cut = dict(self.SHORT, prompt="gcc " * 100_000, truncate_prompt_tokens=3)  # fits, if its turn comes
        text = {"prompt": "gcc " * 100_000}
        chat = {"messages": [{"role": "user", "content": "gcc " * 100_000}], "truncate_prompt_tokens": 3}
        with Server() as server:
            first = self.begin(server)
            time.sleep(0.5)
            behind = [self.begin(server, path, dict(body, timeout_s=0.1)) for path, body in (
                ("/v1/completions", cut), ("/v1/chat/completions", chat), ("/tokenize", text),
                ("/v1/chat/completions/render", chat))]
            unhurried = self.begin(server, "/v1/completions", dict(cut, timeout_s=1000))
            self.assertEqual([self.status(sock) for sock in behind], [408] * 4)
            self.assertEqual([self.status(sock) for sock in (first, unhurried)], [200, 200])
            self.refusal(server, {"prompt": "x", "timeout_s": -1}, param="timeout_s", path="/tokenize")
        with Server("--request-timeout", 0.5) as server:
            socks = [self.begin(server) for _ in range(4)]
            self.assertEqual([self.status(sock) for sock in socks], [408] * 4)
            took = sorted(line["ms"] for line in self.lines(server))
            self.assertLess(took[-1], 2.5 * took[0])  # one was worked on, not four
            self.assertEqual(server.post("/tokenize", {"prompt": "gcc"})[0], 200)

    def test_a_long_text_whose_client_has_gone_is_left_out(self):
        with Server() as server:
            began = time.monotonic()
            self.assertEqual(self.status(self.begin(server)), 200)
            alone = time.monotonic() - began
            gone = [self.begin(server) for _ in range(6)]
            time.sleep(0.3)
            for sock in gone:
                sock.close()
            began = time.monotonic()
            self.assertEqual(server.post("/tokenize", {"prompt": "gcc " * 100_000})[0], 200)
            self.assertLess(time.monotonic() - began, 3 * alone)
            self.assertEqual(server.stop()[0], 0)
            told = [line["status"] for line in self.lines(server) if line["path"] == "/tokenize"]
            self.assertEqual(sorted(told), [200, 200] + [499] * 6)

    def test_the_end_does_not_wait_for_long_texts(self):
        with Server("--shutdown-timeout", 0.2) as server:
            socks = [self.begin(server) for _ in range(3)]
            time.sleep(0.5)
            code, out, err = server.stop()
            self.assertEqual((code, out), (0, b""), err)
            self.assertNotIn("fault", err)
            answers = [sock.makefile("rb").read()[:12] for sock in socks]
            self.assertEqual(sorted(answers), [b"", b"HTTP/1.1 503", b"HTTP/1.1 503"])


class SilentServer:
    """Streams of comments alone, for as long as somebody listens."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.begin()
            self.wfile.write(b'{"data": [{"id": "m"}]}')

        def do_POST(self):
            self.begin()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(b": keep-alive\n\n")
                    time.sleep(0.05)

        def begin(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    def __enter__(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class EndsTest(ServeCase):
    """Clients that go, servers that stop, queues that are full."""

    # A second for each choice, on an idle machine.
    LONG = dict(prompt="x", max_tokens=900, n=20, ignore_eos=True, temperature=1)

    def quiet(self, server):
        server.until(lambda: server.metric("vllm:num_requests_running") +
                     server.metric("vllm:num_requests_waiting") == 0, "idle")

    def taken(self, server, requests):
        """So many are taken, their prompts counted, and some run."""
        server.until(lambda: server.metric("vllm:prompt_tokens_total") == 2 * requests, f"{requests} taken")
        server.until(lambda: server.metric("vllm:num_requests_running") >= 1, "running")

    def begin(self, server, stream=True, **more):
        """A long answer under way, on a socket."""
        body = json.dumps({**self.LONG, "stream": stream, **more}).encode()
        sock = server.connect()
        self.addCleanup(sock.close)
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        return sock

    def test_a_client_that_goes_ends_its_request(self):
        with Server("--dtype", "float32", "--tp", 2) as server:
            for round, stream in enumerate((True, False)):
                socks = [self.begin(server, stream) for _ in range(5)]  # some run, others wait
                self.taken(server, 5 * (round + 1))
                for sock in socks:
                    sock.close()
                self.quiet(server)
                self.assertEqual(server.metric("vllm:request_success_total"), 100 * (round + 1))
            aborted = ('vllm:request_success_total{model_name="%s",engine="0",finished_reason="abort"}' %
                       os.path.basename(MODEL))
            self.assertIn(aborted, server.call("GET", "/metrics")[2].decode())
            self.assertLess(server.metric("vllm:generation_tokens_total"), 2 * 100 * 900 / 2)
            self.assertEqual(server.complete(prompt="x", max_tokens=3)["object"], "text_completion")

    def test_the_log_tells_of_clients_that_go(self):
        with Server("--dtype", "float32") as server:
            socks = [self.begin(server, stream) for stream in (True, False)]
            self.taken(server, 2)
            for sock in socks:
                sock.close()
            self.quiet(server)
            server.complete(prompt="x", max_tokens=1)
            code, _, err = server.stop()
            self.assertEqual(code, 0)
            lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
            self.assertEqual(sorted(line["status"] for line in lines), [200, 499, 499], lines)

    def test_a_log_that_nobody_reads_holds_up_nobody(self):
        read, write = os.pipe()
        with Server("--dtype", "float32", stderr=write) as server:
            for _ in range(600):  # some 200 bytes each; the pipe holds 64 KiB
                self.assertEqual(server.call("POST", "/tokenize", {"prompt": "x"})[0], 200)
            self.assertEqual(server.complete(prompt="x", max_tokens=3)["object"], "text_completion")
            self.assertEqual(server.stop()[0], 0)
        os.close(read)
        os.close(write)

    def test_a_log_whose_reader_ends_ends_nothing(self):
        read, write = os.pipe()
        with Server("--dtype", "float32", stderr=write) as server:
            os.close(read)
            os.close(write)
            for _ in range(3):
                self.assertEqual(server.complete(prompt="x", max_tokens=3)["object"], "text_completion")
            self.assertEqual(server.stop()[0], 0)

    def test_abort(self):
        with Server("--dtype", "float32") as server:
            answers = {}

            def ask(name):
                answers[name] = server.post("/v1/completions", self.LONG, {"X-Request-Id": name})

            threads = [threading.Thread(target=ask, args=(f"r{i}",)) for i in range(3)]
            for thread in threads:
                thread.start()
            self.taken(server, 3)
            asked = {"request_ids": ["r0", "cmpl-r1", "r2", "no", "r0", "r2"]}
            self.assertEqual(server.post("/abort_requests", asked)[1]["aborted"], ["r0", "cmpl-r1", "r2"])
            for thread in threads:
                thread.join()
            for status, answer in answers.values():
                self.assertEqual((status, answer["choices"][-1]["finish_reason"]), (200, "abort"))
            self.quiet(server)

    def test_a_full_queue_says_come_again(self):
        with Server("--dtype", "float32", "--max-num-seqs", 1, "--max-queue", 20) as server:
            socks = [self.begin(server)]
            self.taken(server, 1)  # 19 of its choices wait
            self.refusal(server, {"prompt": ["a"] * 2, "n": 10}, status=429)
            self.refusal(server, {"prompt": ["a"] * 2, "n": 11})  # never fits
            socks.append(self.begin(server, n=20 - int(server.metric("vllm:num_requests_waiting"))))
            self.taken(server, 2)
            server.until(lambda: server.metric("vllm:num_requests_waiting") == 20, "full")
            status, headers, data = server.call("POST", "/v1/completions", {"prompt": "x"})
            self.assertEqual((status, headers["Retry-After"]), (429, "1"), data)
            self.assertEqual(json.loads(data)["error"]["type"], "RateLimitError")
            for sock in socks:
                sock.close()
            self.quiet(server)

    def test_limits_are_options(self):
        with Server("--max-body-bytes", "1KiB", "--max-header-bytes", "2KiB", "--max-headers", 6,
                    "--header-timeout", 0.3, "--body-timeout", 0.4, "--idle-timeout", 2) as server:
            self.assertEqual(server.post("/tokenize", {"prompt": "x" * 900})[0], 200)
            self.assertEqual(server.call("POST", "/tokenize", {"prompt": "x" * 1100})[0], 413)
            self.assertEqual(server.call("GET", "/health", headers={"A": "a" * 1500})[0], 200)
            self.assertEqual(server.call("GET", "/health", headers={"A": "a" * 2500})[0], 431)
            self.assertEqual(server.call("GET", "/health", headers={f"A{i}": "a" for i in range(6)})[0], 431)
            head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\n"
            for sent, least in ((head, 0.3), (head + b"Content-Length: 9\r\n\r\n{", 0.4), (b"", 2)):
                began = time.monotonic()
                with server.connect() as sock:
                    sock.sendall(sent)
                    self.assertEqual(sock.recv(100), b"")
                self.assertGreaterEqual(time.monotonic() - began, least, sent)
        with Server("--max-connections", 3) as server:
            held = [self.enterContext(server.connect()) for _ in range(3)]
            health = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
            server.until(lambda: server.raw(health).startswith(b"HTTP/1.1 503"), "full")
            self.assertIn(b"too many connections", server.raw(health))
            held[0].close()
            server.until(lambda: server.raw(health).startswith(b"HTTP/1.1 200"), "room")
        with Server("--max-num-seqs", 1, "--max-queue", 2**64 - 1) as server:  # one more than that is no number
            self.assertEqual(len(server.complete(prompt="x", max_tokens=2, n=3)["choices"]), 3)
        for option, value in (("--max-body-bytes", 0), ("--max-header-bytes", 0),
                              ("--max-body-bytes", "much"), ("--max-header-bytes", "2GiB"), ("--max-headers", 0),
                              ("--max-connections", -1), ("--header-timeout", 0), ("--idle-timeout", "nan")):
            self.refused("serve", "--model", MODEL, option, value, says=option)

    def test_keys(self):
        keys = self.tmp / "keys"
        keys.write_text("first\r\nsecond\n")
        with Server("--api-key", "third", "--api-key-file", keys) as server:
            self.assertEqual(server.call("GET", "/health")[0], 200)
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "first"}, {"X-Api-Key": ""}):
                self.assertEqual(server.call("GET", "/v1/models", headers=headers)[0], 401)
                self.assertEqual(server.post("/v1/completions", {"prompt": "x"}, headers)[0], 401)
            for key in ("first", "second", "third"):
                self.assertEqual(server.call("GET", "/v1/models", headers={"Authorization": "Bearer " + key})[0], 200)
                self.assertEqual(server.call("GET", "/v1/models", headers={"Authorization": "bearer " + key})[0], 200)
            self.assertEqual(server.call("GET", "/v1/models", headers={"X-Api-Key": "first"})[0], 200)
            load = ["load", "--url", f"http://127.0.0.1:{server.port}", "--requests", 2, "--input-tokens", 2,
                    "--output-tokens", 1, "--concurrency", 1]
            self.good(*load, "--api-key", "third")
            self.good(*load, "--api-key-file", keys)
            self.good(*load, env={"OPENAI_API_KEY": "second"})
            self.good(*load, "--api-key-file", keys, env={"OPENAI_API_KEY": "another"})
            for wrong in ([], ["--api-key", "fourth"]):
                self.refused(*load, *wrong, says=["status 401", "the API key is missing or wrong"])
            self.refused(*load, "--api-key", "a b", says="--api-key: the key has spaces")
            self.refused(*load, env={"OPENAI_API_KEY": "a\nb"}, says="OPENAI_API_KEY: the key has spaces")
            self.refused(*load, "--api-key-file", self.tmp / "none", says=str(self.tmp / "none"))

    def test_signals(self):
        for sent, way in ((signal.SIGTERM, "--async-scheduling"), (signal.SIGINT, "--no-async-scheduling")):
            with Server("--dtype", "float32", "--shutdown-timeout", 600, way) as server:
                idle = self.enterContext(server.connect())
                sock = self.begin(server, n=2)
                server.until(lambda: server.metric("vllm:num_requests_running") >= 1, "running")
                server.process.send_signal(sent)
                data = b""
                while piece := sock.recv(65536):
                    data += piece
                self.assertIn(b'"finish_reason":"length"', data)  # it may end
                self.assertIn(b"[DONE]", data)
                code, out, err = server.wait()
                self.assertEqual((code, out), (0, b""), err)
                self.assertEqual(idle.recv(10), b"")
        with Server("--dtype", "float32", "--shutdown-timeout", 0.05) as server:
            sock = self.begin(server)
            server.until(lambda: server.metric("vllm:num_requests_running") >= 1, "running")
            self.assertEqual(server.stop()[0], 0)
            data = b""
            while piece := sock.recv(65536):
                data += piece
            self.assertIn(b'"finish_reason":"abort"', data)  # which keeps what it has
        with Server("--dtype", "float32", "--shutdown-timeout", 600) as server:
            self.begin(server)
            server.until(lambda: server.metric("vllm:num_requests_running") >= 1, "running")
            server.process.send_signal(signal.SIGTERM)
            server.until(lambda: self.is_refusing(server), "draining")
            self.assertEqual(server.stop()[0], 0)  # the second one

    def test_what_never_ran_is_to_come_again(self):
        """At the end of the time. What has begun keeps what it has."""
        with Server("--dtype", "float32", "--max-num-seqs", 1, "--shutdown-timeout", 0.5) as server:
            runs = self.begin(server, stream=False)
            server.until(lambda: server.metric("vllm:num_requests_running") == 1, "running")
            whole, streamed = (self.begin(server, stream, n=2) for stream in (False, True))
            server.until(lambda: server.metric("vllm:num_requests_waiting") == 19 + 4, "waiting")
            code, _, err = server.stop()
            self.assertEqual(code, 0, err)

            def rest(sock):
                data = b""
                while piece := sock.recv(65536):
                    data += piece
                return data

            data = rest(runs)
            self.assertTrue(data.startswith(b"HTTP/1.1 200"), data)
            choices = json.loads(data.partition(b"\r\n\r\n")[2])["choices"]
            self.assertNotEqual(choices[0]["text"], "")
            self.assertEqual((choices[-1]["text"], choices[-1]["finish_reason"]), ("", "abort"))
            data = rest(whole)
            self.assertTrue(data.startswith(b"HTTP/1.1 503"), data)
            self.assertIn(b"\r\nRetry-After: 1\r\n", data)
            self.assertIn(b"the server is shutting down", data)
            data = rest(streamed)  # its head has gone out
            self.assertIn(b"the server is shutting down", data)
            self.assertNotIn(b'"finish_reason":"abort"', data)
            lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
            self.assertEqual(sorted(line["status"] for line in lines), [200, 503, 503], lines)

    def test_a_signal_leaves_finished_answers_to_be_taken(self):
        """An answer of some 9 MB whose client has begun to read: whole with time enough, cut off at the timeout. The
        connection lasts beyond the answer, or not, or begins no other one."""
        body = json.dumps({"prompt": [[5] * 900] * 20, "max_tokens": 0, "echo": True, "logprobs": 20}).encode()
        for timeout, how in ((600, b"keep-alive"), (600, b"close"), (0.5, b"keep-alive")):
            with self.subTest(timeout=timeout, how=how), \
                    Server("--dtype", "float32", "--shutdown-timeout", timeout) as server, \
                    contextlib.closing(socket.socket()) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
                sock.settimeout(WAIT)
                sock.connect(("127.0.0.1", server.port))
                sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: %s\r\n"
                             b"Content-Length: %d\r\n\r\n" % (how, len(body)) + body)
                data = sock.recv(1000)
                self.assertTrue(data.startswith(b"HTTP/1.1 200"), data)
                length = int(re.search(rb"Content-Length: (\d+)", data)[1])
                self.assertGreater(length, 8 << 20)  # more than the system takes in advance
                begin = time.monotonic()
                server.process.send_signal(signal.SIGTERM)
                server.until(lambda: self.is_refusing(server), "draining")
                if timeout < 1:
                    self.assertEqual(server.wait()[0], 0)
                    self.assertLess(time.monotonic() - begin, 4)  # nobody takes anything
                else:
                    time.sleep(1)  # as a client on a slow line
                    self.assertIsNone(server.process.poll())
                with contextlib.suppress(ConnectionResetError):
                    while piece := sock.recv(1 << 20):
                        data += piece
                got = len(data) - data.index(b"\r\n\r\n") - 4
                if timeout < 1:
                    self.assertLess(got, length)
                else:
                    self.assertEqual(got, length)
                    self.assertEqual(server.wait()[0], 0)

    @staticmethod
    def is_refusing(server):
        try:
            server.connect().close()
        except ConnectionRefusedError:
            return True
        return False

    def test_without_gpus_auto_takes_the_cpu_and_says_so(self):
        with Server(device="auto", env={"CUDA_VISIBLE_DEVICES": ""}) as server:
            self.assertIn("(1 ranks, cpu)", server.said())

    def test_a_start_that_fails(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.refused("serve", "--model", MODEL, "--port", taken.getsockname()[1], says=["cannot listen", "use"])
        self.refused("serve", "--model", self.tmp, says="config.json")
        self.refused("serve", "--model", MODEL, "--dp", 2, says="--dp")
        self.refused("serve", "--model", MODEL, "--max-model-len", 1, says="--max-model-len")
        self.refused("serve", "--model", MODEL, "--max-model-len", 4096, says=["--max-model-len: 4096", "1024"])
        self.refused("serve", "--model", MODEL, "--host", "no.such.host.invalid", says="cannot listen")
        for option, value, words in (("--max-queue", 0, "--max-queue: 0: need a number above 0 ("),
                                     ("--max-model-len", -3, "--max-model-len: -3: need a number that is not below 0"),
                                     ("--port", 99999, "--port: Value 99999 not in range 0 to 65535"),
                                     ("--sse-keep-alive", -1, "--sse-keep-alive: -1: need a number from 0 to 3600"),
                                     ("--request-timeout", "nan", "--request-timeout: nan: need a number from 0 to ")):
            self.assertLess(len(self.refused("serve", "--model", MODEL, option, value, says=words)), 200)
        for rate in ("0", "nan", "inf", "-1", "x"):
            told = self.refused("load", "--url", "http://127.0.0.1:1", "--requests", 1, "--input-tokens", 1,
                                "--output-tokens", 1, "--rate", rate, says="--rate: ")
            self.assertLess(len(told), 200)
        with SilentServer() as url:  # which says nothing but that it is there
            asks = ["load", "--url", url, "--input-tokens", 1, "--output-tokens", 1, "--requests", 2]
            trace = self.tmp / "trace.csv"
            trace.write_text("Timestamp,Request tokens,Response tokens\n0,1,1\n1,1,1\n")
            self.refused(*asks, "--rate", "1e-300", says="--rate: the last request would come after")
            self.refused("load", "--url", url, "--trace", trace, "--speed", "1e-300", says="--speed: the last request")
            done = run(*asks, "--concurrency", 2, "--timeout", 0.5)
            self.assertIn(b"the server has no news", done.stdout + done.stderr)
        empty = self.tmp / "empty"
        empty.write_text("\n")
        self.refused("serve", "--model", MODEL, "--api-key-file", empty, says="no API key")
        self.assertEqual(run("serve").returncode, 2)

    def starts(self, **more):
        """Exit code, stdout, and what stood on stderr beside progress."""
        command = [cli_case.STRETTO, "serve", "--model", MODEL, "--device", "cpu", "--port", "0"]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=WAIT, cwd=ROOT, check=False, **more)
        lines = done.stderr.splitlines()
        errors = [line for line in lines if line.startswith("stretto: error: ")]
        return done.returncode, done.stdout or "", errors, lines

    def test_descriptors_decide_how_many_connect(self):
        """Who is beyond is told so; nobody waits for nothing."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = 72
        with Server("--dtype", "float32", before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))) \
                as server:
            told = re.findall("(\\d+) connections at once, not 4096 .*there are 72 descriptors", server.said())
            self.assertEqual(len(told), 1, server.said())
            room = int(told[0])
            self.assertGreaterEqual(room, 16)
            socks = [self.enterContext(server.connect()) for _ in range(120)]
            statuses = []
            for sock in socks:  # from the first to the last, all of which stay open
                sock.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
                statuses.append(sock.recv(1000).split(b" ")[1])
            self.assertEqual(statuses, [b"200"] * room + [b"503"] * (120 - room))
            for sock in socks:
                sock.close()
            server.until(lambda: server.raw(b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                         .startswith(b"HTTP/1.1 200"), "room")
            # Fewer than at the start: connections wait, and the log says why, once.
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (3, limit))
            with server.connect() as sock:
                sock.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
                server.until(lambda: "Too many open files" in server.said(), "said")
                time.sleep(0.3)
                resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
                self.assertEqual(sock.recv(1000).split(b" ")[1], b"200")
            self.assertEqual(server.said().count("a connection cannot be accepted"), 1, server.said())
        self.assertEqual(resource.getrlimit(resource.RLIMIT_NOFILE), (soft, hard))

    def test_a_start_without_descriptors(self):
        for limit in (5, 9, 20, 50):
            with self.subTest(limit=limit):
                code, out, errors, said = self.starts(
                    stdout=subprocess.PIPE,
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
                self.assertEqual((code, out, len(errors)), (2, "", 1), said)
                self.assertRegex(errors[0], rf"too few descriptors: {limit} \(ulimit -n\); the server itself needs "
                                            r"\d+, and 16 connections one each")

    def test_a_start_whose_stdout_cannot_be_written(self):
        with open("/dev/full", "w") as full:
            code, _, errors, said = self.starts(stdout=full)
            self.assertEqual((code, len(errors)), (2, 1), said)
            self.assertRegex(errors[0], "standard output: cannot be written: No space left on device; it gets the line "
                                        "'listening on http://127.0.0.1:[0-9]+'$")
        code, _, errors, said = self.starts(preexec_fn=lambda: os.close(1))
        self.assertEqual((code, len(errors)), (2, 1), said)
        self.assertIn("standard output: cannot be written: Bad file descriptor", errors[0])

    def test_ready_file_and_log(self):
        ready = self.tmp / "ready"
        ready.write_text("http://127.0.0.1:1\n")  # of a server before
        self.refused("serve", "--model", self.tmp, "--ready-file", ready, says="config.json")
        self.assertFalse(ready.exists())
        with Server("--ready-file", ready, "--served-model-name", "m/x") as server:
            self.assertEqual(ready.read_text(), f"http://127.0.0.1:{server.port}\n")
            self.assertEqual(server.complete(model="m/x", prompt="x", max_tokens=3)["model"], "m/x")
            server.call("POST", "/v1/completions", {"prompt": 3}, {"X-Request-Id": "wrong-one"})
            code, out, err = server.stop()
            self.assertEqual((code, out), (0, b""))
            self.assertFalse(ready.exists())
            lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
            by_status = {line["status"]: line for line in lines}
            self.assertEqual((len(lines), sorted(by_status)), (2, [200, 400]))
            self.assertEqual(by_status[400]["id"], "wrong-one")
            self.assertGreater(by_status[200]["completion_tokens"], 0)


if __name__ == "__main__":
    cli_case.main(__doc__)
