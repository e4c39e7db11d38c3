"""Predictions along a slice, and the weight of each label, for the panel One task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mesascope.errors import MesascopeError, NumericalError
from mesascope.explore.plots import SIGNS, sentence
from mesascope.identification import smoother_weights
from mesascope.lenses.needs import predict_in_eval
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, Episode

# Diameter of the largest disc in pixels, and maximum number of pairs whose weights are written: more would overlap.
LARGEST, MOST_LABELS = 56, 12
DISCS = (
    "The area of a disc is the weight of its label in the network's prediction: blue if positive, orange if negative."
)


def answers(
    learners: Mapping[str, Any], titles: Mapping[str, str], episode: Episode, xq: Float[Tensor, "1 m dx"]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Predictions by role (nan for a learner that raises an error), and the error messages."""
    found, failed = {}, []
    for role, learner in learners.items():
        try:
            with torch.no_grad():
                found[role] = _predicted(learner, episode.context, xq)[0, :, 0].numpy()
            if not np.isfinite(found[role]).all():
                raise NumericalError(f"predictions of {titles[role]} must be finite, but are not: use smaller sizes.")
        except Exception as error:
            failed.append(sentence(error))
            found[role] = np.full(xq.shape[1], np.nan)
    return found, failed


def _predicted(learner: Any, context: Context, xq: Float[Tensor, "1 m dx"]) -> Float[Tensor, "1 m dy"]:
    """Predictions of a learner; one query at a time if it takes no more."""
    try:
        return predict_in_eval(learner, context, xq)
    except MesascopeError:
        each = Context(*(part.expand(xq.shape[1], *part.shape[1:]) for part in context))
        return predict_in_eval(learner, each, xq[0, :, None])[None, :, 0]


def marks(learner: Any, episode: Episode, pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """One disc for each pair; its area shows the weight of the pair's label in the learner's prediction."""
    found = smoother_weights(learner, episode) if pairs else None
    weights = np.zeros(len(pairs)) if found is None else found[0, 0].numpy()
    size = LARGEST * np.sqrt(np.abs(weights) / max(np.abs(weights).max(initial=0), 1e-12))
    texts = [f"{one:.2f}" if len(pairs) <= MOST_LABELS and abs(one) >= 0.005 else "" for one in weights]
    x, y = ([row[place] for row in pairs] for place in (0, 1))
    colours = [SIGNS[bool(weight >= 0)] for weight in weights]
    return {"x": x, "y": y, "size": size.tolist(), "weight": weights.tolist(), "colour": colours, "text": texts}


def said(titles: dict[str, str], answers: dict[str, float]) -> str:
    """Predictions at the query in one sentence."""
    numbers = {role: f"{one:.4g}" if np.isfinite(one) else "none" for role, one in answers.items()}
    listed = "; ".join(f"{titles[role]}: {one}" for role, one in numbers.items())
    return f"Predictions at the query: {listed}. {DISCS}"
