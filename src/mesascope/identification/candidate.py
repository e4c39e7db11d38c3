"""Candidate algorithms with their free parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any

from mesascope.errors import (
    ArgumentError,
    ArgumentTypeError,
    MesascopeError,
    raised,
    refuse,
    require_callable,
    require_choice,
    require_instance,
    shown,
)
from mesascope.learners import Range
from mesascope.shapes import Tensor
from mesascope.tasks import Learner
from mesascope.tasks.calling import takes
from mesascope.validate import Several, frozen

# Families of algorithms, whose members share limiting cases, and the family of user-defined candidates.
OWN_FAMILY = "own candidates"
FAMILIES = (
    "constants", "averages", "neighbours", "kernel regression", "descent", "online descent", "least squares",
    "sparse regression", "memorised tasks", "trees", "small networks", OWN_FAMILY,
)  # fmt: skip


@frozen
class Candidate:
    """An algorithm that is compared with a learner.

    Args:
        name: name in results.
        build: function from the free parameters (keyword arguments) to the algorithm as a learner.
        free: range of each free parameter.
        family: one of `FAMILIES`.
        own_sizes: True to fit one unbounded size per step (or matrix entry), from the best common size.
        draws: for random algorithms, ``build`` with an additional argument ``seed``.
        most_tasks: maximum number of tasks per condition for fits, at least two; None for all.
        costly: True for slow algorithms, which are compared only if the learner runs no other candidate.
        formula: closed-form fit, from the learner's predictions by condition to the free parameters.

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
    most_tasks: Several | None = None  # a single task has no standard error
    costly: bool = False
    formula: Callable[[Mapping[str, Tensor]], dict[str, float]] | None = None

    def __post_init__(self) -> None:
        require_callable("build", self.build)
        require_instance("free", self.free, Mapping)
        for name, one in self.free.items():
            require_instance(f"free[{name!r}]", one, Range, "pass Range(low, high, scale)")
        if not takes(self.build, (), **self.free):
            refuse("build", f"take the parameters of free, {[*self.free]}", self.build, "rename one of them")
        require_choice("family", self.family, FAMILIES)

    def learner(self, parameters: Mapping[str, Any]) -> Learner:
        """Algorithm with these values of the free parameters; raises if ``build`` does, or if it returns no learner."""
        try:
            found = self.build(**parameters)
        except MesascopeError:
            raise
        except Exception as error:
            rule = f"candidate {self.name!r}: build must return a learner for all values in free"
            values = ", ".join(f"{name}={value}" for name, value in parameters.items())
            raise ArgumentError(f"{rule}, but raised {raised(error)} for {values}: correct it or free.") from error
        require_callable(f"candidate {self.name!r}: the result of build", found)
        return found


def require_candidates(given: Iterable[Candidate]) -> list[Candidate]:
    """Return a list of candidates; raise if an item is not a candidate, or if two have the same name."""
    if isinstance(given, str | Candidate) or not isinstance(given, Iterable):
        raise ArgumentTypeError(f"candidates must be a list of candidates, but is {shown(given)}: pass [candidate].")
    found = list(given)
    for one in found:
        require_instance("a candidate", one, Candidate, "pass [Candidate(name, build, free)], say")
    if not found:
        raise ArgumentError("candidates must hold at least one, but hold none: pass some, or None for the catalogue.")
    names = [one.name for one in found]
    if len({*names}) < len(names):
        raise ArgumentError(f"candidates must have different names, but have {shown(names)}: rename some.")
    return found
