"""Types for shapes in signatures.

``Float[Tensor, "*batch n d"]`` documents the shape of a float tensor, ``Int`` of an integer tensor. In the tests,
jaxtyping's import hook checks every annotated call; in users' programs nothing is checked.
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
