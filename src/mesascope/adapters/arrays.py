"""Functions of NumPy arrays as learners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mesascope.errors import ArgumentError, ArgumentTypeError, refuse, require_callable
from mesascope.evidence.numbers import unmasked
from mesascope.progress import tracked
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs
from mesascope.tasks.asking import named, takes

__all__ = ["from_numpy", "predicted"]


def from_numpy(function: Callable[..., Any]) -> NumpyLearner:
    """A learner from ``function(x, y, xq)``, which is called with one task at a time, in double precision.

    Args:
        function: takes x ``(n, dx)``, y ``(n, dy)`` and queries ``(m, dx)``; returns ``(m, dy)``, or ``(m,)`` for one
            target. It may write into its arguments.

    Raises:
        ArgumentTypeError: the function takes other arguments.

    >>> import numpy as np
    >>> last = from_numpy(lambda x, y, xq: np.repeat(y[-1:], len(xq), axis=0))
    >>> last(Context(torch.ones(1, 2, 1), torch.tensor([[[3.0], [4.0]]])), torch.ones(1, 1, 1))
    tensor([[[4.]]])
    """
    require_callable("function", function)
    if not takes(function, (None,) * 3):
        raise ArgumentTypeError(
            f"function must take (x, y, xq) for from_numpy, but {named(function)} does not: write it so, or leave "
            "from_numpy out if it takes (context, xq)."
        )
    return NumpyLearner(function)


class NumpyLearner:
    """Return type of `from_numpy`; in tables it has the function's name."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = named(function)

    def __repr__(self) -> str:
        return f"from_numpy({self.__name__})"

    def __call__(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        shape = (*xq.shape[:-1], context.y.shape[-1])
        parts = (part.detach().cpu().double().reshape(-1, *part.shape[-2:]) for part in (*context, xq))
        tasks, answers = zip(*parts, strict=True), []
        for task in tracked(tasks, self.__name__, xq.shape[:-2].numel()):
            answer = self.function(*(part.clone().numpy() for part in task))
            answers.append(predicted(self.__name__, answer, shape[-2:]))
        return torch.stack(answers).reshape(shape).to(xq) if answers else xq.new_zeros(shape)


def predicted(name: str, answer: Any, shape: tuple[int, ...]) -> Float[Tensor, "m dy"]:
    """Convert an array, a tensor or lists that ``name`` returned to float64; the last axis may be missing if dy = 1.

    Raises:
        ArgumentError: an answer is not real numbers, or has another shape than ``(m, dy)``.
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
