"""What a user may have little of: threads, processes, descriptors, sizes of files, memory. What does not fit ends with
a line that says so; nothing hangs, crashes or is wrong. Usage: cli_limits_test.py PATH_OF_STRETTO [unittest
arguments], from the root of the repository."""

import os
import resource
import subprocess
import unittest

import cli_case
import drawn
from cli_case import DATA, HANGS, MODEL, PROMPT, ROOT, STRETTO, CliCase

OTHER = 4323  # a user of whom nothing else runs
GENERATE = ["generate", "--model", MODEL, "--prompt", PROMPT, "--max-tokens", 2]
COMMANDS = {
    "prove": ["prove", "ag_gemm", "--ranks", "1..3"],
    "prove a file": ["prove", DATA / "kept_wait.cc", "--ranks", 2],
    "bench": ["bench", "gemm_rs", "--m", 64, "--n", 64, "--k", 64, "--ranks", 3, "--samples", 2],
    "threads": [*GENERATE, "--tp", 3],
    "processes": [*GENERATE, "--tp", 3, "--launcher", "processes"],
    "trace": ["trace", "all_gather", "--ranks", 2, "-o", "trace.json"],
    "predict": ["predict", "ag_gemm", "--machine", "h200x4", "--m", 2048, "--n", 5504, "--k", 1024, "--ranks", 4],
}
# With what takes seconds and much memory.
ALL = {**COMMANDS, "predict much": ["predict", "ag_gemm", "--machine", "h200x4", "--m", 8192, "--n", 22016, "--k", 4096,
                                    "--ranks", 4]}


class LimitsTest(CliCase):
    def limited(self, command, limits, **kwargs):
        """0, or 2 or 3 and a line that says why. Where the loader finds no room for libraries, its own."""
        def limit():
            for what, most in limits:
                resource.setrlimit(what, (most, most))

        env = {**os.environ, "STRETTO_CACHE_DIR": str(self.tmp / "cache"), **kwargs.pop("env", {})}
        done = subprocess.run([STRETTO, *map(str, ALL[command])], env=env, preexec_fn=limit, timeout=HANGS,
                              stdin=subprocess.DEVNULL, capture_output=True, cwd=self.tmp, **kwargs)
        said = done.stderr.decode()
        if done.returncode == 127 and "error while loading shared libraries" in said:
            return None
        self.assertIn(done.returncode, (0, 2, 3), said)
        self.assertNotIn("internal error", said)
        if done.returncode != 0:
            self.assertRegex(said, r"(?m)^stretto: (error|fault): ")
        return said if done.returncode else ""

    def few(self, what, amounts, commands=COMMANDS, words="", **kwargs):
        """The same command with more and more of it: refused in these words, until it is enough."""
        for command in drawn.drawn_of(f"little of {what}", commands, 2):
            good = 0
            for most in amounts:
                with self.subTest(command, most=most):
                    said = self.limited(command, [(what, most)], **kwargs)
                    good += said == ""
                    if said:
                        self.assertRegex(said, words)
            self.assertGreater(good, 0, command)

    def test_few_descriptors(self):
        self.few(resource.RLIMIT_NOFILE, [4, 6, 9, 12, 16, 24, 64],
                 words="descriptor|Too many open files|c\\+\\+")

    def test_small_files(self):
        """A full disk of another kind."""
        self.few(resource.RLIMIT_FSIZE, [0, 10, 100_000, 1 << 30], words="too large|File size limit")

    def test_small_stacks(self):
        self.few(resource.RLIMIT_STACK, [128 << 10, 1 << 20, resource.RLIM_INFINITY])

    def test_little_memory(self):
        self.few(resource.RLIMIT_AS, [60 << 20, 80 << 20, 100 << 20, 150 << 20, 2 << 30],
                 words="memory|thread|cannot be run")

    @unittest.skipIf(os.geteuid(), "only root becomes another user")
    def test_few_threads_and_processes(self):
        home = self.tmp / "home"
        home.mkdir()
        self.tmp.chmod(0o755)
        for folder in (self.tmp, home):
            os.chown(folder, OTHER, OTHER)
        try:
            done = subprocess.run([STRETTO, "--version"], user=OTHER, group=OTHER, extra_groups=[], cwd="/",
                                  capture_output=True)
        except PermissionError:
            self.skipTest("this root may not become another user")
        if done.returncode or not os.access(ROOT, os.X_OK):
            self.skipTest("the checkout is closed to other users")
        self.few(resource.RLIMIT_NPROC, [1, 2, 3, 4, 6, 9, 40], words="thread|process|fork", user=OTHER,
                 group=OTHER, extra_groups=[], env={"HOME": str(home)})


if __name__ == "__main__":
    os.environ.pop("RANK", None)
    cli_case.main(__doc__)
