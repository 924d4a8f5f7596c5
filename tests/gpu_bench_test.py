#!/usr/bin/env python3
"""`gpu_bench catalog` on a machine without a GPU, up to the kernels: python3 gpu_bench_test.py GPU_BENCH."""

import re
import subprocess
import sys
import unittest

GPU_BENCH = ""
CASE = "all_reduce_packet P=2 m=16"  # one of the catalog's


def run(*args):
    return subprocess.run([GPU_BENCH, *args], capture_output=True, text=True, timeout=300)


class Catalog(unittest.TestCase):
    def test_kernels_compile_without_a_gpu_with_pauses_and_without(self):
        for flags in ([], ["--delays"]):
            with self.subTest(flags=flags):
                got = run("--seed", "5", "catalog", "--ranks", "2", "--only", CASE, "--compile", *flags)
                if "NVRTC" in got.stdout:
                    self.skipTest(got.stdout.strip())
                self.assertEqual(got.returncode, 0, got.stdout + got.stderr)
                self.assertRegex(got.stdout, rf"(?m)^ok +{CASE} .*registers, 0 \+ 0 bytes spilled")
                self.assertTrue(got.stdout.endswith("compile: 1 kernels, 0 failed, 0 dirty\n"), got.stdout)

    def test_running_them_needs_a_gpu_and_says_so(self):
        got = run("catalog", "--ranks", "2", "--only", CASE)
        if got.returncode == 0:  # there are two
            self.assertRegex(got.stdout, r"check: P=2, 1 cases, \d+ with all rows, 0 failed \(seed \d+\)")
            return
        self.assertEqual(got.returncode, 2, got.stdout + got.stderr)
        self.assertEqual(got.stdout, "")
        self.assertTrue(re.fullmatch(r"gpu_bench: .+\n", got.stderr), got.stderr)

    def test_wrong_numbers_are_refused(self):
        for flags in (["--back-to-back", "0"], ["--launches", "-1"], ["--ranks", "9"], ["--delay"]):
            with self.subTest(flags=flags):
                self.assertNotIn(run("catalog", "--compile", *flags).returncode, (0, 2))


if __name__ == "__main__":
    GPU_BENCH = sys.argv.pop(1)
    unittest.main()
