import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from examples import examples

from mesascope.adapters import record
from mesascope.constructions import gradient_descent, gradient_descent_plus_plus, mesa_gradient_descent
from mesascope.errors import ArgumentError, ArgumentTypeError, NumericalError
from mesascope.explore.subjects import InOwnDtype
from mesascope.learners import (
    GradientDescent,
    GradientDescentPlusPlus,
    KernelSmoother,
    LeastSquares,
    Mean,
    OnlineGradientDescent,
    RecursiveLeastSquares,
    Zero,
    tune,
)
from mesascope.lenses import (
    access,
    access_of,
    agreement,
    alignment,
    compare,
    interpolate,
    measure_learners,
    per_task_errors,
    rescaled_products,
    rollout,
    step_sizes,
    sweep,
    token_sensitivity,
    trajectory_errors,
    weights,
)
from mesascope.lenses.together import _median
from mesascope.measurement import Measurement
from mesascope.nets import InContextRegressorConfig, Products, TransformerConfig
from mesascope.records import facts
from mesascope.streams import stream
from mesascope.tasks import Context, Episode, LinearDynamics, LinearRegression
from mesascope.testing import check_learner
from mesascope.training import Training, train

FAMILY = LinearRegression(n_context=8, d_in=3, d_out=2, n_query=2)


@pytest.fixture
def episodes():
    return FAMILY.sample(50, stream(0, "lenses"))


def numpy_mean(context, xq):
    """A learner outside torch."""
    return torch.as_tensor(context.y.numpy().mean(-2, keepdims=True) + 0 * xq.numpy()[..., :1])


