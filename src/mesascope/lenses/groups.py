"""Checks of named groups of learners, and of sequences, for lenses that measure several learners."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from mesascope.errors import ArgumentError, ArgumentTypeError, refuse, require_choice, require_count, shown
from mesascope.lenses.needs import Tasks, require_access
from mesascope.shapes import Float, Tensor
from mesascope.tasks.calling import check_tasks
from mesascope.training import Ensemble

_Member = TypeVar("_Member")


def require_groups(
    lens: str, groups: Mapping[str, Sequence[Any]], against: Sequence[str] = (), tasks: Tasks | None = None
) -> None:
    """Raise unless groups map names to lists of learners for this lens, and ``against`` lists some of these names."""
    if not isinstance(groups, Mapping) or not groups:
        raise ArgumentTypeError(f"groups must map names to lists of learners, but is {shown(groups)}: pass some.")
    for name, learners in groups.items():
        if not isinstance(learners, Sequence) or not learners:
            remedy = "pass its members()" if isinstance(learners, Ensemble) else "pass [learner]"
            raise ArgumentTypeError(f"{name} must be a list of some learners, but is {shown(learners)}: {remedy}.")
        for learner in learners:
            require_access(lens, learner, tasks)
    if isinstance(against, str):
        raise ArgumentTypeError(f"against must be a list of names, but is {against!r}: pass [{against!r}].")
    for name in against:
        require_choice("against", name, groups)


def against_others(
    groups: Mapping[str, Sequence[_Member]], against: Sequence[str]
) -> Iterator[tuple[str, str, list[tuple[_Member, _Member]]]]:
    """Yield names and pairs of members of each group and each other group in ``against``; one member pairs with all."""
    for name, members in groups.items():
        for other in (other for other in against if other != name):
            parts = members, groups[other]
            count = max(map(len, parts))
            if {len(part) for part in parts} - {1, count}:
                raise ArgumentError(
                    f"groups must have as many members as the groups that they are compared with, or one, but {name} "
                    f"and {other} have {len(members)} and {len(groups[other])}: build one for each."
                )
            yield name, other, list(zip(*(list(part) * (count // len(part)) for part in parts), strict=True))


def numbers(tensor: Tensor) -> np.ndarray:
    """A tensor as a NumPy array in double precision."""
    return tensor.detach().double().cpu().numpy()


def require_sequences(lens: str, sequences: Any) -> None:
    """Raise unless sequences are finite tensors ``(tasks, t, d)``."""
    if not isinstance(sequences, Tensor):
        raise ArgumentTypeError(
            f"{lens} must be given sequences (tasks, t, d), but is given {shown(sequences)}: draw some."
        )
    check_tasks(sequences)


def chosen_times(times: Sequence[int] | None, sequences: Float[Tensor, "tasks t d"]) -> list[int]:
    """Times t (numbers of known elements), checked to be between 1 and length - 1; all of these if None."""
    known = sequences.shape[1] - 1
    chosen = list(range(1, known + 1)) if times is None else list(times)
    for time in chosen:
        require_count("times", time)
        if time > known:
            refuse("times", f"be at most {known}, one less than the elements", time, "draw longer sequences")
    return chosen
