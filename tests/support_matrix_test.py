"""The tables of fields in docs/guide/serving.md against the server: each field is sent, and is honoured, refused or
ignored as its row says. Usage: support_matrix_test.py PATH_OF_STRETTO [unittest arguments], from the root of the
repository. If this fails, who reads the page counts on a field that does nothing, or leaves out one that works."""

import json
import re

import cli_case
from cli_case import ROOT
from serve_case import Server, ServeCase

PAGE = ROOT / "docs/guide/serving.md"
TABLES = {"/v1/completions": "## Fields of a completion request", "/v1/chat/completions": "## Fields of a chat request",
          "/v1/responses": "### Responses"}
# What clients of the API and of vLLM send: each has to stand in a table.
KNOWN = {
    "/v1/chat/completions": """
        messages model frequency_penalty presence_penalty logit_bias logprobs top_logprobs max_completion_tokens
        max_tokens n seed stop stream stream_options temperature top_p response_format tools tool_choice
        parallel_tool_calls reasoning_effort user top_k min_p repetition_penalty min_tokens stop_token_ids ignore_eos
        include_stop_str_in_output skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens
        prompt_logprobs allowed_token_ids bad_words echo add_generation_prompt continue_final_message add_special_tokens
        chat_template chat_template_kwargs documents structured_outputs priority request_id session_id return_token_ids
        return_tokens_as_token_ids cache_salt include_reasoning thinking_token_budget store metadata service_tier
        safety_identifier prompt_cache_key prompt_cache_retention verbosity prediction modalities guided_json
        guided_regex guided_choice guided_grammar functions function_call audio web_search_options""",
    "/v1/completions": """
        prompt model max_tokens n seed stop stream stream_options temperature top_p frequency_penalty presence_penalty
        logit_bias logprobs echo suffix best_of user top_k min_p repetition_penalty min_tokens stop_token_ids ignore_eos
        include_stop_str_in_output skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens
        prompt_logprobs allowed_token_ids add_special_tokens response_format structured_outputs priority cache_salt
        return_token_ids return_tokens_as_token_ids request_id prompt_embeds""",
    "/v1/responses": """
        input model instructions max_output_tokens temperature top_p tools tool_choice parallel_tool_calls text stream
        store reasoning metadata truncation previous_response_id background conversation include user service_tier
        prompt_cache_key safety_identifier max_tool_calls prompt top_logprobs stream_options"""}

PROMPT = "libopenmpi-dev:"
USER = {"role": "user", "content": PROMPT}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
SHORT_TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
WARM = {"temperature": 2, "seed": 1}
FEW = {"allowed_token_ids": [300, 301, 302]}
ENDS = {"logit_bias": {"1": 100}}
CALLS = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 200}
THINKS = {"chat_template": "{{ messages[0].content }}<think>"}
# A field -> a value that changes the answer, and what it needs beside it.
SHARED = {
    "model": ("other", {}), "n": (2, {}), "seed": (2, WARM), "stop": ("STOP", {}), "stream": (True, {}),
    "stream_options": ({"include_usage": True}, {"stream": True}), "temperature": (1.5, {"seed": 1}),
    "top_p": (1e-9, WARM), "presence_penalty": (2, {"max_tokens": 60}), "frequency_penalty": (2, FEW),
    "logit_bias": ({"300": 100}, {}), "top_k": (1, WARM), "min_p": (1.0, WARM), "repetition_penalty": (1000, FEW),
    "stop_token_ids": ("TOKEN", {}), "ignore_eos": (True, ENDS), "include_stop_str_in_output": (True, {"stop": "STOP"}),
    "skip_special_tokens": (False, {**ENDS, "ignore_eos": True}), "allowed_token_ids": ([300], {}),
    "min_tokens": (8, ENDS), "truncate_prompt_tokens": (2, {}), "return_token_ids": (True, {}), "priority": (1, {}),
    "prompt_logprobs": (1, {}), "cache_salt": ("x", {}), "timeout_s": (1e-9, {}),
    "response_format": ({"type": "json_object"}, {}), "structured_outputs": ({"choice": ["yes"]}, {}),
    "guided_json": ({"type": "integer"}, {}), "guided_regex": ("[0-9]{4}", {}), "guided_choice": (["yes"], {}),
    "guided_grammar": ('root ::= "yes"', {}), "grammar": ('root ::= "yes"', {}),
    "json_schema": ({"type": "integer"}, {}),
    # Refused.
    "guided_whitespace_pattern": (" ", {}), "structural_tag": ({}, {}), "regex": ("a", {}), "ebnf": ("a", {}),
    "bad_words": (["x"], {}), "use_beam_search": (True, {}),
    "logits_processors": (["x"], {}), "thinking_token_budget": (5, {})}
