"""Constructions: weights for which a network equals a learning algorithm."""

from mesascope.constructions.copying import copy_tokens
from mesascope.constructions.descent import (
    Construction,
    gradient_descent,
    gradient_descent_plus_plus,
    kernel_gradient_descent,
    with_products,
)
from mesascope.constructions.sequences import (
    SequenceConstruction,
    mesa_gradient_descent,
    mesa_least_squares,
    neumann_preconditioning,
    online_gradient_descent,
)
from mesascope.constructions.softmax import softmax_gradient_descent
from mesascope.nets import MLP
from mesascope.streams import stream

__all__ = [
    "CONSTRUCTIONS",
    "SEQUENCE_CONSTRUCTIONS",
    "Construction",
    "SequenceConstruction",
    "copy_tokens",
    "gradient_descent",
    "gradient_descent_plus_plus",
    "kernel_gradient_descent",
    "mesa_gradient_descent",
    "mesa_least_squares",
    "neumann_preconditioning",
    "online_gradient_descent",
    "softmax_gradient_descent",
    "with_products",
]

# Each builds an example for the sizes (d_in, d_out, n_context, steps, w0); the contract test walks them. Those that
# start from zero weights take no notice of w0. `softmax_gradient_descent` equals its algorithm only in a limit.
CONSTRUCTIONS = {
    "gradient-descent": lambda d_in, d_out, n_context, steps, w0: gradient_descent(
        d_in, d_out, 0.4, n_context, steps, w0
    ),
    "gradient-descent-plus-plus": lambda d_in, d_out, n_context, steps, w0: gradient_descent_plus_plus(
        d_in, d_out, [0.4 / (k + 1) for k in range(steps)], 0.02 / n_context, n_context, steps, w0
    ),
    "kernel-gradient-descent": lambda d_in, d_out, n_context, steps, w0: kernel_gradient_descent(
        MLP(d_in, 3 * d_in, 1.0, stream(0, "init")), d_out, 0.1, n_context, steps
    ),
    "copy-tokens-linear": lambda d_in, d_out, n_context, steps, w0: copy_tokens(d_in, d_out, 0.4, n_context, steps),
    "copy-tokens-softmax": lambda d_in, d_out, n_context, steps, w0: copy_tokens(
        d_in, d_out, 0.4, n_context, steps, "softmax"
    ),
}

# Likewise for the sizes (d, steps, w0) and sequences of orthogonal dynamics, where |s_t|^2 is near d.
SEQUENCE_CONSTRUCTIONS = {
    "mesa-gradient-descent": lambda d, steps, w0: mesa_gradient_descent(d, 0.03, w0),
    "online-gradient-descent": lambda d, steps, w0: online_gradient_descent(
        d, [0.03 / (k + 1) for k in range(steps)], steps, w0
    ),
    "neumann-preconditioning": lambda d, steps, w0: neumann_preconditioning(d, steps, bound=60.0 * d),
    "mesa-least-squares": lambda d, steps, w0: mesa_least_squares(d, 0.5),
}
