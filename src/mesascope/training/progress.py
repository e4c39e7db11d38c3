"""Progress of a training, with its loss."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mesascope.progress import Progress
from mesascope.shapes import Tensor


class ProgressBar(Progress):
    """Observer of `fit` that shows progress, the loss and the time left.

    Args:
        name: name of the training.
        steps: number of steps of the training.
        per_step: number of tokens per step, to show tokens per second; None if there are no tokens.
    """

    def __init__(self, name: str, steps: int, *, per_step: int | None = None) -> None:
        super().__init__(name, steps, unit="step ", stays=True)
        self.per_step = per_step
        self._begun = False

    def __call__(self, step: int, metrics: Mapping[str, Tensor | float]) -> None:
        if not self._begun:  # not timed: the first step compiles, allocates, and may follow a checkpoint
            self.begin(step)
            self._begun = True
        self.update(step, lambda: self._note(metrics["loss"]))

    def _note(self, loss: Tensor | float) -> str:
        """Mean loss of members that have not diverged, number of diverged members, and tokens per second."""
        losses = torch.as_tensor(loss).flatten()
        finite = losses[torch.isfinite(losses)]
        parts = [f"loss {finite.mean().item():.4g}"] if len(finite) else []
        if len(finite) < len(losses):
            parts.append(f"{len(losses) - len(finite)} of {len(losses)} diverged")
        if self.per_step is not None and self.pace:
            parts.append(f"{self.per_step / self.pace:,.0f} tokens/s")
        return ", ".join(parts)
