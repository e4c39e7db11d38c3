"""The mesa-layer for a sequence that is split over several processes.

Each part adds its own sums and decays the sums before it. The state at the start of a part is therefore a decayed
prefix sum over processes. Each process sends one state, once, for any sequence length.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed

from mesascope.errors import ArgumentError
from mesascope.ops.chunks import NOTHING_LEFT
from mesascope.ops.mesa.api import mesa_state
from mesascope.ops.mesa.decode import FixedRidgeState, MesaState
from mesascope.shapes import Float, Tensor


def mesa_state_before(
    k: Float[Tensor, "*batch heads t dk"],
    v: Float[Tensor, "*batch heads t dv"],
    *,
    ridge: float | Float[Tensor, "*ridges"],
    log_forget: Float[Tensor, "*batch heads t"] | None = None,
    beta: Float[Tensor, "*batch heads t"] | None = None,
    ridge_kind: str = "decaying",
    group: Any = None,
) -> MesaState | FixedRidgeState:
    """State before this process's part of a sequence; process r of ``group`` has the r-th part.

    Pass it to `mesascope.ops.mesa_attention` with the same part. Gradients flow through the exchange, so every process
    must run the backward pass. Parts may differ in length.

    Args:
        k, v, log_forget, beta: inputs of this process's part.
        ridge, ridge_kind: as in `mesascope.ops.mesa_attention`.
        group: process group; all processes if None. `torch.distributed` must be initialised.
    """
    if not distributed.is_initialized():
        raise ArgumentError(
            "torch.distributed must be initialised, but is not: call torch.distributed.init_process_group first."
        )
    start = mesa_state(k[..., :0, :], v[..., :0, :], ridge=ridge, ridge_kind=ridge_kind)
    nothing = type(start)(*map(torch.zeros_like, start))
    own = mesa_state(k, v, ridge=ridge, log_forget=log_forget, beta=beta, ridge_kind=ridge_kind, state=nothing)
    kept = start.H.new_zeros(k.shape[:-2]) if log_forget is None else log_forget.clamp(min=NOTHING_LEFT).sum(-1)
    parts = (own.H.flatten(-2), own.G.flatten(-2), kept.to(own.H)[..., None])
    everyone, rank = _Exchange.apply(torch.cat(parts, -1), group), distributed.get_rank(group)
    # The first process needs no other state, but must take part in the exchange of gradients.
    after = type(start)(*(part + 0 * everyone.sum() for part in start))
    for others in everyone[:rank]:
        H, G, log_kept = others.split([part.shape[-1] for part in parts], -1)
        left = log_kept.exp()[..., None]
        after = type(start)(left * after.H + H.view_as(own.H), left * after.G + G.view_as(own.G))
    return after


class _Exchange(torch.autograd.Function):
    """Gather the tensors of all processes, ``(processes, ...)``; gradients are summed over processes."""

    @staticmethod
    def forward(ctx, own: Tensor, group: Any) -> Tensor:
        ctx.group = group
        found = [torch.empty_like(own) for _ in range(distributed.get_world_size(group))]
        distributed.all_gather(found, own.contiguous(), group)
        return torch.stack(found)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        grad = grad.clone(memory_format=torch.contiguous_format)  # another backward pass may use the incoming gradient
        distributed.all_reduce(grad, group=ctx.group)
        return grad[distributed.get_rank(ctx.group)], None
