"""What a training was like, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mesascope.evidence.tables import Table
from mesascope.shapes import Tensor
from mesascope.training.loop import Metrics

__all__ = ["History"]


class History:
    """An observer of `fit` that keeps the metrics of every step.

    Args:
        seeds: of the members, by which rows name them.

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

    def table(self) -> Table:
        """One row for each step and member."""
        return Table(
            {"step": row["step"], "seed": seed, **{k: _of(v, index) for k, v in row.items() if k != "step"}}
            for row in self._steps
            for index, seed in enumerate(self.seeds)
        )


def _of(value: Any, index: int) -> float:
    return value[index] if isinstance(value, list) else value