def test_measurement_of_known_numbers():
    measured = Measurement.of(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert measured.value == 2.5
    assert measured.stderr == pytest.approx(math.sqrt(5 / 3) / 2)
    assert math.isnan(Measurement.of(torch.ones(1)).stderr)
    assert [str(Measurement(1.034, error, 1)) for error in (math.nan, 0.0)] == ["1.034 ± unknown", "1.034"]


def test_ratio_cancels_what_tasks_share():
    shared = torch.rand(4000, generator=stream(0, "r")).double() + 0.1
    ratio = Measurement.ratio(1.5 * shared, shared)
    assert ratio.value == pytest.approx(1.5)
    assert ratio.stderr == pytest.approx(0.0, abs=1e-12)


def test_ratio_error_covers_the_truth_as_often_as_it_should():
    generator, inside = stream(0, "cover"), 0
    for _ in range(300):
        below = torch.rand(200, generator=generator).double() + 0.5
        above = 2 * below + torch.randn(200, generator=generator).double()
        measured = Measurement.ratio(above, below)
        inside += abs(measured.value - 2.0) < 2 * measured.stderr
    assert 0.9 < inside / 300 < 0.99


def test_alignment_with_itself_is_perfect(episodes):
    learner = GradientDescent(2, 0.7)
    same = alignment(learner, learner, episodes)
    assert same.prediction_difference.value == 0
    assert same.sensitivity_cosine.value == pytest.approx(1.0)
    assert same.sensitivity_difference.value == 0
    assert same.mse_ratio.value == 1
    assert same.mse_ratio.n == 50


def test_alignment_by_hand(episodes):
    """GD's model is W = eta Y^T X / n, so everything is known for two step sizes of opposite sign."""
    a, b = GradientDescent(1, 1.0), GradientDescent(1, -0.5)
    seen = alignment(a, b, episodes)
    model = episodes.context.y.mT @ episodes.context.x / 8
    assert seen.sensitivity_cosine.value == pytest.approx(-1.0)
    assert seen.sensitivity_difference.value == pytest.approx(
        1.5 * model.flatten(1).norm(dim=1).mean().item(), rel=1e-5
    )
    gap = 1.5 * (episodes.xq @ model.mT).norm(dim=-1).mean().item()
    assert seen.prediction_difference.value == pytest.approx(gap, rel=1e-5)
    error = (episodes.xq @ model.mT - episodes.yq).square().mean().item()
    assert seen.mse_a.value == pytest.approx(error, rel=1e-5)


def test_zero_sensitivities_have_a_defined_cosine(episodes):
    assert alignment(Zero(), Zero(), episodes).sensitivity_cosine.value == 1.0
    assert alignment(Zero(), GradientDescent(1, 0.5), episodes).sensitivity_cosine.value == 0.0


def test_sensitivities_that_vanish_to_rounding_have_no_direction():
    """Sensitivities of a smoother far from where its neighbours' labels differ are rounding errors of larger terms."""
    x = torch.linspace(0, 1, 21)[None, :, None]
    tasks = Episode(Context(x, (x > 0.5).float()), torch.tensor([[[0.03], [0.51]]]), torch.zeros(1, 2, 1))
    smoother, other = KernelSmoother(bandwidth=0.03), GradientDescent(1, 0.5)
    assert alignment(smoother, Zero(), tasks).sensitivity_cosine.value == 0.5
    assert alignment(smoother, other, tasks).sensitivity_cosine.value == pytest.approx(0.5)


def test_parts_do_not_change_the_answer(episodes, monkeypatch):
    whole = alignment(GradientDescent(1, 0.5), LeastSquares(), episodes)
    monkeypatch.setattr("mesascope.lenses.access.PART", 7)
    parts = alignment(GradientDescent(1, 0.5), LeastSquares(), episodes)
    assert parts.sensitivity_cosine.value == pytest.approx(whole.sensitivity_cosine.value)
    assert parts.mse_ratio.stderr == pytest.approx(whole.mse_ratio.stderr)


def regressor(**transformer):
    return InContextRegressorConfig(TransformerConfig(5, **transformer), d_out=2).build(stream(0, "init"))


def test_access_is_told_apart(episodes):
    net = regressor()
    assert access_of(net, episodes) == {"prediction", "gradient", "products", "points", "tokens", "rule", "trajectory"}
    assert access_of(GradientDescent(1, 0.5), episodes) == {"prediction", "gradient", "rule", "trajectory"}
    assert access_of(Mean(), episodes) == {"prediction", "gradient"}
    assert access_of(numpy_mean, episodes) == {"prediction"}
    assert access_of("text", episodes) == set()


TASKS = LinearRegression(n_context=10, d_in=3).sample(6, stream(0, "lenses"))


LENSES = [one for one in examples("lens") if "of" not in facts("lens", one[0])]
OF_SEQUENCES = examples("lens", of="predictor")


@pytest.mark.parametrize(("name", "look"), LENSES)
def test_a_lens_takes_a_plain_function_or_refuses_it_in_a_sentence(name, look, unchecked):
    if facts("lens", name)["needs"] == "prediction":
        look(numpy_mean, TASKS)
    else:
        with pytest.raises(ArgumentTypeError, match=rf"^{name}|^rescaled_products") as refusal:
            look(numpy_mean, TASKS)
        assert "but is given numpy_mean: " in str(refusal.value)
        assert str(refusal.value).count(".") == 1


@pytest.mark.parametrize(("name", "look"), LENSES)
def test_a_lens_refuses_what_is_no_learner(name, look, unchecked):
    with pytest.raises(ArgumentTypeError, match="but is given str"):
        look("text", TASKS)


SEQUENCES = LinearDynamics(3, 8).sample(6, stream(0, "lenses"))


@pytest.mark.parametrize(("name", "look"), OF_SEQUENCES)
def test_a_lens_of_sequences_takes_a_plain_function_or_refuses_it_and_what_is_no_predictor(name, look, unchecked):
    def last(sequence):
        return sequence

    if facts("lens", name)["needs"] == "prediction":
        look(last, SEQUENCES)
    else:
        with pytest.raises(ArgumentTypeError, match=rf"^{name} must be given .*, but is given last: "):
            look(last, SEQUENCES)
    with pytest.raises(ArgumentTypeError, match="but is given str"):
        look("text", SEQUENCES)


@pytest.mark.parametrize(("name", "look"), OF_SEQUENCES)
def test_every_lens_of_sequences_looks_at_a_network_and_leaves_its_mode_as_it_was(name, look):
    net = mesa_gradient_descent(3, 0.1).network.float().train()
    net.transformer.layers[0].norm.eval()
    look(net, SEQUENCES)
    assert [part for part in net.modules() if not part.training] == [net.transformer.layers[0].norm]


@pytest.mark.parametrize(("name", "look"), LENSES)
def test_every_lens_looks_at_a_network_and_leaves_its_mode_as_it_was(name, look):
    """Dropout would make two calls differ, batches of other tasks would change what a norm computes."""
    config = TransformerConfig(4, n_layers=2, shared=True, token_clip=9.0)
    net, seen = InContextRegressorConfig(config).build(stream(0, "init")), []
    layer = net.transformer.layers[0]
    layer.attention.register_forward_pre_hook(lambda module, inputs: seen.append(module.training))
    net.train()
    layer.norm.eval()
    look(net, TASKS)
    assert bool(seen) == (facts("lens", name)["needs"] not in ("products", "rule"))
    assert not any(seen)
    assert [part for part in net.modules() if not part.training] == [layer.norm]


def test_a_module_with_dropout_agrees_with_itself(episodes):
    class Dropped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, context, xq):
            return self.drop(GradientDescent(1, 1.0)(context, xq))

    assert agreement(Dropped(), GradientDescent(1, 1.0), episodes).prediction_difference.value == 0
    assert alignment(Dropped(), Dropped(), episodes).sensitivity_difference.value == 0
    assert compare(Dropped(), {"same": Dropped()}, FAMILY, tasks=20).rows["same"].mse_ratio.value == 1


