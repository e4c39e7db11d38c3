"""Networks: token layouts, the transformer, and the learner they make."""

from mesascope.nets.regressor import InContextRegressor
from mesascope.nets.tokens import LAYOUTS
from mesascope.nets.transformer import ATTENTIONS, Products, Tokens, Transformer, TransformerConfig

__all__ = [
    "ATTENTIONS",
    "LAYOUTS",
    "InContextRegressor",
    "Products",
    "Tokens",
    "Transformer",
    "TransformerConfig",
]
