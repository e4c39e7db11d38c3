"""Sequences: their family, the algorithms that predict them, causal layers and how they decode."""

import numpy as np
import pytest
import torch
from torch.nn.functional import pad

from mesascope.constructions import mesa_least_squares, neumann_preconditioning, online_gradient_descent
from mesascope.errors import ArgumentError, ArgumentTypeError, NumericalError
from mesascope.learners import (
    ChebyshevLeastSquares,
    GradientDescent,
    Lags,
    LeastSquares,
    NeumannLeastSquares,
    OnlineGradientDescent,
    RecursiveLeastSquares,
)
from mesascope.nets import (
    AttentionConfig,
    CausalTransformerConfig,
    LinearAttention,
    MesaAttention,
    SequencePredictor,
    SequencePredictorConfig,
    SoftmaxAttention,
)
from mesascope.records import registered
from mesascope.streams import stream
from mesascope.tasks import (
    Context,
    FewShotSequence,
    LinearDynamics,
    NonlinearDynamics,
    ObservedDynamics,
    check_sequence,
)
from mesascope.testing import check_predictor
from mesascope.training import EnsembleState, Training, fit, half_mse, train

D = 3


def sequences(length=12, count=4, **family):
    return LinearDynamics(D, length, **family).sample(count, stream(0, "sequences")).double()


def pairs(s, t):
    """The pairs known at t, counted from 0, as a context, and the query."""
    return Context(s[:, :t], s[:, 1 : t + 1]), s[:, t : t + 1]


# The family


def test_orthogonal_dynamics_keep_lengths_and_angles():
    s = sequences(noise=0.0)
    torch.testing.assert_close(s.norm(dim=-1), s[:, :1].norm(dim=-1).expand(-1, 12), rtol=1e-5, atol=0)
    inner = (s[:, 1:] * s[:, :-1]).sum(-1)
    torch.testing.assert_close(inner, inner[:, :1].expand(-1, 11), rtol=1e-4, atol=1e-4)


def test_orthogonal_matrices_are_uniform():
    """The first two moments of an entry of a uniformly random orthogonal matrix: 0 and 1/d."""
    q = LinearDynamics(D)._matrices(20_000, stream(0, "haar"))
    assert q.mean(0).abs().max() < 0.02
    torch.testing.assert_close(q.square().mean(0), torch.full((D, D), 1 / D), rtol=0, atol=0.01)
    assert (torch.linalg.det(q) > 0).float().mean().item() == pytest.approx(0.5, abs=0.02)


def test_contractions_have_the_eigenvalues_stated():
    eigenvalues = torch.linalg.eigvalsh(LinearDynamics(D, dynamics="contracting")._matrices(500, stream(0, "haar")))
    assert eigenvalues.min() > 0.3
    assert eigenvalues.max() < 0.9


def residuals(x, y):
    """Residual of the best linear map from x to y of each task, relative to y."""
    return (y - x @ torch.linalg.lstsq(x, y, driver="gelsd").solution).norm(dim=(1, 2)) / y.norm(dim=(1, 2))


def test_a_fixed_matrix_is_that_of_every_task_and_of_its_seed():
    family = LinearDynamics(D, 12, noise=0.0, dynamics="fixed")
    one, other = (own.sample(5, stream(0, "fixed")).double() for own in (family, family.seeded(1)))
    together = [s[:, :-1].reshape(1, -1, D) for s in (one, other)], [s[:, 1:].reshape(1, -1, D) for s in (one, other)]
    assert [residuals(x, y).item() < 1e-5 for x, y in zip(*together, strict=True)] == [True, True]
    matrices = [torch.linalg.lstsq(x, y).solution for x, y in zip(*together, strict=True)]
    assert (matrices[0] - matrices[1]).norm() > 0.1
    assert LinearDynamics(D).seeded(3) == LinearDynamics(D)


