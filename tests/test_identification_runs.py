"""Answers of identify are kept, reported, listed and asked for on the command line."""

import json
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from mesascope import learners, open_run
from mesascope.adapters import from_numpy, from_text
from mesascope.cli import main
from mesascope.errors import ArgumentError, RunDirectoryError
from mesascope.identification import Candidate, Identification, behaviour_of, candidates, identify, untrained
from mesascope.runs import find_runs
from mesascope.streams import stream
from mesascope.studies import ledger_rows
from mesascope.tasks import LinearDynamics, LinearRegression

FAMILY = LinearRegression(n_context=8, d_in=3, noise=0.3)
FEW = [one for one in candidates(sklearn=False) if one.name in ("gradient-descent", "ridge least-squares", "mean")]
NAMES = "gradient-descent, ridge least-squares, mean"


@pytest.fixture(scope="module")
def found():
    return identify(learners.LeastSquares(0.5), FAMILY, FEW, 6000, name="mine")


@pytest.fixture(scope="module")
def run(found, tmp_path_factory):
    return found.save(tmp_path_factory.mktemp("runs") / "mine", {"family": "linear regression"})


def test_an_answer_is_read_back_as_it_was(found, run):
    again = open_run(run.path)
    assert Identification.from_dict(again.identification) == found
    assert again.config["kind"] == "identification"
    assert again.claims["verdict"] == ["holds"]
    assert again.claims["sentence"] == ["mine runs ridge least-squares with ridge = 0.5"]
    assert set(again.figures) == {"conditions", "lengths", "filter", "weights", "confusion"}
    with pytest.raises(ArgumentError, match="record must be that of an identification"):
        Identification.from_dict({"learner": "mine"})


def test_answers_and_runs_show_themselves_in_a_notebook(found, run):
    for shown in (found, run, run.claims):
        assert "ridge least-squares" in shown._repr_html_()
        assert "<table>" in shown._repr_html_()


def test_it_is_plain_json(found):
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert record["names"] == ["ridge least-squares"]
    assert record["sense"] == "runs"


def last(context, xq):
    return context.y[..., -1:, :].expand(*xq.shape[:-1], -1)


def last_label(prompt):
    return prompt.split("Output:")[-2].split()[0]


def with_gaps(context, xq):
    return torch.where(xq[..., :1] > 0.5, torch.nan, learners.LeastSquares()(context, xq))


def with_a_kink(context, xq):
    return learners.LeastSquares()(context, xq) + (0 * xq[..., :1]).abs().sqrt()  # whose derivative is nan


# Learners with what can be undefined: tasks of zeros, answers, derivatives, sizes; candidates that never answer.
ODD = {
    "labels that are rounded to 0": (from_text(last_label), {"n_context": 5, "d_in": 1}, NAMES, 200),
    "one candidate": (last, {}, "mean", 250),
    "a candidate that explodes": (last, {}, "mean, explodes", 250),
    "a learner that does not answer each task": (with_gaps, {}, "mean", 1200),
    "a learner without derivatives": (with_a_kink, {}, "mean", 1200),
    "a learner whose squares vanish": (lambda context, xq: 1e-200 * last(context, xq), {}, "mean", 1200),
}


@pytest.mark.parametrize("case", ODD)
def test_an_answer_with_undefined_parts_is_plain_json(case, unchecked, tmp_path):
    learner, settings, names, budget = ODD[case]
    explodes = Candidate("explodes", lambda: lambda context, xq: 1e200 * last(context, xq))
    few = [one for one in (*FEW, explodes) if one.name in names]
    found = identify(learner, LinearRegression(**{"n_context": 4, "d_in": 2, **settings}), few, budget, name="odd")
    assert Identification.from_dict(json.loads(json.dumps(found.to_dict(), allow_nan=False))) == found
    assert ("behaviour" in found.unmeasured) == (budget < 1000)
    if case.startswith("labels"):  # infinite standard errors named every candidate
        assert found.names == ()
        assert found.exactly.rstrip(".") in found.report(tmp_path / "page.html").read_text()
    elif budget < 1000:
        assert found.exactly == "odd does not match mean, the only candidate."


class Zeros(LinearRegression):
    def sample(self, batch, generator):
        return super().sample(batch, generator).map(torch.zeros_like)


@pytest.mark.parametrize(
    ("learner", "family", "some", "message"),
    [
        (last, Zeros(), FEW, "family must draw labels other than 0"),
        (last, FAMILY, [], "candidates must hold at least one"),
        (lambda context, xq: 1e200 * last(context, xq), FAMILY, FEW, "must answer 8 of the family's own tasks with f"),
    ],
)
def test_what_nothing_can_be_measured_of_is_refused(learner, family, some, message, unchecked):
    with pytest.raises(ArgumentError, match=message):
        identify(learner, family, some, 2000)
    with pytest.raises(ArgumentError, match="most_tasks must be at least 2"):
        Candidate("mean", learners.Mean, most_tasks=1)


