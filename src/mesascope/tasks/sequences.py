"""Families of sequences: linear, partly observed and nonlinear dynamics, and linear regression as a sequence.

A sequence of dynamics has ``length`` elements (T) of width ``d``; ``noise`` is the standard deviation of the noise that
is added to each entry of its state at each step.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional

from mesascope.errors import refuse
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import draws
from mesascope.tasks.draws import STARTS, Noise, Scale
from mesascope.validate import Count, Positive, Whole

Start = Literal["normal", "uniform"]


@register("family", "linear-dynamics")
@dataclass(frozen=True)
class LinearDynamics:
    """Fully observed linear systems, one for each task: s_{t+1} = W s_t + noise * eps, with eps standard normal.

    Args:
        dynamics: ``"orthogonal"``: W ``(d, d)`` is an orthogonal matrix Q for each task, uniform on the orthogonal
            group; ``"contracting"``: W = Q^T diag(a) Q for each task, with a ~ U(0.3, 0.9); ``"fixed"``: one orthogonal
            matrix for all tasks.
        start: distribution of s_1: ``"normal"``, N(0, I), or ``"uniform"``, U(-1, 1), as in the source's code.
        clip: clip the entries of each element to [-clip, clip] before the next element is computed.
        matrix_seed: seed of a fixed W. Replicates with different W need different seeds: see `seeded`.

    Source: von Oswald (2024), section 3.5.1; clip and contraction: ablations in its code.

    >>> LinearDynamics(d=3, length=5).sample(2, stream(0, "doc")).shape
    torch.Size([2, 5, 3])
    """

    d: Count = 10
    length: Count = 50
    noise: Noise = 0.01
    dynamics: Literal["orthogonal", "contracting", "fixed"] = "orthogonal"
    start: Start = "normal"
    clip: Positive | None = None
    matrix_seed: Whole = 0

    def seeded(self, seed: int) -> LinearDynamics:
        """The family for one training seed: a fixed matrix has the seed ``matrix_seed + seed``."""
        return dataclasses.replace(self, matrix_seed=self.matrix_seed + seed) if self.dynamics == "fixed" else self

    @functools.cached_property
    def _fixed(self) -> Float[Tensor, "d d"]:
        return draws.orthogonal((), self.d, stream(self.matrix_seed, "matrix"))

    def sample(self, batch: int, generator: torch.Generator) -> Float[Tensor, "batch t d"]:
        draws.check_draw(batch, generator)
        matrix = self._matrices(batch, generator)
        first = self._bounded(STARTS[self.start]((batch, self.d), generator))
        noise = self.noise * draws.normal((self.length - 1, batch, self.d), generator)
        return draws.unrolled(first, noise, lambda last, added: self._bounded(draws.applied(matrix, last) + added))

    def _matrices(self, batch: int, generator: torch.Generator) -> Float[Tensor, "batch d d"]:
        if self.dynamics == "fixed":
            return self._fixed.to(generator.device).expand(batch, -1, -1)
        q = draws.orthogonal((batch,), self.d, generator)
        if self.dynamics == "orthogonal":
            return q
        eigenvalues = 0.6 + 0.3 * draws.symmetric_uniform((batch, self.d), generator)
        return q.mT @ (eigenvalues[..., None] * q)

    def _bounded(self, element: Tensor) -> Tensor:
        return element if self.clip is None else element.clamp(-self.clip, self.clip)


@register("family", "observed-dynamics")
@dataclass(frozen=True)
class ObservedDynamics:
    """Partly observed linear systems: state h_{t+1} = W h_t + noise * eps ``(hidden,)``, element s_t = C h_t ``(d,)``.

    W is a random orthogonal matrix and the rows of C are orthonormal; each task has its own W and C. An element
    shows ``d`` of the state's dimensions. A linear model of the last hidden / d elements can predict the next one; a
    linear model of only the last element cannot.

    Args:
        hidden: width of the state, d or more.
        start: distribution of h_1: ``"normal"``, N(0, I), or ``"uniform"``, U(-1, 1).

    Source: von Oswald et al. (2023b), arXiv 2309.05858.

    >>> ObservedDynamics(d=2, hidden=4, length=7).sample(3, stream(0, "doc")).shape
    torch.Size([3, 7, 2])
    """

    d: Count = 5
    hidden: Count = 15
    length: Count = 50
    noise: Noise = 0.01
    start: Start = "normal"

    def __post_init__(self) -> None:
        if self.hidden < self.d:
            refuse("hidden", f"be at least d = {self.d}", self.hidden, "widen the state")

    def sample(self, batch: int, generator: torch.Generator) -> Float[Tensor, "batch t d"]:
        draws.check_draw(batch, generator)
        matrix, seen = (draws.orthogonal((batch,), self.hidden, generator) for _ in range(2))
        first = STARTS[self.start]((batch, self.hidden), generator)
        noise = self.noise * draws.normal((self.length - 1, batch, self.hidden), generator)
        states = draws.unrolled(first, noise, lambda last, added: draws.applied(matrix, last) + added)
        return states @ seen[:, : self.d].mT


@register("family", "nonlinear-dynamics")
@dataclass(frozen=True)
class NonlinearDynamics:
    """Dynamics that are linear in features: s_{t+1} = W f(s_t) + noise * eps with |f(s)| = sqrt(d).

    W ``(d, d)`` is a random orthogonal matrix for each task. The features are f(s) = sqrt(d) g/|g| with
    g = B tanh(gain A s). A ``(hidden, d)`` and B ``(d, hidden)`` are the same in all tasks; W is learned in context.

    Args:
        hidden: width of the features' hidden layer.
        gain: scale of tanh's inputs; a larger gain is less linear. With 1, most sequences converge to a fixed point.
        feature_seed: seed of A and B, which are the same for all training seeds.

    Source: von Oswald et al. (2023b), arXiv 2309.05858; widths, gain and normalisation are ours.

    >>> NonlinearDynamics(d=3, length=7).sample(2, stream(0, "doc")).shape
    torch.Size([2, 7, 3])
    """

    d: Count = 10
    hidden: Count = 40
    length: Count = 50
    noise: Noise = 0.01
    gain: Scale = 4.0
    feature_seed: Whole = 0

    @functools.cached_property
    def _weights(self) -> tuple[Tensor, Tensor]:
        generator = stream(self.feature_seed, "features")
        first, second = (draws.normal(shape, generator) for shape in ((self.hidden, self.d), (self.d, self.hidden)))
        return first / self.d**0.5, second / self.hidden**0.5

    def features(self, elements: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Features f(s); the next element is a linear function of them."""
        first, second = (weight.to(elements) for weight in self._weights)
        return self._unit(torch.tanh(self.gain * elements @ first.mT) @ second.mT)

    def sample(self, batch: int, generator: torch.Generator) -> Float[Tensor, "batch t d"]:
        draws.check_draw(batch, generator)
        matrix = draws.orthogonal((batch,), self.d, generator)
        first = self._unit(draws.normal((batch, self.d), generator))
        noise = self.noise * draws.normal((self.length - 1, batch, self.d), generator)
        return draws.unrolled(first, noise, lambda last, added: draws.applied(matrix, self.features(last)) + added)

    def _unit(self, vectors: Tensor) -> Tensor:
        return self.d**0.5 * functional.normalize(vectors, dim=-1)


