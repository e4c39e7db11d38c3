"""Kernel, second-order, sparse and Bayesian learners against independent computations."""

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sklearn import kernel_ridge, linear_model
from sklearn.neighbors import KNeighborsRegressor

from mesascope.adapters import from_sklearn
from mesascope.errors import ArgumentError, NumericalError
from mesascope.learners import (
    Averaging,
    BayesPool,
    DeltaRule,
    GradientDescent,
    KernelGradientDescent,
    KernelRidge,
    KernelSmoother,
    LabelCopying,
    Lasso,
    LeastSquares,
    Momentum,
    Muon,
    NearestNeighbours,
    Newton,
    NormalisedDescent,
    PreconditionedGradientDescent,
    Titans,
    WithIntercept,
    tune,
)
from mesascope.lenses import per_task_errors
from mesascope.measurement import Measurement
from mesascope.streams import stream
from mesascope.tasks import Context, LinearRegression


def episode(n=12, d=4, d_out=2, noise=0.3, tasks=5):
    family = LinearRegression(n, d, d_out, noise=noise, n_query=3)
    return family.sample(tasks, stream(0, "learners")).to(torch.float64)


def test_preconditioned_descent_with_a_multiple_of_the_identity_is_gradient_descent():
    tasks = episode()
    torch.testing.assert_close(
        PreconditionedGradientDescent(0.7 * torch.eye(4), steps=3).trajectory(tasks.context, tasks.xq),
        GradientDescent(3, 0.7).trajectory(tasks.context, tasks.xq),
    )


@pytest.mark.parametrize(("noise", "w_scale"), [(0.0, 2.0), (0.7, 1.0)])
def test_the_best_preconditioner_is_the_closed_form(noise, w_scale):
    mixing = torch.randn(4, 4, generator=stream(0, "covariance"), dtype=torch.float64)
    covariance = mixing @ mixing.mT / 4 + 0.1 * torch.eye(4)
    family = LinearRegression(8, 4, x="normal", covariance=covariance, noise=noise, w_scale=w_scale, x_scale=0.8)
    inputs, identity = 0.8**2 * covariance, torch.eye(4, dtype=torch.float64)
    matrix = torch.linalg.inv(9 / 8 * inputs + (inputs.trace() + noise**2 / w_scale**2) / 8 * identity)
    mse = float(w_scale**2 * (inputs.trace() - (inputs @ matrix @ inputs).trace()))
    tuned = tune(PreconditionedGradientDescent(torch.eye(4)), family, tasks=20_000)
    for entry, best in zip(tuned.step_sizes["matrix"], matrix.flatten().tolist(), strict=True):
        assert abs(entry.value - best) < 4 * entry.stderr
    fresh = family.sample(100_000, stream(1, "fresh"))
    loss = Measurement.of(per_task_errors(PreconditionedGradientDescent(matrix), fresh))
    assert abs(loss.value - mse) < 3 * loss.stderr


def test_newton_squares_the_residual_at_each_step_and_ends_at_least_squares():
    tasks = episode(n=20)
    exact = LeastSquares()(tasks.context, tasks.xq)
    gram = tasks.context.x.mT @ tasks.context.x
    gaps = []
    for steps in range(16):
        gaps.append(float((Newton(steps)(tasks.context, tasks.xq) - exact).abs().max()))
        scale = gram.abs().sum(-1).amax(-1).square()
        values, vectors = torch.linalg.eigh(gram)
        kept = 1 - (1 - values.square() / scale[:, None]) ** (2**steps)
        inverse = vectors @ torch.diag_embed(kept / values) @ vectors.mT
        expected = tasks.xq @ inverse @ tasks.context.x.mT @ tasks.context.y
        torch.testing.assert_close(Newton(steps)(tasks.context, tasks.xq), expected, rtol=1e-8, atol=1e-8)
    assert gaps[-1] < 1e-9 < gaps[5]


def test_newton_ends_at_the_minimum_norm_solution_of_a_singular_context():
    tasks = episode(n=3)
    exact = LeastSquares()(tasks.context, tasks.xq)
    torch.testing.assert_close(Newton(25)(tasks.context, tasks.xq), exact, rtol=1e-4, atol=1e-6)
    empty = Context(tasks.context.x * 0, tasks.context.y)
    assert not Newton(3)(empty, tasks.xq).any()


@pytest.mark.parametrize("n", [3, 12])
@pytest.mark.parametrize("alpha", [0.01, 0.1, 10.0])
def test_lasso_agrees_with_scikit_learn(alpha, n):
    tasks = episode(n=n)
    ours = Lasso(alpha)(tasks.context, tasks.xq)
    for t in range(5):
        x, y, xq = (part[t].numpy() for part in (*tasks.context, tasks.xq))
        reference = linear_model.Lasso(alpha, fit_intercept=False, tol=1e-14, max_iter=100_000)
        expected = np.stack([reference.fit(x, y[:, j]).predict(xq) for j in range(2)], axis=-1)
        np.testing.assert_allclose(ours[t], expected, atol=1e-6)


