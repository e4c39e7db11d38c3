"""Files that the page is made of."""

from __future__ import annotations

import functools
from pathlib import Path

_ASSETS = Path(__file__).parent / "assets"


@functools.cache
def asset(name: str) -> str:
    """Text of a style sheet, script or template of the page."""
    return (_ASSETS / name).read_text(encoding="utf-8")
