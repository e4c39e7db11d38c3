"""What a causal attention layer of any kind is built from."""

from __future__ import annotations

from mesascope.errors import refuse, require_choice, require_count, require_instance, require_number
from mesascope.nets.layers import check_heads, key_size_of
from mesascope.ops import MESA_RIDGES
from mesascope.validate import frozen

__all__ = ["AttentionConfig"]


@frozen
class AttentionConfig:
    """The heads of a causal attention layer, of whatever kind.

    Args:
        width: of a token.
        n_heads: number of heads.
        n_kv_heads: keys, values, gates and memories, each shared by ``n_heads / n_kv_heads`` heads of queries, as in
            grouped-query attention: decoding keeps less, and computes as much. ``n_heads`` if None.
        key_size: of keys and queries of a head; ``width / n_heads`` if None.
        value_size: of values of a head; ``key_size`` if None.
        normalise: divide keys and queries by their L2 norm. If None, the mesa and delta layers do, the others do not.
            Softmax attention then scales scores by the root of their width, at which those of random vectors have
            variance 1.
        dpfp: nu of the DPFP features of keys and queries, 2 nu key_size of them; 0 for none.
        convolution: taps of a causal convolution over time of each entry of keys and queries, followed by SiLU; 0 for
            none.
        convolve_values: whether values pass through such a convolution, too.
        key_shift: whether keys are made of the token before, the first one's being zero: what a layer that copies
            would make, by hand.
        rotary: whether keys and queries are turned by angles that grow with time, pair by pair of their entries, so
            that scores depend on how far apart tokens are; features are made of what is turned.
        positions: width of the sinusoidal position that keys and queries read beside the token; 0 for none.
        window: last tokens that softmax attention sees, which bounds its memory in decoding; all if None. Other kinds
            take no notice of it, as no kind but mesa does of the ridge.
        forget: whether forget factors sigmoid(w . e + b) are learned, a head and token. They start near
            1 - 1/horizon, with horizons of 10 to 1000 tokens over the heads.
        beta: whether input strengths sigmoid(w . e + b) are learned, a head and token; where both are, forget factors
            are multiplied by 1 - (1 - forget_cap) beta^2. If None, the delta layer's are, its step sizes.
        forget_cap: bound of the forget factor of a pair that counts fully; 1 for none. The default is MesaNet's.
        ridge: 1/lambda at the start, of mesa layers.
        ridge_floor: lower bound of the learned ridge.
        ridge_per_dimension: learn one ridge a key dimension, as MesaNet does, in place of one a head.
        ridge_kind: ``"decaying"``, as in the thesis, ``"constant"``, as in MesaNet, or ``"relative"`` to |H_t|, as in
            Gated KalmaNet. If None, it decays where ``forget`` is not learned and is constant where it is: a ridge that
            is forgotten leaves H singular after hundreds of tokens that hardly vary, as in text.
        output_norm: normalise each head's output by its root mean square, with a learned scale.
        output_gate: multiply it by SiLU(w . e), entry by entry.
        check: whether the values that operations meet are looked at, for which a GPU has to be waited for: see the
            argument of that name of `mesascope.ops.mesa_attention`. Without it a CUDA graph may be captured.
        init_scale: initial weights are normal with variance init_scale / n_layers / fan-in, cut at two deviations;
            a layer by itself is one of one.

    Source: thesis, sections 3.4, 3.5.3 and 3.7.1; MesaNet (von Oswald et al. 2025); rotary positions: Su et al. (2021).
    """

    width: int
    n_heads: int = 1
    n_kv_heads: int | None = None
    key_size: int | None = None
    value_size: int | None = None
    normalise: bool | None = None
    dpfp: int = 0
    convolution: int = 0
    convolve_values: bool = False
    key_shift: bool = False
    rotary: bool = False
    positions: int = 0
    window: int | None = None
    forget: bool = False
    beta: bool | None = None
    forget_cap: float = 0.9975
    ridge: float = 1.0
    ridge_floor: float = 1e-3
    ridge_per_dimension: bool = False
    ridge_kind: str | None = None
    output_norm: bool = False
    output_gate: bool = False
    check: bool = True
    init_scale: float = 1.0

    def __post_init__(self) -> None:
        check_heads(self)
        for name in ("value_size", "window"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name))
        for name in ("dpfp", "convolution", "positions"):
            require_count(name, getattr(self, name), least=0)
        if self.n_kv_heads is not None:
            require_count("n_kv_heads", self.n_kv_heads)
            if self.n_heads % self.n_kv_heads:
                refuse("n_kv_heads", f"divide n_heads = {self.n_heads}", self.n_kv_heads, "pass a divisor")
        for name in (
            "convolve_values",
            "key_shift",
            "rotary",
            "forget",
            "ridge_per_dimension",
            "output_norm",
            "output_gate",
            "check",
        ):
            require_instance(name, getattr(self, name), bool)
        for name in ("normalise", "beta"):
            if getattr(self, name) is not None:
                require_instance(name, getattr(self, name), bool)
        if self.ridge_kind is not None:
            require_choice("ridge_kind", self.ridge_kind, MESA_RIDGES)
        require_number("forget_cap", self.forget_cap, above=0, most=1)
        require_number("ridge_floor", self.ridge_floor, above=0)
        require_number("ridge", self.ridge)
        if self.ridge <= self.ridge_floor:
            refuse(
                "ridge", f"be greater than ridge_floor = {self.ridge_floor:g}", self.ridge, "raise it, or lower that"
            )
        key = key_size_of(self)
        if self.key_shift and self.convolution:
            refuse("convolution", "be 0 where keys are shifted", self.convolution, "leave one of them out")
        if self.rotary and key % 2:
            refuse("key_size", "be even for rotary positions", key, "pass an even one")
        if self.dpfp >= 2 * key or (self.dpfp and key == 1):
            refuse("dpfp", f"be less than {2 * key if key > 1 else 1} for key_size {key}", self.dpfp, "widen the keys")

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Sizes of a head's keys, values and the features of its keys."""
        key = key_size_of(self)
        return key, self.value_size or key, 2 * self.dpfp * key if self.dpfp else key

    @property
    def kv_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.n_kv_heads or self.n_heads

    @property
    def group(self) -> int:
        """Heads of queries that share one head of keys and values."""
        return self.n_heads // self.kv_heads
