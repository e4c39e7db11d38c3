"""Torch's global modes around public calls: the numbers of a call without them, or one sentence."""

import contextlib
import copy
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import tiny_study
import torch
from cases import in_turn
from examples import examples
from torch import nn

from mesascope.errors import ArgumentError, ArgumentTypeError, MesascopeError
from mesascope.identification import behaviour_of
from mesascope.language import head_scores, language_model_config
from mesascope.learners import GradientDescent, LeastSquares, tune, tune_spectral
from mesascope.lenses import access_of, agreement, alignment, compare, prompt_tune
from mesascope.meta import MAML, ContinualState, LaMAML, MetaLearner, MetaLearnerConfig, OnlineDescent, batch_of
from mesascope.nets import ClassifierConfig, InContextRegressorConfig, TransformerConfig
from mesascope.records import facts
from mesascope.streams import stream
from mesascope.studies import new_run, run_study
from mesascope.tasks import (
    Context,
    Episode,
    FewShotImages,
    FewShotSequence,
    LinearDynamics,
    LinearRegression,
    RotatedDigits,
    SwitchingImages,
)
from mesascope.training import ModuleState, Training, fit, train
from mesascope.training.modes import evaluating


@contextlib.contextmanager
def set_by(setter, value, before):
    setter(value)
    try:
        yield
    finally:
        setter(before)


def default_dtype(dtype):
    return set_by(torch.set_default_dtype, dtype, torch.float32)


def default_device(device):
    return set_by(torch.set_default_device, device, None)


@contextlib.contextmanager
def all_at_once():
    with default_dtype(torch.float64), default_device("meta"), torch.autocast("cpu"), torch.inference_mode():
        yield


MODES = {
    "float64": lambda: default_dtype(torch.float64),
    "float16": lambda: default_dtype(torch.float16),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "another device": lambda: default_device("meta"),
    "within another device": lambda: torch.device("meta"),
    "no gradients": lambda: torch.set_grad_enabled(False),
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "deterministic": lambda: set_by(torch.use_deterministic_algorithms, True, False),
    "all at once": all_at_once,
}

FAMILY = LinearRegression(n_context=10, d_in=3)
EPISODES = FAMILY.sample(6, stream(0, "modes"))
SEQUENCES = LinearDynamics(d=3, length=8).sample(6, stream(0, "modes"))
CONFIG = InContextRegressorConfig(TransformerConfig(4, n_layers=2, shared=True, token_clip=9.0))
NET = CONFIG.build(stream(0, "init"))
IMAGES = FewShotImages(ways=3, shots=1, queries=2, size=6)
CLASSIFIER = ClassifierConfig("mlp", 8, size=6, classes=3)
PLAN = Training(steps=2, batch=4, learning_rate=0.01)
PREDICTOR = next(build for name, build in examples("construction") if name == "mesa-gradient-descent")
DIGITS = RotatedDigits(samples=10, queries=3)


def predictor():
    return PREDICTOR(3, 1, None).network.float()


# Objects that are called in a mode and made outside it; networks are built in modes by another test.


def adapting(order):
    (x, y), _, _ = IMAGES.sample(2, stream(0, "tasks"))
    network = CLASSIFIER.build(stream(0, "init"))
    return lambda: MAML(0.1, 2, order=order).adapt(network, Context(x[0], y[0]))


def meta_learning():
    learner = MetaLearnerConfig(CLASSIFIER, "sparse-maml", 0.1, 2).build(stream(0, "init"))
    return lambda: fit(
        ModuleState(learner, MetaLearner.loss, PLAN), lambda step: IMAGES.sample(2, stream(0, "tasks", step)), PLAN
    )


def learning_tasks():
    network, family = (
        ClassifierConfig("mlp", 8, size=8, classes=10).build(stream(0, "init")),
        RotatedDigits(samples=10, queries=3),
    )

    def learned():
        tasks = family.sample(1, stream(0, "tasks")).map(lambda tensor: tensor[None])
        state = ContinualState([network], LaMAML(glances=2), [0])
        return fit(state, lambda step: batch_of(tasks, step, 5), Training(steps=2)).weights

    return learned


def following_a_stream():
    state = OnlineDescent(ClassifierConfig("mlp", 8, size=8, classes=4)).state(0)
    source = SwitchingImages(ways=4, shots=5, domains=("digits",), size=8)
    return lambda: fit(state, source.stream(2, 0), Training(steps=2))