def test_predictions_of_the_wrong_shape_or_not_finite_are_refused(episodes):
    with pytest.raises(ArgumentError, match="a learner must return predictions"):
        agreement(lambda context, xq: xq[..., 0], Mean(), episodes)
    with pytest.raises(NumericalError, match="predictions must be finite, but 200 of 200"):
        agreement(lambda context, xq: xq[..., :2] * math.nan, Mean(), episodes)


def test_what_is_not_a_learner_is_refused(episodes):
    with pytest.raises(ArgumentTypeError, match=r"a learner must return a torch tensor, but .* returned ndarray"):
        agreement(lambda context, xq: numpy_mean(context, xq).numpy(), Mean(), episodes)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.long, torch.bool])
@pytest.mark.parametrize("use", ["compare", "agreement", "tune", "train", "check"])
def test_predictions_that_are_no_real_floating_point_numbers_are_refused(dtype, use, episodes):
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.eta = torch.nn.Parameter(torch.ones(()))

        def forward(self, context, xq):
            return (context.y.mean(-2, keepdim=True) * xq[..., :1] * self.eta).to(dtype)

    ask = {
        "compare": lambda: compare(Odd(), {"mean": Mean()}, FAMILY, tasks=20),
        "agreement": lambda: agreement(Mean(), Odd(), episodes),
        "tune": lambda: tune(Odd(), FAMILY, tasks=20),
        "train": lambda: train(lambda generator: Odd(), FAMILY, Training(steps=1, batch=4)),
        "check": lambda: check_learner(Odd()),
    }
    said = "predictions must have the queries' dtype|a learner must return real floating-point numbers, but .* returned"
    with pytest.raises((ArgumentTypeError, AssertionError), match=f"({said}).*{dtype}"):
        ask[use]()


def test_nan_in_the_users_data_is_refused(episodes):
    broken = Episode(Context(episodes.context.x, episodes.context.y * math.nan), episodes.xq, episodes.yq)
    with pytest.raises(ArgumentError, match=r"context.y must be finite"):
        alignment(Zero(), Mean(), broken)


def test_interpolation_undoes_the_scale_of_each_product():
    built = gradient_descent(3, 2, 0.5, 8).network
    scaled = gradient_descent(3, 2, 0.5, 8).network
    with torch.no_grad():
        attention = scaled.transformer.layers[0].attention
        attention.w_q.mul_(7.0)
        attention.p.div_(7.0)
    for t in (0.0, 0.3, 1.0):
        middle = interpolate(built, scaled, t)
        torch.testing.assert_close(middle.products()[0].w_kq, built.products()[0].w_kq)
        torch.testing.assert_close(middle.products()[0].w_pv, built.products()[0].w_pv)


def test_interpolation_ends_at_its_ends(episodes):
    a = gradient_descent_plus_plus(3, 2, 0.5, 0.01, 8, steps=2).network.float()
    b = gradient_descent_plus_plus(3, 2, 0.2, 0.03, 8, steps=2).network.float()
    for t, end in ((0.0, a), (1.0, b)):
        torch.testing.assert_close(interpolate(a, b, t)(*episodes[:2]), end(*episodes[:2]), rtol=1e-5, atol=1e-6)


