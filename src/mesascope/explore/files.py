"""Style sheets, scripts and templates of the page."""

from __future__ import annotations

import functools
from pathlib import Path

_ASSETS = Path(__file__).parent / "assets"


@functools.cache
def asset(name: str) -> str:
    """Text of an asset file."""
    return (_ASSETS / name).read_text(encoding="utf-8")
