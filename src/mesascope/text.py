"""Numbers and configs as text, and the width of lines."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import sys
from typing import Any

__all__ = ["config_text", "counted", "interval_text", "line_width", "number_text", "printable"]


def line_width() -> float:
    """Width of the terminal, or COLUMNS if set; infinite for files, pipes and notebooks."""
    if "COLUMNS" not in os.environ and not getattr(sys.stdout, "isatty", bool)():
        return math.inf
    return max(shutil.get_terminal_size().columns, 40)


def printable(text: str) -> str:
    """Replace ± by +/- in a text if standard output cannot encode it."""
    try:
        "±".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return text.replace("±", "+/-")
    return text


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun.

    >>> counted(1, "claim"), counted(0, "claim"), counted(2, "fails", "fail")
    ('1 claim', '0 claims', '2 fail')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def config_text(config: Any) -> str:
    """A config's fields that differ from their defaults, including those of nested configs.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Size:
    ...     width: int
    ...     depth: int = 2
    >>> config_text(Size(3)), config_text(Size(3, 4))
    ('width=3', 'width=3, depth=4')
    """
    shown = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        fallback = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if value != fallback:
            shown.append(f"{field.name}={_value_text(value)}")
    return ", ".join(shown)


def _value_text(value: Any) -> str:
    if isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)):
        return f"({', '.join(map(_value_text, value))})"
    return f"{type(value).__name__}({config_text(value)})" if dataclasses.is_dataclass(value) else repr(value)


def number_text(value: float, stderr: float) -> str:
    """A value with the digits that its standard error supports; four digits without a standard error.

    >>> number_text(0.41250, 0.0008), number_text(0.99998133, 4e-8), number_text(19.276, 0.0), number_text(2.2e8, 1e8)
    ('0.41250 ± 0.0008', '0.999981330 ± 4e-08', '19.28', '2.2e+08 ± 1e+08')
    >>> number_text(171.6, 31.2)
    '172 ± 30'
    """
    if not math.isfinite(stderr) or stderr <= 0:
        return f"{value:.4g}"
    decimals = 1 - math.floor(math.log10(stderr))
    if not 1e-4 <= abs(value) < 1e5 or decimals > 9:
        return f"{value:.2g} ± {stderr:.1g}"
    return f"{value:.{max(decimals, 0)}f} ± {float(f'{stderr:.1g}'):g}"


def percent_text(share: float) -> str:
    """A share in percent, with two digits below 100 %; shares below 0.001 % become 0."""
    value = 100 * share
    if value < 1e-3:
        return "0 %"
    return f"{value:.0f} %" if value >= 10 else f"{value:.2g} %"


def interval_text(value: float, low: float, high: float) -> str:
    """A value and its interval, with enough digits to distinguish the ends.

    >>> interval_text(1.000271, 1.00012, 1.00041), interval_text(5.0, 5.0, 5.0), interval_text(0.123456, -3.2, 4.1)
    ('1.00027 [1.00012, 1.00041]', '5', '0.1 [-3.2, 4.1]')
    """
    width = high - low
    if not math.isfinite(width) or width <= 0:
        return f"{value:.4g}"
    decimals = 1 - math.floor(math.log10(width))
    if decimals > 9 or not 1e-4 <= max(abs(low), abs(high)) < 1e6:
        return f"{value:.3g} [{low:.3g}, {high:.3g}]"
    return f"{value:.{max(decimals, 0)}f} [{low:.{max(decimals, 0)}f}, {high:.{max(decimals, 0)}f}]"
