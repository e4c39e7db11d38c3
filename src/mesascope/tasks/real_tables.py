"""Regression on tables of measurements that scikit-learn has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mesascope.errors import ArgumentError, refuse, require_choice, require_count, require_package
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks.draws import check_draw
from mesascope.tasks.episodes import Context, Episode

__all__ = ["TABLES", "RealTable"]


@register("family", "real-table")
@dataclass(frozen=True)
class RealTable:
    """Rows of a real table, drawn for each task without one twice: some as context, others as queries.

    ============  =====  ==  ============================================================================
    ``table``      rows   d  what is to be predicted
    ============  =====  ==  ============================================================================
    diabetes        442  10  how a disease has progressed after a year; comes with scikit-learn
    california    20640   8  house values of districts; on a machine where scikit-learn has downloaded it
    ============  =====  ==  ============================================================================

    Numbers are as they were measured, neither scaled nor centred. Needs ``pip install 'mesascope[sklearn]'``.

    Args:
        n_context, n_query: pairs and queries of a task.

    >>> from mesascope.streams import stream
    >>> RealTable(n_context=20).sample(2, stream(0, "doc")).context
    Context(x (2, 20, 10), y (2, 20, 1))
    """

    table: str = "diabetes"
    n_context: int = 50
    n_query: int = 1

    def __post_init__(self) -> None:
        require_choice("table", self.table, TABLES)
        for name in ("n_context", "n_query"):
            require_count(name, getattr(self, name))

    @property
    def d_in(self) -> int:
        """The width of its inputs."""
        return _read(self.table)[0].shape[-1]

    @property
    def features(self) -> tuple[str, ...]:
        """The names of its inputs."""
        return _read(self.table)[2]

    def sample(self, batch: int, generator: torch.Generator) -> Episode:
        """Draw ``batch`` tasks on the generator's device, in float32."""
        check_draw(batch, generator)
        x, y = self._rows
        scores = torch.rand(batch, len(x), generator=generator, device=generator.device)
        order = scores.topk(self.n_context + self.n_query, largest=False).indices.cpu()
        context, queries = order[:, : self.n_context], order[:, self.n_context :]
        return Episode(Context(x[context], y[context]), x[queries], y[queries]).to(generator.device)

    @property
    def _rows(self) -> tuple[Float[Tensor, "rows d"], Float[Tensor, "rows 1"]]:
        x, y, _ = _read(self.table)
        most = len(x) - self.n_query
        if self.n_context > most:
            refuse("n_context", f"be at most {most}, as {self.table} has {len(x)} rows", self.n_context, "lower it")
        return x, y


@functools.cache
def _read(table: str) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Inputs, labels, and the inputs' names."""
    datasets = require_package("sklearn.datasets", "RealTable", "'mesascope[sklearn]'")
    try:
        found = TABLES[table](datasets)
    except OSError:
        raise ArgumentError(
            f"table {table} must be on this machine, but is not: run sklearn.datasets.fetch_{table}_housing() once "
            "where there is a network."
        ) from None
    x, y = torch.as_tensor(found.data).float(), torch.as_tensor(found.target).float()
    return x, y[:, None], tuple(found.feature_names)


# How scikit-learn reads each.
TABLES: dict[str, Callable[[Any], Any]] = {
    "diabetes": lambda datasets: datasets.load_diabetes(scaled=False),
    "california": lambda datasets: datasets.fetch_california_housing(download_if_missing=False),
}