@pytest.mark.parametrize("n", [5, 6, 20])
@pytest.mark.parametrize("alpha", [1e-5, 1e-3, 0.03, 1.0])
def test_lassos_gradients_are_those_of_a_minimum(alpha, n):
    """Alpha times the sign of each weight, and less where it is 0: with fewer pairs than inputs, and repeated ones."""
    (x, y), _, _ = episode(n=n, d=8, tasks=100).to(torch.float64)
    x, y = (torch.cat([part, part[:, :3]], 1) for part in (x, y))
    weights = Lasso(alpha)(Context(x, y), torch.eye(8, dtype=torch.float64).expand(100, 8, 8))
    pull = x.mT @ (y - x @ weights) / len(x[0]) / alpha
    assert torch.allclose(pull[weights != 0], weights.sign()[weights != 0], atol=1e-6)
    assert float(pull.abs().max()) < 1 + 1e-6


def test_lassos_path_ends_where_coordinate_descent_does(monkeypatch):
    tasks = episode(d=6, tasks=50).to(torch.float64)
    followed = Lasso(0.05)(tasks.context, tasks.xq)
    monkeypatch.setattr("mesascope.learners.sparse._MOST_BENDS", 0)
    torch.testing.assert_close(Lasso(0.05)(tasks.context, tasks.xq), followed, rtol=1e-9, atol=1e-9)


def test_lasso_says_when_it_does_not_converge(monkeypatch):
    monkeypatch.setattr("mesascope.learners.sparse._MOST_BENDS", 0)
    monkeypatch.setattr("mesascope.learners.sparse._MOST_SWEEPS", 2)
    tasks = episode()
    with pytest.raises(NumericalError, match="must converge within 2 sweeps"):
        Lasso(1e-6)(tasks.context, tasks.xq)


@pytest.mark.parametrize("k", [1, 4, 12])
def test_neighbours_agree_with_scikit_learn(k):
    tasks = episode()
    ours = NearestNeighbours(k)(tasks.context, tasks.xq)
    for t in range(5):
        x, y, xq = (part[t].numpy() for part in (*tasks.context, tasks.xq))
        np.testing.assert_allclose(ours[t], KNeighborsRegressor(k).fit(x, y).predict(xq))


def test_more_neighbours_than_pairs_are_all_pairs():
    tasks = episode()
    mean = tasks.context.y.mean(-2, keepdim=True).expand(tasks.yq.shape)
    torch.testing.assert_close(NearestNeighbours(13)(tasks.context, tasks.xq), mean)


@pytest.mark.parametrize(
    ("kernel", "weight"),
    [
        ("gaussian", lambda a, b: np.exp(-((a - b) ** 2).sum() / (2 * 0.7**2))),
        ("laplace", lambda a, b: np.exp(-np.sqrt(((a - b) ** 2).sum()) / 0.7)),
        ("exponential", lambda a, b: np.exp(a @ b / 0.7)),
    ],
)
def test_smoothing_is_a_weighted_mean(kernel, weight):
    tasks = episode()
    ours = KernelSmoother(kernel, 0.7)(tasks.context, tasks.xq)
    for t in range(5):
        x, y, xq = (part[t].numpy() for part in (*tasks.context, tasks.xq))
        weights = np.array([[weight(q, row) for row in x] for q in xq])
        np.testing.assert_allclose(ours[t], weights @ y / weights.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (WithIntercept(LeastSquares()), linear_model.LinearRegression()),
        (WithIntercept(LeastSquares(0.7)), linear_model.Ridge(0.7)),
        (WithIntercept(Lasso(0.05)), linear_model.Lasso(0.05, tol=1e-12, max_iter=100_000)),
        (KernelRidge("gaussian", 0.3, 1.5), kernel_ridge.KernelRidge(0.3, kernel="rbf", gamma=1 / (2 * 1.5**2))),
    ],
)
def test_learners_are_those_of_scikit_learn(ours, theirs):
    tasks = episode()
    torch.testing.assert_close(
        ours(tasks.context, tasks.xq), from_sklearn(theirs)(tasks.context, tasks.xq), rtol=1e-7, atol=1e-7
    )


def test_kernel_ridge_predicts_nothing_from_no_pairs_and_refuses_what_cannot_be_solved():
    context = Context(torch.zeros(2, 0, 3), torch.zeros(2, 0, 1))
    assert torch.equal(KernelRidge()(context, torch.ones(2, 1, 3)), torch.zeros(2, 1, 1))
    same = Context(torch.zeros(1, 50, 2), torch.ones(1, 50, 1))
    with pytest.raises(NumericalError, match="use a larger ridge or float64"):
        KernelRidge(ridge=1e-12)(same, torch.zeros(1, 1, 2))
    with pytest.raises(ArgumentError, match="kernel must be one of"):
        KernelRidge("exponential")


