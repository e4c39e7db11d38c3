"""Contract checks for your own learners, predictors and families.

Each check raises AssertionError with one sentence that names the broken rule.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from mesascope import tasks
from mesascope.errors import MesascopeError, raised, require_number, shown
from mesascope.shapes import Tensor
from mesascope.streams import stream
from mesascope.tasks import Context, Episode
from mesascope.tasks.calling import LearnerError, label, predict, sample_tasks
from mesascope.training.modes import evaluating


def check_learner(
    learner: tasks.Learner, family: tasks.Family | None = None, *, permutation_invariant: bool = True,
    leading_axes: bool = True, tolerance: float = 1e-4,
) -> None:  # fmt: skip
    """Check that ``learner`` satisfies the contract of a learner on episodes of ``family``.

    Predictions are finite, of shape ``(*batch, m, dy)`` and of the queries' dtype. Repeated calls return the same
    predictions and change no input. Predictions for a task or query do not depend on other tasks or queries, nor on
    the order of examples. Any number of leading axes is allowed. Modules are called in eval() mode.

    Args:
        family: linear regression with 10 pairs of 3 inputs and 1 target if None.
        permutation_invariant: False for a learner that may use the order of its context.
        leading_axes: False for a learner that takes exactly one batch axis.
        tolerance: largest difference that counts as rounding, relative to the largest prediction.

    >>> from mesascope.learners import GradientDescent
    >>> check_learner(GradientDescent(steps=2, eta=0.5))
    """
    require_number("tolerance", tolerance, above=0)
    episode = _drawn(family or tasks.LinearRegression(n_context=10, d_in=3), 6, model=learner)
    _require(isinstance(episode, Episode), "a learner must be checked on a family of episodes")
    (x, y), own, _ = episode
    xq = torch.cat([own[:, :1], x[:, :2]], dim=1)  # three queries per task, whatever number the family draws
    ask, before = functools.partial(_asked, learner), [part.clone() for part in (x, y, xq)]
    with torch.no_grad(), evaluating(learner):
        answer = ask("a learner must answer a context and queries", Context(x, y), xq)
        _check_answer(answer, (*xq.shape[:-1], y.shape[-1]), xq, "queries'")
        _require(all(map(torch.equal, (x, y, xq), before)), "a learner must leave its inputs as they are")

        def same(rule: str, x: Tensor, y: Tensor, xq: Tensor, reference: Tensor) -> None:
            _check_same(rule, ask(rule, Context(x, y), xq), reference, answer, tolerance)

        same("the same call must give the same prediction", x, y, xq, answer)
        same("a task's prediction must not depend on the others in the batch", x[:3], y[:3], xq[:3], answer[:3])
        same("a query's prediction must not depend on other queries", x, y, xq[:, :1], answer[:, :1])
        same("queries must be answered in their order", x, y, xq.flip(1), answer.flip(1))
        if permutation_invariant:
            order = torch.randperm(x.shape[1], generator=stream(0, "permutation"))
            with _or_pass("permutation_invariant=False"):
                same("the order of examples must not matter", x[:, order], y[:, order], xq, answer)
        if leading_axes:
            with _or_pass("leading_axes=False"):
                same("leading axes must be free", *(part.unflatten(0, (2, 3)) for part in (x, y, xq, answer)))


def check_predictor(
    predictor: tasks.Predictor, family: tasks.SequenceFamily | None = None, *, leading_axes: bool = True,
    tolerance: float = 1e-4,
) -> None:  # fmt: skip
    """Check that ``predictor`` satisfies the contract of a predictor on sequences of ``family``.

    Predictions are finite and have the sequences' shape and dtype. Repeated calls return the same predictions and
    change no input. No prediction depends on later elements or on other sequences. Any number of leading axes is
    allowed. If the predictor has ``init_state`` and ``step``, decoding element by element returns the same predictions.

    Args:
        family: linear dynamics with 12 elements of 3 entries if None.
        leading_axes: False for a predictor that takes exactly one batch axis.
        tolerance: largest difference that counts as rounding, relative to the largest prediction.

    >>> from mesascope.learners import RecursiveLeastSquares
    >>> check_predictor(RecursiveLeastSquares(ridge=0.1))
    """
    require_number("tolerance", tolerance, above=0)
    sequence = _drawn(family or tasks.LinearDynamics(d=3, length=12), 6, model=predictor)
    _require(isinstance(sequence, Tensor), "a predictor must be checked on a family of sequences")
    before, length, ask = sequence.clone(), sequence.shape[1], functools.partial(_asked, predictor)
    _require(length > 1, "a family must draw sequences of at least 2 elements")
    with torch.no_grad(), evaluating(predictor):
        answer = ask("a predictor must answer a sequence", sequence)
        _check_answer(answer, tuple(sequence.shape), sequence, "sequence's")
        _require(torch.equal(sequence, before), "a predictor must leave its inputs as they are")

        def same(rule: str, sequence: Tensor, reference: Tensor, seen: int | None = None) -> None:
            found = ask(rule, sequence)
            _check_same(rule, found if seen is None else found[:, :seen], reference, answer, tolerance)

        same("the same call must give the same prediction", sequence, answer)
        same("a sequence's predictions must not depend on the others in the batch", sequence[:3], answer[:3])
        for t in range(1, length):
            same("predictions must not depend on how many elements follow", sequence[:, :t], answer[:, :t])
            changed = torch.cat([sequence[:, :t], -sequence[:, t:]], 1)
            same("predictions must not depend on later elements", changed, answer[:, :t], seen=t)
        if leading_axes:
            with _or_pass("leading_axes=False"):
                same("leading axes must be free", sequence.unflatten(0, (2, 3)), answer.unflatten(0, (2, 3)))
                same("leading axes must be free", sequence[0], answer[0])
        stepping = hasattr(predictor, "step")
        _require(stepping == hasattr(predictor, "init_state"), "init_state and step must come together")
        if stepping:
            rule = "decoding element by element must give the same predictions"
            _check_same(rule, _decoded(predictor, sequence), answer, answer, tolerance)


def _decoded(predictor: Any, sequence: Tensor) -> Tensor:
    state, decoded = predictor.init_state(len(sequence)), []
    for element in sequence.unbind(1):
        prediction, state = predictor.step(element, state)
        decoded.append(prediction)
    return torch.stack(decoded, 1)


def check_family(family: tasks.Family | tasks.SequenceFamily) -> None:
    """Check that ``family`` satisfies the contract of a task family.

    It is a frozen dataclass. ``sample`` draws the requested number of episodes or sequences, with consistent shapes and
    finite numbers. Equal generators draw equal tasks; generators with another seed draw other tasks.

    >>> check_family(tasks.LinearRegression(n_context=3, d_in=2))
    >>> check_family(tasks.LinearDynamics(d=2, length=3))
    """
    first, again, other = (_drawn(family, 8, seed) for seed in (0, 0, 1))
    frozen = dataclasses.is_dataclass(family) and family.__dataclass_params__.frozen  # type: ignore[attr-defined]
    _require(frozen, f"a family must be a frozen dataclass, but {label(family)} is not")
    _check_episode(first) if isinstance(first, Episode) else _check_sequence(first)
    _require(_equal(first, again), "the same generator must give the same tasks")
    _require(not _equal(first, other), "generators of other seeds must give other tasks")
    for batch in (1, 3):
        _drawn(family, batch)


def _check_sequence(sequence: Tensor) -> None:
    shape = tuple(sequence.shape)
    of_tokens = sequence.ndim == 2 and sequence.dtype == torch.long
    rule = f"a family of sequences must draw tensors (batch, t, width), but drew {shape}"
    _require(sequence.ndim == 3 or of_tokens, rule)
    _require(bool(torch.isfinite(sequence).all()), "a family must draw finite numbers")


def _check_episode(episode: Episode) -> None:
    for name, tensor in _parts(episode).items():
        said = f"{name} is {tuple(tensor.shape) if isinstance(tensor, Tensor) else shown(tensor)}"
        _require(isinstance(tensor, Tensor), f"a family must draw tensors, but {said}")
        _require(tensor.ndim == 3, f"a family must draw tensors (batch, rows, width), but {said}")
        _require(tensor.shape[0] == 8, f"a family must draw as many tasks as it is asked for, 8, but {said}")
    with _broken("the parts of an episode must agree", tasks.check_episode):
        tasks.check_episode(episode)
    _require(episode.xq.shape[1] >= 1, "an episode must have a query")


def _drawn(family: Any, batch: int, seed: int = 0, model: Any = None) -> Any:
    """Tasks drawn with a CPU generator, moved to the device of ``model``."""
    weight = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    with _broken(f"a family must draw {batch} tasks", family):
        found = sample_tasks(family, batch, stream(seed, "check"))
        return found if weight is None else found.to(weight.device)


def _asked(model: Any, rule: str, *inputs: Context | Tensor) -> Tensor:
    """Predictions of ``model``; an error breaks ``rule``."""
    with _broken(rule, model):
        return predict(model, *inputs)


@contextmanager
def _broken(rule: str, model: object) -> Iterator[None]:
    """Within this context, errors become AssertionErrors; if not from mesascope, their message begins with ``rule``."""
    try:
        yield
    except Exception as error:
        own = error.__cause__ if isinstance(error, LearnerError) else error
        sentence = str(own) if isinstance(own, MesascopeError) else f"{rule}, but {label(model)} raised {raised(own)}."
        raise AssertionError(sentence) from error


@contextmanager
def _or_pass(switch: str) -> Iterator[None]:
    """Within this context, errors of a broken rule end with ``switch``, the argument that turns the rule off."""
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


def _check_same(rule: str, found: Any, reference: Tensor, answer: Tensor, tolerance: float) -> None:
    """Check that two predictions agree to ``tolerance`` relative to the largest |answer|."""
    scale, shape = tolerance * max(float(answer.abs().max()), 1e-6), tuple(getattr(found, "shape", ()))
    in_place = f"{rule}, but predictions have shape {shape} in place of {tuple(reference.shape)}"
    _require(isinstance(found, Tensor) and found.shape == reference.shape, in_place)
    gap = float((found - reference).abs().max())
    _require(gap <= scale, f"{rule}, but predictions differ by {gap:.3g} (tolerance {scale:.3g})")


def _parts(episode: Episode) -> dict[str, Tensor]:
    return {**episode.context._asdict(), "xq": episode.xq, "yq": episode.yq}


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Episode) and isinstance(other, Episode):
        return all(map(torch.equal, _parts(one).values(), _parts(other).values()))
    return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)


def _require(kept: bool, rule: str) -> None:
    if not kept:
        raise AssertionError(f"{rule}.")
