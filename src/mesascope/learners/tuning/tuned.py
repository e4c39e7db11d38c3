"""Learners with tuned step sizes and their standard errors."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import nn

from mesascope.errors import ArgumentError, require_count, require_instance
from mesascope.evidence.tables import Table, Tabular
from mesascope.learners.descent import GradientDescentPlusPlus
from mesascope.learners.spectra import gram_spectra, has_spectral_loss, spectral_mse
from mesascope.learners.tuning.search import Ends, Losses, Problem, climb, measured_sizes, trained
from mesascope.learners.tuning.starts import Values, at_depth, depths
from mesascope.measurement import Measurement
from mesascope.modes import guarded
from mesascope.shapes import Tensor
from mesascope.streams import stream
from mesascope.tasks import Episode, Family, LinearRegression, SequenceFamily, calling

Module = TypeVar("Module", bound=nn.Module)
Descent = TypeVar("Descent", bound=GradientDescentPlusPlus)

_CHOICE = 20_000  # maximum number of tasks for the comparison, unless ``tasks`` is larger


@dataclass(frozen=True, repr=False)
class Tuned(Tabular, Generic[Module]):
    """A tuned learner, its step sizes with standard errors (one Measurement per step), and its loss.

    ``starts``: final losses of the search from each start, lowest first, on a tenth of the tasks (at least 500).
    """

    learner: Module
    step_sizes: dict[str, list[Measurement]]
    mse: Measurement
    starts: tuple[float, ...]

    def table(self) -> Table:
        """One row per step size."""
        return Table(
            {"parameter": name, "step": step, **size.to_dict()}
            for name, sizes in self.step_sizes.items()
            for step, size in enumerate(sizes)
        )

    @property
    def spread(self) -> float:
        """Final loss of the median start relative to the best start, minus 1: near 0 if most starts agree."""
        return statistics.median(self.starts) / self.starts[0] - 1


@guarded
def tune(learner: Module, family: Family | SequenceFamily, *, tasks: int = 10_000, seed: int = 0) -> Tuned[Module]:
    """Minimise mean squared error over trainable parameters of ``learner``, on ``tasks`` tasks of the stream "tune".

    The error of a predictor is averaged over all next elements. The number of steps grows up to the learner's (see
    `depths`). Each search starts from the optimum for fewer steps, the learner's values, and random multiples of them.
    Starts are scaled until their loss is finite and stops falling. L-BFGS minimises in float64. Results are compared on
    max(tasks, min(10 tasks, 20,000)) other tasks, which also give the reported loss.

    On these tasks, the result is never worse than the learner's values. With one eta per step, it is never worse than
    the result for fewer steps. It need not be the global minimum: ``spread`` measures the differences between starts.
    With a token clip, rare contexts that the ``tasks`` miss can dominate the mean. So the optimum without the clip,
    from the spectra of ten times as many contexts, is also tried (if `spectral_mse` is valid).

    Standard errors are those of an M-estimator, see `standard_errors`. The learner passed in does not change.

    Raises:
        ArgumentError: ``learner`` has no trainable parameters or 0 steps, or all labels of the tasks are 0.
        NumericalError: the loss is infinite near zero step sizes, or at all results on the other tasks.

    >>> from mesascope.learners import GradientDescent
    >>> from mesascope.tasks import LinearRegression
    >>> tuned = tune(GradientDescent(steps=1, eta=1.0), LinearRegression(x_scale=0.5), tasks=5_000)
    >>> abs(tuned.step_sizes["eta"][0].value - 6.0606) < 3 * tuned.step_sizes["eta"][0].stderr
    True
    """
    tasks = require_count("tasks", tasks, least=2)
    require_instance("learner", learner, nn.Module)
    parameters = list(trained(learner).values())
    if not parameters or getattr(learner, "steps", 1) == 0:
        raise ArgumentError(
            f"learner must have parameters to tune, but {calling.label(learner)} has none: pass one with step sizes."
        )
    draw = stream(seed, "tune", device=parameters[0].device)
    fit, choice = (_drawn(family, count, draw) for count in (tasks, max(tasks, min(10 * tasks, _CHOICE))))
    few = fit.part(0, _few(tasks)) if isinstance(fit, Episode) else fit[: _few(tasks)]
    pairs = fit.context.x.shape[-2] if isinstance(fit, Episode) else fit.shape[-2] - 1

    def on(part: Episode | Tensor) -> Losses:
        inputs, answers = calling.inputs_and_targets(part)

        def losses(shallower: nn.Module, values: Values) -> Tensor:
            answer = calling.predict(shallower, *inputs, weights=values)
            return (calling.check_answer(learner, answer, answers.shape) - answers).square().mean((-2, -1))

        return losses

    problem = Problem(on(few), on(fit), on(choice), pairs)
    warm = _without_clip(learner, family, 10 * tasks, seed)
    return _tuned(problem, learner, climb(problem, learner, seed, warm)[-1], tasks)


@guarded
def tune_spectral(
    learner: Descent, family: LinearRegression, *, contexts: int = 10_000, seed: int = 0
) -> Tuned[Descent]:
    """Tune like `tune`, but from eigenvalues of X^T X / N alone: a hundred times cheaper, and less noisy.

    Tuning and the reported loss ignore a token clip, which the returned learner keeps. With many steps, predictions
    explode at eigenvalues outside the drawn spectra: five steps need about 50,000 contexts. Raises an ArgumentError
    unless w0 is None and inputs are centred and independent; see `spectral_mse`.
    """
    contexts = require_count("contexts", contexts, least=2)
    require_instance("learner", learner, GradientDescentPlusPlus)
    free = _unclipped(learner)
    problem = _spectral_problem(family, contexts, seed)
    tuned = _tuned(problem, free, climb(problem, free, seed)[-1], contexts)
    tuned.learner.to(learner.eta.device).token_clip = learner.token_clip
    return tuned


def _drawn(family: Family | SequenceFamily, tasks: int, generator: torch.Generator) -> Episode | Tensor:
    found = calling.sample_tasks(family, tasks, generator)
    calling.check_tasks(found)
    calling.require_labels(family, found)
    return found.to(torch.float64)


def _few(tasks: int) -> int:
    return min(tasks, max(500, tasks // 10))


def _spectral_problem(family: LinearRegression, contexts: int, seed: int) -> Problem:
    spectra = gram_spectra(family, contexts, stream(seed, "tune"))

    def on(part: Tensor) -> Losses:
        return lambda shallower, values: spectral_mse(part, shallower, family, values)

    return Problem(on(spectra[: _few(contexts)]), on(spectra), on(spectra), family.n_context)


def _unclipped(learner: Descent) -> Descent:
    free = copy.deepcopy(learner).cpu()
    free.token_clip = None
    return free


def _without_clip(
    learner: nn.Module, family: Family | SequenceFamily, contexts: int, seed: int
) -> Mapping[int, Values]:
    """Tuned parameters without ``token_clip``, by steps, as starts; empty without a clip or a spectral loss."""
    if not isinstance(learner, GradientDescentPlusPlus) or learner.token_clip is None:
        return {}
    if learner.w0 is not None or not has_spectral_loss(family):
        return {}
    ends = climb(_spectral_problem(family, contexts, seed), _unclipped(learner), seed)
    found = [{name: value.to(learner.eta.device) for name, value in end.values.items()} for end in ends]
    return dict(zip(depths(learner), found, strict=True))


def _tuned(problem: Problem, learner: Module, ends: Ends, n: int) -> Tuned[Module]:
    """Copy of ``learner`` with the tuned values, their standard errors, and its loss."""
    tuned, run = copy.deepcopy(learner), at_depth(learner, depths(learner)[-1])
    with torch.no_grad():
        for name, value in ends.values.items():
            tuned.get_parameter(name).copy_(value)
        mse = Measurement.of(problem.choice(run, ends.values))
    return Tuned(tuned, measured_sizes(problem, run, ends.values, n), mse, ends.starts)
