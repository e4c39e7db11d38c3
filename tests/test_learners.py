import importlib
import inspect
import json

import pytest
import torch
from cases import in_turn
from examples import examples
from hypothesis import given, settings, strategies as st
from sklearn.linear_model import Ridge

from mesascope.adapters import from_sklearn
from mesascope.errors import ArgumentError, ArgumentTypeError, MesascopeError
from mesascope.learners import (
    BayesPool,
    Centred,
    Clipped,
    ConjugateGradients,
    ElasticNet,
    GradientDescent,
    GradientDescentPlusPlus,
    KernelRidge,
    Lasso,
    LeastSquares,
    Mean,
    NearestNeighbours,
    Newton,
    OnFeatures,
    PrincipalComponents,
    Range,
    Standardised,
    WithIntercept,
    Zero,
    gram_spectra,
    one_step_optimum,
    spectral_mse,
    squares,
    tune,
    tune_spectral,
)
from mesascope.learners.descent import filters
from mesascope.records import facts, from_record, registered, to_record
from mesascope.streams import stream
from mesascope.tasks import Context, LinearDynamics, LinearRegression


def draw(n=7, d=4, out=2, m=3, batch=5, **kwargs):
    return LinearRegression(n, d, out, n_query=m, **kwargs).sample(batch, stream(0, "learners")).to(torch.float64)


@settings(max_examples=25, deadline=None)
@given(steps=st.integers(0, 4), n=st.integers(1, 6), d=st.integers(1, 4), out=st.integers(1, 3))
def test_gradient_descent_follows_autograd(steps, n, d, out):
    """The learner against gradients of the stated loss, from any initial weights."""
    episode = draw(n, d, out, batch=2)
    w0 = torch.randn(out, d, dtype=torch.float64, generator=stream(1, "w0"))
    learner = GradientDescent(steps, eta=0.7, w0=w0)
    w = w0.expand(2, out, d).clone()
    for _ in range(steps):
        w = w.detach().requires_grad_()
        loss = (episode.context.x @ w.mT - episode.context.y).square().sum() / (2 * n)
        w = w - 0.7 * torch.autograd.grad(loss, w)[0]
    torch.testing.assert_close(learner(episode.context, episode.xq), episode.xq @ w.mT, rtol=1e-12, atol=1e-12)


def test_gradient_descent_plus_plus_without_curvature_is_gradient_descent():
    episode = draw()
    plain, bent = GradientDescent(3, [0.1, 0.2, 0.3]), GradientDescentPlusPlus(3, [0.1, 0.2, 0.3], 0.0)
    torch.testing.assert_close(bent(episode.context, episode.xq), plain(episode.context, episode.xq))


def test_gradient_descent_plus_plus_descends_on_transformed_inputs():
    """Two steps: the second is a plain step on inputs (I - gamma X^T X) x and the targets that the first left."""
    episode = draw(out=1)
    eta, gamma, n = 0.6, 0.05, 7
    x, y = episode.context
    learner = GradientDescentPlusPlus(2, eta, gamma)
    w1 = eta / n * y.mT @ x
    shrink = torch.eye(4, dtype=x.dtype) - gamma * x.mT @ x
    x2, y2 = x @ shrink, y - x @ w1.mT
    w2 = eta / n * y2.mT @ x2
    expected = episode.xq @ w1.mT + episode.xq @ shrink @ w2.mT
    torch.testing.assert_close(learner(episode.context, episode.xq), expected, rtol=1e-12, atol=1e-12)


def test_last_gamma_does_not_matter():
    episode = draw()
    one, other = (GradientDescentPlusPlus(2, 0.5, [0.03, last]) for last in (0.0, 0.9))
    torch.testing.assert_close(one(episode.context, episode.xq), other(episode.context, episode.xq))


