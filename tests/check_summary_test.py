#!/usr/bin/env python3
"""What ./check says at its end: a failure or a skip planted in each kind of step is counted, named and judged. The
samples are what the tools print; ctest and unittest are run besides: python3 check_summary_test.py"""

import importlib.machinery
import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("check_summary", str(ROOT / "tools" / "check_summary"))
summary = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_summary", loader))
loader.exec_module(summary)

GTEST = """[==========] Running 4 tests from 2 test suites.
[ RUN      ] Cases.A
[       OK ] Cases.A (0 ms)
[ RUN      ] Gpu.B
../x_test.cc:9: Skipped
{reason}

[  SKIPPED ] Gpu.B (0 ms)
[ RUN      ] All/Gpu.C/two
../x_test.cc:9: Skipped
{reason}
Google Test trace:
../x_test.cc:7: STRETTO_TEST_SEED=7

[  SKIPPED ] All/Gpu.C/two, where GetParam() = 2 (0 ms)
[ RUN      ] Gpu.D
[  FAILED  ] Gpu.D (0 ms)
[==========] 4 tests from 2 test suites ran. (1 ms total)
[  PASSED  ] 1 test.
[  SKIPPED ] 2 tests, listed below:
[  SKIPPED ] Gpu.B
[  SKIPPED ] All/Gpu.C/two, where GetParam() = 2
[  FAILED  ] 1 test, listed below:
[  FAILED  ] Gpu.D

 1 FAILED TEST
"""
PYTEST = """..s.F
SKIPPED [2] python/tests/test_x.py:5: could not import 'torch': No module named 'torch'
FAILED python/tests/test_x.py::test_y - assert 1 == 2
1 failed, 1161 passed, 2 skipped, 8 warnings in 708.61s (0:11:48)
"""
UNITTEST = """
import unittest
class T(unittest.TestCase):
    def test_good(self): pass
    def test_bad(self): self.fail()
    @unittest.skip("no GPU")
    def test_skipped(self): pass
    @unittest.skipIf(True, "no reason's good")
    def test_of_doc(self):
        '''A line that unittest prints.'''
    def test_parts(self):
        with self.subTest(part=1): self.skipTest("needs 2 GPUs")
unittest.main(argv=["x", "-v"])
"""


class Reasons(unittest.TestCase):
    def test_tests_of_gpus_may_be_skipped_without_one(self):
        """Of each test the reason that its source gives for want of GPUs, or its parts where a number stands within."""
        skip = re.compile(r'GTEST_SKIP\(\) << ([^;]*);|(?:skipIf\([^"]*|skipTest\(|pytest\.skip\()("[^"]*GPU[^"]*")')
        found = 0
        for folder, suffix in [("stretto", "cc"), ("apps", "cc"), ("bench", "cc"), ("tests", "py"), ("python", "py")]:
            for path in (ROOT / folder).rglob(f"*.{suffix}"):
                for of_gtest, of_python in skip.findall(path.read_text()):
                    parts = re.findall(r'"([^"]*)"|<<\s*([\w().]+)', of_gtest or of_python)
                    reason = "".join(text or ("3" if value else "") for text, value in parts)
                    if "GPU" not in reason or reason == "simulated GPUs are not built":
                        continue
                    found += 1
                    with self.subTest(path=str(path.relative_to(ROOT)), reason=reason):
                        self.assertTrue(summary.allowed(reason, False, 0))
        self.assertGreater(found, 30)


class Readers(unittest.TestCase):
    def test_gtest(self):
        count = summary.Count()
        summary.of_gtest(GTEST.format(reason="needs two GPUs"), "t", count)
        self.assertEqual(count.passed, 1)
        self.assertEqual(count.failed, ["t: Gpu.D"])
        self.assertEqual(count.skipped,
                         [("t: Gpu.B", "needs two GPUs"), ("t: All/Gpu.C/two", "needs two GPUs")])

    def test_gtest_skip_that_is_counted_and_not_named(self):
        count = summary.Count()
        summary.of_gtest(GTEST.replace("Skipped\n", "Passed over\n"), "t", count)
        self.assertEqual(count.skipped, [("t", "no reason told")] * 2)

    def test_pytest(self):
        count = summary.Count()
        self.assertTrue(summary.of_pytest(PYTEST, "t", count))
        self.assertEqual((count.passed, count.failed), (1161, ["t: python/tests/test_x.py::test_y"]))
        reason = "could not import 'torch': No module named 'torch'"
        self.assertEqual(count.skipped, [("t: python/tests/test_x.py", reason)] * 2)

    def test_unittest_as_it_prints(self):
        done = subprocess.run([sys.executable, "-c", UNITTEST], capture_output=True, text=True, check=False)
        count = summary.Count()
        self.assertTrue(summary.of_unittest(done.stderr, "t", count), done.stderr)
        self.assertEqual((count.passed, len(count.failed)), (1, 1), done.stderr)
        self.assertEqual(sorted(count.skipped), [("t: test_of_doc", "no reason's good"),
                                                 ("t: test_parts", "needs 2 GPUs"), ("t: test_skipped", "no GPU")])

    def test_own_tools(self):
        count = summary.Count()
        text = ("failed: a page\nskipped: docs/x.md, pip install: deferred to --long\n"
                "docs: 7 passed, 1 failed (3 pages)\n")
        self.assertTrue(summary.of_counts(text, "t", count))
        self.assertEqual((count.passed, count.failed), (7, ["t: a page"]))
        self.assertEqual(count.skipped, [("t: docs/x.md, pip install", "deferred to --long")])
        for text in ("5 kernels: 1 failed, 0 spills, 0 warnings (4.5 s)\n",
                     "check: P=2, 5 cases, 4 with all rows, 1 failed (seed 2), 21 s\n"):
            count = summary.Count()
            self.assertTrue(summary.of_counts(text, "t", count), text)
            self.assertEqual((count.passed, len(count.failed)), (4, 1), text)


