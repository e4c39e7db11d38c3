from .episodes import (
    Context as Context,
    Episode as Episode,
    Family as Family,
    Learner as Learner,
    Predictor as Predictor,
    Seeded as Seeded,
    SequenceFamily as SequenceFamily,
    check_episode as check_episode,
    check_inputs as check_inputs,
    check_sequence as check_sequence,
)
from .image_tasks import (
    FewShotArrays as FewShotArrays,
    FewShotImages as FewShotImages,
    ImageStream as ImageStream,
    PermutedDigits as PermutedDigits,
    RotatedDigits as RotatedDigits,
    SwitchingImages as SwitchingImages,
    accuracy as accuracy,
)
from .recall import AssociativeRecall as AssociativeRecall, Automata as Automata, Copying as Copying
from .regression import LinearRegression as LinearRegression, RealTable as RealTable, SineWaves as SineWaves
from .regression_problems import RegressionProblem as RegressionProblem
from .sequences import (
    FewShotSequence as FewShotSequence,
    LinearDynamics as LinearDynamics,
    NonlinearDynamics as NonlinearDynamics,
    ObservedDynamics as ObservedDynamics,
)
