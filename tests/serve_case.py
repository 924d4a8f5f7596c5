"""A server under test and clients of it, by the standard library alone."""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import sys
import tempfile
import time

import cli_case
from cli_case import MODEL, STRETTO, CliCase

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
from server_process import ServerProcess

WAIT = int(os.environ.get("STRETTO_TEST_WAIT", 120))  # seconds that anything may take on a loaded machine


class Server:
    """`stretto serve` on a free port; stops when it leaves its `with`. With `waits` false it need not be ready, and
    `port` is one that is free. `before` is called in its process before it starts."""

    def __init__(self, *args, model=MODEL, env=None, stderr=None, device="cpu", port=0, waits=True, before=None):
        clean = {k: v for k, v in os.environ.items()
                 if not k.startswith("STRETTO_") or k == "STRETTO_CACHE_DIR"}
        clean.update(env or {})
        self.err = tempfile.TemporaryFile()
        command = [STRETTO, "serve", "--model", model, "--port", port, "--device", device, *args]
        self.server = ServerProcess(command, env=clean, stderr=stderr or self.err, cwd=cli_case.ROOT,
                                    preexec_fn=before)
        self.process, self.port = self.server.process, port
        if waits:
            self.wait_until_ready()

    def wait_until_ready(self):
        try:
            self.server.wait_until_ready(WAIT)
        except ServerProcess.NotReady as error:
            raise AssertionError(f"{error} {self.said()}") from None
        self.port = self.server.port

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.communicate()
        self.err.close()

    def stop(self, sent=signal.SIGTERM):
        """Exit code, what else stood on stdout, and stderr."""
        self.process.send_signal(sent)
        return self.wait()

    def wait(self):
        out, _ = self.process.communicate(timeout=WAIT)
        return self.process.returncode, out, self.said()

    def said(self):
        """All of stderr so far."""
        self.err.seek(0)
        return self.err.read().decode()

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=WAIT)

    def call(self, method, path, body=None, headers=None):
        """Status, headers and body of an answer."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port,
                                                           timeout=WAIT)) as connection:
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            connection.request(method, path, data, headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

    def post(self, path, body, headers=None):
        status, _, data = self.call("POST", path, body, headers)
        return status, json.loads(data)

    def complete(self, **body):
        status, answer = self.post("/v1/completions", body)
        if status != 200:
            raise AssertionError(f"{status}: {answer}")
        return answer

    def stream(self, path="/v1/completions", **body):
        """The events of an answer, [DONE] checked and left out."""
        status, headers, data = self.call("POST", path, {**body, "stream": True})
        if status != 200 or not headers["Content-Type"].startswith("text/event-stream"):
            raise AssertionError(f"{status}: {data}")
        events = [event for event in data.decode().split("\n\n") if event and not event.startswith(":")]
        if events[-1] != "data: [DONE]":
            raise AssertionError(events[-1])
        return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]

    def raw(self, data, half_close=False):
        """What comes back for these bytes until the server closes, or a second says nothing."""
        with self.connect() as sock:
            sock.sendall(data)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
            got = b""
            sock.settimeout(1)
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                while piece := sock.recv(65536):
                    got += piece
            return got

    def metric(self, name):
        """The sum over its labels."""
        _, _, data = self.call("GET", "/metrics")
        return sum(float(line.rsplit(" ", 1)[1]) for line in data.decode().splitlines()
                   if line.startswith(name) and line[len(name)] in "{ ")

    def stats(self):
        return json.loads(self.call("GET", "/stats")[2])

    def until(self, condition, what):
        end = time.monotonic() + WAIT
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"never: {what}")
            time.sleep(0.01)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


class ServeCase(CliCase):
    def refusal(self, server, body, param=None, status=400, path="/v1/completions", headers=None):
        """The error says which field, in the API's form."""
        got, answer = server.post(path, body, headers)
        self.assertEqual(got, status, answer)
        error = answer["error"]
        self.assertEqual(sorted(error), ["code", "message", "param", "type"])
        self.assertEqual(error["code"], status)
        self.assertEqual(error["param"], param, error)
        self.assertLess(len(error["message"]), 600)
        return error["message"]
