"""Learners by name, several a name, as lenses that measure them together are given them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from mesascope.errors import ArgumentError, ArgumentTypeError, require_choice, shown
from mesascope.shapes import Tensor
from mesascope.training import Ensemble

__all__ = ["in_pairs", "numbers", "require_against", "require_groups"]

_Member = TypeVar("_Member")


def require_groups(groups: Mapping[str, Sequence[Any]]) -> None:
    """Refuse what is no mapping from names to lists of learners."""
    if not isinstance(groups, Mapping) or not groups:
        raise ArgumentTypeError(f"groups must map names to lists of learners, but is {shown(groups)}: pass some.")
    for name, learners in groups.items():
        if not isinstance(learners, Sequence) or not learners:
            remedy = "pass its members()" if isinstance(learners, Ensemble) else "pass [learner]"
            raise ArgumentTypeError(f"{name} must be a list of some learners, but is {shown(learners)}: {remedy}.")


def require_against(against: Sequence[str], groups: Mapping[str, Any]) -> None:
    """Refuse what are no names of groups."""
    if isinstance(against, str):
        raise ArgumentTypeError(f"against must be a list of names, but is {against!r}: pass [{against!r}].")
    for name in against:
        require_choice("against", name, groups)


def in_pairs(members: Sequence[_Member], others: Sequence[_Member], names: str) -> list[tuple[_Member, _Member]]:
    """Each with the one of its place, or with the only one."""
    count = max(len(members), len(others))
    if {len(members), len(others)} - {1, count}:
        raise ArgumentError(
            f"groups must have as many members as the groups that they are compared with, or one, but {names} have "
            f"{len(members)} and {len(others)}: build one for each."
        )
    return list(zip(*(list(part) * (count // len(part)) for part in (members, others)), strict=True))


def numbers(tensor: Tensor) -> np.ndarray:
    """In double precision."""
    return tensor.detach().double().cpu().numpy()