def test_the_report_is_one_page_that_opens_offline(found, tmp_path):
    page = found.report(tmp_path / "pages" / "mine.html").read_text()
    for word in (
        found.exactly.rstrip("."),
        "Families",
        "Candidates",
        "Effects of changes of the task",
        "Controls",
        "data:image/svg",
    ):
        assert word in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "<script" not in page


def test_report_and_ledger_read_the_run(run, capsys):
    before = {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()}
    assert main(["report", str(run.path)]) == 0
    assert {file: file.read_bytes() for file in before} == before
    rows, damaged = ledger_rows(find_runs([run.path])[0])
    assert not damaged
    assert (rows[0]["study"], rows[0]["verdict"]) == ("identify", "holds")
    assert main(["ledger", str(run.path), "--format", "markdown"]) == 0
    assert "mine runs ridge least-squares" in capsys.readouterr().out


def test_an_answer_that_was_edited_is_refused(found, tmp_path):
    run = found.save(tmp_path / "run")
    file = run.path / "identification.json"
    file.write_text(file.read_text().replace('"mine"', '"yours"'))
    with pytest.raises(RunDirectoryError, match="identification"):
        open_run(run.path)
    rows, damaged = ledger_rows(find_runs([run.path])[0])
    assert "identification.json" in damaged[0]
    assert all(row["study"] != "identify" for row in rows)


def test_behaviour_and_controls_are_those_of_the_learner(found):
    own, nearest = (found.behaviour[name] for name in ("mine", "ridge least-squares"))
    assert own.superposition.value < 1e-20
    assert own.filtered.value > 0.9
    assert own.linear.value == pytest.approx(1)
    for name, one in own.invariances.items():
        assert one.value == pytest.approx(nearest.invariances[name].value, rel=1e-3, abs=1e-9)
    errors = found.controls
    assert errors["as it is"].value < errors["shuffled labels"].value
    assert errors["no pairs"].value == 1
    assert found.unmeasured == {
        "untrained copy": "only networks of mesascope.nets and layers with reset_parameters() draw fresh weights"
    }


def test_likenesses_are_exact_for_the_algorithm_itself(found):
    first = found.likenesses[0]
    assert first.candidate == "ridge least-squares"
    assert first.sensitivity_cosine.value == pytest.approx(1)
    assert first.weight_distance.value == pytest.approx(0, abs=1e-9)
    assert found.likenesses[-1].weight_distance.value > 0.01


def test_candidates_that_tasks_tell_apart_are_apart(found):
    names, lows = found.apart.names, np.array(found.apart.lows)
    assert (np.diag(lows) == 0).all()
    assert (lows[~np.eye(len(names), dtype=bool)] > 1e-3).all()


def test_what_is_not_measured_is_said():
    def on_arrays(x, y, xq):
        return xq @ np.linalg.solve(x.T @ x + 0.5 * np.eye(3), x.T @ y)

    found = identify(from_numpy(on_arrays), FAMILY, FEW, 6000)
    assert found.names == ("ridge least-squares",)
    assert found.unmeasured["sensitivities"] == "torch cannot differentiate the learner or the candidates"
    assert found.likenesses[0].weight_distance.value == pytest.approx(0, abs=1e-9)
    poor = identify(learners.Mean(), FAMILY, FEW, 400)
    assert poor.behaviour == {}
    assert poor.unmeasured == dict.fromkeys(("behaviour", "controls"), "the budget leaves fewer than 8 tasks for them")
    assert "filter" not in poor.tables()


def single_only(context, xq):
    if xq.dtype == torch.float64:
        raise ValueError("this learner computes in single precision")
    return RIDGE(context, xq)


def long_only(context, xq):
    if context.x.shape[-2] < 4:
        raise ValueError("this learner needs four pairs")
    return single_only(context, xq)


RIDGE = learners.LeastSquares(0.5)
COUNTED = {
    "double": RIDGE, "single": single_only, "long contexts": long_only,
    "random": lambda context, xq: RIDGE(context, xq) + 0.1 * torch.randn(*xq.shape[:-1], 1),
    "no derivatives": lambda context, xq: torch.as_tensor(RIDGE(context, xq).numpy()),
}  # fmt: skip


@given(kind=st.sampled_from([*COUNTED]), n_query=st.sampled_from([1, 2, 7, 20]), more=st.integers(0, 1500))
@settings(max_examples=25)
def test_asked_equals_the_predictions_made_and_never_exceeds_the_budget(kind, n_query, more):
    made = tried = 0

    def counting(context, xq):
        nonlocal made, tried
        tried += xq[..., 0].numel()
        answer = COUNTED[kind](context, xq)
        made += xq[..., 0].numel()
        return answer

    family = LinearRegression(n_context=8, d_in=3, noise=0.3, n_query=n_query)
    budget = (250 + more) * n_query
    found = identify(counting, family, FEW[:1], budget)
    assert found.asked == made
    assert made <= tried <= budget


