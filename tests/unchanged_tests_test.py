"""tools/unchanged_tests in a small tree of its own, with a ctest that only lists."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parent.parent / "tools" / "unchanged_tests"


class UnchangedTests(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()
        (self.root / "tools").mkdir()
        shutil.copy(TOOL, self.root / "tools")
        self.write("code.cc", "int x;")
        self.write("data.bin", "numbers")
        self.write("script.py", "pass")
        self.write("build/bin/unit_test", "machine code")
        self.write(".gitignore", "build/\nfake/\n")
        tests = [{"name": "unit", "command": [str(self.root / "build/bin/unit_test")]},
                 {"name": "cli", "command": [sys.executable, str(self.root / "script.py")]}]
        ctest = self.write("fake/ctest", "#!/bin/sh\ncat <<'END'\n" + json.dumps({"tests": tests}) + "\nEND\n")
        ctest.chmod(0o755)
        subprocess.run(["git", "init", "-q"], cwd=self.root, check=True)
        self.run_tool("record")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def run_tool(self, verb, **environment):
        env = {**os.environ, **environment, "PATH": f"{self.root / 'fake'}:{os.environ['PATH']}"}
        return subprocess.run([self.root / "tools/unchanged_tests", verb], env=env, check=True, capture_output=True,
                              text=True).stdout.strip()

    def test_what_passed_is_left_out_until_something_changes(self):
        self.assertEqual(self.run_tool("list"), "^(unit|cli)$")

    def test_sources_are_in_the_executable_but_scripts_may_read_them(self):
        self.write("code.cc", "int y;")
        self.assertEqual(self.run_tool("list"), "^(unit)$")

    def test_data_and_new_files_are_read_by_all(self):
        self.write("data.bin", "other numbers")
        self.assertEqual(self.run_tool("list"), "")

    def test_new_files_count(self):
        self.write("more.json", "{}")
        self.assertEqual(self.run_tool("list"), "")

    def test_an_executable_that_changes_is_run_again(self):
        self.write("build/bin/unit_test", "other machine code")
        self.assertEqual(self.run_tool("list"), "")

    def test_the_environment_counts(self):
        self.assertEqual(self.run_tool("list", STRETTO_TIMEOUT_MS="5"), "")

    def test_a_group_that_failed_is_run_again(self):
        self.write("build/Testing/Temporary/LastTestsFailed.log", "2:cli\n")
        self.run_tool("record")
        self.assertEqual(self.run_tool("list"), "^(unit)$")

    def test_a_broken_record_is_no_record(self):
        self.write("build/passed_tests.json", "{")
        self.assertEqual(self.run_tool("list"), "")


if __name__ == "__main__":
    unittest.main()
