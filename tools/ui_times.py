"""How quick prgec ui is: the list of 200 runs, a run of 100,000 steps, and the delay of a live curve.

    python tools/ui_times.py [--report docs/reports/ui.md]

Needs the packages of the extra `ui`, and for what a browser sees Playwright and a chromium.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prgec.core.machine.describe import describe_machine

NUM_RUNS, LONG_STEPS, REPEATS, MARKS = 200, 100_000, 10, 20
WRITE_S = 0.2
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
_SHOWN = """(shown) => {
    const now = parseInt(document.querySelector(".now span:nth-child(2)")?.innerText ?? "0");
    return now > shown ? now : 0;
}"""
# The measurements, and their limits in seconds.
AIMS = {
    "first paint of the list, median": 1.0,
    "first paint of the list, longest": 1.0,
    "the list of 200 runs, median": 0.3,
    "the list of 200 runs, first request of a server": 0.3,
    "a run of 100,000 steps, median": 1.0,
    "a run of 100,000 steps, first request of a server": 3.0,
    "longest task of the browser with the run of 100,000 steps": 0.2,
    "delay of a live curve, median": 2.0,
    "delay of a live curve, longest": 2.0,
}


def until(ask: Callable[[], Any]) -> Any:
    """Ask until there is an answer; the page's policy lets nobody wait inside it."""
    while not (answer := ask()):
        time.sleep(0.01)
    return answer


def write_run(folder: Path, num_steps: int) -> None:
    """Write the files of a run that ended."""
    folder.mkdir(parents=True)
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, num_steps + 1):
            loss = 0.2 + math.exp(-3 * step / num_steps) + 0.05 * math.sin(37.0 * step)
            line = {"step": step, "loss": loss, "lr": 3e-3, "g": [0.1, -0.2, 0.3, 0.4], "seconds": 0.01 * step}
            file.write(json.dumps(line) + "\n")
    sites = [{"name": f"model.layers.{n}.self_attn.q_proj", "index": n} for n in range(60)]
    manifest = {"model": "demo", "backend": "xnnpack", "method": "exact", "sites": sites}
    summary = {"status": "complete", "contract": 2, "steps": num_steps, "loss": 0.2, "accuracy": 0.9}
    options = {"lr": 3e-3, "seed": 0, "steps": num_steps}
    (folder / "run.json").write_text(json.dumps({**summary, "options": options, "manifest": manifest}))


@contextmanager
def running(root: Path) -> Iterator[str]:
    """Start `prgec ui`; yield its address."""
    command = [sys.executable, "-m", "prgec", "ui", str(root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait()


def ask(address: str, path: str) -> tuple[float, str]:
    """Request a page; return the seconds and the page."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection("127.0.0.1", parts.port)
    began = time.perf_counter()
    connection.request("GET", path, headers={"Cookie": f"prgec-{parts.port}={parts.query.removeprefix('token=')}"})
    text = connection.getresponse().read().decode()
    return time.perf_counter() - began, text


def measure_server(root: Path, found: dict[str, float]) -> str:
    """Measure answers; return the path of the long run's page."""
    with running(root) as address:
        found["the list of 200 runs, first request of a server"], text = ask(address, "/")
        assert text.count('name="run"') == NUM_RUNS + 1
        long = re.search(r'href="(/runs/[0-9a-f]{16})">long<', text)
        assert long is not None
        found["the list of 200 runs, median"] = statistics.median(ask(address, "/")[0] for _ in range(REPEATS))
        found["a run of 100,000 steps, first request of a server"], _ = ask(address, long[1])
        found["a run of 100,000 steps, median"] = statistics.median(ask(address, long[1])[0] for _ in range(REPEATS))
        return long[1]


def measure_browser(root: Path, path: str, found: dict[str, float]) -> None:
    """Measure what a browser sees."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with running(root) as address, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.add_init_script(
            "window.busy = [0]; new PerformanceObserver((list) => list.getEntries().forEach((each) => "
            "window.busy.push(each.duration))).observe({type: 'longtask', buffered: true})"
        )
        paints = []
        for _ in range(REPEATS):
            page.goto(address)
            paints.append(until(lambda: page.evaluate(_PAINT)) / 1000)
        found["first paint of the list, median"], found["first paint of the list, longest"] = (
            statistics.median(paints),
            max(paints),
        )
        page.goto(address.partition("?")[0].rstrip("/") + path)
        page.locator("figure").first.wait_for()
        page.wait_for_timeout(1000)
        found["longest task of the browser with the run of 100,000 steps"] = page.evaluate("Math.max(...busy)") / 1000
        # The browser reports only tasks above 50 ms; a test task shows that it does.
        page.evaluate("setTimeout(() => { const end = performance.now() + 200; while (performance.now() < end); })")
        until(lambda: page.evaluate("Math.max(...busy) > 150"))
        _measure_lag(page, root / "live", address, found)
        browser.close()


def _measure_lag(page: Any, folder: Path, address: str, found: dict[str, float]) -> None:
    """Write steps, and see when the page shows them."""
    from prgec.core.machine.folder_lock import FolderLock

    written: dict[int, float] = {}
    done = threading.Event()
    folder.mkdir()
    with FolderLock(folder), (folder / "metrics.partial.jsonl").open("w") as file:

        def write() -> None:
            step = 0
            while not done.wait(WRITE_S):
                step += 1
                file.write(json.dumps({"step": step, "loss": 1 / step, "lr": 0.1, "seconds": WRITE_S * step}) + "\n")
                file.flush()
                written[step] = time.perf_counter()

        writer = threading.Thread(target=write)
        writer.start()
        page.goto(address)
        page.get_by_role("link", name="live", exact=True).click()
        lags, shown = [], 0
        while len(lags) < MARKS:
            # The oldest step of those that come together has waited longest.
            oldest = shown + 1
            shown = until(lambda: page.evaluate(_SHOWN, shown))  # noqa: B023 - called at once
            lags.append(time.perf_counter() - written[oldest])
        done.set()
        writer.join()
    found["delay of a live curve, median"] = statistics.median(lags[1:])
    found["delay of a live curve, longest"] = max(lags[1:])


def main() -> int:
    """Measure, print, and write the report if one is requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path, help="Write the table here.")
    report = parser.parse_args().report
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        for number in range(NUM_RUNS):
            write_run(root / f"run-{number}", 50)
        write_run(root / "long", LONG_STEPS)
        path = measure_server(root, found)
        measure_browser(root, path, found)
    lines = ["| what | measured | aim |", "|---|---|---|"]
    lines += [f"| {what} | {found[what]:.3f} s | {most:g} s |" for what, most in AIMS.items()]
    print("\n".join(lines))
    if report is not None:
        about = describe_machine()
        machine = f"{about['cpu']}, {about['cores']} cores, load {about['load_1min']}"
        remark = (
            f"`python tools/ui_times.py --report {report}` on {machine}. Runs are the tool's own; medians of {REPEATS} "
            f"requests and {MARKS} steps. The browser, a headless chromium, reports only tasks above 50 ms."
        )
        report.write_text("\n".join(["# How quick the page is", "", *textwrap.wrap(remark, 118), "", *lines, ""]))
    return 0 if all(found[what] <= most for what, most in AIMS.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
