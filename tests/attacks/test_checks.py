"""Broken learners, predictors and families: the checks for classes of one's own say in one sentence what is wrong."""

from dataclasses import dataclass

import pytest
import torch
from cases import in_turn
from sentences import one_sentence

from mesascope.learners import GradientDescent, Mean, RecursiveLeastSquares
from mesascope.tasks import Context, Episode, LinearDynamics, LinearRegression
from mesascope.testing import check_family, check_learner, check_predictor

GD, RLS = GradientDescent(2, 0.5), RecursiveLeastSquares(ridge=0.1)


def batch_first(context, xq):
    if xq.ndim != 3:
        raise RuntimeError(f"expected a tensor\nof three axes, got {xq.ndim}.")
    return GD(context, xq)


def writing(context, xq):
    answer = GD(context, xq)
    xq.zero_()
    return answer


LEARNERS = {
    "a learner must be callable, but is None": None,
    "a learner must take what the family draws, here (context, xq), but <lambda> does not": lambda sequence: sequence,
    "a learner must answer a context and queries, but <lambda> raised AttributeError": lambda c, xq: c.z,
    "predictions must be a tensor, but are int": lambda c, xq: 3,
    "predictions must be a tensor, but are ndarray": lambda c, xq: xq.numpy(),
    "predictions must have shape (6, 3, 1), but have (6, 3)": lambda c, xq: xq[..., 0],
    "predictions must have shape (6, 3, 1), but have (6, 3, 3)": lambda c, xq: xq,
    "predictions must have the queries' dtype torch.float32, but have torch.float64": lambda c, xq: GD(c, xq).double(),
    "predictions must be finite for finite inputs": lambda c, xq: GD(c, xq) / 0,
    "the same call must give the same prediction, but predictions differ by": lambda c, xq: torch.rand_like(
        xq[..., :1]
    ),
    "a learner must leave its inputs as they are": writing,
    "a task's prediction must not depend on the others in the batch": lambda c, xq: GD(c, xq) - GD(c, xq).mean(0),
    "a query's prediction must not depend on other queries": lambda c, xq: GD(c, xq) - GD(c, xq).mean(-2, keepdim=True),
    "queries must be answered in their order": lambda c, xq: GD(c, xq) * (1 + torch.arange(xq.shape[-2])[:, None]),
    "mend it, or pass permutation_invariant=False.": lambda c, xq: c.y[..., :1, :] + 0 * xq[..., :1],
    "(expected a tensor of three axes, got 4): mend it, or pass leading_axes=False.": batch_first,
    "leading axes must be free, but predictions have shape (6, 3, 1) in place of (2, 3, 3, 1)": (
        lambda c, xq: GD(Context(c.x.flatten(0, -3), c.y.flatten(0, -3)), xq.flatten(0, -3))
    ),
}
PREDICTORS = {
    "a learner must be callable, but is 3": 3,
    "a learner must take what the family draws, here (sequence)": GD,
    "predictions must be a tensor, but are NoneType": lambda s: None,
    "predictions must have shape (6, 12, 3), but have (6, 11, 3)": lambda s: s[:, :-1],
    "predictions must have the sequence's dtype": lambda s: s.double(),
    "predictions must be finite": lambda s: s / 0,
    "the same call must give the same prediction": torch.rand_like,
    "a predictor must leave its inputs as they are": lambda s: s.add_(1),
    "a sequence's predictions must not depend on the others": lambda s: s - s.mean(0),
    "predictions must not depend on how many elements follow": lambda s: s * s.shape[-2],
    "leading axes must be free, but <lambda> raised": lambda s: RLS(s) + s.new_zeros(len(s), 1, 1),
}


@dataclass(frozen=True)
class Odd:
    """A family that draws something else than linear regression does."""

    change: object

    def sample(self, batch, generator):
        return self.change(batch, generator)


PAIRS = LinearRegression(5, 3)
FIXED = PAIRS.sample(8, torch.Generator().manual_seed(0))


