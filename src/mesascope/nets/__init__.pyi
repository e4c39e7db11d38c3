from .causal_attention import (
    CAUSAL_ATTENTIONS as CAUSAL_ATTENTIONS,
    AttentionConfig as AttentionConfig,
    AttentionState as AttentionState,
    CausalAttention as CausalAttention,
    DeltaAttention as DeltaAttention,
    LinearAttention as LinearAttention,
    MesaAttention as MesaAttention,
    SoftmaxAttention as SoftmaxAttention,
)
from .causal_transformer import (
    CausalTransformer as CausalTransformer,
    CausalTransformerConfig as CausalTransformerConfig,
    PredictorState as PredictorState,
    SequencePredictor as SequencePredictor,
)
from .embedding import EmbeddedDescent as EmbeddedDescent, Embedding as Embedding
from .regressor import InContextRegressor as InContextRegressor
from .tokens import LAYOUTS as LAYOUTS, Alternating as Alternating, Concatenated as Concatenated, Layout as Layout
from .transformer import (
    ATTENTIONS as ATTENTIONS,
    MLP as MLP,
    Products as Products,
    Tokens as Tokens,
    Transformer as Transformer,
    TransformerConfig as TransformerConfig,
)
