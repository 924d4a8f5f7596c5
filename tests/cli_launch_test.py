"""launch, and commands that run one process per rank. Usage: cli_launch_test.py PATH_OF_STRETTO [unittest arguments],
from the root of the repository."""

import json
import os
import signal

import cli_case
from cli_case import DATA, MODEL, PROMPT, STRETTO, run, CliCase


class LauncherTest(CliCase):
    """The kind of world changes no result."""

    def test_generates_the_same_tokens(self):
        args = ["generate", "--model", MODEL, "--prompt", PROMPT, "--max-tokens", 12, "--tp", 3,
                "--dtype", "float32", "--json"]
        threads = json.loads(self.good(*args).stdout)
        done = self.good(*args, "--launcher", "processes")
        self.assertEqual(done.stdout.count(b"\n"), 1)
        processes = json.loads(done.stdout)
        for key in ("prompt_token_ids", "token_ids", "text", "finish_reason"):
            self.assertEqual(processes[key], threads[key])

    def test_scores_bit_for_bit_alike(self):
        args = ["score", "--model", MODEL, "--file", DATA / "score_docs.txt", "--tp", 2, "--json",
                "--max-tokens-per-doc", 24]
        threads = self.good(*args).stdout
        self.assertEqual(self.good(*args, "--launcher", "processes").stdout, threads)
        # As torchrun would: the processes are there already.
        done = self.good("launch", "-n", 2, "--", STRETTO, *args, "--launcher", "processes")
        self.assertEqual(done.stdout, threads)

    def test_bench(self):
        got = json.loads(self.good("bench", "gemm_ar", "--ranks", 3, "--m", 64, "--n", 64, "--k", 64,
                                   "--samples", 5, "--launcher", "processes", "--json").stdout)
        self.assertEqual(len(got["samples"]), 5)
        self.assertGreater(min(got["samples"]), 0)
        self.assertTrue(got["checked"])

    def test_refusals_come_once(self):
        generate = ["generate", "--model", MODEL, "--prompt", PROMPT, "--tp", 2, "--launcher"]
        self.refused(*generate, "fibres", says=["--launcher", "fibres"])
        self.refused(*generate, "processes", "--trace", self.tmp / "t.json", says="--trace")
        self.refused(*generate, "processes", "--dtype", "float64", says="float64")
        self.refused(*generate, "processes", env={"RANK": "0", "WORLD_SIZE": "1"},
                     says=["2 ranks", "WORLD_SIZE says 1"])
        self.refused(*generate, "processes", env={"RANK": "0"}, says="WORLD_SIZE is not set")
        self.refused(*generate, "processes", env={"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1",
                                                  "STRETTO_TIMEOUT_MS": "300"},
                     says=["rank 0 did not answer at 127.0.0.1:1718"], code=3)


class LaunchTest(CliCase):
    def test_runs_a_command_per_rank(self):
        done = self.good("launch", "-n", 3, "--", "sh", "-c", "echo $RANK of $WORLD_SIZE")
        self.assertEqual(sorted(done.stdout.decode().splitlines()), ["0 of 3", "1 of 3", "2 of 3"])

    def test_arguments_arrive_as_they_were_written(self):
        given = ["[1,2]", "[]", "[x]", "", "a b", "--", "-n", "it's", "\"", "{\"a\":[1]}", "x=y"]
        done = self.good("launch", "-n", 1, "--", "printf", "%s\\n", *given)
        self.assertEqual(done.stdout.decode().splitlines(), given)

    def test_input_goes_to_rank_0(self):
        done = self.good("launch", "-n", 2, "--", "sh", "-c", "cat", stdin=b"words")
        self.assertEqual(done.stdout, b"words")

    def test_the_first_failure_is_the_exit_code(self):
        done = run("launch", "-n", 2, "--grace-ms", 100, "--", "sh", "-c",
                   "[ $RANK = 1 ] && exit 9; sleep 60")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (9, b"", b""))
        done = run("launch", "-n", 1, "--", "/no/such/command")
        self.assertEqual(done.returncode, 127)
        self.assertIn(b"cannot start '/no/such/command'", done.stderr)

    def test_a_process_that_is_killed_is_named(self):
        done = run("launch", "-n", 2, "--grace-ms", 100, "--", "sh", "-c",
                   "[ $RANK = 1 ] && kill -9 $$; sleep 60")
        self.assertEqual((done.returncode, done.stdout), (128 + 9, b""))
        self.assertEqual(done.stderr.decode(), "stretto: rank 1 was ended by signal 9 (Killed)\n")

    def test_who_was_killed_explains_failures_of_others_that_ended_before(self):
        done = run("launch", "-n", 3, "--", "sh", "-c",
                   "[ $RANK = 1 ] && { sleep 0.1; kill -9 $$; }; exit 3")
        self.assertEqual((done.returncode, done.stdout), (128 + 9, b""))
        self.assertEqual(done.stderr.decode(), "stretto: rank 1 was ended by signal 9 (Killed)\n")

    def test_all_end_at_once(self):
        """None has the time to tell of another's end, however many there are: each of them waits for that of rank 0."""
        for number in ("PIPE", "TERM", "INT"):
            for _ in range(4):
                fifo = self.tmp / f"ends{number}{_}"
                os.mkfifo(fifo)
                # All of them wait before the signal comes.
                script = (f"if [ $RANK = 0 ]; then exec 3> {fifo}; sleep 0.3; kill -{number} $PPID; sleep 60; "
                          f"else {{ echo waits >&2; read word; }} < {fifo}; echo told >&2; fi")
                done = run("launch", "-n", 24, "--", "sh", "-c", script)
                said = done.stderr.decode().split()
                self.assertEqual((done.returncode, said.count("told")), (128 + signal.Signals[f"SIG{number}"], 0))
                self.assertEqual(said.count("waits"), 23)

    def test_refusals(self):
        self.refused("launch", "--", "true", says="--ranks")
        self.refused("launch", "-n", 0, "--", "true", says="--ranks")
        self.refused("launch", "-n", 2, says="command")

    def test_a_rank_that_dies_is_named_by_the_others(self):
        """The whole command, one of whose processes is killed once it has the memory of all three for its times."""
        script = ("if [ $RANK = 1 ]; then { until [ $(grep -c 'stretto times' /proc/$$/maps) = 3 ]; do "
                  "kill -0 $$ || exit; sleep 0.05; done; sleep 0.2; kill -9 $$; } & fi; "
                  f"exec {STRETTO} \"$@\"")
        done = run("launch", "-n", 3, "--", "sh", "-c", script, "stretto", "bench", "gemm_ar",
                   "--ranks", 3, "--samples", 100000, "--launcher", "processes")
        self.assertEqual(done.returncode, 128 + 9, done.stderr.decode())
        faults = [line for line in done.stderr.decode().splitlines() if "fault" in line]
        self.assertEqual(len(faults), 2, done.stderr.decode())
        for line in faults:
            self.assertIn("rank 1 died: process", line)


if __name__ == "__main__":
    os.environ.pop("RANK", None)
    cli_case.main(__doc__)
