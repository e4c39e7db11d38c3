"""Attention operations as pure functions, a slow reference beside each fast form."""

from mesascope.ops.attention import (
    linear_attention,
    linear_attention_reference,
    softmax_attention,
    softmax_attention_reference,
)
from mesascope.ops.mesa import MESA_METHODS, MesaState, mesa_attention, mesa_step

__all__ = [
    "MESA_METHODS",
    "MesaState",
    "linear_attention",
    "linear_attention_reference",
    "mesa_attention",
    "mesa_step",
    "softmax_attention",
    "softmax_attention_reference",
]
