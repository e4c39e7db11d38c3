"""Networks: token layouts, the transformer, and the learner they make."""

from mesascope.nets.embedding import EmbeddedDescent, Embedding
from mesascope.nets.regressor import InContextRegressor
from mesascope.nets.tokens import LAYOUTS, Alternating, Concatenated, Layout
from mesascope.nets.transformer import ATTENTIONS, MLP, Products, Tokens, Transformer, TransformerConfig

__all__ = [
    "ATTENTIONS",
    "LAYOUTS",
    "MLP",
    "Alternating",
    "Concatenated",
    "EmbeddedDescent",
    "Embedding",
    "InContextRegressor",
    "Layout",
    "Products",
    "Tokens",
    "Transformer",
    "TransformerConfig",
]
