"""Step sizes chosen on tasks of their own, with the standard error that their choice carries."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import nn

from mesascope.errors import ArgumentError, NumericalError, require_count, require_instance
from mesascope.evidence.tables import Table, Tabular
from mesascope.learners.descent import GradientDescentPlusPlus
from mesascope.learners.minimisation import minimise, rescaled, standard_errors
from mesascope.learners.spectra import SpectralLoss, gram_spectra, has_spectral_loss
from mesascope.learners.starts import Values, at_depth, depths, extended, padded, scattered
from mesascope.measurement import Measurement
from mesascope.modes import guarded
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import Episode, Family, LinearRegression, SequenceFamily, check_episode
from mesascope.tasks.asking import asked, check_answer, check_tasks, drawn, label, posed, require_labels

__all__ = ["Tuned", "tune", "tune_spectral"]

Module = TypeVar("Module", bound=nn.Module)
Descent = TypeVar("Descent", bound=GradientDescentPlusPlus)

_SPREAD = 2  # starts around the learner's own values
_SEARCH = 30  # iterations of L-BFGS on few tasks
_CHOICE = 20_000  # tasks that ends are compared on, ten times as many as they are found on, or as many


@dataclass(frozen=True, repr=False)
class Tuned(Tabular, Generic[Module]):
    """A tuned learner, each of its step sizes with a standard error (one Measurement a step), and its loss.

    ``starts`` has the losses at which the search from each start ended, lowest first, on the tenth of the tasks (500 at
    least) where it begins.
    """

    learner: Module
    step_sizes: dict[str, list[Measurement]]
    mse: Measurement
    starts: tuple[float, ...]

    def table(self) -> Table:
        """One row for each step size."""
        return Table(
            {"parameter": name, "step": step, **size.to_dict()}
            for name, sizes in self.step_sizes.items()
            for step, size in enumerate(sizes)
        )

    @property
    def spread(self) -> float:
        """How far the median start ended above the best, relative to it: near 0 where most starts agree."""
        return statistics.median(self.starts) / self.starts[0] - 1


@guarded
def tune(learner: Module, family: Family | SequenceFamily, *, tasks: int = 10_000, seed: int = 0) -> Tuned[Module]:
    """Minimise the mean squared error over all parameters of ``learner``, on ``tasks`` tasks of the `tune` stream.

    Of a predictor, on sequences, it is that of all next elements.

    Steps are added one at a time, up to the learner's; each depth starts from the optimum of the one before, from the
    learner's values and from a spread around them, all scaled to where their loss is finite and stops falling. L-BFGS
    minimises in float64, and what it ends at is compared on other tasks (20,000, or ``tasks``), whose loss is reported.

    On those the result is never worse than the learner's values, than any start's end, nor, with an eta for each step,
    than `tune` of fewer steps. That it is the global minimum is not guaranteed: ``spread`` tells how far starts differ.
    With clipped tokens means rest on rare contexts, and those rarer than one in ``tasks`` are not seen; there the
    optimum without a clip, from the spectra of ten times as many contexts, is among the candidates where it exists.

    The standard errors are those of an M-estimator: the square roots of the diagonal of H^-1 V H^-1 / tasks, with H the
    mean Hessian and V the covariance of the tasks' gradients. The learner passed in is left as it was.

    >>> from mesascope.learners import GradientDescent
    >>> from mesascope.tasks import LinearRegression
    >>> tuned = tune(GradientDescent(steps=1, eta=1.0), LinearRegression(x_scale=0.5), tasks=5_000)
    >>> abs(tuned.step_sizes["eta"][0].value - 6.0606) < 3 * tuned.step_sizes["eta"][0].stderr
    True
    """
    tasks = require_count("tasks", tasks, least=2)
    require_instance("learner", learner, nn.Module)
    parameters = list(_trained(learner).values())
    if not parameters or getattr(learner, "steps", 1) == 0:
        raise ArgumentError(
            f"learner must have parameters to tune, but {label(learner)} has none: pass one with step sizes."
        )
    draw = stream(seed, "tune", device=parameters[0].device)
    fit, choice = (_drawn(family, count, draw) for count in (tasks, max(tasks, min(10 * tasks, _CHOICE))))

    def on(part: Episode | Tensor) -> Losses:
        inputs, answers = posed(part)

        def losses(shallower: nn.Module, values: Values) -> Tensor:
            answer = asked(shallower, *inputs, weights=values)
            return (check_answer(learner, answer, answers.shape) - answers).square().mean((-2, -1))

        return losses

    problem = _Problem(on(_first(fit, _few(tasks))), on(fit), on(choice), _pairs(fit))
    warm = _without_clip(learner, family, 10 * tasks, seed)
    return _tuned(problem, learner, _climb(problem, learner, seed, warm)[-1], tasks)


@guarded
def tune_spectral(
    learner: Descent, family: LinearRegression, *, contexts: int = 10_000, seed: int = 0
) -> Tuned[Descent]:
    """`tune` from eigenvalues alone, on the same stream: a hundred times cheaper, and less noisy for equal draws.

    A token clip is left out while tuning, and back in the learner that is returned; the loss reported is that without.
    Many steps fold the spectrum so often that an eigenvalue beyond those seen explodes: five need some 50,000 contexts.
    """
    contexts = require_count("contexts", contexts, least=2)
    require_instance("learner", learner, GradientDescentPlusPlus)
    free = _unclipped(learner)
    problem = _spectral_problem(family, contexts, seed)
    tuned = _tuned(problem, free, _climb(problem, free, seed)[-1], contexts)
    tuned.learner.token_clip = learner.token_clip
    return tuned


Losses = Callable[[Any, Values], Float[Tensor, " n"]]


def _drawn(family: Family | SequenceFamily, tasks: int, generator: torch.Generator) -> Episode | Tensor:
    found = drawn(family, tasks, generator)
    (check_episode if isinstance(found, Episode) else check_tasks)(found)
    require_labels(family, found)
    return found.to(torch.float64)


def _first(tasks: Episode | Tensor, count: int) -> Episode | Tensor:
    return tasks.part(0, count) if isinstance(tasks, Episode) else tasks[:count]


def _pairs(tasks: Episode | Tensor) -> int:
    """To learn from: those of a context, or of elements that follow one another."""
    return tasks.context.x.shape[-2] if isinstance(tasks, Episode) else tasks.shape[-2] - 1


class _Problem(NamedTuple):
    """The losses of a learner with given values: where to search, what to minimise, what to choose by."""

    few: Losses
    fit: Losses
    choice: Losses
    n: int
    """Pairs in a context."""


class _Ends(NamedTuple):
    """The best end of a search, flat and by name, and the losses that all its starts ended at on few tasks."""

    point: Float[Tensor, " p"]
    values: Values
    starts: tuple[float, ...]


def _few(tasks: int) -> int:
    return min(tasks, max(500, tasks // 10))


def _spectral_problem(family: LinearRegression, contexts: int, seed: int) -> _Problem:
    spectra = gram_spectra(family, contexts, stream(seed, "tune"))

    def on(part: Tensor) -> Losses:
        def losses(shallower: GradientDescentPlusPlus, values: Values) -> Tensor:
            named = {f"learner.{name}": value for name, value in values.items()}
            return torch.func.functional_call(SpectralLoss(shallower, family), named, (part,))

        return losses

    return _Problem(on(spectra[: _few(contexts)]), on(spectra), on(spectra), family.n_context)


def _unclipped(learner: Descent) -> Descent:
    free = copy.deepcopy(learner).cpu()
    free.token_clip = None
    return free


def _without_clip(
    learner: nn.Module, family: Family | SequenceFamily, contexts: int, seed: int
) -> Mapping[int, Values]:
    """Optima without the clip by depth, as warm starts for a learner with one; none where spectra do not tell."""
    if not isinstance(learner, GradientDescentPlusPlus) or learner.token_clip is None:
        return {}
    if learner.w0 is not None or not has_spectral_loss(family):
        return {}
    free = _unclipped(learner)
    ends = _climb(_spectral_problem(family, contexts, seed), free, seed)
    found = [{name: value.to(learner.eta.device) for name, value in end.values.items()} for end in ends]
    return dict(zip(depths(learner), found, strict=True))


def _climb(problem: _Problem, learner: nn.Module, seed: int, warm: Mapping[int, Values] | None = None) -> list[_Ends]:
    """The search at each of the learner's depths, shallow ones first."""
    ends: list[_Ends] = []
    for steps in depths(learner):
        shallower = at_depth(learner, steps)
        own = {name: value.detach().double() for name, value in _trained(shallower).items()}
        spread = scattered(own, _SPREAD, stream(seed, "tune-starts", steps))
        free = [warm[steps]] if warm else []
        kept, starts = [own, *free], [own, *spread, *free]
        if ends:
            best = ends[-1].values
            kept.append(padded(best, own))
            starts += extended(best, own, problem.n)
        ends.append(_search(problem, shallower, starts, kept))
    return ends


