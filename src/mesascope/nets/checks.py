"""Checks of tensors, masks and states that are passed to networks."""

from __future__ import annotations

from typing import Any

import torch

from mesascope.errors import ArgumentError, ArgumentTypeError, refuse, require_instance
from mesascope.ops.reading import may_read, read
from mesascope.shapes import Tensor
from mesascope.tasks import Context, check_inputs


def check_held(owner: str, weight: Tensor) -> None:
    """Raise if weights are on torch's ``meta`` device, which stores no numbers."""
    if weight.device.type == "meta":
        refuse(owner, "be on a device that holds numbers", "meta", "build it anew, or load its weights first")


def check_like(argument: str, tensor: Tensor, owner: str, weight: Tensor) -> None:
    """Raise if a tensor and the weights of ``owner`` differ in dtype or device; the message names the conversion.

    Under `torch.autocast`, which converts tensors itself, dtypes other than float64 may differ.
    """
    check_held(owner, weight)
    if tensor.device != weight.device:
        remedy = f"move {argument} by .to({str(weight.device)!r}), or {owner} by .to({str(tensor.device)!r})"
        refuse(argument, f"be on the device of {owner}, {str(weight.device)!r}", str(tensor.device), remedy)
    if tensor.dtype == weight.dtype:
        return
    if torch.float64 in (tensor.dtype, weight.dtype) or not torch.is_autocast_enabled(tensor.device.type):
        remedy = f"convert {argument} by .to({weight.dtype}), or {owner} by .to({tensor.dtype})"
        refuse(argument, f"have the dtype of {owner}, {weight.dtype}", tensor.dtype, remedy)


def check_batch(own: tuple[int, ...], tokens: Tensor) -> None:
    """Raise if a state and the tokens have different batch shapes."""
    if tuple(own) != tuple(tokens.shape[:-2]):
        refuse("state", f"be of batch {tuple(tokens.shape[:-2])}", tuple(own), "begin with init_state(*batch)")


def check_tokens(argument: str, tokens: Tensor, width: int, weight: Tensor, field: str) -> None:
    """Raise unless tokens are ``(*batch, t, width)``, with the dtype and device of the weights.

    ``field`` is the name of the config field with the width.
    """
    require_instance(argument, tokens, Tensor)
    if not tokens.is_floating_point():
        raise ArgumentTypeError(
            f"{argument} must be of a floating-point dtype, but is {tokens.dtype}: embed tokens first, with "
            "torch.nn.Embedding say, or convert numbers with .float()."
        )
    if tokens.ndim < 2 or tokens.shape[-1] != width:
        remedy = "add the missing axes" if tokens.ndim < 2 else f"set {field} to {tokens.shape[-1]}, or fix the tokens"
        refuse(argument, f"have shape (*batch, t, {width})", tuple(tokens.shape), remedy)
    check_like(argument, tokens, "the network", weight)


def check_finite(tokens: Tensor, reader: str) -> None:
    """Raise unless all tokens are finite, as ``reader`` requires. Waits for the accelerator."""
    members = read((~torch.isfinite(tokens)).double().sum()[None])
    bad = int(sum(row[0] for row in members))
    if bad:
        raise ArgumentError(
            f"tokens must be finite where {reader} reads them, but {bad} of {len(members) * tokens.numel()} numbers "
            "are not: check the network's input, or look for an overflow in an earlier layer."
        )


def check_context(context: Context, xq: Tensor, d_out: int, weight: Tensor) -> None:
    """Raise if context and queries are inconsistent, or do not fit a network with targets of width ``d_out``."""
    check_inputs(context, xq)
    check_like("context and xq", xq, "the network", weight)
    if context.y.shape[-1] != d_out:
        refuse("context.y", f"have width {d_out}", context.y.shape[-1], "build the net with this d_out")


def check_width(tokens: Tensor, owner: str, width: int, field: str) -> None:
    """Raise if a layout's tokens do not have the width of ``owner``, which the config field ``field`` sets."""
    if tokens.shape[-1] != width:
        remedy = f"set {field} to the layout's width(d_in, d_out)"
        refuse("context", f"give tokens of the {owner}'s width {width}", tokens.shape[-1], remedy)


def as_sequence(argument: str, token: Tensor, batch: tuple[int, ...], axes: tuple[str, ...] = ("width",)) -> Tensor:
    """A token ``(*batch, *axes)`` as a sequence ``(*batch, 1, *axes)``."""
    require_instance(argument, token, Tensor)
    if token.ndim != len(batch) + len(axes):
        more = token.ndim > len(batch) + len(axes) - 1
        remedy = "drop the axis of time, or pass a sequence to advance" if more else "add the missing axes"
        rule = f"have shape ({', '.join(('*batch', *axes))}) for a state of batch {tuple(batch)}"
        refuse(argument, rule, tuple(token.shape), remedy)
    return token.unsqueeze(len(batch))


def check_state(state: Any, kind: type) -> None:
    """Raise unless a state is of this kind."""
    require_instance("state", state, kind, "begin with init_state(*batch)")


def check_mask(mask: Tensor | None, tokens: Tensor, position: Tensor | None = None, *, gaps: bool = False) -> None:
    """Raise unless a mask is a boolean tensor ``(*batch, t)`` on the tokens' device.

    With ``gaps``, also raise if it is False after a sequence's first token; ``position`` tokens came before. This check
    reads a value from the device; `mesascope.ops.without_reading_values` skips it on accelerators.
    """
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
    if not gaps or not mask.numel() or torch.compiler.is_compiling() or not may_read(mask.device):
        return
    found = (mask[..., :-1] & ~mask[..., 1:]).any()
    if position is not None:
        found = found | ((position > 0) & ~mask[..., 0]).any()
    if any(row[0] for row in read(found.double()[None])):
        raise ArgumentError(
            "mask must be False only before a sequence's first token, but is False after it: pad on "
            "the left (padding on the right needs no mask if the state is not used)."
        )


def check_start(w0: Tensor | None, shape: tuple[int, int], name: str) -> None:
    """Raise unless initial weights are finite numbers of this shape; ``name`` describes the shape."""
    if w0 is None:
        return
    require_instance("w0", w0, Tensor)
    if tuple(w0.shape) != shape:
        refuse("w0", f"have shape {shape}", tuple(w0.shape), f"match it to {name}")
    if not w0.is_floating_point() or not bool(torch.isfinite(w0).all()):
        refuse("w0", "hold finite floating-point numbers", w0.tolist(), "pass finite numbers, or leave w0 out")
