#!/usr/bin/env python3
"""Who is measured beside `stretto serve`, without a GPU. If these fail, the table of served loads says of transformers
what its run did not do. What needs PyTorch and transformers is skipped where they are not (tools/build --check).

    bench/gpu/beside_test.py [build/bin/stretto] [TEST...]     build/python is used where this Python has no torch
"""

import collections
import importlib.util
import json
import os
import pathlib
import random
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent.parent / "tests"))
import python_environment

if __name__ == "__main__" and len(sys.argv) > 1 and pathlib.Path(sys.argv[1]).name == "stretto":
    python_environment.needs("torch", sys.argv[1])
    sys.argv.pop(1)
# At the end: PyTorch imports `profile`, and there is one beside this file.
sys.path = [path for path in sys.path if path != str(HERE)] + [str(HERE), str(HERE / "engines")]
import beside
import served_transformers as theirs

SEED = int(os.environ.get("STRETTO_TEST_SEED") or random.SystemRandom().getrandbits(32))
THERE = all(importlib.util.find_spec(name) for name in ("torch", "transformers", "psutil"))
TINY = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
        "hidden_act": "silu", "tie_word_embeddings": False}

Output = collections.namedtuple("Output", "request_id generated_tokens timestamps error")
Output.is_finished = lambda _: True


class MadeManager:
    """A clock, and a manager by it: each request's first token comes after `first_s`, each other one after `next_s`."""

    background_thread_status = collections.namedtuple("Status", "fatal_error")("none")

    def __init__(self, first_s, next_s, spoil=None):
        self.now, self.first_s, self.next_s, self.spoil = 100.0, first_s, next_s, spoil
        self.running, self.sent, self.most, self.alive = {}, 0, 0, True

    def clock(self):
        return self.now

    def is_running(self):
        return self.alive

    def add_request(self, prompt, max_new_tokens, record_timestamps):
        times = [self.now + self.first_s + i * self.next_s for i in range(max_new_tokens)]
        name = f"request {self.sent}"
        self.running[name] = Output(name, [7] * max_new_tokens, times, None)
        if self.spoil and self.sent in self.spoil:
            self.running[name] = self.spoil[self.sent](self.running[name])
        self.sent += 1
        self.most = max(self.most, len(self.running))
        return name

    def get_result(self, timeout):
        name = min(self.running, key=lambda n: self.running[n].timestamps[-1])
        output = self.running[name]
        if not self.alive or output.timestamps[-1] > self.now + timeout:
            self.now += timeout
            return None
        self.now = max(self.now, output.timestamps[-1])
        return self.running.pop(name)


def row(manager, load, tokens=5):
    answers, seconds = theirs.closed_loop(manager, theirs.prompts(1, 3), load, tokens, manager.clock)
    return theirs.row_of(load, answers, seconds)


class ClosedLoop(unittest.TestCase):
    def test_figures_are_those_of_the_clock(self):
        manager = MadeManager(0.5, 0.125)  # a request takes a second
        got = row(manager, theirs.Load("some", 4, 12, 100))
        self.assertEqual(manager.most, 4)
        self.assertEqual((got["requests"], got["completed"], got["failed"], got["output_tokens"]), (12, 12, 0, 60))
        self.assertAlmostEqual(got["seconds"], 3)
        self.assertAlmostEqual(got["output_tokens_per_second"], 20)
        for name, ms in (("ttft_ms", 500), ("tpot_ms", 125), ("e2e_ms", 1000)):
            for part in ("p50", "p90", "p99"):
                self.assertAlmostEqual(got[name][part], ms)

    def test_quantiles_are_those_of_stretto_load(self):
        values = [float(v) for v in random.Random(SEED).sample(range(1000), 64)]
        for part, rank in ((0.5, 32), (0.9, 58), (0.99, 64)):
            self.assertEqual(theirs.quantile(values, part), sorted(values)[rank - 1], f"STRETTO_TEST_SEED={SEED}")

    def test_slow_ones_get_whole_rounds(self):
        got = row(MadeManager(0.5, 0.125), theirs.Load("some", 4, 100, 2.5))
        self.assertEqual((got["requests"], got["seconds"]), (8, 2))
        got = row(MadeManager(1.5, 0.125), theirs.Load("some", 4, 100, 1.5))
        self.assertEqual((got["requests"], got["seconds"]), (4, 2))
        with self.assertRaisesRegex(theirs.TooSlow, "0 of 100 requests were answered within"):
            row(MadeManager(50, 0.125), theirs.Load("some", 4, 100, 1.5))

    def test_failures_are_no_figures(self):
        for spoil, why in ((lambda o: o._replace(error="no blocks"), "no blocks"),
                           (lambda o: o._replace(generated_tokens=[7] * 4), "4 tokens in place of 5")):
            got = row(MadeManager(0.5, 0.125, {3: spoil}), theirs.Load("some", 4, 12, 100))
            self.assertEqual(got["error"], f"1 of 12 requests failed: {why}")
            self.assertNotIn("output_tokens_per_second", got)

    def test_a_dead_thread_ends_it(self):
        manager = MadeManager(0.5, 0.125)
        manager.alive = False
        with self.assertRaisesRegex(theirs.Aborted, "transformers stopped: none"):
            row(manager, theirs.Load("some", 4, 12, 100))


PROGRAM = """
import json, os, sys, time
job = json.loads(sys.argv[2])
def say(message):
    print(json.dumps({"served_transformers": message}), flush=True)
open(os.path.join(os.environ["TEST_FOLDER"], str(os.getpid())), "w").close()
say({"facts": {"engine": "made", "attention": job["attention"]}})
print("noise")
for load in job["loads"]:
    if load["name"] == "dies":
        sys.exit(7)
    say({"begin": load["name"]})
    if load["name"] == "hangs":
        time.sleep(1000)
    say({"row": {"load": load["name"], "seconds": job["seconds"]}})
"""


