"""The official client of the OpenAI API with its checks of every answer on: what it raises, when it asks again, and
what it makes of log-probabilities. Usage: openai_client_test.py PATH_OF_STRETTO [unittest arguments], from the root of
the repository. Needs the package openai; chat_test.py has its answers, streams and tools."""

import itertools
import json
import sys
import threading
import unittest

import python_environment

if len(sys.argv) > 1:
    python_environment.needs("openai", sys.argv[1])

import cli_case
from cli_case import DATA, MODEL, ROOT
from serve_case import WAIT, Server, ServeCase, free_port

try:
    import openai
    import pydantic
except ImportError:
    openai = None

PROMPT = "libopenmpi-dev:"
USER = [{"role": "user", "content": PROMPT}]


def client_of(server, strict=True, **more):
    more = {"api_key": "none", "max_retries": 0, "timeout": WAIT, **more}
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", _strict_response_validation=strict, **more)


@unittest.skipIf(openai is None, "the package openai is not there")
class CompletionsTest(ServeCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--dtype", "float32"))
        cls.client = client_of(cls.server)
        cls.model = cls.client.models.list().data[0].id

    def test_echo_with_logprobs(self):
        """Of every number of prompts, whole and streamed, with what the client says a log-probability is."""
        ids = self.server.post("/tokenize", {"prompt": PROMPT})[1]["tokens"]
        for prompts, tokens, logprobs in itertools.product(([PROMPT], [[ids[0]]], [PROMPT, "gcc"], [ids, ids[:2]]),
                                                           (1, 5), (0, 1, 3)):
            with self.subTest(prompts=prompts, tokens=tokens, logprobs=logprobs):
                ask = {"model": self.model, "prompt": prompts, "max_tokens": tokens, "logprobs": logprobs, "echo": True,
                       "temperature": 0}
                whole = self.client.completions.create(**ask)
                # A piece's end is null in the API as well, which the strict client does not take.
                pieces = list(client_of(self.server, strict=False).completions.create(stream=True, **ask))
                for choice in whole.choices:
                    its = choice.logprobs
                    self.assertEqual({len(its.tokens), len(its.text_offset), len(its.top_logprobs)},
                                     {len(its.token_logprobs)})
                    self.assertEqual((its.token_logprobs[0], its.top_logprobs[0]), (0, {}))
                    for token, at in zip(its.tokens, its.text_offset):
                        if token != "<s>" and token.isascii():
                            self.assertEqual(choice.text[at:at + len(token)], token)
                    self.assertTrue(all(value < 0 for value in its.token_logprobs[1:]))
                    self.assertTrue(all(token in top for token, top in zip(its.tokens[1:], its.top_logprobs[1:])))
                    told = [p.choices[0].logprobs for p in pieces if p.choices[0].index == choice.index]
                    for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                        self.assertEqual(sum((getattr(t, field) for t in told), []), getattr(its, field))

    def test_likelihoods_as_lm_eval_asks_for_them(self):
        """Its model local-completions: sums between the context and the last token, and which tokens were likeliest."""
        text = (DATA / "score_docs.txt").read_text().split("\0")[0]
        ids = self.server.post("/tokenize", {"prompt": text})[1]["tokens"]
        batch = [(ids[:n], context) for n, context in ((40, 1), (40, 20), (25, 24))]
        status, answer = self.server.post("/v1/completions", {
            "model": self.model, "prompt": [tokens for tokens, _ in batch], "max_tokens": 1, "logprobs": 1,
            "echo": True, "temperature": 0, "seed": 1234})
        self.assertEqual(status, 200, answer)
        sums = []
        for choice, (tokens, context) in zip(sorted(answer["choices"], key=lambda c: c["index"]), batch):
            values = choice["logprobs"]["token_logprobs"][context:-1]
            self.assertEqual(len(values), len(tokens) - context)
            tops = choice["logprobs"]["top_logprobs"][context:-1]
            self.assertTrue(all(value <= max(top.values()) for value, top in zip(values, tops)))
            sums.append(sum(values))
        document = self.tmp / "some.txt"
        document.write_text(self.server.post("/detokenize", {"tokens": ids[1:40]})[1]["prompt"])
        score = json.loads(self.good("score", "--model", MODEL, "--file", document, "--dtype", "float32",
                                     "--json").stdout)
        whole = self.server.complete(prompt=[*ids[:40], 1], max_tokens=1, logprobs=0, echo=True)
        last = whole["choices"][0]["logprobs"]["token_logprobs"][40]  # of the document's end, which score counts
        self.assertAlmostEqual(-score["nll_per_token"] * score["tokens"], sums[0] + last, places=3)

    def test_parse(self):
        class Package(pydantic.BaseModel):
            name: str = pydantic.Field(max_length=8, pattern="^[a-z]+$")
            sections: list[int] = pydantic.Field(max_length=2)

        for stream in (False, True):
            for ask in (dict(messages=USER), dict(input=PROMPT)):
                if "input" in ask:
                    with self.subTest(ask=ask, stream=stream):
                        if stream:
                            with self.client.responses.stream(model=self.model, text_format=Package, **ask) as events:
                                got = events.get_final_response()
                        else:
                            got = self.client.responses.parse(model=self.model, text_format=Package, **ask)
                        self.assertIsInstance(got.output_parsed, Package)
                elif stream:
                    with self.client.chat.completions.stream(model=self.model, response_format=Package,
                                                             **ask) as events:
                        parsed = events.get_final_completion().choices[0].message.parsed
                    self.assertIsInstance(parsed, Package)
                else:
                    got = self.client.chat.completions.parse(model=self.model, response_format=Package, **ask)
                    self.assertIsInstance(got.choices[0].message.parsed, Package)


@unittest.skipIf(openai is None, "the package openai is not there")
class ErrorsTest(ServeCase):
    """Each as the client's own exception, whatever was asked and how."""

    def asks(self, client, model="none"):
        return [lambda **more: client.chat.completions.create(model=model, messages=USER, max_tokens=3, **more),
                lambda **more: client.completions.create(model=model, prompt=PROMPT, max_tokens=3, **more),
                lambda **more: client.responses.create(model=model, input=PROMPT, max_output_tokens=3, **more)]

    def raises(self, error, status, ask, param=None, **more):
        with self.assertRaises(error) as caught:
            ask(**more)
        told = caught.exception
        self.assertEqual((told.status_code, told.param), (status, param), told)
        self.assertEqual(told.body["message"], str(told.body["message"]).strip())
        self.assertTrue(told.response.headers["x-request-id"])
        return told

    def test_400_401_and_404(self):
        with Server("--api-key", "right", "--served-model-name", "m") as server:
            for stream in (False, True):
                for ask in self.asks(client_of(server, api_key="right"), "m"):
                    self.raises(openai.BadRequestError, 400, ask, "temperature", temperature=-1, stream=stream)
                for ask in self.asks(client_of(server, api_key="wrong"), "m"):
                    self.raises(openai.AuthenticationError, 401, ask, stream=stream)
                for ask in self.asks(client_of(server, api_key="right"), "other"):
                    self.raises(openai.NotFoundError, 404, ask, "model", stream=stream)
            with self.assertRaises(openai.NotFoundError):
                client_of(server, api_key="right").models.retrieve("other")
            with self.assertRaises(openai.NotFoundError):
                client_of(server, api_key="right").embeddings.create(model="m", input="x")

    def test_a_request_that_takes_too_long(self):
        with Server("--request-timeout", "0.05") as server:
            for ask in self.asks(client_of(server), client_of(server).models.list().data[0].id):
                more = {"ignore_eos": True, "max_tokens": 900, "max_output_tokens": 900, "n": 1}
                with self.assertRaises(openai.APIStatusError) as caught:
                    ask(extra_body=more)
                self.assertEqual(caught.exception.status_code, 408)

    def fill(self, server):
        """Connections whose requests fill the server and its queue."""
        body = json.dumps({"prompt": "x", "max_tokens": 900, "n": 3, "ignore_eos": True, "stream": True}).encode()
        sock = server.connect()
        self.addCleanup(sock.close)
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        server.until(lambda: server.metric("vllm:num_requests_waiting") == 2, "full")
        return sock

    def test_429_and_then_an_answer(self):
        with Server("--max-num-seqs", 1, "--max-queue", 2, "--max-num-batched-tokens", 8, "--dtype", "float32",
                    model=str(ROOT / "checkpoints/debian-llama-8m")) as server:
            model = client_of(server).models.list().data[0].id
            sock = self.fill(server)
            for ask in self.asks(client_of(server), model):
                told = self.raises(openai.RateLimitError, 429, ask)
                self.assertEqual(told.response.headers["retry-after"], "1")
            before = server.metric("vllm:admission_rejections_total")
            answers = []
            thread = threading.Thread(target=lambda: answers.extend(
                ask().model for ask in self.asks(client_of(server, max_retries=50), model)))
            thread.start()
            server.until(lambda: server.metric("vllm:admission_rejections_total") > before, "refused once more")
            sock.close()
            thread.join(WAIT)
            self.assertEqual(answers, [model] * 3)

    def test_503_while_it_loads_and_then_an_answer(self):
        with Server("--dtype", "float32", env={"STRETTO_CACHE_DIR": str(self.tmp)}, port=free_port(),
                    waits=False) as server:
            client = client_of(server, max_retries=1000)
            got = client.chat.completions.create(model="debian-llama-draft-1m", messages=USER, max_tokens=3)
            self.assertEqual(got.object, "chat.completion")

    def test_a_server_that_dies_in_the_middle(self):
        """No stream ends as if it were whole."""
        for number in range(3):
            with Server("--dtype", "float32") as server:
                ask = self.asks(client_of(server, strict=False), client_of(server).models.list().data[0].id)[number]
                body = {"extra_body": {"ignore_eos": True, "max_tokens": 900, "max_output_tokens": 900}}
                stream = iter(ask(stream=True, **body))
                next(stream)
                server.process.kill()
                with self.assertRaises(Exception) as caught:
                    for _ in stream:
                        pass
                self.assertIn("connection", str(caught.exception).lower())
                with self.assertRaises(openai.APIConnectionError):
                    ask()

    def test_a_client_that_closes_its_stream(self):
        with Server("--dtype", "float32") as server:
            for ask in self.asks(client_of(server, strict=False), client_of(server).models.list().data[0].id):
                stream = ask(stream=True, extra_body={"ignore_eos": True, "max_tokens": 900, "max_output_tokens": 900})
                next(iter(stream))
                stream.close()
                server.until(lambda: server.metric("vllm:num_requests_running") == 0, "idle")
                self.assertTrue(ask().id)


if __name__ == "__main__":
    cli_case.main(__doc__)
