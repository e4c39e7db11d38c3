"""Checks of the tensors, masks and states that networks are given."""

from __future__ import annotations

from typing import Any

import torch

from mesascope.errors import ArgumentError, ArgumentTypeError, refuse, require_instance
from mesascope.ops.reading import may_read, read
from mesascope.shapes import Tensor
from mesascope.tasks import Context, check_inputs


def check_held(owner: str, weight: Tensor) -> None:
    """Refuse weights that hold no numbers: torch's ``meta`` device computes shapes alone."""
    if weight.device.type == "meta":
        refuse(owner, "be on a device that holds numbers", "meta", "build it anew, or load its weights first")


def check_like(argument: str, tensor: Tensor, owner: str, weight: Tensor) -> None:
    """Refuse a tensor whose dtype or device is not that of the weights of ``owner``, and say what to convert.

    Under `torch.autocast` dtypes may differ, as it converts them where they meet; all but float64.
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
    """Refuse a state of another batch than that of the tokens."""
    if tuple(own) != tuple(tokens.shape[:-2]):
        refuse("state", f"be of batch {tuple(tokens.shape[:-2])}", tuple(own), "begin with init_state(*batch)")


def check_tokens(argument: str, tokens: Tensor, width: int, weight: Tensor, field: str) -> None:
    """Refuse all but ``(*batch, t, width)`` of the dtype and on the device of the weights.

    ``field`` of a config has the width.
    """
    require_instance(argument, tokens, Tensor)
    if not tokens.is_floating_point():
        raise ArgumentTypeError(
            f"{argument} must be of a floating-point dtype, but is {tokens.dtype}: embed tokens first, with "
            "torch.nn.Embedding say, or convert numbers with .float()."
        )
    if tokens.ndim < 2:
        refuse(argument, f"have shape (*batch, t, {width})", tuple(tokens.shape), "add the missing axes")
    if tokens.shape[-1] != width:
        remedy = f"set {field} to {tokens.shape[-1]}, or pass others"
        refuse(argument, f"have shape (*batch, t, {width})", tuple(tokens.shape), remedy)
    check_like(argument, tokens, "the network", weight)


def check_finite(tokens: Tensor, reader: str) -> None:
    """Refuse tokens that are not finite, which ``reader`` cannot read. Costs a pass over them."""
    members = read((~torch.isfinite(tokens)).double().sum()[None])
    bad = int(sum(row[0] for row in members))
    if bad:
        raise ArgumentError(
            f"tokens must be finite where {reader} reads them, but {bad} of {len(members) * tokens.numel()} numbers "
            "are not: mend what the network is given, or look for an overflow in a layer before."
        )


def check_context(context: Context, xq: Tensor, d_out: int, weight: Tensor) -> None:
    """Refuse a context and queries that disagree with each other, or with a network of targets of width ``d_out``."""
    check_inputs(context, xq)
    check_like("context and xq", xq, "the network", weight)
    if context.y.shape[-1] != d_out:
        refuse("context.y", f"have width {d_out}", context.y.shape[-1], "build the net with this d_out")


def check_width(tokens: Tensor, owner: str, width: int, field: str) -> None:
    """Refuse tokens that a layout made of another width than ``owner`` was built for, by ``field``."""
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
    """Refuse all but a state of this kind."""
    require_instance("state", state, kind, "begin with init_state(*batch)")


def check_mask(mask: Tensor | None, tokens: Tensor, position: Tensor | None = None, *, gaps: bool = False) -> None:
    """Refuse all but a mask ``(*batch, t)`` of booleans on the tokens' device.

    With ``gaps``, one that is False after a sequence's first token is refused, too, ``position`` tokens of which came
    before. That reads a number off the device, and is left out where `mesascope.ops.without_reading_values` says so.
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
            "mask must be False before a sequence's first token alone, but is so after it: pad on the left (padding on "
            "the right needs no mask, as no token sees what follows it)."
        )


def check_start(w0: Tensor | None, shape: tuple[int, int], name: str) -> None:
    """Refuse initial weights that are not finite numbers of this shape; ``name`` describes the shape."""
    if w0 is None:
        return
    require_instance("w0", w0, Tensor)
    if tuple(w0.shape) != shape:
        refuse("w0", f"have shape {shape}", tuple(w0.shape), f"match it to {name}")
    if not w0.is_floating_point() or not bool(torch.isfinite(w0).all()):
        refuse("w0", "hold finite floating-point numbers", w0.tolist(), "pass others, or leave it out")
