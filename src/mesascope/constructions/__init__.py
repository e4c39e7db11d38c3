"""Constructions: weights for which a network equals a learning algorithm."""

from mesascope.constructions.descent import (
    Construction,
    gradient_descent,
    gradient_descent_plus_plus,
    with_products,
)

__all__ = [
    "CONSTRUCTIONS",
    "Construction",
    "gradient_descent",
    "gradient_descent_plus_plus",
    "with_products",
]

# Each builds an example for the sizes (d_in, d_out, n_context, steps, w0); the contract test walks them.
CONSTRUCTIONS = {
    "gradient-descent": lambda d_in, d_out, n_context, steps, w0: gradient_descent(
        d_in, d_out, 0.4, n_context, steps, w0
    ),
    "gradient-descent-plus-plus": lambda d_in, d_out, n_context, steps, w0: gradient_descent_plus_plus(
        d_in, d_out, [0.4 / (k + 1) for k in range(steps)], 0.02 / n_context, n_context, steps, w0
    ),
}
