"""Inspection of the layers of a language model: attention of heads, forget gates and condition numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from mesascope.errors import refuse, require_count, require_instance
from mesascope.evidence.tables import Table, Tabular
from mesascope.language.losses import token_losses
from mesascope.modes import guarded
from mesascope.nets import LanguageModel, MesaAttention
from mesascope.ops import FixedRidgeState
from mesascope.shapes import Float, Int, Tensor
from mesascope.streams import stream
from mesascope.training.modes import evaluating

_SEQUENCES = 16  # random sequences of `head_scores`
_PLACES = 4  # evenly spaced positions in a window at which condition numbers are measured


@dataclass(frozen=True, repr=False)
class HeadScores(Tabular):
    """Copying and induction scores of heads on a repeated random sequence, as shares of absolute attention weights.

    Args:
        attention: type of each layer.
        copying: for each layer, weight on the previous token.
        induction: for each layer, weight on the token that followed the first occurrence of the current token.
        uniform: copying and induction scores of uniform attention.
    """

    attention: tuple[str, ...]
    copying: tuple[Float[Tensor, " heads"], ...]
    induction: tuple[Float[Tensor, " heads"], ...]
    uniform: tuple[float, float]

    def table(self) -> Table:
        rows = zip(self.attention, self.copying, self.induction, strict=True)
        return Table(
            {"layer": layer, "attention": name, "head": head, "copying": round(one, 4), "induction": round(two, 4)}
            for layer, (name, *scores) in enumerate(rows)
            for head, (one, two) in enumerate(torch.stack(scores, -1).tolist())
        )


@dataclass(frozen=True, repr=False)
class Inspection(Tabular):
    """Measurements of a language model's layers on windows of text.

    Args:
        scores: see `head_scores`.
        maps: attention of the first layer on the t - 1 tokens of the first window without its last one.
        forget: mean forget gate of each head, for layers with gates; 1 means no forgetting.
        ridge: 1/lambda of each head, for mesa layers; the mean over dimensions if each has its own. For relative
            ridges, its ratio to the norm of H.
        condition: median condition number of H plus ridge, for mesa layers, after each number of tokens in ``read``.
        losses: loss of each token after the first, in nats.
    """

    scores: HeadScores
    maps: Float[Tensor, "heads t t"]
    forget: dict[int, Float[Tensor, " heads"]]
    ridge: dict[int, Float[Tensor, " heads"]]
    condition: dict[int, Float[Tensor, "places heads"]]
    read: tuple[int, ...]
    losses: Float[Tensor, "n predicted"]

    def table(self) -> Table:
        rows = []
        for row in self.scores.table():
            layer, head, found = row["layer"], row["head"], {}
            for name, own in (("forget", self.forget), ("ridge", self.ridge)):
                found[name] = round(own[layer][head].item(), 4) if layer in own else None
            for place, count in enumerate(self.read):
                known = self.condition.get(layer)
                found[f"condition {count}"] = None if known is None else float(f"{known[place, head]:.3g}")
            rows.append({**row, **found})
        return Table(rows)


@guarded
@torch.no_grad()
def head_scores(model: LanguageModel, tokens: int | None = None, *, seed: int = 0) -> HeadScores:
    """Measure copying and induction of heads on 16 sequences of ``tokens`` random tokens, each repeated once.

    Attention means the weights of the values in a head's output. Some layer types have negative weights, so scores use
    absolute values.

    Args:
        tokens: tokens in each half; if None, half the context, at most 64.

    Source: Olsson et al. (2022); von Oswald (2024), section 3.5.3.
    """
    require_instance("model", model, LanguageModel)
    half = min(model.config.context // 2, 64) if tokens is None else tokens
    require_count("tokens", half, least=2)
    once = torch.randint(model.config.vocabulary, (_SEQUENCES, half), generator=stream(seed, "inspect"))
    names = "layers.*.attention.pattern"
    with evaluating(model):
        _, patterns = model.run_with_cache(once.repeat(1, 2).to(model.embedding.weight.device), last=1, names=names)
    copying, induction = [], []
    for pattern in patterns.values():
        shares = pattern.abs() / pattern.abs().sum(-1, keepdim=True).clamp_min(torch.finfo(pattern.dtype).tiny)
        copying.append(shares.diagonal(-1, -2, -1).mean((0, -1)).cpu())
        induction.append(shares.diagonal(1 - half, -2, -1)[..., 1:].mean((0, -1)).cpu())
    seen = torch.arange(1, 2 * half + 1.0)  # number of tokens up to each position
    uniform = (1 / seen[1:]).mean().item(), (1 / seen[half:]).mean().item()
    return HeadScores(model.config.transformer.attentions, tuple(copying), tuple(induction), uniform)


@guarded
@torch.no_grad()
def inspect(model: LanguageModel, windows: Int[Tensor, "n t"], seed: int = 0) -> Inspection:
    """Measure the layers of a language model on windows of text.

    Args:
        windows: independent windows of tokens.
        seed: seed of the random tokens of `head_scores`.

    Raises:
        ArgumentError: t is below 5, or t - 1 is above the number of the model's learned positions.
    """
    require_instance("windows", windows, Tensor)
    if windows.ndim != 2 or windows.shape[1] <= _PLACES:
        refuse("windows", f"have shape (n, t) with t above {_PLACES}", tuple(windows.shape), "draw longer ones")
    windows = windows.to(model.embedding.weight.device)
    tokens, name = windows[:, :-1], "layers.0.attention.pattern"
    layers: dict[int, Any] = dict(enumerate(layer.attention for layer in model.transformer.unrolled()))
    mesa = {index: layer for index, layer in layers.items() if isinstance(layer, MesaAttention)}
    with evaluating(model):
        scores = head_scores(model, seed=seed)
        losses = token_losses(model, windows).double().cpu()
        maps = model.run_with_cache(tokens[:1], last=1, names=name)[1][name][0].cpu()
        forget = _forget(model, tokens, layers)
        read, condition = _conditions(model, tokens, mesa)
    ridge = {index: layer.ridge.reshape(layer.config.kv_heads, -1).mean(1).cpu() for index, layer in mesa.items()}
    forget, ridge, condition = (
        {index: part.repeat_interleave(layers[index].config.group, -1) for index, part in own.items()}  # per head
        for own in (forget, ridge, condition)
    )
    return Inspection(scores, maps, forget, ridge, condition, read, losses)


def _forget(model: LanguageModel, tokens: Tensor, layers: dict[int, Any]) -> dict[int, Tensor]:
    gated = {index: layer for index, layer in layers.items() if layer.forget_proj is not None}
    if not gated:
        return {}
    _, cache = model.run_with_cache(tokens, last=1, names="layers.*.norm")
    gates = {index: layer.gates(cache[f"layers.{index}.norm"])[0] for index, layer in gated.items()}
    return {index: logarithms.exp().mean((0, -1)).cpu() for index, logarithms in gates.items()}


def _conditions(
    model: LanguageModel, tokens: Tensor, layers: dict[int, MesaAttention]
) -> tuple[tuple[int, ...], dict[int, Tensor]]:
    """Numbers of tokens read, and the condition numbers of each layer at these points."""
    if not layers:
        return (), {}
    state, found, read = model.init_state(len(tokens)), {index: [] for index in layers}, []
    for part in tokens.tensor_split(_PLACES, 1):
        read.append(sum(read[-1:]) + part.shape[1])
        _, state = model.advance(part, state, last=0)
        for index, layer in layers.items():
            found[index].append(_condition(layer, state[index].memory))
    return tuple(read), {index: torch.stack(own).cpu() for index, own in found.items()}


def _condition(layer: MesaAttention, memory: Any) -> Float[Tensor, " heads"]:
    """Median condition number of H plus ridge; a decaying ridge is already part of H."""
    H = memory.H.double()
    if isinstance(memory, FixedRidgeState):
        ridge = layer.ridge.double().reshape(layer.config.kv_heads, -1).expand(-1, H.shape[-1])
        scale = H.norm(dim=(-2, -1))[..., None] if layer.ridge_kind == "relative" else H.new_ones(())
        H = H + torch.diag_embed(ridge * scale)
    values = torch.linalg.eigvalsh(H)
    return (values[..., -1] / values[..., 0]).median(0).values
