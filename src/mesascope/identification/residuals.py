"""Residuals between a candidate's and a learner's predictions."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from mesascope.identification.answering import Answers, answers, grouped, joined, sizes
from mesascope.identification.verdict import FARTHEST
from mesascope.learners import GradientDescentPlusPlus, Summed
from mesascope.learners.descent import filters
from mesascope.learners.tuning.starts import depths
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Episode, Learner

# Maximum residual, also used for missing answers.
_FAR = FARTHEST**0.5


class Fit(NamedTuple):
    """Fitted parameters of a candidate, the learner built from them, and the loss."""

    parameters: dict[str, Any]
    learner: Learner
    loss: float


class _Group(NamedTuple):
    """Tasks of one shape, from one or more conditions, with divisors of squared differences and balancing weights."""

    names: list[str]
    tasks: Episode
    seen: Float[Tensor, "tasks m dy"]
    size: Float[Tensor, "tasks dy"]
    weight: Float[Tensor, " tasks"]


class Residuals:
    """Residuals of predictions divided by the root of `sizes`, as one array."""

    def __init__(self, tasks: Mapping[str, Episode], seen: Answers, pooled: bool = False) -> None:
        self.tasks, self.seen = tasks, seen
        self.count = sum(one.numel() for one in seen.values())
        size = sizes(tasks, seen, pooled)
        weight = {name: one.new_full((len(one),), one.numel() ** -0.5) for name, one in seen.items()}
        self.groups = []
        for names in grouped(tasks).values():
            parts = [torch.cat([part[name] for name in names]) for part in (seen, size, weight)]
            self.groups.append(_Group(names, joined([tasks[name] for name in names]), *parts))

    def __call__(self, learner: Learner) -> Tensor:
        found = answers(learner, self.tasks, partly=True)
        missing = {name: torch.full_like(one, torch.nan) for name, one in self.seen.items() if name not in found}
        answered = {**found, **missing}
        return self._of([torch.cat([answered[name] for name in group.names])[None] for group in self.groups])[0]

    def of_sizes(self, learner: nn.Module, sizes: Mapping[str, Float[Tensor, "*steps several"]]) -> Tensor:
        """Residuals for several values of a learner's parameters, one row per value."""
        if is_filter(learner):
            return self._of(self._filtered(learner, sizes))
        weights = {name: one[..., None, None, None] for name, one in sizes.items()}
        with torch.inference_mode():
            answered = [
                functional_call(learner, weights, (group.tasks.context, group.tasks.xq)) for group in self.groups
            ]
        return self._of(answered)

    def _filtered(self, learner: nn.Module, sizes: Mapping[str, Tensor]) -> list[Tensor]:
        """Predictions of a descent, computed from the spectra of contexts."""
        values, asked, given = zip(*self.spectra, strict=True)
        own = {name.rpartition(".")[2]: one[..., None, None] for name, one in sizes.items()}
        unit = self._pairs / learner.pairs if isinstance(learner, Summed) else 1.0
        gain, _ = filters(torch.cat(values), self._pairs, unit * own["eta"], own.get("gamma"))
        gains = gain.split([len(one) for one in values], 1)
        return [torch.einsum("tmd,std,tdy->stmy", *parts) for parts in zip(asked, gains, given, strict=True)]

    @functools.cached_property
    def _pairs(self) -> Float[Tensor, "tasks 1"]:
        """Number of pairs of every task, in the groups' order."""
        counts = [torch.full((len(group.size), 1), group.tasks.context.x.shape[-2]) for group in self.groups]
        return torch.cat(counts).double()

    def step_sizes(self, learner: nn.Module) -> list[float]:
        """Step sizes of the best-fitting gradient descent (the real parts, if they are complex).

        The gain e_1 - e_2 lambda + e_3 lambda^2 ... is linear in the elementary symmetric polynomials e_k of the sizes.
        """
        columns, seen = [], []
        for group, (values, asked, given) in zip(self.groups, self.spectra, strict=True):
            unit = group.tasks.context.x.shape[-2] / learner.pairs if isinstance(learner, Summed) else 1.0
            powers = torch.stack([unit * (-unit * values) ** power for power in range(depths(learner)[-1])])
            scale = (group.weight[:, None] / group.size.sqrt())[:, None, :]
            columns.append((torch.einsum("tmd,std,tdy->tmys", asked, powers, given) * scale[..., None]).flatten(0, 2))
            seen.append((group.seen * scale).flatten())
        found = np.linalg.lstsq(torch.cat(columns).numpy(), torch.cat(seen).numpy())[0]
        return np.roots([1, *((-1) ** (1 + place) * one for place, one in enumerate(found))]).real.tolist()

    @functools.cached_property
    def spectra(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Spectra by group: eigenvalues of C = X^T X / n, and queries and X^T Y / n in the eigenbasis."""
        found = []
        for group in self.groups:
            (x, y), xq, _ = group.tasks
            values, basis = torch.linalg.eigh(x.mT @ x / x.shape[-2])
            found.append((values, xq @ basis, basis.mT @ (x.mT @ y) / x.shape[-2]))
        return found

    def _of(self, answered: list[Tensor]) -> Tensor:
        """Residuals, ``several`` rows, of each group's predictions ``(several, tasks, m, dy)``; nan is the maximum."""
        rows = []
        for one, group in zip(answered, self.groups, strict=True):
            found = (one - group.seen) / group.size.sqrt()[:, None, :]
            rows.append((found.clamp(-_FAR, _FAR).nan_to_num(_FAR) * group.weight[:, None, None]).flatten(1))
        return torch.cat(rows, 1)

    def fit(self, parameters: Mapping[str, Any], learner: Learner) -> Fit:
        """Make a `Fit`; the loss is the mean squared residual of a condition, summed over conditions."""
        return Fit({**parameters}, learner, self(learner).square().sum().item())


def is_filter(learner: nn.Module) -> bool:
    """True for descents from zero weights without clipping, for which `filters` is valid."""
    descent = learner.learner if isinstance(learner, Summed) else learner
    return isinstance(descent, GradientDescentPlusPlus) and descent.w0 is None and descent.token_clip is None