FIELDS = {
    "/v1/completions": {**SHARED, "prompt": ("gcc:", {}), "max_tokens": (3, {}), "echo": (True, {}),
                        "logprobs": (2, {}), "return_tokens_as_token_ids": (True, {"logprobs": 1}),
                        "add_special_tokens": (False, {}),
                        "split_special_tokens": (True, {"prompt": "a</s>b"}), "suffix": ("x", {}), "best_of": (2, {}),
                        "prompt_embeds": ("x", {})},
    "/v1/chat/completions": {
        **SHARED, "messages": ([{"role": "user", "content": "gcc:"}], {}), "max_completion_tokens": (3, {}),
        "max_tokens": (3, {}), "logprobs": (True, {}), "top_logprobs": (2, {"logprobs": True}), "tools": ([TOOL], {}),
        "return_tokens_as_token_ids": (True, {"logprobs": True}), "add_special_tokens": (True, {}),
        "split_special_tokens": (True, {}), "tool_choice": ("required", {"tools": [TOOL], "max_tokens": 200}),
        "parallel_tool_calls": (False, CALLS), "chat_template": ("x{{ messages[0].content }}", {}),
        "chat_template_kwargs": ({"enable_thinking": False}, {}), "include_reasoning": (False, THINKS),
        "documents": ([{"text": "x"}], {"chat_template": "{{ documents }}{{ messages[0].content }}"}),
        "reasoning_effort": ("low", {"chat_template": "{{ reasoning_effort }}{{ messages[0].content }}"}),
        "add_generation_prompt": (False, {}),
        "continue_final_message": (True, {"messages": [USER, {"role": "assistant", "content": "It is"}]}),
        "functions": ([{"name": "f"}], {}), "function_call": ("auto", {}), "audio": ({"voice": "x"}, {}),
        "modalities": (["text", "audio"], {}), "web_search_options": ({}, {}), "echo": (True, {})},
    "/v1/responses": {
        "model": ("other", {}), "input": ("gcc:", {}), "instructions": ("Be short.", {}), "max_output_tokens": (3, {}),
        "temperature": (1.5, {"seed": 1}), "top_p": (1e-9, WARM), "stream": (True, {}), "metadata": ({"a": "b"}, {}),
        "tools": ([SHORT_TOOL], {}), "text": ({"format": {"type": "json_object"}}, {}),
        "tool_choice": ("required", {"tools": [SHORT_TOOL], "max_output_tokens": 200}),
        "parallel_tool_calls": (False, {}), "reasoning": ({"effort": "low"}, {}),
        "previous_response_id": ("resp_1", {}), "conversation": ("c", {}), "prompt": ({"id": "x"}, {}),
        "background": (True, {}), "n": (2, {})}}
# What cannot be seen in one answer; serve_company_test.py has the first two.
UNSEEN = {"cache_salt", "priority", "split_special_tokens", "parallel_tool_calls"}
NO_VALUE = [{"a": {"b": [1]}}, [[{}]], -7.5, True, 3]  # of any field, all of them


