"""Who is measured beside `stretto serve` by bench/gpu/served: a process of its own, waited for with a limit."""

import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time

from gpu_busy import GpuBusy

PROGRAM = pathlib.Path(__file__).resolve().parent / "engines/served_transformers.py"
# Seconds that a load of each way of attention is given. With a mask over the keys of all sequences, a round of 256
# requests of 1,024 tokens would take some minutes.
START_S = 60  # PyTorch and transformers are imported, weights made
SECONDS = {"flash": {"64 at once": 35, "saturation": 60}, "sdpa": {"64 at once": 45}}


def jobs(input_tokens, output_tokens, at_saturation):
    for attention, loads in SECONDS.items():
        concurrency = {"64 at once": 64, "saturation": at_saturation}
        yield {"attention": attention, "input_tokens": input_tokens, "output_tokens": output_tokens, "seed": 1,
               "loads": [{"name": name, "concurrency": concurrency[name], "seconds": seconds,
                          "requests": {"64 at once": 512, "saturation": 6 * at_saturation}[name]}
                         for name, seconds in loads.items()]}


class Process:
    """The program with a job; its messages, None at its end."""

    def __init__(self, program, config, job, environment):
        self._messages = queue.Queue()
        self._process = subprocess.Popen([sys.executable, str(program), str(config), json.dumps(job)],
                                         env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                         text=True, start_new_session=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            if line.startswith("{\"served_transformers\":"):
                self._messages.put(json.loads(line)["served_transformers"])
        self._messages.put(None)

    def next_message(self, until):
        """A message, None at the end, or why there is none, as text."""
        try:
            message = self._messages.get(timeout=max(until - time.monotonic(), 0))
        except queue.Empty:
            return "not done in time"
        if message is None:
            try:
                status = self._process.wait(20)
            except subprocess.TimeoutExpired:
                return "does not end"
            return f"ended with status {status}" if status else None
        return message

    def kill(self):
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait(20)
        self._reader.join(20)
        self._process.stdout.close()


def shown(row):
    if "error" in row:
        return f"FAILED: {row['error']}"
    return (f"{row['output_tokens_per_second']:.0f} tokens/s of {row['requests']} requests, TTFT p50 "
            f"{row['ttft_ms']['p50']:.1f}, TPOT p50 {row['tpot_ms']['p50']:.2f} ms, GPU busy {row['gpu_busy']}")


def rows_of(job, config, seconds, environment=None, program=PROGRAM):
    """Yields a row of each load of the job, with an 'error' where it was not measured, within some `seconds`."""
    until = time.monotonic() + seconds
    process = Process(program, config, {**job, "seconds": seconds}, environment)
    facts, waiting, busy = {"attention": job["attention"]}, [load["name"] for load in job["loads"]], None
    why = None
    try:
        while waiting and why is None:
            message = process.next_message(until)
            if not isinstance(message, dict):
                why = message or "ended early"
            elif "facts" in message:
                facts = message["facts"]
            elif "begin" in message:
                if busy:  # of one that failed and is tried another way
                    busy.stop()
                busy = GpuBusy().start()
            else:
                if busy:
                    busy.stop()
                row = {**facts, "gpu_busy": busy.percent if busy else None, **message["row"]}
                busy = None
                waiting.remove(row["load"])
                yield row
    finally:
        if busy:
            busy.stop()
        process.kill()
    for name in waiting:
        yield {**facts, "load": name, "error": why}


def measure(config, seconds, input_tokens, output_tokens, at_saturation, environment):
    """Yields the rows of transformers, printed as they come; those that get no time have an 'error'."""
    end = time.monotonic() + seconds
    for job in jobs(input_tokens, output_tokens, at_saturation):
        most = START_S + 2 * sum(load["seconds"] for load in job["loads"])  # so that one leaves time to the next
        for row in rows_of(job, config, min(most, max(end - time.monotonic(), 0)), environment):
            print(f"transformers, {job['attention']}, {row['load']}: {shown(row)}", flush=True)
            yield row
