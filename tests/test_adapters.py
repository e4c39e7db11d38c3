"""Learners and predictors seen through each other's protocol."""

import pytest
import torch

from mesascope.adapters import AsLearner, AsPredictor
from mesascope.errors import ArgumentTypeError
from mesascope.learners import GradientDescent, LeastSquares, Mean, OnlineGradientDescent, RecursiveLeastSquares
from mesascope.nets import AttentionConfig, CausalTransformerConfig, SequencePredictorConfig
from mesascope.streams import stream
from mesascope.tasks import Context, LinearDynamics, LinearRegression
from mesascope.testing import check_learner, check_predictor

SEQUENCES = LinearDynamics(d=3, length=12).sample(4, stream(0, "adapters")).double()


def test_least_squares_at_every_position_is_recursive_least_squares():
    expected = RecursiveLeastSquares(ridge=0.3)(SEQUENCES)
    torch.testing.assert_close(AsPredictor(LeastSquares(ridge=0.3))(SEQUENCES), expected, rtol=1e-10, atol=1e-12)


def test_gradient_descent_at_every_position_divides_its_step_by_the_number_of_pairs():
    found = AsPredictor(GradientDescent(1, 0.6))(SEQUENCES)
    expected = OnlineGradientDescent(1, 0.6)(SEQUENCES)
    pairs = torch.arange(12).clamp_min(1)[:, None]
    torch.testing.assert_close(found, expected / pairs, check_dtype=False)


@pytest.mark.parametrize("learner", [LeastSquares(0.1), GradientDescent(2, 0.05), Mean()])
def test_learners_make_predictors(learner):
    check_predictor(AsPredictor(learner))


def predictor(d):
    heads = AttentionConfig(12, 2, positions=4, window=3)
    config = SequencePredictorConfig(CausalTransformerConfig(heads, 2, ("softmax", "mesa")), d)
    return config.build(stream(0, "init"))


@pytest.mark.parametrize("family", [LinearRegression(5, 3), LinearRegression(5, 3, 2), LinearRegression(5, 2, 3)])
def test_predictors_make_learners(family):
    check_learner(AsLearner(predictor(3)), family, permutation_invariant=False)


def test_a_predictor_reads_each_query_at_the_end_of_alternating_elements():
    x, y = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0], [6.0]])
    read = []

    def last_but_one(sequence):
        read.append(sequence)
        return sequence.roll(1, -2)

    queries = torch.tensor([[7.0, 8.0], [9.0, 0.0]])
    assert AsLearner(last_but_one)(Context(x, y), queries).tolist() == [[6.0], [6.0]]
    assert read[0].tolist() == [
        [[1, 2], [0, 5], [3, 4], [0, 6], [7, 8]],
        [[1, 2], [0, 5], [3, 4], [0, 6], [9, 0]],
    ]


def test_modules_inside_adapters_keep_their_parameters_and_modes():
    inner = predictor(3)
    adapter = AsLearner(inner)
    assert list(adapter.parameters()) == list(inner.parameters())
    adapter.eval()
    assert not inner.training


@pytest.mark.parametrize(("adapter", "name"), [(AsLearner, "predictor"), (AsPredictor, "learner")])
def test_what_cannot_be_called_is_refused(adapter, name, unchecked):
    with pytest.raises(ArgumentTypeError, match=rf"{name} must be callable, but is 3: pass a module or a function\."):
        adapter(3)
