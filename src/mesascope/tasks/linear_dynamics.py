"""Linear dynamics: sequences whose next element is a linear map of the last."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Literal

import torch

from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import draws
from mesascope.tasks.draws import STARTS, Noise
from mesascope.validate import Count, Positive, Whole

__all__ = ["LinearDynamics"]


@register("family", "linear-dynamics")
@dataclass(frozen=True)
class LinearDynamics:
    """Fully observed linear systems, one a task: s_{t+1} = W s_t + noise * eps, with eps standard normal.

    W ``(d, d)`` is a random orthogonal matrix Q, uniform on the orthogonal group, or a contraction Q^T diag(a) Q with
    eigenvalues a ~ U(0.3, 0.9) that differ from task to task, or one orthogonal matrix for all tasks, which need not be
    learned in context.

    Args:
        d: width of an element.
        length: elements of a sequence (T).
        noise: standard deviation of the noise that is added at each step.
        dynamics: ``"orthogonal"``, ``"contracting"`` or ``"fixed"``.
        start: law of s_1: ``"normal"``, N(0, I), as in the text of the thesis, or ``"uniform"``, U(-1, 1), as in the
            code behind its figures.
        clip: clip every entry of every element to [-clip, clip] before the next is drawn.
        matrix_seed: seed of a fixed W. Replicates that differ in W need a seed each: see `seeded`.

    Source: thesis, section 3.5.1; clip and contraction, the ablations of its code.

    >>> LinearDynamics(d=3, length=5).sample(2, stream(0, "doc")).shape
    torch.Size([2, 5, 3])
    """

    d: Count = 10
    length: Count = 50
    noise: Noise = 0.01
    dynamics: Literal["orthogonal", "contracting", "fixed"] = "orthogonal"
    start: Literal["normal", "uniform"] = "normal"
    clip: Positive | None = None
    matrix_seed: Whole = 0

    def seeded(self, seed: int) -> LinearDynamics:
        """The family of one training seed: a fixed matrix is another one for each seed."""
        return dataclasses.replace(self, matrix_seed=seed) if self.dynamics == "fixed" else self

    @functools.cached_property
    def _fixed(self) -> Float[Tensor, "d d"]:
        return draws.orthogonal((), self.d, stream(self.matrix_seed, "matrix"))

    def sample(self, batch: int, generator: torch.Generator) -> Float[Tensor, "batch t d"]:
        """Draw ``batch`` sequences on the generator's device, in float32."""
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
