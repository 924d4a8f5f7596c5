"""The description that `stretto serve` gives of itself at /openapi.json, and requests drawn from it, right and wrong
ones. Usage: openapi_test.py PATH_OF_STRETTO [unittest arguments], from the root of the repository."""

import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import unittest

import python_environment

if len(sys.argv) > 1:
    python_environment.needs("schemathesis", sys.argv[1])

import cli_case
from cli_case import ROOT
from serve_case import Server, ServeCase

SEED = int(os.environ.get("STRETTO_TEST_SEED") or random.randrange(1 << 32))
FILE = ROOT / "stretto/server/page/openapi.json"

TALK = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
# What every path answers, so that draws are not all refused.
LEAST = {"/v1/completions": {"prompt": "a", "max_tokens": 2},
         "/v1/chat/completions": TALK,
         "/v1/chat/completions/render": TALK,
         "/v1/responses": {"input": "a", "max_output_tokens": 2},
         "/tokenize": {"prompt": "a"},
         "/detokenize": {"tokens": [40]},
         "/abort_requests": {"request_ids": ["none"]}}


class Draws:
    """Values that a schema allows, and others."""

    def __init__(self, document, seed):
        self.schemas = document["components"]["schemas"]
        self.random = random.Random(seed)

    def anything(self):
        return self.random.choice([None, True, -1, 10**30, 1.5, "", "x" * 50, [], [[]], {}, {"a": [None]}, "\u0000",
                                   "</s>", -0.0, 1e308])

    def value(self, schema):
        draw = self.random
        if "$ref" in schema:
            return self.value(self.schemas[schema["$ref"].rsplit("/", 1)[1]])
        if "oneOf" in schema:
            return self.value(draw.choice(schema["oneOf"]))
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return draw.choice(schema["enum"])
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        kind = draw.choice(kinds)
        least, most = schema.get("minimum", -5), schema.get("maximum", 5)
        if kind == "null":
            return None
        if kind == "boolean":
            return draw.random() < 0.5
        if kind == "integer":
            return draw.choice([least, min(most, least + draw.randrange(5))])
        if kind == "number":
            return draw.uniform(least, min(most, least + 3))
        if kind == "string":
            return "ab " * max(1, schema.get("minLength", 1))
        if kind == "array":
            return [self.value(schema["items"]) for _ in range(draw.randint(schema.get("minItems", 0), 3))]
        if "additionalProperties" in schema:
            return {str(draw.randrange(100)): self.value(schema["additionalProperties"]) for _ in range(2)}
        return self.object(schema)

    def object(self, schema):
        out = {}
        for name, of in schema.get("properties", {}).items():
            if name in schema.get("required", []) or self.random.random() < 0.15:
                out[name] = self.value(of)
        return out


class OpenApiTest(ServeCase):
    document = json.loads(FILE.read_text())

    def test_tells_every_path_and_no_other(self):
        routes = set(re.findall(r'\{"(GET|POST)", "([^"]+)", (?:true|false), (?:true|false)\}',
                                (ROOT / "stretto/server/server.cc").read_text()))
        self.assertGreater(len(routes), 10)
        told = {(method.upper(), path) for path, of in self.document["paths"].items() for method in of}
        self.assertEqual(told - {("GET", "/openapi.json")}, routes)
        with Server() as server:
            status, headers, data = server.call("GET", "/openapi.json")
            self.assertEqual((status, headers["Content-Type"]), (200, "application/json"))
            self.assertEqual(data, FILE.read_bytes())

    def test_requests_drawn_from_it(self):
        """Answers have the statuses that it tells, whatever the body; a field of another kind is no 5xx."""
        draws = Draws(self.document, SEED)
        posts = [(path, of["post"]) for path, of in self.document["paths"].items() if "post" in of]
        seen = set()
        with Server() as server:
            for i in range(300):
                path, of = posts[i % len(posts)]
                body = draws.value(of["requestBody"]["content"]["application/json"]["schema"])
                body.pop("model", None)
                for limit in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
                    if limit in body or path.startswith("/v1"):
                        body[limit] = 2
                if body.get("n") is not None:
                    body["n"] = body["best_of"] = 2
                if i < len(posts):
                    body = LEAST[path]
                elif i % 3 == 2:
                    body[draws.random.choice([*body, "prompt", "messages", "tokens"])] = draws.anything()
                status, headers, data = server.call("POST", path, body)
                said = f"seed {SEED}, {i}: {path} {json.dumps(body)[:400]}: {status} {data[:300]}"
                self.assertIn(str(status), of["responses"], said)
                self.assertLess(status, 500, said)
                kind = headers["Content-Type"].split(";")[0]
                self.assertIn(kind, of["responses"][str(status)]["content"], said)
                if kind == "application/json":
                    self.assertIsInstance(json.loads(data), dict, said)
                seen.add((path, status))
            self.assertEqual(server.call("GET", "/health")[0], 200)
        for path, _ in posts:
            self.assertTrue(any(status == 200 for of, status in seen if of == path), (SEED, path))


    def test_a_field_that_is_null_counts_as_absent(self):
        with Server() as server:
            for path, body in LEAST.items():
                schema = self.document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
                if "$ref" in schema:
                    schema = self.document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
                fields = schema["properties"]
                for field in [*fields, None]:
                    nulls = dict.fromkeys(fields if field is None else [field])
                    status, _, data = server.call("POST", path, nulls | body)
                    self.assertEqual(status, 200, (path, field, data[:300]))


@unittest.skipIf(importlib.util.find_spec("schemathesis") is None, "the package schemathesis is missing")
class SchemathesisTest(ServeCase):
    def test_no_input_is_a_server_error(self):
        """What another program makes of the description: values by lot, right and wrong ones. Answers are what it
        says. STRETTO_SOAK: more of them, and values at every edge, for minutes."""
        phases, examples = ("coverage,fuzzing", 100) if os.environ.get("STRETTO_SOAK") else ("fuzzing", 20)
        checks = ["not_a_server_error", "status_code_conformance", "content_type_conformance",
                  "response_schema_conformance"]
        with Server("--max-model-len", 64) as server:
            command = [sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{server.port}/openapi.json",
                       "--checks", ",".join(checks), "--phases", phases, "--max-examples", str(examples),
                       "--workers", "2", "--request-timeout", "300", "--seed", str(SEED), "--no-color",
                       "--generation-database", "none", "--warnings", "off"]
            done = subprocess.run(command, cwd=self.tmp, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=3600)
            said = done.stdout.decode(errors="replace")
            self.assertEqual(done.returncode, 0, said[-6000:])
            tested = re.search(r"([0-9]+) generated, ([0-9]+) passed", said)
            self.assertTrue(tested, said[-2000:])
            print(f"seed {SEED}: {tested.group(0)}")
            self.assertGreater(int(tested.group(1)), 40)
            self.assertEqual(server.call("GET", "/health")[0], 200)


if __name__ == "__main__":
    cli_case.main(__doc__)
