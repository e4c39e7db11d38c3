"""How tokens depend on each other inside a network."""

from __future__ import annotations

import torch
from torch.func import jacrev, vmap

from mesascope.errors import refuse, require_count
from mesascope.lenses.access import require_network
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Episode, Learner, check_episode

__all__ = ["token_sensitivity"]


def token_sensitivity(network: Learner, episodes: Episode, layer: int = 1) -> Float[Tensor, "rows rows"]:
    """E |d e_r / d e_s|_F: how context token r after ``layer`` layers depends on context token s before the first.

    The mean over tasks of the Frobenius norms of the blocks of the Jacobian, the residual path's identity included.
    Needs *network*. Memory: (rows * width)^2 numbers a task.

    Source: ICML paper, section 4 and Fig. 5 right.
    """
    net = require_network("token_sensitivity", network)
    check_episode(episodes)
    require_count("layer", layer)
    if layer > net.transformer.config.n_layers:
        refuse("layer", f"be at most the network's depth {net.transformer.config.n_layers}", layer, "name one it has")
    before = net.tokens(episodes.context, episodes.xq)[0]

    def after(context: Tensor, query: Tensor) -> Tensor:
        return net.transformer.tokens(context, query)[layer].context

    with torch.no_grad():
        jacobian = vmap(jacrev(after))(before.context, before.query)  # (tasks, rows, width, rows, width)
    return jacobian.square().sum((2, 4)).sqrt().mean(0)
