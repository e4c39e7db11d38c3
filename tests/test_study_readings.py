"""Readings of studies that have logic of their own."""

import dataclasses
import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mesascope.errors import ArgumentError
from mesascope.evidence import Arrays, Estimates
from mesascope.language import language_model_config, token_losses
from mesascope.records import registered
from mesascope.streams import stream
from mesascope.studies.common import converged, late_share
from mesascope.studies.icl_gd.copying import _gain, copying_before
from mesascope.studies.icl_gd.curvature import condition_number, condition_numbers, flattest, transformed
from mesascope.studies.icl_gd.phase_transitions import rise_and_fall
from mesascope.studies.language import language_mesa, measuring
from mesascope.studies.language.measuring import cut_losses

LEVELS = (0.4, 1.0)  # losses of gradient descent, and of predicting 0


def test_the_in_context_score_is_negative_where_the_loss_falls_along_a_text():
    settings = registered("study")["language-mesa"].presets["paper"]
    falling = np.linspace(2.0, 1.0, settings.context)
    means = {band: float(falling[tokens].mean()) for band, tokens in settings.bands().items()}
    assert means["early"] > means["loss"] > means["end"]
    assert means["late"] == pytest.approx(1.5, abs=0.001), "it surrounds the middle of the context"
    read = {(band, name): [np.full(64, mean)] for band, mean in means.items() for name in ("softmax", "mesa")}
    score = language_mesa.score("two", "softmax")({"two": Estimates.of(read)})
    assert float(np.ravel(score)[0].nominal_value) == pytest.approx(means["late"] - means["early"])
    assert means["late"] < means["early"]


def curves(**arrays):
    return Arrays(arrays, **{name: "step" if name == "step" else "seed step" for name in arrays})


def test_a_rise_on_the_plateau_and_a_late_fall_are_read_from_curves():
    step = np.arange(0, 100, 10)
    test = np.array([1.0, 0.98, 1.1, 1.2, 1.2, 1.2, 0.5, 0.42, 0.44, 0.5])
    own = np.array([1.0, 0.87, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.3, 0.3])
    rise, fallen, delay = rise_and_fall(step, test, own, *LEVELS)
    assert rise == pytest.approx(1.2 / 0.98 - 1)
    assert fallen == pytest.approx(1.05)
    assert delay == 6.0


def test_the_plateau_of_a_loss_that_starts_far_above_that_of_predicting_zero_begins_below_it():
    step, own = np.arange(0, 70, 10), np.array([6.0, 1.4, 0.95, 0.9, 0.85, 0.5, 0.3])
    rise, _, delay = rise_and_fall(step, np.array([6.0, 1.4, 1.0, 1.1, 1.05, 0.6, 0.4]), own, *LEVELS)
    assert rise == pytest.approx(0.1)
    assert delay == 50 / 40


def test_overfitting_after_the_fall_is_no_rise_and_a_plateau_never_left_no_fall():
    step = np.arange(0, 60, 10)
    rise, _, delay = rise_and_fall(step, np.array([1.0, 0.9, 0.45, 0.42, 0.6, 0.8]), np.full(6, 1.0), *LEVELS)
    assert rise == 0.0
    assert np.isnan(delay)
    _, fallen, delay = rise_and_fall(step, np.full(6, 1.0), np.linspace(1.0, 0.5, 6), *LEVELS)
    assert fallen == pytest.approx(2.5)
    assert np.isnan(delay)


def test_a_loss_that_is_low_before_the_first_step_has_learnt_nothing():
    step = np.arange(0, 40, 10)
    _, _, delay = rise_and_fall(step, np.array([1.0, 1.0, 1.0, 0.4]), np.array([0.8, 0.8, 0.5, 0.3]), *LEVELS)
    assert delay == 3.0


def test_copying_is_read_before_the_jump_and_not_during_it():
    run = {
        "mse": np.array([[9.0, 1.0, 0.97, 0.7, 0.5], [1.0, 0.9, 0.99, 0.5, 0.5]]),
        "zero mse": np.full((2, 5), 1.0),
        "gd mse": np.full((2, 5), 0.5),
        "next": np.array([[1.0, 4.0, 8.0, 30.0, 40.0], [2.0, 9.0, 9.0, 9.0, 9.0]]),
        "others": np.full((2, 5), 2.0),
    }
    assert copying_before(run, share=0.1).tolist() == [4.0, 1.0]
    assert copying_before(run, share=0.7).tolist() == [15.0, 4.5]


