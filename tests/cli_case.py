"""What the tests of the command line share. They are started as TEST.py PATH_OF_STRETTO [unittest arguments], from the
root of the repository."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

STRETTO = os.path.abspath(sys.argv.pop(1)) if len(sys.argv) > 1 else ""
ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = str(ROOT / "checkpoints/debian-llama-draft-1m")
DATA = ROOT / "tests/data"
PROMPT = "libopenmpi-dev:"
HANGS = 1200  # seconds that only a command takes that hangs, also where other processes take the machine


def run(*args, stdin=b"", env=None, stdout=subprocess.PIPE):
    """One run of the command, in an environment without the tester's own STRETTO_ variables."""
    clean = {k: v for k, v in os.environ.items()
             if not k.startswith("STRETTO_") or k == "STRETTO_CACHE_DIR"}
    clean.update(env or {})
    return subprocess.run([STRETTO, *map(str, args)], input=stdin, env=clean, stdout=stdout,
                          stderr=subprocess.PIPE, timeout=HANGS, cwd=ROOT)


class CliCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="stretto-cli-")
        self.addCleanup(folder.cleanup)
        self.tmp = pathlib.Path(folder.name)

    def good(self, *args, **kwargs):
        done = run(*args, **kwargs)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return done

    def json_of(self, *args, keys, **kwargs):
        """stdout holds one JSON object with exactly these keys, and nothing else."""
        done = self.good(*args, "--json", **kwargs)
        self.assertEqual(done.stdout.count(b"\n"), 1)
        value = json.loads(done.stdout)
        self.assertEqual(sorted(value), sorted(keys))
        return value

    def refused(self, *args, says=(), code=2, lines=1, **kwargs):
        """The exit code, nothing on stdout, and one line on stderr that names what is wrong."""
        done = run(*args, **kwargs)
        # Where other processes take the machine a proof may say that it goes on.
        text = re.sub(r"(?m)^stretto: proving .* so far\n", "", done.stderr.decode())
        self.assertEqual(done.returncode, code, f"{args}: {text}")
        self.assertEqual(done.stdout or b"", b"", args)
        for words in [says] if isinstance(says, str) else says:
            self.assertIn(words, text)
        self.assertTrue(text.startswith("stretto: "), text)
        if lines:
            self.assertEqual(text.count("\n"), lines, text)
        return text


def main(usage):
    if not STRETTO:
        sys.exit(usage)
    unittest.main(verbosity=2)
