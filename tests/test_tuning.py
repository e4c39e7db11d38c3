"""Tuned step sizes: known optima from any start, nesting, warm starts, and what L-BFGS promises."""

import math
import warnings

import pytest
import torch
from hypothesis import given, settings, strategies as st

from mesascope.errors import ArgumentError, NumericalError
from mesascope.learners import (
    GradientDescent,
    GradientDescentPlusPlus,
    LeastSquares,
    OnlineGradientDescent,
    gram_spectra,
    one_step_optimum,
    spectral_mse,
    tune,
    tune_spectral,
)
from mesascope.learners.transformed import Centred
from mesascope.learners.tuning.minimisation import minimise, rescaled, standard_errors
from mesascope.learners.tuning.starts import at_depth, depths, extended, padded, scattered
from mesascope.lenses import per_task_errors
from mesascope.measurement import Measurement
from mesascope.streams import stream
from mesascope.tasks import LinearDynamics, LinearRegression

pytestmark = pytest.mark.usefixtures("unchecked_module")

WIDE, NARROW = LinearRegression(), LinearRegression(x_scale=0.5)

# Mean squared errors of the best step sizes for uniform inputs on (-1, 1), N = d = 10: (steps, sizes of each, value).
KNOWN = [(2, False, 0.8835), (3, False, 0.6216), (2, True, 0.7358)]


def test_warnings_of_torch_about_itself_do_not_reach_a_user(monkeypatch):
    """From torch 2.14 on, the first derivative in forward mode warns of `torch.jit.script`."""
    jvp = torch.func.jvp

    def warning(*arguments):
        warnings.warn("`torch.jit.script` is deprecated. Please switch", FutureWarning, stacklevel=2)
        return jvp(*arguments)

    monkeypatch.setattr(torch.func, "jvp", warning)
    tune(GradientDescent(1, 0.5), LinearRegression(n_context=4, d_in=2), tasks=50)


def plus(steps, eta, gamma, each=False, **kwargs):
    return GradientDescentPlusPlus(steps, [eta] * steps if each else eta, [gamma] * steps if each else gamma, **kwargs)


STARTS = [(1, 1), (0.1, 0.1), (0.1, 10), (10, 0.1), (10, 10), (3, 0.3)]


# Every optimum from four of the starts, and every start towards two of the optima.
@pytest.mark.parametrize(
    ("which", "seed"), [(which, seed) for seed in range(6) for which in range(3) if which != seed % 3]
)
def test_known_optima_are_reached_from_starts_within_a_factor_of_ten(which, seed, unchecked):
    (steps, each, known), factors = KNOWN[which], STARTS[seed]
    tuned = tune_spectral(plus(steps, 3.0 * factors[0], 0.04 * factors[1], each), WIDE, seed=seed)
    assert abs(tuned.mse.value - known) < 4 * tuned.mse.stderr
    assert 0 <= tuned.starts[0] <= tuned.starts[-1]


def test_smaller_inputs_only_change_the_units():
    wide, narrow = (tune_spectral(plus(3, 3.0, 0.03), family) for family in (WIDE, NARROW))
    assert narrow.mse.value == pytest.approx(wide.mse.value / 4, rel=1e-6)
    for name in ("eta", "gamma"):
        one, other = (tuned.step_sizes[name][0].value for tuned in (wide, narrow))
        assert other == pytest.approx(4 * one, rel=1e-3)


@pytest.mark.parametrize(("eta", "gamma"), [(1.2, 0.02), (120.0, 2.0), (1e6, 1e6), (1e-9, 1e-9)])
def test_no_start_is_too_large_or_too_small(eta, gamma):
    """Five tied steps from sizes at which the loss overflows too."""
    tuned = tune_spectral(plus(5, eta, gamma), WIDE, contexts=2_000)
    assert tuned.mse.value < 0.43


