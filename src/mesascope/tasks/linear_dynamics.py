"""Linear dynamics: sequences whose next element is a linear map of the last."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Literal

import torch

from mesascope.errors import require_choice, require_count, require_number
from mesascope.records import register
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks.draws import (
    STARTS,
    applied,
    check_draw,
    normal,
    orthogonal,
    require_scale,
    symmetric_uniform,
    unrolled,
)

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
        noise: standard deviation of what is added at each step.
        dynamics: ``"orthogonal"``, ``"contracting"`` or ``"fixed"``.
        start: law of s_1: ``"normal"``, N(0, I), as in the text of the thesis, or ``"uniform"``, U(-1, 1), as in the
            code behind its figures.
        clip: clip every entry of every element to [-clip, clip] before the next is drawn.
        matrix_seed: seed of the stream that a fixed W is drawn from, once. Replicates that are to differ in it need one
            each: `seeded`.

    Source: thesis, section 3.5.1; clip and contraction, the ablations of its code.

    >>> LinearDynamics(d=3, length=5).sample(2, stream(0, "doc")).shape
    torch.Size([2, 5, 3])
    """

    d: int = 10
    length: int = 50
    noise: float = 0.01
    dynamics: Literal["orthogonal", "contracting", "fixed"] = "orthogonal"
    start: Literal["normal", "uniform"] = "normal"
    clip: float | None = None
    matrix_seed: int = 0

    def __post_init__(self) -> None:
        for name in ("d", "length"):
            require_count(name, getattr(self, name))
        require_scale("noise", self.noise, least=0)
        require_choice("dynamics", self.dynamics, ("orthogonal", "contracting", "fixed"))
        require_choice("start", self.start, STARTS)
        if self.clip is not None:
            require_number("clip", self.clip, above=0)
        require_count("matrix_seed", self.matrix_seed, least=0)

    def seeded(self, seed: int) -> LinearDynamics:
        """The family that training seed ``seed`` learns from: where one matrix is fixed, with a matrix of its own."""
        return dataclasses.replace(self, matrix_seed=seed) if self.dynamics == "fixed" else self

    @functools.cached_property
    def _fixed(self) -> Float[Tensor, "d d"]:
        return orthogonal((), self.d, stream(self.matrix_seed, "matrix"))

    def sample(self, batch: int, generator: torch.Generator) -> Float[Tensor, "batch t d"]:
        """Draw ``batch`` sequences on the generator's device, in float32."""
        check_draw(batch, generator)
        matrix = self._matrices(batch, generator)
        first = self._bounded(STARTS[self.start]((batch, self.d), generator))
        noise = self.noise * normal((self.length - 1, batch, self.d), generator)
        return unrolled(first, noise, lambda last, added: self._bounded(applied(matrix, last) + added))

    def _matrices(self, batch: int, generator: torch.Generator) -> Float[Tensor, "batch d d"]:
        if self.dynamics == "fixed":
            return self._fixed.to(generator.device).expand(batch, -1, -1)
        q = orthogonal((batch,), self.d, generator)
        if self.dynamics == "orthogonal":
            return q
        eigenvalues = 0.6 + 0.3 * symmetric_uniform((batch, self.d), generator)
        return q.mT @ (eigenvalues[..., None] * q)

    def _bounded(self, element: Tensor) -> Tensor:
        return element if self.clip is None else element.clamp(-self.clip, self.clip)
