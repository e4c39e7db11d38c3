"""Networks that the package ships, each with its record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mesascope import nets
from mesascope.explore.subjects import Subject
from mesascope.records import from_record

NETWORKS = Path(__file__).parent / "networks"
# Shipped regressors in the order of the menu, and predictors of sequences.
REGRESSORS = tuple(f"{kind}-{d}" for d in (1, 10) for kind in ("linear", "looped", "softmax"))
PREDICTORS = ("mesa-2", "softmax-2")


def shipped(name: str) -> Subject:
    """Load a shipped network as a `Subject`, with the tasks, training and loss in its record.json.

    >>> shipped("linear-1").title
    'one linear layer, 1 input'
    """
    record = json.loads((NETWORKS / name / "record.json").read_text())
    network = nets.InContextRegressor.from_pretrained(NETWORKS / name).eval().double().requires_grad_(False)
    algorithm = record["algorithm"]
    descent = from_record(algorithm.get("centred", algorithm))
    d = record["family"]["d_in"]
    title = f"{record['title']}, {d} input{'s' if d > 1 else ''}"
    return Subject(title, network, from_record(record["family"]), descent, record)


def shipped_predictor(name: str) -> tuple[str, Any, Any]:
    """Title, network and family of a shipped predictor of sequences."""
    record = json.loads((NETWORKS / name / "record.json").read_text())
    network = nets.SequencePredictor.from_pretrained(NETWORKS / name).eval().requires_grad_(False)
    return record["title"], network, from_record(record["family"])