def test_token_clip_bounds_predictions_and_is_idle_when_wide():
    episode = draw(x_scale=10.0)
    wild, held = GradientDescent(8, 1.0), GradientDescent(8, 1.0, token_clip=10.0)
    assert wild(episode.context, episode.xq).abs().max() > 1e3
    assert held(episode.context, episode.xq).abs().max() <= 10
    calm = draw()
    wide = GradientDescentPlusPlus(3, 0.3, 0.01, token_clip=1e6)
    free = GradientDescentPlusPlus(3, 0.3, 0.01)
    torch.testing.assert_close(wide(calm.context, calm.xq), free(calm.context, calm.xq), rtol=1e-12, atol=1e-12)


def test_trajectory_ends_at_the_prediction_and_repeats_scale_the_step():
    episode = draw()
    learner = GradientDescent(1, 0.4)
    path = learner.repeated(5, damping=0.5).trajectory(episode.context, episode.xq)
    assert path.shape == (6, 5, 3, 2)
    torch.testing.assert_close(path[-1], GradientDescent(5, 0.2)(episode.context, episode.xq))
    with pytest.raises(ArgumentError, match="eta must be one number"):
        GradientDescent(2, [0.1, 0.2]).repeated(3)


@pytest.mark.parametrize("n", [3, 12])
@pytest.mark.parametrize("ridge", [0.01, 1.0, 100.0])
def test_ridge_is_scikit_learns(n, ridge):
    episode = draw(n=n, d=6)
    ours = LeastSquares(ridge)(episode.context, episode.xq)
    for task in range(5):
        model = Ridge(alpha=ridge, fit_intercept=False).fit(episode.context.x[task], episode.context.y[task])
        torch.testing.assert_close(ours[task], torch.as_tensor(model.predict(episode.xq[task])), rtol=1e-8, atol=1e-8)


def test_least_squares_is_minimum_norm_and_the_limit_of_ridge():
    episode = draw(n=3, d=6)
    plain = LeastSquares()(episode.context, episode.xq)
    torch.testing.assert_close(LeastSquares(1e-10)(episode.context, episode.xq), plain, rtol=1e-6, atol=1e-6)
    fitted = LeastSquares()(episode.context, episode.context.x)
    torch.testing.assert_close(fitted, episode.context.y, rtol=1e-9, atol=1e-9)


def test_least_squares_survives_repeated_and_empty_contexts():
    episode = draw(n=3, d=6)
    context = episode.context._replace(x=torch.ones_like(episode.context.x))
    assert torch.isfinite(LeastSquares()(context, episode.xq)).all()
    empty = episode.context._replace(x=episode.context.x[:, :0], y=episode.context.y[:, :0])
    for learner in (LeastSquares(), LeastSquares(1.0), Zero(), Mean(), GradientDescent(2, 0.1)):
        assert (learner(empty, episode.xq) == 0).all()


def test_a_tiny_ridge_on_a_singular_context_is_the_minimum_norm_solution():
    episode = draw(n=8, d=4)
    context = episode.context._replace(x=torch.ones_like(episode.context.x) * 1e8)
    torch.testing.assert_close(LeastSquares(1e-12)(context, episode.xq), LeastSquares()(context, episode.xq))


@in_turn(
    ("size", "law", "noise"),
    [(5, "uniform", 0.0), (10, "normal", 0.0), (5, "laplace", 0.3), (10, "uniform", 0.5), (20, "uniform", 0.0)],
)
def test_one_step_optimum_is_monte_carlos(size, law, noise):
    family = LinearRegression(n_context=size, d_in=size, x=law, x_scale=0.7, noise=noise)
    optimum = one_step_optimum(family)
    tuned = tune(GradientDescent(1, optimum.eta / 2), family, tasks=15_000)
    eta = tuned.step_sizes["eta"][0]
    assert abs(eta.value - optimum.eta) < 4 * eta.stderr
    assert abs(tuned.mse.value - optimum.mse) < 4 * tuned.mse.stderr


def test_published_values_of_the_one_step_optimum():
    wide, narrow = one_step_optimum(LinearRegression()), one_step_optimum(LinearRegression(x_scale=0.5))
    assert wide == pytest.approx((1.515152, 1.649832), abs=1e-6)
    assert narrow == pytest.approx((6.060606, 0.412458), abs=1e-6)


