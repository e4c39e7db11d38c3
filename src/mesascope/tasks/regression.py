"""Families of regression tasks: linear regression, sine waves, and real data tables."""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import torch

from mesascope.errors import ArgumentError, ArgumentTypeError, refuse, require_count, require_package, shown
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks.draws import INPUT_LAWS, Noise, Scale, check_draw, episode_of, normal, symmetric_uniform
from mesascope.tasks.episodes import Context, Episode
from mesascope.validate import Count, Whole

_End = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]


@register("family", "linear-regression")
@dataclass(frozen=True)
class LinearRegression:
    """Linear regression with a teacher W for each task: context targets W x + noise * eps, query targets W xq.

    W ``(d_out, d_in)`` has independent N(0, w_scale^2) entries, and eps is standard normal. Inputs of context and
    queries are independent draws z from the distribution ``x``, times ``x_scale``, times the Cholesky factor of
    ``covariance``:

    ============= ==========================================  ==================
    ``x``         one coordinate of z                         variance, kurtosis
    ============= ==========================================  ==================
    uniform       U(-1, 1)                                    1/3, 9/5
    normal        N(0, 1)                                     1, 3
    exponential   rate 1, mean 1 (not centred)                1, 9
    laplace       scale 1                                     2, 6
    mixture       normal, exponential or laplace by task
    ============= ==========================================  ==================

    Args:
        n_context: number of pairs in a context (N).
        d_in, d_out: widths of x and y.
        x_scale, w_scale, noise: the scales above. x_scale is 1 in von Oswald et al. (2023), and 0.5 in their code.
        covariance: ``(d_in, d_in)``, positive definite, or its diagonal ``(d_in,)``; identity if None.
        pool: draw from a fixed set of this many tasks; a batch of exactly ``pool`` tasks is the whole set in order.
        pool_seed: seed of the pool. Replicates with different pools need different seeds: see `seeded`.
        n_query: number of queries of a task (m).

    Source: von Oswald et al. (ICML 2023), section 3; other distributions, appendix A.2; ``pool``, appendix A.12.

    >>> episode = LinearRegression(n_context=4, d_in=3).sample(2, stream(0, "doc"))
    >>> [tuple(t.shape) for t in (episode.context.x, episode.context.y, episode.xq, episode.yq)]
    [(2, 4, 3), (2, 4, 1), (2, 1, 3), (2, 1, 1)]
    """

    n_context: Count = 10
    d_in: Count = 10
    d_out: Count = 1
    x: Literal["uniform", "normal", "exponential", "laplace", "mixture"] = "uniform"
    x_scale: Scale = 1.0
    w_scale: Scale = 1.0
    noise: Noise = 0.0
    covariance: Any = None
    pool: Count | None = None
    pool_seed: Whole = 0
    n_query: Count = 1

    def __post_init__(self) -> None:
        if self.covariance is not None:
            object.__setattr__(self, "covariance", _nested_tuple(self.covariance))
            _ = self._factor

    @functools.cached_property
    def _factor(self) -> Float[Tensor, "d d"]:
        rule = f"have shape ({self.d_in}, {self.d_in})"
        try:
            matrix = torch.tensor(self.covariance, dtype=torch.float64)
        except ValueError:
            refuse("covariance", rule, self.covariance, "give its rows the same length")
        if matrix.ndim == 1:
            matrix = torch.diag(matrix)
        if matrix.shape != (self.d_in, self.d_in):
            refuse("covariance", rule, tuple(matrix.shape), "match it to d_in")
        if not bool((matrix.abs() <= 1e30).all()):
            remedy = "replace what is no number" if matrix.isnan().any() else "scale it down"
            refuse("covariance", "have finite entries of at most 1e30", self.covariance, remedy)
        factor, info = torch.linalg.cholesky_ex(matrix)
        if info or not torch.isfinite(factor).all() or (matrix - matrix.mT).abs().max() > 1e-5 * matrix.abs().max():
            refuse("covariance", "be symmetric and positive definite", self.covariance, "add to its diagonal")
        return factor

    def seeded(self, seed: int) -> LinearRegression:
        """The family for one training seed: a pool has the seed ``pool_seed + seed``."""
        require_count("seed", seed, least=0)
        return self if self.pool is None else dataclasses.replace(self, pool_seed=self.pool_seed + seed)

    @functools.cached_property
    def _pool(self) -> tuple[Episode, Tensor]:
        return self._fresh(self.pool or 0, stream(self.pool_seed, "pool"))

    def teachers(self) -> Float[Tensor, "pool dy dx"]:
        """Teachers W of the pool's tasks, for `learners.BayesPool`."""
        if self.pool is None:
            refuse("pool", "be a number, as only a pool has fixed teachers", None, "pass pool=64, for example")
        return self._pool[1].clone()

    def sample(self, batch: int, generator: torch.Generator) -> Episode:
        check_draw(batch, generator)
        if self.pool is None:
            return self._fresh(batch, generator)[0]
        pool = self._pool[0].to(generator.device)
        if batch == self.pool:
            return pool.map(torch.clone)
        index = torch.randint(self.pool, (batch,), generator=generator, device=generator.device)
        return pool.map(lambda tensor: tensor[index])

    def _fresh(self, batch: int, generator: torch.Generator) -> tuple[Episode, Tensor]:
        rows = self.n_context + self.n_query
        inputs = INPUT_LAWS[self.x]((batch, rows, self.d_in), generator).mul_(self.x_scale)
        if self.covariance is not None:
            inputs = inputs @ self._factor.to(inputs).mT
        teacher = normal((batch, self.d_out, self.d_in), generator).mul_(self.w_scale)
        episode = episode_of(inputs, inputs @ teacher.mT, self.n_context)
        if self.noise:
            x, y = episode.context
            noisy = y + self.noise * normal(tuple(y.shape), generator)
            episode = episode._replace(context=Context(x, noisy))
        return episode, teacher


