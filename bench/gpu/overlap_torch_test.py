#!/usr/bin/env python3
"""overlap_torch.py against ranks that hang, die or work, without a GPU."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent

RANK = """
import json, os, sys, time
job = json.loads(sys.argv[1])
def say(message):
    if job["rank"] == 0:
        print(json.dumps({"overlap_torch": message}), flush=True)
open(os.path.join(os.environ["TEST_FOLDER"], str(os.getpid())), "w").close()
say({"facts": {"machine": "none"}})
for index, case in job["cases"].items():
    say({"begin": index})
    if case.get("m") == 16:
        time.sleep(1000)
    if case.get("m") == 64 and job["rank"] == 1:
        sys.exit(7)
    if case.get("m") == 64:
        time.sleep(1000)
    print("noise")
    say({"end": index, "row": {**case, "graph": {"sequence_ms": [2.0], "one_shot_ms": [1.0]}}})
"""


class OverlapTorch(unittest.TestCase):
    def test_hanging_and_dying_ranks_are_ended(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            program, out, pids = folder / "rank.py", folder / "out.json", folder / "pids"
            program.write_text(RANK, encoding="utf-8")
            pids.mkdir()
            begin = time.monotonic()
            done = subprocess.run(
                [sys.executable, str(HERE / "overlap_torch.py"), "--ranks", "2", "--rank-program", str(program),
                 "--only", "gemm_ar", "--case-seconds", "2", "--seconds", "60", "-o", str(out)],
                env={**os.environ, "TEST_FOLDER": str(pids)}, capture_output=True, text=True, check=False, timeout=120)
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            self.assertLess(time.monotonic() - begin, 50)
            rows = {row["m"]: row for row in json.loads(out.read_text(encoding="utf-8"))["overlap"]}
            self.assertEqual(list(rows), [1, 16, 64, 256, 1024, 4096, 8192])
            self.assertEqual(rows[1]["graph"]["one_shot_ms"], [1.0])
            self.assertIn("no answer", rows[16]["error"])
            self.assertIn("rank 1 ended with status 7", rows[64]["error"])
            self.assertEqual(rows[8192]["graph"]["sequence_ms"], [2.0])
            for pid in pids.iterdir():
                self.assertFalse(pathlib.Path("/proc", pid.name).exists(), f"rank process {pid.name} is left")


if __name__ == "__main__":
    unittest.main(verbosity=2)