def _search(problem: _Problem, learner: nn.Module, starts: Sequence[Values], kept: Sequence[Values]) -> _Ends:
    """L-BFGS from each start on few tasks, the best of their ends followed up on all, beside ``kept`` as they are."""
    shape = starts[0]

    def flat(losses: Losses) -> Callable[[Tensor], Tensor]:
        return lambda point: losses(learner, _named(point, shape))

    few, fit, choice = (flat(losses) for losses in (problem.few, problem.fit, problem.choice))
    found = sorted((_minimised(few, start, shape, _SEARCH) for start in starts), key=lambda pair: pair[1])
    nearest, _ = found[0]
    polished, _ = _minimised(fit, _named(nearest, shape), shape, 60 + 2 * len(nearest))
    ends = []
    with torch.no_grad():
        for point in [polished, *(_flat(values) for values in kept)]:
            ends.append((point, choice(point).mean().item()))
    point, loss = min(ends, key=lambda pair: pair[1] if math.isfinite(pair[1]) else math.inf)
    if not math.isfinite(loss):
        raise NumericalError(
            f"tuning must end where the loss is finite on fresh tasks, but {label(learner)} explodes there: tune fewer "
            "steps or on more tasks."
        )
    return _Ends(point, _named(point, shape), tuple(loss for _, loss in found))


