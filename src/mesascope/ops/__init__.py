"""Attention operations as pure functions, a slow reference beside each fast form."""

from mesascope.ops.attention import (
    linear_attention,
    linear_attention_reference,
    softmax_attention,
    softmax_attention_reference,
)
from mesascope.ops.causal_softmax import (
    SoftmaxState,
    causal_softmax_attention,
    causal_softmax_attention_reference,
    dpfp,
)
from mesascope.ops.fast_weights import causal_linear_attention, delta_attention, fast_weights_reference
from mesascope.ops.mesa import MESA_METHODS, MesaInfo, MesaState, mesa_attention, mesa_step

__all__ = [
    "MESA_METHODS",
    "MesaInfo",
    "MesaState",
    "SoftmaxState",
    "causal_linear_attention",
    "causal_softmax_attention",
    "causal_softmax_attention_reference",
    "delta_attention",
    "dpfp",
    "fast_weights_reference",
    "linear_attention",
    "linear_attention_reference",
    "mesa_attention",
    "mesa_step",
    "softmax_attention",
    "softmax_attention_reference",
]