def test_a_query_far_from_every_example_gets_a_finite_answer():
    tasks = episode()
    assert torch.isfinite(KernelSmoother("gaussian", 0.01)(tasks.context, 1e3 * tasks.xq)).all()


def test_kernel_descent_is_descent_on_features():
    tasks = episode()
    context = Context(tasks.context.x.sin(), tasks.context.y)
    torch.testing.assert_close(
        KernelGradientDescent(torch.sin, 4, 0.3)(tasks.context, tasks.xq),
        GradientDescent(4, 0.3)(context, tasks.xq.sin()),
    )


@pytest.mark.parametrize("noise", [0.05, 0.5, 5.0])
def test_the_pool_posterior_is_bayes_rule(noise):
    tasks = episode()
    pool = torch.randn(6, 2, 4, generator=stream(0, "pool"), dtype=torch.float64)
    ours = BayesPool(pool, noise)(tasks.context, tasks.xq)
    for t in range(5):
        x, y, xq = tasks.context.x[t], tasks.context.y[t], tasks.xq[t]
        likelihood = torch.stack([-(y - x @ w.mT).square().sum() / (2 * noise**2) for w in pool])
        posterior = (likelihood - likelihood.logsumexp(0)).exp()
        torch.testing.assert_close(ours[t], sum(p * xq @ w.mT for p, w in zip(posterior, pool, strict=True)))


def test_a_pool_of_other_widths_is_refused():
    tasks = episode()
    with pytest.raises(ArgumentError, match="have widths"):
        BayesPool(torch.ones(3, 1, 4), 1.0)(tasks.context, tasks.xq)


def test_averaging_is_one_unit_step():
    tasks = episode()
    torch.testing.assert_close(
        Averaging()(tasks.context, tasks.xq), GradientDescent(1, 1.0)(tasks.context, tasks.xq).detach()
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 5), st.integers(1, 4), st.integers(1, 3), st.integers(0, 3))
def test_learners_take_any_sizes(n, d, d_out, m):
    context = Context(torch.randn(2, n, d), torch.randn(2, n, d_out))
    xq = torch.randn(2, m, d)
    learners = [
        PreconditionedGradientDescent(torch.eye(d)),
        Newton(3),
        Lasso(0.1),
        KernelSmoother(),
        KernelRidge(),
        WithIntercept(LeastSquares(0.1)),
        KernelGradientDescent(torch.tanh, 2, 0.1),
        BayesPool(torch.randn(4, d_out, d), 0.5),
        Averaging(),
    ]
    for learner in learners:
        answer = learner(context, xq)
        assert answer.shape == (2, m, d_out)
        assert torch.isfinite(answer).all()


def test_the_lasso_sweeps_only_over_tasks_whose_weights_still_move(monkeypatch):
    """Without its path, coordinate descent finds the same minimum; one task takes longer than the others."""
    tasks, seen, sweep = episode(), [], Lasso._sweep
    tasks.context.x[2, :, 1] = tasks.context.x[2, :, 0] + 0.1 * tasks.context.x[2, :, 1]
    expected = Lasso(0.01)(tasks.context, tasks.xq)
    monkeypatch.setattr(Lasso, "_sweep", lambda self, *parts: seen.append(len(parts[0])) or sweep(self, *parts))
    monkeypatch.setattr(Lasso, "_path", lambda self, gram, correlation: torch.zeros_like(correlation))
    torch.testing.assert_close(Lasso(0.01)(tasks.context, tasks.xq), expected, rtol=1e-7, atol=1e-9)
    assert seen == sorted(seen, reverse=True)
    assert (seen[0], seen[-1]) == (5, 1)
    monkeypatch.setattr("mesascope.learners.sparse._MOST_SWEEPS", len(seen) - 1)
    with pytest.raises(NumericalError, match=r"has not for 1 of 5 tasks at alpha 0.01: use a larger alpha or float64"):
        Lasso(0.01)(tasks.context, tasks.xq)


def loop(rule, x, y, xq):
    """Predictions of one task by a rule for the weights (dy, dx), in plain numpy."""
    return xq @ rule(x, y, lambda w: (y - x @ w.T).T @ x / len(x)).T


def heavy_ball(x, y, descent, nesterov=False):
    w, move = np.zeros((y.shape[1], x.shape[1])), 0.0
    for _ in range(4):
        move = 0.6 * move + 0.4 * descent(w + 0.6 * move * nesterov)
        w = w + move
    return w


def normalised(x, y, descent):
    w = np.zeros((y.shape[1], x.shape[1]))
    for _ in range(4):
        w = w + 0.3 * descent(w) / np.sqrt((descent(w) ** 2).sum())
    return w


