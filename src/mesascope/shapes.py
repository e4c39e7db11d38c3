"""Types for shapes in signatures.

``Float[Tensor, "*batch n d"]``, or ``Int``, documents a shape for the reader. The test session checks every annotated
call at run time (by jaxtyping's import hook); users' programs have no overhead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    # Type checkers cannot read shapes: for them, Float[Tensor, "n d"] is a Tensor.
    from typing import Annotated as Float, Annotated as Int
else:
    from jaxtyping import Float, Int

__all__ = ["Float", "Int", "Tensor"]
