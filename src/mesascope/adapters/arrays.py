"""Functions of NumPy arrays as learners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mesascope.errors import ArgumentError, refuse, require_callable
from mesascope.evidence.numbers import unmasked
from mesascope.progress import tracked
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs
from mesascope.tasks.asking import named

__all__ = ["from_numpy", "predicted"]


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
        return predicted(self.__name__, self.function(*task), shape)


def predicted(name: str, answer: Any, shape: tuple[int, ...]) -> Float[Tensor, "m dy"]:
    """Predictions that ``name`` returned as an array, a tensor or lists, in float64; without the last axis if dy = 1.

    Raises:
        ArgumentError: they are no real numbers, or have another shape than ``(m, dy)``.
    """
    try:
        found = unmasked(answer.detach().cpu().double() if isinstance(answer, Tensor) else answer)
    except (TypeError, ValueError, RuntimeError):
        found = np.array(None)
    if isinstance(answer, tuple) or found.dtype.kind not in "biuf":  # a tuple may be a mean and an error
        of = f" of {answer.dtype}" if isinstance(answer, np.ndarray) else ""
        raise ArgumentError(
            f"{name} must return numbers {shape}, but returned a {type(answer).__name__}{of}: return an array of "
            "floats."
        )
    if found.shape != shape and (shape[-1] != 1 or found.shape != shape[:1]):
        refuse(f"what {name} returns", f"have shape {shape}", found.shape, "return (m, dy)")
    return torch.as_tensor(found.astype(np.float64)).reshape(shape)
