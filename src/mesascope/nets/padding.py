"""Padding before sequences of a batch: tokens that nobody sees and that move no memory."""

from __future__ import annotations

from typing import Any

import torch

from mesascope.errors import ArgumentError, ArgumentTypeError, refuse
from mesascope.ops.reading import read
from mesascope.shapes import Tensor

__all__ = ["blanked", "check_mask", "check_padding", "gates_without", "given", "places"]


def check_mask(mask: Tensor | None, tokens: Tensor) -> None:
    """Refuse a mask that is not ``(*batch, t)`` of booleans on the tokens' device."""
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise ArgumentTypeError(
            f"mask must be a tensor of booleans, but is {getattr(mask, 'dtype', type(mask).__name__)}: pass True for "
            "tokens and False for padding."
        )
    if mask.shape != tokens.shape[:-1]:
        refuse("mask", f"have shape {tuple(tokens.shape[:-1])}", tuple(mask.shape), "match it to the tokens")
    if mask.device != tokens.device:
        refuse("mask", f"be on the tokens' device, {str(tokens.device)!r}", str(mask.device), "move it there")


def check_padding(mask: Tensor | None, position: Tensor | None) -> None:
    """Refuse a mask that is False after a sequence's first token, ``position`` tokens of which came before.

    Costs a transfer from the device.
    """
    if mask is None or not mask.numel() or torch.compiler.is_compiling():
        return
    gaps = (mask[..., :-1] & ~mask[..., 1:]).any()
    if position is not None:
        gaps = gaps | ((position > 0) & ~mask[..., 0]).any()
    if any(row[0] for row in read(gaps.double()[None])):
        raise ArgumentError(
            "mask must be False before a sequence's first token alone, but is so after it: pad on the left (padding on "
            "the right needs no mask, as no token sees what follows it)."
        )


def places(length: int, mask: Tensor | None, position: Tensor | None, device: torch.device) -> Tensor:
    """How many tokens are before each, ``(length,)`` or ``(*batch, length)``, ``position`` of them before the first."""
    own = torch.arange(length, device=device) if mask is None else mask.cumsum(-1) - 1
    return own.clamp(min=0) if position is None else own.clamp(min=0) + position[..., None]


def given(state: Any, mask: Tensor | None) -> tuple[Any, ...]:
    """What there is of a state and a mask, to be passed on: a module put in a layer's place needs to know no more."""
    return (state, mask) if mask is not None else () if state is None else (state,)


def blanked(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Tokens ``(*batch, t, width)``, zero where they are padding."""
    return tokens if mask is None else tokens.masked_fill(~mask[..., None], 0)


def gates_without(
    mask: Tensor | None, heads: int, log_forget: Tensor | None, beta: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Gates ``(*batch, heads, t)`` with which padding counts for nothing and nothing is forgotten."""
    if mask is None:
        return log_forget, beta
    real = mask[..., None, :].expand(*mask.shape[:-1], heads, -1)
    forget = None if log_forget is None else torch.where(real, log_forget, 0)
    return forget, real.to(torch.float32) if beta is None else torch.where(real, beta, 0)
