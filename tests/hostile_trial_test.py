"""Hostile templates, schemas, expressions, grammars, tools and bodies, by lot, on a running server of a bundled model:
it answers each with 200 or an error of the client's (4xx), goes on, and its memory does not grow.
Usage: hostile_trial_test.py PATH_OF_STRETTO [--seconds N] [unittest arguments], from the root of the repository.
STRETTO_TEST_SEED repeats a run."""

import json
import os
import pathlib
import random
import sys
import threading
import time
import unittest

import cli_case
from serve_case import Server, ServeCase

SEED = int(os.environ.get("STRETTO_TEST_SEED") or random.randrange(1 << 32))
SECONDS = 15
MOST_BYTES = 32 << 20  # of a body
CHAT = "/v1/chat/completions"
WORDS = ["a", "\n", "é", "日本", "🙂", "\ud800", "\0", "<|im_end|>", "</think>", "<tool_call>", "{", "}}", "%}",
         "\"", "\\", "x" * 99]


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def one(self, *choices):
        return self.random.choice(choices)

    def count(self, *choices):
        return self.random.choice(choices or (0, 1, 2, 7, 40, 300))

    def text(self):
        return "".join(self.one(*WORDS) for _ in range(self.count(0, 1, 3, 9)))

    def value(self, depth=3):
        r = self.random.random()
        if depth == 0 or r < 0.6:
            return self.one(None, True, 0, -1, 1e308, 2**70, "", self.text(), 0.1)
        if r < 0.8:
            return [self.value(depth - 1) for _ in range(self.count(0, 1, 3))]
        return {self.one("type", "a", "", "role", self.text()): self.value(depth - 1) for _ in range(self.count(0,
            1, 3))}

    def regex(self):
        n = self.count(1, 5, 30, 1000, 99999)
        return self.one(
            f"(a|b)*a(a|b){{{n}}}", "(" * 80 + "a" + "){9}" * 80, "a?" * n + "a" * n, f"([^a-c]|\\w\\d){{0,{n}}}",
            "|".join(str(self.random.random()) for _ in range(min(n, 3000))), self.text(), f"[{self.text()}",
            "(?=a)", "\\",
            f"^{'(.*)' * min(n, 300)}$", "[\\u0100-\\uffff]{1,5000}", f"(x{{{n}}}){{{n}}}", "")

    def gbnf(self):
        n = self.count(1, 5, 60, 2000)
        chain = "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(n)) + f'r{n} ::= [a-z] | "(" root ")"\n'
        many = "root ::= " + " | ".join(f'"{i}" r{i}' for i in range(n)) + "\n" + "".join(
            f'r{i} ::= [ab]* "a" [ab]{{{i % 20}}} | root\n' for i in range(n))
        return self.one("root ::= r0\n" + chain, many, "root ::= root", 'root ::= "\\uD800"',
            f'root ::= "a"{{{n}}}', self.text(),
                        "root ::= " + "(" * n, f'root ::= ({self.text()}', 'root ::= ("a" | root)*', "root ::= x", "")

    def schema(self, depth=4):
        r, n = self.random.random(), self.count(1, 3, 30)
        if depth == 0 or r < 0.25:
            return self.one({"type": "string"}, {"type": "string", "pattern": self.regex()},
                {"enum": list(range(n * 1000))},
                            {"const": self.value()}, {"type": "number", "multipleOf": self.one(0.01, 7, 1e-9, -1,
                            99991)},
                            {"type": "integer", "minimum": self.one(-1e30, 0, "x"), "maximum": 10**n}, True, False, {},
                            {"type": "string", "minLength": n * 50, "maxLength": n * 60}, {"format": self.one("uri",
                            "x")},
                            {"$ref": self.one("#", "#/$defs/a", "#/nope", "x" * 99)}, self.value())
        inner = [self.schema(depth - 1) for _ in range(self.one(0, 1, 2, 3))]
        names = [self.one("a", "b", "k" * 2000, self.text(), f"p{i}") for i in range(len(inner))]
        return self.one(
            {"type": "object", "properties": dict(zip(names, inner)), "required": names * 2},
            {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(n * 60)}, "minProperties": n,
             "maxProperties": n * 30}, {self.one("anyOf", "oneOf", "allOf"): inner * n}, {"not": {"anyOf": inner}},
            {"type": "array", "items": inner[:1] or False, "minItems": n, "maxItems": n * 300,
            "uniqueItems": self.one(True, 0)},
            {"prefixItems": inner * 9, "items": False}, {"patternProperties": {self.regex()[:200]: x for x in inner}},
            {"propertyNames": {"anyOf": inner}}, {"if": inner[:1], "then": {"required": names}, "else": True},
            {"dependentRequired": {name: names for name in names}}, self.doubling())

    def doubling(self):
        levels, fan, word = self.count(5, 20, 60), self.count(2, 9, 100), self.one("allOf", "anyOf", "oneOf")
        defs = {f"p{i}": {word: [{"$ref": f"#/$defs/p{i + 1}"}] * fan} for i in range(levels)}
        return {"$defs": {**defs, f"p{levels}": {"type": "string"}}, "$ref": "#/$defs/p0"}

    def template(self):
        n = self.count(3, 40, 9999, 99999999)
        grow = "{% set n = namespace(x=['ab']) %}{% for i in range(" + str(min(n, 300)) + ") %}{% set n.x = "
        return self.one(
            f"{{% for a in range({n}) %}}{{% for b in range({n}) %}}{{% endfor %}}{{% endfor %}}",
            f"{{{{ 'ab' * {n} }}}}",
            "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", grow + "[n.x, n.x] %}{% endfor %}{{ n.x|tojson }}",
            grow + "n.x[0] ~ n.x[0] %}{% endfor %}{{ n.x }}", "{{ " + "(" * min(n, 9999) + "1" + ")" * min(n,
                9999) + " }}",
            "{% if x %}" * min(n, 9999), "{{ messages|tojson(indent=99) }}" * 9, "{{ raise_exception(messages) }}",
            self.text(),
            "{% for m in messages %}{{ m.content }}{% endfor %}", "{{ messages[0].content.x.y }}", "{% set x %}",
            "{{ x.__class__ }}",
            "{% for k in keys %}{% set x = {k: 1} %}{% endfor %}{{ {1: 2}|dictsort }}",
            "{{ ('<' * 999)|e|e|safe + '<' * 99999 }}",
            "{{ '%s' % messages }}{{ '{}'.format(messages) }}", "{{ messages|sort }}{{ messages|map('upper')|list }}")

    def tool(self):
        parameters = self.schema(3)
        return self.one({"type": "function", "function": {"name": self.one("f", "g" * 64, "é", self.text()),
            "parameters":
                                                          parameters, "description": self.text()}}, self.value())

    def message(self):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": self.one("{}", "{",
            self.text(), {"a": 1})}}
        content = self.one("libc6:", self.text(), None, [{"type": "text", "text": self.text()}],
            [{"type": "image_url"}], self.value())
        return self.one({"role": self.one("user", "assistant", "system", "tool", "x"), "content": content},
                        {"role": "assistant", "content": content, "tool_calls": [call]}, self.value(2))

    def request(self):
        """(path, body)."""
        body = {"messages": [self.message() for _ in range(self.one(1, 1, 1, 3, 0))], "max_tokens": self.one(1, 8, 30)}
        if self.random.random() < 0.7:
            body["messages"] = [{"role": "user", "content": "libc6:"}]
        kind = self.random.randrange(8)
        if kind == 0:
            body["chat_template"] = self.template()
            body["chat_template_kwargs"] = self.one({"keys": [self.text() for _ in range(500)]},
                {"keys": list(range(9999))},
                                                    self.value())
        elif kind in (1, 2):
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": self.schema()}}
        elif kind == 3:
            body["structured_outputs"] = self.one({"regex": self.regex()}, {"grammar": self.gbnf()},
                {"json": self.schema()},
                                                  {"choice": [self.text() for _ in range(self.count(1, 50, 4000))]},
                                                  self.value())
        elif kind == 4:
            body["tools"] = [self.tool() for _ in range(self.one(1, 2, 20))]
            body["tool_choice"] = self.one("auto", "required", "none", {"type": "function",
                "function": {"name": "f"}}, self.value())
        elif kind == 5:
            body[self.one("guided_regex", "guided_grammar", "guided_json", "grammar")] = self.one(
                self.regex(), self.gbnf(), self.schema(), self.value())
        elif kind == 6:
            data = json.dumps(self.one(self.value(6), {**body, self.text(): self.value()}))
            at = self.random.randrange(len(data) + 1)
            return CHAT, self.one(data[:at], data[:at] + self.text().encode("utf-8", "replace").decode() + data[at:],
                                  "[" * 99999, data, '{"messages": ' + data + "}")
        if self.random.random() < 0.3:
            body["stream"] = True
        path = self.one(CHAT, CHAT, CHAT, CHAT + "/render", "/v1/responses", "/v1/completions", "/tokenize")
        return path, json.dumps(body)