@pytest.mark.parametrize(
    "learner",
    [GradientDescent(1, 4.0), GradientDescent(3, [4.0, 5.0, 6.0]), GradientDescentPlusPlus(2, 8.0, 0.1)],
    ids=str,
)
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_spectral_loss_is_the_sampled_loss(learner, noise):
    family = LinearRegression(x_scale=0.5, noise=noise)
    episode = family.sample(40_000, stream(3, "spectral")).to(torch.float64)
    with torch.no_grad():
        sampled = (learner(episode.context, episode.xq) - episode.yq).square().mean((-2, -1))
        x = episode.context.x
        exact = spectral_mse(torch.linalg.eigvalsh(x.mT @ x / 10), learner, family)
    gap = (sampled - exact).mean().item()
    assert abs(gap) < 4 * (sampled - exact).std().item() / 200


@pytest.mark.parametrize("learner", [GradientDescent(2, 4.0), GradientDescentPlusPlus(2, 8.0, 0.1)], ids=str)
def test_tuning_from_spectra_agrees_with_tuning_on_tasks(learner):
    family = LinearRegression(x_scale=0.5)
    on_tasks, on_spectra = tune(learner, family, tasks=8_000), tune_spectral(learner, family, contexts=8_000, seed=1)
    for name, sizes in on_tasks.step_sizes.items():
        for one, other in zip(sizes, on_spectra.step_sizes[name], strict=True):
            assert abs(one.value - other.value) < 4 * (one.stderr**2 + other.stderr**2) ** 0.5
    assert on_spectra.mse.stderr < on_tasks.mse.stderr / 4


def test_tuning_leaves_the_learner_alone_and_uses_its_own_stream():
    learner, family = GradientDescent(1, 1.0), LinearRegression()
    first, second = tune(learner, family, tasks=500), tune(learner, family, tasks=500, seed=1)
    assert learner.eta.item() == 1.0
    assert first.step_sizes["eta"][0].value != second.step_sizes["eta"][0].value
    assert first.learner.eta.item() == first.step_sizes["eta"][0].value


def test_spectra_are_sorted_and_positive():
    spectra = gram_spectra(LinearRegression(n_context=30, d_in=4), 50, stream(0, "s"))
    assert spectra.shape == (50, 4)
    assert (spectra.diff(dim=1) >= 0).all()
    assert (spectra > 0).all()


def test_initial_weights_of_another_width_are_refused():
    episode = draw(out=1)
    learner = GradientDescent(1, 0.5, w0=torch.ones(4, 4, dtype=torch.float64))
    with pytest.raises(ArgumentError, match=r"w0 must have shape \(1, 4\), but is \(4, 4\)"):
        learner(episode.context, episode.xq)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GradientDescent(2, [0.1]), "eta must be one number or 2, one per step"),
        (lambda: GradientDescent(-1, 0.1), "steps must be at least 0"),
        (lambda: GradientDescent(1, float("nan")), "eta must be finite"),
        (lambda: GradientDescent(1, 0.1, token_clip=0.0), "token_clip must be greater than 0"),
        (lambda: LeastSquares(-1.0), "ridge must be at least 0"),
        (lambda: tune(Zero(), LinearRegression()), "learner must have parameters to tune"),
        (lambda: one_step_optimum(LinearRegression(x="exponential")), "family.x must be one of"),
        (lambda: one_step_optimum(LinearRegression(d_in=2, covariance=[1.0, 2.0])), "family.covariance must be None"),
    ],
)
def test_wrong_arguments_are_refused_in_a_sentence(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


def each(*kinds):
    """Kind, name and builder of every example, as test parameters."""
    return [pytest.param(kind, name, build, id=name) for kind in kinds for name, build in examples(kind)]


def random_context(lead, n, m, dtype, seed=0):
    """Three inputs and one target, as wide as the examples are built for."""
    generator = stream(seed, "properties")
    draw = lambda *shape: torch.randn(*lead, *shape, dtype=dtype, generator=generator) / 2  # noqa: E731
    return Context(draw(n, 3), draw(n, 1)), draw(m, 3)


@pytest.mark.parametrize(("kind", "name", "build"), each("learner"))
@settings(max_examples=15, deadline=None)
@given(
    lead=st.lists(st.integers(0, 3), max_size=3),
    n=st.integers(0, 12),
    m=st.integers(0, 4),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 100),
)
def test_learners_take_any_axes_and_any_order(kind, name, build, lead, n, m, dtype, seed):
    learner = build()
    if name == "nearest-neighbours":
        n = max(n, 3)
    context, xq = random_context(lead, n, m, dtype, seed)
    with torch.no_grad():
        answer = learner(context, xq)
        assert answer.shape == (*lead, m, 1)
        assert answer.dtype == dtype
        assert torch.isfinite(answer).all()
        order = torch.randperm(n, generator=stream(seed, "order"))
        if name in ("last-label", "delta-rule", "titans"):  # which depend on the order
            order = order.sort().values
        shuffled = learner(Context(context.x[..., order, :], context.y[..., order, :]), xq)
        close = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 1e-6, "atol": 1e-6}
        torch.testing.assert_close(shuffled, answer, **close)
        if lead and lead[0]:
            last = learner(Context(context.x[-1], context.y[-1]), xq[-1])
            torch.testing.assert_close(last, answer[-1], **close)