@pytest.mark.parametrize("rule", [lambda k: plus(k, 2.0, 0.02, each=True), lambda k: GradientDescent(k, [2.0] * k)])
@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_more_steps_are_never_worse_on_spectra(rule, noise, unchecked):
    family = LinearRegression(5, 5, noise=noise)
    losses = [tune_spectral(rule(steps), family, contexts=300).mse.value for steps in range(1, 5)]
    assert losses == sorted(losses, reverse=True)
    assert losses[2] < 0.9 * losses[0]


@pytest.mark.parametrize("clip", [None, 3.0])
def test_more_steps_are_never_worse_on_tasks(clip, unchecked):
    family = LinearRegression(4, 4, x="exponential")  # has no spectral loss: every step is found on tasks
    losses = [
        tune(plus(steps, 0.3, 0.01, each=True, token_clip=clip), family, tasks=200).mse.value for steps in (1, 2, 3)
    ]
    assert losses == sorted(losses, reverse=True)


@settings(max_examples=10, deadline=None)
@given(eta=st.floats(0.01, 30), gamma=st.floats(0.001, 0.5), steps=st.integers(1, 3))
def test_the_result_is_never_worse_than_the_values_passed_in(eta, gamma, steps):
    family = LinearRegression(5, 5)
    tuned = tune_spectral(plus(steps, eta, gamma), family, contexts=300)
    own = spectral_mse(gram_spectra(family, 300, stream(0, "tune")), plus(steps, eta, gamma), family)
    assert tuned.mse.value <= own.mean().item()


def test_the_loss_reported_is_that_of_fresh_tasks():
    """Not that of the tasks that the step sizes were fitted to, of the same stream before them."""
    tuned, draw = tune(plus(2, 1.0, 0.01, each=True), WIDE, tasks=100), stream(0, "tune")
    fitted, fresh = (Measurement.of(per_task_errors(tuned.learner, WIDE.sample(size, draw))) for size in (100, 1_000))
    assert tuned.mse.value == pytest.approx(fresh.value, rel=1e-4)
    assert tuned.mse.value != pytest.approx(fitted.value, rel=1e-2)


def test_clipped_steps_are_no_worse_than_the_optimum_without_a_clip(unchecked):
    """Below what a search from equal sizes alone finds, by far."""
    learner = plus(3, 8.0, 0.1, each=True, token_clip=10.0)
    tuned = tune(learner, NARROW, tasks=200)
    free = tune_spectral(learner, NARROW, contexts=2_000)
    assert tuned.learner.token_clip == free.learner.token_clip == 10.0
    fresh = NARROW.sample(20_000, stream(1, "fresh"))
    clipped, spectral = (Measurement.of(per_task_errors(one.learner, fresh)) for one in (tuned, free))
    assert clipped.value < spectral.value + 4 * spectral.stderr
    assert clipped.value < 0.09


def test_layers_in_turn_meet_what_restarts_found():
    """Two steps with sizes of their own, inputs on (-1/2, 1/2): a half loss of .0922 at eta 4.2 and 36.9."""
    tuned = tune_spectral(plus(2, 3.0, 0.03, each=True), NARROW)
    assert tuned.mse.value / 2 < 0.0922
    assert tuned.step_sizes["eta"][1].value > 5 * tuned.step_sizes["eta"][0].value


def test_the_descent_within_another_learner_is_tuned_depth_after_depth():
    family = LinearRegression(6, 3)
    learner = Centred(GradientDescent(2, [0.1, 0.1]))
    assert depths(learner) == [1, 2]
    assert set(tune(learner, family, tasks=300).step_sizes) == {"learner.eta"}


def test_one_step_on_sequences_is_tuned_to_the_minimum_of_its_parabola():
    family = LinearDynamics(3, 12)
    tuned = tune(OnlineGradientDescent(1, eta=0.5), family, tasks=400, seed=3)
    sequences = family.sample(400, stream(3, "tune")).double()
    step = OnlineGradientDescent(1, eta=1.0)(sequences[:, :-1])
    best = (step * sequences[:, 1:]).sum() / step.square().sum()
    assert tuned.step_sizes["eta"][0].value == pytest.approx(best.item(), rel=1e-6)