def tuning_a_prompt():
    network = predictor()
    return lambda: prompt_tune(network, FewShotSequence(3, 2, 2), eos=True, training=PLAN)


def scoring_heads():
    model = language_model_config("softmax", 20, 16, width=8).build(stream(0, "init"))
    return lambda: head_scores(model, 4).copying


def comparing_predictors():
    first, second = predictor(), predictor()
    return lambda: compare(first, {"same": second}, LinearDynamics(d=3, length=6), tasks=10)


CALLS = {
    "tune_spectral": lambda: lambda: tune_spectral(GradientDescent(1, 1.0), FAMILY, contexts=20),
    "adapt": lambda: adapting(1),
    "adapt to the second order": lambda: adapting(2),
    "meta-learning": meta_learning,
    "continual learning": learning_tasks,
    "online learning": following_a_stream,
    "prompt_tune": tuning_a_prompt,
    "behaviour_of": lambda: lambda: behaviour_of(GradientDescent(1, 0.5), EPISODES, stream(0, "changes")),
    "head_scores": scoring_heads,
    "comparison of predictors": comparing_predictors,
}
EXAMPLES = {
    "family": lambda name, build: lambda: build().sample(2, stream(0, "tasks")),
    "learner": lambda name, build: build,
    "predictor": lambda name, build: build,
    "construction": lambda name, build: (
        lambda: build(3, 2, None) if facts("construction", name).get("of") == "predictor" else build(3, 1, 4, 2, None)
    ),
    "lens": lambda name, look: (
        partial(look, predictor(), SEQUENCES) if "of" in facts("lens", name) else lambda: look(NET, EPISODES)
    ),
}
# The examples of these draw or build tensors themselves, as the mode says.
LEFT_OUT = ("kernel-gradient-descent", "bayes-pool", "preconditioned-gradient-descent")
REGISTERED = {
    f"{kind} {name} {place}": partial(prepared, name, build)
    for kind, prepared in EXAMPLES.items()
    for place, (name, build) in enumerate(examples(kind))
    if name not in LEFT_OUT
}
BUILT = {f"{name} {place}": build for place, (name, build) in enumerate(examples("net"))}


def numbers(found):
    """All tensors and numbers of an answer."""
    if isinstance(found, torch.Tensor | np.ndarray | float | int):
        return [torch.as_tensor(found).detach()]
    if isinstance(found, nn.Module):
        found = found.state_dict()
    elif not isinstance(found, list | tuple | Mapping) and hasattr(found, "__dict__"):
        found = vars(found)
    parts = found.values() if isinstance(found, Mapping) else found if isinstance(found, list | tuple) else ()
    return [number for part in parts for number in numbers(part)]


def require_unchanged(prepared, *modes):
    torch.manual_seed(0)  # of what a lens shuffles
    expected = numbers(prepared()())
    for mode in modes:
        torch.manual_seed(0)
        call = prepared()
        with MODES[mode]():
            answer = call()
        found = numbers(answer)
        assert len(found) == len(expected), mode
        for one, other in zip(found, expected, strict=True):
            assert not one.is_inference(), mode
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True, msg=mode)


@in_turn("name", CALLS | REGISTERED)
def test_all_modes_at_once_change_no_number(name, unchecked):
    require_unchanged((CALLS | REGISTERED)[name], "all at once")


@pytest.mark.parametrize("name", BUILT)
def test_networks_are_built_alike_in_all_modes(name, unchecked):
    """But on the device "meta", where networks are built without memory."""
    require_unchanged(
        lambda: lambda: BUILT[name]().build(stream(0, "init")),
        "float64",
        "float16",
        "bfloat16",
        "no gradients",
        "inference",
        "autocast",
    )


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_changes_no_number(mode, unchecked):
    for call in (
        lambda: compare(NET, {"gd": GradientDescent(1, 1.0), "lsq": LeastSquares()}, FAMILY, tasks=10),
        lambda: alignment(NET, GradientDescent(1, 1.0), EPISODES),
        lambda: FAMILY.sample(3, stream(0, "tasks")),
        lambda: train(CONFIG.build, FAMILY, PLAN).weights,
        lambda: tune(GradientDescent(1, 1.0), FAMILY, tasks=10),
    ):
        require_unchanged(lambda call=call: call, mode)


def test_a_study_runs_alike_in_all_modes(tmp_path, unchecked):
    def studied():
        run = new_run(tiny_study.STUDY, "quick", out=tmp_path / str(len(list(tmp_path.iterdir()))))
        run_study(tiny_study.STUDY, tiny_study.STUDY.presets["quick"], run)
        return run.results["weights"]["norm"]

    require_unchanged(lambda: studied, "all at once")


