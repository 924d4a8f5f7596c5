#!/usr/bin/env python3
"""How soon the page shows something while 200 requests run: from the navigation's start to the first text, in headless
Chromium, nine times. Needs what `./check` installs.

    build/python/bin/python bench/page_paint.py build/bin/stretto [ROUNDS]      alone on the machine
"""

import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))

from browser_case import Browser
from cli_case import ROOT, STRETTO
from serve_case import Server

MODEL = ROOT / "checkpoints/debian-llama-8m"
SHOWN = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def paints(server, browser):
    """Milliseconds of nine first paints, and how many requests ran before each."""
    took, running = [], []
    for _ in range(9):
        browser.driver.get("about:blank")
        browser.command("Network.clearBrowserCache")
        running.append(server.stats()["running"])
        browser.driver.get(f"http://127.0.0.1:{server.port}")
        took.append(browser.until(lambda: browser.run(SHOWN), "a paint"))
    return took, running


def main():
    with Server("--max-num-seqs", 256, model=MODEL) as server, Browser() as browser:
        url = f"http://127.0.0.1:{server.port}"
        load = subprocess.Popen([STRETTO, "load", "--url", url, "--requests", "100000", "--concurrency", "200",
                                 "--input-tokens", "16", "--output-tokens", "500"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            server.until(lambda: server.stats()["running"] == 200, "200 requests at once")
            for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 3):
                took, running = paints(server, browser)
                print(f"median {statistics.median(took):.0f} ms of {sorted(round(ms) for ms in took)}, "
                      f"{min(running)} to {max(running)} requests running", flush=True)
        finally:
            load.kill()
            load.wait()


if __name__ == "__main__":
    main()
