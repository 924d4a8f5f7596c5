"""`stretto serve` before it is ready, and what becomes of it when its files change under it. Usage: serve_start_test.py
PATH_OF_STRETTO [unittest arguments], from the root of the repository. If this fails, who waits for a server does not
know what for, or a server that should go on dies without a word."""

import json
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import time

import cli_case
from cli_case import MODEL, ROOT
from serve_case import WAIT, Server, ServeCase, free_port

PROMPT = "libopenmpi-dev:"
LOADING = re.compile(r"the server is loading the model, \d+ s so far"
                     r"(: (loading weights, layer \d+ of \d+|"
                     r"(planning|proving \w+, operator \d+ of \d+), step \d+ of \d+, \d+ rows), for \d+ s)?$")


class LoadingTest(ServeCase):
    def starting(self, *args, **more):
        """A server whose proofs are not known yet."""
        return Server("--dtype", "float32", *args, env={"STRETTO_CACHE_DIR": str(self.tmp / "cache")}, port=free_port(),
                      waits=False, **more)

    def health(self, server):
        """Status and text, once it listens."""
        end = time.monotonic() + WAIT
        while True:
            try:
                status, headers, data = server.call("GET", "/health")
            except ConnectionRefusedError:
                self.assertIsNone(server.process.poll(), server.said())
                self.assertLess(time.monotonic(), end)
                continue
            if status == 200:
                return status, ""
            self.assertEqual((status, headers["Retry-After"]), (503, "1"))
            return status, json.loads(data)["error"]["message"]

    def test_it_tells_what_it_does(self):
        said = set()
        with self.starting("--api-key", "k", "--tp", 2, model=str(ROOT / "checkpoints/debian-qwen3moe-18m")) as server:
            key = {"Authorization": "Bearer k"}
            while (told := self.health(server))[0] == 503:
                self.assertRegex(told[1], LOADING)
                said.add(told[1])
                if len(said) == 1:  # nobody waits, and only who may asks
                    for method, path in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/stats"),
                                         ("POST", "/tokenize"), ("POST", "/v1/responses")):
                        status, _, data = server.call(method, path, {"prompt": "x"} if method == "POST" else None, key)
                        if status == 503:
                            self.assertRegex(json.loads(data)["error"]["message"], LOADING)
                        self.assertEqual(server.call(method, path, b"{}" if method == "POST" else None)[0], 401)
                    for path in ("/version", "/", "/metrics", "/openapi.json"):
                        self.assertEqual(server.call("GET", path)[0], 200)
            server.wait_until_ready()
            self.assertTrue(any("proving" in text for text in said), said)
            self.assertEqual(server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, key)[0], 200)
            code, out, err = server.stop()
            self.assertEqual((code, out), (0, b""), err)

    def test_after_warming_it_proves_nothing(self):
        """Every model and option that its programs depend on: the start adds no file to the cache."""
        for model, options in (("debian-llama-8m", ("--tp", "2")),
                               ("debian-qwen3moe-18m", ("--tp", "2", "--ep", "2", "--kv-dtype", "fp8")),
                               ("debian-llama-8m", ("--max-num-batched-tokens", "48", "--max-num-seqs", "3",
                                                    "--kv-memory", "3MiB", "--max-model-len", "200"))):
            with self.subTest(model=model, options=options):
                path, env = str(ROOT / "checkpoints" / model), {"STRETTO_CACHE_DIR": str(self.tmp / "cache")}
                done = self.good("warm", "--model", path, "--device", "cpu", *options, env=env)
                made = done.stderr.decode().splitlines()
                made = [line for line in made if re.match(r"\d+ of \d+: \w+, step of \d+ rows \(", line)]
                self.assertRegex(done.stdout.decode(), rf"^{len(made)} programs proved \(.* s\)\n$")
                kept = self.kept()
                self.assertGreater(len(kept), 5)
                with Server(*options, env=env, port=free_port(), model=path) as server:
                    self.assertEqual(server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})[0], 200)
                    self.assertEqual(server.stop()[0], 0)
                self.assertEqual(self.kept(), kept)
                shutil.rmtree(self.tmp / "cache")
        with self.starting() as server:  # what a start without warming adds is seen
            server.wait_until_ready()
            server.stop()
        self.assertGreater(len(self.kept()), 5)

    def kept(self):
        return sorted(str(file) for file in (self.tmp / "cache").rglob("*") if file.is_file())

    def test_a_signal_while_it_loads_ends_it(self):
        for sent in (signal.SIGTERM, signal.SIGINT):
            with self.starting() as server:
                self.health(server)
                self.assertIn(server.stop(sent)[0], (0, -sent))
            shutil.rmtree(self.tmp / "cache", ignore_errors=True)


