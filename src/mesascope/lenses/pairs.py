"""Agreement of two learners on the same tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mesascope.errors import require_instance
from mesascope.evidence.tables import Table, Tabular
from mesascope.lenses import access
from mesascope.lenses.needs import Tasks, require_access
from mesascope.measurement import Measurement
from mesascope.records import register
from mesascope.shapes import Tensor
from mesascope.tasks import Episode, Learner, Predictor
from mesascope.tasks.asking import check_tasks

__all__ = ["Agreement", "Alignment", "agreement", "alignment", "compare_sensitivities", "paired"]

# Rounding errors of the largest sensitivity, below which another counts as 0: it is a difference of larger terms.
_ROUNDING = 100


@dataclass(frozen=True, repr=False)
class Agreement(Tabular):
    """Comparison of the predictions of a and b; paired means over tasks.

    ``prediction_difference`` is E |a - b|_2 over outputs; the errors are plain mean squared errors; ``mse_difference``
    and ``mse_ratio`` compare a's with b's on the same tasks, so that the tasks' own spread cancels. The ratio is None
    if b makes no error on any task, as on labels that are all 0.
    """

    prediction_difference: Measurement
    mse_a: Measurement
    mse_b: Measurement
    mse_difference: Measurement
    mse_ratio: Measurement | None

    def table(self) -> Table:
        """One row for each quantity."""
        return Table(
            {"quantity": field.name, **found.to_dict()}
            for field in dataclasses.fields(self)
            if (found := getattr(self, field.name)) is not None
        )


@dataclass(frozen=True, repr=False)
class Alignment(Agreement):
    """`Agreement`, and a comparison of the sensitivities dy/dx_q: E cos, and E |dy_a/dx_q - dy_b/dx_q|_F."""

    sensitivity_cosine: Measurement
    sensitivity_difference: Measurement


@register("lens", "agreement", needs="prediction")
def agreement(a: Learner | Predictor, b: Learner | Predictor, tasks: Tasks) -> Agreement:
    """Compare the predictions of two learners on episodes, or of two predictors on sequences. Needs *prediction*."""
    check_tasks(tasks)
    for learner in (a, b):
        require_access("agreement", learner)
    found = paired(a, [b], tasks, [False])[0]
    access.require_causal([a, b], tasks)
    return found


@register("lens", "alignment", needs="gradient")
def alignment(a: Learner, b: Learner, episodes: Episode) -> Alignment:
    """Compare the predictions and sensitivities of two learners. Needs *gradient*.

    Standard errors are over tasks. The cosine of a query is 1 if both sensitivities vanish, to the rounding of the
    largest ones, and 0 if one does.

    Source: von Oswald et al. (2023), section 3, measures (1) to (3).

    >>> from mesascope.learners import GradientDescent
    >>> from mesascope.streams import stream
    >>> from mesascope.tasks import LinearRegression
    >>> episodes = LinearRegression().sample(100, stream(0, "doc"))
    >>> same = alignment(GradientDescent(1, 1.0), GradientDescent(1, 2.0), episodes)
    >>> f"{same.sensitivity_cosine.value:.3f}"
    '1.000'
    """
    require_instance("episodes", episodes, Episode)
    check_tasks(episodes)
    for learner in (a, b):
        require_access("alignment", learner, episodes)
    (found,) = paired(a, [b], episodes, [True])
    assert isinstance(found, Alignment)
    return found


def paired(
    a: Learner | Predictor, others: Sequence[Learner | Predictor], tasks: Tasks, derived: Sequence[bool]
) -> list[Agreement]:
    """Compare ``a`` with each of the others on the same tasks: an `Alignment` if ``derived``, else an `Agreement`.

    Every learner predicts each part of the tasks once, so that random predictions are the same in all pairs.
    """
    own = access.seen(a, tasks, derived=any(derived))
    return [_compared(own, access.seen(b, tasks, derived=d)) for b, d in zip(others, derived, strict=True)]


def _compared(one: access.Seen, other: access.Seen) -> Agreement:
    a, b = one.error.double(), other.error.double()
    fields: dict[str, Any] = {
        "prediction_difference": Measurement.of((one.prediction - other.prediction).norm(dim=-1).mean(-1)),
        "mse_a": Measurement.of(a),
        "mse_b": Measurement.of(b),
        "mse_difference": Measurement.of(a - b),
        "mse_ratio": Measurement.ratio(a, b) if b.any() else None,
    }
    if one.sensitivity is None or other.sensitivity is None:
        return Agreement(**fields)
    cosine, difference = compare_sensitivities(one.sensitivity, other.sensitivity).values()
    return Alignment(
        **fields, sensitivity_cosine=Measurement.of(cosine), sensitivity_difference=Measurement.of(difference)
    )


def compare_sensitivities(sa: Tensor, sb: Tensor) -> dict[str, Tensor]:
    """Mean ``"cosine"`` of two sensitivities ``(tasks, m, dy, dx)``, and ``"sensitivity"``, their distance."""
    gone = _vanishes(sa), _vanishes(sb)
    sa, sb = sa.flatten(-2).double(), sb.flatten(-2).double()
    product = (sa.norm(dim=-1) * sb.norm(dim=-1)).clamp_min(1e-300)
    cosine = torch.where(gone[0] | gone[1], (gone[0] & gone[1]).double(), (sa * sb).sum(-1) / product)
    return {"cosine": cosine.mean(-1), "sensitivity": (sa - sb).norm(dim=-1).mean(-1)}


def _vanishes(sensitivity: Tensor) -> Tensor:
    """True for each query whose sensitivity is 0 to the rounding of the largest one, and has no direction."""
    lengths = sensitivity.flatten(-2).double().norm(dim=-1)
    return lengths <= _ROUNDING * torch.finfo(sensitivity.dtype).eps * lengths.max()
