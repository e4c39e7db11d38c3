"""Sentences about learners that equal no candidate."""

import pytest
import torch

from mesascope.errors import MesascopeError
from mesascope.identification import (
    along,
    implicit_weights,
    invariances,
    smoother_weights,
    spectral_filter,
    superposition,
)
from mesascope.identification.behaviour import behaviour_of
from mesascope.identification.description import described
from mesascope.learners import GradientDescent, LeastSquares, NearestNeighbours, Zero
from mesascope.streams import stream
from mesascope.tasks import LinearRegression

FAMILY = LinearRegression(n_context=10, d_in=3, noise=0.3, n_query=2)
TASKS = FAMILY.sample(40, stream(0, "described")).to(torch.float64)


def late(context, xq):
    """The mean of labels whose weights double from pair to pair."""
    weights = 2.0 ** torch.arange(context.y.shape[-2], dtype=xq.dtype)
    return (weights[:, None] * context.y).sum(-2, keepdim=True).expand(*xq.shape[:-1], 1) / weights.sum()


def second_nearest(context, xq):
    place = torch.cdist(xq, context.x).topk(2, largest=False).indices[..., 1:]
    return torch.take_along_dim(context.y, place, -2)


def cubic(context, xq):
    return xq.pow(3).sum(-1, keepdim=True)


def halves(context, xq):
    return (LeastSquares(1.0)(context, xq) + NearestNeighbours(3)(context, xq)) / 2


@pytest.mark.parametrize(
    ("learner", "said", "not_said"),
    [
        (late, ["is linear in labels", "gives 50 % of its weight to the last pair of 10",
                "does not respect these changes: pairs in another order ("], ["repeats", "nearest", "spectral"]),
        (second_nearest, ["repeats a label of its context in 100 %", "to the second nearest pair of 10",
                          "respects these changes of a task: pairs in another order"], ["last pair"]),
        (cubic, ["does not depend on labels"], ["repeats", "weight to"]),
        (halves, ["is linear in labels", "to the nearest pair of 10"], ["repeats", "spectral filter"]),
        (LeastSquares(1.0), ["is linear in labels", "by a spectral filter"], ["repeats", "of its weight to"]),
        (lambda context, xq: LeastSquares(1.0)(context, xq).tanh(), ["is not linear in labels"], ["spectral"]),
    ],
)  # fmt: skip
def test_a_learner_is_described_by_labels_weights_and_changes(learner, said, not_said):
    found = described(behaviour_of(learner, TASKS, stream(0, "changes")), 0.01)
    assert [one for one in said if one not in found] == []
    assert [one for one in not_said if one in found] == []


@pytest.mark.parametrize(("d_in", "tasks", "bins"), [(3, 4, 12), (3, 4, 1), (1, 20, 12), (1, 20, 40), (3, 1, 12)])
def test_a_filter_is_found_on_few_tasks(d_in, tasks, bins):
    """One step of gradient descent has a constant filter."""
    few = LinearRegression(n_context=10, d_in=d_in).sample(tasks, stream(0, "few")).to(torch.float64)
    table, explained = spectral_filter(smoother_weights(GradientDescent(1, 0.8), few), few, bins)
    assert explained.value == pytest.approx(1)
    assert bool(table) == (tasks > 1)
    assert all(row["filter"].value == pytest.approx(0.8) for row in table)


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        (lambda few, one: superposition(Zero(), one), "tasks must be at least 2, with one or more pairs each"),
        (lambda few, one: smoother_weights(Zero(), LinearRegression()), "tasks must be of type Episode"),
        (lambda few, one: smoother_weights(Zero(), few.map(lambda part: part[None])), "with one first axis"),
        (lambda few, one: invariances(Zero(), few, 0), "generator must be of type Generator"),
        (lambda few, one: spectral_filter(None, few), "weights must be of type Tensor"),
        (lambda few, one: spectral_filter(torch.zeros(5, 1, 9), few), r"weights must have shape \(5, 1, 10\)"),
        (lambda few, one: spectral_filter(torch.zeros(5, 1, 10), few, 0), "bins must be at least 1"),
        (lambda few, one: implicit_weights(Zero(), few, None), "queries must be of type Tensor"),
        (lambda few, one: along({0: Zero()}, LinearRegression(), over=3), "over must be of type str"),
    ],
)
def test_what_cannot_be_measured_is_told(measure, message, unchecked):
    few = LinearRegression().sample(5, stream(0, "few"))
    with pytest.raises(MesascopeError, match=message):
        measure(few, few.part(0, 1))
