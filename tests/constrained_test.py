"""Constrained output on `stretto serve`, as clients ask for it. Usage: constrained_test.py PATH_OF_STRETTO [unittest
arguments], from the root of the repository."""

import json
import os
import pathlib
import random
import re
import sys
import tempfile
import unittest

import python_environment

if len(sys.argv) > 1:
    python_environment.needs("openai", sys.argv[1])

import cli_case
from cli_case import MODEL, ROOT
from serve_case import Server, ServeCase

try:
    import openai
    import pydantic
except ImportError:
    openai = None

SEED = int(os.environ.get("STRETTO_TEST_SEED") or random.randrange(1 << 32))
CHAT = "/v1/chat/completions"
TEMPLATES = ROOT / "tests/data/templates"
USER = [{"role": "user", "content": "libopenmpi-dev:"}]
SCHEMA = {"type": "object", "properties": {
    "section": {"enum": ["libs", "doc", "devel"]}, "priority": {"type": "integer", "minimum": 1, "maximum": 5},
    "name": {"type": "string", "maxLength": 12}}, "required": ["section", "priority", "name"],
    "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": parameters}} for name, parameters in {
    "install": {"type": "object", "properties": {"package": {"enum": ["gcc", "g++"]},
                                                 "times": {"type": "integer", "minimum": 1, "maximum": 3}},
                "required": ["package", "times"]},
    "look_up": {"type": "object", "properties": {"word": {"type": "string", "pattern": "^[a-z]{2,6}$"}},
                "required": ["word"]},
    "wait": None}.items()]


def model_with_token(directory, text):
    """The bundled model, whose last token says this."""
    source = ROOT / MODEL
    for file in source.iterdir():
        (directory / file.name).symlink_to(file)
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    old = next(token for token, id in vocabulary.items() if id == 4095)
    del vocabulary[old]
    merges = tokenizer["model"]["merges"]
    tokenizer["model"]["merges"] = [m for m in merges if "".join(m if isinstance(m, list) else m.split(" ")) != old]
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 4095, "content": text})
    (directory / "tokenizer.json").unlink()
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return directory


def is_record(value):
    return (list(value) == ["section", "priority", "name"] and value["section"] in ("libs", "doc", "devel")
            and value["priority"] in range(1, 6) and isinstance(value["name"], str) and len(value["name"]) <= 12)


def response_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


