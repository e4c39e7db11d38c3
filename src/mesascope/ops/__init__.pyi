from .attention import (
    linear_attention as linear_attention,
    linear_attention_reference as linear_attention_reference,
    softmax_attention as softmax_attention,
    softmax_attention_reference as softmax_attention_reference,
)
from .causal_softmax import (
    SoftmaxState as SoftmaxState,
    causal_softmax_attention as causal_softmax_attention,
    causal_softmax_attention_reference as causal_softmax_attention_reference,
    dpfp as dpfp,
)
from .fast_weights import (
    DeltaState as DeltaState,
    LinearState as LinearState,
    causal_linear_attention as causal_linear_attention,
    delta_attention as delta_attention,
    fast_weights_reference as fast_weights_reference,
)
from .mesa import (
    MESA_METHODS as MESA_METHODS,
    MESA_RIDGES as MESA_RIDGES,
    MesaInfo as MesaInfo,
    mesa_attention as mesa_attention,
    mesa_state as mesa_state,
    mesa_step as mesa_step,
)
from .mesa_parallel import mesa_state_before as mesa_state_before
from .mesa_states import (
    FixedRidgeState as FixedRidgeState,
    MesaState as MesaState,
    RootedMesaState as RootedMesaState,
)
