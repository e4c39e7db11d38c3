"""Response times of `mesascope explore` in chromium: ``python benchmarks/explore.py``, with Playwright and chromium.

Each move is repeated; a time is the median from the move in the browser until its numbers are in the browser;
the browser runs before the command starts.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

OUT = Path(__file__).parent / "results" / "explore.json"
REPEATED = 7
MOVES = {
    "input scale": ("scale", 1.0, 2.0), "noise": ("noise", 0.1, 0.4), "pairs": ("pairs", 8, 20),
    "depth": ("depth", 1, 3), "step size": ("eta", 1.0, 3.0), "own parameter": ("free", 0.2, 0.8),
    "learner": ("chosen", "zero", "gaussian kernel-smoother"),
}  # fmt: skip
MOVE = """([name, value]) => new Promise((done) => {
  const doc = Bokeh.documents[0], models = [...doc._all_models.values()];
  const model = models.find((one) => one.name === name && "value" in one);
  const source = (own) => doc.get_model_by_name(own).renderers[0].data_source.properties.data.change;
  const curves = doc.get_model_by_name("curve_network").data_source.properties.data.change;
  const parting = source("parting_left");
  const since = performance.now(); let first = 0;
  const seen = () => { first = performance.now() - since; curves.disconnect(seen); };
  const measured = () => { parting.disconnect(measured); done([first, performance.now() - since]); };
  curves.connect(seen); parting.connect(measured);
  setTimeout(() => done([NaN, NaN]), 10000);
  model.value = value;
})"""
PLACE = """() => {
  const doc = Bokeh.documents[0], view = Bokeh.index.find_one(doc.get_model_by_name("task_figure"));
  const box = view.el.getBoundingClientRect(), data = doc.get_model_by_name("points").data_source.data;
  return [box.left + view.frame.x_scale.compute(data.x[0]), box.top + view.frame.y_scale.compute(data.y[0])];
}"""


def main() -> None:
    command = [sys.executable, "-m", "mesascope", "explore"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        begun = time.perf_counter()
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            record = _measured(page, server, begun)
        finally:
            server.terminate()
            browser.close()
    OUT.write_text(json.dumps(record, indent=2) + "\n")
    print(OUT.read_text())


def _measured(page: Page, server: subprocess.Popen[str], begun: float) -> dict[str, Any]:
    assert server.stdout is not None
    address = re.search(r"http://\S+", server.stdout.readline())
    assert address
    start = {"address printed (s)": time.perf_counter() - begun}
    page.goto(address[0], wait_until="commit")
    page.wait_for_selector("h1")
    start["waiting page shown (s)"] = time.perf_counter() - begun
    page.wait_for_selector("#task", timeout=120_000)
    start["page sent (s)"] = time.perf_counter() - begun
    page.wait_for_selector("body.ready", timeout=120_000)
    start["page usable (s)"] = time.perf_counter() - begun
    page.wait_for_timeout(4000)
    load = os.getloadavg()[0]
    found = {"drag a point": _drag(page)} | {name: _move(page, *own) for name, own in MOVES.items()}
    start = {name: round(seconds, 1) for name, seconds in start.items()}
    return {"load average": round(load, 1), "start": start, "moves": found}


def _move(page: Page, name: str, one: float | str, other: float | str) -> dict[str, int]:
    """Median milliseconds until the curves and until the numbers of 1,000 tasks are there."""
    page.evaluate(MOVE, [name, other])
    times = []
    for count in range(REPEATED):
        times.append(page.evaluate(MOVE, [name, one if count % 2 == 0 else other]))
        page.wait_for_timeout(300)  # the other panels' numbers
    return {"curves (ms)": _median([one[0] for one in times]), "1,000 tasks (ms)": _median([one[1] for one in times])}


def _drag(page: Page) -> dict[str, int]:
    x, y = page.evaluate(PLACE)
    page.mouse.move(x, y)
    page.mouse.down()
    for step in range(3 * REPEATED):
        page.mouse.move(x + 3 * step, y - 2 * step)
        page.wait_for_timeout(60)
    page.mouse.up()
    page.wait_for_timeout(2000)
    return {"curves (ms)": _median(page.evaluate("mesascope.times"))}


def _median(times: list[float]) -> int:
    return round(statistics.median(times))


if __name__ == "__main__":
    main()
