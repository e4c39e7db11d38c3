"""The page of mesascope explore, without a browser."""

import asyncio
import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("bokeh", reason="bokeh is not installed: pip install '.[explore]'")

from bokeh.document import Document

import mesascope
from mesascope import lenses
from mesascope.cli import main
from mesascope.errors import ArgumentError
from mesascope.explore import run_text
from mesascope.explore.first import First
from mesascope.explore.inside import Inside
from mesascope.explore.one_task import OneTask
from mesascope.explore.page import complete, controls_of, subjects
from mesascope.explore.parting import BREAKS, Parting, _measured
from mesascope.explore.payload import FIRST_TASKS, payload
from mesascope.explore.plots import ROLES, asset
from mesascope.explore.ranges import MOST_PAIRS
from mesascope.explore.reading import attention
from mesascope.explore.run_list import RunList
from mesascope.explore.sequences import Sequences
from mesascope.explore.server import Sessions, serve
from mesascope.explore.setup import Setup
from mesascope.explore.shipped import NETWORKS, PREDICTORS, REGRESSORS, shipped
from mesascope.explore.subjects import Subject, own_subject
from mesascope.learners import GradientDescent
from mesascope.nets import InContextRegressorConfig, TransformerConfig
from mesascope.runs import Run
from mesascope.streams import stream
from mesascope.tasks import LinearDynamics, LinearRegression

RESULTS = Path(__file__).parent.parent / "docs" / "results"


@pytest.fixture(scope="module")
def found():
    return subjects()


def test_attention_is_that_of_the_first_softmax_layer():
    transformer = TransformerConfig(width=4, n_layers=2, attention=("linear", "softmax"))
    task = LinearRegression(n_context=5, d_in=3).sample(1, stream(0, "eval"))
    pattern = attention(InContextRegressorConfig(transformer).build(stream(0, "init")), task)
    assert np.allclose(pattern.sum(1), 1)
    linear = TransformerConfig(width=4, mlp=2)
    assert attention(InContextRegressorConfig(linear).build(stream(0, "init")), task) is None


@pytest.fixture
def setup(found):
    return Setup(found)


def test_modules_are_short():
    """A panel is a module; see docs/explore.md."""
    folder = Path(mesascope.__file__).parent / "explore"
    for file in folder.glob("*.py"):
        assert file.read_text().count("\n") <= 150, file


@pytest.mark.parametrize("name", REGRESSORS)
def test_a_shipped_network_has_the_loss_of_its_record(name):
    subject = shipped(name)
    record = subject.record
    tasks = subject.family.sample(2000, stream(1, "other")).to(torch.float64)
    errors = lenses.per_task_errors(subject.learner, tasks)
    assert float(errors.mean()) == pytest.approx(record["mse"], abs=5 * float(errors.std()) / 2000**0.5)
    assert sum(file.stat().st_size for file in (NETWORKS / name).iterdir()) < 20_000
    assert record["command"] == f"python benchmarks/explore_networks.py {name}"


def test_every_shipped_network_is_in_a_menu():
    assert {path.name for path in NETWORKS.iterdir()} == {*REGRESSORS, *PREDICTORS}


def test_more_pairs_extend_the_same_task(setup):
    setup.values["pairs"] = 5
    few = setup.task()
    setup.values["pairs"] = MOST_PAIRS
    many = setup.task()
    assert torch.equal(few.context.x, many.context.x[:, :5])
    assert torch.equal(few.xq, many.xq)


def test_curves_are_predictions(setup):
    task = OneTask(setup)
    curves, learners, episode = task.drawing.curves.data, setup.learners(), task.episode()
    xq = torch.tensor(curves["x"], dtype=torch.float64)[None, :, None]
    for role in ROLES:
        with torch.no_grad():
            assert np.allclose(curves[role], learners[role](episode.context, xq)[0, :, 0], atol=1e-12)


def test_on_a_slice_points_are_those_of_the_task(setup):
    setup.choose("looped-10")
    task = OneTask(setup)
    own, shown = setup.task(), task.episode()
    assert torch.allclose(own.context.x, shown.context.x)
    assert torch.allclose(own.xq, shown.xq)