class Beside(unittest.TestCase):
    def rows(self, names, seconds=30):
        with tempfile.TemporaryDirectory() as name:
            folder, program = pathlib.Path(name), pathlib.Path(name) / "program.py"
            program.write_text(PROGRAM, encoding="utf-8")
            (folder / "pids").mkdir()
            job = {"attention": "sdpa", "loads": [{"name": n} for n in names]}
            begin = time.monotonic()
            rows = list(beside.rows_of(job, "config.json", seconds,
                                       {**os.environ, "TEST_FOLDER": str(folder / "pids")}, program))
            self.assertLess(time.monotonic() - begin, seconds + 30)
            for pid in (folder / "pids").iterdir():
                self.assertFalse(pathlib.Path("/proc", pid.name).exists(), f"process {pid.name} is left")
        return rows

    def test_rows_come_with_who_they_are_of(self):
        self.assertEqual(self.rows(["a", "b"]),
                         [{"engine": "made", "attention": "sdpa", "gpu_busy": None, "load": n, "seconds": 30}
                          for n in "ab"])

    def test_hanging_and_dying_ones_are_ended_and_keep_what_they_did(self):
        facts = {"engine": "made", "attention": "sdpa"}
        for names, why in ((["a", "hangs", "b"], "not done in time"), (["a", "dies", "b"], "ended with status 7")):
            rows = self.rows(names, seconds=8 if "hangs" in names else 30)
            self.assertEqual([r["load"] for r in rows], names)
            self.assertNotIn("error", rows[0])
            self.assertEqual(rows[1:], [{**facts, "load": n, "error": why} for n in names[1:]])

    def test_no_time_is_an_error_too(self):
        self.assertEqual([r["error"] for r in self.rows(["a", "b"], seconds=0)], ["not done in time"] * 2)

    def test_jobs_are_those_of_the_server(self):
        loads = {(job["attention"], load["name"]): load for job in beside.jobs(1024, 128, 256) for load in job["loads"]}
        self.assertEqual(set(loads), {("flash", "64 at once"), ("flash", "saturation"), ("sdpa", "64 at once")})
        for (_, name), load in loads.items():
            theirs.Load(**load)
            self.assertEqual((load["concurrency"], load["requests"]),
                             {"64 at once": (64, 512), "saturation": (256, 1536)}[name])


@unittest.skipUnless(THERE, "needs torch, transformers and psutil")
class Transformers(unittest.TestCase):
    """The real one, with a tiny model on the CPU."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.config = pathlib.Path(folder.name) / "config.json"
        self.config.write_text(json.dumps(TINY), encoding="utf-8")

    def test_tokens_are_those_of_generate(self):
        import torch
        before = theirs.MAX_BATCH_TOKENS
        self.addCleanup(setattr, theirs, "MAX_BATCH_TOKENS", before)
        theirs.MAX_BATCH_TOKENS = 48  # prompts are cut, and go beside other requests' tokens
        for attention in theirs.ATTENTION if theirs.takes_ours() else ["sdpa"]:
            model = theirs.random_model(self.config, attention, "cpu", SEED)
            asked = dict(enumerate(next(theirs.prompts(SEED + i, n)) for i, n in enumerate((40, 41, 7, 33))))
            manager = theirs.manager_of(model, 3, 41, 6)
            manager.start()
            try:
                ids = {manager.add_request(p, max_new_tokens=6): i for i, p in asked.items()}
                got, end = {}, time.monotonic() + 120
                while len(got) < len(ids) and time.monotonic() < end:
                    output = manager.get_result(timeout=1)
                    if output is not None:
                        self.assertIsNone(output.error)
                        got[ids[output.request_id]] = output.generated_tokens
            finally:
                manager.stop(block=True, timeout=20, hard_stop=True)
            model.set_attn_implementation("eager")
            want = {i: model.generate(torch.tensor([p]), attention_mask=torch.ones(1, len(p)), max_new_tokens=6,
                                      do_sample=False, eos_token_id=None, pad_token_id=0)[0, len(p):].tolist()
                    for i, p in asked.items()}
            self.assertEqual(got, want, f"{attention}, STRETTO_TEST_SEED={SEED}")

    def test_the_program_times_what_it_did(self):
        job = {"attention": "flash" if theirs.takes_ours() else "sdpa", "input_tokens": 40, "output_tokens": 9,
               "seed": SEED, "loads": [{"name": "some", "concurrency": 3, "requests": 60, "seconds": 20}]}
        begin = time.monotonic()
        (got,) = beside.rows_of(job, self.config, 300)
        self.assertNotIn("error", got)
        self.assertEqual((got["completed"], got["failed"]), (got["requests"], 0))
        self.assertEqual(got["output_tokens"], 9 * got["requests"])
        self.assertIn(got["requests"], range(3, 61, 3))
        self.assertLess(got["seconds"], time.monotonic() - begin)
        self.assertAlmostEqual(got["output_tokens_per_second"] * got["seconds"], got["output_tokens"], places=3)
        # Three at once: as much time as their requests' together, a third of it.
        self.assertGreater(got["seconds"] * 3, 0.8 * got["e2e_ms"]["p50"] / 1e3 * got["requests"] / 2)
        self.assertTrue(got["engine"].startswith("transformers "))


if __name__ == "__main__":
    print(f"STRETTO_TEST_SEED={SEED}", file=sys.stderr)
    unittest.main(verbosity=2)
