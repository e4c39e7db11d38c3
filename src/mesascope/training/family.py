"""Training of learners on a task family, or of predictors on a family of sequences, and its losses."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from mesascope.errors import ArgumentTypeError, raised, refuse, require_instance, shown
from mesascope.modes import guarded
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import Episode, Family, Seeded, SequenceFamily, calling, check_sequence
from mesascope.training.ensemble import Ensemble, History, Module
from mesascope.training.ensemble_state import EnsembleState
from mesascope.training.loop import Checkpoints, Observer, fit
from mesascope.training.plan import ParameterGroup, Training
from mesascope.training.randomness import drawing_from


def half_mse(model: Ensemble | nn.Module, tasks: Episode | Tensor) -> Float[Tensor, "*members"]:
    """Half the mean squared error of predictions for an episode's queries, or for all next elements of a sequence.

    Returns one number for each member of an `Ensemble`, or one for a module.

    Source: code of von Oswald et al. (2023). For sequences, the loss of von Oswald (2024), eq. 3.11, is (T - 1) d
    times as large, as it sums over times and entries.
    """
    if not isinstance(tasks, Episode):
        check_sequence(tasks)
        if tasks.shape[-2] < 2:
            refuse("tasks", "have sequences of at least 2 elements", tuple(tasks.shape), "draw longer ones")
    return _half_mean_square(model, tasks)


def pair_half_mse(model: Ensemble | nn.Module, sequences: Float[Tensor, "*batch t d"]) -> Float[Tensor, "*members"]:
    """Half the mean squared error of predictions for the targets y_i in sequences x_1, y_1, x_2, y_2, ...

    Returns one number for each member of an `Ensemble`, or one for a module.

    Source: von Oswald (2024), section 3.5.2; its loss sums over pairs and entries.
    """
    check_sequence(sequences)
    if sequences.shape[-2] < 2 or sequences.shape[-2] % 2:
        refuse("sequences", "have an even number of elements", tuple(sequences.shape), "draw them from FewShotSequence")
    return _half_mean_square(model, sequences, every=2)


def _half_mean_square(model: Ensemble | nn.Module, tasks: Episode | Tensor, every: int = 1) -> Tensor:
    """Half the mean squared error of every ``every``-th prediction, from the first on."""
    if own := getattr(model.module if isinstance(model, Ensemble) else model, "trains_by", ""):
        refuse("loss", f"be {own} for this classifier", "the mean square of scores", f"pass loss={own}")
    inputs, answer = calling.inputs_and_targets(tasks)
    if answer.dtype == torch.bool:
        refuse("tasks", "have numbers as targets for the mean square", "torch.bool", "convert them with .float()")
    if not isinstance(tasks, Episode):  # a model may overwrite its inputs
        answer = answer.clone()
    error = calling.check_answer(model, calling.predict(model, *inputs), answer.shape) - answer
    square = 0.5 * (error if every == 1 else error[..., ::every, :]).square()
    return square.flatten(1).mean(1) if isinstance(model, Ensemble) else square.mean()


@guarded
def train(
    make: Callable[[torch.Generator], Module],
    family: Family | SequenceFamily,
    training: Training | None = None,
    seeds: Sequence[int] = (0,),
    *,
    loss: Callable[[Ensemble, Any], Tensor] = half_mse,
    parameter_groups: Sequence[ParameterGroup] = (),
    accumulate: int = 1,
    autocast: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    evaluate: Callable[[int, Ensemble], None] | None = None,
    checkpoints: Checkpoints | None = None,
    observe: Observer | None = None,
) -> Ensemble[Module]:
    """Train one learner or predictor for each seed on fresh tasks of ``family``, all at once.

    The result's ``members()`` are the trained modules. Its ``history`` is a table with the loss at every step. The
    default loss is *half* the mean squared error that lenses report as mse. Ctrl-C ends the training early: see `fit`.

    Args:
        make: function that builds a module from a torch.Generator (stream ``init`` of the seed). During the call,
            torch's global generator also depends on the seed, so layers without a generator argument, such as
            `torch.nn.Linear`, have different weights for each seed: ``lambda generator: MyNet(width=64)`` is enough.
        family: task family. Each seed has its own tasks (step i uses stream ``train`` of that seed), from
            ``family.seeded(seed)`` if there is such a method: with a pool, seed 1 learns another pool than seed 0.
        training: see `Training`.
        seeds: one for each member.
        loss: function from an ensemble and a batch of tasks to the loss of each member, such as `half_mse` or
            `pair_half_mse`.
        parameter_groups: parameters with their own learning rate; see `EnsembleState`.
        accumulate: number of equal parts of each batch that run one after the other, to save memory.
        autocast: torch.bfloat16 for the forward pass; see `EnsembleState`.
        evaluate, checkpoints, observe: see `fit`.

    Raises:
        ArgumentError: seeds or initial weights of two members are equal, or predictors look ahead.
        ArgumentTypeError: an argument has the wrong type.
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
    calling.require_family(family)
    seeds = _checked(seeds)
    ensemble = Ensemble([_made(make, seed) for seed in seeds]).to(device)
    state = EnsembleState(
        ensemble, loss, plan, parameter_groups=parameter_groups, accumulate=accumulate, autocast=autocast,
        seed=seeds[0], history=History(seeds),
    )  # fmt: skip
    batch_at = _batches(family, seeds, plan.batch, device, ensemble, loss in (half_mse, pair_half_mse))
    return fit(state, batch_at, plan, evaluate=evaluate, checkpoints=checkpoints, observe=observe)


