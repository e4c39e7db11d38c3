"""Measurements of a run: means over shared tasks with a joint covariance, and plain arrays with named axes."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mesascope.errors import ArgumentError, NumericalError, refuse, require_choice
from mesascope.evidence.numbers import Numbers, unmasked
from mesascope.evidence.tables import Table, Tabular

# Rounding error of a covariance, as a share of its standard errors.
_ROUNDING = 1e-7


class Arrays(Tabular, Mapping[str, np.ndarray]):
    """Arrays by name; keywords name the axes of each array, such as ``loss="seed step"``.

    >>> read = Arrays({"eta": np.array([5.9, 6.0])}, eta="seed")
    >>> read.table()
    seed  eta
    0     5.9
    1     6
    """

    def __init__(self, arrays: Mapping[str, Any], /, **axes: str) -> None:
        self._arrays = {name: unmasked(array) for name, array in arrays.items()}
        self.axes = {name: tuple(axes.get(name, "").split()) for name in self._arrays}
        for name, array in self._arrays.items():
            if array.dtype.kind == "O":
                raise ArgumentError(f"{name} must hold plain numbers, but holds objects: keep errors as Estimates.")
            if len(self.axes[name]) != array.ndim:
                raise ArgumentError(
                    f"{name} must have a name for each axis, but has shape {array.shape} and axes {self.axes[name]}: "
                    f'pass {name}="seed step", say.'
                )

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            raise ArgumentError(
                f"results must contain {name!r}, but contain {_listed(map(repr, sorted(self)))}: correct the name, or "
                "run the study again, with settings that measure it."
            )
        return self._arrays[name]

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        each = (f"{name} ({' x '.join(axes) or 'a number'})" for name, axes in self.axes.items())
        return f"Arrays of {_listed(each)}"

    def table(self) -> Table:
        """One row per index of the array with the most axes; arrays with any other axis are left out."""
        axes = max(self.axes.values(), key=len, default=())
        shared = [name for name in self if set(self.axes[name]) <= set(axes)]
        sizes = {axis: self[name].shape[i] for name in shared for i, axis in enumerate(self.axes[name])}
        rows = []
        for place in itertools.product(*(range(sizes[axis]) for axis in axes)):
            at = dict(zip(axes, place, strict=True))
            values = {name: self[name][tuple(at[axis] for axis in self.axes[name])].item() for name in shared}
            rows.append({**{axis: index for axis, index in at.items() if axis not in values}, **values})
        return Table(rows)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Arrays to store in an .npz file."""
        return {"@axes": np.array(json.dumps({name: " ".join(axes) for name, axes in self.axes.items()})), **self}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """The inverse of `to_arrays`."""
        return cls(
            {name: array for name, array in arrays.items() if name != "@axes"}, **json.loads(str(arrays["@axes"]))
        )