def test_targets_of_a_few_shot_sequence_are_one_orthogonal_map_of_its_inputs_and_another_of_each_task():
    s = FewShotSequence(d=D, pairs=8, tasks=2).sample(50, stream(0, "few shots")).double()
    x, y = s[:, 0::2], s[:, 1::2]
    torch.testing.assert_close(x.norm(dim=-1), y.norm(dim=-1), rtol=1e-5, atol=0)
    assert all(residuals(x[:, part], y[:, part]).max() < 1e-5 for part in (slice(8), slice(8, None)))
    assert residuals(x, y).median() > 0.3
    marked = FewShotSequence(d=D, pairs=8, tasks=2, marked=True).sample(50, stream(0, "few shots")).double()
    assert torch.equal(marked[..., :-1], s)
    assert torch.equal(marked[..., -1], torch.tensor([1.0, 0.0]).double().repeat(50, 16))


def test_a_state_seen_in_part_is_a_linear_map_of_as_many_elements_as_it_has_directions():
    s = ObservedDynamics(d=2, hidden=6, length=40, noise=0.0).sample(20, stream(0, "observed")).double()
    windows = s.unfold(1, 3, 1).flatten(2)  # three elements tell all six
    assert residuals(windows[:, :-1], s[:, 3:]).max() < 1e-3
    assert residuals(s[:, :-1], s[:, 1:]).median() > 0.3


def test_nonlinear_dynamics_are_one_orthogonal_map_of_the_features():
    family = NonlinearDynamics(d=3, length=30, noise=0.0)
    s = family.sample(20, stream(0, "nonlinear")).double()
    torch.testing.assert_close(s.norm(dim=-1), torch.full((20, 30), 3**0.5).double(), rtol=1e-5, atol=0)
    seen = family.features(s[:, :-1])
    assert residuals(seen, s[:, 1:]).max() < 1e-4
    assert residuals(s[:, :-1], s[:, 1:]).median() > 0.1
    assert not torch.equal(NonlinearDynamics(d=3, feature_seed=1).features(s), family.features(s))


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        (FewShotSequence, {"pairs": 0}, "pairs must be at least 1"),
        (ObservedDynamics, {"d": 5, "hidden": 4}, "hidden must be at least d = 5"),
        (NonlinearDynamics, {"noise": -1.0}, "noise must be at least 0"),
        (LinearDynamics, {"matrix_seed": -1}, "matrix_seed must be at least 0"),
    ],
)
def test_families_of_sequences_refuse_what_they_cannot_draw(family, change, message):
    with pytest.raises(ArgumentError, match=message):
        family(**change)


def test_one_linear_map_makes_each_sequence_but_for_the_noise():
    s = LinearDynamics(D, 30, noise=0.1).sample(2000, stream(0, "noise")).double()
    x, y = s[:, :-1], s[:, 1:]
    residual = y - x @ torch.linalg.lstsq(x, y).solution
    assert residual.square().sum().item() / (2000 * D * (29 - D)) == pytest.approx(0.01, rel=0.03)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d": 0}, "d must be at least 1"),
        ({"noise": -1.0}, "noise must be at least 0"),
        ({"clip": 0.0}, "clip must be greater than 0"),
    ],
)
def test_bad_families_are_refused_in_a_sentence(change, message):
    with pytest.raises(ArgumentError, match=message):
        LinearDynamics(**change)


# The algorithms


def test_recursive_least_squares_is_ridge_regression_on_the_past():
    s = sequences()
    predictions = RecursiveLeastSquares(ridge=0.3)(s)
    for t in range(1, 12):
        torch.testing.assert_close(predictions[:, t : t + 1], LeastSquares(ridge=0.3)(*pairs(s, t)))


