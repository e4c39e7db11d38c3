"""Metrics of every step of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mesascope.evidence.tables import Table
from mesascope.shapes import Tensor
from mesascope.training.loop import Metrics

__all__ = ["History"]


class History:
    """Metrics of every step, one row for each member.

    Args:
        seeds: the members' seeds, which name their rows.

    >>> history = History(seeds=[3])
    >>> history(1, {"loss": Tensor([0.5]), "learning_rate": 0.25})
    >>> history.table()
    step  seed  loss  learning_rate
    1     3     0.5   0.25
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = list(seeds)
        self._steps: list[dict[str, Any]] = []

    def __call__(self, step: int, metrics: Metrics) -> None:
        # Numbers take a tenth of the memory that tensors of one number take.
        numbers = {name: value.tolist() if isinstance(value, Tensor) else value for name, value in metrics.items()}
        self._steps.append({"step": step, **numbers})

    def tensors(self) -> dict[str, Tensor]:
        """Each metric of all steps, for a checkpoint."""
        names = self._steps[0] if self._steps else ()
        return {
            f"history/{name}": torch.tensor([row[name] for row in self._steps], dtype=torch.float64) for name in names
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from a checkpoint of `tensors`."""
        kept = {k.removeprefix("history/"): t.tolist() for k, t in tensors.items() if k.startswith("history/")}
        rows = [dict(zip(kept, values, strict=True)) for values in zip(*kept.values(), strict=True)]
        self._steps = [row | {"step": int(row["step"])} for row in rows]

    def table(self) -> Table:
        """One row for each step and member."""
        return Table(
            {"step": row["step"], "seed": seed, **{k: _of(v, index) for k, v in row.items() if k != "step"}}
            for row in self._steps
            for index, seed in enumerate(self.seeds)
        )


def _of(value: Any, index: int) -> float:
    return value[index] if isinstance(value, list) else value
