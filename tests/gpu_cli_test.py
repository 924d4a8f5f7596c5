#!/usr/bin/env python3
"""`stretto` with --device cuda and --load-format dummy, as users run it: python3 gpu_cli_test.py STRETTO."""

import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
from server_process import ServerProcess

STRETTO = ""
MODEL = "checkpoints/debian-llama-draft-1m"
DOCUMENTS = "tests/data/score_docs.txt"


def run(*args, **env):
    return subprocess.run([STRETTO, *args], capture_output=True, text=True, env={**os.environ, **env}, timeout=300)


def gpus():
    if "STRETTO_SIMULATED_GPUS" in os.environ:
        return int(os.environ["STRETTO_SIMULATED_GPUS"])
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    except FileNotFoundError:
        return 0
    return listed.stdout.count("GPU ") if listed.returncode == 0 else 0


class Device(unittest.TestCase):
    @unittest.skipIf(gpus() > 0, "there is a GPU")
    def test_without_a_gpu_the_device_error_comes_as_one_line_and_exit_code_4(self):
        for command in (["generate", "--prompt", "x"], ["score", "--file", DOCUMENTS]):
            for env in ({}, {"STRETTO_DEVICE": "cuda"}):
                with self.subTest(command=command, env=env):
                    device = [] if env else ["--device", "cuda"]
                    got = run(*command, "--model", MODEL, *device, **env)
                    self.assertEqual(got.returncode, 4, got.stderr)
                    self.assertEqual(got.stdout, "")
                    self.assertRegex(got.stderr, r"^stretto: device: .+\n$")

    @unittest.skipIf(gpus() > 0, "there is a GPU")
    def test_measuring_without_a_gpu_is_exit_code_4(self):
        with tempfile.TemporaryDirectory() as folder:
            machine = os.path.join(folder, "machine.json")
            for command in (["bench", "gemm", "--device", "cuda"],
                            ["bench", "ag_gemm", "--device", "cuda", "--ranks", "2", "--no-vendor", "--graph",
                             "--measure", "--json"],
                            ["bench", "gemm_ar", "--device", "cuda", "--launcher", "processes"],
                            ["trace", "gemm", "--device", "cuda", "-o", machine],
                            ["calibrate", "--device", "cuda", "-o", machine]):
                with self.subTest(command=command):
                    got = run(*command)
                    self.assertEqual(got.returncode, 4, got.stderr)
                    self.assertEqual(got.stdout, "")
                    self.assertRegex(got.stderr, r"^stretto: device: .+\n$")
            self.assertFalse(os.path.exists(machine))

    def test_bad_use_of_measuring_is_told_before_a_gpu_is_looked_for(self):
        for command, word in ((["bench", "gemm", "--device", "tpu"], "tpu"),
                              (["bench", "no_such_operator", "--device", "cuda"], "no_such_operator"),
                              (["calibrate", "--device", "cpu"], "cpu"),
                              (["calibrate", "-o", "/no/such/folder/machine.json"], "machine.json")):
            with self.subTest(command=command):
                got = run(*command)
                self.assertEqual(got.returncode, 2, got.stderr)
                self.assertIn(word, got.stderr)

    @unittest.skipIf(gpus() == 0, "no GPU")
    def test_bench_times_the_gpu_and_says_what_it_was_compared_with(self):
        got = run("bench", "gemm", "--device", "cuda", "--ranks", "1", "--m", "1024", "--n", "1024", "--k", "1024",
                  "--samples", "5", "--json")
        self.assertEqual(got.returncode, 0, got.stderr)
        value = json.loads(got.stdout)
        self.assertEqual(len(value["samples"]), 5)
        self.assertLessEqual(value["p10_ms"], value["median_ms"])
        self.assertLessEqual(value["median_ms"], value["p90_ms"])

    @unittest.skipIf(gpus() < 2, "needs two GPUs")
    def test_trace_shows_two_gpus_and_their_prediction(self):
        with tempfile.TemporaryDirectory() as folder:
            for op in ("gemm_rs", "all_reduce_two_shot"):
                path = os.path.join(folder, op + ".json")
                got = run("trace", op, "--device", "cuda", "--ranks", "2", "--machine", "h200x2", "-o", path)
                self.assertEqual(got.returncode, 0, got.stderr)
                self.assertIn("clocks within", got.stderr)
                with open(path, encoding="utf-8") as file:
                    trace = json.load(file)
                events = trace["traceEvents"]
                ranks = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
                self.assertEqual(len(ranks), 4, op)
                self.assertEqual(trace["otherData"]["dropped_events"], [0, 0, 0, 0])
                self.assertGreater(int(trace["otherData"]["clock_error_ns"]), 0)
                tiles = {p: {(ranks[e["pid"]][-1], e["args"]["tile"], e["args"]["epoch"]) for e in events
                             if e.get("cat") == "tile" and ranks[e["pid"]].startswith("predicted") == p}
                         for p in (False, True)}
                self.assertGreater(len(tiles[False]), 0, op)
                self.assertLessEqual(tiles[False], tiles[True], op)  # copy engines' are predicted only

    def test_an_unknown_device_is_a_user_error(self):
        got = run("generate", "--model", MODEL, "--prompt", "x", "--device", "tpu")
        self.assertEqual(got.returncode, 2)
        self.assertIn("tpu", got.stderr)

    def test_timelines_of_gpus_are_refused_before_anything_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "t.json")
            got = run("generate", "--model", MODEL, "--prompt", "x", "--device", "cuda", "--trace", trace)
            self.assertEqual(got.returncode, 2, got.stderr)
            self.assertIn("CPU ranks only", got.stderr)

    @unittest.skipIf(gpus() == 0, "no GPU")
    def test_the_gpu_writes_what_the_cpu_writes(self):
        def text(*device):
            got = run("generate", "--model", MODEL, "--prompt", "The package", "--max-tokens", "40",
                      "--dtype", "float32", "--json", *device)
            self.assertEqual(got.returncode, 0, got.stderr)
            return json.loads(got.stdout)["token_ids"]

        expected = text()
        for tp in range(1, min(gpus(), 4) + 1):
            self.assertEqual(text("--device", "cuda", "--tp", str(tp)), expected, tp)

    @unittest.skipIf(gpus() < 2, "needs two GPUs")
    def test_data_parallel_groups_share_experts(self):
        model = "checkpoints/debian-qwen3moe-18m"
        with open(os.path.join(model, "golden.json"), encoding="utf-8") as file:
            golden = json.load(file)["prompts"][:3]
        prompts = [part for g in golden for part in ("--prompt", g["text"])]
        for dp, tp in ((2, 1), (2, 2)) if gpus() >= 4 else ((2, 1),):
            got = run("generate", "--model", model, *prompts, "--max-tokens", "12", "--dtype", "float32",
                      "--rope-frequencies", "checkpoint-dtype", "--device", "cuda", "--launcher", "processes",
                      "--dp", str(dp), "--tp", str(tp), "--ep", str(dp * tp), "--json")
            self.assertEqual(got.returncode, 0, got.stderr)
            self.assertEqual([r["token_ids"] for r in json.loads(got.stdout)["results"]],
                             [g["greedy_ids"][:12] for g in golden], (dp, tp))