class FieldsTest(ServeCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--tp", 2, "--dtype", "float32"))

    def text(self, **body):
        answer = self.server.complete(**{"prompt": "gcc-doc:", "max_tokens": 120, "temperature": 1, **body})
        self.assertEqual(answer["choices"][0]["finish_reason"], "stop", answer)
        return answer["choices"][0]["text"]

    def test_every_name_of_a_field(self):
        schemas = [{"response_format": response_format(SCHEMA)}, {"guided_json": SCHEMA},
                   {"guided_json": json.dumps(SCHEMA)}, {"structured_outputs": {"json": SCHEMA}},
                   {"json_schema": SCHEMA},
                   {"response_format": {"type": "json_object", "schema": SCHEMA}},
                   {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}]
        for body in schemas:
            with self.subTest(body=list(body)):
                text = self.text(**body)
                self.assertTrue(is_record(json.loads(text)), text)
        self.assertNotIn(" ", re.sub('"[^"]*"', "", text), "no space was asked for")
        for body in ({"guided_regex": "[a-z]{3,9} [0-9]{2}"}, {"structured_outputs": {"regex": "[a-z]{3,9} [0-9]{2}"}}):
            self.assertRegex(self.text(**body), r"\A[a-z]{3,9} [0-9]{2}\Z")
        for body in ({"guided_choice": ["libs", "doc"]}, {"structured_outputs": {"choice": ["libs", "doc"]}}):
            self.assertIn(self.text(**body), ("libs", "doc"))
        grammar = 'root ::= "(" root ")" | [0-9]{1,3}  # nested'
        for body in ({"grammar": grammar}, {"guided_grammar": grammar}, {"structured_outputs": {"grammar": grammar}}):
            text = self.text(**body, logit_bias={self.token(")"): 5})
            self.assertRegex(text, r"\A\(*[0-9]{1,3}\)*\Z")
            self.assertEqual(text.count("("), text.count(")"))
        for body in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}):
            self.assertIsInstance(json.loads(self.text(**body, temperature=0)), dict)

    def token(self, text):
        return self.server.post("/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"][0]

    def test_chat_has_them_too(self):
        for body in ({"response_format": response_format(SCHEMA)}, {"guided_json": SCHEMA}):
            status, answer = self.server.post(CHAT, {"messages": USER, "max_tokens": 120, "n": 3, "seed": 7, **body})
            self.assertEqual(status, 200, answer)
            for choice in answer["choices"]:
                self.assertTrue(is_record(json.loads(choice["message"]["content"])))
        status, answer = self.server.post("/v1/responses", {
            "input": "gcc-doc:", "max_output_tokens": 120,
            "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}})
        self.assertEqual(status, 200, answer)
        self.assertTrue(is_record(json.loads(answer["output"][0]["content"][0]["text"])))

    def test_a_stream_is_the_same(self):
        body = {"prompt": "gcc-doc:", "max_tokens": 120, "temperature": 1, "seed": 11, "guided_json": SCHEMA,
                "logprobs": 2}
        whole = self.server.complete(**body)["choices"][0]
        events = self.server.stream(**body)
        self.assertEqual("".join(e["choices"][0]["text"] for e in events), whole["text"])
        # Log-probabilities are those of the model, what was not allowed included.
        self.assertLess(min(whole["logprobs"]["token_logprobs"]), -5)

    def test_a_limit_cuts(self):
        answer = self.server.complete(prompt="gcc-doc:", max_tokens=3, guided_json=SCHEMA)
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")

    def test_the_end_only_where_the_text_may_end(self):
        end = {"1": 100}  # what the model would end with
        self.assertRegex(self.text(guided_regex="a{3,9}", logit_bias=end), "^aaa$")
        self.assertEqual(self.text(guided_regex="a{3,9}", logit_bias={"1": -100, self.token("a"): 50}), "a" * 9)

    def test_refusals(self):
        for field, body in {
                "guided_regex": {"guided_regex": "a(?=b)"}, "guided_choice": {"guided_choice": []},
                "grammar": {"grammar": "x ::= y"}, "json_schema": {"json_schema": {"$ref": "#/nowhere"}},
                "guided_json": {"guided_json": {"type": "array", "uniqueItems": True}},
                "structured_outputs": {"structured_outputs": {"structural_tag": "x"}},
                "guided_whitespace_pattern": {"guided_whitespace_pattern": "x"},
                "ignore_eos": {"guided_regex": "a", "ignore_eos": True},
                "response_format": {"response_format": response_format(
                    {"allOf": [{"multipleOf": 0.2}, {"multipleOf": 0.3}]})}
        }.items():
            with self.subTest(field=field):
                self.refusal(self.server, {"prompt": "x", **body}, param=field)
        said = self.refusal(self.server, {"prompt": "x", "guided_json": {"properties": {"a/b": {"contains": {}}}}},
                            param="guided_json")
        self.assertIn("schema at /properties/a~1b: the keyword 'contains'", said)
        said = self.refusal(self.server, {"prompt": "x", "guided_regex": "a", "grammar": "x"}, param="grammar")
        self.assertIn("guided_regex does, too", said)
        large = {"type": "string", "pattern": "(a|b)*a(a|b){30}"}
        self.assertIn("too large", self.refusal(self.server, {"prompt": "x", "guided_json": large}, "guided_json"))

    def test_hostile_schemas(self):
        """Values in the wrong places: 200 or 400, and the server lives."""
        print(f"seed {SEED}")
        draw = random.Random(SEED)
        words = ["type", "properties", "items", "required", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "$defs",
                 "minLength", "maxLength", "pattern", "minimum", "maximum", "minItems", "maxItems", "prefixItems",
                 "additionalProperties", "format", "exclusiveMinimum", "not", "if", "then", "else", "uniqueItems",
                 "patternProperties", "propertyNames", "minProperties", "maxProperties", "dependentRequired",
                 "multipleOf", "additionalItems"]
        plain = ["object", "string", "array", "integer", "#", "#/$defs/a", "(", "[a-z]*", None, True, False, -1, 0, 3,
                 1e300, 2**70, 0.1, "date", "", "\0", "é"]

        def value(depth):
            kind = draw.randrange(4 if depth < 5 else 1)
            if kind == 0:
                return draw.choice(plain)
            if kind == 1:
                return [value(depth + 1) for _ in range(draw.randrange(4))]
            return {draw.choice(words + ["a"]): value(depth + 1) for _ in range(draw.randrange(4))}

        statuses = {}
        for _ in range(500):
            schema = value(0)
            status, _, data = self.server.call("POST", "/v1/completions", {"prompt": "x", "max_tokens": 2,
                                                                            "guided_json": schema})
            statuses[status] = statuses.get(status, 0) + 1
            self.assertIn(status, (200, 400), (schema, data))
        self.assertEqual(set(statuses), {200, 400})


class PreemptionTest(ServeCase):
    def test_answers_survive_it(self):
        """A cache in which not all requests fit at full length: they are computed again, and say the same."""
        bodies = [{"prompt": [5 + i] * 40, "max_tokens": 80, "temperature": 1, "seed": i, "ignore_eos": False,
                   "guided_regex": "([a-z]{2,8} ){30}[0-9]{4}"} for i in range(6)]
        with Server("--dtype", "float32") as server:
            alone = [server.complete(**body)["choices"][0]["text"] for body in bodies]
        with Server("--dtype", "float32", "--kv-memory", "768KiB", "--max-model-len", 128,
                    "--no-prefix-caching") as server:
            import concurrent.futures
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                together = list(pool.map(lambda body: server.complete(**body)["choices"][0]["text"], bodies))
            preemptions = server.metric("vllm:num_preemptions_total")
        self.assertGreater(preemptions, 0)
        self.assertEqual(together, alone)
        for text in alone:
            self.assertRegex(text, r"\A([a-z]{2,8} ){0,30}([a-z]{0,8}|[0-9]{0,4})\Z")


class ToolsTest(ServeCase):
    def call(self, server, **body):
        status, answer = server.post(CHAT, {"messages": USER, "tools": TOOLS, "temperature": 1, "max_tokens": 200,
                                            **body})
        self.assertEqual(status, 200, answer)
        choice = answer["choices"][0]
        self.assertEqual(choice["finish_reason"], "tool_calls", answer)
        return choice["message"]

    def check(self, call):
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "install":
            self.assertIn(arguments["package"], ("gcc", "g++"))
            self.assertIn(arguments["times"], (1, 2, 3))
        else:
            self.assertEqual(call["function"]["name"], "look_up")
            self.assertRegex(arguments["word"], r"\A[a-z]{2,6}\Z")

    def test_a_call_has_to_be_made(self):
        two = TOOLS[:2]
        for parser in ("hermes", "llama3", "mistral"):
            with self.subTest(parser=parser), Server("--tool-call-parser", parser) as server:
                for seed in range(4):
                    message = self.call(server, tools=two, tool_choice="required", seed=seed, parallel_tool_calls=False)
                    self.assertIsNone(message["content"])
                    self.assertEqual(len(message["tool_calls"]), 1)
                    self.check(message["tool_calls"][0])
                named = {"type": "function", "function": {"name": "look_up"}}
                message = self.call(server, tool_choice=named)
                self.assertEqual(len(message["tool_calls"]), 1)
                self.assertEqual(message["tool_calls"][0]["function"]["name"], "look_up")
                self.check(message["tool_calls"][0])
                if parser == "hermes":  # with others the calls are none where the last one is cut
                    several = self.many_calls(server)
                    self.assertGreater(len(several), 1)
                    for call in several[:-1]:  # of which the last one is cut
                        self.check(call)
                for limit in range(1, 60, 3):  # where the limit cuts a call off, its rest is no content
                    status, answer = server.post(CHAT, {"messages": USER, "tools": two, "tool_choice": "required",
                                                        "max_tokens": limit, "seed": limit})
                    self.assertEqual(status, 200, answer)
                    self.assertFalse(answer["choices"][0]["message"]["content"], answer)
                self.refusal(server, {"messages": USER, "tools": TOOLS, "tool_choice": {
                    "type": "function", "function": {"name": "x"}}}, "tool_choice", path=CHAT)
                self.refusal(server, {"messages": USER, "tools": TOOLS, "tool_choice": "required",
                                      "guided_regex": "a"}, "tool_choice", path=CHAT)
                wrong = [{"type": "function", "function": {"name": "f", "parameters": {"contains": {}}}}]
                said = self.refusal(server, {"messages": USER, "tools": wrong, "tool_choice": "required"}, "tools",
                                    path=CHAT)
                self.assertIn("'contains'", said)

    def test_a_call_that_begins_is_as_a_strict_tool_wants_it(self):
        """Where the model may choose. A token of the model is the tag, which the requests like."""
        strict = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS[:2]]
        for parser, tag in (("hermes", "<tool_call>"), ("mistral", "[TOOL_CALLS]"), ("llama3", "{")):
            with self.subTest(parser=parser), tempfile.TemporaryDirectory() as directory:
                model = MODEL if tag == "{" else model_with_token(pathlib.Path(directory), tag)
                with Server("--tool-call-parser", parser, model=model) as server:
                    likes = {"logit_bias": {str(self.token(server, tag)): 100}, "parallel_tool_calls": False}
                    for seed in range(4):
                        message = self.call(server, tools=strict, seed=seed, **likes)
                        self.check(message["tool_calls"][0])
                        body = {"messages": USER, "tools": strict, "temperature": 1, "max_tokens": 200, "seed": seed,
                                **likes}
                        deltas = [e["choices"][0]["delta"] for e in server.stream(path=CHAT, **body)]
                        calls = [d["tool_calls"][0]["function"] for d in deltas if d.get("tool_calls")]
                        self.assertEqual(calls[0]["name"], message["tool_calls"][0]["function"]["name"])
                        self.assertEqual("".join(c["arguments"] for c in calls),
                                         message["tool_calls"][0]["function"]["arguments"])
                    # Text that is no call is what it would have been.
                    body = {"messages": USER, "temperature": 0, "max_tokens": 40}
                    free = server.post(CHAT, body)[1]["choices"][0]["message"]["content"]
                    both = server.post(CHAT, {**body, "tools": strict})[1]["choices"][0]["message"]["content"]
                    self.assertEqual(both, free)
                    wrong = [{"type": "function", "function": {"name": "f", "strict": True,
                                                               "parameters": {"contains": {}}}}]
                    said = self.refusal(server, {"messages": USER, "tools": wrong}, "tools", path=CHAT)
                    self.assertIn("'contains'", said)
                    wrong[0]["function"]["strict"] = "yes"
                    self.refusal(server, {"messages": USER, "tools": wrong}, "tools", path=CHAT)

    @staticmethod
    def many_calls(server):
        """As many as fit."""
        _, answer = server.post(CHAT, {"messages": USER, "tools": TOOLS[:1], "tool_choice": "required",
                                       "max_tokens": 400, "logit_bias": {"1": -100}})
        return answer["choices"][0]["message"]["tool_calls"]

    def test_a_tool_that_is_named_is_called_once(self):
        with Server("--tool-call-parser", "hermes") as server:
            named = {"type": "function", "function": {"name": TOOLS[0]["function"]["name"]}}
            ask = {"messages": USER, "tools": TOOLS[:1], "max_tokens": 400, "logit_bias": {"1": -100}}
            _, required = server.post(CHAT, {**ask, "tool_choice": "required"})
            self.assertGreater(len(required["choices"][0]["message"]["tool_calls"]), 1)
            _, answer = server.post(CHAT, {**ask, "tool_choice": named})
            self.assertEqual(len(answer["choices"][0]["message"]["tool_calls"]), 1)

    def test_fields_that_could_leave_no_token(self):
        with Server() as server:
            for path, asked in (("/v1/completions", {"prompt": "x"}), (CHAT, {"messages": USER})):
                for form in ({"guided_regex": "[0-9]{5}"}, {"response_format": response_format(SCHEMA)}):
                    for field, value in (("allowed_token_ids", [100]), ("min_tokens", 3), ("ignore_eos", True)):
                        self.refusal(server, {**asked, **form, field: value}, field, path=path)
                self.refusal(server, {**asked, "allowed_token_ids": []}, "allowed_token_ids", path=path)

    def test_thoughts_come_first(self):
        with Server("--reasoning-parser", "think") as server:
            body = {"messages": USER, "max_tokens": 200, "response_format": response_format(SCHEMA),
                    "chat_template": "{{ bos_token }}{{ messages[0].content }}<think>", "temperature": 1,
                    "logit_bias": {str(self.token(server, "</")): 20}}
            status, answer = server.post(CHAT, body)
            self.assertEqual(status, 200, answer)
            message = answer["choices"][0]["message"]
            if answer["choices"][0]["finish_reason"] == "stop":
                self.assertTrue(is_record(json.loads(message["content"])))

    @staticmethod
    def token(server, text):
        return server.post("/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"][0]


@unittest.skipIf(openai is None, "the package openai is missing")
class OfficialClientTest(ServeCase):
    def test_parse(self):
        class Dependency(pydantic.BaseModel):
            name: str = pydantic.Field(max_length=8)
            optional: bool

        class Package(pydantic.BaseModel):
            name: str = pydantic.Field(max_length=10)
            size: int = pydantic.Field(ge=0, le=999)
            depends: list[Dependency] = pydantic.Field(max_length=2)
            homepage: str | None = pydantic.Field(max_length=5)

        with Server("--tool-call-parser", "hermes") as server:
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0,
                                   _strict_response_validation=True)
            model = client.models.list().data[0].id
            for seed in range(3):
                got = client.chat.completions.parse(model=model, messages=USER, max_tokens=400, seed=seed,
                                                    response_format=Package)
                self.assertIsInstance(got.choices[0].message.parsed, Package)
            answer = client.responses.parse(model=model, input="gcc:", max_output_tokens=400, text_format=Package)
            self.assertIsInstance(answer.output_parsed, Package)
            with client.chat.completions.stream(model=model, messages=USER, max_tokens=400,
                                                response_format=Package) as stream:
                stream.until_done()
                self.assertIsInstance(stream.get_final_completion().choices[0].message.parsed, Package)
            called = client.chat.completions.parse(
                model=model, messages=USER, max_tokens=400, tools=[openai.pydantic_function_tool(Package)],
                tool_choice="required", parallel_tool_calls=False)
            self.assertIsInstance(called.choices[0].message.tool_calls[0].function.parsed_arguments, Package)


if __name__ == "__main__":
    cli_case.main(__doc__)
