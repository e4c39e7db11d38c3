"""Errors for losses that are not finite; the message names the cause: the data or the training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from mesascope.errors import NumericalError, refuse
from mesascope.shapes import Tensor


def check_finite(step: int, metrics: Mapping[str, Tensor | float], batch: Any) -> None:
    """Raise if no loss is finite, or if some loss and some number of the batch are not finite."""
    if not isinstance(metrics, Mapping) or "loss" not in metrics:
        refuse("the value of update", 'be metrics with a "loss"', metrics, 'return {"loss": loss}')
    loss = metrics["loss"]
    # A finite sum means that all losses are finite; checking it takes a third of the time of checking each.
    if math.isfinite(loss.sum() if isinstance(loss, Tensor) else loss):
        return
    check_data(step, batch, isinstance(loss, Tensor) and loss.ndim == 1)
    if bool(torch.isfinite(torch.as_tensor(loss)).any()):
        return
    said = ", ".join(
        f"{name.replace('_', ' ')} {value.tolist() if isinstance(value, Tensor) else value}"
        for name, value in metrics.items()
    )
    if step == 1:
        raise NumericalError(
            f"the training loss must be finite, but is not at step 1, before any weight has changed ({said}), on data "
            "that are finite: look for a division by 0 or a root of 0 in the loss and the model, and at the initial "
            "weights."
        )
    raise NumericalError(
        f"the training loss must stay finite, but diverged at step {step} ({said}): lower the learning rate, clip "
        "gradients (training.clip), or start from smaller weights."
    )


def check_data(step: int | None, batch: Any, members: bool) -> None:
    """Raise if a batch contains a number that is not finite.

    Args:
        step: step of the training, counted from 1, or None.
        batch: tensors, or tuples, lists and mappings of them.
        members: True if the first axis of each tensor runs over members.
    """
    for name, tensor in _named(batch, "batch"):
        if torch.isfinite(tensor).all():
            continue
        place = (~torch.isfinite(tensor)).nonzero()[0].tolist()
        value = tensor[tuple(place)].item()
        whose = f" of member {place[0]}" if members and place else ""
        task = f"task {place[members]}{whose}" if len(place) > members else "the batch"
        when = "" if step is None else f"at step {step} "
        raise NumericalError(
            f"the data must be finite, but {when}{name} of {task} holds {value} (index {place}): fix the code that "
            "draws or loads it, or leave such tasks out."
        )


def _named(batch: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(batch, Tensor):
        yield name, batch
        return
    parts: Any = ()
    if hasattr(batch, "_asdict"):
        parts = batch._asdict().items()
    elif isinstance(batch, Mapping):
        parts = batch.items()
    elif isinstance(batch, tuple | list):
        parts = enumerate(batch)
    for own, part in parts:
        yield from _named(part, str(own) if name in ("batch", "context") else f"{name}.{own}")
