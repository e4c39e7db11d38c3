"""Configs of language models from a line such as "softmax, mesa"."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mesascope.errors import refuse, require_choice, require_count, require_instance
from mesascope.nets import AttentionConfig, CausalTransformerConfig, LanguageModelConfig
from mesascope.records import registered

_TIMES = re.compile(r"(.+?)(?:\*(\d+))?")


def named_layers(line: str | Sequence[str]) -> tuple[str, ...]:
    """Parse a line of layer types into one type per layer.

    >>> named_layers("softmax, linear*3")
    ('softmax', 'linear', 'linear', 'linear')
    """
    names = []
    for part in line.split(",") if isinstance(line, str) else line:
        found = _TIMES.fullmatch(part.strip())
        name, times = found.groups() if found else ("", None)
        require_choice("layers", name.strip(), registered("attention"))
        if times and not int(times):
            refuse("layers", "occur at least once", part.strip(), "leave it out, or write softmax*2, say")
        names += [name.strip()] * int(times or 1)
    return tuple(names)


def language_model_config(
    layers: str | Sequence[str], vocabulary: int, context: int, *, width: int = 128, n_heads: int = 4,
    mlp: int | None = None, positions: str = "learned", dpfp: int = 3, key_shift: bool = False, convolution: int = 0,
    forget: bool = False, tied: bool = False, dropout: float = 0.0,
) -> LanguageModelConfig:  # fmt: skip
    """Config of a language model with these layers and pre-layer norms.

    Layers other than softmax normalise keys, queries and head outputs, as linear layers' outputs grow with the context.

    Args:
        vocabulary: number of tokens.
        context: number of tokens in a training window; with learned positions also the maximum length of a text.

    Other arguments: see `LanguageTraining`, which has other defaults.

    Source: von Oswald (2024), section 3.5.3.

    >>> config = language_model_config("softmax, mesa", vocabulary=257, context=64, width=32)
    >>> [heads.dpfp for heads in config.transformer.each_heads]
    [0, 3]
    """
    names = named_layers(layers)
    width, n_heads = require_count("width", width), require_count("n_heads", n_heads)
    require_choice("positions", positions, ("learned", "rotary", "none"))
    require_instance("key_shift", key_shift, bool)
    _check_kinds(names, positions, {"convolution": convolution, "forget": forget})
    _check_widths(names, width, n_heads, positions, dpfp)
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


def _check_kinds(names: tuple[str, ...], positions: str, of_others: Mapping[str, Any]) -> None:
    """Raise if a setting applies to none of the layers."""
    if positions == "rotary" and "softmax" not in names:
        refuse("positions", "be learned or none where no layer is softmax", positions, "or add a softmax layer")
    if {*names} == {"softmax"}:
        for name, value in of_others.items():
            if value:
                refuse(name, "be left out where all layers are softmax", value, "or add another layer type")


def _check_widths(names: tuple[str, ...], width: int, n_heads: int, positions: str, dpfp: int) -> None:
    head, parts = width // n_heads, 2 * n_heads if positions == "rotary" else n_heads
    if width % parts:
        kind = " for rotary positions" if positions == "rotary" else ""
        rule = f"be a multiple of {parts} as n_heads is {n_heads}{kind}"
        refuse("width", rule, width, f"pass {max(width - width % parts, parts)}, say, or another n_heads")
    if dpfp and {*names} != {"softmax"} and dpfp >= (most := 2 * head if head > 1 else 1):
        refuse("dpfp", f"be less than {most} for heads of width {head}", dpfp, "lower it")