class TogetherTest(unittest.TestCase):
    """Requests that share steps, on the GPUs of one process and of several, which decide alike; simulated GPUs, too."""

    @unittest.skipIf(gpus() < 2, "needs two GPUs")
    def test_texts_and_scores_are_those_of_cpu_ranks(self):
        prompts = ["--prompt", "Package: lib", "--prompt", "The", "--max-tokens", "4"]
        commands = {"greedy": ["generate", *prompts],
                    "drawn": ["generate", *prompts, "--temperature", "0.8", "--top-k", "20", "--seed", "7"],
                    "score": ["score", "--file", DOCUMENTS, "--max-tokens-per-doc", "3"]}
        for name, command in commands.items():
            seen = []
            for device in ([], ["--device", "cuda"], ["--device", "cuda", "--launcher", "processes"]):
                got = run(*command, "--model", MODEL, "--dtype", "float32", "--tp", "2", "--json", *device)
                self.assertEqual(got.returncode, 0, got.stderr)
                self.assertEqual(got.stdout.count("\n"), 1)
                seen.append(json.loads(got.stdout))
            for of_gpus in seen[1:]:
                with self.subTest(name):
                    if name == "score":
                        self.assertEqual(of_gpus["tokens"], seen[0]["tokens"])
                        self.assertAlmostEqual(of_gpus["nll_per_token"], seen[0]["nll_per_token"], 4)
                    else:
                        self.assertEqual([r["token_ids"] for r in of_gpus["results"]],
                                         [r["token_ids"] for r in seen[0]["results"]])