@register("family", "few-shot-sequence")
@dataclass(frozen=True)
class FewShotSequence:
    """Few-shot learning for a predictor: pairs (x, W x + noise) as a sequence, with W a random orthogonal matrix.

    Elements ``sequence[:, 0::2]`` are inputs and ``sequence[:, 1::2]`` their targets; at each input, a predictor has to
    predict the target. A sequence contains ``tasks`` consecutive tasks, each with its own W and ``pairs`` pairs.

    Args:
        x: distribution of inputs: ``"normal"``, N(0, I), or ``"uniform"``, U(-1, 1).
        noise: standard deviation of the noise in each entry of a target.
        marked: append an entry to each element, 1 for inputs and 0 for targets, for predictors without positions.

    Source: von Oswald (2024), section 3.5.2; marks are ours.

    >>> FewShotSequence(d=3, pairs=4, tasks=2).sample(5, stream(0, "doc")).shape
    torch.Size([5, 16, 3])
    """

    d: Count = 10
    pairs: Count = 20
    tasks: Count = 1
    x: Start = "normal"
    noise: Noise = 0.0
    marked: bool = False

    def sample(self, batch: int, generator: torch.Generator) -> Float[Tensor, "batch t d"]:
        """Draw ``batch`` sequences of ``2 * pairs * tasks`` elements on the generator's device, in float32.

        Elements have ``d`` entries, or ``d + 1`` if they are marked.
        """
        draws.check_draw(batch, generator)
        matrix = draws.orthogonal((batch, self.tasks), self.d, generator)
        x = STARTS[self.x]((batch, self.tasks, self.pairs, self.d), generator)
        y = x @ matrix.mT
        if self.noise:
            y = y + self.noise * torch.randn(y.shape, generator=generator, device=generator.device)
        if self.marked:
            x, y = torch.cat([x, torch.ones_like(x[..., :1])], -1), torch.cat([y, torch.zeros_like(y[..., :1])], -1)
        return torch.stack([x, y], 3).flatten(1, 3)
