"""Chat on `stretto serve`, as clients use it. Usage: chat_test.py PATH_OF_STRETTO [unittest arguments], from the root
of the repository. The official client is that of the package openai, where the Python has it."""

import json
import shutil
import sys
import unittest

import python_environment

if len(sys.argv) > 1:
    python_environment.needs("openai", sys.argv[1])

import cli_case
from cli_case import MODEL, ROOT
from serve_case import Server, ServeCase

try:
    import openai
except ImportError:
    openai = None

TEMPLATES = ROOT / "tests/data/templates"
CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "libopenmpi-dev:"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def events(server, body):
    """Of a stream, [DONE] left out."""
    status, _, data = server.call("POST", CHAT, {**body, "stream": True})
    if status != 200:
        raise AssertionError(data)
    lines = [line.removeprefix("data: ") for line in data.decode().split("\n\n")
             if line and not line.startswith(":")]
    if lines[-1] != "[DONE]":
        raise AssertionError(lines[-1])
    return [json.loads(line) for line in lines[:-1]]


class AnswersTest(ServeCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--tp", 2, "--dtype", "float32"))

    def chat(self, **body):
        status, answer = self.server.post(CHAT, {"messages": USER, "max_tokens": 12, "temperature": 0, **body})
        self.assertEqual(status, 200, answer)
        return answer

    def test_the_rendered_prompt_is_what_runs(self):
        messages = [{"role": "system", "content": "gcc: the compiler"}, *USER]
        rendered = self.server.post(CHAT + "/render", {"messages": messages})[1]
        self.assertEqual(rendered["prompt"], "<s>gcc: the compiler\nlibopenmpi-dev:")
        tokens = self.server.post("/tokenize", {"messages": messages})[1]["tokens"]
        self.assertEqual(tokens, rendered["prompt_token_ids"])
        want = self.server.complete(prompt=tokens, max_tokens=12, temperature=0)
        got = self.chat(messages=messages)
        choice = got["choices"][0]
        self.assertEqual(choice["message"]["content"], want["choices"][0]["text"])
        self.assertEqual(choice["finish_reason"], want["choices"][0]["finish_reason"])
        self.assertEqual(got["usage"]["prompt_tokens"], len(tokens))
        self.assertEqual((got["object"], got["id"][:9], choice["message"]["role"]),
                         ("chat.completion", "chatcmpl-", "assistant"))

    def test_stream_is_the_same(self):
        body = {"messages": USER, "n": 3, "max_completion_tokens": 10, "temperature": 1, "seed": 5, "logprobs": True,
                "top_logprobs": 2, "stop": ["zz"]}
        whole = self.server.post(CHAT, body)[1]
        chunks = events(self.server, {**body, "stream_options": {"include_usage": True}})
        self.assertEqual((chunks[-1]["choices"], chunks[-1]["usage"]), ([], whole["usage"]))
        self.assertEqual(len({(c["id"], c["created"]) for c in chunks}), 1)
        for choice in whole["choices"]:
            its = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == choice["index"]]
            self.assertEqual(its[0]["delta"], {"role": "assistant", "content": ""})
            self.assertEqual("".join(c["delta"].get("content", "") for c in its), choice["message"]["content"])
            self.assertEqual([c["finish_reason"] for c in its[:-1]], [None] * (len(its) - 1))
            self.assertEqual(its[-1]["finish_reason"], choice["finish_reason"])
            told = sum(((c["logprobs"] or {"content": []})["content"] for c in its), [])
            self.assertEqual(told, choice["logprobs"]["content"])
            if choice["finish_reason"] == "length":
                text = bytes(sum((t["bytes"] for t in told), [])).decode()
                self.assertEqual(text, choice["message"]["content"])
            self.assertTrue(all(len(t["top_logprobs"]) == 2 for t in told))

    def test_users_cannot_write_special_tokens(self):
        rendered = self.server.post(CHAT + "/render", {"messages": [{"role": "user", "content": "a</s><s>"}]})[1]
        ids = rendered["prompt_token_ids"]
        self.assertEqual((ids.count(0), ids.count(1)), (1, 0))
        self.assertEqual(rendered["pieces"], [{"text": "<s>", "from": "template"},
                                              {"text": "a</s><s>", "from": "request"}])

    def test_forms_of_messages(self):
        def prompt(*messages, **more):
            status, got = self.server.post(CHAT + "/render", {"messages": list(messages), **more})
            self.assertEqual(status, 200, got)
            return got["prompt"]

        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        self.assertEqual(prompt({"role": "user", "content": parts}), "<s>a\nb")
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": 2}'}}
        own = "{{ messages[0].tool_calls[0].function.arguments|tojson }}{{ messages[0].content is none }}{{ x }}"
        self.assertEqual(prompt({"role": "assistant", "tool_calls": [call]}, chat_template=own,
                                chat_template_kwargs={"x": 5}), '{"b": 1, "a": 2}True5')
        # What a model wrote may be no object, and comes back with the conversation.
        for text in ('{"b": 1', "[1]", "3", "{]"):
            cut = {"id": "1", "type": "function", "function": {"name": "f", "arguments": text}}
            self.assertEqual(prompt({"role": "assistant", "tool_calls": [cut]}, chat_template=own),
                             json.dumps(text) + "True")
        self.assertEqual(prompt({"role": "user", "content": "a"}, {"role": "assistant", "content": "It is"},
                                chat_template="{% for m in messages %}[{{ m.content }}]{% endfor %}!",
                                continue_final_message=True), "[a][It is")

    @staticmethod
    def hostile():
        """Each value of a request in place of each other one, and what is no request."""
        values = [None, True, 0, -1, 1e300, 2**70, "", "x", [], [[]], [None], {}, {"": {}}, {"type": {}}, "\ud800",
                  "\0"]
        base = {"messages": [{"role": "assistant", "content": [{"type": "text", "text": "a"}], "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}], "input": [
                {"type": "message", "role": "user", "content": "a"}], "tools": [TOOL], "tool_choice": "none",
                "max_tokens": 1, "chat_template_kwargs": {}, "stream_options": None, "instructions": "a", "text": None}

        def places(value, path=()):
            yield path
            inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
            for key, one in inner:
                yield from places(one, (*path, key))

        yield from ("", "{", "[1]", "null", '{"messages": ' + "[" * 500)
        for path in list(places(base)):
            for value in values:
                made = {"": json.loads(json.dumps(base))}
                at = made
                keys = ("", *path)
                for key in keys[:-1]:
                    at = at[key]
                at[keys[-1]] = value
                yield json.dumps(made[""])

    def test_refusals(self):
        for param, body in {
                "messages": {"messages": []}, "stream_options": {"stream_options": {}},
                "top_logprobs": {"top_logprobs": 2}, "tools": {"tools": {}}, "tool_choice": {"tool_choice": "auto"},
                "response_format": {"response_format": {"type": "json_schema"}}, "n": {"n": 0},
                "structured_outputs": {"structured_outputs": {"regex": "a)"}}, "guided_json": {"guided_json": "{"},
                "continue_final_message": {"continue_final_message": True, "add_generation_prompt": True},
                "logprobs": {"logprobs": 3}, "modalities": {"modalities": ["audio"]},
                "functions": {"functions": [{"name": "f"}]},
                "temperature": {"temperature": -1}, "stop": {"stop": ["a"] * 5}, "min_tokens": {"min_tokens": 99},
                "max_tokens": {"max_tokens": 0}, "chat_template": {"chat_template": "no_such_name"},
                "chat_template_kwargs": {"chat_template_kwargs": 3},
                "prompt_logprobs": {"prompt_logprobs": 1, "stream": True}}.items():
            self.refusal(self.server, {"messages": USER, "max_tokens": 5, **body}, param, path=CHAT)
        for message in [3, {}, {"role": "user"}, {"role": 1, "content": "x"}, {"role": "user", "content": 4},
                        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
                        {"role": "assistant", "tool_calls": [{"function": "f"}]}]:
            self.refusal(self.server, {"messages": [message]}, "messages", path=CHAT)
        self.refusal(self.server, {"messages": USER, "tools": [TOOL]}, "tools", path=CHAT)
        self.refusal(self.server, {"messages": USER, "model": "x"}, "model", status=404, path=CHAT)
        long = [{"role": "user", "content": "a b " * 2000}]
        self.assertIn("maximum context length", self.refusal(self.server, {"messages": long}, "messages", path=CHAT))
        for what, line in (("\n{{ messages.x.y }}", 2), ("{% if %}", 1), ("\n\n{{ raise_exception('No!') }}", 3)):
            said = self.refusal(self.server, {"messages": USER, "chat_template": what}, "chat_template", path=CHAT)
            self.assertIn(f"line {line}: ", said)
        for path in (CHAT, CHAT + "/render", "/v1/responses", "/tokenize"):
            for body in self.hostile():
                status, _, data = self.server.call("POST", path, body)
                self.assertLess(status, 500, (path, body[:200], data))
        # What is known and changes nothing, and what is not known.
        for name in ("store", "metadata", "service_tier", "user", "prompt_cache_key", "verbosity", "never_heard_of"):
            self.chat(**{name: "x"})
        self.chat(response_format={"type": "text"}, modalities=["text"], tools=[TOOL], tool_choice="none")


class TemplatesTest(ServeCase):
    def model(self, **files):
        """A copy of the smallest model with these files in place of its template."""
        place = self.tmp / f"model{len(list(self.tmp.iterdir()))}"
        shutil.copytree(MODEL, place)
        (place / "chat_template.jinja").unlink()
        for name, text in files.items():
            path = place / name.replace("__", "/").replace("_jinja", ".jinja").replace("_json", ".json")
            path.parent.mkdir(exist_ok=True)
            if path.name == "tokenizer_config.json":
                text = json.dumps({**json.loads(path.read_text()), "chat_template": text})
            path.write_text(text)
        return str(place)

    def rendered(self, model, *args, **body):
        with Server(*args, model=model) as server:
            status, got = server.post(CHAT + "/render", {"messages": USER, **body})
            return got["prompt"] if status == 200 else got["error"]["message"]

    def test_where_templates_are(self):
        self.assertEqual(self.rendered(self.model(chat_template_jinja="1", chat_template_json='{"chat_template": "2"}',
                                                  tokenizer_config_json="3")), "1")
        self.assertEqual(self.rendered(self.model(chat_template_json='{"chat_template": "2"}',
                                                  tokenizer_config_json="3")), "2")
        named = [{"name": "default", "template": "3"}, {"name": "tool_use", "template": "<tool_call>"},
                 {"name": "rag", "template": "5"}]
        model = self.model(tokenizer_config_json=named)
        self.assertEqual(self.rendered(model), "3")
        self.assertEqual(self.rendered(model, tools=[TOOL]), "<tool_call>")
        self.assertEqual(self.rendered(model, chat_template="rag"), "5")
        more = self.model(chat_template_jinja="1", additional_chat_templates__rag_jinja="6")
        self.assertEqual(self.rendered(more, chat_template="rag"), "6")
        own = self.tmp / "own.jinja"
        own.write_text("7{{ eos_token }}")
        self.assertEqual(self.rendered(model, "--chat-template", own), "7</s>")

    def test_without_a_template(self):
        with Server(model=self.model()) as server:
            self.assertIn("--chat-template", self.refusal(server, {"messages": USER}, "messages", path=CHAT))
            self.assertEqual(server.complete(prompt="x", max_tokens=2)["object"], "text_completion")
        self.assertIn("line 2: ", self.rendered(self.model(chat_template_jinja="\n{% nope %}")))
        wrong = self.tmp / "wrong.jinja"
        wrong.write_text("\n{% nope %}")
        self.refused("serve", "--model", MODEL, "--chat-template", wrong, says=["wrong.jinja", "line 2"])
        self.refused("serve", "--model", MODEL, "--chat-template", self.tmp / "none", says="none")
        self.refused("serve", "--model", MODEL, "--tool-call-parser", "x", says="--tool-call-parser")


@unittest.skipIf(openai is None, "the package openai is not there")
class OfficialClientTest(ServeCase):
    """Every answer has to be of the client's types."""

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--dtype", "float32", "--chat-template", TEMPLATES / "qwen3.jinja"))
        cls.client = openai.OpenAI(base_url=f"http://127.0.0.1:{cls.server.port}/v1", api_key="none", max_retries=0,
                                   _strict_response_validation=True)
        cls.model = cls.client.models.list().data[0].id

    def test_chat(self):
        got = self.client.chat.completions.create(model=self.model, messages=USER, max_completion_tokens=8, n=2,
                                                  logprobs=True, top_logprobs=3)
        self.assertEqual([c.index for c in got.choices], [0, 1])
        self.assertGreater(got.usage.completion_tokens, 0)
        self.assertEqual(len(got.choices[0].logprobs.content[0].top_logprobs), 3)

    def test_stream(self):
        chunks = list(self.client.chat.completions.create(
            model=self.model, messages=USER, max_tokens=8, stream=True, stream_options={"include_usage": True},
            tools=[TOOL], logprobs=True))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertIsNotNone(chunks[-1].usage)
        # Ended by a stop string, since the client raises for an answer that the limit has cut.
        greedy = {"model": self.model, "messages": USER, "max_tokens": 8, "temperature": 0,
                  "extra_body": {"ignore_eos": True}}
        whole = self.client.chat.completions.create(**greedy).choices[0].message.content
        stop = whole[len(whole) // 2:][:3]
        self.assertTrue(stop)
        with self.client.chat.completions.stream(**greedy, stop=[stop]) as stream:
            stream.until_done()
            choice = stream.get_final_completion().choices[0]
            self.assertEqual((choice.finish_reason, choice.message.content), ("stop", whole[:whole.index(stop)]))

    def test_errors(self):
        for error, body in ((openai.BadRequestError, {"top_logprobs": 2}), (openai.NotFoundError, {"model": "x"}),
                            (openai.BadRequestError, {"tools": [TOOL], "tool_choice": "sometimes"})):
            with self.assertRaises(error) as caught:
                self.client.chat.completions.create(**{"model": self.model, "messages": USER, **body})
            self.assertIn(caught.exception.param, body)

    def test_completions(self):
        got = self.client.completions.create(model=self.model, prompt="gcc:", max_tokens=4, logprobs=1)
        self.assertEqual(got.object, "text_completion")

    def test_responses(self):
        got = self.client.responses.create(model=self.model, input="gcc:", max_output_tokens=8, temperature=0)
        chat = self.client.chat.completions.create(
            model=self.model, messages=[{"role": "user", "content": "gcc:"}], max_tokens=8, temperature=0)
        self.assertEqual(got.output_text, chat.choices[0].message.content)
        self.assertEqual(got.status, "incomplete" if chat.choices[0].finish_reason == "length" else "completed")
        self.assertEqual(got.usage.output_tokens, chat.usage.completion_tokens)
        again = self.client.responses.create(
            model=self.model, max_output_tokens=4, instructions="Be short.", tools=[{
                "type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}],
            input=[{"role": "user", "content": [{"type": "input_text", "text": "x"}]}, *got.output,
                   {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                   {"type": "function_call_output", "call_id": "1", "output": "3"}])
        self.assertEqual(again.tools[0].name, "f")
        formed = self.client.responses.create(model=self.model, input="x", max_output_tokens=200, temperature=0,
                                              extra_body={"guided_choice": ["yes", "no"], "reasoning": None})
        self.assertIn(formed.output_text, ("yes", "no"))

    def test_responses_streamed(self):
        events = list(self.client.responses.create(model=self.model, input="gcc:", max_output_tokens=8, temperature=0,
                                                   stream=True))
        self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
        kinds = [e.type for e in events]
        self.assertEqual(kinds[:4], ["response.created", "response.in_progress", "response.output_item.added",
                                     "response.content_part.added"])
        self.assertEqual(kinds[-4:-1], ["response.output_text.done", "response.content_part.done",
                                        "response.output_item.done"])
        self.assertIn(kinds[-1], ("response.completed", "response.incomplete"))
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        self.assertEqual(text, events[-1].response.output_text)
        # The field is named as it is here, though a chat request finds the fault.
        image = [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]
        endless = {"type": "json_schema", "name": "x", "schema": {"contains": {}}}
        for param, body in {"previous_response_id": {"previous_response_id": "x"}, "background": {"background": True},
                            "text": {"text": {"format": endless}}, "input": {"input": image}, "n": {"n": 2},
                            "max_output_tokens": {"max_output_tokens": 0}, "instructions": {"instructions": ["x"]},
                            "reasoning": {"reasoning": 3}, "bad_words": {"bad_words": ["x"]},
                            "guided_regex": {"guided_regex": "("}, "stop": {"stop": 3}}.items():
            said = self.refusal(self.server, {"input": "x", **body}, param, path="/v1/responses")
            self.assertIn(param, said)
        self.refusal(self.server, {"input": []}, "input", path="/v1/responses")
        for param, body in {"text": {"text": {"format": 3}}, "input": {"input": "a b " * 4000}}.items():
            self.refusal(self.server, {"input": "x", **body}, param, path="/v1/responses")


WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": {
    "type": "object", "required": ["city", "days"], "additionalProperties": False, "properties": {
        "city": {"enum": ["Zürich", "Oslo", "</tool_call>"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "why": {"type": "string", "maxLength": 12}}}}}


@unittest.skipIf(openai is None, "the package openai is not there")
class ToolsTest(ServeCase):
    """From a question to a call, and with the tool's answer to words, in the form of each family."""

    def family(self, name):
        server = self.enterContext(Server("--dtype", "float32", "--chat-template", TEMPLATES / f"{name}.jinja",
                                          "--reasoning-parser", "none"))
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0,
                               _strict_response_validation=True)
        return server, client, {"model": client.models.list().data[0].id, "tools": [WEATHER], "max_tokens": 300}

    def check(self, call):
        self.assertEqual(call.function.name, "get_weather")
        arguments = json.loads(call.function.arguments)
        self.assertIn(arguments["city"], WEATHER["function"]["parameters"]["properties"]["city"]["enum"])
        self.assertIn(arguments["days"], range(1, 10))
        return arguments

    def test_a_call_and_its_answer(self):
        for name, answered in {"qwen3": "<tool_response>\nIt rains.\n</tool_response>",
                               "llama3": "ipython<|end_header_id|>\n\n",
                               "mistral": '[TOOL_RESULTS]{"content": It '}.items():
            with self.subTest(name):
                server, client, body = self.family(name)
                for seed in range(4):
                    messages = [{"role": "user", "content": "Weather in Oslo?"}]
                    first = client.chat.completions.create(messages=messages, tool_choice="required", seed=seed,
                                                           parallel_tool_calls=False, **body).choices[0]
                    self.assertEqual((first.finish_reason, len(first.message.tool_calls)), ("tool_calls", 1))
                    self.check(first.message.tool_calls[0])
                    messages += [first.message.model_dump(exclude_none=True),
                                 {"role": "tool", "tool_call_id": first.message.tool_calls[0].id,
                                  "content": "It rains."}]
                    prompt = server.post(CHAT + "/render", {"messages": messages, "tools": [WEATHER]})[1]["prompt"]
                    self.assertIn(answered, prompt)
                    self.assertIn("get_weather", prompt.split("Oslo?")[1])
                    second = client.chat.completions.create(messages=messages, tool_choice="none", seed=seed,
                                                            extra_body={"min_tokens": 8}, **body)
                    self.assertTrue(second.choices[0].message.content)

    def test_a_call_streamed(self):
        for name in ("qwen3", "llama3", "mistral"):
            with self.subTest(name):
                _, client, body = self.family(name)
                body |= {"messages": [{"role": "user", "content": "Weather?"}], "parallel_tool_calls": False, "seed": 3,
                         "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
                whole = client.chat.completions.create(**body).choices[0].message
                chunks = list(client.chat.completions.create(stream=True, **body))
                deltas = [c.choices[0].delta for c in chunks if c.choices]
                pieces = [d.tool_calls[0] for d in deltas if d.tool_calls]
                self.assertEqual("".join(d.content or "" for d in deltas), whole.content or "")
                self.assertEqual({p.index for p in pieces}, {0})
                self.assertEqual([p.function.name for p in pieces], ["get_weather"] + [None] * (len(pieces) - 1))
                self.assertEqual([bool(p.id) for p in pieces], [True] + [False] * (len(pieces) - 1))
                arguments = [p.function.arguments for p in pieces]
                self.assertEqual("".join(arguments), whole.tool_calls[0].function.arguments)
                self.assertGreater(len(arguments), 5)  # as they were written
                self.assertEqual(chunks[-1].choices[0].finish_reason, "tool_calls")
                with client.chat.completions.stream(**body) as stream:
                    self.check(stream.get_final_completion().choices[0].message.tool_calls[0])

    def test_responses(self):
        _, client, body = self.family("qwen3")
        tool = {"type": "function", "strict": True, **WEATHER["function"]}
        body = {"model": body["model"], "tools": [tool], "tool_choice": "required", "max_output_tokens": 300,
                "parallel_tool_calls": False}
        events = list(client.responses.create(input="Weather?", stream=True, **body))
        kinds = [e.type for e in events]
        self.assertEqual(kinds[-4:], ["response.function_call_arguments.delta",
                                      "response.function_call_arguments.done", "response.output_item.done",
                                      "response.completed"])
        deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
        call = next(item for item in events[-1].response.output if item.type == "function_call")
        self.assertEqual("".join(deltas), call.arguments)
        self.assertGreater(len(deltas), 5)
        answer = client.responses.create(input=[
            {"role": "user", "content": "Weather?"}, *events[-1].response.output,
            {"type": "function_call_output", "call_id": call.call_id, "output": "It rains."}],
            **(body | {"tool_choice": "none"}))
        self.assertIn(answer.output[0].type, ("message", "reasoning"))


if __name__ == "__main__":
    cli_case.main(__doc__)
