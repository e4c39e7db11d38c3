"""Attention operations as pure functions, a slow reference beside each fast form."""

from mesascope.ops.attention import (
    linear_attention,
    linear_attention_reference,
    softmax_attention,
    softmax_attention_reference,
)

__all__ = ["linear_attention", "linear_attention_reference", "softmax_attention", "softmax_attention_reference"]
