"""What the layers of a language model do with a text: where heads look, what they forget, how well H is conditioned."""

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

__all__ = ["HeadScores", "Inspection", "head_scores", "inspected"]

_PLACES = 4  # of a window, evenly spread, at which H is looked at


@dataclass(frozen=True, repr=False)
class HeadScores(Tabular):
    """Where each head looks in random tokens that are repeated once, as shares of what it weighs there.

    Args:
        attention: name of each layer's.
        copying: by layer, weight on the token before, which a layer after it can then compare with.
        induction: at a token of the second half, weight on the one that followed it in the first.
        uniform: both, of a head that looks everywhere alike.
    """

    attention: tuple[str, ...]
    copying: tuple[Float[Tensor, " heads"], ...]
    induction: tuple[Float[Tensor, " heads"], ...]
    uniform: tuple[float, float]

    def table(self) -> Table:
        """A row a head."""
        return Table(
            {
                "layer": layer,
                "attention": name,
                "head": head,
                "copying": round(self.copying[layer][head].item(), 4),
                "induction": round(self.induction[layer][head].item(), 4),
            }
            for layer, name in enumerate(self.attention)
            for head in range(len(self.copying[layer]))
        )


@dataclass(frozen=True, repr=False)
class Inspection(Tabular):
    """What the layers of a language model do with windows of a text.

    Args:
        scores: see `head_scores`.
        maps: attention of the first layer on the first window, ``(heads, t, t)``.
        forget: mean gate, 1 where a head forgets nothing, by layer and head; of layers with gates.
        ridge: 1/lambda of a mesa-layer's heads, by layer; the mean over dimensions where each has its own.
        condition: of a mesa-layer's H with its ridge: largest over smallest eigenvalue, the median over windows, by
            layer, ``(places, heads)``, after the numbers of tokens ``read``.
        losses: of each token after the first, in nats.
    """

    scores: HeadScores
    maps: Float[Tensor, "heads t t"]
    forget: dict[int, Float[Tensor, " heads"]]
    ridge: dict[int, Float[Tensor, " heads"]]
    condition: dict[int, Float[Tensor, "places heads"]]
    read: tuple[int, ...]
    losses: Float[Tensor, "n predicted"]

    def table(self) -> Table:
        """A row a head: its scores, and what it has of gates, ridges and condition numbers."""
        rows = []
        for row in self.scores.table():
            layer, head = row["layer"], row["head"]
            others = {"forget": self.forget, "ridge": self.ridge}
            found = {name: round(own[layer][head].item(), 4) if layer in own else None for name, own in others.items()}
            known = self.condition.get(layer)
            found |= {
                f"condition {count}": None if known is None else float(f"{known[place, head]:.3g}")
                for place, count in enumerate(self.read)
            }
            rows.append({**row, **found})
        return Table(rows)


@guarded
@torch.no_grad()
def head_scores(model: LanguageModel, tokens: int | None = None, *, sequences: int = 16, seed: int = 0) -> HeadScores:
    """How much heads copy and complete, on ``tokens`` random tokens and then the same again.

    The weights are those that mix the values in layers of any kind, and may be negative: their absolute values count.

    Args:
        tokens: in each half; half the context, at most 64, if None.

    Source: Olsson et al. (2022); thesis, section 3.5.3.
    """
    require_instance("model", model, LanguageModel)
    half = min(model.config.context // 2, 64) if tokens is None else tokens
    require_count("tokens", half, least=2)
    sequences = require_count("sequences", sequences)
    once = torch.randint(model.config.vocabulary, (sequences, half), generator=stream(seed, "inspect"))
    names = "layers.*.attention.pattern"
    with evaluating(model):
        _, patterns = model.run_with_cache(once.repeat(1, 2).to(model.embedding.device), last=1, names=names)
    copying, induction = [], []
    for pattern in patterns.values():
        shares = pattern.abs() / pattern.abs().sum(-1, keepdim=True).clamp_min(torch.finfo(pattern.dtype).tiny)
        copying.append(shares.diagonal(-1, -2, -1).mean((0, -1)).cpu())
        induction.append(shares.diagonal(1 - half, -2, -1)[..., 1:].mean((0, -1)).cpu())
    seen = torch.arange(1, 2 * half + 1.0)  # tokens up to each
    uniform = (1 / seen[1:]).mean().item(), (1 / seen[half:]).mean().item()
    return HeadScores(model.config.transformer.attentions, tuple(copying), tuple(induction), uniform)


@guarded
@torch.no_grad()
def inspected(model: LanguageModel, windows: Int[Tensor, "n t"], seed: int = 0) -> Inspection:
    """Read windows of a text, and tell what the layers do with them.

    Args:
        windows: of its tokens, each read by itself.
        seed: of the random tokens for `head_scores`.

    Raises:
        ArgumentError: windows of a few tokens, or longer than the places that the model has learned.
    """
    require_instance("windows", windows, Tensor)
    if windows.ndim != 2 or windows.shape[1] <= _PLACES:
        refuse("windows", f"have shape (n, t) with t above {_PLACES}", tuple(windows.shape), "draw longer ones")
    with evaluating(model):
        return _inspected(model, windows.to(model.embedding.device), head_scores(model, seed=seed))


def _inspected(model: LanguageModel, windows: Tensor, scores: HeadScores) -> Inspection:
    losses = token_losses(model, windows).double().cpu()
    name = "layers.0.attention.pattern"
    maps = model.run_with_cache(windows[:1, :-1], last=1, names=name)[1][name][0].cpu()
    layers: dict[int, Any] = dict(enumerate(layer.attention for layer in model.transformer.unrolled()))
    forget = _forget(model, windows[:, :-1], layers)
    mesa = {index: layer for index, layer in layers.items() if isinstance(layer, MesaAttention)}
    read, condition = _conditions(model, windows[:, :-1], mesa)
    ridge = {index: layer.ridge.reshape(layer.config.kv_heads, -1).mean(1).cpu() for index, layer in mesa.items()}
    each = (forget, ridge, condition)
    forget, ridge, condition = (
        {index: _of_heads(part, layers[index].config.group) for index, part in own.items()} for own in each
    )
    return Inspection(scores, maps, forget, ridge, condition, read, losses)


def _of_heads(part: Tensor, group: int) -> Tensor:
    """What groups of heads share, as each head's own."""
    return part.repeat_interleave(group, -1)


def _forget(model: LanguageModel, tokens: Tensor, layers: dict[int, Any]) -> dict[int, Tensor]:
    """Mean gates over all tokens."""
    gated = {index: layer for index, layer in layers.items() if layer.forget_proj is not None}
    if not gated:
        return {}
    _, cache = model.run_with_cache(tokens, last=1, names="layers.*.norm")
    return {
        index: layer.gates(cache[f"layers.{index}.norm"])[0].exp().mean((0, -1)).cpu() for index, layer in gated.items()
    }


def _conditions(
    model: LanguageModel, tokens: Tensor, layers: dict[int, MesaAttention]
) -> tuple[tuple[int, ...], dict[int, Tensor]]:
    """After how many tokens, and of each layer then."""
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
    """Of H with its ridge, which the state of a ridge that decays has in it."""
    H = memory.H.double()
    if isinstance(memory, FixedRidgeState):
        ridge = layer.ridge.double().reshape(layer.config.kv_heads, -1).expand(-1, H.shape[-1])
        scale = H.norm(dim=(-2, -1))[..., None] if layer.ridge_kind == "relative" else H.new_ones(())
        H = H + torch.diag_embed(ridge * scale)
    values = torch.linalg.eigvalsh(H)
    return (values[..., -1] / values[..., 0]).median(0).values
