"""Losses of an ensemble or of one model on tasks."""

from __future__ import annotations

from torch import nn

from mesascope.errors import refuse
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Episode, check_sequence
from mesascope.tasks.calling import check_answer, inputs_and_targets, predict
from mesascope.training.ensemble import Ensemble


def half_mse(model: Ensemble | nn.Module, tasks: Episode | Tensor) -> Float[Tensor, "*members"]:
    """Half the mean squared error of predictions for an episode's queries, or for all next elements of a sequence.

    Returns one number for each member of an `Ensemble`, or one for a module.

    Source: code of von Oswald et al. (2023). For sequences, the loss of the thesis (eq. 3.11) is (T - 1) d times as
    large, as it sums over times and entries.
    """
    if not isinstance(tasks, Episode):
        check_sequence(tasks)
        if tasks.shape[-2] < 2:
            refuse("tasks", "have sequences of at least 2 elements", tuple(tasks.shape), "draw longer ones")
    return _half_mean_square(model, _errors(model, tasks))


def pair_half_mse(model: Ensemble | nn.Module, sequences: Float[Tensor, "*batch t d"]) -> Float[Tensor, "*members"]:
    """Half the mean squared error of predictions for the targets y_i in sequences x_1, y_1, x_2, y_2, ...

    Returns one number for each member of an `Ensemble`, or one for a module.

    Source: thesis, section 3.5.2; its loss sums over pairs and entries.
    """
    check_sequence(sequences)
    if sequences.shape[-2] < 2 or sequences.shape[-2] % 2:
        refuse("sequences", "have pairs of elements", tuple(sequences.shape), "draw them from a FewShotSequence, say")
    return _half_mean_square(model, _errors(model, sequences)[..., 0::2, :])


def _errors(model: Ensemble | nn.Module, tasks: Episode | Tensor) -> Tensor:
    inputs, answer = inputs_and_targets(tasks)
    if not isinstance(tasks, Episode):  # a model may overwrite its inputs
        answer = answer.clone()
    return check_answer(model, predict(model, *inputs), answer.shape) - answer


def _half_mean_square(model: Ensemble | nn.Module, error: Tensor) -> Tensor:
    square = 0.5 * error.square()
    return square.flatten(1).mean(1) if isinstance(model, Ensemble) else square.mean()
