"""The one place that shapes in signatures come from.

``Float[Tensor, "*batch n d"]``, or ``Int``, documents a shape for the reader; the test session checks every annotated
call at run time (through jaxtyping's import hook), and a user's program pays nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    # A type checker cannot read shapes: to it, Float[Tensor, "n d"] is a Tensor.
    from typing import Annotated as Float, Annotated as Int
else:
    from jaxtyping import Float, Int

__all__ = ["Float", "Int", "Tensor"]
