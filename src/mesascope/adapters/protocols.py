"""Sequence predictors as learners, and learners as sequence predictors."""

from __future__ import annotations

import torch
from torch import nn

from mesascope.errors import require_callable
from mesascope.nets.tokens import alternated
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, Learner, Predictor, check_inputs, check_sequence
from mesascope.tasks.calling import check_answer, predict


class AsLearner(nn.Module):
    """A learner from a sequence predictor, whose output after x_1, y_1, ..., x_n, y_n, x_q predicts y_q.

    Elements have width max(dx, dy): x followed by zeros, or zeros followed by y. The prediction is the last dy entries
    of the output at the last element. Each query has its own sequence, and predictions depend on the order of the
    context.

    Args:
        predictor: takes sequences ``(*batch, m, 2 n + 1, max(dx, dy))``.

    >>> copy = AsLearner(lambda sequence: torch.cat([0 * sequence[..., :1, :], sequence[..., :-1, :]], -2))
    >>> copy(Context(torch.ones(1, 2, 1), torch.tensor([[[3.0], [4.0]]])), torch.ones(1, 1, 1))
    tensor([[[4.]]])
    """

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        require_callable("predictor", predictor)
        self.predictor = predictor

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        prompt, queries = alternated(context, xq)
        prompt = prompt[..., None, :, :].expand(*queries.shape[:-1], *prompt.shape[-2:])
        sequences = torch.cat([prompt, queries[..., None, :]], -2)
        predictions = check_answer(self.predictor, predict(self.predictor, sequences), sequences.shape)
        return predictions[..., -1, -context.y.shape[-1] :]


class AsPredictor(nn.Module):
    """A sequence predictor from a learner: at t its context is the pairs (s_{i-1}, s_i), 1 < i <= t, and its query s_t.

    The learner is called once for each t; at t = 1 its context is empty.

    Args:
        learner: takes contexts of any number of pairs, including none.

    >>> from mesascope.learners import LeastSquares
    >>> AsPredictor(LeastSquares())(torch.tensor([[1.0], [2.0], [4.0]])).squeeze(-1).round().tolist()
    [0.0, 4.0, 8.0]
    """

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        require_callable("learner", learner)
        self.learner = learner

    def forward(self, sequence: Float[Tensor, "*batch t d"]) -> Float[Tensor, "*batch t d"]:
        check_sequence(sequence)
        before, after = sequence[..., :-1, :], sequence[..., 1:, :]
        predictions = []
        for t in range(sequence.shape[-2]):
            context, xq = Context(before[..., :t, :], after[..., :t, :]), sequence[..., t : t + 1, :]
            predictions.append(check_answer(self.learner, predict(self.learner, context, xq), xq.shape))
        return torch.cat(predictions, -2) if predictions else sequence
