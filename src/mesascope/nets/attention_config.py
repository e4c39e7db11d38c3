"""Config of causal attention layers."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from mesascope.errors import refuse
from mesascope.nets.layers import key_size_of
from mesascope.validate import Count, Positive, Whole, frozen


@frozen
class AttentionConfig:
    """Config of the heads of a causal attention layer of any kind.

    Args:
        width: width of a token.
        n_heads: number of heads.
        n_kv_heads: number of heads of keys, values, gates and memories; each is shared by ``n_heads / n_kv_heads``
            query heads, as in grouped-query attention. States are smaller, at the same cost. ``n_heads`` if None.
        key_size: width of keys and queries in a head; ``width / n_heads`` if None.
        value_size: width of values in a head; ``key_size`` if None.
        normalise: divide keys and queries by their L2 norm; if None, only mesa and delta layers do so. With normalised
            keys, softmax attention multiplies scores by the square root of the key width: for random vectors, they then
            have variance 1.
        dpfp: nu of `mesascope.ops.dpfp`, which maps keys and queries to 2 nu key_size features; 0 for no DPFP.
        convolution: kernel size of a causal depthwise convolution of keys and queries over time, followed by SiLU; 0
            for no convolution.
        key_shift: compute each key from the previous token (the first key is zero). A layer can then copy the token
            that followed a similar one.
        rotary: rotate pairs of entries of keys and queries by angles that grow with time, so that scores depend on the
            distance between tokens. DPFP features are computed from the rotated vectors.
        positions: width of a sinusoidal position encoding that is appended to the input of keys and queries; 0 for
            none.
        window: number of last tokens that softmax attention attends to; all if None. It bounds the memory of decoding.
            Other layers ignore it.
        forget: learn forget factors sigmoid(w . e + b) of each head and token e. They start at 1 - 1/horizon, with
            horizons from 10 tokens (first head) to 1000 (last head).
        beta: learn input strengths sigmoid(w . e + b) of each head and token e. If ``forget`` is set, forget factors
            are multiplied by 1 - (1 - forget_cap) beta^2. If None, only the delta layer learns them, as its step sizes.
        forget_cap: upper bound on the forget factor of a pair of strength 1; 1 for no bound. The default is MesaNet's.
        ridge: initial 1/lambda of mesa layers; other layers ignore all ridge fields.
        ridge_floor: lower bound of the learned ridge.
        ridge_per_dimension: learn one ridge for each key dimension, as in MesaNet, instead of one for each head.
        ridge_kind: ``"decaying"`` (von Oswald 2024), ``"constant"`` (MesaNet) or ``"relative"`` to |H_t| (Gated
            KalmaNet). If None, constant with ``forget``, otherwise decaying. Forgetting shrinks a decaying ridge: H
            becomes singular after hundreds of similar tokens, as in text.
        output_norm: divide each head's output by its root mean square, and multiply by a learned scale.
        output_gate: multiply each entry of a head's output at token e by SiLU(w . e).
        init_scale: initial weights, except of gates and convolution, are normal with variance init_scale / n_layers /
            fan-in, truncated at two standard deviations; n_layers is 1 for a single layer.

    Source: von Oswald (2024), sections 3.4, 3.5.3 and 3.7.1; MesaNet (von Oswald et al. 2025); RoPE: Su et al. (2021).
    """

    retired: ClassVar[tuple[str, ...]] = ("check", "convolve_values")
    """Ignored fields in records of earlier versions; `mesascope.ops.without_reading_values` replaces ``check``."""

    width: Count
    n_heads: Count = 1
    n_kv_heads: Count | None = None
    key_size: Count | None = None
    value_size: Count | None = None
    normalise: bool | None = None
    dpfp: Whole = 0
    convolution: Whole = 0
    key_shift: bool = False
    rotary: bool = False
    positions: Whole = 0
    window: Count | None = None
    forget: bool = False
    beta: bool | None = None
    forget_cap: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9975
    ridge: float = 1.0
    ridge_floor: Positive = 1e-3
    ridge_per_dimension: bool = False
    ridge_kind: Literal["decaying", "constant", "relative"] | None = None
    output_norm: bool = False
    output_gate: bool = False
    init_scale: Positive = 1.0

    def __post_init__(self) -> None:
        key = key_size_of(self)
        if self.n_heads % self.kv_heads:
            refuse("n_kv_heads", f"divide n_heads = {self.n_heads}", self.n_kv_heads, "pass a divisor")
        if self.ridge <= self.ridge_floor:
            rule = f"be greater than ridge_floor = {self.ridge_floor:g}"
            refuse("ridge", rule, self.ridge, "raise ridge, or lower ridge_floor")
        if self.key_shift and self.convolution:
            refuse("convolution", "be 0 where keys are shifted", self.convolution, "leave one of them out")
        if self.rotary and key % 2:
            refuse("key_size", "be even for rotary positions", key, "pass an even one")
        if self.dpfp >= 2 * key or (self.dpfp and key == 1):
            refuse("dpfp", f"be less than {2 * key if key > 1 else 1} for key_size {key}", self.dpfp, "widen the keys")

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Widths of a head's keys, values and key features."""
        key = key_size_of(self)
        return key, self.value_size or key, 2 * self.dpfp * key if self.dpfp else key

    @property
    def kv_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.n_kv_heads or self.n_heads

    @property
    def group(self) -> int:
        """Number of query heads that share one head of keys and values."""
        return self.n_heads // self.kv_heads
