from .attention import (
    SoftmaxState as SoftmaxState,
    causal_softmax_attention as causal_softmax_attention,
    linear_attention as linear_attention,
    softmax_attention as softmax_attention,
)
from .fast_weights import (
    DeltaState as DeltaState,
    LinearState as LinearState,
    causal_linear_attention as causal_linear_attention,
    delta_attention as delta_attention,
)
from .features import dpfp as dpfp, rotated as rotated, sinusoidal as sinusoidal
from .mesa.api import (
    MESA_RIDGES as MESA_RIDGES,
    MesaInfo as MesaInfo,
    mesa_attention as mesa_attention,
    mesa_state as mesa_state,
    mesa_step as mesa_step,
)
from .mesa.decode import FixedRidgeState as FixedRidgeState, MesaState as MesaState, RootedMesaState as RootedMesaState
from .mesa.parallel import mesa_state_before as mesa_state_before
from .mesa.published import (
    mesa_attention_reference as mesa_attention_reference,
    mesa_chebyshev as mesa_chebyshev,
    mesa_conjugate_gradients as mesa_conjugate_gradients,
    mesa_neumann as mesa_neumann,
    mesa_recursion as mesa_recursion,
)
from .reading import without_reading_values as without_reading_values
