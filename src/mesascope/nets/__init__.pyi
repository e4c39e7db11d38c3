from .attention_config import AttentionConfig as AttentionConfig
from .causal_attention import CausalAttention as CausalAttention
from .causal_layers import (
    DeltaAttention as DeltaAttention,
    LinearAttention as LinearAttention,
    MesaAttention as MesaAttention,
    SoftmaxAttention as SoftmaxAttention,
)
from .causal_transformer import (
    CausalTransformer as CausalTransformer,
    CausalTransformerConfig as CausalTransformerConfig,
)
from .embedding import (
    EmbeddedDescent as EmbeddedDescent,
    EmbeddedDescentConfig as EmbeddedDescentConfig,
    Embedding as Embedding,
    EmbeddingConfig as EmbeddingConfig,
)
from .language_model import LanguageModel as LanguageModel, LanguageModelConfig as LanguageModelConfig
from .layers import Products as Products, TokenMLP as TokenMLP, set_products as set_products
from .multiples import BlockMultiples as BlockMultiples, BlockMultiplesConfig as BlockMultiplesConfig
from .points import HookedModule as HookedModule, HookPoint as HookPoint
from .predictor import SequencePredictor as SequencePredictor, SequencePredictorConfig as SequencePredictorConfig
from .pretrained import Pretrained as Pretrained
from .prompted import Prompted as Prompted, PromptedConfig as PromptedConfig
from .regressor import InContextRegressor as InContextRegressor, InContextRegressorConfig as InContextRegressorConfig
from .states import (
    AttentionState as AttentionState,
    PredictorState as PredictorState,
    load_state as load_state,
    save_state as save_state,
    select_state as select_state,
)
from .tokens import Alternating as Alternating, Concatenated as Concatenated, Layout as Layout, WithQuery as WithQuery
from .transformer import Tokens as Tokens, Transformer as Transformer, TransformerConfig as TransformerConfig
from .vision import (
    MLP as MLP,
    ClassifierConfig as ClassifierConfig,
    ConvNet4 as ConvNet4,
    MLPConfig as MLPConfig,
    ResNet12 as ResNet12,
)