def test_what_people_write_is_float32_in_all_modes_unless_it_says_float64(unchecked):
    """Their families and networks, which torch's default dtype would change."""

    class Own:
        def sample(self, batch, generator):
            x = torch.rand(batch, 6, 3, generator=generator)
            return Episode(Context(x[:, :5], x[:, :5, :1]), x[:, 5:], x[:, 5:, :1])

    class OwnWide(Own):
        def sample(self, batch, generator):
            return super().sample(batch, generator).to(torch.float64)

    require_unchanged(lambda: lambda: train(lambda generator: Scaled(), Own(), PLAN).weights, "all at once")
    require_unchanged(lambda: lambda: train(lambda generator: Scaled().double(), OwnWide(), PLAN).weights, "float64")
    with (
        default_dtype(torch.float64),
        pytest.raises(ArgumentTypeError, match=r"float32, but Scaled.* \.float\(\) or \.d"),
    ):
        compare(Scaled(), {"gd": GradientDescent(1, 1.0)}, Own(), tasks=5)


def test_modes_are_as_they_were_after_a_call_even_one_that_fails():
    for mode in (all_at_once, contextlib.nullcontext):
        with mode():
            before = modes_now()
            compare(NET, {"gd": GradientDescent(1, 1.0)}, FAMILY, tasks=10)
            with pytest.raises(ArgumentError):
                compare(NET, {}, FAMILY)
            assert modes_now() == before


def modes_now():
    return (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_autocast_enabled("cpu"),
        torch.is_inference_mode_enabled(),
        torch.is_grad_enabled(),
    )


def test_a_mode_that_a_learner_sets_is_its_own():
    """Autocast inside a learner rounds its predictions to bfloat16, whatever is around it."""
    linear = nn.Linear(3, 1)

    def rounded(context, xq):
        with torch.autocast("cpu", torch.bfloat16):
            return linear(xq).float()

    found = agreement(rounded, lambda context, xq: linear(xq), EPISODES).prediction_difference.value
    expected = (rounded(*EPISODES[:2]) - linear(EPISODES.xq)).norm(dim=-1).mean().item()
    assert found == pytest.approx(expected, rel=1e-4)
    assert found > 0


class Scaled(nn.Module):
    """A learner that multiplies two of its weights, so that a gradient needs both."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4, bias=False), nn.Linear(4, 1, bias=False)

    def forward(self, context, xq):
        return self.second(self.first(xq))


def looks(made):
    """Public calls on a module that was made in a mode."""
    episode, sequential = IMAGES.sample(2, stream(0, "tasks")), nn.Sequential(made.first, made.second)

    def state():
        return ModuleState(sequential, lambda net, batch: net(batch.xq[0, :, :3]).square().mean(), PLAN)

    return {
        "compare": lambda: compare(made, {"gd": GradientDescent(1, 1.0)}, FAMILY, tasks=5),
        "compare with": lambda: compare(GradientDescent(1, 1.0), {"made": made}, FAMILY, tasks=5),
        "alignment": lambda: alignment(made, GradientDescent(1, 1.0), EPISODES),
        "access_of": lambda: access_of(made, EPISODES),
        "train": lambda: train(lambda generator: made, FAMILY, PLAN),
        "tune": lambda: tune(made, FAMILY, tasks=10),
        "fit": lambda: fit(state(), lambda step: episode, PLAN),
    }


@pytest.mark.parametrize("name", looks(Scaled()))
def test_weights_of_a_mode_are_taken_or_refused_in_a_sentence(name, unchecked):
    with torch.device("meta"):
        made = Scaled()
    with pytest.raises(MesascopeError, match="meta"):
        looks(made)[name]()
    with torch.inference_mode():
        made = Scaled()
    looks(copy.deepcopy(made))[name]()
    taken = name in ("train", "tune")  # which compute with weights of their own
    with contextlib.nullcontext() if taken else pytest.raises(ArgumentError, match=r"made (in|outside) torch.inf"):
        looks(made)[name]()


def test_modules_behind_methods_partials_and_wrappers_are_in_eval_mode():
    module = torch.nn.Dropout()
    for learner in (module, module.forward, partial(module.forward, input=0), SimpleNamespace(learner=module)):
        with evaluating(learner):
            assert not module.training
        assert module.training
    for other in (len, "text", mock.MagicMock()):
        with evaluating(other):
            pass
