"""Estimators and functions of arrays as learners: each of scikit-learn's, and what a user's own may return."""

import inspect
import re

import numpy as np
import pytest
import torch
from sklearn import ensemble, linear_model, pipeline
from sklearn.base import BaseEstimator, clone
from sklearn.utils import all_estimators

from mesascope.adapters import from_numpy, from_sklearn
from mesascope.errors import ArgumentError, ArgumentTypeError, NumericalError
from mesascope.lenses import per_task_errors
from mesascope.streams import stream
from mesascope.tasks import LinearRegression


def regressor(kind):
    """One with scikit-learn's own defaults; what it is built from is ridge regression."""
    ridge, given = linear_model.Ridge(), inspect.signature(kind).parameters
    made = {"estimator": ridge, "estimators": [("one", ridge), ("other", linear_model.Ridge(2.0))]}
    return kind(**{name: made[name] for name, one in given.items() if one.default is one.empty and name in made})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, _ in all_estimators(type_filter="regressor")])
def test_each_regressor_of_scikit_learn_predicts_as_it_does_or_is_refused_in_a_sentence(name):
    """With one target and with two, and it may write into what it is given; forests, which take long, are as trees."""
    estimator = regressor(dict(all_estimators(type_filter="regressor"))[name])
    estimator.set_params(**{"n_estimators": 3} if "n_estimators" in estimator.get_params() else {})
    estimator.set_params(**{"random_state": 0} if "random_state" in estimator.get_params() else {})
    estimator.set_params(**{key: False for key in ("copy", "copy_X") if key in estimator.get_params()})
    answered, several = 0, not estimator.__sklearn_tags__().target_tags.single_output
    for d_out in (1, 2):
        task = LinearRegression(n_context=12, d_in=3, d_out=d_out, n_query=2).sample(1, stream(0, "regressors"))
        x, y, xq = (part[0].clone().numpy() for part in (*task.context, task.xq))
        learner = from_sklearn(estimator)
        try:
            found, error = learner(task.context, task.xq), ""
        except ArgumentError as raised:
            found, error = torch.empty(0), str(raised)
        assert all(np.array_equal(part[0], own) for part, own in zip((*task.context, task.xq), (x, y, xq), strict=True))
        if error:
            assert re.match(rf"estimator must predict 2 queries from x \(12, 3\) .* {name} raised \w+ ", error)
            assert d_out == 1 or error.endswith("wrap it in sklearn.multioutput.MultiOutputRegressor.")
            continue
        expected = clone(estimator).fit(x, y if d_out > 1 or several else y[:, 0]).predict(xq)
        np.testing.assert_allclose(found.numpy().ravel(), expected.ravel(), rtol=1e-5, atol=1e-6)
        answered += 1
    assert answered or name in ("GammaRegressor", "PoissonRegressor", "IsotonicRegression")


class Own(BaseEstimator):
    """An estimator of a user's own that returns ``answer(xq)``; fit returns nothing."""

    def __init__(self, answer=None):
        self.answer = answer

    def fit(self, x, y):
        if x.dtype != np.float32:
            raise RuntimeError("the dtype must be float32")

    def predict(self, xq):
        return self.answer(xq)


TASKS = LinearRegression(n_context=5, d_in=2, d_out=2, n_query=3).sample(4, stream(0, "own"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("answer", [np.copy, np.ndarray.tolist, torch.as_tensor, lambda x: x.astype(np.longdouble)])
def test_predictions_of_any_precision_are_cast_to_that_of_the_tasks(dtype, answer):
    tasks = TASKS.to(dtype)
    for learner in (from_sklearn(Own(answer)), from_numpy(lambda x, y, xq: answer(xq))):
        found = learner(tasks.context, tasks.xq)
        assert found.dtype == dtype
        assert torch.equal(found, tasks.xq)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda x: x.T, r"the answer of {} must have shape \(3, 2\), but is \(2, 3\): return \(m, dy\)"),
        (lambda x: x[..., None], r"must have shape \(3, 2\), but is \(3, 2, 1\)"),
        (lambda x: x[:1], r"must have shape \(3, 2\), but is \(1, 2\)"),
        (lambda x: x[:, 0], r"must have shape \(3, 2\), but is \(3,\)"),
        (lambda x: None, r"{} must return numbers \(3, 2\), but returned a NoneType: return an array"),
        (lambda x: x + 1j, r"{} must return numbers \(3, 2\), but returned a ndarray"),
        (lambda x: x.astype(str), r"{} must return numbers \(3, 2\), but returned a ndarray"),
        (lambda x: [[1.0], [1.0, 2.0]], r"{} must return numbers \(3, 2\), but returned a list"),
        (lambda x: x.astype(object), r"returned a ndarray of object: return an array of floats"),
        (lambda x: (x[:, 0], x[:, 1], x[:, 0]), r"must return numbers \(3, 2\), but returned a tuple"),
    ],
)
def test_predictions_of_another_shape_or_of_no_numbers_are_refused(answer, message):
    for learner in (from_sklearn(Own(answer)), from_numpy(lambda x, y, xq: answer(xq))):
        with pytest.raises(ArgumentError, match=message.format(learner.__name__)):
            learner(TASKS.context, TASKS.xq)


def test_what_an_estimator_raises_is_a_sentence_and_nan_is_the_learners():
    double = TASKS.to(torch.float64)
    one = double._replace(context=double.context._replace(y=double.context.y[..., :1]))
    with pytest.raises(ArgumentError, match=r"but Own raised RuntimeError \(the dtype must be .*: convert tasks with"):
        from_sklearn(Own(np.copy))(one.context, one.xq)
    with pytest.raises(
        ArgumentError, match=r"but Own raised RuntimeError \(the dtype must be .*: if it takes one targ"
    ):
        from_sklearn(Own(np.copy))(double.context, double.xq)
    for missing in (lambda x: x * np.nan, lambda x: np.ma.masked_array(x, mask=True)):
        with pytest.raises(NumericalError, match="predictions must be finite, but 24 of 24 by Own are not"):
            per_task_errors(from_sklearn(Own(missing)), TASKS)


def test_an_estimator_of_no_known_kind_is_refused_in_a_sentence(unchecked):
    class Duck:
        fit = predict = Own.fit

    class Unshown(Own):
        def __init__(self, **settings):
            pass

    with pytest.raises(ArgumentTypeError, match=r"fit, predict and get_params, but is .*: make sklearn.base.BaseEst"):
        from_sklearn(Duck())
    for estimator in (Unshown(answer=1), pipeline.Pipeline([]), ensemble.StackingRegressor([])):
        with pytest.raises((ArgumentTypeError, ArgumentError)):
            from_sklearn(estimator)(TASKS.context, TASKS.xq)