@in_turn(("kind", "name", "build"), each("learner"))
def test_an_empty_context_teaches_nothing(kind, name, build):
    context, xq = random_context((2,), 0, 3, torch.float64)
    if name == "nearest-neighbours":
        with pytest.raises(ArgumentError, match="have at least 1 pair"):
            build()(context, xq)
    elif name == "constant":
        assert (build()(context, xq) == 0.5).all()
    elif name == "bayes-pool":  # the mean of its pool
        torch.testing.assert_close(build()(context, xq), xq.sum(-1, keepdim=True) / 3)
    else:
        assert not build()(context, xq).any()


def exact_mse(learner, x, family):
    """Mean squared error in a context, over teachers, noise and queries: from the learner's answers to a basis of each.

    Answers are linear in the targets and in the query, so that second moments of the three are all that counts.
    """
    n, d = x.shape
    queries, teachers, noises = torch.eye(d).to(x), torch.eye(d).to(x), torch.eye(n).to(x)
    variance = family.x_scale**2 / 3
    mse = 0.0
    for teacher in teachers:
        y = (x @ teacher)[:, None]
        error = learner(Context(x, y), queries) - (queries @ teacher)[:, None]
        mse += family.w_scale**2 * variance * error.square().sum()
    for noise in noises:
        mse += family.noise**2 * variance * learner(Context(x, noise[:, None]), queries).square().sum()
    return mse


@settings(max_examples=40, deadline=None)
@given(
    steps=st.integers(0, 4),
    n=st.integers(1, 6),
    d=st.integers(1, 5),
    w_scale=st.floats(0.5, 2.0),
    noise=st.floats(0.0, 1.0),
    seed=st.integers(0, 1000),
)
def test_spectral_loss_is_the_exact_mean_over_teachers_noise_and_queries(steps, n, d, w_scale, noise, seed):
    family = LinearRegression(n, d, x_scale=0.8, w_scale=w_scale, noise=noise)
    generator = stream(seed, "sizes")
    eta = 2 * torch.rand(steps, generator=generator, dtype=torch.float64)
    gamma = (torch.rand(steps, generator=generator, dtype=torch.float64) - 0.3) / n
    x = family.sample(1, stream(seed, "context")).context.x[0].double()
    spectrum = torch.linalg.eigvalsh(x.mT @ x / n).clamp_min(0)[None]
    for learner in (GradientDescent(steps, eta.tolist()), GradientDescentPlusPlus(steps, eta.tolist(), gamma.tolist())):
        with torch.no_grad():
            expected = exact_mse(learner, x, family)
            found = spectral_mse(spectrum, learner, family)[0]
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def arguments(learner):
    """Arguments of a learner's constructor, read from the attributes of the same names."""
    values = {
        name: getattr(learner, name)
        for name, one in inspect.signature(type(learner)).parameters.items()
        if one.kind is one.POSITIONAL_OR_KEYWORD
    }
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in values.items()}


