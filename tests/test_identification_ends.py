"""Learners that algorithms of the catalogue meet at the ends of their ranges, or not at all."""

import torch

from mesascope import LinearRegression, identify
from mesascope.identification import candidates
from mesascope.identification.conditions import CONDITIONS
from mesascope.learners import NearestNeighbours

FAMILY = LinearRegression(n_context=12, d_in=3, noise=0.3)


def among(*names, family=FAMILY):
    return [one for one in candidates(family) if one.name in names]


def ridge(context, xq, strength=0.5):
    x, y = context
    gram = x.mT @ x + strength * torch.eye(x.shape[-1]).to(x)
    return xq @ torch.linalg.solve(gram, x.mT @ y)


def test_a_random_algorithm_whose_draws_differ_more_than_a_learner_varies_does_not_name_it():
    found = identify(
        lambda context, xq: 1e-7 * ridge(context, xq), FAMILY, among("sklearn SGDRegressor", "zero"), 2000, name="tiny"
    )
    assert not found.names
    assert all(row.own_difference.mean.value > 0.1 for row in found.rows if row.candidate.startswith("sklearn"))


def test_ridges_beyond_the_range_of_the_grid_are_found():
    family = LinearRegression(n_context=40, d_in=3, x="normal", noise=2.0)
    found = identify(lambda context, xq: ridge(context, xq, 300.0), family, among("ridge least-squares", "zero"), 2000)
    assert found.names == ("ridge least-squares",)
    assert abs(found.parameters("ridge least-squares")["ridge"] - 300) < 1e-3


def test_more_neighbours_than_the_grid_has_are_found():
    family = LinearRegression(n_context=40, d_in=2, noise=0.5)
    found = identify(NearestNeighbours(15), family, among("nearest-neighbours", "zero"), 2000)
    assert found.parameters("nearest-neighbours") == {"k": 15}


def test_ranges_of_own_candidates_are_kept():
    from mesascope.identification import Candidate
    from mesascope.learners import LeastSquares, Range

    own = Candidate("mine", LeastSquares, {"ridge": Range(1e-3, 1.0, "log")})
    found = identify(lambda context, xq: ridge(context, xq, 30.0), FAMILY, [own, *among("zero")], 2000)
    assert found._row("mine").parameters["ridge"] <= 1.0 + 1e-9


def test_a_learner_that_is_differentiable_for_few_tasks_alone_is_named():
    def thrifty(context, xq):
        if len(xq) > 8:
            with torch.no_grad():
                return ridge(context, xq)
        return ridge(context, xq)

    found = identify(thrifty, FAMILY, among("ridge least-squares", "zero"), 2000)
    assert found.names == ("ridge least-squares",)


def test_own_tasks_that_a_learner_does_not_answer_are_told():
    def cautious(context, xq):
        said = ridge(context, xq)
        return torch.where((said.abs() > 1.5).any(-2, keepdim=True), torch.nan, said)

    found = identify(cautious, FAMILY, among("ridge least-squares", "zero"), 2000)
    assert "on the family's own tasks" in found.untested


def test_noise_of_answers_is_told():
    generator = torch.Generator().manual_seed(0)
    found = identify(
        lambda context, xq: ridge(context, xq) + 0.3 * torch.randn(*xq.shape[:-1], 1, generator=generator).to(xq),
        FAMILY, among("ridge least-squares", "zero"), 2000,
    )  # fmt: skip
    assert "Noise, between calls or from rounding, is" in found.verdict
    assert not identify(ridge, FAMILY, among("ridge least-squares", "zero"), 2000).noisy


def test_of_pairs_with_equal_weight_none_is_named():
    family = LinearRegression(n_context=12, d_in=2)
    found = identify(
        lambda context, xq: context.y[:, -3:].mean(-2, keepdim=True).expand(-1, xq.shape[-2], -1), family,
        among("mean", "last label", "zero"), 2000,
    )  # fmt: skip
    assert "of its weight to pair" not in found.description


def test_shifted_inputs_of_a_single_number_are_not_all_zero():
    family = LinearRegression(n_context=1, d_in=1)
    tasks = family.sample(50, torch.Generator().manual_seed(0))
    shifted = CONDITIONS["shifted inputs"](tasks, torch.Generator().manual_seed(1))
    assert (shifted.context.x.abs() > 1e-6).float().mean() > 0.95