def test_separate_clipped_layers_are_rescaled_one_by_one(episodes):
    eta, gamma = [0.5, 0.9], [0.01, 0.02]
    built = gradient_descent_plus_plus(3, 2, eta, gamma, 8, steps=2).network
    clipped = regressor(n_layers=2, token_clip=0.3).double()
    a, b = (clipped.with_products(built.products()) for _ in range(2))
    with torch.no_grad():
        for factor, layer in zip((3.0, 0.2), b.transformer.layers, strict=True):
            layer.attention.w_q.mul_(factor)
            layer.attention.p.div_(factor)
    exact = episodes.to(torch.float64)
    expected = GradientDescentPlusPlus(2, eta, gamma, token_clip=0.3)(*exact[:2])
    for t in (0.0, 0.5, 1.0):
        torch.testing.assert_close(interpolate(a, b, t)(*exact[:2]), expected, rtol=1e-10, atol=1e-12)
    with pytest.raises(ArgumentError, match=r"networks of one token_clip, but they have 0.3 and None"):
        interpolate(a, built)


def test_interpolation_refuses_what_is_not_linear():
    net = regressor(attention="softmax")
    with pytest.raises(ArgumentError, match="interpolate must be given linear attention networks"):
        interpolate(net, net)


class Plain:
    """One linear layer of somebody else's: it has products, and no more."""

    d_out, linear, token_clip = 2, True, None

    def __init__(self, products):
        self.own = products

    def products(self):
        return self.own

    def with_products(self, products):
        return Plain(products)


def test_lenses_of_products_work_on_anything_that_has_some():
    a, b = (gradient_descent(3, 2, eta, 8).network for eta in (0.5, 0.3))
    ours = interpolate(a, b, 0.25).products()[0]
    theirs = interpolate(Plain(a.products()), Plain(b.products()), 0.25)
    assert isinstance(theirs, Plain)
    torch.testing.assert_close(theirs.products()[0].w_pv, ours.w_pv)
    assert step_sizes(Plain(a.products()), 8).eta.tolist() == pytest.approx([0.5])
    assert weights(Plain(a.products()), b)[0][0].distance_pv == pytest.approx(0.2 / 0.3)


def test_token_sensitivity_of_a_linear_layer_by_hand():
    """With W_KQ = 0, tokens stay as they are: every row depends on itself alone, by the identity."""
    zero = Products(torch.zeros(1, 5, 5), torch.ones(1, 5, 5))
    net, tasks = regressor().with_products([zero]), FAMILY.sample(4, stream(0, "t"))
    torch.testing.assert_close(token_sensitivity(net, tasks), 5**0.5 * torch.eye(8))
    with pytest.raises(ArgumentError, match="layer must be at most the network's depth 1, but is 2"):
        token_sensitivity(net, tasks, layer=2)


@pytest.mark.parametrize("other", [{"n_layers": 2}, {"n_heads": 2, "key_size": 5}])
def test_interpolation_refuses_networks_of_other_sizes(other):
    with pytest.raises(
        ArgumentError, match="interpolate must be given networks of one depth, width and number of heads"
    ):
        interpolate(regressor(), regressor(**other))


def test_weights_of_a_construction_are_at_distance_zero():
    network = gradient_descent(3, 2, 0.5, 8).network
    reading = weights(network, network)[0][0]
    assert reading.off_diagonal == 0
    assert reading.distance_kq == 0
    assert reading.distance_pv == 0


def test_weights_measure_a_known_disturbance():
    network, other = (gradient_descent(3, 1, 0.5, 8).network for _ in range(2))
    with torch.no_grad():
        other.transformer.layers[0].attention.w_q[0, 0, 2] = 0.25
    reading = weights(other, network)[0][0]
    assert reading.off_diagonal == pytest.approx(0.25)
    assert reading.distance_kq == pytest.approx(0.25 / math.sqrt(3))
    with pytest.raises(ArgumentError, match="construction must have the network's depth and width"):
        weights(other, gradient_descent(4, 1, 0.5, 8).network)


