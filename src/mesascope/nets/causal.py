"""Base class of causal networks: decoding, padding, and optional arguments."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from mesascope.nets.checks import as_sequence, check_state
from mesascope.shapes import Tensor


class CausalNet(nn.Module):
    """A sequence network, called as ``net(sequence, state, mask, last)``, that can decode from a state.

    Arguments are those of `advance`. With a state, it also returns the state after the sequence; without a state, no
    tokens come before the sequence. Subclasses define `init_state`.
    """

    state_type: ClassVar[type] = tuple
    element: ClassVar[str] = "token"
    """Name of a sequence's element in error messages."""
    element_axes: ClassVar[tuple[str, ...]] = ("width",)
    """Axes of one element."""

    def init_state(self, *batch: int) -> Any:
        """Return the state before the first token, for a batch of this shape."""
        raise NotImplementedError

    def step(self, token: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Output for one token ``(*batch, width)``, and the state after it."""
        self._check_state(state)
        batch = state.batch if hasattr(state, "batch") else state[0].batch
        outputs, state = self.advance(as_sequence(self.element, token, batch, self.element_axes), state)
        return outputs.squeeze(-2), state

    def advance(
        self, tokens: Tensor, state: Any, mask: Tensor | None = None, last: int | None = None
    ) -> tuple[Tensor, Any]:
        """Outputs along a sequence (for example a prompt) that continues from ``state``, and the state after it.

        Args:
            tokens: tokens of the sequence, ``(*batch, t, width)``.
            state: state after the previous tokens.
            mask: ``(*batch, t)``, False for padding before a sequence's first token. No token attends to padding, and
                padding does not count in positions. Outputs at padding have no meaning.
            last: number of last tokens to return outputs for, all if None; after a prompt, 1 is enough.
        """
        self._check_state(state)
        return self(tokens, state, mask, last)

    def _check_state(self, state: Any) -> None:
        check_state(state, self.state_type)


def given(*options: Any) -> tuple[Any, ...]:
    """Options without trailing None values, so that a module that replaces a layer need not accept them."""
    while options and options[-1] is None:
        options = options[:-1]
    return options


def positions_of(length: int, mask: Tensor | None, start: Tensor | None, device: torch.device) -> Tensor:
    """Positions of tokens, ``(length,)`` or ``(*batch, length)``, after ``start`` tokens; padding does not count."""
    own = torch.arange(length, device=device) if mask is None else mask.cumsum(-1) - 1
    return own.clamp(min=0) if start is None else own.clamp(min=0) + start[..., None]


def zero_padding(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Tokens ``(*batch, t, width)``, zero at padding."""
    return tokens if mask is None else tokens.masked_fill(~mask[..., None], 0)


def unpadded_gates(
    mask: Tensor | None, heads: int, log_forget: Tensor | None, beta: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Gates ``(*batch, heads, t)`` with strength 0 and no forgetting at padding."""
    if mask is None:
        return log_forget, beta
    real = mask[..., None, :].expand(*mask.shape[:-1], heads, -1)
    forget = None if log_forget is None else torch.where(real, log_forget, 0)
    return forget, real.to(torch.float32) if beta is None else torch.where(real, beta, 0)
