"""Readings of the regression studies that have logic of their own."""

import numpy as np
import pytest
import torch
from uncertainties import unumpy

from mesascope import lenses, nets, tasks
from mesascope.evidence import Arrays, judge
from mesascope.learners import Centred, GradientDescent, GradientDescentPlusPlus
from mesascope.records import registered
from mesascope.streams import stream
from mesascope.studies.common import converged, late_share
from mesascope.studies.icl_gd.deep import _smooth
from mesascope.studies.icl_gd.deep_networks import as_network
from mesascope.studies.icl_gd.regression import Regression, UnseenInputs, predicted
from mesascope.studies.icl_gd.shared import diagonal_spread
from mesascope.studies.icl_gd.sine import _transformer, as_transformer
from mesascope.studies.icl_gd.softmax import _shape
from mesascope.studies.icl_gd.weights import _heads, _left_of_heads
from mesascope.training import Training

STUDIES = registered("study")
STEP = np.arange(0, 101, 10)


def curves(*losses):
    return Arrays({"step": STEP, "mse": np.array(losses)}, step="step", mse="seed step")


def test_a_loss_that_falls_by_one_factor_throughout_has_a_fifth_of_its_fall_in_the_last_fifth():
    steady = curves(*(np.exp(-rate * STEP) for rate in (0.01, 0.05, 0.1)))
    np.testing.assert_allclose(late_share(steady, log=True), 0.2)
    assert (late_share(steady)[1:] < 0.02).all(), "on a linear scale the same curves look converged"


def test_a_loss_that_rises_or_stays_has_not_converged():
    np.testing.assert_array_equal(late_share(curves(np.ones(11), np.linspace(1, 2, 11))), [1.0, 1.0])
    still = {"separate": curves(*(np.ones(11) - 1e-9 * seed * STEP for seed in range(5)))}
    assert judge([converged("separate")], still, "quick")[0]["verdict"] != "holds"


def test_the_spectral_loss_of_a_centred_step_is_that_on_tasks():
    family = tasks.LinearRegression(x_scale=0.5)

    class Bench:
        def draw(self, family, tasks, name):
            return family.sample(tasks, stream(0, name))

    steps = {"gd": GradientDescent(1, 6.0), "centred": Centred(GradientDescent(1, 6.5))}
    theory = predicted(Bench(), Regression(Training(), tune_tasks=20_000), steps)
    fresh = family.sample(20_000, stream(1, "eval"))
    for name, step in steps.items():
        assert float(lenses.per_task_errors(step, fresh).mean()) == pytest.approx(
            theory["expected", name][0].nominal_value, rel=0.03
        )
    assert all(abs((theory["mse", name] / theory["expected", name])[0].nominal_value - 1) < 0.02 for name in steps)


def test_unseen_inputs_have_their_norm_other_distributions_and_the_family_s_teachers():
    drawn = UnseenInputs(tasks.LinearRegression(n_context=40, x_scale=0.5), norm=3.0).sample(600, stream(0, "a"))
    x, y = (part.double() for part in drawn.context)
    np.testing.assert_allclose(x.norm(dim=(1, 2)), 3.0, rtol=1e-5)
    weights = torch.linalg.lstsq(x, y).solution
    np.testing.assert_allclose(drawn.xq.double() @ weights, drawn.yq, atol=1e-4)
    assert float(weights.square().mean()) == pytest.approx(1.0, rel=0.1)
    z = x / x.square().mean((1, 2), keepdim=True).sqrt()
    third = float((z > 0).all((1, 2)).double().mean())  # exponential inputs are positive
    assert third == pytest.approx(1 / 3, abs=0.06)
    kurtosis = z[(z < 0).any((1, 2))].pow(4).mean((1, 2))
    assert 0.3 < float((kurtosis > 4.3).double().mean()) < 0.7, "half are normal (3), half Laplace (6)"
    scaled = UnseenInputs(tasks.LinearRegression(n_context=40, x_scale=0.5), norm=3.0, w_scale=5.0)
    same, expected = scaled.sample(600, stream(0, "a")), 5 * drawn.yq
    np.testing.assert_allclose(same.yq, expected, rtol=1e-4, atol=1e-5)


