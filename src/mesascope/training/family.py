"""Training learners on a family of tasks, or predictors on a family of sequences."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from mesascope.errors import ArgumentTypeError, refuse, require_callable, require_instance, shown
from mesascope.modes import guarded
from mesascope.shapes import Tensor
from mesascope.streams import stream
from mesascope.tasks import Context, Episode, Family, Seeded, SequenceFamily
from mesascope.tasks.asking import UnansweredError, check_causal, drawn, require_family, takes
from mesascope.training.ensemble import Ensemble, Module
from mesascope.training.ensemble_state import EnsembleState
from mesascope.training.history import CheckpointsWithHistory, History
from mesascope.training.loop import Checkpoints, Metrics, Observer, fit
from mesascope.training.losses import half_mse, pair_half_mse
from mesascope.training.plan import ParameterGroup, Training
from mesascope.training.progress import ProgressBar
from mesascope.training.randomness import drawing_from

__all__ = ["train"]


@guarded
def train(
    make: Callable[[torch.Generator], Module],
    family: Family | SequenceFamily,
    training: Training | None = None,
    seeds: Sequence[int] = (0,),
    *,
    loss: Callable[[Ensemble, Any], Tensor] = half_mse,
    parameter_groups: Sequence[ParameterGroup] = (),
    device: torch.device | str = "cpu",
    evaluate: Callable[[int, Ensemble], None] | None = None,
    checkpoints: Checkpoints | None = None,
    observe: Observer | None = None,
) -> Ensemble[Module]:
    """Train one learner or predictor a seed on fresh tasks of ``family``, all at once.

    Its ``members()`` are the trained modules, its ``history`` a table of every step that pandas takes, with the loss:
    by default *half* the mean squared error that lenses report as mse. On Ctrl-C the training ends early: see `fit`.

    Args:
        make: builds one from the generator of its initial weights (stream ``init`` of its seed). While it builds,
            torch's global generator follows the seed too, so that layers which take no generator, such as
            `torch.nn.Linear`, start from weights of the seed's own: ``lambda generator: MyNet(width=64)`` is enough.
        family: each seed draws its own tasks (step i from stream ``train`` of that seed), from its own family where
            ``family`` has a method ``seeded(seed)``.
        training: see `Training`.
        seeds: one member each.
        loss: of an ensemble on a batch of tasks, one number a member: `half_mse`, or `pair_half_mse`, say.
        parameter_groups: parameters with a learning rate of their own; see `EnsembleState`.
        observe: see `fit`.
        evaluate, checkpoints: see `fit`.

    Raises:
        ArgumentError: equal seeds, members that start equal, or predictors that look ahead.
        ArgumentTypeError: arguments of other types.
        NumericalError: every member has diverged.

    >>> from mesascope.learners import GradientDescent
    >>> from mesascope.tasks import LinearRegression
    >>> plan = Training(steps=200, batch=64, learning_rate=0.1)
    >>> trained = train(
    ...     lambda generator: GradientDescent(1, eta=torch.rand(1, generator=generator).item()),
    ...     LinearRegression(x_scale=0.5),
    ...     plan,
    ...     seeds=[0, 1],
    ... )
    >>> all(5 < learner.eta < 7 for learner in trained.members())
    True
    """
    plan = Training() if training is None else training
    require_instance("training", plan, Training)
    require_family(family)
    seeds = _checked(seeds)
    families = [family.seeded(seed) if isinstance(family, Seeded) else family for seed in seeds]
    ensemble = Ensemble([_made(make, seed) for seed in seeds]).to(device)
    state = EnsembleState(ensemble, loss, plan, parameter_groups=parameter_groups, seed=seeds[0])
    unchecked = loss in (half_mse, pair_half_mse)

    def batch_at(step: int) -> Episode | Tensor:
        nonlocal unchecked
        draws = [stream(seed, "train", step, device) for seed in seeds]
        batches = [drawn(own, plan.batch, draw) for own, draw in zip(families, draws, strict=True)]
        if unchecked and isinstance(batches[0], Tensor):  # a model that sees what it is to predict would seem to learn
            with suppress(UnansweredError):  # one that takes batches of one size only
                check_causal(ensemble.member(0).eval(), batches[0])
        unchecked = False
        return stacked(batches)

    history = History(seeds)
    if checkpoints is not None:
        require_instance("checkpoints", checkpoints, Checkpoints)
    kept = None if checkpoints is None else CheckpointsWithHistory(checkpoints, history)
    if observe is not None:
        require_callable("observe", observe)
    with ProgressBar("training", plan.steps) as bar:
        show = observe or bar

        def told(step: int, metrics: Metrics) -> None:
            history(step, metrics)
            show(step, metrics)

        trained = fit(state, batch_at, plan, evaluate=evaluate, checkpoints=kept, observe=told)
    return trained.with_history(history)


def _checked(seeds: Sequence[int]) -> list[int]:
    try:
        numbers = [] if isinstance(seeds, str) else [operator.index(seed) for seed in seeds]
    except TypeError:
        numbers = []
    if not numbers or min(numbers) < 0:
        raise ArgumentTypeError(f"seeds must be some whole numbers from 0 on, but is {shown(seeds)}: pass [0, 1], say.")
    if len(set(numbers)) < len(numbers):
        refuse("seeds", "differ from each other", numbers, "give no seed twice")
    return numbers


def _made(make: Callable[[torch.Generator], Module], seed: int) -> Module:
    """A member's module; what it draws from torch's global generators follows the seed, too."""
    generator = stream(seed, "init")
    if not callable(make) or not takes(make, (generator,)):
        raise ArgumentTypeError(
            f"make must build a module from a torch.Generator, but is {shown(make)}: pass config.build, or a function "
            "of one argument."
        )
    with drawing_from(seed, "init of layers without a generator", 0, generator.device):
        module = make(generator)
    if not isinstance(module, nn.Module):
        raise ArgumentTypeError(f"make must return a torch module, but returned {shown(module)}: return one.")
    return module


def stacked(draws: Sequence[Episode | Tensor]) -> Episode | Tensor:
    """Episodes or sequences of equal shape along a new first axis."""
    episodes = [draw for draw in draws if isinstance(draw, Episode)]
    if not episodes:
        return torch.stack([draw for draw in draws if isinstance(draw, Tensor)])
    x, y, xq, yq = (torch.stack(parts) for parts in zip(*((*e.context, e.xq, e.yq) for e in episodes), strict=True))
    return Episode(Context(x, y), xq, yq)
