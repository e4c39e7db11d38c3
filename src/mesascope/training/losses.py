"""Losses of an ensemble or of one model on tasks."""

from __future__ import annotations

from torch import nn

from mesascope.errors import ArgumentError, refuse
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Episode
from mesascope.training.ensemble import Ensemble

__all__ = ["half_mse"]


def half_mse(model: Ensemble | nn.Module, tasks: Episode | Tensor) -> Float[Tensor, "*members"]:
    """Half the mean squared error of the answers to tasks, or of the predictions of each next element of sequences.

    One number a member for an `Ensemble`, one number for a module.

    The training loss of the ICML paper's code. That of the thesis, eq. 3.11, sums over times and entries and so is
    (T - 1) d times as large for sequences.
    """
    if isinstance(tasks, Episode):
        prediction, answer = model(tasks.context, tasks.xq), tasks.yq
    else:
        if tasks.shape[-2] < 2:
            refuse("tasks", "have sequences of at least 2 elements", tuple(tasks.shape), "draw longer ones")
        prediction, answer = model(tasks[..., :-1, :]), tasks[..., 1:, :]
    if prediction.shape != answer.shape:
        raise ArgumentError(
            f"predictions must have the answers' shape, {tuple(answer.shape)}, but have {tuple(prediction.shape)}: "
            "return (*batch, m, dy), or (*batch, t, d) for sequences."
        )
    error = 0.5 * (prediction - answer).square()
    return error.flatten(1).mean(1) if isinstance(model, Ensemble) else error.mean()
