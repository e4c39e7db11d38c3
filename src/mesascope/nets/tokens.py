"""Layouts of a context and its queries as tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from torch.nn import functional

from mesascope.errors import refuse
from mesascope.ops import sinusoidal
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context
from mesascope.validate import Count


@runtime_checkable
class Layout(Protocol):
    """Function from a context and queries to their tokens, ``(*batch, rows, width)`` and ``(*batch, m, width)``."""

    def width(self, d_in: int, d_out: int) -> int: ...
    def __call__(self, context: Context, xq: Tensor) -> tuple[Tensor, Tensor]: ...


@register("layout", "concatenated")
@dataclass(frozen=True)
class Concatenated:
    """Context tokens (x_i, y_i) and query tokens (x_q, 0): von Oswald et al. (ICML 2023), section 3."""

    def width(self, d_in: int, d_out: int) -> int:
        return d_in + d_out

    def __call__(self, context: Context, xq: Tensor) -> tuple[Tensor, Tensor]:
        blank = xq.new_zeros((*xq.shape[:-1], context.y.shape[-1]))
        return torch.cat([context.x, context.y], dim=-1), torch.cat([xq, blank], dim=-1)


@register("layout", "with-query")
@dataclass(frozen=True)
class WithQuery(Concatenated):
    """Tokens of `Concatenated`; the context also contains the query token, which thus provides a key and a value.

    Each task must have one query, because several would attend to each other. Source: von Oswald et al. (ICML 2023),
    section 2, *Full self-attention*.
    """

    def __call__(self, context: Context, xq: Tensor) -> tuple[Tensor, Tensor]:
        if xq.shape[-2] != 1:
            refuse("xq", "have one query per task in the layout with-query", xq.shape[-2], "pass one at a time")
        tokens, query = super().__call__(context, xq)
        return torch.cat([tokens, query], dim=-2), query


@register("layout", "alternating")
@dataclass(frozen=True)
class Alternating:
    """Tokens x_1, y_1, ..., x_n, y_n and the query, each with its position: von Oswald et al. (ICML 2023), section 4.

    A token is (data, position). Data is x followed by zeros, or zeros followed by y, of width max(dx, dy). Positions
    count back from the query at position 0, so all queries of a task have the same position, and a shorter context has
    the positions of the last pairs.

    Args:
        positions: ``"sinusoidal"`` (`mesascope.ops.sinusoidal`) or ``"one-hot"``.
        size: width of a position encoding.
        start: begin with a token of zero data, which softmax attention can attend to without reading anything.
    """

    positions: Literal["sinusoidal", "one-hot"] = "sinusoidal"
    size: Count = 10
    start: bool = False

    def width(self, d_in: int, d_out: int) -> int:
        return max(d_in, d_out) + self.size

    def __call__(self, context: Context, xq: Tensor) -> tuple[Tensor, Tensor]:
        tokens, query = alternated(context, xq)
        if self.start:
            tokens = functional.pad(tokens, (0, 0, 1, 0))
        rows = tokens.shape[-2]
        positions = _POSITIONS[self.positions](torch.arange(rows + 1), self.size).to(tokens)
        back = positions[1:].flip(0).expand(*tokens.shape[:-1], -1)
        here = positions[0].expand(*xq.shape[:-1], -1)
        return torch.cat([tokens, back], dim=-1), torch.cat([query, here], dim=-1)


def alternated(
    context: Context, xq: Float[Tensor, "*batch m dx"]
) -> tuple[Float[Tensor, "*batch rows data"], Float[Tensor, "*batch m data"]]:
    """x_1, y_1, ..., x_n, y_n and the queries, of width max(dx, dy): x followed by zeros, or zeros followed by y."""
    (x, y), data = context, max(context.x.shape[-1], context.y.shape[-1])
    padded = functional.pad(x, (0, data - x.shape[-1])), functional.pad(y, (data - y.shape[-1], 0))
    return torch.stack(padded, dim=-2).flatten(-3, -2), functional.pad(xq, (0, data - xq.shape[-1]))


def _one_hot(positions: Tensor, size: int) -> Float[Tensor, "count size"]:
    if len(positions) > size:
        refuse("size", f"be at least {len(positions)}, one entry for each token", size, "make positions wider")
    return torch.eye(size, dtype=torch.float64, device=positions.device)[positions]


_POSITIONS = {"sinusoidal": sinusoidal, "one-hot": _one_hot}