def test_sensitivity_gains_nothing_where_no_fall_is_seen_or_nothing_is_seen_before_it():
    run = {
        "mse": np.array([[1.0, 0.9, 0.5], [1.0, 1.0, 1.0], [0.7, 0.5, 0.5]]),
        "zero mse": np.full((3, 3), 1.0),
        "gd mse": np.full((3, 3), 0.5),
        "next": np.tile([2.0, 4.0, 16.0], (3, 1)),
        "others": np.full((3, 3), 2.0),
    }
    assert copying_before(run).tolist() == [1.0, 8.0, 0.0]
    assert _gain(run).tolist() == [3.0, 0.0, 0.0]


def test_the_gamma_of_least_condition_number_is_no_worse_than_any_other():
    low, high = 0.1, 7.7
    best = flattest(low, high)
    bound = condition_numbers(low, high, np.linspace(0.001, 0.999, 5000) / high)
    assert 0 < best < 1 / high
    assert condition_numbers(low, high, np.array([best]))[0] <= bound.min() * (1 + 1e-3)
    spectra = np.random.default_rng(0).uniform(low, high, (200, 6))
    spectra[:, 0], spectra[:, 1] = low, high
    after = condition_number(transformed(spectra, best))
    assert (after <= condition_numbers(low, high, np.array([best])) * (1 + 1e-9)).all()
    assert (after < condition_number(spectra)).all()


def test_every_training_must_have_converged_in_the_quantity_that_is_named():
    step = np.arange(0, 101, 10)
    done, falling = np.minimum(step, 50) / -50 + 2.0, 2.0 - step / 100
    still, moving = curves(step=step, mse=np.stack([done] * 3)), curves(step=step, mse=np.stack([falling] * 3))
    assert late_share(still).tolist() == [0.0] * 3
    assert late_share(moving) == pytest.approx(0.2)
    read = converged("one", "two").reading({"one": still, "two": moving})
    assert read == pytest.approx(np.array([[0.0, 0.2]] * 3))
    both = curves(step=step, mse=np.stack([falling]), own=np.stack([done]))
    assert converged("one", quantity="own").reading({"one": both}).tolist() == [[0.0]]


@pytest.mark.parametrize("context", [32, 38])
def test_losses_behind_a_cut_are_of_the_second_half_by_who_has_read_an_eighth_to_a_quarter(context):
    net = language_model_config("mesa", 11, context, width=8, n_heads=2).build(stream(0, "init")).double()
    windows = torch.randint(11, (3, 2 * context + 1), generator=stream(1, "windows"))
    eighth, half = context // 8, context // 2
    slow = [
        token_losses(net, windows[:, place - eighth - (place - half) % eighth : place + 2])[:, -1]
        for place in range(half, context)
    ]
    torch.testing.assert_close(cut_losses(net, windows, context), torch.stack(slow, 1))


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("cross-domain", {"domains": ("digits", "nope")}, "nope"),
        ("cross-domain", {"shown": ("nope",)}, "nope"),
        ("cross-domain", {"domain_ways": 6}, "domain_ways must be at most 5"),
        ("continual-online", {"domains": ("digits", "nope")}, "nope"),
    ],
)
def test_datasets_to_judge_by_are_read_before_anything_trains(name, changes, said):
    def late(*args, **kwargs):
        pytest.fail("trains before it has read all datasets")

    study = registered("study")[name]
    lab = SimpleNamespace(
        seeds=[0], train=late, stage=late, draw=lambda family, n, use: family.sample(2, stream(0, use))
    )
    with pytest.raises(ArgumentError, match=said):
        study.measure(lab, dataclasses.replace(study.presets["quick"], **changes))


def test_losses_of_pairs_are_those_of_counts_with_a_prior_of_one_token(monkeypatch):
    read, judged = np.array([0, 1, 2, 1, 0, 1, 1, 2, 0, 3, 3]), np.array([[1, 2, 0, 3, 0], [3, 0, 1, 1, 2]])
    corpus: Any = SimpleNamespace(
        index=SimpleNamespace(vocabulary=4),
        tokens=lambda split: len(read),
        windows=lambda split, starts, length: read[None, :length],
    )
    for counted in (len(read), 9):
        monkeypatch.setattr(measuring, "COUNTED", counted)
        part, losses = read[:counted].tolist(), []
        for row in judged[:, :3].tolist():  # windows are twice as long as what is judged
            for first, second in itertools.pairwise(row):
                prior = (part.count(second) + 1) / (len(part) + 4)
                pairs = list(itertools.pairwise(part)).count((first, second))
                losses.append(-math.log((pairs + prior) / (part.count(first) + 2)))
        found = measuring.pair_frequencies(corpus, torch.from_numpy(judged))
        assert found["frequencies"] == pytest.approx(np.mean(losses), rel=1e-12)