def test_the_shape_of_a_sweep_leaves_out_the_scale_it_is_relative_to():
    ratio = unumpy.uarray(np.outer([1.0, 3.0], [1.0, 2.0, 4.0, 4.0, 4.0, 4.0, 8.0]), 1e-3)

    class Swept:
        def ratio(self, above, below):
            return ratio

    np.testing.assert_allclose(unumpy.nominal_values(_shape(Swept())), [[0.25, 0.5, 1, 1, 1, 2]] * 2)


def test_a_path_is_smooth_where_its_middle_is_above_neither_end():
    ends = np.array([[1.0, 0.9], [1.05, 1.09], [1.2, 1.0], [0.5, 1.3]])
    assert _smooth(unumpy.uarray(ends, 0.01)).tolist() == [True, True, False, False]


def test_gd_plus_plus_in_a_networks_architecture_is_gd_plus_plus_with_its_clip():
    descent = GradientDescentPlusPlus(5, [4.0, 20.0, 30.0, 40.0, 50.0], [0.3] * 5, token_clip=10.0)
    config = nets.TransformerConfig(width=11, n_layers=5, token_clip=10.0)
    net = as_network(nets.InContextRegressorConfig(config).build().double(), descent)
    hard = tasks.LinearRegression(x_scale=1.0).sample(200, stream(0, "hard"))
    exact = hard.to(net.products()[0].w_kq.dtype)
    ours, theirs = net(exact.context, exact.xq), descent(exact.context, exact.xq)
    assert (theirs.abs() == 10.0).any(), "some tokens must be clipped"
    np.testing.assert_allclose(ours.detach(), theirs.detach(), atol=1e-9)


def test_a_transformer_that_starts_from_a_control_predicts_what_it_does():
    control = nets.EmbeddedDescentConfig(nets.EmbeddingConfig(2, 40, 4, 0.5), steps=1, eta=0.3).build(stream(0, "init"))
    started = as_transformer(control, _transformer(STUDIES["sine"].presets["quick"], 0.2))
    waves = tasks.SineWaves().sample(50, stream(0, "waves"))
    both = [one.trajectory(waves.context, waves.xq).detach() for one in (control, started)]
    np.testing.assert_allclose(both[0], both[1], rtol=1e-4, atol=1e-4)
    assert float(both[0].std()) > 0.1


def test_heads_of_opposite_sign_off_the_diagonal_cancel():
    rng = np.random.default_rng(0)
    off = rng.normal(size=(3, 4, 4))
    heads = np.stack([off + np.eye(4), -off + np.eye(4)], axis=1)
    np.testing.assert_allclose(_left_of_heads(heads), 0.0, atol=1e-12)
    np.testing.assert_allclose(_left_of_heads(np.stack([off, off], axis=1)), 2.0)


def test_heads_are_scaled_by_the_target_entry_of_their_own_values():
    config = nets.TransformerConfig(width=11, n_heads=2, key_size=11, attention="softmax")
    net = nets.InContextRegressorConfig(config).build(stream(0, "init"))
    (w_kq, w_pv) = net.products()[0]
    found = _heads([net])["scaled_kq"]
    for head in range(2):
        np.testing.assert_allclose(found[0, head], (w_kq[head] * w_pv[head, 10, 10])[:10, :10].detach(), rtol=1e-6)


def test_the_spread_of_the_curvature_is_relative_to_its_mean():
    w_pv = np.diag([*[-0.2] * 9, -0.3, -2.0])[None]
    assert diagonal_spread(w_pv)[0] == pytest.approx(0.3 / 0.21 - 1)
