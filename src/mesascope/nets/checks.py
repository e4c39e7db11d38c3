"""What networks refuse of the tensors that they are given."""

from __future__ import annotations

from mesascope.errors import refuse
from mesascope.shapes import Tensor

__all__ = ["check_batch", "check_like"]


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
