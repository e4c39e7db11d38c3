"""Arrays of numbers with standard errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from mesascope.text import number_text, printable

# Distance of a divisor from 0, in standard errors, below which the error of a quotient is unknown: docs/evidence.md.
_FROM_ZERO = 5


class Numbers(np.ndarray):
    """An array of numbers with errors, which arithmetic propagates; a number prints the digits that its error allows.

    The error of a quotient is nan if the divisor is within five standard errors of 0.

    >>> from uncertainties import ufloat
    >>> np.array([ufloat(0.41250, 0.0008), ufloat(2.0, 0.1)]).view(Numbers) / 2
    [0.20625 ± 0.0004 1.000 ± 0.05]
    """

    def __repr__(self) -> str:
        return np.array2string(self.view(np.ndarray), formatter={"object": _text})

    __str__ = __repr__

    def __array_wrap__(self, array: np.ndarray, context: Any = None, return_scalar: bool = False) -> Any:
        """Keep results of arithmetic in this class, except scalars and comparisons."""
        if context is not None and context[0] is np.true_divide:
            from uncertainties import ufloat

            array[_near_zero(np.broadcast_to(context[1][1], array.shape))] *= ufloat(1.0, np.nan)
        if array.ndim == 0:
            return array[()]
        return array.view(type(self) if array.dtype == object else np.ndarray)


def unmasked(numbers: Any) -> np.ndarray:
    """Convert an array, a tensor or lists to a NumPy array, with nan in place of masked entries.

    >>> unmasked(np.ma.masked_equal([1, -999], -999))
    array([ 1., nan])
    """
    numbers = numbers.detach().cpu() if hasattr(numbers, "detach") else numbers
    return np.ma.filled(numbers.astype(float), np.nan) if np.ma.is_masked(numbers) else np.asarray(numbers)


def nominal(numbers: Any) -> np.ndarray:
    """Nominal values of numbers with errors.

    >>> from uncertainties import ufloat
    >>> nominal([ufloat(0.5, 0.1), 2.0])
    array([0.5, 2. ])
    """
    numbers = np.asarray(numbers)
    if numbers.dtype != object:
        return numbers
    return np.vectorize(lambda number: getattr(number, "nominal_value", number), otypes=[float])(numbers)


def _near_zero(divisors: np.ndarray) -> np.ndarray:
    """True for divisors with an error that are too near 0."""
    near = [
        abs(one.nominal_value) < _FROM_ZERO * one.std_dev if hasattr(one, "std_dev") else False for one in divisors.flat
    ]
    return np.array(near, dtype=bool).reshape(divisors.shape)


def _text(number: Any) -> str:
    if not hasattr(number, "std_dev"):
        return str(number)
    return printable(number_text(number.nominal_value, number.std_dev))
