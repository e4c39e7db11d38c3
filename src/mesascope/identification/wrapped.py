"""Candidates with predictions clipped to the range of the context's labels, or replaced by the nearest label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import nn

from mesascope.identification.candidate import Candidate
from mesascope.identification.catalogue import around
from mesascope.identification.comparing import Compared
from mesascope.identification.seen import Seen
from mesascope.learners import Clipped, LabelCopying

# Wrappers of candidates, by name.
FORMS = {"clipped": Clipped, "label-copying": LabelCopying}
# Number of candidates to wrap, in addition to the nearest of each family.
_NEAREST = 8
# Minimum share of answers at the ends of the labels' range, under any condition, for a learner that clips.
_ENDS = 0.01
# Rounding error in single precision, relative to the largest label.
_ROUNDING = 1e-6


def wrapped(found: Sequence[Compared], seen: Seen) -> list[Candidate]:
    """The nearest candidates with clipping or label copying, if the learner's answers suggest it.

    A learner copies labels if all its answers are labels of their context. It clips if all answers lie in the range of
    the labels and some at its ends.
    """
    nearest = sorted(found, key=lambda one: one.row.own_difference.mean.value)
    plain = [one.candidate for one in nearest if isinstance(one.own.learner, nn.Module) and not one.candidate.own_sizes]
    first = {one.family: one for one in reversed(plain)}
    inner = {one.name: one for one in (*plain[:_NEAREST], *first.values())}.values()
    return [
        replace(one, name=f"{form} {one.name}", build=around(FORMS[form], one.build), formula=None)
        for form in _forms(seen)
        for one in inner
    ]


def _forms(seen: Seen) -> Iterator[str]:
    copies, inside, ends = [], [], []
    for name, answer in seen.test.items():
        labels = seen.tasks["test"][name].context.y[:, None]
        slack = seen.resolution / 2 + _ROUNDING * labels.abs().amax()
        low, high = labels.aminmax(dim=-2)
        copies.append(bool(((answer[:, :, None] - labels).abs() <= slack).all(-1).any(-1).all()))
        inside.append(bool(((answer >= low - slack) & (answer <= high + slack)).all()))
        ends.append(float(((answer - low).abs() <= slack).logical_or((answer - high).abs() <= slack).double().mean()))
    if all(copies):
        yield "label-copying"
    elif all(inside) and max(ends) >= _ENDS:
        yield "clipped"
