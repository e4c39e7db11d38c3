"""The MesaNet layer of flash-linear-attention (fla): a function with the same arguments, and a weight converter."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import functional

from mesascope.errors import ArgumentError, require_count, require_instance, require_number
from mesascope.nets import AttentionConfig, MesaAttention
from mesascope.ops import FixedRidgeState, mesa_attention
from mesascope.shapes import Float, Tensor


def chunk_mesa_net(
    q: Float[Tensor, "batch t heads dk"], k: Float[Tensor, "batch t heads dk"], v: Float[Tensor, "batch t heads dv"],
    g: Float[Tensor, "batch t heads"], beta: Float[Tensor, "batch t heads"], lamb: Float[Tensor, "heads dk"],
    h_kk_init: Float[Tensor, "documents heads dk dk"] | None = None,
    h_kv_init: Float[Tensor, "documents heads dk dv"] | None = None,
    output_final_state: bool = False, max_CG_iteration: int = 30, use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor | None, Tensor | None]]:  # fmt: skip
    """Drop-in replacement for ``fla.ops.mesa_net.chunk_mesa_net`` that calls `mesascope.ops.mesa_attention`.

    It runs on CPU and CUDA, in any floating-point dtype, for keys and values of any size. It solves to rounding error;
    fla runs a fixed number of iterations in half precision. Outputs differ by fla's error, up to 1 %.

    Args:
        q, k, v: queries, keys and values.
        g: logarithms of the forget factors.
        beta: input strengths.
        lamb: the ridge, which does not decay.
        h_kk_init, h_kv_init: initial states, both or neither.
        output_final_state: return the final states; (None, None) if False.
        max_CG_iteration: ignored.
        use_qk_l2norm_in_kernel: divide queries and keys by their norms.
        cu_seqlens: start of each packed document, then the end of the last; the batch size must be 1.

    Returns:
        Outputs ``(batch, t, heads, dv)`` and the final states (h_kk, h_kv).
    """
    require_instance("output_final_state", output_final_state, bool)
    require_instance("use_qk_l2norm_in_kernel", use_qk_l2norm_in_kernel, bool)
    max_CG_iteration = require_count("max_CG_iteration", max_CG_iteration)
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    if use_qk_l2norm_in_kernel:
        q, k = (functional.normalize(part, dim=-1) for part in (q, k))
    state = None
    if h_kk_init is not None or h_kv_init is not None:
        require_instance("h_kk_init", h_kk_init, Tensor)
        require_instance("h_kv_init", h_kv_init, Tensor)
        state = FixedRidgeState(h_kk_init, h_kv_init.mT)  # type: ignore[arg-type, union-attr]
    y, last = mesa_attention(
        q, k, v, ridge=lamb, log_forget=g.mT, beta=beta.mT, ridge_kind="constant", state=state, cu_seqlens=cu_seqlens,
        return_state=True,
    )  # fmt: skip
    return y.transpose(1, 2), (last.H, last.G.mT) if output_final_state else (None, None)


def from_mesa_net(weights: Mapping[str, Tensor], *, lambda_lower_bound: float = 0.25) -> MesaAttention:
    """Layer with the weights, device and dtype of ``fla.layers.MesaNet.state_dict()``.

    It computes the same function, but solves to rounding error, also if keys are 0.

    Args:
        weights: weights by fla's names.
        lambda_lower_bound: setting of the MesaNet, which the weights do not contain.

    Raises:
        ArgumentError: weights are missing or unexpected, such as the biases of ``conv_bias=True``.
    """
    require_instance("weights", weights, Mapping)
    lambda_lower_bound = require_number("lambda_lower_bound", lambda_lower_bound, above=0)
    wanted = {*_NAMES, "q_conv1d.weight", "k_conv1d.weight"} | ({"g_proj.weight"} & set(weights))
    if set(weights) != wanted:
        raise ArgumentError(
            f"weights must be those of MesaNet without biases of convolutions, but {sorted(wanted ^ set(weights))} are "
            "missing or unexpected: pass layer.state_dict()."
        )
    heads, width = weights["a_proj.weight"].shape
    key, value = weights["q_proj.weight"].shape[0] // heads, weights["v_proj.weight"].shape[0] // heads
    config = AttentionConfig(
        width, heads, key_size=key, value_size=value, convolution=weights["q_conv1d.weight"].shape[-1], forget=True,
        beta=True, forget_cap=1.0, ridge=lambda_lower_bound + 1, ridge_floor=lambda_lower_bound,
        ridge_per_dimension=True, ridge_kind="constant", output_norm=True, output_gate="g_proj.weight" in weights,
    )  # fmt: skip
    layer = MesaAttention(config, torch.Generator()).to(weights["q_proj.weight"])
    own = {new: weights[old] for old, new in _NAMES.items()} | {
        "convolution": torch.cat([weights[f"{name}_conv1d.weight"].squeeze(1).flip(-1) for name in "qk"]),
        "ridge_above": weights["lambda_params"].unflatten(0, (heads, key)),
        "norm": weights["o_norm.weight"].expand(heads, value),
    }
    if config.output_gate:
        own["gate_proj.weight"] = weights["g_proj.weight"]
    layer.load_state_dict(own)
    return layer


_NAMES = {
    **{f"{name}_proj.weight": f"{name}_proj.weight" for name in "qkvo"},
    "a_proj.weight": "forget_proj.weight", "a_proj.bias": "forget_proj.bias",
    "b_proj.weight": "beta_proj.weight", "b_proj.bias": "beta_proj.bias",
    "lambda_params": "ridge_above", "o_norm.weight": "norm",
}  # fmt: skip
