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

from playwright.sync_api import Page, sync_playwright

OUT = Path(__file__).parent / "results" / "explore.json"
REPEATED, STARTS = 7, 20
MOVES = {
    "input scale": ("scale", 1.0, 2.0), "noise": ("noise", 0.1, 0.4), "pairs": ("pairs", 8, 20),
    "depth": ("depth", 1, 3), "step size": ("eta", 1.0, 3.0),
    "chosen learner's parameter": ("free", 0.2, 0.8),
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


CURVE = """() => JSON.stringify([...Bokeh.documents[0].get_model_by_name("curve_network").data_source.data.network])"""
DRAWN = """() => {
  const doc = window.Bokeh?.documents[0], figure = doc?.get_model_by_name("task_figure");
  return figure && Bokeh.index.find_one(figure)?.frame?.bbox?.width > 100
    && doc.get_model_by_name("curve_network").data_source.data.x.length > 2;
}"""


def main() -> None:
    starts, loads = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for count in range(STARTS):
            page = browser.new_page(viewport={"width": 1600, "height": 1000})
            begun = time.perf_counter()
            server = subprocess.Popen([sys.executable, "-m", "mesascope", "explore"], stdout=subprocess.PIPE, text=True)
            try:
                loads.append(round(os.getloadavg()[0], 1))
                starts.append(_started(page, server, begun))
                if count == STARTS - 1:
                    page.wait_for_timeout(4000)
                    moves = {"drag a point": _dragged(page)} | {name: _move(page, *own) for name, own in MOVES.items()}
            finally:
                page.close()
                server.terminate()
                server.wait()
                time.sleep(2)  # the processes that end would slow the next start
        browser.close()
    OUT.write_text(json.dumps({"load averages": loads, "starts": starts, "moves": moves}, indent=2) + "\n")
    print(OUT.read_text())


def _started(page: Page, server: subprocess.Popen[str], begun: float) -> dict[str, float]:
    """Seconds from the command to each state of the page."""
    found: dict[str, float] = {}

    def reached(state: str) -> None:
        found[f"{state} (s)"] = round(time.perf_counter() - begun, 1)

    assert server.stdout is not None
    address = re.search(r"http://\S+", server.stdout.readline())
    assert address
    reached("address printed")
    page.goto(address[0], wait_until="commit")
    page.wait_for_function(DRAWN, timeout=120_000)
    reached("page draws")
    before = page.evaluate(CURVE)
    _drag(page, 5)
    page.wait_for_function(f"(before) => ({CURVE})() !== before", arg=before)
    reached("first drag answered")
    page.wait_for_selector("main:not(.waits)", timeout=120_000)
    reached("all panels")
    return found


def _move(page: Page, name: str, one: float | str, other: float | str) -> dict[str, int]:
    """Median milliseconds until the curves and until the numbers of 1,000 tasks are there."""
    page.evaluate(MOVE, [name, other])
    times = []
    for count in range(REPEATED):
        times.append(page.evaluate(MOVE, [name, one if count % 2 == 0 else other]))
        page.wait_for_timeout(300)  # the other panels' numbers
    return {"curves (ms)": _median([one[0] for one in times]), "1,000 tasks (ms)": _median([one[1] for one in times])}


def _drag(page: Page, steps: int) -> None:
    x, y = page.evaluate(PLACE)
    page.mouse.move(x, y)
    page.mouse.down()
    for step in range(steps):
        page.mouse.move(x + 3 * step, y - 2 * step)
        page.wait_for_timeout(60)
    page.mouse.up()


def _dragged(page: Page) -> dict[str, int]:
    _drag(page, 3 * REPEATED)
    page.wait_for_timeout(2000)
    return {"curves (ms)": _median(page.evaluate("mesascope.times"))}


def _median(times: list[float]) -> int:
    return round(statistics.median(times))


if __name__ == "__main__":
    main()