class MemoryTest(ServeCase):
    """No memory for the cache: one line before anything is loaded, or while it is."""

    def test_more_than_there_is(self):
        place = self.tmp / "model"
        shutil.copytree(MODEL, place)
        config = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1 << 20}))
        self.refused("serve", "--model", place, "--device", "cpu", "--port", 0, "--kv-memory", "512TiB",
                     "--max-num-seqs", 4096, "--max-num-batched-tokens", 4096,
                     says=["--kv-memory: a cache of ", "do not fit the memory"])

    def test_more_than_a_process_may_have(self):
        command = ["sh", "-c", 'ulimit -v 500000; exec "$@"', "sh", cli_case.STRETTO, "serve", "--model",
                   str(ROOT / "checkpoints/debian-llama-8m"), "--device", "cpu", "--port", "0", "--kv-memory", "500MiB"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, cwd=ROOT, check=False)
        if "ReserveShadowMemoryRange" in done.stderr or "Sanitizer" in done.stderr:
            self.skipTest("sanitizers need more")
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        lines = [line for line in done.stderr.splitlines() if not re.match("stretto: loading[ ,]", line)]
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertRegex(lines[0], "^stretto: error: there is no memory on rank 0 for '.*' of the cache")


class FilesTest(ServeCase):
    def model(self, model=MODEL):
        place = self.tmp / "model"
        shutil.copytree(model, place)
        return place

    def test_what_becomes_of_the_files_of_a_server_that_runs(self):
        """Nothing: weights, tokenizer and template are in memory."""
        model = self.model()
        with Server("--dtype", "float32", model=str(model)) as server:
            ask = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 12, "temperature": 0}
            before = server.post("/v1/chat/completions", ask)[1]["choices"]
            os.truncate(model / "model.safetensors", 100)
            self.assertEqual(server.post("/v1/chat/completions", ask)[1]["choices"], before)
            shutil.rmtree(model)
            self.assertEqual(server.post("/v1/chat/completions", ask)[1]["choices"], before)
            self.assertEqual(server.call("GET", "/health")[0], 200)
            self.assertEqual(server.stop()[0], 0)

    def large(self):
        """A model that takes a while to load: many wide layers of zeros, which take no room on a disk."""
        place = self.model()
        config = json.loads((place / "config.json").read_text())
        config |= {"num_hidden_layers": 48, "intermediate_size": 16384}
        (place / "config.json").write_text(json.dumps(config))
        hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
        heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
        shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
        for i in range(config["num_hidden_layers"]):
            shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in {
                "self_attn.q_proj": [heads * head, hidden], "self_attn.k_proj": [kv * head, hidden],
                "self_attn.v_proj": [kv * head, hidden], "self_attn.o_proj": [hidden, heads * head],
                "mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden], "mlp.down_proj": [hidden, inner],
                "input_layernorm": [hidden], "post_attention_layernorm": [hidden]}.items()}
        header, at = {}, 0
        for name, shape in shapes.items():
            size = 2 * math.prod(shape)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        with open(place / "model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + at)
        return place

    def test_a_file_that_is_cut_short_while_it_is_loaded(self):
        model = self.large()
        with Server("--dtype", "bfloat16", model=str(model), port=free_port(), waits=False) as server:
            end = time.monotonic() + WAIT
            while True:  # in the middle of it
                self.assertLess(time.monotonic(), end)
                self.assertIsNone(server.process.poll(), server.said())
                try:
                    text = server.call("GET", "/health")[2].decode()
                except ConnectionRefusedError:
                    continue
                if found := re.search(r"layer (\d+) of 48", text):
                    server.process.send_signal(signal.SIGSTOP)
                    break
            self.assertLess(int(found[1]), 40, "too fast for this test")
            os.truncate(model / "model.safetensors", 1 << 16)
            server.process.send_signal(signal.SIGCONT)
            code, out, err = server.wait()
            self.assertEqual((code, out), (2, b""), err)
            lines = [line for line in err.splitlines() if line.startswith("stretto: error: ")]
            self.assertEqual(len(lines), 1, err)
            self.assertRegex(lines[0], r"/model\.safetensors: was cut short")


if __name__ == "__main__":
    cli_case.main(__doc__)
