"""mesascope: an instrument for the learning algorithms inside neural networks.

The most used names are listed here; ``help(mesascope.compare)`` describes one:

    compare, sweep, alignment           comparisons of learners on the same tasks
    identify, Identification, Candidate     known algorithms that agree with a learner's predictions
    weights, interpolate, rollout       algorithms read from weights; interpolated weights; repeated layers
    train, Training                     networks trained on a family of tasks, several seeds at once
    tune                                optimal parameters of a learner, such as step sizes
    LinearRegression, LinearDynamics    families of tasks; a task is an Episode with a Context
    GradientDescent, GradientDescentPlusPlus, LeastSquares, Mean, Zero       learners: (context, queries) -> predictions
    OnlineGradientDescent, RecursiveLeastSquares                             predictors: sequence -> predictions
    gradient_descent, gradient_descent_plus_plus                             networks that implement an algorithm
    InContextRegressor, Transformer, and their configs InContextRegressorConfig, TransformerConfig
    SequencePredictor, CausalTransformer, and their configs SequencePredictorConfig, CausalTransformerConfig,
    AttentionConfig
    open_run                            results of a study's run, read from disk
    Sweep                               a study or function over settings and seeds, on many workers
    Measurement                         a number with its standard error

Other names are in packages such as `mesascope.tasks`, `learners`, `nets`, `constructions`, `training`, `lenses`,
`adapters` and `studies`. Each package lists its names in ``__init__.pyi`` and loads them on first use. The command line
therefore starts fast, and reading a run directory does not import torch.
"""

import traceback as _traceback

import lazy_loader as _lazy_loader

__version__ = "0.1.0"

_loaded, __dir__, _names = _lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    """Load a name; hide ``__all__`` from pydoc, as help(mesascope) would repeat 13,000 inherited lines."""
    if name != "__all__" or any(frame.f_globals["__name__"] == "pydoc" for frame, _ in _traceback.walk_stack(None)):
        return _loaded(name)
    return _names
