"""Programs with a number that cannot be meant: every reader says so, or copes, within seconds of processor time and
without taking the machine's memory. Usage: cli_hostile_test.py PATH_OF_STRETTO [unittest arguments], from the root of
the repository."""

import resource

import cli_case
from cli_case import run, CliCase

MOST = 2**63 - 1
SECONDS = 60  # of a processor; all but a few take a fraction of one
MEMORY = 12 << 30

# What a number is replaced by, in which example, and words of the message; none: some reader may cope. Where a launch
# would take too many operations, that is noticed after half a minute of them, so one reader has to do.
VARIANTS = {
    "04_slots": [
        ("%send_tile < 8", f"%send_tile < {2**31}", "operations"),
        ("%send_tile < 8", f"%send_tile < {2**62}", "tiles"),
        ("%send_tile < 8", "%send_tile < -5", "tiles"),
        ("%send_tile < 8", "%send_tile < 0", "sent"),
        ("@in : f32[500, 64]", "@in : f32[-1, 64]", "dimension of -1"),
        ("@in : f32[500, 64]", f"@in : f32[{2**32}, {2**32}]", "bytes"),
        ("@in[%send_tile * 64", f"@in[%send_tile * {MOST} * 2", "leaves 64 bits"),
        ("@in[%send_tile * 64", f"@in[{MOST} - %send_tile", "box begins at"),
        ("@in[%send_tile * 64", "@in[5 / (%send_tile - 3)", "divided by zero"),
        ("@in[%send_tile * 64", "@in[5 % (%send_tile - 3)", "divided by zero"),
        ("channels 2 per_source", f"channels {2**24}", "channels"),
        ("channels 2 per_source", f"channels {2**20}", ""),
        ("by 1 ", f"by {2**62} ", "amount"),
        (">= %send_tile + 1", f">= %send_tile + {MOST - 8}", "a launch adds only"),
        ("on (%rank + 1) % 2 tile", "on (%rank + 1) % 1000000007 tile", "ranks 0 to 1"),
        ("world 2", "world 1000000", "world size"),
    ],
    "03_ring_pass": [
        ("loop %i from 1 to 2", f"loop %i from 1 to {2**62}", "arrived"),
        ("loop %i from 1 to 2", f"loop %i from -{MOST} to {MOST}", ""),
    ],
    "02_ag_gemm": [
        ("loop %i_1 from 0 to 2 ", f"loop %i_1 from 0 to {2**62} ", ""),
        ("tile_rows 32", "tile_rows 0", "tiles of 0 rows"),
    ],
    "06_route": [
        ("contract range 0, 2", f"contract range 0, {MOST}", "does not exist"),
        ("contract range 0, 2", f"contract range -{MOST}, {MOST}", "does not exist"),
        ("contract range 0, 2", "contract range 5, 2", "no value is from 5 to below 2"),
    ],
}
READERS = {
    "prove": ["prove"],
    "predict": ["predict", "--machine", "h200x2", "--ranks", 2],
    "schedule": ["explain", "--ranks", 2, "--emit", "schedule-ir"],
    "instances": ["explain", "--ranks", 2, "--emit", "instances"],
    "cuda": ["explain", "--ranks", 2, "--emit", "cuda"],
    "bench": ["bench", "--ranks", 2, "--samples", 1],
}


class HostileTest(CliCase):
    def one(self, file, reader, says):
        """0, or 1 or 2 with a message; never a crash, an internal error or a hang."""
        command, *options = READERS[reader]
        done = run(command, file, *options)
        said = done.stderr.decode()
        self.assertIn(done.returncode, (0, 1, 2), f"{reader}: {said}")
        if done.returncode != 0:
            self.assertRegex(said, r"(?m)^stretto: (error|rejected): ")
        if says and (reader in ("prove", "bench") or says == "operations"):
            self.assertNotEqual(done.returncode, 0, reader)
            self.assertIn(says, said, reader)

    def test_every_reader_ends_with_a_message_or_a_result(self):
        # What takes more is killed, which no exit code above is; the test itself takes less.
        for what, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, SECONDS)):
            resource.setrlimit(what, (most, resource.getrlimit(what)[1]))
        for example, variants in VARIANTS.items():
            text = self.good("explain", f"examples/{example}.cc", "--ranks", 2, "--emit", "tile-ir").stdout.decode()
            for number, (was, now, says) in enumerate(variants):
                self.assertIn(was, text)
                file = self.tmp / f"{example}_{number}.ir"
                file.write_text(text.replace(was, now))
                for reader in ["predict"] if says == "operations" else READERS:
                    with self.subTest(f"{example}: {now}", reader=reader):
                        self.one(file, reader, says)


if __name__ == "__main__":
    cli_case.main(__doc__)
