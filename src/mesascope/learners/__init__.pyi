from .arguments import Range as Range
from .baselines import Averaging as Averaging, Constant as Constant, LastLabel as LastLabel, Mean as Mean, Zero as Zero
from .descent import (
    GradientDescent as GradientDescent,
    GradientDescentPlusPlus as GradientDescentPlusPlus,
    PreconditionedGradientDescent as PreconditionedGradientDescent,
)
from .kernels import (
    KERNELS as KERNELS,
    RIDGE_KERNELS as RIDGE_KERNELS,
    KernelGradientDescent as KernelGradientDescent,
    KernelRidge as KernelRidge,
    KernelSmoother as KernelSmoother,
    NearestNeighbours as NearestNeighbours,
)
from .least_squares import (
    BayesPool as BayesPool,
    ConjugateGradients as ConjugateGradients,
    LeastSquares as LeastSquares,
    Newton as Newton,
    PrincipalComponents as PrincipalComponents,
)
from .optimizers import (
    DeltaRule as DeltaRule,
    Momentum as Momentum,
    Muon as Muon,
    NormalisedDescent as NormalisedDescent,
    Titans as Titans,
)
from .sequences import (
    ChebyshevLeastSquares as ChebyshevLeastSquares,
    Lags as Lags,
    NeumannLeastSquares as NeumannLeastSquares,
    OnlineGradientDescent as OnlineGradientDescent,
    PairSums as PairSums,
    RecursiveLeastSquares as RecursiveLeastSquares,
)
from .sparse import ElasticNet as ElasticNet, Lasso as Lasso
from .spectra import (
    Optimum as Optimum,
    gram_spectra as gram_spectra,
    one_step_optimum as one_step_optimum,
    spectral_mse as spectral_mse,
)
from .transformed import (
    Centred as Centred,
    Clipped as Clipped,
    LabelCopying as LabelCopying,
    OnFeatures as OnFeatures,
    Standardised as Standardised,
    Summed as Summed,
    WithIntercept as WithIntercept,
    squares as squares,
)
from .tuning import Tuned as Tuned, tune as tune, tune_spectral as tune_spectral
