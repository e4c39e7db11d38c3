"""Sentences about learners that equal no candidate."""

import pytest
import torch

from mesascope.identification.behaviour import behaviour_of, described
from mesascope.learners import LeastSquares, NearestNeighbours
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
