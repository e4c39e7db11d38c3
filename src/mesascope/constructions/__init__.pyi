from .descent import (
    Construction as Construction,
    copy_tokens as copy_tokens,
    gradient_descent as gradient_descent,
    gradient_descent_plus_plus as gradient_descent_plus_plus,
    kernel_gradient_descent as kernel_gradient_descent,
    softmax_gradient_descent as softmax_gradient_descent,
)
from .sequences import (
    mesa_gradient_descent as mesa_gradient_descent,
    mesa_least_squares as mesa_least_squares,
    neumann_preconditioning as neumann_preconditioning,
    online_gradient_descent as online_gradient_descent,
)