def test_a_point_moves_by_numbers_and_pairs_are_added_and_deleted(setup):
    task = OneTask(setup)
    own = task.drawing
    own.pair.value = "1"
    own.y.value = 3.0
    assert own.points.data["y"][0] == 3.0
    before = len(own.points.data["x"])
    task._added()
    assert len(own.points.data["x"]) == before + 1
    task._deleted()
    assert len(own.points.data["x"]) == before
    assert len(own.curves.data["network"])


def test_marks_are_what_each_label_counts(setup):
    task = OneTask(setup)
    weights, y = task.drawing.marks.data["weight"], task.drawing.points.data["y"]
    assert float(np.dot(weights, y)) == pytest.approx(
        task.drawing.answers.data["network"][0], abs=2e-3
    )  # nearly linear in labels


def test_controls_move_the_settings(setup):
    controls, heard = controls_of(setup), []
    setup.listen(lambda: heard.append(1))
    for name, one in controls.sliders.items():
        one.value = 2 * one.step + one.start
        assert setup.values[name] == one.value
    controls.subject.value = "looped-1"
    assert setup.values["depth"] == 2
    assert controls.sliders["gamma"].disabled is False
    controls.chosen.value = "gaussian kernel-smoother"
    assert "bandwidth" in controls.sliders["free"].title
    assert len(heard) == len(controls.sliders) + 2


def test_where_they_part_shows_the_numbers_of_agreement(setup):
    parting = Parting(setup, Document())
    parting.breaks = True
    parting.later.now()
    learners, tasks = setup.learners(), setup.tasks()
    found = lenses.agreement(learners["network"], learners["ridge"], tasks)
    assert parting.errors.data["value"][2] == pytest.approx(found.mse_b.value)
    assert parting.differences.data["value"][1] == pytest.approx(found.prediction_difference.value)
    assert len(parting.broken.data["name"]) == 2 * (1 + len(BREAKS))


def test_every_learner_of_the_catalogue_can_be_chosen(setup):
    task = OneTask(setup)
    for name in setup.catalogue:
        setup.chosen = name
        task.refresh()
        assert not task.drawing.error.text, name


@pytest.mark.parametrize("name", ["linear-10", "softmax-1"])
def test_inside_reads_weights_and_attention(setup, name):
    setup.choose(name)
    inside = Inside(setup, Document(), OneTask(setup).episode)
    inside.later.now()
    assert inside.maps["trained_kq"].visible
    assert inside.attention.visible == (name == "softmax-1")
    assert len(inside.filters["network"].data["x"]) > 3


def test_sequences_are_predicted_and_probed():
    panel = Sequences(Document())
    panel.one.now()
    panel.later.now()
    assert len(panel.path.data["mesa"]) == panel.family.length - 1
    assert panel.by_element.data["least squares"][-1] < panel.by_element.data["least squares"][0]
    assert len(panel.probes["mesa"].data["y"]) == 3


def raises(context, xq):
    raise ValueError("too far <b>")


def test_a_learner_that_raises_shows_its_sentence(found):
    setup = Setup({"own": own_subject("mine", raises, LinearRegression(d_in=2)), **found})
    task, parting = OneTask(setup), Parting(setup, Document())
    assert "too far &lt;b&gt;" in task.drawing.error.text
    assert len(task.drawing.curves.data["ridge"])
    parting.later.now()
    assert "too far" in parting.error.text


def test_a_family_of_sequences_is_refused():
    with pytest.raises(ArgumentError, match="--family must draw tasks of one target"):
        own_subject("mine", raises, LinearDynamics())


def test_a_damaged_run_costs_its_own_row(tmp_path):
    for name in ("one-step", "softmax"):
        shutil.copytree(RESULTS / name, tmp_path / name, ignore=shutil.ignore_patterns("*.npz", "*.png"))
    (tmp_path / "softmax" / "claims.json").write_text("[")
    panel = RunList([tmp_path], Document())
    runs, table, trainings = panel._read()
    assert sorted(runs) == ["one-step", "softmax"]
    assert "34 hold" in table
    assert table.count('class="fails"') == 1
    assert any(value.startswith("one-step : size-10") for value, _ in trainings)