def _nested_tuple(values: Any) -> tuple:
    """Nested tuples from a tensor, an array or nested sequences, for a frozen family."""
    values = values.tolist() if hasattr(values, "tolist") else values
    try:
        return tuple(_nested_tuple(row) if isinstance(row, list | tuple) else float(row) for row in values)
    except (TypeError, ValueError):
        raise ArgumentTypeError(
            f"covariance must be numbers (d_in, d_in) or (d_in,), but is {shown(values)}: pass a tensor or lists."
        ) from None


@register("family", "sine-waves")
@dataclass(frozen=True)
class SineWaves:
    """Targets y = a sin(x + p) with an amplitude a ~ U(amplitude) and a phase p ~ U(phase) for each task.

    Inputs of context and queries are x ~ U(-x_scale, x_scale). x and y have width 1, and there is no noise. Amplitude
    and phase are independent; with ``tied``, one draw sets both, as in the authors' code.

    Source: von Oswald et al. (ICML 2023), appendix A.7, after Finn et al. (2017).

    >>> episode = SineWaves(n_context=4).sample(2, stream(0, "doc"))
    >>> [tuple(t.shape) for t in (episode.context.x, episode.context.y, episode.xq, episode.yq)]
    [(2, 4, 1), (2, 4, 1), (2, 1, 1), (2, 1, 1)]
    """

    n_context: Count = 10
    amplitude: tuple[_End, _End] = (0.1, 5.0)
    phase: tuple[_End, _End] = (0.0, math.pi)
    x_scale: Scale = 5.0
    n_query: Count = 1
    tied: bool = False

    def __post_init__(self) -> None:
        for name, (low, high) in (("amplitude", self.amplitude), ("phase", self.phase)):
            if low > high:
                refuse(name, "be (low, high)", (low, high), "pass two numbers in order")

    def sample(self, batch: int, generator: torch.Generator) -> Episode:
        check_draw(batch, generator)
        x = symmetric_uniform((batch, self.n_context + self.n_query, 1), generator).mul_(self.x_scale)
        first = symmetric_uniform((batch, 1, 1), generator)
        second = first if self.tied else symmetric_uniform((batch, 1, 1), generator)
        amplitude, phase = _between(self.amplitude, first), _between(self.phase, second)
        return episode_of(x, amplitude * torch.sin(x + phase), self.n_context)


def _between(bounds: tuple[float, float], uniform: Tensor) -> Tensor:
    """Rescale U(-1, 1) draws to the bounds."""
    low, high = bounds
    return (low + high) / 2 + (high - low) / 2 * uniform


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

    >>> RealTable(n_context=20).sample(2, stream(0, "doc")).context
    Context(x (2, 20, 10), y (2, 20, 1))
    """

    table: Literal["diabetes", "california"] = "diabetes"
    n_context: Count = 50
    n_query: Count = 1

    @property
    def d_in(self) -> int:
        return _read(self.table)[0].shape[-1]

    @property
    def features(self) -> tuple[str, ...]:
        return _read(self.table)[2]

    def sample(self, batch: int, generator: torch.Generator) -> Episode:
        check_draw(batch, generator)
        x, y, _ = _read(self.table)
        most = len(x) - self.n_query
        if most < 0:
            refuse("n_query", f"be at most {len(x)}, as {self.table} has {len(x)} rows", self.n_query, "lower it")
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
            "with network access."
        ) from None
    x, y = torch.as_tensor(found.data).float(), torch.as_tensor(found.target).float()
    return x, y[:, None], tuple(found.feature_names)
