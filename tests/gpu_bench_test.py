#!/usr/bin/env python3
"""`gpu_bench` on a machine without a GPU, up to the kernels: python3 gpu_bench_test.py GPU_BENCH."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

GPU_BENCH = ""
CASE = "all_reduce_packet P=2 m=16"  # one of the catalog's


def run(*args):
    return subprocess.run([GPU_BENCH, *args], capture_output=True, text=True, timeout=300)


class GpuBench(unittest.TestCase):
    def test_kernels_compile_without_a_gpu_with_pauses_and_without(self):
        for flags in ([], ["--delays"]):
            with self.subTest(flags=flags):
                got = run("--seed", "5", "catalog", "--ranks", "2", "--only", CASE, "--compile", *flags)
                if "NVRTC" in got.stdout:
                    self.skipTest(got.stdout.strip())
                self.assertEqual(got.returncode, 0, got.stdout + got.stderr)
                self.assertRegex(got.stdout, rf"(?m)^ok +{CASE} .*registers, 0 \+ 0 bytes spilled")
                self.assertTrue(got.stdout.endswith("compile: 1 kernels, 0 failed, 0 dirty\n"), got.stdout)

    def test_launches_that_start_early_have_one_before_them(self):
        got = run("catalog", "--ranks", "2", "--only", "gemm P=2 m=21", "--compile", "--early")
        if "NVRTC" in got.stdout:
            self.skipTest(got.stdout.strip())
        self.assertEqual(got.returncode, 0, got.stdout + got.stderr)
        labels = re.findall(r"(?m)^ok +(.*?) \|", got.stdout)
        self.assertGreater(len(labels), 0, got.stdout)
        self.assertEqual(len(labels) % 2, 0, got.stdout)
        self.assertEqual([f"{label}, before it" for label in labels[::2]], labels[1::2])

    def test_points_of_shapes_are_every_config_the_default_first(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "points.json"
            shapes = "reduce_scatter:3072x5120,all_reduce_one_shot:320x6144"
            got = run("predict-points", "--ranks", "2", "--shapes", shapes, "-o", out)
            self.assertEqual(got.returncode, 0, got.stdout + got.stderr)
            points = json.loads(out.read_text())["points"]
        for op, default, rows in (("reduce_scatter", "tile=6x5120 piece_rows=1", "threads=640"),
                                  ("all_reduce_one_shot", "tile=5x6144 piece_rows=1", "threads=768")):
            configs = [p["config"] for p in points if p["op"] == op]
            self.assertIn(default, configs[0])
            self.assertEqual(len(set(configs)), len(configs))
            self.assertTrue(any(rows in c for c in configs), configs)
        for wrong in ("gemm", "gemm:", "gemm:8", "gemm:8x", "gemm:8x8x8x8", "gemm:8x0", "gemm:8x8 "):
            got = run("predict-points", "--shapes", wrong, "-o", os.devnull)
            self.assertEqual((got.returncode, got.stdout), (2, ""), wrong)
            self.assertIn(f"'{wrong}' is no shape", got.stderr)

    def test_the_page_has_the_padding_of_experts_tiles(self):
        page = pathlib.Path("docs/performance/moe.md").read_text()
        for classes in ("1", "2"):
            got = run("--seed", "1", "padding", "--ranks", "2", "--classes", classes)
            self.assertEqual(got.returncode, 0, got.stderr)
            lines = got.stdout.splitlines()
            self.assertEqual(len(lines), 6, got.stdout)
            for line in lines:
                self.assertIn(f"  {line}\n", page)
        got = run("padding", "--ranks", "2", "--classes", "3")
        self.assertEqual((got.returncode, got.stdout), (2, ""))
        self.assertIn("3 classes are more than the 2 ranks", got.stderr)

    def test_running_them_needs_a_gpu_and_says_so(self):
        got = run("catalog", "--ranks", "2", "--only", CASE)
        if got.returncode == 0:  # there are two
            self.assertRegex(got.stdout, r"check: P=2, 1 cases, \d+ with all rows, 0 failed \(seed \d+\)")
            return
        self.assertEqual(got.returncode, 2, got.stdout + got.stderr)
        self.assertEqual(got.stdout, "")
        self.assertTrue(re.fullmatch(r"gpu_bench: .+\n", got.stderr), got.stderr)

    def test_a_config_that_a_shape_does_not_give_is_refused_by_name(self):
        asked = {
            "channels=32": "gemm_rs P=2 m=1024 .*: channels_per_rank is 32, can only be 4",
            "scatter=epilogue queues=2": "num_copy_queues is 2, can only be 1: the epilogue scatters",
            "tile=128x100x64 store_slots=2": "role 'gemm' .*cannot have store_slots = 2: .*out bf16",
            "scatter=epilogue load_slots=2": "load_slots is 2, can only be 0: loads ahead need",
        }
        for config, refusal in asked.items():
            with self.subTest(config=config):
                got = run("overlap", "--ranks", "2", "--machine", "h200x2", "--only", "gemm_rs P=2 m=1024", "--config",
                          config)
                self.assertEqual((got.returncode, got.stdout), (2, ""))
                self.assertRegex(got.stderr, refusal)

    def test_what_a_config_does_not_name_is_made_to_fit(self):
        got = run("overlap", "--ranks", "2", "--machine", "h200x2", "--only", "gemm_rs P=2 m=1024", "--config",
                  "scatter=copy_engine tile=128x128x64 channels=2")
        self.assertEqual((got.returncode, got.stderr), (0, ""))
        self.assertRegex(got.stdout, r"gemm_rs P=2 m=1024 .* \| tile=128x128x64 .* channels=2 ")

    def test_wrong_numbers_are_refused(self):
        for flags in (["--back-to-back", "0"], ["--launches", "-1"], ["--ranks", "9"], ["--delay"]):
            with self.subTest(flags=flags):
                self.assertNotIn(run("catalog", "--compile", *flags).returncode, (0, 2))


if __name__ == "__main__":
    GPU_BENCH = sys.argv.pop(1)
    unittest.main(verbosity=2)