def megabytes(process):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) // 1024


class HostileTrial(ServeCase):
    def test_whatever_comes_is_answered_and_memory_does_not_grow(self):
        server = self.enterContext(Server("--tp", 2, "--dtype", "float32", "--request-timeout", 60))
        end, lock, taken = time.monotonic() + SECONDS, threading.Lock(), iter(range(1 << 60))
        statuses, slowest, wrong, sizes = {}, (0, ""), [], []

        def send():
            nonlocal slowest
            while time.monotonic() < end and not wrong:
                with lock:
                    number = next(taken)
                path, data = Maker(f"{SEED} {number}").request()
                begin = time.monotonic()
                try:
                    status, _, answer = server.call("POST", path, data.encode("utf-8", "replace"))
                except ConnectionError as error:  # a body that is too long is not read to its end
                    status, answer = (413 if len(data) > MOST_BYTES else 0), repr(error).encode()
                except OSError as error:
                    status, answer = 0, repr(error).encode()
                with lock:
                    statuses[status] = statuses.get(status, 0) + 1
                    slowest = max(slowest, (time.monotonic() - begin, f"{number} {path} {data[:300]}"))
                    if status not in (200, 400, 404, 408, 413, 422, 429):
                        wrong.append(f"seed {SEED}, request {number}: {status} {answer[:300]} of {path} {data[:1500]}")
                    elif status == 200 and b'"code": 500' in answer:
                        wrong.append(f"seed {SEED}, request {number}: {answer[-300:]} of {path} {data[:1500]}")

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) and server.process.poll() is None:
            sizes.append(megabytes(server.process))
            time.sleep(1)
        for thread in threads:
            thread.join()
        print(f"seed {SEED}: answers {statuses}, the slowest {slowest[0]:.1f} s: {slowest[1][:160]}, megabytes after "
              f"each tenth: {sizes[::max(1, len(sizes) // 10)]}, at most {max(sizes)}", file=sys.stderr)
        self.assertEqual(wrong, [])
        self.assertIsNone(server.process.poll(), server.said()[-2000:])
        server.complete(prompt="libc6:", max_tokens=4)
        if len(sizes) >= 120:  # what the allocator and the caches keep comes in the first half
            half = len(sizes) // 2
            self.assertLess(max(sizes[half:]), max(sizes[:half]) + 150, sizes)
        code, _, said = server.stop()
        self.assertEqual(code, 0, said[-2000:])


if __name__ == "__main__":
    if "--seconds" in sys.argv:
        at = sys.argv.index("--seconds")
        SECONDS = int(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    cli_case.main(__doc__)
