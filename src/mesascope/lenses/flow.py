"""How tokens depend on each other inside a network."""

from __future__ import annotations

import torch
from torch.func import jacrev, vmap

from mesascope.errors import refuse, require_count, require_instance
from mesascope.lenses.needs import HasTokens, evaluating, require_access
from mesascope.nets import Tokens
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Episode
from mesascope.tasks.asking import check_tasks

__all__ = ["token_sensitivity"]


@register("lens", "token_sensitivity", needs="tokens")
def token_sensitivity(network: HasTokens, episodes: Episode, layer: int = 1) -> Float[Tensor, "rows rows"]:
    """E |d e_r / d e_s|_F: how context token r after ``layer`` layers depends on context token s before the first.

    The mean over tasks of the Frobenius norms of the blocks of the Jacobian, the residual path's identity included.
    Needs *tokens*. Memory: (rows * width)^2 numbers a task.

    Source: ICML paper, section 4 and Fig. 5 right.
    """
    require_access("token_sensitivity", network)
    require_instance("episodes", episodes, Episode)
    check_tasks(episodes)
    require_count("layer", layer)

    def after(context: Tensor, query: Tensor) -> Tensor:
        return network.tokens_from(Tokens(context, query))[layer].context

    with torch.no_grad(), evaluating(network):
        states = network.tokens(episodes.context, episodes.xq)
        if layer >= len(states):
            refuse("layer", f"be at most the network's depth {len(states) - 1}", layer, "name one it has")
        jacobian = vmap(jacrev(after))(*states[0])  # (tasks, rows, width, rows, width)
    return jacobian.square().sum((2, 4)).sqrt().mean(0)
