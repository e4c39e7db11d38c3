"""Regression on real data tables from scikit-learn."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import torch

from mesascope.errors import ArgumentError, refuse, require_package
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.tasks.draws import check_draw
from mesascope.tasks.episodes import Context, Episode
from mesascope.validate import Count


@register("family", "real-table")
@dataclass(frozen=True)
class RealTable:
    """Tasks from random rows of a real table: some rows are the context, others the queries.

    ============  =====  ==  =======================================================================
    ``table``      rows   d  target
    ============  =====  ==  =======================================================================
    diabetes        442  10  progression of the disease after a year; comes with scikit-learn
    california    20640   8  house values of districts; scikit-learn must have downloaded it before
    ============  =====  ==  =======================================================================

    Values are neither scaled nor centred. Needs ``pip install '.[sklearn]'``.

    Args:
        n_context, n_query: numbers of pairs and queries of a task.

    >>> from mesascope.streams import stream
    >>> RealTable(n_context=20).sample(2, stream(0, "doc")).context
    Context(x (2, 20, 10), y (2, 20, 1))
    """

    table: Literal["diabetes", "california"] = "diabetes"
    n_context: Count = 50
    n_query: Count = 1

    @property
    def d_in(self) -> int:
        """Width of the inputs."""
        return _read(self.table)[0].shape[-1]

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return _read(self.table)[2]

    def sample(self, batch: int, generator: torch.Generator) -> Episode:
        """Draw ``batch`` tasks on the generator's device, in float32."""
        check_draw(batch, generator)
        x, y, _ = _read(self.table)
        most = len(x) - self.n_query
        if self.n_context > most:
            refuse("n_context", f"be at most {most}, as {self.table} has {len(x)} rows", self.n_context, "lower it")
        scores = torch.rand(batch, len(x), generator=generator, device=generator.device)
        order = scores.topk(self.n_context + self.n_query, largest=False).indices.cpu()
        context, queries = order[:, : self.n_context], order[:, self.n_context :]
        return Episode(Context(x[context], y[context]), x[queries], y[queries]).to(generator.device)


@functools.cache
def _read(table: str) -> tuple[Float[Tensor, "rows d"], Float[Tensor, "rows 1"], tuple[str, ...]]:
    """Inputs, labels, and names of the inputs."""
    datasets = require_package("sklearn.datasets", "RealTable", "sklearn")
    try:
        if table == "diabetes":
            found = datasets.load_diabetes(scaled=False)
        else:
            found = datasets.fetch_california_housing(download_if_missing=False)
    except OSError:
        raise ArgumentError(
            f"table {table} must be on this machine, but is not: run sklearn.datasets.fetch_{table}_housing() once "
            "where there is a network."
        ) from None
    x, y = torch.as_tensor(found.data).float(), torch.as_tensor(found.target).float()
    return x, y[:, None], tuple(found.feature_names)
