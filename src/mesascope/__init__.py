"""mesascope: an instrument for the learning algorithms inside neural networks.

The most used names are here; ``help(mesascope.compare)`` tells of one:

    compare, sweep, alignment           learners side by side, on the same tasks
    identify, Identification, Candidate     which known algorithm a learner runs, as far as its predictions tell
    weights, interpolate, rollout       what a network's weights say, and what its layer does when repeated
    train, Training                     networks trained on a family of tasks, several seeds at once
    tune                                the best step sizes of a learner
    LinearRegression, LinearDynamics    families of tasks; a task is an Episode with a Context
    GradientDescent, GradientDescentPlusPlus, LeastSquares, Mean, Zero       learners: (context, queries) -> predictions
    OnlineGradientDescent, RecursiveLeastSquares                             predictors: sequence -> predictions
    gradient_descent, gradient_descent_plus_plus                             weights that run an algorithm
    InContextRegressor, Transformer, and their configs InContextRegressorConfig, TransformerConfig
    SequencePredictor, CausalTransformer, and their configs SequencePredictorConfig, CausalTransformerConfig,
    AttentionConfig
    open_run, newest_run                a run of a study, read back
    Measurement                         a number with its standard error

The rest is in `mesascope.tasks`, `learners`, `nets`, `constructions`, `adapters`, `training`, `lenses`, `studies` and
`testing`. Names load on first use (each package lists its own in an ``__init__.pyi``), so that the command line answers
at once and reading a run directory imports no torch.
"""

import traceback as _traceback

import lazy_loader as _lazy_loader

__version__ = "0.1.0"

_loaded, __dir__, _names = _lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    """Load a name. pydoc gets no ``__all__``: help(mesascope) would repeat 13,000 lines that classes inherit."""
    if name != "__all__" or any(frame.f_globals["__name__"] == "pydoc" for frame, _ in _traceback.walk_stack(None)):
        return _loaded(name)
    return _names
