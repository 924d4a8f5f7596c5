"""A headless Chromium for tests of the page, by Debian's chromium-driver and Selenium."""

import json
import os
import pathlib
import shutil
import tempfile
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait
except ImportError:
    webdriver = By = Keys = WebDriverWait = None

from serve_case import WAIT

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = ROOT / "stretto/server/page"
PICTURES = ROOT / "build/page"


def why_none():
    """"" where there is a browser to drive."""
    if webdriver is None:
        return "python3-selenium is not installed"
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        return "chromium and chromium-driver are not installed"
    return ""


class Browser:
    """One window; closed when it leaves its `with`."""

    def __init__(self):
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        self.profile = tempfile.TemporaryDirectory(prefix="stretto-page-")
        for argument in ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                         "--disable-background-networking", "--disable-component-update", "--disable-sync",
                         "--hide-scrollbars", f"--user-data-dir={self.profile.name}"]:
            options.add_argument(argument)
        if os.geteuid() == 0:
            options.add_argument("--no-sandbox")  # Chromium's own rule for root
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        service = webdriver.chrome.service.Service(shutil.which("chromedriver"))
        self.driver = webdriver.Chrome(service=service, options=options)
        self.driver.set_script_timeout(WAIT)
        self.driver.set_page_load_timeout(WAIT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.driver.quit()
        self.profile.cleanup()

    def command(self, name, **arguments):
        return self.driver.execute_cdp_cmd(name, arguments)

    def look(self, width=1280, height=860, scheme="light"):
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                     mobile=False)
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def fresh(self, url):
        """The page as who comes for the first time sees it."""
        self.driver.get("about:blank")
        self.driver.get(url)
        self.run("sessionStorage.clear()")
        self.driver.get("about:blank")
        self.log()
        self.driver.get(url)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector):
        """All of it, also what is not in view."""
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def hover(self, element):
        webdriver.ActionChains(self.driver).move_to_element(element).perform()

    def keys(self, *keys):
        """To whatever has the focus."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def focus(self):
        """Id or text of what has the focus."""
        return self.run("const e = document.activeElement; return e.id || e.textContent")

    def until(self, condition, what):
        return WebDriverWait(self.driver, WAIT, poll_frequency=0.05).until(lambda _: condition(), what)

    def log(self):
        """What the network did since the last time: method and parameters of events."""
        return [json.loads(line["message"])["message"] for line in self.driver.get_log("performance")]

    def complaints(self):
        """Of the browser's console, such as refusals by the policy; failed requests aside."""
        return [line["message"] for line in self.driver.get_log("browser")
                if line["level"] == "SEVERE" and "Failed to load resource" not in line["message"]]

    def picture(self, name):
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.driver.get_screenshot_as_file(str(PICTURES / f"{name}.png"))


STATS = {"version": "1", "model": "scripted", "chat": {"available": True, "missing": ""}, "max_model_len": 512,
         "running": 1, "waiting": 0, "preemptions": 0,
         "cache": {"use": 0.25, "tokens": 4096, "bytes": 1 << 20, "dtype": "float32"},
         "prefix": {"queries": 0, "hits": 0}, "prompt_tokens": 0, "generated_tokens": 0, "requests": []}


class ScriptedServer:
    """The page's files with answers made up by a test: what a model could write, if it wanted to.

    `answers` takes a request's path and body and yields chunks; those of None end the answer before its end.
    """

    def __init__(self, answers, headers):
        self.closed = threading.Event()  # a client went away amid an answer
        self.stats = dict(STATS)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def whole(self, kind, data):
                self.send_response(200)
                for name, value in {**headers, "Content-Type": kind, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                if self.path == "/stats":
                    return self.whole("application/json", json.dumps(outer.stats).encode())
                name = "index.html" if self.path == "/" else self.path.removeprefix("/page/")
                kind = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
                self.whole(kind[name.rsplit(".", 1)[1]], (FILES / name).read_bytes())

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                try:
                    for chunk in answers(self.path, body):
                        if chunk is None:
                            return
                        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
                        self.wfile.flush()
                    self.wfile.write(b"data: [DONE]\n\n")
                except (BrokenPipeError, ConnectionResetError):
                    outer.closed.set()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def needs_browser(case):
    return unittest.skipIf(why_none(), why_none())(case)
