"""Packed rows of tokens: document starts, and conversion to a batch with one document per row."""

from __future__ import annotations

from typing import Any

import torch

from mesascope.errors import refuse
from mesascope.shapes import Float, Int, Tensor


class Packed:
    """Conversion between rows with several documents and a batch with one document per row, padded at the end.

    Args:
        starts: True for the first token of each document.
        real: False for padding.

    >>> rows = Packed(torch.tensor([[True, False, True]]), torch.ones(1, 3, dtype=torch.bool))
    >>> rows.parted(torch.tensor([[7, 8, 9]]))
    tensor([[7, 8],
            [9, 0]])
    """

    def __init__(self, starts: Tensor, real: Tensor) -> None:
        self.shape, self.places = real.shape, real.flatten().nonzero()[:, 0]
        lengths = torch.bincount(starts.flatten()[self.places].cumsum(0) - 1)
        self.filled = torch.arange(int(lengths.max()), device=real.device) < lengths[:, None]

    def parted(self, tokens: Int[Tensor, "batch t"], padding: int = 0) -> Int[Tensor, "documents longest"]:
        """Arrange the tokens with one document per row."""
        found = tokens.new_full(self.filled.shape, padding)
        found[self.filled] = tokens.flatten()[self.places]
        return found

    def joined(self, values: Float[Tensor, "documents longest d"]) -> Float[Tensor, "batch t d"]:
        """Move values of tokens back to the packed rows, with 0 at padding."""
        found = values.new_zeros(self.shape[0] * self.shape[1], values.shape[-1])
        return found.index_copy(0, self.places, values[self.filled]).unflatten(0, self.shape)


def document_starts(
    real: Tensor, before: Int[Tensor, " batch"] | None = None, position_ids: Tensor | None = None,
    seq_idx: Tensor | None = None, **cu_seq_lens: Tensor | None,
) -> Tensor:  # fmt: skip
    """Mask of the first token of each document; see `MesascopeForCausalLM.forward`.

    Args:
        real: False for padding.
        before: number of earlier tokens of the document that each row continues; 0 if None.

    Raises:
        ArgumentError: arguments disagree, or positions do not start from 0 in each document.
    """
    first = real & (real.cumsum(-1) == 1)
    if before is not None:
        first = first & (before == 0)[:, None]
    known: dict[str, Tensor] = {}
    if position_ids is not None:
        position_ids = _like("position_ids", position_ids, real)
        known["position_ids"] = real & (position_ids == 0)
    if seq_idx is not None:
        seq_idx = _like("seq_idx", seq_idx, real)
        known["seq_idx"] = real & (first | (seq_idx != seq_idx.roll(1, -1)))
        known["seq_idx"][:, 0] = first[:, 0]
    for name, ends in cu_seq_lens.items():
        if ends is not None:
            known[name] = real & (first | _begun(name, ends, real))
    starts = next(iter(known.values()), first)
    for name, other in known.items():
        if not torch.equal(other, starts):
            found = other.flatten().nonzero()[:, 0].tolist()
            refuse(name, f"begin documents where {next(iter(known))} does", found, "pass one of them")
    if position_ids is not None:
        _check_positions(position_ids, starts, real, before)
    return starts


def padding_mask(mask: Any, *widths: int) -> Tensor | None:
    """Check that a mask has one of these widths and no gaps, and convert it to booleans."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        given = tuple(mask.shape) if isinstance(mask, Tensor) else mask
        refuse("attention_mask", "have shape (batch, t)", given, "pass the tokenizer's own")
    if mask.shape[-1] not in widths:
        rule = f"have {' or '.join(str(width) for width in dict.fromkeys(widths))} tokens"
        refuse("attention_mask", rule, mask.shape[-1], "pass the tokenizer's own")
    real = mask.bool()
    if not torch.equal(real.to(mask.dtype), mask):
        remedy = "pass document numbers as seq_idx, or the tokenizer's own mask"
        refuse("attention_mask", "hold only 0 and 1", mask[real.to(mask.dtype) != mask][0].item(), remedy)
    gaps = (real[:, 1:] & ~real[:, :-1]).sum(-1) + real[:, 0]
    if bool((gaps > 1).any()):
        row = real[gaps > 1][0].int().tolist()
        refuse("attention_mask", "be 1 for consecutive tokens", row, "pad on the left")
    return real


def _begun(name: str, ends: Tensor, real: Tensor) -> Tensor:
    right = ends.ndim == 1 and len(ends) and int(ends[0]) == 0 and int(ends[-1]) == real.numel()
    if not right or bool((ends.diff() < 0).any()):
        refuse(name, f"rise from 0 to {real.numel()}, the number of tokens", ends.tolist(), "pass the collator's own")
    begun = torch.zeros(real.numel() + 1, dtype=torch.bool, device=real.device)
    begun[ends.long()] = True
    return begun[:-1].view_as(real)


def _check_positions(positions: Tensor, starts: Tensor, real: Tensor, before: Tensor | None) -> None:
    own = real.cumsum(-1) - 1
    since = own.where(starts, -1).cummax(-1).values
    expected = own + (0 if before is None else before[:, None])
    expected = torch.where(since < 0, expected, own - since)
    bad = real & (positions != expected)
    if bool(bad.any()):
        row = int(bad.any(-1).nonzero()[0])
        remedy = "leave them out, or number the tokens of each document anew"
        refuse("position_ids", "count the tokens of each document from 0", positions[row][real[row]].tolist(), remedy)


def _like(name: str, numbers: Any, real: Tensor) -> Tensor:
    """Expand one number per token to ``(batch, t)``; a single row is broadcast."""
    if not isinstance(numbers, Tensor) or numbers.shape not in (real.shape, (1, real.shape[1]), real.shape[1:]):
        given = tuple(numbers.shape) if isinstance(numbers, Tensor) else numbers
        refuse(name, f"have shape {tuple(real.shape)}", given, "pass one number per token")
    return numbers.to(real.device).expand(real.shape)