def test_a_claim_is_shown_with_its_figure_and_arrays():
    panel = RunList([RESULTS / "one-step"], Document())
    panel.later.now()
    panel.menus["run"].value = "one-step"
    assert "loss-matches-gd" in panel.claims.text
    panel.menus["claim"].value = "loss-matches-gd"
    assert "data:image/svg+xml" in panel.shown.text
    panel.menus["stage"].value = "size-10-comparison"
    assert "size-10-comparison.npz" in panel.arrays.text
    panel.menus["first"].value = "one-step : size-10"
    panel.menus["second"].value = "one-step : size-5"
    assert len(panel.sources[1].data["x"]) > 5


def test_texts_of_a_run_are_escaped(tmp_path):
    Run.create(tmp_path / "run", "study", {"settings": {}, "seed": 0, "study": "<script>", "preset": "quick",
                                           "device": "cpu", "question": "<img src=x>"})  # fmt: skip
    table = run_text.run_table({"<b>": Run.open(tmp_path / "run")}, ["<i>"])
    assert not any(tag in table for tag in ("<script>", "<img", "<b>", "<i>"))


def test_an_answer_of_identify_is_shown_in_a_frame_without_scripts(tmp_path):
    run = Run.create(tmp_path / "run", "identification", {"settings": {}, "seed": 0})
    run.write_report('<script>alert("x")</script>')
    frame = run_text.report_frame(run)
    assert "sandbox srcdoc" in frame
    assert "<script" not in frame


@pytest.fixture
def served():
    asyncio.set_event_loop(asyncio.new_event_loop())  # as tornado makes one where there is none, with a warning
    server, address = serve(lambda doc: None)
    yield server, address
    server.stop()
    server._http.stop()
    server.io_loop.close()
    asyncio.set_event_loop(None)


def test_a_port_in_use_is_said_with_the_remedy(served):
    with pytest.raises(ArgumentError, match=r"--port must be free, but .* is in use: pass another"):
        serve(lambda doc: None, port=served[0].port)


def test_the_server_binds_the_loopback_and_refuses_other_origins(served):
    server, address = served
    assert address == f"http://127.0.0.1:{server.port}/"
    assert server.address == "127.0.0.1"
    assert server._tornado.websocket_origins == {f"127.0.0.1:{server.port}", f"localhost:{server.port}"}


def test_a_page_of_another_origin_cannot_connect(served):
    from tornado.httpclient import HTTPClientError, HTTPRequest
    from tornado.websocket import websocket_connect

    async def connect(origin):
        request = HTTPRequest(served[1].replace("http", "ws") + "ws", headers={"Origin": origin})
        with pytest.raises(HTTPClientError) as refused:
            await websocket_connect(request)
        return refused.value.code

    assert served[0].io_loop.asyncio_loop.run_until_complete(connect("http://elsewhere.example")) == 403


def test_a_path_outside_the_page_is_not_served(served):
    from tornado.httpclient import AsyncHTTPClient

    async def get(path):
        response = await AsyncHTTPClient().fetch(served[1] + path, raise_error=False)
        return response.code

    loop = served[0].io_loop.asyncio_loop
    assert loop.run_until_complete(get("static/../../../../../../etc/passwd")) in (403, 404)
    assert loop.run_until_complete(get("claims.json")) == 404


def error_of(doc):
    return doc.get_model_by_name("task_error").text


def test_a_page_that_cannot_load_says_why():
    def load():
        raise ArgumentError("x must be <y>.")

    sessions, early, late = Sessions(load), Document(), Document()
    sessions(early)
    sessions.drawn.set()
    while not sessions.problem:
        pass
    sessions(late)
    for one in early.session_callbacks:
        one.callback()
    assert "x must be &lt;y&gt;." in error_of(early)
    assert "x must be &lt;y&gt;." in error_of(late)


def test_the_page_opens_with_the_numbers_of_the_shipped_networks(found):
    """`python benchmarks/explore_networks.py first` writes them."""

    def same(a, b):
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
        if isinstance(a, list):
            return len(a) == len(b) and all(map(same, a, b))
        return a == (pytest.approx(b, rel=1e-6, abs=1e-7) if isinstance(b, float) else b)

    assert same(json.loads(asset("first.json")), json.loads(json.dumps(payload(Setup(found), FIRST_TASKS))))


