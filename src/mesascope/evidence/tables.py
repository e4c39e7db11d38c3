"""Tables that print in a terminal, render in notebooks and convert to pandas."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from html import escape
from typing import Any, SupportsIndex, overload

from mesascope.errors import require_choice, require_package, shown
from mesascope.evidence.drawing import drawn
from mesascope.text import line_width

# Maximum number of rows shown; of a longer table, number of first and of last rows shown.
_MOST_SHOWN, _ENDS = 80, 5


class Table(list):
    """A list of rows, each a dict; ``pandas.DataFrame(table)`` accepts it.

    ``table[0]`` is a row, ``table[:5]`` a table, and ``table["mse"]`` a list of one column's values.

    >>> table = Table([{"seed": 0, "mse": 0.41250001}, {"seed": 1, "mse": None}])
    >>> table
    seed  mse
    0     0.4125
    1
    >>> table["seed"]
    [0, 1]
    """

    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    @overload
    def __getitem__(self, key: slice) -> Table: ...
    @overload
    def __getitem__(self, key: SupportsIndex) -> dict[str, Any]: ...
    def __getitem__(self, key: str | slice | SupportsIndex) -> Any:
        if isinstance(key, str):
            if self:
                require_choice("the column", key, self.columns)
            return [_plain(row.get(key)) for row in self]
        found = super().__getitem__(key)
        return type(self)(found) if isinstance(key, slice) else found

    @property
    def columns(self) -> list[str]:
        """Names of all columns, in the order of first use."""
        return list(dict.fromkeys(key for row in self for key in row))

    def to_dict(self) -> dict[str, list[Any]]:
        """A list of values for each column.

        >>> Table([{"seed": 0, "mse": 0.5}, {"seed": 1}]).to_dict()
        {'seed': [0, 1], 'mse': [0.5, None]}
        """
        return {column: self[column] for column in self.columns}

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame`` with these columns.

        Raises:
            MissingPackageError: pandas is not installed.
        """
        return require_package("pandas", "to_pandas").DataFrame(self.to_dict())

    def __repr__(self) -> str:
        columns = self.columns
        return drawn(list(zip(columns, *self._cells(columns), strict=True)), line_width()) if columns else "(no rows)"

    def to_markdown(self) -> str:
        """The whole table in Markdown.

        >>> print(Table([{"seed": 0, "mse": 0.5}, {"seed": 1}]).to_markdown())
        | seed | mse |
        |---|---|
        | 0 | 0.5 |
        | 1 |  |
        """
        columns = self.columns or ["no rows"]
        lines = ([cell.replace("|", "\\|") for cell in line] for line in self._cells(columns, whole=True))
        head, *rows = (f"| {' | '.join(line)} |" for line in (columns, *lines))
        return "\n".join([head, "|---" * len(columns) + "|", *rows])

    def to_html(self) -> str:
        """The whole table as an HTML element."""
        return self._html(whole=True)

    def _repr_html_(self) -> str:
        return self._html()

    def _html(self, *, whole: bool = False) -> str:
        columns = self.columns or ["no rows"]
        head = "".join(f"<th>{escape(column)}</th>" for column in columns)
        rows = ("".join(f"<td>{escape(cell)}</td>" for cell in line) for line in self._cells(columns, whole=whole))
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"

    def _cells(self, columns: list[str], *, whole: bool = False) -> list[list[str]]:
        """Cells to print, row by row; only the ends of a long table, unless ``whole``."""
        whole = whole or len(self) <= _MOST_SHOWN
        lines = [[_text(row.get(c)) for c in columns] for row in (self if whole else [*self[:_ENDS], *self[-_ENDS:]])]
        return lines if whole else [*lines[:_ENDS], ["..."] * len(columns), *lines[-_ENDS:]]


class Tabular(ABC):
    """A result with a `table`: it renders in notebooks and converts to pandas or plain Python."""

    @abstractmethod
    def table(self) -> Table:
        """Return the numbers as rows of a table."""

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain Python numbers, strings, lists and dicts."""
        return _plain(self) if dataclasses.is_dataclass(self) else self.table().to_dict()

    def to_pandas(self) -> Any:
        """The `table` as a ``pandas.DataFrame``."""
        return self.table().to_pandas()

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def __repr__(self) -> str:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{one.name}={_short(getattr(self, one.name))}' for one in fields)})"


def _plain(value: Any) -> Any:
    """Convert arrays and containers to plain numbers, strings, lists and dicts; other objects become their repr."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return " ".join(repr(value).split())


def _short(value: Any) -> str:
    """Text of a value on one line; an array is shown by its shape, a float with six digits."""
    if hasattr(value, "shape"):
        return f"array {tuple(value.shape)}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})"
    return _text(value) if isinstance(value, float) or hasattr(value, "stderr") else shown(value)


def _text(value: Any) -> str:
    """Text of a cell on one line; texts and numbers with errors are not shortened."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return " ".join(str(value).split()) if isinstance(value, str) or hasattr(value, "stderr") else shown(value)