class Allowed(unittest.TestCase):
    def test_what_this_machine_cannot_have(self):
        for reason in ("no GPU", "needs two GPUs", "needs 4 GPUs", "fewer than two GPUs", "no two GPUs", "one GPU"):
            self.assertTrue(summary.allowed(reason, False, 0), reason)
            self.assertFalse(summary.allowed(reason, False, 4), reason)
        self.assertTrue(summary.allowed("needs two GPUs", False, 1))

    def test_what_it_need_not_skip(self):
        for reason in ("no NVRTC", "could not import 'torch': No module named 'torch'", "no reason told", "disabled",
                       "build/python is not there; tools/build --check makes it", "simulated GPUs are not built"):
            self.assertFalse(summary.allowed(reason, False, 0), reason)

    def test_what_is_put_off(self):
        self.assertTrue(summary.allowed("deferred to --long", False, 0))
        self.assertFalse(summary.allowed("deferred to --long", True, 0))
        self.assertTrue(summary.allowed("deferred to the device's suite", True, 0))


class Summary(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.logs = pathlib.Path(folder.name)

    def step(self, name, text, status=0):
        (self.logs / f"{name}.log").write_text(text, encoding="utf-8")
        (self.logs / f"{name}.status").write_text(f"{status}\n", encoding="utf-8")

    def ctest(self, **commands):
        """A real run of ctest, with the flags of ./check."""
        tests = "".join(f'add_test({name} "sh" "-c" [==[{command}]==])\n'
                        f"set_tests_properties({name} PROPERTIES SKIP_RETURN_CODE 77)\n"
                        for name, command in commands.items())
        (self.logs / "CTestTestfile.cmake").write_text(tests, encoding="utf-8")
        done = subprocess.run(
            ["ctest", "--output-junit", self.logs / "ctest.xml", "--test-output-size-passed", "1000000000",
             "--test-output-size-failed", "1000000000"], cwd=self.logs, capture_output=True, text=True, check=False)
        self.step("tests", done.stdout, done.returncode)

    def ends(self, status, *lines, long=False):
        text, code = summary.summary(self.logs, long, 0)
        self.assertEqual(code, status, text)
        last = text.splitlines()[-3:]
        self.assertEqual([line.split(":")[0] for line in last], ["passed", "failed", "skipped"], text)
        for line, start in zip(last, lines):
            self.assertTrue(line.startswith(start), text)
        self.assertRegex(text.splitlines()[-4], r"^\d+ passed, \d+ failed, \d+ skipped$")
        return text

    def test_all_is_good(self):
        self.step("lint", "")
        self.ctest(plain="true", binary=f"cat <<'X'\n{GTEST.split('[ RUN      ] Gpu.D')[0]}"
                   "[==========] 3 tests from 2 test suites ran. (1 ms total)\n[  PASSED  ] 1 test.\n"
                   "[  SKIPPED ] 2 tests, listed below:\nX".format(reason="needs two GPUs"))
        text = self.ends(0, "passed: 3 (", "failed: 0", "skipped: 2 (needs two GPUs: 2)")
        self.assertIn("  binary: Gpu.B\n", text)

    def test_planted_failures(self):
        self.ctest(plain="exit 3")
        self.ends(1, "passed: 0", "failed: 1 (plain)", "skipped: 0")
        self.ctest(plain="true", python=f"cat <<'X'\n{PYTEST}X\nexit 1")
        text = self.ends(1, "passed: 1162", "failed: 3 (")
        self.assertIn("failed: python: python/tests/test_x.py::test_y\n", text)
        self.assertIn("failed: python: python/tests/test_x.py: skipped, which this machine need not do: could", text)

    def test_a_step_that_ends_without_a_word_failed(self):
        for name in ("set-up", "lint", "fuzzing", "tests", "kernels"):
            with self.subTest(name):
                self.step(name, "", 2)
                self.ends(1, "passed: 0", f"failed: 1 ({name}: exit code 2)")
                (self.logs / f"{name}.status").unlink()

    def test_a_whole_test_that_is_skipped(self):
        self.ctest(python="echo 'skipped: build/python is not there; tools/build --check makes it'; exit 77",
                   good="true")
        self.ends(1, "passed: 1", "failed: 1 (python: skipped, which this machine need not do: build/python is not")

    def test_no_tests(self):
        self.step("tests", "")
        self.ends(1, "passed: 0", "failed: 1 (tests: none ran)")

    def test_nothing_ran(self):
        self.ends(1, "passed: 0", "failed: 1 (nothing ran)")

    def test_put_off(self):
        self.step("lint", "")
        self.step("deferred", "skipped: soak runs: deferred to --long\n")
        self.ends(0, "passed: 1 (lint 1)", "failed: 0", "skipped: 1 (deferred to --long: 1)")
        self.ends(1, "passed: 1", "failed: 1 (deferred: soak runs", long=True)

    def test_a_failed_build_is_one_failure(self):
        self.step("set-up", "", 1)
        self.step("tests", "skipped: all of it: the build failed\n")
        self.step("kernels", "skipped: all of it: the build failed\n")
        self.ends(1, "passed: 0", "failed: 1 (set-up: exit code 1)", "skipped: 2 (the build failed: 2)")


if __name__ == "__main__":
    unittest.main(verbosity=2)
