from .constructions import (
    gradient_descent as gradient_descent,
    gradient_descent_plus_plus as gradient_descent_plus_plus,
)
from .identification import Candidate as Candidate, Identification as Identification, identify as identify
from .learners import (
    GradientDescent as GradientDescent,
    GradientDescentPlusPlus as GradientDescentPlusPlus,
    LeastSquares as LeastSquares,
    Mean as Mean,
    OnlineGradientDescent as OnlineGradientDescent,
    RecursiveLeastSquares as RecursiveLeastSquares,
    Zero as Zero,
    tune as tune,
)
from .lenses import (
    alignment as alignment,
    compare as compare,
    interpolate as interpolate,
    rollout as rollout,
    sweep as sweep,
    weights as weights,
)
from .measurement import Measurement as Measurement
from .nets import (
    AttentionConfig as AttentionConfig,
    CausalTransformer as CausalTransformer,
    CausalTransformerConfig as CausalTransformerConfig,
    InContextRegressor as InContextRegressor,
    InContextRegressorConfig as InContextRegressorConfig,
    SequencePredictor as SequencePredictor,
    SequencePredictorConfig as SequencePredictorConfig,
    Transformer as Transformer,
    TransformerConfig as TransformerConfig,
)
from .runs import open_run as open_run
from .sweeps import Sweep as Sweep
from .tasks import (
    Context as Context,
    Episode as Episode,
    LinearDynamics as LinearDynamics,
    LinearRegression as LinearRegression,
)
from .training import Training as Training, train as train

__version__: str
