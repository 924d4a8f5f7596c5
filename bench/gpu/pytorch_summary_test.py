#!/usr/bin/env python3
"""What is kept of a run of bench/gpu/pytorch_suite: a step that failed, was ended or counted no tests must show."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent / "pytorch_summary.py"


class Summary(unittest.TestCase):
    def run_on(self, *steps):
        """(exit code, output, the file) of steps (name, status, what rank 0 wrote or None)."""
        with tempfile.TemporaryDirectory() as folder:
            arguments = []
            for name, status, told in steps:
                path = pathlib.Path(folder) / f"{name}.json"
                if told is not None:
                    path.write_text(json.dumps(told), encoding="utf-8")
                arguments.append(f"{name}:{status}:12:{path}")
            out = pathlib.Path(folder) / "kept.json"
            command = [sys.executable, SCRIPT, out, "--commit", "abc", "--driver", "580", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual(done.stderr, "")
            return done.returncode, done.stdout, json.loads(out.read_text(encoding="utf-8"))

    def test_what_passed(self):
        told = {"tests": 29, "failed": [], "skipped": {"test_cupy": "no CuPy"}, "torch": "2.11"}
        code, text, kept = self.run_on(("test-2", 0, told))
        self.assertEqual((code, text), (0, "test-2: status 0, 29 tests, 0 failed, 1 skipped, 12 s\n"))
        self.assertEqual((kept["commit"], kept["driver"]), ("abc", "580"))
        self.assertEqual(kept["steps"], [{"step": "test-2", "status": 0, "seconds": 12, **told}])

    def test_what_did_not(self):
        good, bad = ({"tests": 3, "failed": names, "skipped": {}} for names in ([], ["test_x"]))
        for step, shown in (
            (("a", 1, bad), "3 tests, 1 failed"),
            (("a", 0, bad), "3 tests, 1 failed"),  # on another rank it passed
            (("a", 124, None), "status 124, no report"),
            (("a", 0, None), "no report"),
            (("a", 1, good), "status 1"),  # on another rank it failed
        ):
            code, text, kept = self.run_on(step, ("b", 0, good))
            self.assertEqual(code, 1, step)
            self.assertIn(shown, text)
            self.assertEqual([row["step"] for row in kept["steps"]], ["a", "b"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