class Thawed:
    def sample(self, batch, generator):
        return PAIRS.sample(batch, generator)


def replaced(**parts):
    """Episodes with other parts; x and y are the context's."""

    def change(batch, generator):
        episode = PAIRS.sample(batch, generator)
        x, y = (parts.get(name, lambda part: part)(part) for name, part in episode.context._asdict().items())
        xq, yq = (parts.get(name, lambda part: part)(getattr(episode, name)) for name in ("xq", "yq"))
        return Episode(Context(x, y), xq, yq)

    return Odd(change)


FAMILIES = {
    "family must have a method sample(batch, generator), but is None": None,
    "family must have a method sample(batch, generator), but is 3": 3,
    "pass LinearRegression()": LinearRegression,
    "a family must be a frozen dataclass, but Thawed is not": Thawed(),
    "family must draw an Episode or a tensor of sequences, but Odd drew a tuple": Odd(
        lambda b, g: tuple(PAIRS.sample(b, g))
    ),
    "family must draw as many tasks as it is asked for, 8, but Odd drew 9": Odd(lambda b, g: PAIRS.sample(b + 1, g)),
    "family must draw as many tasks as it is asked for, 1, but Odd drew 2": Odd(
        lambda b, g: PAIRS.sample(max(b, 2), g)
    ),
    "family must draw as many tasks as it is asked for, 3, but Odd drew 8": Odd(
        lambda b, g: PAIRS.sample(8 if b == 3 else b, g)
    ),
    "a family must draw 8 tasks, but Odd raised TypeError": Odd(lambda b: PAIRS.sample(b, None)),
    "a family must draw as many tasks as it is asked for, 8, but y is (7, 5, 1)": replaced(y=lambda y: y[1:]),
    "a family must draw tensors (batch, rows, width), but y is (8, 5)": replaced(y=lambda y: y[..., 0]),
    "a family must draw tensors, but yq is None": replaced(yq=lambda yq: None),
    "context.y must have one row for each row of context.x": replaced(y=lambda y: y[:, 1:]),
    "yq must have one answer of context.y's width for each query": replaced(yq=lambda yq: yq.expand(-1, 2, -1)),
    "xq must agree with context.x in its leading axes and in its last one": replaced(xq=lambda xq: xq[..., :2]),
    "an episode must have a query": replaced(xq=lambda xq: xq[:, :0], yq=lambda yq: yq[:, :0]),
    "context and xq must share one floating-point dtype": replaced(x=lambda x: x.double()),
    "context.x must be finite, but 120 of its 120 values are not": replaced(x=lambda x: x / 0),
    "the same generator must give the same tasks": Odd(
        lambda b, g: PAIRS.sample(b, torch.Generator().manual_seed(g.seed()))
    ),
    "generators of other seeds must give other tasks": Odd(lambda b, g: FIXED.part(0, b)),
    "a family of sequences must draw tensors (batch, t, width), but drew (8, 3)": Odd(
        lambda b, g: torch.rand(b, 3, generator=g)
    ),
    "a family must draw finite numbers": Odd(lambda b, g: torch.rand(b, 3, 2, generator=g) / 0),
}

CASES = [
    *((check_learner, learner, said) for said, learner in LEARNERS.items()),
    *((check_predictor, predictor, said) for said, predictor in PREDICTORS.items()),
    *((check_family, family, said) for said, family in FAMILIES.items()),
]


@in_turn(("check", "broken", "said"), CASES)
def test_a_broken_rule_is_said_in_one_sentence(check, broken, said, unchecked):
    with pytest.raises(AssertionError) as told:
        check(broken)
    assert said in one_sentence(str(told.value))


def test_learners_are_checked_on_episodes_and_predictors_on_sequences():
    with pytest.raises(AssertionError, match=r"^a learner must be checked on a family of episodes\.$"):
        check_learner(Mean(), LinearDynamics(d=3, length=12))
    with pytest.raises(AssertionError, match=r"^a predictor must be checked on a family of sequences\.$"):
        check_predictor(RLS, PAIRS)