def test_starts_agree_where_there_is_one_minimum_and_differ_with_the_seed():
    first, second = (tune(GradientDescent(1, 1.0), NARROW, tasks=1_000, seed=seed) for seed in (0, 1))
    assert first.spread < 1e-6
    assert first.starts != second.starts
    rugged = tune_spectral(plus(3, 1.0, 0.01, each=True), WIDE, contexts=500)
    assert rugged.spread > 0.01
    assert rugged.starts == tuple(sorted(rugged.starts))


def test_depths_follow_one_another_where_steps_have_sizes_of_their_own():
    assert depths(plus(4, 1.0, 0.1, each=True)) == [1, 2, 3, 4]
    assert depths(plus(10, 1.0, 0.1)) == [1, 2, 5, 10]
    assert depths(GradientDescentPlusPlus(3, 1.0, [0.1] * 3)) == [1, 2, 3]
    assert depths(GradientDescent(0, 1.0)) == depths(LeastSquares()) == [0]


def test_a_step_of_size_zero_changes_nothing():
    episode = WIDE.sample(20, stream(0, "t")).to(torch.float64)
    deep = GradientDescentPlusPlus(3, [1.0, 2.0, 9.0], [0.02, 0.05, 0.1], token_clip=2.0)
    shallow = at_depth(deep, 2)
    assert shallow.steps == 2
    values = padded(dict(shallow.named_parameters()), dict(deep.named_parameters()))
    answer = torch.func.functional_call(deep, values, (episode.context, episode.xq))
    torch.testing.assert_close(answer, shallow(episode.context, episode.xq))


def test_a_deeper_start_keeps_the_steps_found_and_grows_by_ninths():
    double = lambda *sizes: torch.tensor(sizes, dtype=torch.float64)  # noqa: E731
    shapes = {"eta": torch.zeros(3), "gamma": torch.zeros(3)}
    starts = extended({"eta": double(1.0, 9.0), "gamma": double(0.1, 0.7)}, shapes, n=10)
    torch.testing.assert_close(starts[0]["eta"], double(1.0, 9.0, 81.0))
    torch.testing.assert_close(starts[0]["gamma"], double(0.1, 0.9, 0.9))
    first = extended({"eta": double(1.5), "gamma": double(123.0)}, {"eta": torch.zeros(2), "gamma": torch.zeros(2)}, 10)
    torch.testing.assert_close(first[0]["gamma"], double(0.075, 0.075))


def test_scattered_starts_stay_within_a_factor_of_ten_and_repeat():
    values = {"eta": torch.full((50,), 2.0, dtype=torch.float64)}
    (one,), (again,), (other,) = (scattered(values, 1, stream(seed, "s")) for seed in (0, 0, 1))
    assert torch.equal(one["eta"], again["eta"])
    assert not torch.equal(one["eta"], other["eta"])
    assert 0.2 <= one["eta"].min() < 0.4
    assert 10 < one["eta"].max() <= 20


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=2), st.floats(-4, 4))
def test_minimising_never_ends_above_its_start_even_where_the_loss_overflows(start, scale):
    point, units = torch.tensor(start, dtype=torch.float64), torch.full((2,), 10.0**scale, dtype=torch.float64)

    def losses(x):
        return torch.stack([(3 * x[0]).sin() + 2 + x[1] ** 2, (x**2).sum().mul(60).exp() - 1])

    end = minimise(losses, point, units, 50)
    assert losses(end).mean() <= losses(point).mean()


def test_minimising_meets_quadratics_of_very_different_units():
    target, units = torch.tensor([2e4, -3e-3], dtype=torch.float64), torch.tensor([1e4, 1e-3], dtype=torch.float64)
    end = minimise(lambda x: 1 + ((x - target) / units).square(), units.clone(), units, 60)
    torch.testing.assert_close(end, target, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e3])
