"""Invariances of lenses (to the order of tasks, to the scale that products share), and results for one learner."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings, strategies as st

from mesascope.constructions import gradient_descent_plus_plus
from mesascope.learners import GradientDescent, GradientDescentPlusPlus, LeastSquares
from mesascope.lenses import (
    agreement,
    alignment,
    compare,
    interpolate,
    per_task_errors,
    rescaled_products,
    rollout,
    step_sizes,
    sweep,
    token_sensitivity,
    trajectory_errors,
    weights,
)
from mesascope.nets import InContextRegressorConfig, Products, TransformerConfig
from mesascope.streams import stream
from mesascope.tasks import LinearRegression

SIZES = st.fixed_dictionaries(
    {
        "n_context": st.integers(1, 5),
        "d_in": st.integers(1, 3),
        "d_out": st.integers(1, 2),
        "n_query": st.integers(1, 2),
    }
)
TASKS = st.integers(2, 6)
ETA = st.sampled_from([0.1, 0.7, -0.4])


def sample(family, tasks):
    return family.sample(tasks, stream(0, "tasks")).to(torch.float64)


def network(family, **transformer):
    config = TransformerConfig(family.d_in + family.d_out, **{"n_layers": 2, **transformer})
    return InContextRegressorConfig(config, d_out=family.d_out).build(stream(0, "init")).double()


def values(seen):
    return {field.name: getattr(seen, field.name).value for field in dataclasses.fields(seen)}


@settings(max_examples=20)
@given(sizes=SIZES, tasks=TASKS, eta=ETA)
def test_a_learner_agrees_with_itself(sizes, tasks, eta):
    family = LinearRegression(**sizes)
    for learner in (GradientDescent(2, eta), network(family), LeastSquares(0.1)):
        seen = alignment(learner, learner, sample(family, tasks))
        assert seen.sensitivity_cosine.value == pytest.approx(1.0)
        assert seen.sensitivity_difference.value == seen.prediction_difference.value == seen.mse_difference.value == 0
        assert seen.mse_ratio.value == 1
        assert seen.mse_ratio.stderr == pytest.approx(0.0, abs=1e-12)
        row = compare(learner.float(), {"itself": learner.float()}, family, tasks=tasks).rows["itself"]
        assert row.mse_ratio.value == 1


@settings(max_examples=20)
@given(sizes=SIZES, tasks=TASKS, eta=ETA)
def test_nothing_depends_on_the_order_of_tasks(sizes, tasks, eta):
    family = LinearRegression(**sizes)
    a, b, episodes = GradientDescent(2, eta), network(family), sample(family, tasks)
    order = torch.randperm(tasks, generator=stream(0, "order"))
    other = episodes.map(lambda part: part[order])
    for lens in (agreement, alignment):
        assert values(lens(a, b, other)) == pytest.approx(values(lens(a, b, episodes)), nan_ok=True)
    torch.testing.assert_close(per_task_errors(b, other), per_task_errors(b, episodes)[order])
    torch.testing.assert_close(trajectory_errors(b, other), trajectory_errors(b, episodes)[:, order])
    torch.testing.assert_close(token_sensitivity(b, other), token_sensitivity(b, episodes))


@settings(max_examples=20)
@given(sizes=SIZES, tasks=TASKS, eta=ETA)
def test_what_two_learners_are_to_each_other_they_are_both_ways(sizes, tasks, eta):
    family = LinearRegression(**sizes)
    a, b, episodes = GradientDescent(2, eta), network(family), sample(family, tasks)
    one, other = alignment(a, b, episodes), alignment(b, a, episodes)
    assert one.sensitivity_cosine.value == pytest.approx(other.sensitivity_cosine.value)
    assert one.sensitivity_difference.value == pytest.approx(other.sensitivity_difference.value)
    assert one.prediction_difference.value == pytest.approx(other.prediction_difference.value)
    assert one.mse_difference.value == pytest.approx(-other.mse_difference.value)
    assert one.mse_ratio.value == pytest.approx(1 / other.mse_ratio.value)


@settings(max_examples=20)
@given(sizes=SIZES, tasks=TASKS, eta=ETA)
def test_a_sweep_over_what_is_there_already_tells_the_errors_there(sizes, tasks, eta):
    family = LinearRegression(**sizes)
    learners = {"gd": GradientDescent(1, eta), "again": GradientDescent(1, eta), "net": network(family).float()}
    swept = sweep(learners, family, {"n_context": [family.n_context]}, tasks=tasks)
    drawn = family.sample(tasks, stream(0, "sweep"))
    for name, learner in learners.items():
        (((found,),)) = swept["mse", name]
        assert found.nominal_value == pytest.approx(float(per_task_errors(learner, drawn).mean()), rel=1e-5)
    assert swept.ratio("again", "gd").item().nominal_value == pytest.approx(1.0)


def shifted(net, factors):
    """The same linear network, with W_KQ of each layer and head multiplied and W_PV divided."""
    scaled = [
        Products(layer.w_kq.detach() * factor, layer.w_pv.detach() / factor)
        for layer, factor in zip(net.products(), factors, strict=True)
    ]
    return net.with_products(scaled)


FACTORS = st.lists(st.sampled_from([0.2, 1.0, 7.0, -3.0]), min_size=2, max_size=2)


@settings(max_examples=20)
@given(sizes=SIZES, factors=FACTORS, heads=st.integers(1, 2), t=st.sampled_from([0.0, 0.3, 1.0]))
def test_what_is_read_from_products_does_not_depend_on_the_scale_they_share(sizes, factors, heads, t):
    family = LinearRegression(**sizes)
    net = network(family, n_heads=heads, key_size=3)
    other = shifted(net, factors)
    for one, two in zip(rescaled_products(net), rescaled_products(other), strict=True):
        torch.testing.assert_close(one.w_kq, two.w_kq)
        torch.testing.assert_close(one.w_pv, two.w_pv)
    torch.testing.assert_close(step_sizes(net, 5).eta, step_sizes(other, 5).eta)
    for layer in weights(net, other):
        for reading in layer:
            assert reading.distance_kq == pytest.approx(0.0, abs=1e-9)
            assert reading.distance_pv == pytest.approx(0.0, abs=1e-9)
    episodes = sample(family, 4)
    with torch.no_grad():
        expected = net(episodes.context, episodes.xq)
        torch.testing.assert_close(interpolate(net, other, t)(episodes.context, episodes.xq), expected)


@settings(max_examples=20)
@given(sizes=SIZES, t=st.sampled_from([0.0, 0.25, 0.5, 1.0]), eta=ETA)
def test_a_path_between_networks_is_the_same_from_either_end(sizes, t, eta):
    family = LinearRegression(**sizes)
    a = network(family)
    b = gradient_descent_plus_plus(family.d_in, family.d_out, eta, 0.01, family.n_context, steps=2).network
    there, back = interpolate(a, b, t).products(), interpolate(b, a, 1 - t).products()
    for one, other in zip(there, back, strict=True):
        torch.testing.assert_close(one.w_kq, other.w_kq)
        torch.testing.assert_close(one.w_pv, other.w_pv)
    if t in (0.0, 1.0):
        for one, other in zip(there, rescaled_products(b if t else a), strict=True):
            torch.testing.assert_close(one.w_kq, other.w_kq)


@settings(max_examples=20)
@given(sizes=SIZES, eta=ETA, gamma=st.sampled_from([0.0, 0.02]))
def test_step_sizes_of_a_construction_are_those_it_was_built_with(sizes, eta, gamma):
    family = LinearRegression(**sizes)
    built = gradient_descent_plus_plus(family.d_in, family.d_out, [eta, 2 * eta], gamma, family.n_context, steps=2)
    read = step_sizes(built.network, family.n_context)
    assert read.eta.tolist() == pytest.approx([eta, 2 * eta])
    assert read.gamma.tolist() == pytest.approx([gamma, gamma])


@settings(max_examples=20)
@given(sizes=SIZES, steps=st.integers(1, 4), tasks=TASKS, damping=st.sampled_from([1.0, 0.5]))
def test_a_roll_out_begins_with_shorter_ones_and_ends_where_its_errors_do(sizes, steps, tasks, damping):
    family = LinearRegression(**sizes)
    episodes = sample(family, tasks)
    for learner in (network(family, n_layers=1), GradientDescentPlusPlus(1, 0.3, 0.01)):
        errors = trajectory_errors(rollout(learner, steps, damping), episodes)
        assert errors.shape == (steps + 1, tasks)
        torch.testing.assert_close(errors[:2], trajectory_errors(rollout(learner, 1, damping), episodes))
        torch.testing.assert_close(errors[-1], per_task_errors(rollout(learner, steps, damping), episodes))
        torch.testing.assert_close(
            trajectory_errors(rollout(learner, 1), episodes), trajectory_errors(learner, episodes)
        )
