#!/usr/bin/env python3
"""./demo without its build. If this fails, who tries stretto first is told to type what does not work.

    tests/demo_test.py STRETTO
"""

import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
STRETTO = pathlib.Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else ROOT / "build" / "bin" / "stretto"
SECONDS = 240


class Demo(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="stretto-demo-")
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name)
        for name in ("tools", "build/bin"):
            (self.tree / name).mkdir(parents=True)
        (self.tree / "demo").write_bytes((ROOT / "demo").read_bytes())
        (self.tree / "tools" / "build").write_text('#!/bin/sh\necho "built: $*"\n', encoding="utf-8")
        for name in ("demo", "tools/build"):
            (self.tree / name).chmod(0o755)
        (self.tree / "checkpoints").symlink_to(ROOT / "checkpoints")
        (self.tree / "build" / "bin" / "stretto").symlink_to(STRETTO)

    def ask(self, line: str) -> dict:
        """What the request answers, once the server is ready."""
        until = time.monotonic() + SECONDS
        while True:
            done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
            loads = done.returncode != 0 or "is loading" in done.stdout
            if not loads or time.monotonic() > until:
                self.assertEqual(done.returncode, 0, done.stderr)
                return json.loads(done.stdout)
            time.sleep(0.5)

    def test_without_a_terminal_it_ends_and_its_last_lines_work(self):
        done = subprocess.run(["./demo", "gcc-doc:"], cwd=self.tree, capture_output=True, text=True, timeout=SECONDS,
                              stdin=subprocess.DEVNULL, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("built: --cpu stretto", done.stdout)
        self.assertRegex(done.stdout, r"gcc-doc: \w+")
        self.assertTrue((self.tree / "build" / "demo.trace.json").is_file())
        serve = re.search(r"a server of this model: +(.+)", done.stdout)[1]
        ask = re.search(r"a request to it: +(.+)", done.stdout)[1]
        server = subprocess.Popen(serve.split(), cwd=self.tree, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self.assertTrue(self.ask(ask)["choices"][0]["text"])
            page = re.search(r"its page, for a browser: +(.+)", done.stdout)[1]
            with urllib.request.urlopen(page) as answer:
                self.assertIn(b"<title>stretto</title>", answer.read())
        finally:
            server.send_signal(signal.SIGTERM)
            self.assertEqual(server.wait(SECONDS), 0)

    def test_on_a_terminal_a_server_is_up_until_it_is_interrupted(self):
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.tree)
            os.execv("./demo", ["./demo"])
        said, until = b"", time.monotonic() + SECONDS
        while b"listening on" not in said:
            self.assertLess(time.monotonic(), until, said.decode(errors="replace"))
            if select.select([terminal], [], [], 1)[0]:
                said += os.read(terminal, 65536)
        text = said.decode(errors="replace").replace("\r", "")
        self.assertTrue(self.ask(re.search(r"a request to it: +(.+)", text)[1])["choices"])
        lines = text.splitlines()
        page = next(i for i, line in enumerate(lines) if "its page, for a browser:" in line)
        self.assertIn("a request to it:", lines[page + 1])  # one below the other
        with urllib.request.urlopen(lines[page].split()[-1]) as answer:
            self.assertIn(b"<title>stretto</title>", answer.read())
        os.write(terminal, b"\x03")
        while True:  # what it says is read, or it waits for that
            try:
                if not os.read(terminal, 65536):
                    break
            except OSError:  # closed
                break
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
