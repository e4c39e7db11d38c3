"""How alike two learners are on the same episodes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from mesascope.errors import require_instance
from mesascope.evidence.tables import Table, Tabular
from mesascope.lenses.access import predictions, sensitivities
from mesascope.lenses.needs import Tasks, require_access
from mesascope.measurement import Measurement
from mesascope.records import register
from mesascope.shapes import Tensor
from mesascope.tasks import Episode, Learner, Predictor
from mesascope.tasks.asking import check_tasks

__all__ = ["Agreement", "Alignment", "agreement", "alignment"]


@dataclass(frozen=True, repr=False)
class Agreement(Tabular):
    """What predictions alone tell of a and b; means over tasks, paired.

    ``prediction_difference`` is E |a - b|_2 over outputs; the errors are plain mean squared errors; ``mse_difference``
    and ``mse_ratio`` compare a's with b's on the same tasks, so that the tasks' own spread cancels.
    """

    prediction_difference: Measurement
    mse_a: Measurement
    mse_b: Measurement
    mse_difference: Measurement
    mse_ratio: Measurement

    def table(self) -> Table:
        """One row for each quantity."""
        return Table(
            {"quantity": field.name, **getattr(self, field.name).to_dict()} for field in dataclasses.fields(self)
        )


@dataclass(frozen=True, repr=False)
class Alignment(Agreement):
    """`Agreement` with the sensitivities dy/dx_q compared: E cos, and E |dy_a/dx_q - dy_b/dx_q|_2 (Frobenius)."""

    sensitivity_cosine: Measurement
    sensitivity_difference: Measurement


@register("lens", "agreement", needs="prediction")
def agreement(a: Learner | Predictor, b: Learner | Predictor, tasks: Tasks) -> Agreement:
    """Compare the predictions of two learners on episodes, or of two predictors on sequences. Needs *prediction*."""
    check_tasks(tasks)
    for learner in (a, b):
        require_access("agreement", learner)
    pairs = zip(predictions(a, tasks), predictions(b, tasks), strict=True)
    samples = [_compare_predictions(ya, yb, answers) for (answers, ya), (_, yb) in pairs]
    return Agreement(**_agreement_fields(_concatenated(samples)))


@register("lens", "alignment", needs="gradient")
def alignment(a: Learner, b: Learner, episodes: Episode) -> Alignment:
    """Compare the predictions and sensitivities of two learners. Needs *gradient*.

    Section 3 of the ICML paper, measures (1) to (3), with standard errors over tasks. The cosine of a query where
    both sensitivities vanish is 1, where one does 0.

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
    pairs = zip(sensitivities(a, episodes), sensitivities(b, episodes), strict=True)
    samples = [
        _compare_predictions(ya, yb, answers) | compare_sensitivities(sa, sb)
        for (answers, ya, sa), (_, yb, sb) in pairs
    ]
    joined = _concatenated(samples)
    return Alignment(
        **_agreement_fields(joined),
        sensitivity_cosine=Measurement.of(joined["cosine"]),
        sensitivity_difference=Measurement.of(joined["sensitivity"]),
    )


def _compare_predictions(ya: Tensor, yb: Tensor, answers: Tensor) -> dict[str, Tensor]:
    """One number a task: distance of predictions, and both squared errors."""
    return {
        "distance": (ya - yb).norm(dim=-1).mean(-1),
        "a": (ya - answers).square().flatten(1).mean(1),
        "b": (yb - answers).square().flatten(1).mean(1),
    }


def compare_sensitivities(sa: Tensor, sb: Tensor) -> dict[str, Tensor]:
    sa, sb = sa.flatten(-2).double(), sb.flatten(-2).double()
    lengths = sa.norm(dim=-1), sb.norm(dim=-1)
    product = lengths[0] * lengths[1]
    cosine = torch.where(
        product > 0, (sa * sb).sum(-1) / product.clamp_min(1e-300), (lengths[0] == lengths[1]).double()
    )
    return {"cosine": cosine.mean(-1), "sensitivity": (sa - sb).norm(dim=-1).mean(-1)}


def _concatenated(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.cat([sample[key] for sample in samples]) for key in samples[0]}


def _agreement_fields(joined: dict[str, Tensor]) -> dict[str, Measurement]:
    a, b = joined["a"].double(), joined["b"].double()
    return {
        "prediction_difference": Measurement.of(joined["distance"]),
        "mse_a": Measurement.of(a),
        "mse_b": Measurement.of(b),
        "mse_difference": Measurement.of(a - b),
        "mse_ratio": Measurement.ratio(a, b),
    }
