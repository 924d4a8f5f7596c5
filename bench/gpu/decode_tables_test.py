#!/usr/bin/env python3
"""Tables and bars of decode, with samples and without, and of loops, those held out beside the others."""

import subprocess
import sys
import unittest

from tables_test import HERE, MadeResults


class DecodeAndLoops(MadeResults):
    def test_decode_with_samples_and_without(self):
        def run(tp, ms, **more):
            return {"tp": tp, "eager_ms": 5.0, "replay_ms": 4.0, "early_ms": ms, "bytes_read": 8e9,
                    "copy_bytes_per_s": 4e12, **more}
        self.result("gpu-decode-x4-2026-01-02.json", model="llama-3-8b", dtype="bf16",
                    runs=[run(1, 2.5), run(4, 1.25), {"tp": 2, "error": "no memory"}])
        text = self.tables("--print", "decode").stdout
        self.assertIn("| llama-3-8b bf16 | 1 | 5.00 | 4.00 | 2.50 | 400 | 0.80 | 1.00 |", text)
        self.assertIn("| llama-3-8b bf16 | 4 | 5.00 | 4.00 | 1.25 | 800 | 1.60 | 2.00 |", text)
        # Ten samples: the median is between the fifth and the sixth, its interval from the second to the ninth.
        several = {"replay_samples_ms": [4.0] * 10, "early_samples_ms": [2.0, 2.0, *[2.5] * 6, 4.0, 9.0]}
        self.result("gpu-decode-x4-2026-01-03.json", model="llama-3-8b", dtype="bf16", runs=[run(1, 2.5, **several)])
        text = self.tables("--print", "decode").stdout
        self.assertIn("| llama-3-8b bf16 | 1 | 5.00 | 4.00 [4.00, 4.00] | 2.50 [2.00, 4.00] | 400 | 0.80 [0.50, 1.00] "
                      "| 1.00 |", text)
        self.assertIn("| llama-3-8b bf16 | 4 | 5.00 | 4.00 | 1.25 | 800 | 1.60 | 2.00 |", text)
        several["early_samples_ms"] = [1.25] * 10
        self.result("gpu-decode-x4-2026-01-04.json", model="llama-3-8b", dtype="bf16", runs=[run(4, 1.25, **several)])
        self.assertIn("| 2.00 [1.60, 3.20] |", self.tables("--print", "decode").stdout)

    def test_choices_of_tokens_beside_what_was_asked(self):
        def choice(kind, rows, us):
            return {"kind": kind, "rows": rows, "bound_us": 12.5, "wrong": 0, "us": [us] * 8, "call_us": [us + 50] * 8}
        self.result("gpu-sampling-2026-01-02.json", choices=[choice("greedy", 256, 42.0), choice("all", 256, 401.0),
                                                             choice("all", 64, 401.0)])
        text = self.tables("--print", "sampling").stdout
        self.assertIn("| greedy | 256 | 12.5 | 42.0 [42.0, 42.0] | 60 | 92 | none |", text)
        self.assertIn("| all | 256 | 12.5 | **401.0 [401.0, 401.0]** | 400 | 451 | none |", text)
        self.assertIn("| all | 64 | 12.5 | 401.0 [401.0, 401.0] |  | 451 | none |", text)

    def test_served_beside_transformers(self):
        def load(name, rate, **more):
            return {"load": name, "output_tokens_per_second": rate, "ttft_ms": {"p50": 10.0, "p99": 2000.0},
                    "tpot_ms": {"p50": 5.0, "p99": 6.0}, "gpu_busy": None, **more}
        ours = [load("64 at once", 3000.0), load("saturation", 4000.0)]
        theirs = {"engine": "transformers 5.17.0", "attention": "flash"}
        self.result("gpu-served-2026-01-02.json", tp=1, runs=ours, beside=[
            load("64 at once", 1000.0, **theirs),
            load("saturation", 1600.0, graphs=False, **theirs),
            {"attention": "sdpa", "load": "64 at once", "error": "no memory"}])
        want = ["| 64 at once | 3,000 | 10.0 | 2,000.0 | 5.00 | 6.00 | - |  |",
                "| saturation | 4,000 | 10.0 | 2,000.0 | 5.00 | 6.00 | - |  |",
                "| 64 at once, transformers 5.17.0, PyTorch's FlashAttention-2 | 1,000 | 10.0 | 2,000.0 | 5.00 | 6.00 "
                "| - | 3.00 |",
                "| saturation, transformers 5.17.0, PyTorch's FlashAttention-2, without graphs | 1,600 | 10.0 "
                "| 2,000.0 | 5.00 | 6.00 | - | **2.50** |",
                "| 64 at once, transformers, its SDPA | failed: no memory |  |  |  |  |  |  |"]
        self.assertEqual(self.tables("--print", "served").stdout.splitlines()[2:7], want)
        # The scoreboard: over transformers on one GPU, over one GPU's on two.
        def score():
            return next(line for line in self.tables("--print", "scoreboard").stdout.splitlines() if "served" in line)
        self.assertIn("| **2.50x; 4,000 tokens/s** | - | - |", score())
        self.result("gpu-served-x2-2026-01-02.json", tp=2, runs=[load("saturation", 6800.0)])
        self.assertIn("| **2.50x; 4,000 tokens/s** | 1.70x; 6,800 tokens/s | - |", score())
        (self.folder / "gpu-served-x2-2026-01-02.json").unlink()
        # What is kept of the run makes the same table; a newer run without transformers has none of its rows.
        before = self.tables("--print", "served").stdout
        kept = subprocess.run([sys.executable, str(HERE / "keep.py"), "--results", str(self.folder),
                               str(self.folder / "gpu-served-2026-01-02.json")], capture_output=True, text=True)
        self.assertEqual(kept.returncode, 0, kept.stderr)
        (self.folder / "gpu-served-2026-01-02.json").unlink()
        self.assertEqual(self.tables("--print", "served").stdout, before)
        self.result("gpu-served-2026-01-03.json", tp=1, runs=ours[:1])
        self.assertEqual(self.tables("--print", "served").stdout.splitlines()[2:4],
                         ["| 64 at once | 3,000 | 10.0 | 2,000.0 | 5.00 | 6.00 | - |", ""])

    def test_served_experts(self):
        def run(date, tp, ep, rate):
            self.result(f"gpu-served-{date}.json", model="qwen3-30b-a3b", tp=tp, ep=ep, runs=[
                {"load": "idle", "output_tokens_per_second": rate, "ttft_ms": {"p50": 10.0, "p99": 20.0},
                 "tpot_ms": {"p50": 5.0, "p99": 6.0}, "gpu_busy": 99.0}])
        run("2026-01-02", 1, 1, 100.0)
        run("2026-01-03", 2, 2, 200.0)
        run("2026-01-04", 2, 1, 150.0)
        run("2026-01-05", 2, 2, 210.0)  # in place of the older one
        row = "| {} | {} | idle | {} | 10.0 | 20.0 | 5.00 | 6.00 | 99 % |"
        self.assertEqual(sorted(self.tables("--print", "served-experts").stdout.splitlines()[2:5]),
                         [row.format(1, 1, 100), row.format(2, 1, 150), row.format(2, 2, 210)])
        self.assertNotIn("idle", self.tables("--print", "served").stdout)

    def test_steps_over_other_caches_do_not_take_their_place(self):
        def run(ms, **more):
            return {"attention": "paged_attention", "steps": [
                {"rows": 8, "bound_ms": 3.5, "samples_ms": [ms] * 3, "host_ms": 9.0}], **more}
        self.result("gpu-batch-2026-01-02.json", context=1024, runs=[run(5.0)])
        self.result("gpu-batch-2026-01-03-fp8.json", context=1024, runs=[run(6.0, kv_dtype="fp8")])
        self.result("gpu-batch-2026-01-04-long.json", context=8192, runs=[run(7.0)])
        self.result("gpu-batch-2026-01-05-weights.json", context=1024, weights="fp8", runs=[run(8.0)])
        self.assertIn("| 8 | 3.50 | 5.00 [5.00, 5.00] | 0.70 | 9.0 |", self.tables("--print", "batch").stdout)

    def test_left_factors_of_experts_are_compared_over_all_turns(self):
        def run(ms, **more):
            return {"attention": "as served", "steps": [
                {"rows": 8, "bound_ms": 3.5, "samples_ms": [ms] * 6, "host_ms": 9.0}], **more}
        self.result("gpu-batch-2026-01-02.json", context=512, runs=[run(5.0)])
        self.result("gpu-batch-2026-01-03.json", context=512, runs=[
            run(6.0), run(3.0, experts="few"), run(9.0, experts="weights"), run(3.0, experts="few"), run(6.0)])
        self.assertIn("| 8 | 6.00 [6.00, 6.00] | 3.00 [3.00, 3.00] | 2.00 |",
                      self.tables("--print", "experts-factor").stdout)

    def test_loops_held_out_stand_apart(self):
        def loop(name, ms, **more):
            return {"name": name, "bytes": 1e6, "flops": 7e11, "roofline_ms": 1.0, "ms": [ms] * 3, **more}
        self.result("gpu-loops-2026-01-02.json", loops=[loop("seen", 1.0), loop("late", 1.25, held_out=True)])
        self.assertIn("1 of 1; least 1.00 (seen); held out 1 of 1; least 0.80 (late) |",
                      self.tables("--print", "scoreboard").stdout)
        self.result("gpu-loops-held-out-2026-01-03.json", loops=[
            loop("new", 2.0, held_out=True), {"name": "late", "held_out": True, "error": "wrong"}])
        self.assertIn("| seen | 1.000 | 1.000 | 1.00 | 700 TFLOP/s, 0.71 |", self.tables("--print", "loops").stdout)
        self.assertNotIn("new", self.tables("--print", "loops").stdout)
        text = self.tables("--print", "loops-held-out").stdout
        self.assertIn("| new | 2.000 | 1.000 | 0.50 | 350 TFLOP/s, 0.35 |", text)
        self.assertIn("| late | failed: wrong |", text)
        self.assertNotIn("seen", text)
        self.assertIn("**1 of 1; least 1.00 (seen); held out 0 of 2; least 0.00 (late)**",
                      self.tables("--print", "scoreboard").stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
