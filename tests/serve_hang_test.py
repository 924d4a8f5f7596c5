"""A rank of `stretto serve` that never returns: its thread is stopped from outside, as a debugger does. Usage:
serve_hang_test.py PATH_OF_STRETTO [unittest arguments], from the root of the repository. If this fails, a server that
answers nobody says that it is healthy, or does not end when it is told to."""

import ctypes
import json
import os
import pathlib
import signal
import threading
import time
import unittest

import cli_case
from serve_case import WAIT, Server, ServeCase

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
WALL = 0x40000000  # waitpid() of threads that are traced
LITTLE = 25  # seconds that a loaded machine may take beside what it is told
FAULT = 3    # the exit code


def ptrace(request, thread):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes, libc.ptrace.restype = [ctypes.c_long] * 4, ctypes.c_long
    if libc.ptrace(request, thread, 0, 0) != 0:
        error = OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        if isinstance(error, PermissionError):
            raise unittest.SkipTest(f"threads of other processes cannot be stopped here: {error}")
        raise error


class Stopped:
    """The thread of that name stands still until go_on(), or until its process ends. Of the caller's thread."""

    def __init__(self, test, server, name):
        self.process = server.process
        tasks = pathlib.Path(f"/proc/{server.process.pid}/task").iterdir()
        named = [task for task in tasks if (task / "comm").read_text().strip() == name]
        self.task = min(named, key=lambda task: int(task.name))  # threads that it makes inherit its name
        self.thread = int(self.task.name)
        ptrace(PTRACE_SEIZE, self.thread)
        ptrace(PTRACE_INTERRUPT, self.thread)
        server.until(lambda: (self.task / "stat").read_text().rsplit(")", 1)[1].split()[0] == "t", f"{name} stands")
        os.waitpid(self.thread, WALL)
        test.stopped = self
        test.addCleanup(self.end)

    def go_on(self):
        ptrace(PTRACE_DETACH, self.thread)

    def end(self):
        """Whatever the test has come to."""
        if self.process.poll() is None:
            self.process.kill()
        self.reap()

    def reap(self):
        """Until its end is taken note of, nobody sees that of its process."""
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            try:
                thread, status = os.waitpid(self.thread, WALL | os.WNOHANG)
            except ChildProcessError:
                return
            if thread != 0 and not os.WIFSTOPPED(status):
                return
            time.sleep(0.01)
        raise AssertionError("the process does not end")


class HangCase(ServeCase):
    def start(self, *args, timeout_ms=1000, env=None, **more):
        self.ready_file = self.tmp / "ready"
        server = self.enterContext(Server("--ready-file", self.ready_file, "--shutdown-timeout", 1, *args,
                                          env={"STRETTO_TIMEOUT_MS": str(timeout_ms), **(env or {})}, **more))
        self.assertTrue(self.ready_file.exists())
        return server

    def ask(self, server):
        """A request that is under way, and where its status and answer will be."""
        got = []

        def complete():
            try:
                got.append(server.post("/v1/completions", {"prompt": "x", "max_tokens": 8, "ignore_eos": True}))
            except (OSError, json.JSONDecodeError) as error:  # the end of the server
                got.append((0, error))

        thread = threading.Thread(target=complete)
        thread.start()
        self.addCleanup(thread.join)
        return got

    def is_503(self, server, got, says):
        """The request is told, and so is everybody later."""
        server.until(lambda: got, "an answer")
        self.assertEqual(got[0][0], 503, got)
        self.assertRegex(got[0][1]["error"]["message"], says)
        self.assertRegex(self.health(server, 503), says)
        status, answer = server.post("/v1/completions", {"prompt": "x"})
        self.assertEqual(status, 503)
        self.assertRegex(answer["error"]["message"], says)

    def health(self, server, status):
        got, _, data = server.call("GET", "/health")
        self.assertEqual(got, status, data)
        return "" if status == 200 else json.loads(data)["error"]["message"]

    def ends(self, server, seconds, says, sent=signal.SIGTERM):
        """With the code of a fault, and a last line that says so."""
        begin = time.monotonic()
        if sent is not None:
            server.process.send_signal(sent)
        self.stopped.reap()
        code, out, err = server.wait()
        self.assertLess(time.monotonic() - begin, seconds + LITTLE)
        self.assertEqual((code, out), (FAULT, b""), err)
        self.assertRegex(err.splitlines()[-1], "^stretto: fault: " + says)
        self.assertFalse(self.ready_file.exists())
        return err