def rows(path):
    """Of a table: (fields, verdict)."""
    text = PAGE.read_text().split(TABLES[path] + "\n", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", text, re.M)[0].splitlines()[2:]
    for line in table:
        fields, verdict = (cell.strip() for cell in line.strip("|").split(" | ", 1))
        yield re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", fields)), verdict


class SupportMatrixTest(ServeCase):
    @classmethod
    def setUpClass(cls):
        template = ROOT / "tests/data/templates/qwen3.jinja"
        cls.server = cls.enterClassContext(Server("--dtype", "float32", "--chat-template", template))
        answer = cls.server.complete(prompt=PROMPT, max_tokens=8, temperature=0, return_token_ids=True, ignore_eos=True)
        cls.tokens = answer["choices"][0]["token_ids"]
        same = {"temperature": 0, "logit_bias": {"1": -100}}  # no end but that of the limit
        cls.base = {"/v1/completions": {"prompt": PROMPT, "max_tokens": 8, **same},
                    "/v1/chat/completions": {"messages": [USER], "max_tokens": 8, **same},
                    "/v1/responses": {"input": PROMPT, "max_output_tokens": 8, **same}}

    def ask(self, path, body):
        """Status and what is told, without what is new in each answer."""
        body = {**self.base[path], **body}
        if body.get("max_completion_tokens") is not None:
            del body["max_tokens"]
        if body.get("stop") == "STOP" or body.get("stop_token_ids") == "TOKEN":
            plain = json.loads(self.ask(path, {"logprobs": 0 if path == "/v1/completions" else True})[1])["choices"][0]
            told = plain["logprobs"]
            texts = told["tokens"] if path == "/v1/completions" else [t["token"] for t in told["content"]]
            stop = next(text for text in texts[1:] if text.strip())
            ids = self.server.post("/tokenize", {"prompt": stop, "add_special_tokens": False})[1]["tokens"]
            body |= {"stop": stop} if body.get("stop") == "STOP" else {"stop_token_ids": [*self.tokens, *ids]}
        status, _, data = self.server.call("POST", path, body)
        text = re.sub(r'"(created|created_at)":\d+', '"":0', data.decode())
        return status, re.sub(r"(chatcmpl-|cmpl-|resp_|msg_|rs_|fc_)[0-9a-f]{32}|call_\w{24}", "", text)

    def param_of(self, text):
        return json.loads(text)["error"]["param"]

    def refusals(self, path, field):
        """Of values that no field takes."""
        for value in NO_VALUE:
            status, text = self.ask(path, {**FIELDS[path][field][1], field: value})
            if status == 400 and self.param_of(text) == field:
                yield json.loads(text)["error"]["message"]

    def test_every_field_is_as_its_row_says(self):
        for path in TABLES:
            plain = self.ask(path, {})
            self.assertEqual(plain[0], 200, plain)
            seen = set()
            for fields, verdict in rows(path):
                self.assertTrue(fields, verdict)
                for field in fields:
                    with self.subTest(path=path, field=field):
                        self.assertNotIn(field, seen)
                        seen.add(field)
                        self.check(path, field, verdict, plain)
            for field in set(KNOWN[path].split()) - seen:
                self.fail(f"{path}: no row has {field}")
            self.assertGreater(len(seen), 20)

    def check(self, path, field, verdict, plain):
        if verdict.startswith("ignored"):
            for value in ("x", 3, {"a": 1}, [1], True):
                self.assertEqual(self.ask(path, {field: value}), plain, value)
            return
        if verdict == "counts as false":
            self.assertEqual(self.ask(path, {field: True}), plain)
            self.assertEqual(self.param_of(self.ask(path, {field: "x"})[1]), field)
            return
        value, more = FIELDS[path][field]
        status, text = self.ask(path, {**more, field: value})
        if verdict.startswith("refused with 400"):
            self.assertEqual((status, self.param_of(text)), (400, field), text)
            self.assertTrue(json.loads(text)["error"]["message"].startswith(f"{field}: "), text)
            return
        self.assertEqual(status, {"model": 404, "timeout_s": 408}.get(field, 200), text)
        if field not in UNSEEN:
            self.assertNotEqual((status, text), self.ask(path, more), "it changes nothing")
        if field in ("metadata", "documents", "reasoning_effort"):  # of any form
            return
        said = list(self.refusals(path, field))
        self.assertTrue(said, "no value is refused")
        for message in said:
            self.assertTrue(message.startswith(f"{field}: "), message)

    def test_null_counts_as_absent(self):
        for path in TABLES:
            plain = self.ask(path, {})
            for fields, _ in rows(path):
                for field in set(fields) - set(self.base[path]):
                    with self.subTest(path=path, field=field):
                        self.assertEqual(self.ask(path, {field: None}), plain)

    def test_openapi_has_the_same(self):
        schemas = json.loads((ROOT / "stretto/server/page/openapi.json").read_text())["components"]["schemas"]
        for path, name in (("/v1/completions", "CompletionRequest"), ("/v1/chat/completions", "ChatRequest")):
            table = dict((field, verdict) for fields, verdict in rows(path) for field in fields)
            told = set(schemas[name]["properties"])
            self.assertEqual(told - set(table), set())
            honoured = {field for field, verdict in table.items()
                        if not verdict.startswith(("refused", "ignored")) and not field.startswith("guided_")}
            self.assertEqual(honoured - told, {"grammar", "json_schema"})


if __name__ == "__main__":
    cli_case.main(__doc__)
