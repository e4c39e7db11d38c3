"""The page of mesascope explore in Debian's chromium, driven by Playwright."""

import asyncio
import re
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from queue import Queue

import pytest
import torch

pytest.importorskip("bokeh", reason="bokeh is not installed: pip install '.[explore]'")

from mesascope.explore.page import complete, fill, subjects
from mesascope.explore.payload import LEARNERS
from mesascope.explore.plots import ROLES
from mesascope.explore.saving import page as saved_page
from mesascope.explore.server import Sessions, serve
from mesascope.explore.setup import Setup
from mesascope.explore.shipped import REGRESSORS
from mesascope.lenses.needs import predict_in_eval
from mesascope.streams import stream
from mesascope.tasks import Context

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "one-step"
PATIENCE = 60_000  # milliseconds, for a busy machine
# Place of a point of a source on the screen, and promise of the next curves after an action.
PLACE = """([source, index]) => {
  const doc = Bokeh.documents[0], figure = doc.get_model_by_name("task_figure"), view = Bokeh.index.find_one(figure);
  const box = view.el.getBoundingClientRect(), data = doc.get_model_by_name(source).data_source.data;
  return [box.left + view.frame.x_scale.compute(data.x[index]), box.top + view.frame.y_scale.compute(data.y[index])];
}"""
CURVE = "(role) => [...Bokeh.documents[0].get_model_by_name('curve_network').data_source.data[role]]"
POINTS = "(name) => [...Bokeh.documents[0].get_model_by_name(name).data_source.data.x]"


