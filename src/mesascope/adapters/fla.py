"""The mesa-layer under the name, arguments and layout that flash-linear-attention gives it."""

from __future__ import annotations

from torch.nn import functional

from mesascope.errors import require_count, require_instance
from mesascope.ops import FixedRidgeState, mesa_attention
from mesascope.shapes import Float, Tensor

__all__ = ["chunk_mesa_net"]


def chunk_mesa_net(
    q: Float[Tensor, "batch t heads dk"],
    k: Float[Tensor, "batch t heads dk"],
    v: Float[Tensor, "batch t heads dv"],
    g: Float[Tensor, "batch t heads"],
    beta: Float[Tensor, "batch t heads"],
    lamb: Float[Tensor, "heads dk"],
    h_kk_init: Float[Tensor, "documents heads dk dk"] | None = None,
    h_kv_init: Float[Tensor, "documents heads dk dv"] | None = None,
    output_final_state: bool = False,
    max_CG_iteration: int = 30,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor | None, Tensor | None]]:
    """`mesascope.ops.mesa_attention` with a ridge that does not decay, in place of ``fla.ops.mesa_net.chunk_mesa_net``.

    It runs on CPU and CUDA, in any floating-point dtype, for keys and values of any size, and solves to rounding where
    fla takes a fixed number of iterations in half precision: expect its outputs to differ by fla's error, up to a
    percent.

    Args:
        q, k, v: tokens before heads.
        g: logarithms of the forget factors.
        beta: input strengths.
        lamb: the ridge.
        h_kk_init, h_kv_init: the states before the first tokens, both or neither.
        output_final_state: whether to return the states after the last tokens; None in their place if not.
        max_CG_iteration: taken, and of no effect.
        use_qk_l2norm_in_kernel: whether to divide queries and keys by their norms.
        cu_seqlens: where packed documents begin, and where the last one ends; the batch is then 1.

    Returns:
        Outputs ``(batch, t, heads, dv)``, and the states (h_kk, h_kv).
    """
    for name, value in (("output_final_state", output_final_state), ("use_qk_l2norm", use_qk_l2norm_in_kernel)):
        require_instance(name, value, bool)
    require_count("max_CG_iteration", max_CG_iteration)
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