def test_points_and_settings_stay_when_python_takes_over(found):
    doc, first = Document(), First.shipped()
    first.add_to(doc)
    own, controls = first.drawing, first.controls
    controls.subject.value, controls.again.tags = "looped-10", [1]
    for name, one in json.loads(asset("first.json"))["subjects"]["looped-10"]["values"].items():
        controls.sliders[name].value = one
    controls.sliders["noise"].value = 0.4
    own.live.data = {"x": [0.3, 1.0], "y": [0.0, 2.0], "pair": [-1, 4]}
    complete(doc, first, found)
    assert own.live.data["x"] == [0.3, 1.0]
    setup = controls.setup
    assert (setup.name, setup.seed, setup.values["noise"], setup.values["depth"]) == ("looped-10", 1, 0.4, 2)
    assert own.curves.data["network"]
    steps = [one.callback for one in doc.session_callbacks]
    for step in steps:
        step()
    assert own.answer.tags == ["server", "complete"]
    assert doc.get_model_by_name("parting_left").document is doc


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--family", "linear-regression"], "--family goes with a learner, but there is none"),
        (["nosuch:thing"], "LEARNER must be RUN, RUN:TRAINING"),
        (["x:y", "--sklearn", "Ridge()"], "takes one learner, but is given x:y and --sklearn"),
        (["--port", "70000"], "--port must be from 0 to 65535, but is 70000"),
        (["--host", "0.0.0.0"], "--host must be one address of this machine, but is '0.0.0.0': pass the one"),
        (["--host", "8.8.8.8"], "--host must be an address of this machine, but is '8.8.8.8'"),
        (["--save", "nosuch/page.html"], "--save must be a file in a folder that exists"),
    ],
)
def test_errors_are_one_sentence(arguments, sentence, capsys):
    assert main(["explore", *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_a_looped_network_stands_beside_the_descent_in_its_weights():
    trained = shipped("looped-10")
    own = own_subject("mine", trained.learner, trained.family)
    assert own.algorithm.steps == 2
    assert own.algorithm.eta.item() == pytest.approx(trained.algorithm.eta.item(), rel=0.1)


def test_own_learners_come_first(found):
    own = own_subject("mine", GradientDescent(1, 1.0), LinearRegression(d_in=3))
    both = subjects({"own": own})
    assert next(iter(both)) == "own"
    assert isinstance(both["own"], Subject)
    setup = Setup(both)
    assert setup.values["eta"] == pytest.approx(mesascope.learners.one_step_optimum(own.family).eta)
    assert json.dumps(setup.titles)


def test_a_looped_network_without_step_sizes_has_its_own_depth():
    config = TransformerConfig(2, n_layers=3, shared=True, attention="softmax", init_scale=4.0)
    network = InContextRegressorConfig(config).build(stream(0, "init"))
    own = own_subject("own", network, LinearRegression(n_context=60, d_in=1))
    assert own.algorithm.steps == 3
    assert own.at_depth(3) is network
    task = own.one_task
    one = dataclasses.replace(config, n_layers=1)
    alone = InContextRegressorConfig(one).build()
    alone.load_state_dict(network.state_dict())
    assert torch.allclose(own.at_depth(1)(task.context, task.xq), alone(task.context, task.xq))
    setup = Setup({"own": own})
    assert setup.task().context.x.shape[-2] == 60
    setup.values["pairs"] = own.most_pairs
    assert setup.task().context.x.shape[-2] == 120


def test_slow_learners_and_the_network_are_compared_on_the_same_tasks(found):
    tasks = LinearRegression(n_context=10, d_in=1).sample(50, stream(0, "eval"))
    learners = {
        "network": GradientDescent(1, 0.5),
        **dict.fromkeys(("algorithm", "ridge", "chosen"), GradientDescent(1, 0.5)),
    }
    errors, *_, count = _measured(learners, tasks, False, 24)
    assert count == 24
    assert {one.n for one in errors.values()} == {24}
    assert len({one.value for one in errors.values()}) == 1
