"""How busy nvidia-smi calls this machine's GPUs, or those of $CUDA_VISIBLE_DEVICES, once a second."""

import os
import statistics
import subprocess
import threading

QUERY = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
VISIBLE = ["-i", os.environ["CUDA_VISIBLE_DEVICES"]] if os.environ.get("CUDA_VISIBLE_DEVICES") else []


class GpuBusy:
    """`with GpuBusy() as busy: ...`; then busy.percent is the mean of all samples, None where there are none."""

    def start(self):
        self.percent, self._samples, self._done = None, [], threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def stop(self):
        self._done.set()
        self._thread.join(15)
        self.percent = statistics.mean(self._samples) if self._samples else None

    def _watch(self):
        while not self._done.wait(1):
            try:
                run = subprocess.run(QUERY + VISIBLE, capture_output=True, text=True, timeout=10)
            except (OSError, subprocess.TimeoutExpired):
                continue
            if run.returncode == 0:
                self._samples += [float(line) for line in run.stdout.split()]

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()