@pytest.fixture(scope="module")
def address():
    """A server of the page in a process of its own."""
    command = [sys.executable, "-m", "mesascope", "explore", "--runs", str(RESULTS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        line = server.stdout.readline()
        yield re.search(r"http://127\.0\.0\.1:\d+/", line)[0]
        server.terminate()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "page.html"
    path.write_text(saved_page(subjects()))
    return path


class Visit:
    """A page with what it asked for and what went wrong."""

    def __init__(self, browser, address, width=1600, scheme="light", *, waits=True):
        self.page = browser.new_page(viewport={"width": width, "height": 1000}, color_scheme=scheme)
        self.asked, self.errors = [], []
        self.page.set_default_timeout(PATIENCE)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(address)
        self.page.wait_for_selector("body.ready")
        if waits:
            self.page.wait_for_selector("main:not(.waits)")
        self.page.wait_for_function(
            "() => Bokeh.documents[0].get_model_by_name('curve_network')?.data_source.data.x.length > 2"
        )
        self.page.wait_for_timeout(300)

    def changes(self, action, role="network"):
        """Do something and wait for another curve."""
        curve = f"() => JSON.stringify(({CURVE})('{role}'))"
        before = self.page.evaluate(curve)
        action()
        self.page.wait_for_function(f"(before) => ({curve})() !== before", arg=before)

    def spot(self, source, index):
        """Place of a point once the axes have settled."""
        self.page.wait_for_timeout(500)
        return self.page.evaluate(PLACE, [source, index])

    def drag(self, source, index, right, down):
        x, y = self.spot(source, index)
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        for share in (0.3, 0.6, 1.0):
            self.page.mouse.move(x + share * right, y + share * down)
        self.page.mouse.up()

    def slide(self, name, key="ArrowRight"):
        """Press a key on a slider."""
        handle = self.page.locator(f"#{self.place(name)} .noUi-handle")
        handle.focus()
        self.page.keyboard.press(key)

    def place(self, name):
        """Identifier of the element of a control."""
        return self.page.evaluate(
            "(name) => { const model = [...Bokeh.documents[0]._all_models.values()].find((one) => one.name === name);"
            " const view = Bokeh.index.find_one(model); view.el.id = `at-${name}`; return view.el.id; }", name
        )  # fmt: skip

    def done(self):
        """Close the page; nothing may have gone wrong or outside."""
        assert not self.errors
        assert not [url for url in self.asked if not url.startswith(("http://127.0.0.1", "file://", "data:", "blob:"))]
        self.page.close()


@pytest.fixture(scope="module")
def visit(browser, address):
    found = Visit(browser, address)
    yield found
    found.done()


def test_a_point_is_dragged_added_and_deleted(visit):
    visit.changes(lambda: visit.drag("points", 0, 40, -60))
    visit.changes(lambda: visit.drag("query", 0, 30, 0) or visit.drag("points", 1, 0, 50))
    count = len(visit.page.evaluate(POINTS, "points"))
    x, y = visit.spot("points", 2)
    visit.changes(lambda: visit.page.mouse.click(x + 60, y - 80))
    assert len(visit.page.evaluate(POINTS, "points")) == count + 1
    x, y = visit.spot("points", count)
    visit.page.mouse.click(x, y)
    visit.changes(lambda: visit.page.keyboard.press("Backspace"))
    assert len(visit.page.evaluate(POINTS, "points")) == count


def test_a_point_that_was_held_can_still_be_dragged(visit):
    x, y = visit.spot("points", 0)
    visit.page.mouse.move(x, y)
    visit.page.mouse.down()
    visit.page.wait_for_timeout(500)
    visit.changes(lambda: [visit.page.mouse.move(x + step, y - step) for step in range(12)])
    visit.page.mouse.up()


def test_every_slider_moves_by_keyboard(visit):
    for name in ("scale", "noise", "pairs", "depth"):
        visit.changes(lambda name=name: visit.slide(name))
    for title in ("Input scale", "Angle of the matrix (degrees)"):
        assert visit.page.get_by_role("slider", name=title).count() == 1
    visit.page.locator(f"#{visit.place('subject')} select").select_option(label="two looped layers, 1 input")
    visit.page.wait_for_timeout(500)
    for name in ("eta", "gamma"):
        visit.changes(lambda name=name: visit.slide(name), "algorithm")


def test_curves_are_those_of_the_points_that_a_slider_draws(visit):
    visit.slide("scale", "PageUp")
    visit.page.wait_for_timeout(1500)
    points, query, curve = (visit.page.evaluate(POINTS, name) for name in ("points", "query", "curve_network"))
    assert max(curve) == pytest.approx(1.15 * max(map(abs, points + query)))


def test_another_network_and_another_learner_are_chosen(visit):
    visit.changes(
        lambda: visit.page.locator(f"#{visit.place('subject')} select").select_option(
            label="softmax layer of two heads, 10 inputs"
        )
    )
    visit.page.locator(f"#{visit.place('chosen')} select").select_option(label="gaussian kernel-smoother")
    visit.page.get_by_text("gaussian kernel-smoother (chosen)").first.wait_for(state="attached")


def test_it_breaks(visit):
    visit.page.get_by_role("button", name="Break it").click()
    visit.page.wait_for_function("() => Bokeh.documents[0].get_model_by_name('parting_broken').visible")


def test_a_run_is_opened(visit):
    visit.page.get_by_role("button", name="one-step").click()
    visit.page.get_by_role("button", name="loss-matches-gd").click()
    visit.page.get_by_role("img", name="training").wait_for()


def test_a_point_is_moved_by_keyboard_alone(visit):
    visit.page.get_by_text("Move points by keyboard").focus()
    visit.page.keyboard.press("Enter")
    visit.page.locator(f"#{visit.place('pair')} select").focus()
    visit.page.keyboard.press("ArrowDown")
    visit.page.keyboard.press("Tab")
    visit.page.wait_for_timeout(300)
    field = visit.page.locator(f"#{visit.place('y')} input")
    field.focus()
    visit.page.keyboard.press("Control+A")
    visit.page.keyboard.type("2.5")
    visit.changes(lambda: visit.page.keyboard.press("Enter"))


@pytest.fixture
def early():
    """Address of a server whose Python is not ready until the event is set."""
    ready, told = threading.Event(), Queue()

    def load():
        assert ready.wait(PATIENCE)
        found = subjects()
        return partial(fill, found=found), partial(complete, found=found)

    def work():
        asyncio.set_event_loop(asyncio.new_event_loop())
        server, address = serve(Sessions(load))
        told.put((server, address))
        server.io_loop.start()

    thread = threading.Thread(target=work)
    thread.start()
    server, address = told.get()
    yield address, ready
    ready.set()
    server.io_loop.add_callback(server.io_loop.stop)
    thread.join()


def test_the_page_answers_before_python_and_keeps_its_points(browser, early):
    address, ready = early
    visit = Visit(browser, address, waits=False)
    visit.changes(lambda: visit.page.get_by_role("button", name="New task").click())
    visit.changes(lambda: visit.slide("noise"))
    visit.changes(lambda: visit.drag("points", 0, 40, -60))
    assert visit.page.locator("main.waits").count()
    before = {role: visit.page.evaluate(CURVE, role) for role in ROLES}
    points = visit.page.evaluate(POINTS, "points")
    ready.set()
    visit.page.wait_for_selector("main:not(.waits)")
    visit.page.wait_for_timeout(500)
    assert visit.page.evaluate(POINTS, "points") == points
    for role, one in before.items():
        assert visit.page.evaluate(CURVE, role) == pytest.approx(one, abs=1e-6)
    visit.changes(lambda: visit.drag("points", 1, 0, 50))
    visit.page.get_by_text("Move points by keyboard").click()
    for name in ("Add a pair", "New task"):
        visit.changes(lambda name=name: visit.page.get_by_role("button", name=name).click())
    visit.done()


def test_a_chosen_point_of_a_saved_page_stays_where_it_is(opened):
    page, _ = opened
    before = page.evaluate(POINTS, "points")
    choose = """(value) => { for (const one of Bokeh.documents[0]._all_models.values())
        if (one.name === "pair" || one.options?.includes?.("query")) one.value = value; }"""
    for value in ("1", "2", "query"):
        page.evaluate(choose, value)
        page.wait_for_timeout(300)
    assert page.evaluate(POINTS, "points") == before


def test_no_narrow_page_scrolls_sideways(browser, address):
    narrow = Visit(browser, address, width=400, scheme="dark")
    assert narrow.page.evaluate("document.documentElement.scrollWidth") <= 400
    assert narrow.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(23, 23, 27)"
    narrow.done()


def test_a_saved_page_opens_from_disk(browser, saved):
    assert saved.stat().st_size < 3_000_000
    visit = Visit(browser, saved.as_uri())
    visit.changes(lambda: visit.drag("points", 0, 40, -60))
    for name in ("scale", "noise", "pairs", "depth"):
        visit.changes(lambda name=name: visit.slide(name))
    visit.changes(
        lambda: visit.page.locator(f"#{visit.place('subject')} select").select_option(
            label="softmax layer of two heads, 10 inputs"
        )
    )
    visit.changes(lambda: visit.page.get_by_role("button", name="New task").click())
    visit.done()


@pytest.fixture(scope="module")
def opened(browser, saved):
    page = browser.new_page()
    page.goto(saved.as_uri())
    page.wait_for_function("() => window.mesascope?.payload")
    yield page, Setup(subjects())
    page.close()


@pytest.mark.parametrize("subject", REGRESSORS)
def test_a_saved_page_predicts_as_python_does(opened, subject):
    page, setup = opened
    setup.choose(subject)
    setup.values |= {"depth": 2, "gamma": 0.02, "noise": 0.3}
    episode = setup.family(n_query=4).sample(1, stream(3, "test")).to(torch.float64)
    context, xq = episode.context, episode.xq
    learners = setup.learners()
    own = {"x": context.x[0].tolist(), "y": context.y[0, :, 0].tolist()}
    payload = page.evaluate("(name) => JSON.parse(JSON.stringify(mesascope.payload.subjects[name]))", subject)
    layers = payload["layers"] * 2
    asked = {"network": ("network", {"layers": layers, "softmax": payload["softmax"]}, learners["network"])}
    values = {"steps": 2, "eta": setup.values["eta"], "gamma": 0.02}
    asked["algorithm"] = (payload["algorithm"], values, learners["algorithm"])
    for name in LEARNERS:
        setup.chosen = name
        learner, parameters = setup.chosen_learner()
        asked[name] = (name, parameters, learner)
    for name, settings, learner in asked.values():
        found = page.evaluate("(all) => mesascope.predict(...all)", [name, settings, own, xq[0].tolist()])
        with torch.no_grad():
            wanted = predict_in_eval(learner, Context(*context), xq)[0, :, 0]
        assert torch.tensor(found, dtype=torch.float64) == pytest.approx(wanted, abs=1e-6, rel=1e-6), name
