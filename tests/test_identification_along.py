"""Mixtures of candidates, identification along checkpoints and layers, its cost before it starts, and its device."""

import json

import pytest
import torch

from mesascope import learners, nets, open_run
from mesascope.adapters import from_text
from mesascope.cli import main
from mesascope.errors import ArgumentError, ArgumentTypeError
from mesascope.identification import Course, along, battery, by_layer, candidates, identify, naming
from mesascope.identification.comparing import Levels, comparing, shares
from mesascope.identification.mixture import mixture
from mesascope.identification.seen import Seen
from mesascope.records import to_record
from mesascope.runs import Run
from mesascope.runs.checkpoints import TrainingCheckpoints
from mesascope.tasks import LinearRegression
from mesascope.training import Training, train

FAMILY = LinearRegression(n_context=8, d_in=3, noise=0.3)
NAMES = ("gradient-descent", "ridge least-squares", "nearest-neighbours", "mean", "zero")
FEW = [one for one in candidates(sklearn=False) if one.name in NAMES]
GD, NEAREST, RIDGE = learners.GradientDescent(1, 0.9), learners.NearestNeighbours(3), learners.LeastSquares(0.5)
# Predictions for sixteen tasks a condition.
SIXTEEN = 3 * 9 * 16 + 3


def mixed(*parts, noise=0.0):
    generator = torch.Generator().manual_seed(0)

    def learner(context, xq):
        answer = sum(weight * one(context, xq) for weight, one in parts)
        return answer + noise * torch.randn(answer.shape, generator=generator).to(answer)

    return learner


def nearest_mixture(learner):
    seen = Seen(learner, {part: battery(FAMILY, 60, 0, part) for part in ("fit", "test")}, 0)
    looks = {one.name: next(comparing(one, seen, Levels(0.01, 0.01, 0.001))) for one in FEW}
    return mixture([looks[one.candidate] for one in shares([*looks.values()])], seen)


@pytest.mark.parametrize(
    ("parts", "noise"),
    [
        ({"ridge least-squares": (1.0, RIDGE)}, 0.0),
        ({"ridge least-squares": (1.0, RIDGE)}, 0.1),
        ({"gradient-descent": (0.6, GD), "nearest-neighbours": (0.4, NEAREST)}, 0.1),
        ({"ridge least-squares": (0.7, RIDGE), "mean": (0.3, learners.Mean())}, 0.0),
    ],
    ids=lambda given: " + ".join(given) if isinstance(given, dict) else None,
)
def test_a_mixture_has_the_weights_of_its_parts_and_one_algorithm_the_weight_1(parts, noise):
    found = nearest_mixture(mixed(*parts.values(), noise=noise))
    weights = {one.candidate: one.weight for one in found.parts}
    assert sum(one.value for one in weights.values()) == pytest.approx(1)
    assert abs(found.unexplained.value) < 3 * found.unexplained.stderr + 1e-4
    assert (found.gain.value > 0.05) == (len(parts) > 1)
    for name, (weight, _) in parts.items():
        assert abs(weights[name].value - weight) < 3 * weights[name].stderr + 0.01
    assert noise or weights.keys() == parts.keys()


@pytest.fixture(scope="module")
def course():
    learner = {0: learners.Zero(), 10: mixed((0.8, RIDGE), (0.2, learners.Mean())), 100: NEAREST}
    few = [one for one in FEW if one.name != "gradient-descent"]
    return along(learner, FAMILY, few, SIXTEEN, name="net")


def test_a_course_has_the_answer_at_each_step_and_the_steps_at_which_the_nearest_family_changes(course):
    assert [(one.after, one.step, one.before, one.family) for one in course.transitions] == [
        (0, 10, "constants", "least squares"),
        (10, 100, "least squares", "neighbours"),
    ]
    assert all(one.behind.value > 3 * one.behind.stderr for one in course.transitions)
    assert [one.names for one in course.answers] == [("zero",), (), ("nearest-neighbours",)]
    weights = course.tables()["Weights of the mixture"]
    assert weights["averages"][1]["value"] == pytest.approx(0.2, abs=1e-3)
    assert course.verdict.startswith("net is nearest to constants at step 0, from step 10 on least squares (step 0 w")


def test_a_course_is_kept_and_read_back_as_it_was(course, tmp_path):
    assert Course.from_dict(json.loads(json.dumps(course.to_dict(), allow_nan=False))) == course
    run = open_run(course.save(tmp_path / "course").path)
    before = (run.path / "report.html").read_bytes()
    assert set(run.figures) == {"families", "mixture"}
    assert main(["report", str(run.path)]) == 0
    assert (run.path / "report.html").read_bytes() == before
    for word in ("Transitions", "Weights of the mixture", "nearest-neighbours", "data:image/svg"):
        assert word in before.decode()
    with pytest.raises(ArgumentError, match="record must be that of a course"):
        Course.from_dict({"steps": [1]})


