#!/usr/bin/env python3
"""profile.py against a profiler that is a script: which kernels and instructions it finds in the reports, and that it
says so where a case has none."""

import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent

NCU = r'''#!/usr/bin/env python3
import pathlib, sys
args = sys.argv[1:]
if "--import" not in args:
    if "attention-suite" not in args:
        pathlib.Path(args[args.index("-o") + 1] + ".ncu-rep").touch()
    print("==PROF== Connected")
    print("ours 0.1 ms")
elif "raw" in args:
    print("==PROF== words")
    print('"ID","Kernel Name","gpu__time_duration.sum","smsp__average_warps_issue_stalled_gmma_per_issue_active.ratio"')
    print('"","","nsecond","inst"')
    print('"0","stretto_gemm","1,234","3.5"')
    print('"1","nvjet","1000","0.5"')
else:
    for kernel, hot in ("stretto_gemm", "QGMMA.64x128x32"), ("nvjet", "UTMALDG"):
        print('"Kernel Name","' + kernel + '"')
        print('"#","Source","Warp Stall Sampling (All Samples)","stall_gmma","stall_wait"')
        print('"0","NOP","1","0","1"')
        print('"1","' + hot + '","3","2","1"')
'''


class Profile(unittest.TestCase):
    def run_profile(self, only: str, out: str) -> subprocess.CompletedProcess:
        with tempfile.TemporaryDirectory() as folder:
            ncu = pathlib.Path(folder) / "ncu"
            ncu.write_text(NCU, encoding="utf-8")
            ncu.chmod(0o755)
            path = folder + os.pathsep + os.environ["PATH"]
            return subprocess.run([sys.executable, str(HERE / "profile.py"), "-o", out, "--only", only],
                                  env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)

    def test_every_kernel_has_its_metrics_and_the_instructions_that_wait(self):
        with tempfile.TemporaryDirectory() as out:
            run = self.run_profile("fp8 rows", out)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertIn("gpu__time_duration.sum 1234", run.stdout)
            self.assertIn("gmma 3.50", run.stdout)
            self.assertRegex(run.stdout, r"1  75\.0 %  QGMMA\.64x128x32 +gmma 2, wait 1")
            self.assertLess(run.stdout.index("QGMMA"), run.stdout.index("UTMALDG"))
            files = sorted(pathlib.Path(out).iterdir())
            self.assertEqual([f.suffix for f in files], [".json", ".gz"])
            kernels = json.loads(files[0].read_text())["profiles"]["fp8 rows 8192^3"]
            self.assertEqual([k["kernel"] for k in kernels], ["stretto_gemm", "nvjet"])
            with tarfile.open(files[1]) as archive:
                self.assertEqual(archive.getnames(), ["fp8-rows-8192-3.csv"])

    def test_a_case_without_a_report_is_named_and_fails_the_run(self):
        with tempfile.TemporaryDirectory() as out:
            run = self.run_profile("attention 64", out)
            self.assertEqual(run.returncode, 1)
            self.assertIn("2 without a kernel: attention 64 causal, attention 64 full", run.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