def test_an_untrained_copy_has_other_weights_of_the_same_kind():
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
    copy = untrained(net, stream(0, "copy"))
    assert [one.shape for one in copy.parameters()] == [one.shape for one in net.parameters()]
    assert not torch.equal(copy[0].weight, net[0].weight)
    assert torch.equal(copy[0].weight, untrained(net, stream(0, "copy"))[0].weight)
    assert untrained(learners.GradientDescent(2, 0.3), stream(0, "copy")) is None
    assert untrained(len, stream(0, "copy")) is None


class Held(torch.nn.Linear):
    """A layer with a config of its own, and a lock, which cannot be copied."""

    def __init__(self, config=None, lock=None):
        super().__init__(3, 1)
        self.config, self.lock = config, lock


class Own:
    def build(self):
        return 0


def test_modules_with_a_config_of_another_meaning_or_that_cannot_be_copied_have_a_copy_or_none():
    copy = untrained(Held(Own()), stream(0, "copy"))
    assert isinstance(copy, Held)
    assert untrained(Held(lock=threading.Lock()), stream(0, "copy")) is None
    called = SimpleNamespace(config=Own())
    assert untrained(called, stream(0, "copy")) is None
    noted = Held()
    noted.loss = noted(torch.ones(1, 3)).sum()  # a tensor with gradient history, which deepcopy refuses
    assert isinstance(untrained(noted, stream(0, "copy")), Held)


def test_what_a_learner_does_not_answer_is_missing():
    def short(context, xq):
        if context.x.shape[-2] != 8:
            raise ValueError("contexts must have 8 pairs")
        return learners.Mean()(context, xq)

    episode = FAMILY.sample(20, stream(0, "behaviour")).to(torch.float64)
    seen = behaviour_of(short, episode, stream(0, "changes"))
    assert "every pair twice" not in seen.invariances
    assert "inputs rotated" in seen.invariances


def test_sequences_are_refused():
    with pytest.raises(ArgumentError, match="family must draw episodes"):
        identify(learners.Mean(), LinearDynamics())


def test_the_command_line_takes_learners_of_all_kinds(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "def step(context, xq):\n    return xq @ (context.x.mT @ context.y) * 1.5 / context.x.shape[-2]\n"
    )
    tasks = ["--family", "linear-regression(n_context=8, d_in=3)", "--candidates", NAMES, "--budget", "1000"]
    assert main(["identify", "mine.py:step", *tasks, "--out", "a"]) == 0
    assert "step runs gradient-descent with steps = 1, eta = 1.5." in capsys.readouterr().out
    run = open_run(tmp_path / "a")
    assert run.config["settings"]["family"]["n_context"] == 8
    assert main(["identify", "--sklearn", "Ridge(alpha=2.0, fit_intercept=False)", *tasks, "--out", "b"]) == 0
    assert "runs ridge least-squares with ridge = 2." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "mesascope identify takes one learner, but is given none: pass one."),
        (["a:b", "--sklearn", "Ridge()"], "is given a:b and --sklearn"),
        (["nothing"], "FILE.py:NAME or MODULE:NAME, but is nothing (No module named 'nothing'): check the path"),
        (["no_such_module:x"], "but is no_such_module:x (No module named 'no_such_module'): check"),
        (["json:no_such"], "but is json:no_such (json holds no 'no_such'): check"),
        (["json:loads", "--family", "linear-regression(n_context=__import__)"], "with plain values"),
        (["json:loads", "--family", "linear-regresion()"], "did you mean 'linear-regression'"),
        (["json:loads", "--family", "linear-regression(n_contexts=3)"], "did you mean 'n_context'"),
        (["json:loads", "--candidates", "gradient-decent"], "did you mean 'gradient-descent'"),
        (["--sklearn", "Rigde()"], "did you mean 'Ridge'"),
        (["--sklearn", "Ridge(alhpa=1)"], "--sklearn must be a regressor with its arguments"),
        (["--sklearn", "Ridge(1)"], "--sklearn must name each value"),
        (["--sklearn", "Ridge()", "--budget", "10"], "budget must leave 8 tasks"),
        (["--sklearn", "Ridge()", "--bugdet", "10"], "unrecognized options: --bugdet, 10; perhaps you meant"),
    ],
)
def test_mistakes_are_answered_by_one_sentence(arguments, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["identify", *arguments]) == 2
    said = capsys.readouterr().err
    assert sentence in said, said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_context_without_pairs_has_no_shuffled_labels():
    found = identify(learners.Mean(), LinearRegression(n_context=1, d_in=1), FEW, 6000)
    assert "shuffled labels" not in found.controls
    assert isinstance(found, Identification)