def test_forgetting_weights_the_past_and_the_regulariser():
    s, forget = sequences(), 0.8
    predictions = RecursiveLeastSquares(0.3, forget)(s)
    for t in (3, 11):
        (x, y), xq = pairs(s, t)
        # Pair n of the first t, (s_{n-1}, s_n), is t - n old, and the ridge t + 1 elements.
        root = forget ** (0.5 * torch.arange(t - 1, -1, -1.0, dtype=torch.float64))[:, None]
        expected = LeastSquares(0.3 * forget ** (t + 1))(Context(root * x, root * y), xq)
        torch.testing.assert_close(predictions[:, t : t + 1], expected)


def test_least_squares_on_features_learns_from_these():
    s = sequences()
    windows = pad(torch.cat([s[:, 1:], s[:, :-1]], -1), (0, 0, 1, 0))
    for features, found in ((Lags(2), windows), (torch.tanh, s.tanh())):
        predictions = RecursiveLeastSquares(0.3, features=features)(s)
        for t in (2, 7, 11):
            context = Context(found[:, : t - 1], s[:, 1:t])
            expected = LeastSquares(ridge=0.3)(context, found[:, t - 1 : t])
            torch.testing.assert_close(predictions[:, t - 1 : t], expected)


def test_a_system_seen_in_part_is_learned_from_as_many_elements_as_its_state_needs():
    s = ObservedDynamics(d=2, hidden=6, noise=0.0).sample(20, stream(0, "seen")).double()
    errors = [
        (RecursiveLeastSquares(1e-8, features=Lags(lags))(s)[:, 40:-1] - s[:, 41:]).square().mean()
        for lags in (1, 2, 3)
    ]
    assert errors[2] < 1e-6
    assert min(errors[:2]) > 0.05


def test_one_step_is_gradient_descent_on_the_past():
    s, w0 = sequences(), torch.randn(D, D, dtype=torch.float64, generator=stream(0, "w0"))
    predictions = OnlineGradientDescent(1, 0.05, w0)(s)
    for t in range(1, 12):
        expected = GradientDescent(1, 0.05 * t, w0)(*pairs(s, t))
        torch.testing.assert_close(predictions[:, t : t + 1], expected)


def test_several_steps_move_each_target_with_what_its_own_time_knew():
    """The recursion of thesis 3.7.3.2 in plain loops, and that it is not gradient descent."""
    s, eta = sequences(count=1)[0], 0.05
    before = torch.cat([torch.zeros(1, D).double(), s[:-1]])
    residual, prediction = s.clone(), torch.zeros_like(s)
    for _ in range(3):
        model = [sum(torch.outer(residual[i], before[i]) for i in range(t + 1)) for t in range(12)]
        prediction = torch.stack([prediction[t] + eta * model[t] @ s[t] for t in range(12)])
        residual = torch.stack([residual[t] - eta * model[t] @ before[t] for t in range(12)])
    torch.testing.assert_close(OnlineGradientDescent(3, eta)(s), prediction)
    plain = GradientDescent(3, eta * 11)(*(pairs(s[None], 11)))
    assert (plain - prediction[None, -1:]).abs().max() > 0.01


def test_series_converge_to_least_squares_at_their_rates():
    s = sequences()
    exact, bound, ridge = RecursiveLeastSquares(1.0)(s), 60.0, 1.0

    def gap(predictor):
        return float((predictor(s) - exact).detach().abs().max())

    assert gap(NeumannLeastSquares(400, bound, ridge)) < 3 * (1 - ridge / bound) ** 400 * gap(
        NeumannLeastSquares(0, bound, ridge)
    )
    rho = (bound**0.5 - 1) / (bound**0.5 + 1)
    a = torch.linspace(1, bound, 5001, dtype=torch.float64)
    coefficients = ChebyshevLeastSquares.inverse(7, bound).coefficients.detach()
    angles = ((2 * a - bound - 1) / (bound - 1)).clamp(-1, 1).acos()
    series = sum(c * (j * angles).cos() for j, c in enumerate(coefficients))
    assert float((series - 1 / a).abs().max()) == pytest.approx((1 - bound**-0.5) * rho**7, rel=1e-6)
    gaps = [gap(ChebyshevLeastSquares.inverse(terms, bound, ridge)) for terms in (10, 30)]
    assert gaps[1] < gaps[0] * rho**20 * 5
    assert gap(ChebyshevLeastSquares.inverse(150, bound, ridge)) < 1e-12
    assert gaps[1] < gap(NeumannLeastSquares(30, bound)) / 50