class CpuTest(HangCase):
    def test_a_rank_that_others_wait_for(self):
        server = self.start("--tp", 2)
        Stopped(self, server, "rank 1")
        self.is_503(server, self.ask(server), "since then these ranks have not returned from their step: 1$")
        err = self.ends(server, 1, "the engine died of ranks that do not return")
        self.assertEqual(err.count("the engine has died"), 1, err)
        self.assertLessEqual(err.count("neither wait nor return"), 1, err)

    def test_a_rank_that_nobody_waits_for(self):
        server = self.start("--step-timeout", 1)
        Stopped(self, server, "rank 0")
        self.health(server, 200)  # it has nothing to do
        self.is_503(server, self.ask(server), r"a step has not ended for 1 s \(--step-timeout\)$")
        self.ends(server, 1, "the engine died of ranks that do not return", signal.SIGINT)

    def test_a_process_that_was_stopped_goes_on(self):
        """As a container that was paused: that time is nobody's."""
        server = self.start("--step-timeout", 8)
        rank = Stopped(self, server, "rank 0")  # so that a step is under way all the time
        got = self.ask(server)
        server.until(lambda: server.stats()["waiting"] + server.stats()["running"] == 1, "it is there")
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(9)
        server.process.send_signal(signal.SIGCONT)
        time.sleep(1)
        self.health(server, 200)
        rank.go_on()
        server.until(lambda: got, "an answer")
        self.assertEqual(got[0][0], 200, got)
        self.assertEqual(server.stop()[0], 0)

    def test_the_end_comes_before_it_is_noticed(self):
        server = self.start("--tp", 2, timeout_ms=600_000)
        Stopped(self, server, "rank 1")
        got = self.ask(server)
        server.until(lambda: server.stats()["running"] == 1, "it runs")
        self.health(server, 200)
        self.ends(server, 1 + 5, "the engine's threads do not end")
        self.assertNotEqual(got[0][0], 200)

    def test_idle_ranks_hold_up_no_end_either(self):
        server = self.start("--tp", 2)
        Stopped(self, server, "rank 1")
        self.ends(server, 1 + 5, "the engine's threads do not end")

    def test_no_thread_can_be_started_again(self):
        """So the process ends, for whoever starts it again; clients hear why."""
        server = self.start("--tp", 2, "--restart-on-fault")
        Stopped(self, server, "rank 1")
        got = self.ask(server)
        self.ends(server, 0, "--restart-on-fault: no thread can be ended", sent=None)
        self.assertEqual(got[0][0], 503, got)
        self.assertIn("have not returned from their step: 1", got[0][1]["error"]["message"])

    def test_ranks_that_return_in_time_start_again(self):
        server = self.start("--tp", 2, "--restart-on-fault", timeout_ms=6000)
        rank = Stopped(self, server, "rank 1")
        got = self.ask(server)
        server.until(lambda: server.call("GET", "/health")[0] == 503, "the fault")
        self.assertIn("the engine has faulted", self.health(server, 503))
        self.assertEqual(got, [])
        rank.go_on()
        server.until(lambda: got, "an answer")
        self.assertEqual(got[0][0], 503, got)
        server.until(lambda: server.call("GET", "/health")[0] == 200, "ready again")
        self.assertEqual(server.metric("stretto:restarts_total"), 1)
        server.complete(prompt="x", max_tokens=3)
        code, _, err = server.stop()
        self.assertEqual(code, 0, err)


@unittest.skipUnless("STRETTO_SIMULATED_GPUS" in os.environ, "for simulated GPUs")
class GpuTest(HangCase):
    def test_who_drives_the_gpus(self):
        server = self.start("--tp", 2, "--dtype", "bfloat16", "--max-num-seqs", 2, "--max-num-batched-tokens", 4,
                            "--max-model-len", 128, "--kv-memory", "1MiB", "--step-timeout", 15, device="cuda",
                            timeout_ms=60_000, env={k: v for k, v in os.environ.items() if k.startswith("STRETTO_")})
        server.complete(prompt="x", max_tokens=2)
        Stopped(self, server, "the engine")
        self.is_503(server, self.ask(server), r"a step has not ended for 15 s \(--step-timeout\)$")
        self.ends(server, 1, "the engine died of ranks that do not return")


if __name__ == "__main__":
    cli_case.main(__doc__)