class UnevenRowsTest(unittest.TestCase):
    """The steps beside a fused operator, where the rows are no multiple of the ranks; simulated GPUs, which fault on
    accesses past an allocation."""

    @unittest.skipIf(gpus() < 3, "needs 3 GPUs")
    def test_the_sequence_stays_within_its_memory(self):
        seed = random.randrange(1 << 32)
        draw = random.Random(seed)
        shapes = [("gemm_rs", 3, 33, 768), ("ag_gemm", 3, 33, 768), ("gemm_ar", 3, 33, 768)]
        shapes += [(op, draw.randint(1, 3), draw.randint(1, 300), 64 * draw.randint(1, 16))
                   for op in ("gemm_rs", "ag_gemm", "gemm_ar")]
        for op, ranks, rows, columns in shapes:
            with self.subTest(seed=seed, op=op, ranks=ranks, rows=rows, columns=columns):
                got = run("bench", op, "--device", "cuda", "--ranks", str(ranks), "--m", str(rows), "--n", str(columns),
                          "--k", "192", "--no-vendor", "--samples", "1")
                self.assertEqual(got.returncode, 0, got.stderr)


class WarmTest(unittest.TestCase):
    """A server that was warmed compiles nothing at its start; simulated GPUs, too."""

    @unittest.skipIf(gpus() < 2, "needs two GPUs")
    def test_a_start_adds_nothing_to_the_cache(self):
        options = ["--model", MODEL, "--tp", "2", "--device", "cuda", "--dtype", "bfloat16", "--max-num-seqs", "2",
                   "--max-num-batched-tokens", "4", "--max-model-len", "128", "--kv-memory", "1MiB"]
        with tempfile.TemporaryDirectory() as folder:
            cache = pathlib.Path(folder) / "cache"

            def kept():
                return sorted(str(file) for file in cache.rglob("*") if file.is_file())

            got = run("warm", *options, STRETTO_CACHE_DIR=str(cache))
            self.assertEqual(got.returncode, 0, got.stderr)
            self.assertRegex(got.stdout, r"^\d+ programs proved and compiled \(.* s\)\n$")
            self.assertIn("choice of tokens", got.stderr)
            warmed = kept()
            self.assertGreater(len(warmed), 10)
            environment = {**os.environ, "STRETTO_CACHE_DIR": str(cache)}
            command = [STRETTO, "serve", *options, "--port", "0"]
            server = ServerProcess(command, env=environment, stderr=subprocess.DEVNULL)
            try:
                server.wait_until_ready(300)
            finally:
                server.process.terminate()
                server.process.communicate(timeout=300)
            self.assertEqual(kept(), warmed)


class DummyWeights(unittest.TestCase):
    def test_a_config_without_weights_runs_and_ranks_agree_on_them(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir(MODEL):
                if not name.endswith(".safetensors"):
                    shutil.copy(os.path.join(MODEL, name), folder)
            got = run("generate", "--model", folder, "--prompt", "x")
            self.assertEqual(got.returncode, 2)
            self.assertIn("model.safetensors", got.stderr)
            ids = []
            for tp in ("1", "2"):
                got = run("generate", "--model", folder, "--prompt", "a b", "--max-tokens", "8", "--load-format",
                          "dummy", "--dtype", "float32", "--ignore-eos", "--tp", tp, "--json")
                self.assertEqual(got.returncode, 0, got.stderr)
                ids.append(json.loads(got.stdout)["token_ids"])
            self.assertEqual(len(ids[0]), 8)
            self.assertEqual(ids[0], ids[1])

    def test_a_model_larger_than_the_memory_is_refused_before_it_is_loaded(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in os.listdir(MODEL):
                if not name.endswith(".safetensors"):
                    shutil.copy(os.path.join(MODEL, name), folder)
            path = os.path.join(folder, "config.json")
            with open(path, encoding="utf-8") as file:
                config = json.load(file)
            # 800 GB, out of tensors of a quarter of a gigabyte.
            config.update(num_hidden_layers=1024, intermediate_size=1000000)
            with open(path, "w", encoding="utf-8") as file:
                json.dump(config, file)
            got = run("generate", "--model", folder, "--prompt", "x", "--load-format", "dummy", "--tp", "2")
            self.assertEqual(got.returncode, 2, got.stderr)
            self.assertRegex(got.stderr, r"take [\d.]+ GiB of memory, [\d.]+ are available")


if __name__ == "__main__":
    STRETTO = sys.argv.pop(1)
    unittest.main(verbosity=2)
