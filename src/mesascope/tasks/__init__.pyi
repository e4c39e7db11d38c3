from .continual_digits import PermutedDigits as PermutedDigits, RotatedDigits as RotatedDigits
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
from .few_shot_images import FewShotImages as FewShotImages, accuracy as accuracy
from .few_shot_sequence import FewShotSequence as FewShotSequence
from .hidden_dynamics import NonlinearDynamics as NonlinearDynamics, ObservedDynamics as ObservedDynamics
from .linear_dynamics import LinearDynamics as LinearDynamics
from .linear_regression import LinearRegression as LinearRegression
from .real_tables import RealTable as RealTable
from .recall import AssociativeRecall as AssociativeRecall, Automata as Automata, Copying as Copying
from .regression_problems import RegressionProblem as RegressionProblem
from .sine_waves import SineWaves as SineWaves
from .switching_images import ImageStream as ImageStream, SwitchingImages as SwitchingImages
