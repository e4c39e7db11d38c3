"""The study of language models of regression, end to end: text is what prompts say, and a served model is named."""

import dataclasses

import numpy as np
import pytest
import torch
from text_server import planted, serving

from mesascope import identification
from mesascope.adapters import FORMATS
from mesascope.learners import LeastSquares
from mesascope.records import registered
from mesascope.streams import stream
from mesascope.studies import new_run, run_study
from mesascope.studies.identifying.llm_regression import LanguageRegression, _regret, _table
from mesascope.studies.identifying.regressors import (
    LABELS,
    MODEL,
    PAIRS,
    SLOW,
    family,
    label_loss,
    network,
    tokens_of,
    words,
)
from mesascope.training import Ensemble

pytest.importorskip("openai")
FAMILY, WORDS = family(), words()
STUDY = registered("study")["llm-regression"]


def test_a_model_trains_on_the_text_that_it_is_prompted_with():
    tasks = FAMILY.sample(3, stream(0, "text"))
    tokens = tokens_of(tasks)
    for task in range(3):
        x, y, query = tasks.context.x[task], tasks.context.y[task, :, 0], tasks.xq[task, 0]
        rounded = [part.round(decimals=1).tolist() for part in (x, y, query)]
        prompt = WORDS.encode(FORMATS["compact"].prompt(*rounded, decimals=1))
        assert tokens[task, : len(prompt)].tolist() == prompt
        assert tokens[task, len(prompt) :].tolist() == [
            WORDS.of_numbers(tasks.yq[task, 0, 0]).item(),
            WORDS.signs["\n"],
        ]


def test_the_loss_is_that_of_labels_alone():
    tasks = FAMILY.sample(4, stream(0, "text"))
    tokens = tokens_of(tasks)

    def sure(wrong):
        """Logits that give each label, and every other token or none, probability 1."""

        def model(seen):
            following = torch.cat([seen[:, 1:], seen[:, :1]], 1)
            following[:, wrong::4] = (following[:, wrong::4] + 1) % len(WORDS)
            return 100.0 * torch.nn.functional.one_hot(following, len(WORDS)).float()

        return model

    assert label_loss(sure(0), tasks).item() == pytest.approx(0.0, abs=1e-6)  # what follows inputs does not matter
    assert label_loss(sure(1), tasks).item() == pytest.approx(100.0, rel=1e-4)  # what follows arrows does
    assert tokens.shape == (4, 4 * 21)


def test_members_of_an_ensemble_have_losses_of_their_own():
    config = network(width=8, layers=1)
    members = [config.build(stream(seed, "init")) for seed in (0, 1)]
    tasks = FAMILY.sample(2, stream(0, "text"))
    both = tasks.map(lambda part: torch.stack([part, part]))
    losses = label_loss(Ensemble(members), both)
    assert torch.allclose(losses, torch.stack([label_loss(one, tasks) for one in members]), atol=1e-5)


@pytest.fixture
def few_candidates(monkeypatch):
    """Every thirtieth of the catalogue, and ridge least-squares."""
    whole = identification.candidates

    def few(*args, **given):
        found = whole(*args, **given)
        return [one for place, one in enumerate(found) if place % 30 == 0 or one.name == "ridge least-squares"]

    monkeypatch.setattr(identification, "candidates", few)


def test_an_algorithm_behind_a_server_is_named(tmp_path, unchecked, few_candidates):
    ridge = (FAMILY.noise / FAMILY.w_scale) ** 2
    with serving(planted(LeastSquares(ridge), decimals=1)) as (url, seen):
        settings = LanguageRegression(
            seeds=2, tasks=3, slow_tasks=2, identify_tasks=8, identify_seeds=1, model="some-model", base_url=url
        )
        run = new_run(STUDY, "quick", settings, out=tmp_path / "run")
        records = {record["id"]: record for record in run_study(STUDY, settings, run)}
    found = run.results["identified"]
    place = [str(name) for name in found["candidate"]].index("ridge least-squares")
    assert (found["worst"][:, place] < 1e-6).all()
    assert {body["model"] for body in seen} == {"some-model"}
    assert records["converged"]["verdict"] == "undecided"
    assert len(list(run.path.glob("answers-*.jsonl"))) == 2
    errors = run.results["errors"]
    assert np.abs(errors["model"] - errors["bayes"]).max() < 0.051  # answers have one decimal
    assert run.results["names"]["error"].shape == (2, 3)
    assert "some-model" in (run.path / "config.json").read_text()


def test_a_model_is_compared_with_references_on_the_tasks_that_it_answered():
    """Every fifth task is a hundred times as hard, and the model answers none of these."""
    hard = np.where(np.arange(50) % 5, 1.0, 100.0)
    references = {name: np.tile(2 * hard, (1, PAIRS, 1)) for name in LABELS}
    model = np.where(hard > 1, np.nan, 3.0) * np.ones((1, PAIRS, 1))
    found = {"errors": {MODEL: model, "label": references["linear"] + hard, **references}}
    np.testing.assert_allclose(_regret(found)[0], np.arange(1, PAIRS + 1))
    found["whole"] = dict.fromkeys(SLOW, references["linear"][:, 0, :40])
    np.testing.assert_allclose(np.nanmean(_table(found)["errors"], -1), [[3.0] + [2.0] * (len(LABELS) + len(SLOW))])


@pytest.mark.parametrize("given", [{"model": "a"}, {"base_url": "http://localhost:1/v1"}])
def test_a_model_and_its_server_go_together(given):
    with pytest.raises(ValueError, match=r"^model must be named if and only if base_url is"):
        dataclasses.replace(LanguageRegression(), **given)