def test_trajectories_end_at_the_prediction_and_begin_before_the_first_step():
    s = sequences()
    for predictor, start in (
        (OnlineGradientDescent(3, 0.05), torch.zeros_like(s)),
        (NeumannLeastSquares(3, 60.0), None),
    ):
        path = predictor.trajectory(s)
        assert path.shape == (4, *s.shape)
        torch.testing.assert_close(path[-1], predictor(s))
        first = start if start is not None else OnlineGradientDescent(1, 1 / 60)(s)
        torch.testing.assert_close(path[0], first)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: OnlineGradientDescent(2, [0.1]), "eta must be one number or 2"),
        (lambda: RecursiveLeastSquares(0.0), "ridge must be greater than 0"),
        (lambda: RecursiveLeastSquares(1.0, 1.5), "forget must be at most 1"),
        (
            lambda: RecursiveLeastSquares(1.0, features=torch.sum)(torch.ones(5, 2)),
            "features must give one row an elem",
        ),
        (lambda: Lags(0), "count must be at least 1"),
        (lambda: NeumannLeastSquares(3, 0.5), "bound must be greater than ridge = 1, but is 0.5"),
        (lambda: ChebyshevLeastSquares([], 10.0), r"len\(coefficients\) must be at least 1"),
        (lambda: check_sequence(torch.ones(3)), r"sequence must be \(\*batch, t, d\), but is \(3,\)"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


@pytest.mark.parametrize(
    ("diverging", "message"),
    [
        (lambda: OnlineGradientDescent(300, 10.0), "the iteration must stay finite, but diverged: use a smaller eta"),
        (lambda: NeumannLeastSquares(300, 1.5), "the iteration must stay finite, but diverged: use a bound above"),
        (
            lambda: ChebyshevLeastSquares.inverse(300, 1.5),
            "the iteration must stay finite, but diverged: use a bound above",
        ),
        (lambda: lambda s: RecursiveLeastSquares(1.0)(s / 0), "sequence must be finite"),
        (lambda: OnlineGradientDescent(1, 0.1, torch.ones(2, 2)), r"w0 must have shape \(3, 3\), but is \(2, 2\)"),
    ],
)
def test_what_diverges_or_does_not_fit_says_so(diverging, message):
    with pytest.raises((NumericalError, ArgumentError), match=message):
        diverging()(sequences())


def test_integers_are_no_sequence():
    with pytest.raises(ArgumentTypeError, match=r"sequence must be of a floating-point dtype, but is torch\.int64"):
        check_sequence(torch.ones(2, 3, dtype=torch.int64))


# The constructions


def test_the_constructed_mesa_layer_solves_the_problem_at_every_t():
    s = sequences()
    predictions = mesa_least_squares(D, 0.3).network(s)
    for t in range(1, 12):
        expected = LeastSquares(ridge=0.3)(*pairs(s, t))
        torch.testing.assert_close(predictions[:, t : t + 1].detach(), expected, rtol=1e-10, atol=1e-12)


def test_numbers_of_numpy_build_what_numbers_of_python_do(unchecked):
    built, s = neumann_preconditioning(D, 4, np.float32(57.3), np.float32(0.3)), sequences()
    torch.testing.assert_close(built.network(s), built.algorithm(s), rtol=0, atol=1e-12)


def test_constructed_tokens_hold_the_series_after_each_layer():
    """A probe for preconditioned inputs would find this series (von Oswald 2024, eq. 3.57)."""
    s, bound = sequences(), 60.0
    network = neumann_preconditioning(D, 5, bound).network
    before = torch.cat([torch.zeros(4, 1, D).double(), s[:, :-1]], 1)
    a = torch.eye(D) + (before[..., None] * before[..., None, :]).cumsum(1)
    x = s
    tokens = network.transformer.tokens(torch.cat([torch.zeros_like(s), s, s, before], -1))
    for after in tokens[1:-1]:
        x = s + x - (a @ x[..., None]).squeeze(-1) / bound
        torch.testing.assert_close(after[..., D : 2 * D].detach(), x)


def test_layers_of_a_construction_tell_the_steps_of_its_algorithm():
    network, algorithm = online_gradient_descent(D, 0.05, 3)
    s = sequences()
    torch.testing.assert_close(network.trajectory(s), algorithm.trajectory(s), rtol=1e-12, atol=1e-12)


# Causal layers


ATTENTIONS = list(registered("attention"))
WIDE = CausalTransformerConfig(AttentionConfig(12))


def predictor(*attention, width=12, **heads):
    config = CausalTransformerConfig(AttentionConfig(width, n_heads=2, **heads), len(attention), attention)
    return SequencePredictorConfig(config, D).build(stream(0, "init")).double()


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize(
    "heads",
    [
        {},
        {"convolution": 3, "forget": True, "beta": True},
        {"positions": 6, "window": 4},
        {"key_shift": True, "rotary": True},
    ],
)
def test_any_split_into_prompt_and_steps_gives_the_same(attention, heads):
    net, s = predictor("softmax", attention, **heads), sequences(length=75)
    with torch.no_grad():
        whole = net(s)
        for split in (0, 1, 5, 40, 74):
            first, state = net.advance(s[:, :split], net.init_state(4))
            second, state = net.advance(s[:, split:-1], state)
            last, _ = net.step(s[:, -1], state)
            told = torch.cat([first, second, last[:, None]], 1)
            torch.testing.assert_close(told, whole, rtol=1e-9, atol=1e-9)


def kept_bytes(state):
    """Memory, not entries: a view of a few may hold on to many."""
    if isinstance(state, torch.Tensor):
        return state.untyped_storage().nbytes()
    return sum(kept_bytes(part) for part in state if not isinstance(part, int) and part is not None)


@pytest.mark.parametrize("attention", ["linear", "delta", "mesa"])
def test_decoding_keeps_as_much_after_a_hundred_elements_as_after_ten(attention):
    net, s = predictor("softmax", attention, window=4, convolution=3), sequences(length=100)
    with torch.no_grad():
        sizes = [kept_bytes(net.advance(s[:, :t], net.init_state(4))[1]) for t in (10, 100)]
    assert sizes[0] == sizes[1]


def test_empty_and_single_sequences():
    for attention in ATTENTIONS:
        net = predictor(attention)
        assert net(torch.zeros(2, 0, D).double()).shape == (2, 0, D)
        assert net(torch.zeros(0, 5, D).double()).shape == (0, 5, D)
        assert net(sequences()[0]).shape == (12, D)


def test_heads_compute_what_their_weights_say():
    """One linear layer against W_KQ and W_PV, token by token."""
    layer = LinearAttention(AttentionConfig(6, 2), stream(0, "init")).double()
    e = torch.randn(7, 6, dtype=torch.float64, generator=stream(0, "tokens"))
    w_kq, w_pv = layer.products()
    for t in range(7):
        gram = e[: t + 1].mT @ e[: t + 1]
        expected = sum(pv @ gram @ kq @ e[t] for kq, pv in zip(w_kq, w_pv, strict=True))
        torch.testing.assert_close(layer(e)[t], expected)


def test_scores_of_normalised_softmax_attention_do_not_depend_on_lengths():
    layer = SoftmaxAttention(AttentionConfig(6, 2, normalise=True), stream(0, "init")).double()
    e = torch.randn(7, 6, dtype=torch.float64, generator=stream(0, "tokens"))
    before = layer(e)
    with torch.no_grad():
        layer.w_k.mul_(3.0)
    torch.testing.assert_close(layer(e), before)


def test_the_learned_ridge_starts_where_asked_and_stays_above_its_floor():
    layer = MesaAttention(AttentionConfig(6, 2, ridge=1e-2, ridge_floor=1e-3)).double()
    layer.ridge = 1e-2
    torch.testing.assert_close(layer.ridge, torch.full((2,), 1e-2, dtype=torch.float64), rtol=1e-12, atol=0)
    with torch.no_grad():
        layer.ridge_above.fill_(-1e3)
    assert float(layer.ridge.detach().min()) >= 1e-3


def test_forget_factors_start_at_horizons_from_ten_to_a_thousand_tokens_and_keep_the_cap():
    layer = MesaAttention(AttentionConfig(6, 3, forget=True, beta=True)).double()
    log_forget, beta = layer.gates(torch.zeros(1, 6).double())
    horizons = torch.tensor([10.0, 100.0, 1000.0], dtype=torch.float64)
    expected = (1 - 1 / horizons) * (1 - 0.0025 * 0.25)
    torch.testing.assert_close(log_forget.exp().squeeze(-1), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(beta.squeeze(-1), torch.full((3,), 0.5, dtype=torch.float64))


def test_a_predictor_that_looks_ahead_fails_the_contract():
    def means_of_blocks(s, size=6):
        parts = s.split(size, -2)
        return torch.cat([part.mean(-2, keepdim=True).expand_as(part) for part in parts], -2)

    for blind in (lambda s: s.mean(-2, keepdim=True).expand_as(s), means_of_blocks):
        with pytest.raises(AssertionError, match=r"later elements|how many elements follow"):
            check_predictor(blind)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: AttentionConfig(0), "width must be at least 1"),
        (
            lambda: AttentionConfig(5, n_heads=2),
            "key_size must be given, as n_heads = 2 does not divide width = 5",
        ),
        (lambda: AttentionConfig(4, ridge=1e-4), "ridge must be greater than ridge_floor = 0.001, but is 0.0001"),
        (lambda: AttentionConfig(4, dpfp=-1), "dpfp must be at least 0"),
        (lambda: AttentionConfig(8, 4, dpfp=4), "dpfp must be less than 4 for key_size 2, but is 4"),
        (lambda: AttentionConfig(4, 4, dpfp=1), "dpfp must be less than 1 for key_size 1, but is 1"),
        (
            lambda: predictor("mesa").transformer.advance(torch.ones(1, 12).double(), ()),
            "state must be of length 1, but is 0",
        ),
        (
            lambda: CausalTransformerConfig(AttentionConfig(4), 2, ("mesa",)),
            "attention must be one value or 2, one per layer",
        ),
        (lambda: CausalTransformerConfig(AttentionConfig(4), attention="meza"), "did you mean 'mesa'"),
        (lambda: predictor("mesa")(torch.ones(2, 5, 4)), "sequence must have width 3, but is 4"),
        (
            lambda: predictor("mesa")(torch.ones(2, 5, 3)),
            r"sequence must have the dtype of the network, torch\.float64, but is torch\.float32: convert",
        ),
        (lambda: predictor("mesa").transformer(torch.ones(2, 5, 3)), r"tokens must have shape \(\*batch, t, 12\)"),
        (lambda: predictor("mesa").transformer(torch.ones(2, 5, 12)), "tokens must have the dtype of the network"),
        (
            lambda: predictor("mesa").step(torch.ones(2, D).double(), predictor("mesa").init_state(3)),
            r"state must be of batch \(2,\), but is \(3,\): begin with init_state",
        ),
        (lambda: SequencePredictorConfig(WIDE, D, ()), "channels must have 1 or more entries"),
        (
            lambda: SequencePredictorConfig(WIDE, D, ("blank", "now")),
            "transformer must have width 6, 3 per channel, but is 12",
        ),
        (lambda: SequencePredictorConfig(WIDE, D, ("bank",)), "did you mean 'blank'"),
        (
            lambda: SequencePredictor(SequencePredictorConfig(WIDE, D), w0=torch.eye(D)),
            "w0 must be None for raw tokens",
        ),
    ],
)
def test_wrong_configurations_are_refused_in_a_sentence(call, message, unchecked):
    with pytest.raises(ArgumentError, match=message):
        call()


