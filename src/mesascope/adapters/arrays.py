"""Functions of NumPy arrays as learners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mesascope.errors import ArgumentError, refuse, require_callable
from mesascope.progress import tracked
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs
from mesascope.tasks.asking import named

__all__ = ["from_numpy"]


def from_numpy(function: Callable[..., Any]) -> NumpyLearner:
    """A learner from ``function(x, y, xq)``, which is given one task at a time as arrays in double precision.

    Args:
        function: takes x ``(n, dx)``, y ``(n, dy)`` and queries ``(m, dx)``; returns ``(m, dy)``, or ``(m,)`` for one
            target. It may write into what it is given.

    >>> import numpy as np
    >>> last = from_numpy(lambda x, y, xq: np.repeat(y[-1:], len(xq), axis=0))
    >>> last(Context(torch.ones(1, 2, 1), torch.tensor([[[3.0], [4.0]]])), torch.ones(1, 1, 1))
    tensor([[[4.]]])
    """
    require_callable("function", function)
    return NumpyLearner(function)


class NumpyLearner:
    """What `from_numpy` returns; in tables it has the function's name."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = named(function)

    def __repr__(self) -> str:
        return f"from_numpy({self.__name__})"

    def __call__(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        shape = (*xq.shape[:-1], context.y.shape[-1])
        x, y, queries = (part.detach().cpu().double() for part in (*context, xq))
        tasks = zip(*(part.reshape(-1, *part.shape[-2:]) for part in (x, y, queries)), strict=True)
        count = x.shape[:-2].numel()
        answers = [
            self._answer([part.clone().numpy() for part in task], shape[-2:])
            for task in tracked(tasks, self.__name__, count)
        ]
        return torch.stack(answers).reshape(shape).to(xq) if answers else xq.new_zeros(shape)

    def _answer(self, task: list[Any], shape: tuple[int, ...]) -> Tensor:
        answer = self.function(*task)
        try:
            found = torch.as_tensor(answer, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            raise ArgumentError(
                f"{self.__name__} must return numbers {shape}, but returned a {type(answer).__name__}: return an array."
            ) from None
        if found.shape != shape and (shape[-1] != 1 or found.shape != shape[:1]):
            refuse(f"what {self.__name__} returns", f"have shape {shape}", tuple(found.shape), "return (m, dy)")
        return found.reshape(shape)
