"""Linear probes of networks, as studies judge and show them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import lenses
from mesascope.errors import require_count
from mesascope.evidence import Claim, above, ours
from mesascope.reports import Line, Lines
from mesascope.studies.common import values

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

__all__ = ["TIMES", "Probing", "by_layer", "improvement", "probe_stages", "probed", "shuffled_targets"]

# Numbers of elements known at which networks are probed, and the regulariser of the preconditioned input: with less,
# few sequences, those in which an element lies almost outside those before, would decide all.
TIMES, REGULARISER = (10, 20, 40), 0.1


@dataclass(frozen=True)
class Probing:
    """Settings of probes."""

    probe_tasks: int = 4_000
    """Sequences that probes are fitted and judged on."""

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]
        require_count("probe_tasks", self.probe_tasks, least=4)


def probe_stages(lab: Lab, groups: Mapping[str, Sequence[Any]], sequences: Any, stages: Collection[str]) -> None:
    """A stage for each target, named after it."""
    for stage in stages:
        target = stage.removesuffix("-probe")
        lab.stage(
            stage,
            lambda target=target: lenses.probe(
                groups, sequences, target, times=TIMES, regulariser=REGULARISER, generator=lab.stream("shuffle")
            ),
        )


def by_layer(found: Any, name: str) -> np.ndarray:
    """Errors of a probe, ``(seeds, layers, times)``; layer 0 is before the first."""
    return found["mse", name].reshape(len(found["mse", name]), -1, len(TIMES))


def improvement(found: Any, name: str, layers: slice = slice(None)) -> np.ndarray:
    """Error after each of these layers over that before it, ``(seeds, layers times)``."""
    errors = by_layer(found, name)
    return (errors[:, 1:] / errors[:, :-1])[:, layers].reshape(len(errors), -1)


def shuffled_targets(stages: Collection[str], names: Collection[str], at_least: int = 3) -> Claim:
    """Probes that find something in shuffled targets have seen what they are judged on."""

    def ratios(r: Any) -> np.ndarray:
        found = [r[stage].ratio(f"{name}-shuffled", "constant") for stage in stages for name in names]
        return np.array([np.concatenate([one.ravel() for one in own]).mean() for own in zip(*found, strict=True)])

    return Claim(
        "shuffled-targets",
        "probes of shuffled targets find less than a tenth of what there is",
        ratios,
        above(0.9),
        ours("premise"),
        measures="error of such a probe / of the mean of the targets, mean over layers and times: mean over seeds",
        quantifier="mean",
        at_least=at_least,
        about="algorithms",
    )


def probed(stage: str, title: str, shown: Mapping[str, tuple[Any, str]]) -> Lines:
    """Errors of a probe over layers, relative to the targets' spread; role and label of each group."""

    def read(r: Any) -> list[Line]:
        found, lines = r[stage], []
        for name, (role, label) in shown.items():
            relative = values(found.ratio(name, "constant")).reshape(len(found["mse", name]), -1, len(TIMES))
            for place, (time, marks) in enumerate(zip(TIMES, ("o:", "s--", "^-"), strict=True)):
                y = relative[:, :, place]
                lines.append(Line(np.arange(y.shape[1]), y, role, f"{label}, {time} elements", marks=marks))
        return lines

    return Lines(title, "layer", "error of the probe / of the mean", read, "y")