def _batches(
    family: Any, seeds: Sequence[int], size: int, device: torch.device | str, ensemble: Ensemble, unchecked: bool
) -> Callable[[int], Episode | Tensor]:
    """Return a function that draws a step's batch; if ``unchecked``, its first call checks that member 0 is causal."""
    families = [family.seeded(seed) if isinstance(family, Seeded) else family for seed in seeds]

    def batch_at(step: int) -> Episode | Tensor:
        nonlocal unchecked
        draws = [stream(seed, "train", step, device) for seed in seeds]
        batches = [calling.sample_tasks(own, size, draw) for own, draw in zip(families, draws, strict=True)]
        if unchecked and isinstance(batches[0], Tensor):
            if batches[0].ndim < 3:
                remedy = "draw numbers as vectors of width 1"
                refuse("a family of sequences", "draw (batch, t, d)", tuple(batches[0].shape), remedy)
            # a model that sees its targets would only seem to learn
            with suppress(calling.LearnerError):  # raised by models that accept only one batch size
                calling.check_causal(ensemble.member(0).eval(), batches[0])
        unchecked = False
        return stacked(batches)

    return batch_at


def _checked(seeds: Sequence[int]) -> list[int]:
    try:
        numbers = [] if isinstance(seeds, str) else [operator.index(seed) for seed in seeds]
    except TypeError:
        numbers = []
    if not numbers or min(numbers) < 0:
        raise ArgumentTypeError(f"seeds must be a list of whole numbers >= 0, but is {shown(seeds)}: pass [0, 1].")
    if len(set(numbers)) < len(numbers):
        refuse("seeds", "differ from each other", numbers, "give no seed twice")
    return numbers


def _made(make: Callable[[torch.Generator], Module], seed: int) -> Module:
    """Build a member's module, with torch's global generators seeded from its seed."""
    generator = stream(seed, "init")
    if isinstance(make, nn.Module):
        rule, remedy = "be a function that builds a module from a torch.Generator", "pass lambda generator: MyModule()"
        refuse("make", rule, make, remedy, ArgumentTypeError)
    if not callable(make) or not calling.takes(make, (generator,)):
        raise ArgumentTypeError(
            f"make must build a module from a torch.Generator, but is {shown(make)}: pass config.build, or a function "
            "of one argument."
        )
    with drawing_from(seed, "init of layers without a generator", 0, generator.device):
        try:
            module = make(generator)
        except TypeError as error:
            if not isinstance(make, type):
                raise
            name = make.__name__
            raise ArgumentTypeError(
                f"make must build a module from a torch.Generator, but {name} raised {raised(error)}: pass lambda "
                f"generator: {name}()."
            ) from error
    if not isinstance(module, nn.Module):
        raise ArgumentTypeError(f"make must return a torch module, but returned {shown(module)}: return one.")
    return module


def stacked(draws: Sequence[Episode | Tensor]) -> Episode | Tensor:
    """Stack episodes or sequences of equal shape along a new first axis."""
    parts = [tree_leaves(one) for one in draws]
    if wrong := sorted({type(part).__name__ for own in parts for part in own if not isinstance(part, Tensor)}):
        raise ArgumentTypeError(f"a family must draw tensors, but drew {', '.join(wrong)}: use torch.as_tensor.")
    shapes = {tuple(part.shape for part in own) for own in parts}
    if len(shapes) > 1:
        refuse("tasks", "have one shape for all seeds of a step", sorted(shapes), "train one seed at a time")
    return tree_map(lambda *same: torch.stack(same), *draws)