class Estimates(Tabular):
    """Means over the same ``n`` tasks with their covariance, so that shared errors cancel in ratios and differences.

    A quantity has a name, such as ``("mse", "trained")``, and one column per replicate. Cases, such as the points of a
    sweep, count as independent, as if they had separate tasks.

    Args:
        names: name of each column; columns with the same name are replicates, in order.
        mean: ``(columns,)``, or ``(cases, columns)``.
        covariance: of the means: ``(columns, columns)``, or ``(cases, columns, columns)``.
        n: number of tasks per mean.
        cases: variables that distinguish the cases, each ``(cases,)``.

    >>> rng = np.random.default_rng(0)
    >>> task = rng.normal(5.0, 1.0, 10_000)
    >>> both = Estimates.of({("mse", "trained"): [1.1 * task], ("mse", "gd"): [task + rng.normal(0, 0.01, 10_000)]})
    >>> print(both["mse", "gd"], both.ratio("trained", "gd"))
    [5.0063 ± 0.01] [1.099993 ± 2e-05]
    """

    def __init__(
        self,
        names: Sequence[tuple[str, ...]],
        mean: np.ndarray,
        covariance: np.ndarray,
        n: int,
        cases: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.names, self.n, self.cases = [tuple(name) for name in names], int(n), dict(cases or {})
        self.mean, self.covariance = np.asarray(mean), np.asarray(covariance)

    @classmethod
    def of(cls, tasks: Mapping[tuple[str, ...], Sequence[Any]]) -> Estimates:
        """Make `Estimates` from task values: for each quantity, one array or tensor ``(n,)`` per replicate."""
        names = [name for name, replicates in tasks.items() for _ in replicates]
        arrays = [unmasked(one).astype(np.float64) for replicates in tasks.values() for one in replicates]
        shapes = {array.shape for array in arrays}
        if [*map(len, shapes)] != [1]:
            refuse("tasks", "hold arrays of one shape (n,), one number per task", sorted(shapes), "use the same tasks")
        columns = np.stack(arrays)
        n = columns.shape[1]
        with np.errstate(invalid="ignore", over="ignore"):
            covariance = np.cov(columns) if n > 1 else np.full((len(arrays), len(arrays)), np.nan)
            return cls(names, columns.mean(1), np.atleast_2d(covariance) / n, n)

    @classmethod
    def over(cls, cases: Mapping[str, Sequence[Any]], points: Sequence[Estimates]) -> Estimates:
        """Stack the `Estimates` of all points of a sweep."""
        if len({(tuple(point.names), point.n) for point in points}) > 1:
            found = [f"{point!r}" for point in points][:2]
            refuse("points", "have the same quantities in one order, and as many tasks", found, "measure all alike")
        mean, covariance = (np.stack([getattr(point, part) for point in points]) for part in ("mean", "covariance"))
        return cls(points[0].names, mean, covariance, points[0].n, {k: np.asarray(v) for k, v in cases.items()})

    def __getitem__(self, name: tuple[str, ...] | str) -> np.ndarray:
        """Numbers with errors, ``(replicates,)`` or ``(replicates, cases)``; arithmetic keeps their correlations."""
        known = [" ".join(own) for own in self.names]
        wanted = " ".join(map(str, name)) if isinstance(name, tuple) else name
        require_choice("the quantity", wanted, set(known))
        columns = [index for index, own in enumerate(known) if own == wanted]
        return self._values[columns].view(Numbers)

    def ratio(self, above: str, below: str, quantity: str = "mse") -> np.ndarray:
        """Ratio ``above`` / ``below`` of a quantity by replicate; a single one is broadcast; a divisor of 0 raises.

        The error is nan if the divisor is within five standard errors of 0.
        """
        divisor = self[quantity, below]
        if not all(number.nominal_value for number in divisor.flat):
            raise ArgumentError(
                f"{below} must have a {quantity} other than 0 for a ratio, but has 0, as on labels that are all 0: use "
                f"difference({above!r}, {below!r}), or other tasks."
            )
        return self[quantity, above] / divisor

    def difference(self, one: str, other: str, quantity: str = "mse") -> np.ndarray:
        """Difference of ``quantity``: that of ``one`` minus that of ``other``."""
        return self[quantity, one] - self[quantity, other]

    def where(self, chosen: np.ndarray) -> Estimates:
        """Select the cases for which ``chosen`` is true."""
        cases = {name: values[chosen] for name, values in self.cases.items()}
        return Estimates(self.names, self.mean[chosen], self.covariance[chosen], self.n, cases)

    def __repr__(self) -> str:
        quantities, of = (
            _listed(name[0] for name in self.names),
            _listed(part for name in self.names for part in name[1:]),
        )
        cases = f", in {len(self.mean)} cases of {_listed(self.cases)}" if self.cases else ""
        return f"Estimates of {quantities} of {of} over {self.n} tasks{cases}"

    def table(self) -> Table:
        """One row for each quantity, replicate and case, with its standard error."""
        rows, seen = [], dict.fromkeys(self.names, -1)
        for column, name in enumerate(self.names):
            seen[name] += 1
            for case in range(len(self.mean)) if self.cases else (None,):
                at = (column,) if case is None else (case, column)
                spread = self.covariance[(*at, column)]
                rows.append(
                    {
                        "quantity": name[0],
                        "of": " ".join(name[1:]),
                        "replicate": seen[name],
                        **{key: values[case].item() for key, values in self.cases.items()},
                        "value": float(self.mean[at]),
                        "stderr": float(np.sqrt(spread)) if spread >= 0 else float("nan"),
                        "n": self.n,
                    }
                )
        return Table(rows)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Arrays to store in an .npz file."""
        named = {f"case {name}": values for name, values in self.cases.items()}
        own = {"names": np.array([" ".join(name) for name in self.names]), "n": np.array(self.n)}
        return own | {"mean": self.mean, "covariance": self.covariance} | named

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Estimates:
        """The inverse of `to_arrays`."""
        cases = {key.removeprefix("case "): values for key, values in arrays.items() if key.startswith("case ")}
        names = [tuple(str(name).split(" ")) for name in arrays["names"]]
        return cls(names, arrays["mean"], arrays["covariance"], int(arrays["n"]), cases)

    @functools.cached_property
    def _values(self) -> np.ndarray:
        """All columns as numbers with correlated errors, ``(columns,)`` or ``(columns, cases)``."""
        if not self.cases:
            return _correlated(self.mean, self.covariance)
        points = zip(self.mean, self.covariance, strict=True)
        return np.stack([_correlated(mean, covariance) for mean, covariance in points], axis=1)


# Content of one stage of a run.
Stage = Arrays | Estimates


def _listed(names: Iterable[str]) -> str:
    """The first four distinct names, and the number of others."""
    unlike = list(dict.fromkeys(names))
    return ", ".join(unlike[:4]) + (f" and {len(unlike) - 4} more" if len(unlike) > 4 else "")


def _correlated(mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Numbers with these means and covariances; the error is nan if the mean or a covariance is not finite."""
    from uncertainties import correlated_values, ufloat

    values = np.empty(len(mean), dtype=object)
    finite = np.isfinite(mean) & np.isfinite(np.diagonal(covariance))
    finite &= (np.isfinite(covariance) | ~finite).all(1)
    if finite.any():
        own = covariance[np.ix_(finite, finite)]
        _require_covariance(own)
        # Differences of nearly equal numbers would otherwise have the rounding of the covariance as their error.
        values[finite] = correlated_values(mean[finite], own + np.diag(_ROUNDING**2 * np.diagonal(own)))
    for index in np.flatnonzero(~finite):
        values[index] = ufloat(float(mean[index]), float("nan"))
    return values


def _require_covariance(covariance: np.ndarray) -> None:
    """Raise if a matrix is not symmetric and positive semidefinite up to rounding."""
    rounding = 1e-9 * np.abs(covariance).max()
    least = float(np.linalg.eigvalsh(covariance)[0])
    if np.abs(covariance - covariance.T).max() > rounding or least < -rounding * len(covariance):
        raise NumericalError(
            "covariance must be symmetric and positive semidefinite, but is not (smallest eigenvalue "
            f"{least:.2g}): pass the covariance of the means."
        )