def test_weights_that_cannot_be_rescaled_say_so():
    network = gradient_descent(3, 1, 0.5, 8).network
    with torch.no_grad():
        network.transformer.layers[0].attention.w_q.zero_()
    with pytest.raises(NumericalError, match="mean diagonal of W_KQ must not be 0"):
        rescaled_products(network)


def test_sweep_sees_the_same_draws_everywhere():
    learners = {"gd": GradientDescent(1, 0.5), "zero": [Zero(), Zero()]}
    swept = sweep(learners, FAMILY, {"w_scale": [1.0, 3.0]}, tasks=200)
    assert swept.cases["w_scale"].tolist() == [1.0, 3.0]
    zero = swept["mse", "zero"]
    assert zero.shape == (2, 2)
    assert zero[0, 1].nominal_value == pytest.approx(9 * zero[0, 0].nominal_value, rel=1e-5)
    small, large = swept.ratio("zero", "gd")[1]
    assert small.nominal_value == pytest.approx(large.nominal_value, rel=1e-5)
    with pytest.raises(ArgumentError, match="did you mean 'x_scale'"):
        sweep({"zero": Zero()}, FAMILY, {"xscale": [1.0]})


def test_rollout_of_a_construction_is_damped_descent(episodes):
    network, algorithm = gradient_descent(3, 2, 0.5, 8)
    exact = episodes.to(torch.float64)
    for learner in (network, algorithm):
        errors = trajectory_errors(rollout(learner, 6, damping=0.75), exact)
        expected = trajectory_errors(GradientDescent(6, 0.375), exact)
        torch.testing.assert_close(errors, expected, rtol=1e-10, atol=1e-12)


def test_a_roll_out_that_diverges_has_infinite_error(episodes):
    errors = trajectory_errors(rollout(GradientDescent(1, 1e30), 40), episodes)
    assert errors[-1].isinf().all()


