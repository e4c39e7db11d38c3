"""Linear probes of networks: settings, stages, readings and panels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
import numpy as np

from mesascope import lenses, study
from mesascope.studies.mesa.dynamics import Shown
from mesascope.study import Claim, Line, Lines, Reading, above, frozen, ours, stage

# Numbers of elements known at which networks are probed, and the regulariser of the preconditioned input: with less,
# the few sequences in which an element lies almost outside the span of those before would decide all.
TIMES, REGULARISER = (10, 20, 40), 0.1


@frozen
class Probing:
    """Settings of probes."""

    probe_tasks: Annotated[int, msgspec.Meta(ge=4)] = 4_000  # Sequences that probes are fitted and judged on.


def probe_stages(lab: study.Lab, settings: Any, groups: Mapping[str, Sequence[Any]], targets: Collection[str]) -> None:
    """A stage ``TARGET-probe`` for each target."""
    shown = lab.draw(settings.family(), settings.probe_tasks, "probe")
    for target in targets:
        probe = partial(lenses.probe, times=TIMES, regulariser=REGULARISER, generator=lab.stream("shuffle"))
        lab.stage(f"{target}-probe", probe, groups, shown, target)


def errors_of(target: str, name: str) -> Reading:
    """Errors of the probe of a group, ``(seeds, layers, times)``; layer 0 is before the first."""
    return _by_layer(stage(f"{target}-probe", mse="error of the probe")["mse", name])


def _by_layer(errors: Reading) -> Reading:
    return errors.map(lambda found: found.reshape(len(found), -1, len(TIMES)), str(errors))


def improvement(target: str, name: str, layers: slice = slice(None)) -> Reading:
    """Error after each of these layers over that before it, ``(seeds, layers times)``."""

    def relative(errors: np.ndarray) -> np.ndarray:
        return (errors[:, 1:] / errors[:, :-1])[:, layers].reshape(len(errors), -1)

    return errors_of(target, name).map(relative, "error of the probe after a layer / before it")


def shuffled_targets(targets: Collection[str], names: Collection[str]) -> Claim:
    """Premise: probes find nothing in shuffled targets; those that do have seen what they are judged on."""

    def ratios(r: Any) -> np.ndarray:
        found = [r[f"{target}-probe"].ratio(f"{name}-shuffled", "constant") for target in targets for name in names]
        return np.array([np.concatenate([one.ravel() for one in own]).mean() for own in zip(*found, strict=True)])

    return Claim("shuffled-targets", "probes of shuffled targets err more than the mean of the targets",
                 ratios, above(1.0), ours("premise"), quantifier="every", at_least=3, about="algorithms",
                 measures="error of such a probe / of the mean of the targets, mean over layers and times")  # fmt: skip


def probe_panel(target: str, title: str, shown: Shown) -> Lines:
    """Errors of a probe over layers, relative to the targets' spread."""
    lines = []
    for name, (role, label) in shown.items():
        relative = _by_layer(stage(f"{target}-probe").ratio(name, "constant"))
        layers = relative.map(lambda found: np.arange(found.shape[1]), "layer")
        for place, (time, marks) in enumerate(zip(TIMES, ("o:", "s--", "^-"), strict=True)):
            at = relative.at((slice(None), slice(None), place), f"{time} elements")
            lines.append(Line(layers, at, role, f"{label}, {time} elements", marks=marks))
    return Lines(title, "layer", "error of the probe / of the mean", lines, "y")
