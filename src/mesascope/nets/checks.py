"""What networks refuse of the tensors that they are given."""

from __future__ import annotations

import torch

from mesascope.errors import refuse, require_instance
from mesascope.shapes import Tensor

__all__ = ["check_batch", "check_like", "check_start", "check_tokens"]


def check_like(argument: str, tensor: Tensor, owner: str, weight: Tensor) -> None:
    """Refuse a tensor whose dtype or device is not that of the weights of ``owner``, and say what to convert."""
    if tensor.dtype != weight.dtype:
        remedy = f"convert {argument} by .to({weight.dtype}), or {owner} by .to({tensor.dtype})"
        refuse(argument, f"have the dtype of {owner}, {weight.dtype}", tensor.dtype, remedy)
    if tensor.device != weight.device:
        remedy = f"move {argument} by .to({str(weight.device)!r}), or {owner} by .to({str(tensor.device)!r})"
        refuse(argument, f"be on the device of {owner}, {str(weight.device)!r}", str(tensor.device), remedy)


def check_batch(own: tuple[int, ...], tokens: Tensor) -> None:
    """Refuse a state of another batch than that of the tokens."""
    if tuple(own) != tuple(tokens.shape[:-2]):
        refuse("state", f"be of batch {tuple(tokens.shape[:-2])}", tuple(own), "begin with init_state(*batch)")


def check_tokens(argument: str, tokens: Tensor, width: int, weight: Tensor) -> None:
    """Refuse what is no ``(*batch, t, width)`` of the dtype and on the device of the weights."""
    require_instance(argument, tokens, Tensor)
    if tokens.ndim < 2 or tokens.shape[-1] != width:
        refuse(argument, f"have shape (*batch, t, {width})", tuple(tokens.shape), "match the config's width")
    check_like(argument, tokens, "the network", weight)


def check_start(w0: Tensor | None, shape: tuple[int, int], name: str) -> None:
    """Refuse initial weights that are no finite numbers of this shape, which ``name`` puts into words."""
    if w0 is None:
        return
    require_instance("w0", w0, Tensor)
    if tuple(w0.shape) != shape:
        refuse("w0", f"have shape {shape}", tuple(w0.shape), f"match it to {name}")
    if not w0.is_floating_point() or not bool(torch.isfinite(w0).all()):
        refuse("w0", "hold finite floating-point numbers", w0.tolist(), "pass others, or leave it out")