def _minimised(
    losses: Callable[[Tensor], Tensor], start: Values, shape: Values, iterations: int
) -> tuple[Tensor, float]:
    point = rescaled(losses, _flat(start))
    point = minimise(losses, point, _units(_named(point, shape)), iterations)
    with torch.no_grad():
        return point, losses(point).mean().item()


def _tuned(problem: _Problem, learner: Module, ends: _Ends, n: int) -> Tuned[Module]:
    """A copy of ``learner`` with the values found, and how well they are known."""
    values = ends.values
    tuned, run = copy.deepcopy(learner), at_depth(learner, depths(learner)[-1])
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if name in values:
                parameter.copy_(values[name])
        mse = Measurement.of(problem.choice(run, values))

    def losses(point: Tensor) -> Tensor:
        return problem.fit(run, _named(point, values))

    errors = _named(standard_errors(losses, ends.point, _units(values)), values)
    sizes = {
        name: [
            Measurement(v, e, n) for v, e in zip(value.flatten().tolist(), errors[name].flatten().tolist(), strict=True)
        ]
        for name, value in values.items()
    }
    return Tuned(tuned, sizes, mse, ends.starts)


def _trained(learner: nn.Module) -> dict[str, nn.Parameter]:
    return {name: value for name, value in learner.named_parameters() if value.requires_grad}


def _flat(values: Values) -> Float[Tensor, " p"]:
    return torch.cat([value.flatten() for value in values.values()])


def _named(point: Float[Tensor, " p"], shape: Values) -> Values:
    parts = point.split([value.numel() for value in shape.values()])
    return {name: part.view(shape[name].shape) for name, part in zip(shape, parts, strict=True)}


def _units(values: Values) -> Float[Tensor, " p"]:
    """The size of each number: its own for step sizes, which differ by orders of magnitude; one for all of a matrix."""
    units = []
    for value in values.values():
        typical = value.square().mean().sqrt() if value.any() else value.new_ones(())
        own = value.abs() if value.ndim < 2 else torch.zeros_like(value)
        units.append(torch.where(own > 0, own, typical).flatten())
    return torch.cat(units)
