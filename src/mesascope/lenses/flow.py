"""Dependence of tokens on each other inside a network."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.func import jacfwd, jacrev, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from mesascope.errors import refuse, require_count, require_instance
from mesascope.lenses.access import activations_of, require_sequences
from mesascope.lenses.needs import HasActivations, HasTokens, require_access
from mesascope.modes import without_deprecations_of_torch
from mesascope.nets import HookedModule, Tokens
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Episode
from mesascope.tasks.calling import check_tasks
from mesascope.training.modes import evaluating


@register("lens", "token_sensitivity", needs="tokens")
def token_sensitivity(network: HasTokens, episodes: Episode, layer: int = 1) -> Float[Tensor, "rows rows"]:
    """Sensitivity E |d e_r / d e_s|_F of context token r after ``layer`` layers to context token s before the first.

    Frobenius norms of the Jacobian's blocks are averaged over tasks. The Jacobian includes the identity of the residual
    path. Needs *tokens*. Memory: (rows * width)^2 numbers for each task.

    Source: von Oswald et al. (2023), section 4 and Fig. 5 right.
    """
    require_access("token_sensitivity", network)
    require_instance("episodes", episodes, Episode)
    check_tasks(episodes)
    layer = require_count("layer", layer)

    def after(context: Tensor, query: Tensor) -> Tensor:
        return network.tokens_from(Tokens(context[None], query[None]))[layer].context[0]

    with torch.no_grad(), evaluating(network):
        states = network.tokens(episodes.context, episodes.xq)
        if layer >= len(states):
            refuse("layer", f"be at most the network's depth {len(states) - 1}", layer, "choose one of its layers")
        jacobian = vmap(jacrev(after))(*states[0])  # (tasks, rows, width, rows, width)
    wide = jacobian.to(torch.promote_types(jacobian.dtype, torch.float32))
    return wide.square().sum((2, 4)).sqrt().mean(0)


@register("lens", "element_sensitivity", needs="activations", of="predictor")
def element_sensitivity(
    network: HasActivations, sequences: Float[Tensor, "tasks t d"], layer: int = 1
) -> Float[Tensor, "t t"]:
    """Sensitivity E |d e_t / d s_u|_F of the token at t after ``layer`` layers to the element at u.

    Frobenius norms of the Jacobian's blocks are averaged over tasks. The Jacobian includes the embedding and the
    residual path. Needs *activations*. Cost: t d forward passes for each sequence, through only the first ``layer``
    layers if ``activations`` has an argument ``layers``. Memory: t^2 width d numbers.

    Source: von Oswald (2024), section 3.5.1 and Fig. 3.4 B.
    """
    require_access("element_sensitivity", network)
    require_sequences("element_sensitivity", sequences)
    layer = require_count("layer", layer, least=0)
    total = sequences.new_zeros(sequences.shape[1], sequences.shape[1], dtype=torch.float64)
    with torch.no_grad(), evaluating(network), without_deprecations_of_torch(), _with_forward_derivatives():
        depth = len(activations_of(network, sequences[:1])) - 1
        if layer > depth:
            refuse("layer", f"be at most the network's depth {depth}", layer, "choose one of its layers")
        only = {"layers": layer} if "layers" in inspect.signature(network.activations).parameters else {}
        for sequence in sequences:
            jacobian = jacfwd(lambda one: network.activations(one[None], **only)[layer][0])(sequence)
            total = total + jacobian.double().square().sum((1, 3)).sqrt()  # over width and d of (t, width, t, d)
    return (total / len(sequences)).to(torch.promote_types(sequences.dtype, torch.float32))


@contextmanager
def _with_forward_derivatives() -> Iterator[None]:
    """Context in which torch's attention uses operations that have forward-mode derivatives."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@register("lens", "attention_maps", needs="points", of="predictor")
def attention_maps(network: HookedModule, sequences: Float[Tensor, "tasks t d"]) -> Float[Tensor, "layers heads t t"]:
    """Attention matrix A of each head, averaged over tasks; a head returns sum_i A_ti value_i at t. Needs *points*.

    Source: von Oswald (2024), sections 3.5.1 and 3.7.4.
    """
    require_access("attention_maps", network)
    require_sequences("attention_maps", sequences)
    with torch.no_grad(), evaluating(network):
        _, kept = network.run_with_cache(sequences, names="layers.*.attention.pattern")
    heads = [pattern.shape[1] for pattern in kept.values()]
    if len({*heads}) > 1:
        refuse("network", "have as many heads in each layer", heads, "read the points layers.L.attention.pattern")
    return torch.stack([pattern.mean(0) for pattern in kept.values()])
