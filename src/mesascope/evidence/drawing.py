"""Plain-text layout of tables within the width of a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

_GAP = "  "


def drawn(columns: Sequence[Sequence[str]], width: float) -> str:
    """Lay out columns, each a title and its cells, in lines of at most ``width`` characters.

    Long texts are wrapped at spaces. Columns that still do not fit move to further blocks, each of which repeats the
    first column. Only words longer than a line are broken.

    >>> print(drawn([["seed", "0", "1"], ["what it is", "a first one", "another"], ["mse", "0.5 ± 0.1", "2"]], 24))
          what it
    seed  is       mse
    0     a first  0.5 ± 0.1
          one
    1     another  2
    """
    first, rest, blocks = columns[0], list(columns[1:]), []
    while rest or not blocks:
        least = [_least(column) for column in (first, *rest)]
        count = max(1, next((n for n in range(len(rest), 0, -1) if _across(least[: n + 1]) <= width), 1))
        blocks.append(_block([first, *rest[:count]], width))
        rest = rest[count:]
    return "\n\n".join(blocks)


def _block(columns: Sequence[Sequence[str]], width: float) -> str:
    widths, least = [max(map(len, column)) for column in columns], [_least(column) for column in columns]
    while _across(widths) > width and max(widths) > 1:  # narrow the widest column whose words stay whole
        widths[max(range(len(widths)), key=lambda index: (widths[index] > least[index], widths[index]))] -= 1
    wrapped = [[_wrapped(cell, own) for cell in column] for column, own in zip(columns, widths, strict=True)]
    widths = [max(len(line) for cell in column for line in cell) for column in wrapped]
    lines = []
    for row, cells in enumerate(zip(*wrapped, strict=True)):
        height = max(map(len, cells))
        filled = [cell + [""] * (height - len(cell)) if row else [""] * (height - len(cell)) + cell for cell in cells]
        lines += [_GAP.join(map(str.ljust, line, widths)).rstrip() for line in zip(*filled, strict=True)]
    return "\n".join(lines)


def _across(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _least(column: Sequence[str]) -> int:
    """Width of a column's longest word."""
    return max(len(part) for cell in column for part in _wrapped(cell, 1, whole=True))


def _wrapped(text: str, width: int, *, whole: bool = False) -> list[str]:
    """Lines of a text, broken before words and after commas, but never between a number and its error or interval."""
    kept = re.sub(r"(?<!,) (?![^\W\d_]|\()", "\N{NO-BREAK SPACE}", text)
    kept = re.sub(r"(\[[^\s,]+,) ([^\s,]+\])", "\\1\N{NO-BREAK SPACE}\\2", kept)
    lines = textwrap.wrap(kept, max(width, 1), break_long_words=not whole, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines] or [""]
