"""Networks: token layouts, transformers, and the learners and predictors they make."""

from mesascope.nets.causal_attention import (
    CAUSAL_ATTENTIONS,
    AttentionConfig,
    AttentionState,
    CausalAttention,
    DeltaAttention,
    LinearAttention,
    MesaAttention,
    SoftmaxAttention,
)
from mesascope.nets.causal_transformer import (
    CausalTransformer,
    CausalTransformerConfig,
    PredictorState,
    SequencePredictor,
)
from mesascope.nets.embedding import EmbeddedDescent, Embedding
from mesascope.nets.regressor import InContextRegressor
from mesascope.nets.tokens import LAYOUTS, Alternating, Concatenated, Layout
from mesascope.nets.transformer import ATTENTIONS, MLP, Products, Tokens, Transformer, TransformerConfig

__all__ = [
    "ATTENTIONS",
    "CAUSAL_ATTENTIONS",
    "LAYOUTS",
    "MLP",
    "Alternating",
    "AttentionConfig",
    "AttentionState",
    "CausalAttention",
    "CausalTransformer",
    "CausalTransformerConfig",
    "Concatenated",
    "DeltaAttention",
    "EmbeddedDescent",
    "Embedding",
    "InContextRegressor",
    "Layout",
    "LinearAttention",
    "MesaAttention",
    "PredictorState",
    "Products",
    "SequencePredictor",
    "SoftmaxAttention",
    "Tokens",
    "Transformer",
    "TransformerConfig",
]
