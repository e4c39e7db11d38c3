"""An algorithm that a learner may run, with the parameters that are free in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field

from mesascope.errors import (
    ArgumentError,
    ArgumentTypeError,
    require_callable,
    require_choice,
    require_count,
    require_instance,
    shown,
)
from mesascope.learners import Range
from mesascope.shapes import Tensor
from mesascope.tasks import Learner
from mesascope.validate import frozen

# Families of algorithms, whose members meet in limits; and that of candidates that a user adds.
OWN_FAMILY = "own candidates"
FAMILIES = (
    "constants", "averages", "neighbours", "kernel regression", "descent", "online descent", "least squares",
    "sparse regression", "memorised tasks", "trees", "small networks", OWN_FAMILY,
)  # fmt: skip


@frozen
class Candidate:
    """An algorithm that a learner may run.

    Args:
        name: printed in answers.
        build: makes the learner from the free parameters, by name.
        free: each parameter's range.
        family: one of `FAMILIES`.
        own_sizes: True if steps have sizes of their own, which are sought from one size for all.
        draws: makes the same algorithm with another seed, from the free parameters and ``seed=``, if it draws at
            random.
        most_tasks: largest number of tasks under each condition to fit it on, two or more; None for all.
        costly: True if it takes long: it is tried only if the learner runs no other candidate.
        formula: the free parameters from the learner's predictions by condition, where a formula has the nearest.

    >>> from mesascope.learners import LeastSquares
    >>> ridge = Candidate("ridge", LeastSquares, {"ridge": Range(1e-4, 100.0, "log")})
    >>> ridge.build(ridge=0.5)
    LeastSquares(ridge=0.5)
    """

    name: str
    build: Callable[..., Learner]
    free: Mapping[str, Range] = field(default_factory=dict)
    family: str = OWN_FAMILY
    own_sizes: bool = False
    draws: Callable[..., Learner] | None = None
    most_tasks: int | None = None
    costly: bool = False
    formula: Callable[[Mapping[str, Tensor]], dict[str, float]] | None = None

    def __post_init__(self) -> None:
        require_instance("name", self.name, str)
        require_callable("build", self.build)
        require_instance("free", self.free, Mapping)
        for name, one in self.free.items():
            require_instance(f"free[{name!r}]", one, Range, "pass Range(low, high, scale)")
        require_choice("family", self.family, FAMILIES)
        if self.most_tasks is not None:
            require_count("most_tasks", self.most_tasks, least=2)  # one has no standard error


def require_candidates(given: Iterable[Candidate]) -> list[Candidate]:
    """List of candidates; raise if an item is not a candidate, or if two have the same name."""
    if isinstance(given, Candidate) or not isinstance(given, Iterable):
        raise ArgumentTypeError(f"candidates must be a list of some, but is {shown(given)}: pass [candidate].")
    found = list(given)
    for one in found:
        require_instance("a candidate", one, Candidate, "pass Candidate(name, build, free)")
    if not found:
        raise ArgumentError("candidates must hold one at least, but are none: pass some, or None for the catalogue.")
    names = [one.name for one in found]
    if len({*names}) < len(names):
        raise ArgumentError(f"candidates must have names of their own, but are {shown(names)}: rename some.")
    return found
