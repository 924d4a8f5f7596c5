"""A server as a process of its own: started, waited for until it answers, stopped. Of tests and benchmarks."""

import select
import signal
import subprocess
import time
import urllib.error
import urllib.request


class ServerProcess:
    """Without `url` the server is `stretto serve --port 0`, whose first line says where it listens; another's `url` is
    asked for its health until it answers. Other options are those of Popen."""

    class NotReady(Exception):
        pass

    def __init__(self, command, url=None, **options):
        self._begin = time.monotonic()
        self.url = url
        self.process = subprocess.Popen([str(word) for word in command],
                                        stdout=subprocess.DEVNULL if url else subprocess.PIPE, **options)

    def wait_until_ready(self, wait_s):
        """NotReady, and the process is ended, where it does not answer in time. Returns the server."""
        try:
            self.url = self._healthy(self.url, time.monotonic() + wait_s) if self.url else self._listening(wait_s)
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        self.port = int(self.url.rsplit(":", 1)[1])
        self.start_s = time.monotonic() - self._begin
        return self

    def _listening(self, wait_s):
        ready, _, _ = select.select([self.process.stdout], [], [], wait_s)
        line = self.process.stdout.readline().decode() if ready else ""
        if not line.startswith("listening on http://127.0.0.1:"):
            raise self.NotReady(f"no server, but {line!r} after at most {wait_s} s")
        return line.split()[-1]

    def _healthy(self, url, end):
        while time.monotonic() < end:
            try:
                urllib.request.urlopen(url + "/health", timeout=1).read()
                return url
            except (urllib.error.URLError, OSError):
                if self.process.poll() is not None:
                    raise self.NotReady(f"{self.process.args[0]} ended with {self.process.returncode}") from None
                time.sleep(0.1)
        raise self.NotReady(f"{self.process.args[0]} does not answer")

    def stop(self, wait_s=30):
        """Asks it to end, and ends it where it does not."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
