"""The contracts of learners, predictors and families, as checks to call on a class of your own.

Each check raises AssertionError with one sentence that says which rule was broken. mesascope runs them on everything
it registers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from mesascope.shapes import Tensor
from mesascope.streams import stream
from mesascope.tasks import (
    Context,
    Episode,
    Family,
    Learner,
    LinearDynamics,
    LinearRegression,
    Predictor,
    SequenceFamily,
)

__all__ = ["check_family", "check_learner", "check_predictor"]


def check_learner(
    learner: Learner,
    family: Family | None = None,
    *,
    permutation_invariant: bool = True,
    leading_axes: bool = True,
    tolerance: float = 1e-4,
) -> None:
    """Check that ``learner`` keeps the contract of a learner on episodes of ``family``.

    Predictions are finite, of shape ``(*batch, m, dy)`` and of the queries' dtype; the same call gives the same answer
    and changes no input; tasks and queries are answered independently of each other; the order of examples does not
    matter; and any number of leading axes is allowed.

    Args:
        family: 10 pairs of 3 inputs and 1 target, if None.
        permutation_invariant: False for a learner that may use the order of its context.
        leading_axes: False for a learner that takes exactly one batch axis.
        tolerance: largest difference taken for rounding, relative to the largest prediction.

    >>> from mesascope.learners import GradientDescent
    >>> check_learner(GradientDescent(steps=2, eta=0.5))
    """
    family = family or LinearRegression(n_context=10, d_in=3)
    episode = family.sample(6, stream(0, "check"))
    before = episode.map(torch.clone)
    context, xq = episode.context, _several_queries(episode)
    with torch.no_grad():
        answer = learner(context, xq)
        expected = (*xq.shape[:-1], context.y.shape[-1])
        _require(
            tuple(answer.shape) == expected, f"predictions must have shape {expected}, but have {tuple(answer.shape)}"
        )
        _require(
            answer.dtype == xq.dtype, f"predictions must have the queries' dtype {xq.dtype}, but have {answer.dtype}"
        )
        _require(bool(torch.isfinite(answer).all()), "predictions must be finite for finite inputs")
        same = _sameness(answer, tolerance)
        same(learner(context, xq), answer, "the same call must give the same prediction")
        _require(_equal(episode, before), "a learner must leave its inputs as they are")
        half = Context(context.x[:3], context.y[:3])
        same(learner(half, xq[:3]), answer[:3], "a task's prediction must not depend on the others in the batch")
        same(learner(context, xq[:, :1]), answer[:, :1], "a query's prediction must not depend on other queries")
        same(learner(context, xq.flip(1)), answer.flip(1), "queries must be answered in their order")
        if permutation_invariant:
            order = torch.randperm(context.x.shape[1], generator=stream(0, "permutation"))
            shuffled = Context(context.x[:, order], context.y[:, order])
            same(learner(shuffled, xq), answer, "the order of examples must not matter")
        if leading_axes:
            split = [tensor.unflatten(0, (2, 3)) for tensor in (context.x, context.y, xq)]
            nested = learner(Context(split[0], split[1]), split[2])
            same(nested.flatten(0, 1), answer, "leading axes must be free")


def check_predictor(
    predictor: Predictor, family: SequenceFamily | None = None, *, leading_axes: bool = True, tolerance: float = 1e-4
) -> None:
    """Check that ``predictor`` keeps the contract of a predictor on sequences of ``family``.

    Predictions are finite and have the sequences' shape and dtype; the same call gives the same answer and changes no
    input; no prediction depends on later elements or on other sequences; any number of leading axes is allowed. Where
    there are ``init_state`` and ``step``, decoding element by element predicts the same.

    Args:
        family: 12 elements of 3 entries, if None.
        leading_axes: False for a predictor that takes exactly one batch axis.
        tolerance: largest difference taken for rounding, relative to the largest prediction.

    >>> from mesascope.learners import RecursiveLeastSquares
    >>> check_predictor(RecursiveLeastSquares(ridge=0.1))
    """
    sequence = (family or LinearDynamics(d=3, length=12)).sample(6, stream(0, "check"))
    before, length = sequence.clone(), sequence.shape[1]
    _require(length > 1, "a family must draw sequences of at least 2 elements")
    with torch.no_grad():
        answer = predictor(sequence)
        _require(isinstance(answer, Tensor), f"predictions must be a tensor, but are {type(answer).__name__}")
        shape = tuple(sequence.shape)
        _require(tuple(answer.shape) == shape, f"predictions must have shape {shape}, but have {tuple(answer.shape)}")
        _require(
            answer.dtype == sequence.dtype,
            f"predictions must have the sequence's dtype {sequence.dtype}, but have {answer.dtype}",
        )
        _require(bool(torch.isfinite(answer).all()), "predictions must be finite for finite inputs")
        same = _sameness(answer, tolerance)
        same(predictor(sequence), answer, "the same call must give the same prediction")
        _require(torch.equal(sequence, before), "a predictor must leave its inputs as they are")
        same(predictor(sequence[:3]), answer[:3], "a sequence's predictions must not depend on the others in the batch")
        for t in range(1, length):
            same(predictor(sequence[:, :t]), answer[:, :t], "predictions must not depend on how many elements follow")
            changed = torch.cat([sequence[:, :t], -sequence[:, t:]], 1)
            same(predictor(changed)[:, :t], answer[:, :t], "predictions must not depend on later elements")
        if leading_axes:
            same(predictor(sequence.unflatten(0, (2, 3))).flatten(0, 1), answer, "leading axes must be free")
            same(predictor(sequence[0]), answer[0], "leading axes must be free")
        _require(
            hasattr(predictor, "step") == hasattr(predictor, "init_state"), "init_state and step must come together"
        )
        if hasattr(predictor, "step"):
            state, decoded = predictor.init_state(6), []  # type: ignore[attr-defined]
            for element in sequence.unbind(1):
                prediction, state = predictor.step(element, state)  # type: ignore[attr-defined]
                decoded.append(prediction)
            same(torch.stack(decoded, 1), answer, "decoding element by element must give the same predictions")


def check_family(family: Family | SequenceFamily) -> None:
    """Check that ``family`` keeps the contract of a task family.

    It is a frozen dataclass; episodes, or sequences, have the batch asked for and agreeing shapes; they are finite; the
    same generator gives the same ones, another seed others; an empty batch is allowed.

    >>> check_family(LinearRegression(n_context=3, d_in=2))
    >>> check_family(LinearDynamics(d=2, length=3))
    """
    frozen = dataclasses.is_dataclass(family) and family.__dataclass_params__.frozen  # type: ignore[attr-defined]
    _require(frozen, "a family must be a frozen dataclass")
    first, again, other = (family.sample(8, stream(seed, "check")) for seed in (0, 0, 1))
    _check_episode(first) if isinstance(first, Episode) else _check_sequence(first)
    _require(_equal(first, again), "the same generator must give the same tasks")
    _require(not _equal(first, other), "generators of other seeds must give other tasks")
    none = family.sample(0, stream(0, "check"))
    _require(len(none.xq if isinstance(none, Episode) else none) == 0, "an empty batch must be allowed")


def _check_sequence(sequence: Tensor) -> None:
    _require(sequence.ndim == 3, "a family of sequences must draw tensors (batch, t, width)")
    _require(sequence.shape[0] == 8, "a family must draw as many tasks as it is asked for")
    _require(bool(torch.isfinite(sequence).all()), "a family must draw finite numbers")


def _check_episode(episode: Episode) -> None:
    (x, y), xq, yq = episode
    _require(x.ndim == y.ndim == xq.ndim == yq.ndim == 3, "a family must draw tensors (batch, rows, width)")
    _require(all(t.shape[0] == 8 for t in (x, y, xq, yq)), "a family must draw as many tasks as it is asked for")
    _require(x.shape[:2] == y.shape[:2], "a context must have one target for each input")
    _require(xq.shape[:2] == yq.shape[:2] and xq.shape[1] >= 1, "an episode must have one answer for each query")
    _require(
        xq.shape[2] == x.shape[2] and yq.shape[2] == y.shape[2], "queries and answers must be as wide as the context's"
    )
    _require(all(bool(torch.isfinite(t).all()) for t in (x, y, xq, yq)), "a family must draw finite numbers")


def _sameness(answer: Tensor, tolerance: float) -> Callable[[Tensor, Tensor, str], None]:
    """A check that two predictions agree to ``tolerance`` relative to the largest of ``answer``."""
    scale = tolerance * max(float(answer.abs().max()), 1e-6)

    def same(other: Tensor, reference: Tensor, rule: str) -> None:
        gap = float((other - reference).abs().max())
        _require(gap <= scale, f"{rule}, but predictions differ by {gap:.3g} (tolerance {scale:.3g})")

    return same


def _several_queries(episode: Episode) -> Tensor:
    """Three queries a task, whatever the family draws: its own, and inputs of the context."""
    return torch.cat([episode.xq[:, :1], episode.context.x[:, :2]], dim=1)


def _equal(a: Episode | Tensor, b: Episode | Tensor) -> bool:
    if not (isinstance(a, Episode) and isinstance(b, Episode)):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b)
    pairs = zip((*a.context, a.xq, a.yq), (*b.context, b.xq, b.yq), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def _require(kept: bool, rule: str) -> None:
    if not kept:
        raise AssertionError(f"{rule}.")
