"""Losses of an ensemble or of one model on tasks."""

from __future__ import annotations

from torch import nn

from mesascope.errors import refuse
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Episode, check_sequence
from mesascope.tasks.asking import asked, check_answer
from mesascope.training.ensemble import Ensemble

__all__ = ["half_mse"]


def half_mse(model: Ensemble | nn.Module, tasks: Episode | Tensor) -> Float[Tensor, "*members"]:
    """Half the mean squared error of the answers to tasks, or of the predictions of each next element of sequences.

    One number a member for an `Ensemble`, one number for a module.

    The training loss of the ICML paper's code. That of the thesis, eq. 3.11, sums over times and entries and so is
    (T - 1) d times as large for sequences.
    """
    if isinstance(tasks, Episode):
        inputs, answer = (tasks.context, tasks.xq), tasks.yq
    else:
        check_sequence(tasks)
        if tasks.shape[-2] < 2:
            refuse("tasks", "have sequences of at least 2 elements", tuple(tasks.shape), "draw longer ones")
        # A copy: a model that writes into what it reads must not change the answers.
        inputs, answer = (tasks[..., :-1, :],), tasks[..., 1:, :].clone()
    prediction = check_answer(model, asked(model, *inputs), answer.shape)
    error = 0.5 * (prediction - answer).square()
    return error.flatten(1).mean(1) if isinstance(model, Ensemble) else error.mean()