def test_chance_is_no_transition():
    """Two families that explain alike change places without one."""
    noisy, few = (
        mixed((1.0, RIDGE), noise=3.0),
        [one for one in FEW if one.name in ("zero", "mean", "ridge least-squares")],
    )
    found = along(dict.fromkeys(range(4), noisy), FAMILY, few, 3 * 9 * 8 + 3)
    assert len({one.shares[0].family for one in found.answers}) > 1
    assert found.transitions == ()


def test_layers_of_a_descent_are_descents_of_as_many_steps():
    layers = by_layer(learners.GradientDescent(3, 0.8), FAMILY)
    found = along(layers, FAMILY, [one for one in FEW if one.name in ("gradient-descent", "zero")], SIXTEEN)
    assert found.steps == (0, 1, 2, 3)
    steps = [one.parameters("gradient-descent")["steps"] for one in found.answers[1:]]
    assert steps == [1, 2, 3]
    with pytest.raises(ArgumentTypeError, match="network must have predictions after each layer"):
        by_layer(learners.Mean(), FAMILY)
    with pytest.raises(ArgumentTypeError, match="network must have predictions after each layer"):
        by_layer(nets.SequencePredictorConfig(nets.CausalTransformerConfig(nets.AttentionConfig(4)), 3).build(), FAMILY)


@pytest.mark.parametrize(
    ("learner", "message"),
    [({}, "learners must hold at least one learner"), ({-1: RIDGE}, "a key of learners must be at least 0, but is -1")],
)
def test_what_is_no_course_is_refused(learner, message):
    with pytest.raises(ArgumentError, match=message):
        along(learner, FAMILY, FEW)


@pytest.fixture
def trained(tmp_path):
    """A run with a layer that kept the checkpoints of steps 0, 5 and 10, and one that kept the last alone."""
    run = Run.create(tmp_path / "run", "training", {"settings": {}, "seed": 0})
    network = nets.InContextRegressorConfig(nets.TransformerConfig(4, n_layers=2, init_scale=0.1))
    for name, keep in (("net", (0, 5)), ("last", ())):
        plan = Training(steps=10, batch=16, keep=keep)
        record = to_record({"network": network, "family": FAMILY, "training": plan, "seeds": [0]})
        checkpoints = TrainingCheckpoints(run.path / "checkpoints" / name, record, keep=keep)
        train(network.build, FAMILY, plan, [0], checkpoints=checkpoints)
    run.append_metrics({"training": name, "step": 0, "seed": 0, "mse": 1.0} for name in ("net", "last"))
    return run


def test_the_command_line_asks_at_checkpoints_and_after_layers(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    common = ["identify", f"{trained.path}:net", "--candidates", "zero, mean", "--budget", "300", "--device", "cpu"]
    for flag, over, steps in (("--checkpoints", "step", [0, 5, 10]), ("--layers", "layer", [0, 1, 2])):
        assert main([*common, flag, "--out", over]) == 0
        assert f"net of seed 0 is nearest to constants at {over} 0" in capsys.readouterr().out
        assert open_run(over).identification["steps"] == steps
    for arguments, sentence in (
        (["last", "--checkpoints"], "--checkpoints needs two or more checkpoints, but "),
        (["net", "--checkpoints", "--layers"], "--checkpoints goes without --layers"),
    ):
        assert main(["identify", f"{trained.path}:{arguments[0]}", *arguments[1:]]) == 2
        assert sentence in capsys.readouterr().err
    assert main([*common[:-1], "nowhere"]) == 2
    assert "device must be one that torch can use here, but is 'nowhere'" in capsys.readouterr().err
    assert main(["identify", "json:dumps", "--checkpoints"]) == 2
    assert "LEARNER must be a network of a run with --checkpoints, but is 'json:dumps'" in capsys.readouterr().err


def test_an_estimate_is_the_most_predictions_that_are_asked_for():
    found = identify(RIDGE, FAMILY, FEW, 1200, name="mine", estimate=True)
    asked = identify(mixed((1.0, RIDGE), noise=1e-3), FAMILY, FEW[:1], 1200).asked
    assert asked <= found.predictions <= asked + 2  # a learner in float32 is also tried in float64
    assert found.predictions > identify(RIDGE, FAMILY, FEW[:1], 1200).asked
    assert str(found).startswith(f"mine is asked for at most {found.predictions:,} predictions, about ")
    assert 0 < found.seconds < 60
    assert 0 < found.candidates < 60


def test_an_estimate_of_a_model_of_text_asks_nothing_of_it():
    learner = from_text(lambda prompt: pytest.fail("asked"))
    found = identify(learner, FAMILY, FEW, 1000, estimate=True)
    assert found.seconds is None
    assert found.tokens == learner.estimate(FAMILY, found.predictions)[0]["tokens"]
    assert f"{found.tokens:,} tokens" in str(found)


def test_the_nearest_family_is_told_before_the_answer(monkeypatch, capsys):
    monkeypatch.setattr(naming, "_SOON", -1.0)
    identify(RIDGE, FAMILY, FEW[-2:], 300, name="mine")
    assert "a first look, at tasks that were fitted: mine is " in capsys.readouterr().err
