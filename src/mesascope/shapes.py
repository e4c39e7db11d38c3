"""The one place that shapes in signatures come from.

``Float[Tensor, "*batch n d"]`` documents a shape for the reader; the test session checks every annotated call
at run time (through jaxtyping's import hook), and a user's program pays nothing.
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["Float", "Int", "Tensor"]