def sample_answer(kind, learner):
    episode = LinearRegression(10, 3).sample(50, stream(0, "ranges"))
    sequence = LinearDynamics(3, 12).sample(50, stream(0, "ranges"))
    with torch.no_grad():
        return learner(episode.context, episode.xq) if kind == "learner" else learner(sequence)


@in_turn(("kind", "name", "build"), each("learner", "predictor"))
def test_free_parameters_are_arguments_whose_ranges_can_be_used(kind, name, build):
    """At either end of each range the example is built and predicts, finitely."""
    known = arguments(build())
    for parameter, allowed in facts(kind, name)["free"].items():
        assert isinstance(allowed, Range)
        assert parameter in known
        ends = (allowed.low, allowed.high)
        answers = [sample_answer(kind, type(build())(**(known | {parameter: end}))) for end in ends]
        assert all(bool(torch.isfinite(answer).all()) for answer in answers)
        assert not torch.equal(*answers), f"{parameter} must matter"


@pytest.mark.parametrize("kind", ["learner", "predictor"])
def test_every_learner_says_what_is_free_in_it(kind):
    assert all("free" in facts(kind, name) for name in registered(kind))


@in_turn(("kind", "name", "build"), each("learner", "predictor"))
def test_learners_have_records(kind, name, build):
    learner = build()
    if name in ("kernel-gradient-descent", "on-features"):  # which hold a function
        with pytest.raises(ArgumentTypeError, match="store what it is built from"):
            to_record(learner)
        return
    record = json.loads(json.dumps(to_record(learner)))
    again = from_record(record)
    assert type(again) is type(learner)
    assert to_record(again) == record
    assert torch.equal(sample_answer(kind, again), sample_answer(kind, learner))


@pytest.mark.parametrize(
    "learner",
    [
        GradientDescentPlusPlus(2, [0.5, 0.25], [0.01, 0.02], w0=torch.randn(1, 3), token_clip=2.0),
        Centred(Centred(GradientDescent(1, 0.1, w0=torch.randn(1, 3, dtype=torch.float64)))),
        BayesPool(torch.randn(4, 1, 3), 0.3),
        tune_spectral(GradientDescentPlusPlus(2, 1.0, 0.01), LinearRegression(10, 3), contexts=50).learner,
    ],
    ids=str,
)
def test_records_keep_matrices_and_learners_within(learner):
    again = from_record(json.loads(json.dumps(to_record(learner))))
    assert torch.equal(sample_answer("learner", again), sample_answer("learner", learner))


def test_records_of_learners_refuse_what_they_do_not_know():
    with pytest.raises(ArgumentError, match="unknown key 'ridg': did you mean 'ridge'"):
        from_record({"kind": "learner", "name": "least-squares", "ridg": 1.0})
    with pytest.raises(ArgumentError, match="ridge must be at least 0"):
        from_record({"kind": "learner", "name": "least-squares", "ridge": -1.0})
    with pytest.raises(ArgumentTypeError, match="matrix must be a tensor or equally long lists"):
        from_record({"kind": "learner", "name": "preconditioned-gradient-descent", "matrix": [[1.0], [1.0, 2.0]]})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ((2.0, 1.0, "linear"), "low must be less than high = 1, but is 2.0"),
        ((0.0, 1.0, "log"), "low must be greater than 0 on a log scale"),
        ((float("nan"), 1.0, "linear"), "low must be finite"),
    ],
)
def test_wrong_ranges_are_refused(wrong, message):
    with pytest.raises(ArgumentError, match=message):
        Range(*wrong)
    with pytest.raises(ArgumentTypeError, match="low must be an integer"):
        Range(1.5, 2, "integer")


PIPE = importlib.import_module("sklearn.pipeline").make_pipeline


def with_intercept(ridge=0.0):
    return WithIntercept(LeastSquares(ridge))


