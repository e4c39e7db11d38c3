"""Loss and accuracy on the target tokens of a recall task, see `mesascope.tasks.recall`."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from mesascope.errors import refuse, require_instance
from mesascope.language.losses import losses_of
from mesascope.shapes import Float, Int, Tensor
from mesascope.training import Ensemble

Asked = Int[Tensor, "batch two t"]


def recall_loss(model: Ensemble | nn.Module, tasks: Int[Tensor, "*batch two t"]) -> Float[Tensor, "*members"]:
    """Mean cross-entropy in nats of the target tokens; one number per member of an `Ensemble`."""
    tokens, asked = _parted(tasks)
    losses, weights = losses_of(model, tokens), asked[..., 1:]
    start = 1 if isinstance(model, Ensemble) else 0
    return (losses * weights).flatten(start).sum(-1) / weights.flatten(start).sum(-1)


def recall_accuracy(model: nn.Module, tasks: Asked) -> float:
    """Accuracy on the target tokens, averaged over sequences."""
    return float(recall_by_sequence(model, tasks)[1].mean())


def recall_by_sequence(model: nn.Module, tasks: Asked) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Mean cross-entropy in nats and accuracy on the target tokens of each sequence, without gradients."""
    tokens, asked = _parted(tasks)
    with torch.no_grad():
        logits = model(tokens[:, :-1])
    losses = functional.cross_entropy(logits.movedim(-1, 1), tokens[:, 1:], reduction="none")
    right, weights = logits.argmax(-1) == tokens[:, 1:], asked[:, 1:]
    return tuple((part * weights).sum(-1) / weights.sum(-1) for part in (losses, right))  # type: ignore[return-value]


def _parted(tasks: Tensor) -> tuple[Tensor, Tensor]:
    require_instance("tasks", tasks, Tensor)
    if tasks.ndim < 3 or tasks.shape[-2] != 2:
        refuse("tasks", "have shape (*batch, 2, t)", tuple(tasks.shape), "draw them from AssociativeRecall, say")
    tokens, asked = tasks.unbind(-2)
    return tokens, asked
