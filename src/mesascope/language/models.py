"""Language models from a line that names their layers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from mesascope.errors import refuse, require_choice, require_count, require_instance
from mesascope.nets import AttentionConfig, CausalTransformerConfig, LanguageModelConfig
from mesascope.records import registered

__all__ = ["layered", "named_layers"]

_TIMES = re.compile(r"(.+?)(?:\*(\d+))?")


def named_layers(line: str | Sequence[str]) -> tuple[str, ...]:
    """The attention of each layer.

    >>> named_layers("softmax, linear*3")
    ('softmax', 'linear', 'linear', 'linear')
    """
    names = []
    for part in line.split(",") if isinstance(line, str) else line:
        found = _TIMES.fullmatch(part.strip())
        name, times = found.groups() if found else ("", None)
        require_choice("layers", name.strip(), registered("attention"))
        if times and not int(times):
            refuse("layers", "be there at least once", part.strip(), "leave it out, or write softmax*2, say")
        names += [name.strip()] * int(times or 1)
    return tuple(names)


def layered(
    layers: str | Sequence[str],
    vocabulary: int,
    context: int,
    *,
    width: int = 128,
    n_heads: int = 4,
    mlp: int | None = None,
    positions: str = "learned",
    dpfp: int = 3,
    key_shift: bool = False,
    convolution: int = 0,
    forget: bool = False,
    tied: bool = False,
    dropout: float = 0.0,
) -> LanguageModelConfig:
    """A language model of these layers, each with a layer norm before it, as the thesis has them.

    Layers other than softmax divide keys and queries by their norms, and what each head reads by its own: what a linear
    layer reads would else grow with the tokens that it has read.

    Args:
        layers: names, ``"softmax, mesa"`` or ``"softmax, linear*3"``.
        vocabulary: number of tokens.
        context: tokens that it trains on, and the most that it reads where positions are learned.
        mlp: hidden width of each layer's MLP as a multiple of the width; attention alone if None.
        positions: ``"learned"``, a vector a place; ``"rotary"``, which turns keys and queries of softmax layers; or
            ``"none"``.
        dpfp: nu of the features of keys and queries of all layers but softmax, which has none; 0 for none.
        key_shift: whether keys of the first layer are those of the token before.
        convolution: taps of short convolutions of keys and queries of all layers but softmax; 0 for none.
        forget: whether those layers learn to forget.

    Source: thesis, section 3.5.3.

    >>> config = layered("softmax, mesa", vocabulary=257, context=64, width=32)
    >>> [heads.dpfp for heads in config.transformer.each_heads]
    [0, 3]
    """
    names = named_layers(layers)
    width = require_count("width", width)
    require_choice("positions", positions, ("learned", "rotary", "none"))
    require_instance("key_shift", key_shift, bool)
    if positions == "rotary" and "softmax" not in names:
        refuse("positions", "be learned or none where no layer is softmax", positions, "or have a softmax layer")
    if {*names} == {"softmax"}:
        for name, value in {"convolution": convolution, "forget": forget}.items():
            if value:
                refuse(name, "be left out where all layers are softmax", value, "or have another layer")
    plain = AttentionConfig(width, n_heads, rotary=positions == "rotary")
    other = AttentionConfig(
        width, n_heads, normalise=True, output_norm=True, dpfp=dpfp, convolution=convolution, forget=forget
    )
    heads = [plain if name == "softmax" else other for name in names]
    if key_shift:
        heads[0] = replace(heads[0], key_shift=True)
    transformer = CausalTransformerConfig(tuple(heads), len(names), names, mlp=mlp, layer_norm=True)
    places = "learned" if positions == "learned" else "none"
    return LanguageModelConfig(transformer, vocabulary, context, places, tied, dropout)
