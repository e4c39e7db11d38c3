from .access import per_task_errors as per_task_errors
from .flow import (
    attention_maps as attention_maps,
    element_sensitivity as element_sensitivity,
    token_sensitivity as token_sensitivity,
)
from .needs import (
    Access as Access,
    HasActivations as HasActivations,
    HasChannels as HasChannels,
    HasProducts as HasProducts,
    HasRule as HasRule,
    HasTokens as HasTokens,
    HasTrajectory as HasTrajectory,
    access_of as access_of,
)
from .pairs import (
    Agreement as Agreement,
    Alignment as Alignment,
    Comparison as Comparison,
    agreement as agreement,
    alignment as alignment,
    compare as compare,
)
from .probes import PROBED as PROBED, preconditioned as preconditioned, probe as probe
from .prompts import prompt_tune as prompt_tune
from .reading import (
    StepSizes as StepSizes,
    WeightReading as WeightReading,
    interpolate as interpolate,
    rescaled_products as rescaled_products,
    step_sizes as step_sizes,
    weights as weights,
)
from .reverse import ReverseEngineered as ReverseEngineered, reverse_engineer as reverse_engineer
from .sweeps import rollout as rollout, sweep as sweep, trajectory_errors as trajectory_errors
from .together import (
    errors_by_time as errors_by_time,
    measure_learners as measure_learners,
    measure_predictors as measure_predictors,
)