def test_training_a_mesa_layer_on_constructed_tokens_finds_least_squares(unchecked):
    """The thesis' single mesa layer, small: from random weights to within 10 % of ridge regression's loss."""
    family = LinearDynamics(D, 20, noise=0.1)

    heads = AttentionConfig(3 * D, key_size=D, init_scale=0.3, normalise=False)
    config = SequencePredictorConfig(CausalTransformerConfig(heads, attention="mesa"), D, ("blank", "now", "before"))
    trained = train(config.build, family, Training(steps=150, batch=64, learning_rate=0.05), seeds=[0]).member(0)
    s = family.sample(1000, stream(0, "eval"))

    def loss(predict):
        with torch.no_grad():
            return float((predict(s[:, :-1]) - s[:, 1:]).square().mean())

    assert loss(trained) < 1.1 * loss(RecursiveLeastSquares(0.03))
    assert loss(RecursiveLeastSquares(0.03)) < 0.7 * loss(OnlineGradientDescent(1, 0.02))


@pytest.mark.usefixtures("members")
def test_a_mesa_member_that_diverges_lets_the_others_train_on():
    """An infinite weight and, apart from it, a ridge that single precision cannot bear."""
    family, plan = LinearDynamics(D, 12), Training(steps=4, batch=8, learning_rate=0.01)

    def make(generator, broken):
        config = CausalTransformerConfig(AttentionConfig(6, 2), attention="mesa")
        net = SequencePredictorConfig(config, D).build(generator)
        if broken == "infinite":
            net.w_in.data[0, 0] = torch.inf
        if broken == "singular":
            net.transformer.layers[0].attention.config = AttentionConfig(6, 2, ridge_floor=1e-12)
            net.transformer.layers[0].attention.ridge_above.data.fill_(-1e3)
        return net

    def batches(step):
        return torch.stack([family.sample(8, stream(0, "train", step))] * 2)

    for broken in ("infinite", "singular"):
        nets = [make(stream(0, "init"), broken), make(stream(1, "init"), None)]
        if broken == "singular":  # one config for all members, as their ridges are parameters
            nets[1].transformer.layers[0].attention.config = nets[0].transformer.layers[0].attention.config
        alone = fit(EnsembleState(nets[1:], half_mse, plan), lambda step: batches(step)[:1], plan)
        with pytest.warns(UserWarning, match=r"members \[0\] diverged at step 1"):
            pair = fit(EnsembleState(nets, half_mse, plan), batches, plan)
        for name, weight in alone.weights.items():
            torch.testing.assert_close(pair.weights[name][1], weight[0], rtol=1e-4, atol=1e-5)


def test_a_ridge_that_linear_heads_do_not_use_leaves_their_products_readable():
    heads = AttentionConfig(width=9, n_heads=3, ridge=0.3, ridge_kind="constant", ridge_per_dimension=True)
    config = CausalTransformerConfig(heads, 2, "linear")
    net = SequencePredictor(SequencePredictorConfig(config, 3, ("blank", "now", "before")), stream(0, "init"))
    sequence = torch.randn(2, 6, 3, generator=stream(0, "sequence"))
    torch.testing.assert_close(net.with_products(net.products())(sequence), net(sequence), rtol=1e-4, atol=1e-5)