def muon(x, y, descent):
    w = np.zeros((y.shape[1], x.shape[1]))
    for _ in range(4):
        left, sizes, right = np.linalg.svd(descent(w), full_matrices=False)
        sizes = sizes / np.sqrt((sizes**2).sum())
        for _ in range(5):
            sizes = 3.4445 * sizes - 4.7750 * sizes**3 + 2.0315 * sizes**5
        w = w + 0.3 * left * sizes @ right
    return w


def delta_rule(x, y, descent):
    w = np.zeros((y.shape[1], x.shape[1]))
    for one, target in zip(x, y, strict=True):
        w = 0.9 * w
        w = w + 0.2 * np.outer(target - w @ one, one)
    return w


def titans(x, y, descent):
    w = move = np.zeros((y.shape[1], x.shape[1]))
    for one, target in zip(x, y, strict=True):
        move = 0.6 * move + 0.2 * np.outer(target - w @ one, one)
        w = 0.9 * w + move
    return w


@pytest.mark.parametrize(
    ("learner", "rule"),
    [
        (Momentum(4, 0.4, 0.6), heavy_ball),
        (Momentum(4, 0.4, 0.6, nesterov=True), functools.partial(heavy_ball, nesterov=True)),
        (NormalisedDescent(4, 0.3), normalised),
        (Muon(4, 0.3), muon),
        (DeltaRule(0.2, 0.9), delta_rule),
        (Titans(0.2, 0.6, 0.9), titans),
    ],
)
def test_descents_equal_their_rules_step_by_step(learner, rule):
    tasks = episode()
    ours = learner(tasks.context, tasks.xq)
    for t in range(5):
        x, y, xq = (part[t].numpy() for part in (*tasks.context, tasks.xq))
        np.testing.assert_allclose(ours[t].detach(), loop(rule, x, y, xq), rtol=1e-12, atol=1e-12)


def test_descents_meet_where_one_is_a_special_case_of_another():
    context, xq, _ = episode()
    one = Context(context.x, context.y[..., :1])
    for left, right in [
        (Momentum(5, 0.4, 0.0), GradientDescent(5, 0.4)),
        (
            Momentum(2, 0.4, 0.6),
            GradientDescent(2, [0.4 * (2.6 + (2.6**2 - 4) ** 0.5) / 2, 0.4 * (2.6 - (2.6**2 - 4) ** 0.5) / 2]),
        ),
        (Titans(0.2, 0.0, 1.0), DeltaRule(0.2)),
    ]:
        torch.testing.assert_close(left(context, xq), right(context, xq))
    move = Muon(1, 1.0)(one, xq) / NormalisedDescent(1, 1.0)(one, xq)
    torch.testing.assert_close(move, move[:1, :1].expand_as(move))
    none = Context(context.x * 0, context.y)
    for learner in (NormalisedDescent(3, 1.0), Muon(3, 1.0)):
        assert not learner(none, xq).any()


def test_copies_are_the_labels_nearest_to_predictions():
    (x, y), xq, _ = episode()
    copied, free = LabelCopying(LeastSquares(0.5))(Context(x, y), xq), LeastSquares(0.5)(Context(x, y), xq)
    far = (free[:, :, None] - y[:, None]).square().sum(-1)
    torch.testing.assert_close((free - copied).square().sum(-1), far.amin(-1))
    assert bool((copied[:, :, None] == y[:, None]).all(-1).any(-1).all())


@pytest.mark.parametrize("scale", [1e10, 1e-15])
@pytest.mark.parametrize("learner", [NormalisedDescent(1, 0.1), Muon(1, 0.1)])
def test_directions_of_steps_do_not_overflow_or_vanish(learner, scale):
    narrow = LinearRegression(n_context=20, d_in=4, x_scale=scale).sample(50, stream(0, "scales"))
    context, xq, _ = narrow.to(torch.float64)
    torch.testing.assert_close(
        learner(narrow.context, narrow.xq).double(), learner(context, xq), rtol=1e-3, atol=1e-3 * 0.1 * scale
    )


def test_a_pool_of_near_teachers_is_told_apart_in_single_precision():
    generator = stream(0, "near")
    pool = torch.randn(1, 1, 5, generator=generator) + 1e-3 * torch.randn(8, 1, 5, generator=generator)
    x, xq = torch.randn(200, 10, 5, generator=generator), torch.randn(200, 1, 5, generator=generator)
    y = x @ pool[torch.randint(8, (200,), generator=generator)].mT + 1e-3 * torch.randn(200, 10, 1, generator=generator)
    exact = BayesPool(pool.double(), 1e-3)(Context(x.double(), y.double()), xq.double())
    error = BayesPool(pool, 1e-3)(Context(x, y), xq) - exact
    assert error.abs().max() < 2e-6
