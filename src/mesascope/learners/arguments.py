"""Base class of learners and predictors, argument checks, and ranges of free parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NoReturn

import torch
from torch import nn

from mesascope.errors import ArgumentError, ArgumentTypeError, refuse, require_count, require_number, shown
from mesascope.ops.reading import read
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, check_inputs
from mesascope.validate import frozen

Sizes = float | Sequence[float]  # one number, or one per step
Matrix = Tensor | Sequence  # or nested lists of numbers


@frozen
class Range:
    """Closed interval of a free parameter, searched evenly on a log, linear or integer scale.

    Learners are registered with these ranges (``free=``), so that `identify` can fit their parameters.

    >>> from mesascope.records import facts
    >>> facts("learner", "least-squares")["free"]
    {'ridge': Range(low=0.0001, high=100.0, scale='log')}
    """

    low: float
    high: float
    scale: Literal["log", "linear", "integer"]

    def __post_init__(self) -> None:
        if self.scale == "integer":
            for name in ("low", "high"):
                require_count(name, getattr(self, name), least=0)
        if not self.low < self.high:
            refuse("low", f"be less than high = {self.high:g}", self.low, "pass the ends in order")
        if self.scale == "log" and self.low <= 0:
            refuse("low", "be greater than 0 on a log scale", self.low, "pass a larger number")


class Algorithm(nn.Module):
    """A module whose repr lists its constructor arguments, read from attributes of the same names."""

    def extra_repr(self) -> str:
        arguments = {name: _shown(getattr(self, name, None)) for name in inspect.signature(type(self)).parameters}
        return ", ".join(f"{name}={value}" for name, value in arguments.items() if value)


def _shown(value: object) -> str:
    """Text of a number, a string or a matrix's shape; empty for modules, functions, None and False."""
    if isinstance(value, Tensor):
        if value.ndim > 1:
            return " x ".join(map(str, value.shape))
        value = value.tolist()
    if isinstance(value, list):
        return f"[{', '.join(f'{number:.6g}' for number in value)}]"
    if isinstance(value, bool | str):
        return repr(value) if value else ""
    return f"{value:.6g}" if isinstance(value, int | float) else ""


def step_sizes(name: str, value: Sizes, steps: int) -> nn.Parameter:
    """Make a float64 parameter from one number, or from one number per step."""
    try:
        if isinstance(value, bool):
            raise TypeError
        sizes = torch.as_tensor(value, dtype=torch.float64).detach().clone()
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentTypeError(f"{name} must be a number or one per step, but is {shown(value)}: pass one.") from None
    if sizes.ndim > 1 or (sizes.ndim == 1 and len(sizes) != steps):
        refuse(name, f"be one number or {steps}, one per step", value, "match it to steps")
    if not torch.isfinite(sizes).all():
        refuse(name, "be finite", value, "pass finite step sizes")
    return nn.Parameter(sizes)


def one_size(name: str, value: float) -> nn.Parameter:
    """Make a float64 parameter from one number."""
    return nn.Parameter(torch.tensor(require_number(name, value), dtype=torch.float64))


def tensor_of(name: str, value: Matrix, axes: str, shape: tuple[int, ...] | None = None) -> Tensor:
    """Return a floating-point tensor unchanged, or convert nested lists of numbers (as in records) to float64.

    Raise if the number of axes differs from ``axes``, if the shape is not ``shape``, or if a number is not finite.
    """
    try:
        tensor = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentTypeError(
            f"{name} must be a tensor or equally long lists of numbers, but is {shown(value)}: pass one."
        ) from None
    if not tensor.is_floating_point():
        raise ArgumentTypeError(f"{name} must be of a floating-point dtype, but is {tensor.dtype}: convert it.")
    if tensor.ndim != len(axes.split()) or not tensor.numel():
        refuse(name, f"have shape ({', '.join(axes.split())})", tuple(tensor.shape), "add the missing axes")
    if shape is not None and tensor.shape != shape:
        refuse(name, f"have shape {shape}", tuple(tensor.shape), f"pass {name} of shape ({', '.join(axes.split())})")
    if not bool(torch.isfinite(tensor).all()):
        refuse(name, "be finite", tensor.detach().tolist(), "replace nan and inf")
    return tensor


def require_precision(x: Tensor) -> None:
    """Raise for dtypes in which torch cannot factorise matrices or compute distances."""
    if x.dtype not in (torch.float32, torch.float64):
        raise ArgumentTypeError(
            f"context must be of dtype float32 or float64 for this learner, but is {x.dtype}: convert it, "
            "e.g. with .float()."
        )


@contextmanager
def factorising(x: Tensor) -> Iterator[None]:
    """Explain in one sentence that LAPACK cannot factorise ``x``, the context's inputs, if they are not finite."""
    try:
        yield
    except RuntimeError:
        if not all(row[0] for row in read(x.detach().isfinite().all()[None].double())):
            refuse_infinite()
        raise


def refuse_infinite() -> NoReturn:
    raise ArgumentError("context must have finite products, but some are not: remove or rescale such tasks.")


def power_of_two(values: Tensor, over: int | tuple[int, ...]) -> Tensor:
    """A power of two near the largest absolute value, without a gradient; 1 if all values are 0, or if there are none.

    Values divided by it have squares that neither overflow nor vanish, and the same digits.
    """
    if not values.numel():
        return values.new_ones(())
    largest = values.detach().abs().amax(over, keepdim=True)
    return torch.where(largest > 0, largest.log2().floor().exp2(), 1.0)


def in_units(
    context: Context, xq: Float[Tensor, "*batch m dx"]
) -> tuple[Context, Float[Tensor, "*batch m dx"], Tensor]:
    """Context and queries in units of the largest input and labels, and the unit of predictions: see `power_of_two`."""
    unit_x, unit_y = power_of_two(context.x, (-2, -1)), power_of_two(context.y, -2)
    return Context(context.x / unit_x, context.y / unit_y), xq / unit_x, unit_y


def moments(context: Context, xq: Tensor) -> tuple[Float[Tensor, "*batch dx dx"], Float[Tensor, "*batch dx dy"]]:
    """X^T X / n and X^T Y / n, after a check of the inputs."""
    check_inputs(context, xq)
    (x, y), n = context, max(context.x.shape[-2], 1)
    return x.mT @ x / n, x.mT @ y / n


def size_at(sizes: Tensor, step: int) -> Tensor:
    """Size of one step, given one number for all steps or one per step."""
    return sizes if sizes.ndim == 0 else sizes[step]


def mean_of_rows(rows: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch 1 d"]:
    """Mean of the rows; 0 if there are none."""
    return rows.sum(-2, keepdim=True) / max(rows.shape[-2], 1)