def test_starts_are_scaled_to_where_their_loss_is_least(size):
    """It overflows beyond 27, and is least at 2."""
    start = torch.tensor([size, -size], dtype=torch.float64)
    scaled = rescaled(lambda x: ((x[:1] - 2).square() + x.square().sum() / 1e3).exp(), start)
    assert 1 < scaled[0] < 4
    assert scaled[1] == -scaled[0]
    with pytest.raises(NumericalError, match="must be finite near zero step sizes"):
        rescaled(lambda x: x * math.nan, start)


def test_standard_errors_are_those_of_a_mean():
    """The minimum of the mean of (x_i - m)^2 is the sample's mean, whatever the units."""
    samples = 5 + 3 * torch.randn(4_000, dtype=torch.float64, generator=stream(0, "s"))
    at = samples.mean()[None]
    for unit in (1.0, 1e5):
        error = standard_errors(lambda m: (samples - m).square(), at, torch.full((1,), unit, dtype=torch.float64))
        assert error.item() == pytest.approx(samples.std().item() / 4_000**0.5, rel=1e-3)


def test_standard_errors_are_the_spread_over_seeds():
    family = LinearRegression(5, 2)
    etas = [tune(GradientDescent(1, 0.3), family, tasks=200, seed=seed).step_sizes["eta"][0] for seed in range(25)]
    values = torch.tensor([eta.value for eta in etas])
    assert abs(values.mean().item() - one_step_optimum(family).eta) < 4 * values.std().item() / 5
    stated = sum(eta.stderr for eta in etas) / 25
    assert 0.6 < values.std().item() / stated < 1.6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tune(LeastSquares(), WIDE), "learner must have parameters to tune"),
        (lambda: tune(GradientDescent(0, 1.0), WIDE), "learner must have parameters to tune"),
        (lambda: tune(GradientDescent(1, 1.0), WIDE, tasks=1), "tasks must be at least 2"),
        (lambda: tune_spectral(GradientDescent(1, 1.0), WIDE, contexts=1), "contexts must be at least 2"),
        (
            lambda: tune_spectral(GradientDescent(1, 1.0, w0=torch.ones(1, 10)), WIDE),
            "learner must start from zero weights",
        ),
        (lambda: tune_spectral(GradientDescent(1, 1.0), LinearRegression(x="exponential")), "family.x must be one of"),
    ],
)
def test_what_cannot_be_tuned_is_refused(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


@pytest.mark.parametrize("start", [GradientDescent(1, -1.0), GradientDescent(1, -1e-6), GradientDescent(1, -1e6)])
def test_a_start_of_the_wrong_sign_finds_the_optimum(start):
    family = LinearRegression(n_context=8, d_in=3)
    right, found = tune(GradientDescent(1, 1.0), family, tasks=500), tune(start, family, tasks=500)
    assert found.step_sizes["eta"][0].value == pytest.approx(right.step_sizes["eta"][0].value, rel=1e-4)


@pytest.mark.parametrize("exponent", range(-12, -6))
def test_a_change_of_a_loss_by_rounding_is_no_start(exponent):
    scale = 10.0**exponent

    def losses(point):
        return 1 + (point[0] * scale - 0.07).square() + torch.zeros(50, dtype=torch.float64)

    start = rescaled(losses, torch.tensor([1e-3], dtype=torch.float64))
    assert 0.01 < float(start[0]) * scale < 0.5


def test_a_parameter_without_effect_has_an_unknown_error():
    def losses(point):
        return (point[0] - torch.linspace(0, 1, 50, dtype=torch.float64)).square() + 0 * point[1]

    point = torch.tensor([0.5, 2.0], dtype=torch.float64)
    first, second = standard_errors(losses, point, torch.ones_like(point)).tolist()
    assert 0 < first < 0.1
    assert math.isnan(second)
