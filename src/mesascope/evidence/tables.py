"""Tables that a terminal, a notebook and pandas show well."""

from __future__ import annotations

from html import escape
from typing import Any

__all__ = ["Table"]


class Table(list):
    """Rows of one kind, each a dict: ``pandas.DataFrame(table)`` takes it as it is.

    >>> Table([{"seed": 0, "mse": 0.41250001}, {"seed": 1, "mse": None}])
    seed  mse
    0     0.4125
    1
    """

    @property
    def columns(self) -> list[str]:
        """Every key, in the order of first use."""
        return list(dict.fromkeys(key for row in self for key in row))

    def __repr__(self) -> str:
        lines = [self.columns, *([_text(row.get(column)) for column in self.columns] for row in self)]
        widths = [max(len(line[index]) for line in lines) for index in range(len(self.columns))]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(column)}</th>" for column in self.columns)
        cells = ("".join(f"<td>{escape(_text(row.get(column)))}</td>" for column in self.columns) for row in self)
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
