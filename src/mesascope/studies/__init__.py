"""Studies: the seeds' questions, answered by runs."""

from mesascope.studies.icl_gd import (
    copying,
    curvature,
    deep,
    deep_mlp,
    finite_tasks,
    layernorm,
    one_step,
    phase_transitions,
    sine,
    softmax,
    two_steps,
    weights,
)
from mesascope.studies.run import new_run, resume_run, run_study
from mesascope.studies.study import Study

__all__ = ["STUDIES", "Study", "new_run", "resume_run", "run_study"]

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        one_step.STUDY,
        two_steps.STUDY,
        deep.STUDY,
        deep_mlp.STUDY,
        weights.STUDY,
        softmax.STUDY,
        layernorm.STUDY,
        curvature.STUDY,
        phase_transitions.STUDY,
        finite_tasks.STUDY,
        sine.STUDY,
        copying.STUDY,
    )
}