def test_compare_pairs_any_learners(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    table = compare(GradientDescent(1, 1.0), {"numpy": numpy_mean, "least squares": LeastSquares()}, FAMILY, tasks=300)
    text = str(table)
    assert text.splitlines()[0].split()[0] == "learner"
    assert "sensitivity cosine" in text
    assert not hasattr(table.rows["numpy"], "sensitivity_cosine")
    assert table.rows["least squares"].sensitivity_cosine.value > 0.5
    assert table.rows["numpy"].mse_a == table.rows["least squares"].mse_a
    with pytest.raises(ArgumentError, match="others must be a dictionary of learners by name"):
        compare(Zero(), {}, FAMILY)
    for name in (None, "Zero"):
        with pytest.raises(ArgumentError, match=r"^name must differ from the names of the others, but is 'Zero': pass"):
            compare(Zero(), {"Zero": Mean()}, FAMILY, name=name)
    assert compare(Zero(), {"Zero": Mean()}, FAMILY, name="mine", tasks=5).learner == "mine"


def test_predictors_are_compared_on_sequences():
    family = LinearDynamics(d=3, length=12)
    table = compare(OnlineGradientDescent(1, 0.03), {"least squares": RecursiveLeastSquares(0.01)}, family, tasks=200)
    s = family.sample(200, stream(0, "compare"))
    with torch.no_grad():
        a, b = (one(s[:, :-1]) for one in (OnlineGradientDescent(1, 0.03), RecursiveLeastSquares(0.01)))
    row = table.rows["least squares"]
    assert row.mse_a.value == pytest.approx(float((a - s[:, 1:]).square().mean()), rel=1e-5)
    assert row.mse_b.value == pytest.approx(float((b - s[:, 1:]).square().mean()), rel=1e-5)
    assert row.prediction_difference.value == pytest.approx(float((a - b).norm(dim=-1).mean()), rel=1e-5)
    assert "sensitivity" not in str(table)
    assert row.mse_ratio.value > 1


@pytest.mark.parametrize(
    ("learner", "family", "message"),
    [
        (numpy_mean, LinearDynamics(), r"a learner must take what the family draws, here \(sequence\), but numpy_mean"),
        (lambda sequence: sequence, FAMILY, r"a learner must take what the family draws, here \(context, xq\)"),
    ],
)
def test_learners_and_predictors_are_not_mixed_up(learner, family, message):
    with pytest.raises(ArgumentTypeError, match=message):
        compare(learner, {"same": learner}, family, tasks=10)


def test_sequences_that_are_not_finite_or_too_short_are_refused():
    for bad in (torch.full((4, 5, 2), torch.nan), torch.zeros(4, 1, 2)):
        with pytest.raises(ArgumentError, match="sequences must be finite numbers"):
            agreement(RecursiveLeastSquares(1.0), RecursiveLeastSquares(1.0), bad)


def test_measuring_together_tells_what_pairs_tell(episodes):
    """Means and errors are those of `alignment`, learner by learner, and pairing is kept."""
    nets = [
        InContextRegressorConfig(TransformerConfig(5, init_scale=0.5), d_out=2).build(stream(s, "init")) for s in (0, 1)
    ]
    gd = GradientDescent(1, 0.5)
    found = measure_learners({"net": nets, "gd": [gd]}, ["gd"], episodes)
    for index, net in enumerate(nets):
        pair = alignment(net, gd, episodes)
        for name, one in {
            ("mse", "net"): pair.mse_a,
            ("cosine", "net", "gd"): pair.sensitivity_cosine,
            ("sensitivity-difference", "net", "gd"): pair.sensitivity_difference,
            ("prediction-difference", "net", "gd"): pair.prediction_difference,
        }.items():
            assert found[name][index].nominal_value == pytest.approx(one.value, rel=1e-5)
            assert found[name][index].std_dev == pytest.approx(one.stderr, rel=1e-5)
        ratio = found.ratio("net", "gd")[index]
        assert (ratio.nominal_value, ratio.std_dev) == pytest.approx(
            (pair.mse_ratio.value, pair.mse_ratio.stderr), rel=1e-4
        )
    medians = per_task_errors(gd, episodes).median()
    assert found["median", "gd"][0].nominal_value == pytest.approx(float(medians), rel=0.05)
    assert found["derivative-error", "net"][0].nominal_value < 1e-3 * found["derivative", "net"][0].nominal_value
    with pytest.raises(ArgumentError, match="must have as many members"):
        measure_learners({"net": nets, "others": [gd] * 3}, ["others"], episodes)


def test_a_derivative_at_another_query_is_noticed(episodes, monkeypatch):
    net = InContextRegressorConfig(TransformerConfig(5, attention="softmax", init_scale=8.0), d_out=2).build(
        stream(0, "init")
    )
    true = access.sensitivities

    def elsewhere(learner, drawn):
        other = true(learner, drawn._replace(xq=drawn.xq.roll(1, dims=0)))
        for (answers, prediction, _), (_, _, sensitivity) in zip(true(learner, drawn), other, strict=True):
            yield answers, prediction, sensitivity

    def error():
        found = measure_learners({"net": [net]}, [], episodes)
        return (found["derivative-error", "net"] / found["derivative", "net"])[0].nominal_value

    assert error() < 0.02
    monkeypatch.setattr(access, "sensitivities", elsewhere)
    assert error() > 0.1


def test_the_error_of_a_median_is_that_of_resampling():
    rng = np.random.default_rng(0)
    values = torch.from_numpy(rng.lognormal(0, 2, 20_000))
    numbers = _median(values)
    resampled = [np.median(rng.choice(values.numpy(), values.numel())) for _ in range(200)]
    assert numbers.mean() == pytest.approx(values.median().item(), rel=1e-3)
    assert numbers.std() / values.numel() ** 0.5 == pytest.approx(np.std(resampled), rel=0.2)


@dataclass(frozen=True)
class Alike:
    """Tasks whose labels are all the same."""

    label: float = 0.0

    def sample(self, batch, generator):
        tasks = LinearRegression(n_context=6, d_in=2).sample(batch, generator)
        x, y = tasks.context
        return Episode(Context(x, torch.full_like(y, self.label)), tasks.xq, torch.full_like(tasks.yq, self.label))


@pytest.mark.parametrize(("label", "exact"), [(0.0, {"mean", "zero"}), (2.0, {"mean"})])
def test_a_ratio_to_a_learner_without_errors_is_left_out(label, exact):
    """On labels that are all 0, or all the same, some learners make no error; all other numbers are finite."""
    others = {"mean": Mean(), "zero": Zero()}
    found = compare(GradientDescent(2, 0.3), others, Alike(label), tasks=20)
    assert {name for name, row in found.rows.items() if row.mse_ratio is None} == exact
    for row in found.rows.values():
        assert all(math.isfinite(one["value"]) and math.isfinite(one["stderr"]) for one in row.table())
        assert ("mse_ratio" in row.table()["quantity"]) == (row.mse_ratio is not None)
    assert repr(found).count(" -") == (len(exact) if label else 0)
    assert found._repr_html_()
    tasks = Alike(label).sample(5, stream(0, "alike"))
    assert agreement(GradientDescent(2, 0.3), Mean(), tasks).mse_ratio is None
    swept = sweep({"gd": GradientDescent(2, 0.3), "mean": Mean()}, Alike(), {"label": [label]}, tasks=5)
    with pytest.raises(ArgumentError, match=r"mean must have a mse other than 0 for a ratio, .*: use difference\('gd'"):
        swept.ratio("gd", "mean")
    assert swept.difference("gd", "mean")[0, 0].nominal_value >= 0


def test_nothing_is_tuned_on_labels_that_are_all_zero():
    with pytest.raises(ArgumentError, match="family must draw labels other than 0, but those of Alike are all 0"):
        tune(GradientDescent(2, 0.3), Alike(), tasks=20)


def test_step_sizes_count_the_damping_and_need_linear_layers():
    products = gradient_descent(3, 1, 0.5, 6).network.products()
    network = InContextRegressorConfig(TransformerConfig(width=4, damping=0.5)).build(torch.Generator()).double()
    assert step_sizes(network.with_products(products), 6).eta.item() == pytest.approx(0.25)
    with pytest.raises(ArgumentError, match="step_sizes must be given linear attention networks"):
        step_sizes(
            InContextRegressorConfig(TransformerConfig(width=4, attention="softmax")).build(torch.Generator()), 6
        )


def test_networks_of_other_settings_have_no_path_between_them():
    a = gradient_descent(3, 1, 0.5, 6).network
    b = gradient_descent(3, 1, 0.5, 6, w0=torch.tensor([[1.0, 2.0, 3.0]])).network
    with pytest.raises(ArgumentError, match="interpolate must be given networks of one w0"):
        interpolate(a, b, 1.0)
    damped = InContextRegressorConfig(TransformerConfig(width=4, damping=0.5)).build(torch.Generator()).double()
    with pytest.raises(ArgumentError, match="interpolate must be given networks of one damping"):
        interpolate(a, damped.with_products(a.products()), 1.0)


def test_modules_in_wrappers_are_called_in_eval_mode(tmp_path):
    class Drops(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, context, xq):
            return self.drop(xq @ context.x.mT) @ context.y / context.x.shape[-2]

    net, family = Drops(), LinearRegression(n_context=8, d_in=2)
    errors = [compare(one, {"mean": Mean()}, family, tasks=50).rows["mean"].mse_a.value
              for one in (net, record(net, tmp_path / "calls"))]  # fmt: skip
    assert errors[0] == errors[1]
    assert net.training
    own = InOwnDtype(net)
    tasks = family.sample(2, stream(0, "tasks"))
    assert torch.equal(own(tasks.context, tasks.xq), InOwnDtype(net)(tasks.context, tasks.xq))


def test_tasks_have_one_first_axis():
    tasks = (
        LinearRegression(n_context=5, d_in=3).sample(6, stream(0, "tasks")).map(lambda one: one.unflatten(0, (2, 3)))
    )
    with pytest.raises(ArgumentError, match=r"yq must be \(tasks, m, dy\) with at least one task"):
        alignment(GradientDescent(1, 0.5), GradientDescent(2, 0.5), tasks)


def test_squared_errors_of_small_labels_do_not_vanish():
    small, usual = (LinearRegression(n_context=8, d_in=3, w_scale=size, x_scale=size) for size in (1e-12, 1.0))
    rows = [compare(Mean(), {"zero": Zero()}, family, tasks=100).rows["zero"] for family in (small, usual)]
    assert rows[0].mse_b.value > 0
    assert rows[0].mse_ratio.value == pytest.approx(rows[1].mse_ratio.value, rel=1e-4)
