"""The contracts of learners, predictors and families, as checks to call on a class of your own.

Each check raises AssertionError with one sentence that says which rule was broken. mesascope runs them on everything
it registers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from mesascope.errors import MesascopeError, require_number, shown
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
    check_episode,
)
from mesascope.tasks.asking import UnansweredError, asked, drawn, label, raised

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
    tolerance = require_number("tolerance", tolerance, above=0)
    episode = _drawn(family or LinearRegression(n_context=10, d_in=3), 6)
    _require(isinstance(episode, Episode), "a learner must be checked on a family of episodes")
    episode = episode._replace(xq=_several_queries(episode))
    (context, xq, _), before = episode, episode.map(torch.clone)
    ask = _asking(learner)
    with torch.no_grad():
        answer = ask("a learner must answer a context and queries", context, xq)
        _check_answer(answer, (*xq.shape[:-1], context.y.shape[-1]), xq, "queries'")
        same = _sameness(answer, tolerance)
        _require(_equal(episode, before), "a learner must leave its inputs as they are")
        rule = "the same call must give the same prediction"
        same(ask(rule, context, xq), answer, rule)
        rule, half = (
            "a task's prediction must not depend on the others in the batch",
            Context(context.x[:3], context.y[:3]),
        )
        same(ask(rule, half, xq[:3]), answer[:3], rule)
        rule = "a query's prediction must not depend on other queries"
        same(ask(rule, context, xq[:, :1]), answer[:, :1], rule)
        rule = "queries must be answered in their order"
        same(ask(rule, context, xq.flip(1)), answer.flip(1), rule)
        if permutation_invariant:
            order = torch.randperm(context.x.shape[1], generator=stream(0, "permutation"))
            rule, shuffled = "the order of examples must not matter", Context(context.x[:, order], context.y[:, order])
            with _or_pass("permutation_invariant=False"):
                same(ask(rule, shuffled, xq), answer, rule)
        if leading_axes:
            rule, split = "leading axes must be free", [part.unflatten(0, (2, 3)) for part in (*context, xq)]
            with _or_pass("leading_axes=False"):
                same(ask(rule, Context(split[0], split[1]), split[2]), answer.unflatten(0, (2, 3)), rule)


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
    tolerance = require_number("tolerance", tolerance, above=0)
    sequence = _drawn(family or LinearDynamics(d=3, length=12), 6)
    _require(isinstance(sequence, Tensor), "a predictor must be checked on a family of sequences")
    before, length = sequence.clone(), sequence.shape[1]
    _require(length > 1, "a family must draw sequences of at least 2 elements")
    ask = _asking(predictor)
    with torch.no_grad():
        answer = ask("a predictor must answer a sequence", sequence)
        _check_answer(answer, tuple(sequence.shape), sequence, "sequence's")
        same = _sameness(answer, tolerance)
        _require(torch.equal(sequence, before), "a predictor must leave its inputs as they are")
        rule = "the same call must give the same prediction"
        same(ask(rule, sequence), answer, rule)
        rule = "a sequence's predictions must not depend on the others in the batch"
        same(ask(rule, sequence[:3]), answer[:3], rule)
        for t in range(1, length):
            rule = "predictions must not depend on how many elements follow"
            same(ask(rule, sequence[:, :t]), answer[:, :t], rule)
            rule, changed = "predictions must not depend on later elements", sequence.clone()
            changed[:, t:] *= -1
            same(ask(rule, changed)[:, :t], answer[:, :t], rule)
        if leading_axes:
            rule = "leading axes must be free"
            with _or_pass("leading_axes=False"):
                same(ask(rule, sequence.unflatten(0, (2, 3))), answer.unflatten(0, (2, 3)), rule)
                same(ask(rule, sequence[0]), answer[0], rule)
        _require(
            hasattr(predictor, "step") == hasattr(predictor, "init_state"), "init_state and step must come together"
        )
        if hasattr(predictor, "step"):
            rule = "decoding element by element must give the same predictions"
            state, decoded = predictor.init_state(6), []  # type: ignore[attr-defined]
            for element in sequence.unbind(1):
                prediction, state = predictor.step(element, state)  # type: ignore[attr-defined]
                decoded.append(prediction)
            same(torch.stack(decoded, 1), answer, rule)


def check_family(family: Family | SequenceFamily) -> None:
    """Check that ``family`` keeps the contract of a task family.

    It is a frozen dataclass; episodes, or sequences, are as many as asked for, from one on, and have agreeing shapes;
    they are finite; the same generator gives the same ones, another seed others.

    >>> check_family(LinearRegression(n_context=3, d_in=2))
    >>> check_family(LinearDynamics(d=2, length=3))
    """
    first, again, other = (_drawn(family, 8, seed) for seed in (0, 0, 1))
    frozen = dataclasses.is_dataclass(family) and family.__dataclass_params__.frozen  # type: ignore[attr-defined]
    _require(frozen, f"a family must be a frozen dataclass, but {label(family)} is none")
    _check_episode(first) if isinstance(first, Episode) else _check_sequence(first)
    _require(_equal(first, again), "the same generator must give the same tasks")
    _require(not _equal(first, other), "generators of other seeds must give other tasks")
    for batch in (1, 3):
        _drawn(family, batch)


def _check_sequence(sequence: Tensor) -> None:
    shape = tuple(sequence.shape)
    drawn = sequence.ndim == 3 or (sequence.ndim == 2 and sequence.dtype == torch.long)  # of tokens
    _require(drawn, f"a family of sequences must draw tensors (batch, t, width), but drew {shape}")
    _require(bool(torch.isfinite(sequence).all()), "a family must draw finite numbers")


def _check_episode(episode: Episode) -> None:
    tensors = {"x": episode.context[0], "y": episode.context[1], "xq": episode.xq, "yq": episode.yq}
    for name, tensor in tensors.items():
        said = f"{name} is {tuple(tensor.shape) if isinstance(tensor, Tensor) else shown(tensor)}"
        _require(isinstance(tensor, Tensor), f"a family must draw tensors, but {said}")
        _require(tensor.ndim == 3, f"a family must draw tensors (batch, rows, width), but {said}")
        _require(tensor.shape[0] == 8, f"a family must draw as many tasks as it is asked for, 8, but {said}")
    try:
        check_episode(episode)
    except MesascopeError as error:
        raise AssertionError(str(error)) from error
    _require(episode.xq.shape[1] >= 1, "an episode must have a query")


def _drawn(family: Any, batch: int, seed: int = 0) -> Any:
    """A draw; what is wrong with it is a broken rule."""
    try:
        return drawn(family, batch, stream(seed, "check"))
    except MesascopeError as error:
        raise AssertionError(str(error)) from error
    except Exception as error:
        raise AssertionError(
            f"a family must draw {batch} tasks, but {label(family)} raised {raised(error)}."
        ) from error


def _asking(model: Any) -> Callable[..., Tensor]:
    """What ``model`` answers; where it raises, the rule that is asked about is broken."""

    def ask(rule: str, *inputs: Context | Tensor) -> Tensor:
        try:
            return asked(model, *inputs)
        except UnansweredError as error:
            raise AssertionError(f"{rule}, but {label(model)} raised {raised(error.__cause__)}.") from error
        except MesascopeError as error:
            raise AssertionError(str(error)) from error
        except Exception as error:
            raise AssertionError(f"{rule}, but {label(model)} raised {raised(error)}.") from error

    return ask


@contextmanager
def _or_pass(switch: str) -> Iterator[None]:
    """Name the argument that leaves a rule out where the rule is broken."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{str(error).rstrip('.')}: mend it, or pass {switch}.") from error.__cause__


def _check_answer(answer: Any, shape: tuple[int, ...], inputs: Tensor, whose: str) -> None:
    _require(isinstance(answer, Tensor), f"predictions must be a tensor, but are {type(answer).__name__}")
    _require(tuple(answer.shape) == shape, f"predictions must have shape {shape}, but have {tuple(answer.shape)}")
    rule = f"predictions must have the {whose} dtype {inputs.dtype}, but have {answer.dtype}"
    _require(answer.dtype == inputs.dtype, rule)
    _require(bool(torch.isfinite(answer).all()), "predictions must be finite for finite inputs")


def _sameness(answer: Tensor, tolerance: float) -> Callable[[Tensor, Tensor, str], None]:
    """A check that two predictions agree to ``tolerance`` relative to the largest of ``answer``."""
    scale = tolerance * max(float(answer.abs().max()), 1e-6)

    def same(other: Tensor, reference: Tensor, rule: str) -> None:
        _require(
            isinstance(other, Tensor) and other.shape == reference.shape,
            f"{rule}, but predictions have shape {tuple(getattr(other, 'shape', ()))} in place of "
            f"{tuple(reference.shape)}",
        )
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