# Learners and the estimators of scikit-learn that they equal.
EQUAL = {
    "elastic net": (
        lambda: WithIntercept(ElasticNet(0.1, 0.3)),
        lambda sk: sk("linear_model.ElasticNet", alpha=0.1, l1_ratio=0.3, tol=1e-13, max_iter=10**6),
    ),
    "neighbours by distance": (
        lambda: NearestNeighbours(3, weights="distance"),
        lambda sk: sk("neighbors.KNeighborsRegressor", n_neighbors=3, weights="distance"),
    ),
    "manhattan neighbours": (
        lambda: NearestNeighbours(3, "manhattan"), lambda sk: sk("neighbors.KNeighborsRegressor", n_neighbors=3, p=1),
    ),
    "standardised neighbours": (
        lambda: Standardised(NearestNeighbours(3)),
        lambda sk: PIPE(sk("preprocessing.StandardScaler"), sk("neighbors.KNeighborsRegressor", n_neighbors=3)),
    ),
    "standardised ridge": (
        lambda: Standardised(with_intercept(1.0)),
        lambda sk: PIPE(sk("preprocessing.StandardScaler"), sk("linear_model.Ridge")),
    ),
    "ridge on squares": (
        lambda: OnFeatures(with_intercept(1.0), squares),
        lambda sk: PIPE(sk("preprocessing.PolynomialFeatures", degree=2), sk("linear_model.Ridge")),
    ),
    "quadratic kernel": (
        lambda: KernelRidge("quadratic", 1.0, 2.0), lambda sk: sk("kernel_ridge.KernelRidge", kernel="poly", degree=2),
    ),
    "cubic kernel": (
        lambda: KernelRidge("cubic", 1.0, 2.0), lambda sk: sk("kernel_ridge.KernelRidge", kernel="poly"),
    ),
    "manhattan kernel": (
        lambda: KernelRidge("manhattan", 1.0, 4.0), lambda sk: sk("kernel_ridge.KernelRidge", kernel="laplacian"),
    ),
    "partial least squares": (
        lambda: WithIntercept(Standardised(ConjugateGradients(2))), lambda sk: sk("cross_decomposition.PLSRegression"),
    ),
    "principal components": (
        lambda: WithIntercept(PrincipalComponents(2)),
        lambda sk: PIPE(sk("decomposition.PCA", n_components=2), sk("linear_model.LinearRegression")),
    ),
    "all principal components": (
        lambda: WithIntercept(PrincipalComponents(9)), lambda sk: sk("linear_model.LinearRegression"),
    ),
    "converged conjugate gradients": (
        lambda: WithIntercept(ConjugateGradients(9)), lambda sk: sk("linear_model.LinearRegression"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
def test_learners_equal_estimators_of_scikit_learn(name):
    def sk(path, **settings):
        module, _, kind = path.rpartition(".")
        return getattr(importlib.import_module(f"sklearn.{module}"), kind)(**settings)

    learner, estimator = EQUAL[name]
    episode = draw(n=12, out=1, noise=0.1)
    expected = from_sklearn(estimator(sk))(episode.context, episode.xq)
    torch.testing.assert_close(learner()(episode.context, episode.xq), expected, rtol=1e-9, atol=1e-9)


def test_clipped_predictions_lie_in_the_range_of_targets():
    episode = draw(n=4, out=2)
    free, clipped = LeastSquares()(episode.context, episode.xq), Clipped(LeastSquares())(episode.context, episode.xq)
    low, high = episode.context.y.aminmax(dim=-2, keepdim=True)
    torch.testing.assert_close(clipped, free.clamp(low, high))
    assert not torch.equal(free, clipped)


@pytest.mark.parametrize(
    "learner", [GradientDescent(3, [0.3, 0.7, 0.2]), GradientDescentPlusPlus(3, [0.3, 0.7, 0.2], 0.02)]
)
def test_filters_of_the_spectrum_give_the_predictions_of_descents(learner):
    episode = draw(n=3)  # fewer pairs than dimensions: some eigenvalues are 0
    x, y = episode.context
    values, basis = torch.linalg.eigh(x.mT @ x / 3)
    gain, residual = filters(
        values, 3, learner.eta.expand(3), None if learner.gamma is None else learner.gamma.expand(3)
    )
    found = (episode.xq @ basis * gain[:, None]) @ basis.mT @ (x.mT @ y / 3)
    torch.testing.assert_close(found, learner(episode.context, episode.xq), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(residual, 1 - values * gain)


def test_closed_forms_are_not_those_of_a_pool():
    pooled = LinearRegression(n_context=5, d_in=2, pool=4)
    for closed in (one_step_optimum, lambda family: tune_spectral(GradientDescent(1, 1.0), family, contexts=20)):
        with pytest.raises(ArgumentError, match=r"family\.pool must be None for a closed form"):
            closed(pooled)


def test_lasso_converges_with_equal_and_empty_columns():
    for seed in range(8):
        draws = torch.Generator().manual_seed(seed)
        x, y = (torch.randn(1, 12, width, generator=draws, dtype=torch.float64) for width in (6, 1))
        x[..., 5] = x[..., 4]
        x[..., 2] = 0
        assert Lasso(0.01)(Context(x, y), x).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_converged_newton_steps_stay_at_the_minimum_norm_solution(dtype):
    draws = torch.Generator().manual_seed(0)
    x, y, xq = (torch.randn(4, *shape, generator=draws, dtype=torch.float64) for shape in ((3, 6), (3, 2), (2, 6)))
    wanted = LeastSquares()(Context(x, y), xq)
    found = Newton(90)(Context(x.to(dtype), y.to(dtype)), xq.to(dtype)).double()
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-3 if dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize(("name", "build"), examples("learner"))
@pytest.mark.parametrize("place", range(3))
def test_what_a_learner_reads_must_be_a_number(name, build, place):
    """Predictions from nan are nan, or refused in words of ours; inputs that do not change predictions may be nan."""
    learner, episode = build(), draw(10, 3, 1, 4, 3).to(torch.float32)
    parts = [*episode.context, episode.xq]
    other, lost = ([*parts[:place], one, *parts[place + 1 :]] for one in (parts[place] + 1, parts[place] * torch.nan))

    def predicted(x, y, queries):
        with torch.no_grad():
            return learner(Context(x, y), queries)

    if torch.equal(predicted(*parts), predicted(*other)):
        return
    said = []
    try:
        found = predicted(*lost)
    except MesascopeError as error:
        said.append(str(error))
    assert "finite" in said[0] if said else found.isnan().all()


@pytest.mark.parametrize(("inputs", "teacher"), [(1e5, 1e3), (1e10, 1.0), (1e-15, 1.0)])
@pytest.mark.parametrize("learner", [ConjugateGradients(2), ConjugateGradients(4), Newton(8)])
def test_single_precision_keeps_its_digits_at_any_scale(learner, inputs, teacher):
    family = LinearRegression(n_context=20, d_in=4, x_scale=inputs, w_scale=teacher)
    narrow = family.sample(200, stream(0, "scales"))
    context, xq, _ = narrow.to(torch.float64)
    expected = learner(context, xq)
    error = learner(narrow.context, narrow.xq) - expected
    assert error.square().mean().sqrt() < 1e-5 * expected.square().mean().sqrt()


def test_a_small_ridge_keeps_its_digits_in_single_precision():
    narrow = LinearRegression().sample(2000, stream(0, "ridge"))
    context, xq, _ = narrow.to(torch.float64)
    expected = LeastSquares(1e-6)(context, xq)
    error = LeastSquares(1e-6)(narrow.context, narrow.xq) - expected
    assert error.abs().max() < 1e-6 * expected.abs().max()


@pytest.mark.parametrize("ridge", [1e-15, 1e-14, 1e-12, 1e-8, 1e-4])
def test_ridge_regression_on_repeated_pairs_is_exact(ridge):
    generator = stream(0, "repeated")
    half_x, half_y, xq = (torch.randn(shape, generator=generator).double() for shape in ((6, 8), (6, 1), (3, 8)))
    x, y = torch.cat([half_x, half_x]), torch.cat([half_y, half_y])
    left, sizes, right = torch.linalg.svd(half_x, full_matrices=False)
    exact = xq @ right.mT @ (2 * sizes / (2 * sizes.square() + ridge))[:, None].mul(left.mT @ half_y)
    torch.testing.assert_close(LeastSquares(ridge)(Context(x, y), xq), exact, rtol=1e-6, atol=1e-6)
