"""How alike two learners are on the same episodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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

# Units of rounding of the largest sensitivity, below which another has vanished: it is a difference of larger terms.
_ROUNDING = 100


@dataclass(frozen=True, repr=False)
class Agreement(Tabular):
    """What predictions alone tell of a and b; means over tasks, paired.

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
    """`Agreement` with the sensitivities dy/dx_q compared: E cos, and E |dy_a/dx_q - dy_b/dx_q|_2 (Frobenius)."""

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

    Section 3 of the ICML paper, measures (1) to (3), with standard errors over tasks. The cosine of a query where
    both sensitivities vanish, to the rounding of the largest ones, is 1, where one does 0.

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


class _Part(NamedTuple):
    """Answers of a part of the tasks, a learner's predictions of them, and its sensitivities if they are compared."""

    answers: Tensor
    prediction: Tensor
    sensitivity: Tensor | None = None


def paired(
    a: Learner | Predictor, others: Sequence[Learner | Predictor], tasks: Tasks, derived: Sequence[bool]
) -> list[Agreement]:
    """``a`` with each of the others on the same tasks: an `Alignment` where ``derived`` says so, else an `Agreement`.

    Every learner is asked once for each part of the tasks: one that answers at random, too, is the same in all pairs.
    """
    asked = [_asked(a, tasks, any(derived)), *(_asked(b, tasks, d) for b, d in zip(others, derived, strict=True))]
    samples: list[list[dict[str, Tensor]]] = [[] for _ in others]
    for own, *parts in zip(*asked, strict=True):
        for sample, part in zip(samples, parts, strict=True):
            sample.append(_compared(own, part))
    return [_summary(_concatenated(sample)) for sample in samples]


def _asked(learner: Any, tasks: Any, derived: bool) -> Iterator[_Part]:
    look = access.sensitivities if derived else access.predictions
    return (_Part(*part) for part in look(learner, tasks))


def _compared(a: _Part, b: _Part) -> dict[str, Tensor]:
    """One number a task and quantity."""
    found = _compare_predictions(a.prediction, b.prediction, a.answers)
    if a.sensitivity is None or b.sensitivity is None:
        return found
    return found | compare_sensitivities(a.sensitivity, b.sensitivity)


def _compare_predictions(ya: Tensor, yb: Tensor, answers: Tensor) -> dict[str, Tensor]:
    """One number a task: distance of predictions, and both squared errors."""
    return {
        "distance": (ya - yb).norm(dim=-1).mean(-1),
        "a": (ya - answers).square().flatten(1).mean(1),
        "b": (yb - answers).square().flatten(1).mean(1),
    }


def compare_sensitivities(sa: Tensor, sb: Tensor) -> dict[str, Tensor]:
    gone = _vanishes(sa), _vanishes(sb)
    sa, sb = sa.flatten(-2).double(), sb.flatten(-2).double()
    product = (sa.norm(dim=-1) * sb.norm(dim=-1)).clamp_min(1e-300)
    cosine = torch.where(gone[0] | gone[1], (gone[0] & gone[1]).double(), (sa * sb).sum(-1) / product)
    return {"cosine": cosine.mean(-1), "sensitivity": (sa - sb).norm(dim=-1).mean(-1)}


def _vanishes(sensitivity: Tensor) -> Tensor:
    """True for each query whose sensitivity is 0 to the rounding of the largest one: its direction means nothing."""
    lengths = sensitivity.flatten(-2).double().norm(dim=-1)
    return lengths <= _ROUNDING * torch.finfo(sensitivity.dtype).eps * lengths.max()


def _concatenated(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.cat([sample[key] for sample in samples]) for key in samples[0]}


def _summary(joined: dict[str, Tensor]) -> Agreement:
    a, b = joined["a"].double(), joined["b"].double()
    fields: dict[str, Any] = {
        "prediction_difference": Measurement.of(joined["distance"]),
        "mse_a": Measurement.of(a),
        "mse_b": Measurement.of(b),
        "mse_difference": Measurement.of(a - b),
        "mse_ratio": Measurement.ratio(a, b) if b.any() else None,
    }
    if "cosine" not in joined:
        return Agreement(**fields)
    return Alignment(
        **fields,
        sensitivity_cosine=Measurement.of(joined["cosine"]),
        sensitivity_difference=Measurement.of(joined["sensitivity"]),
    )
