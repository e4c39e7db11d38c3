"""The full transformers of the thesis: raw elements, learned projections, and a first layer of softmax attention."""

from __future__ import annotations

from typing import Any

from mesascope import nets

__all__ = ["LAYERS", "USUAL", "transformer"]

# Attention by layer: all softmax, a hybrid of linear layers, and one of a single mesa layer.
LAYERS = {
    "softmax": ("softmax",) * 7,
    "linear": ("softmax", *["linear"] * 6),
    "mesa": ("softmax", "mesa"),
}
WIDTH, HEADS, KEY = 40, 4, 20
# How they train, but for lengths and rates.
USUAL: dict[str, Any] = {"schedule": "cosine", "optimizer": "adamw", "weight_decay": 0.05, "clip": 1.0}


def transformer(name: str, d: int = 10) -> Any:
    """The config of a network of these layers; its initial weights deviate by 0.05, as in the authors' code.

    The tokens of linear layers are clipped: otherwise they grow with the third power from layer to layer.
    """
    layers, clip = LAYERS[name], 4.0 if name == "linear" else None
    heads = nets.AttentionConfig(WIDTH, HEADS, key_size=KEY, positions=WIDTH, init_scale=0.05**2 * WIDTH * len(layers))
    return nets.SequencePredictorConfig(nets.CausalTransformerConfig(heads, len(layers), layers, token_clip=clip), d)
