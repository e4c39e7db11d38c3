"""The problems that language models were tried on: their formulas, and errors that others have measured on them."""

import math

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import LinearRegression

from mesascope.adapters import from_sklearn
from mesascope.errors import ArgumentError
from mesascope.streams import stream
from mesascope.tasks import RealTable, RegressionProblem
from mesascope.tasks.regression_problems import PROBLEMS

# Written out once more, from inputs (rows, d) in NumPy.
FORMULAS = {
    "friedman1": lambda x: 10 * np.sin(np.pi * x[0] * x[1]) + 20 * (x[2] - 0.5) ** 2 + 10 * x[3] + 5 * x[4],
    "friedman2": lambda x: np.sqrt(x[0] ** 2 + (x[1] * x[2] - 1 / (x[1] * x[3])) ** 2),
    "friedman3": lambda x: np.arctan((x[1] * x[2] - 1 / (x[1] * x[3])) / x[0]),
    "original1": lambda x: x[0] + 10 * np.sin(np.pi * x[0] / 20) + 10 * np.cos(3 * np.pi * x[0] / 50),
    "original2": lambda x: (x[0] ** 4 + (x[1] * x[2] - 2 / (np.sqrt(x[1]) * np.sqrt(x[3]))) ** 2) ** 0.75,
    "original3": lambda x: np.exp(x[0]) + x[1] * x[2] / np.sqrt(x[3]) + (x[3] * x[0]) ** 1.5,
    "original4": lambda x: x[1] / 10 * np.sin(x[0]) + x[0] / 10 * np.cos(x[1])
    + np.sqrt(x[0]) * np.log(x[1]) / (np.sqrt(x[1]) * np.log(x[0])),
    "original5": lambda x: 100 * softmax(x / 10, axis=0).max(0),
}  # fmt: skip
# Mean absolute errors over 100 tasks, by their number of standard errors: scikit-learn 1.9 on the authors' own draws.
MEASURED = {"regression_ni11": 0.133, "regression_ni12": 0.142, "friedman1": 2.10, "original1": 5.20}


def rows(problem, tasks=20):
    (x, y), xq, yq = RegressionProblem(problem).sample(tasks, stream(0, problem))
    return torch.cat([x, xq], 1).double(), torch.cat([y, yq], 1)[..., 0].double()


@pytest.mark.parametrize("problem", FORMULAS)
def test_labels_follow_their_formula(problem):
    inputs = PROBLEMS[problem].inputs((10, 30, PROBLEMS[problem].d), stream(0, problem))
    labels = PROBLEMS[problem].labels(inputs, stream(0, "none is drawn"))
    assert np.allclose(labels.numpy(), FORMULAS[problem](inputs.permute(2, 0, 1).numpy()), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("problem", ["original1", "original4", "original5"])
def test_labels_are_those_of_the_inputs_that_are_read(problem):
    x, y = rows(problem)
    read = x.mul(100).round().div(100)
    assert torch.equal(read.float(), x.float())
    assert np.abs(y.numpy() - FORMULAS[problem](read.permute(2, 0, 1).numpy())).max() < 0.0051


@pytest.mark.parametrize(("problem", "informative"), [("regression_ni13", 1), ("regression_ni33", 3)])
def test_linear_problems_have_as_many_weights_as_they_say(problem, informative):
    x, y = rows(problem)
    weights = torch.linalg.lstsq(x, y[..., None]).solution[..., 0]
    assert (weights[:, informative:].abs() < 0.5).all()
    assert (weights[:, :informative] > -0.5).all()
    assert weights[:, :informative].max() < 100.5
    assert weights[:, informative - 1].mean() == pytest.approx(50, abs=20)


def test_letters_have_places_and_weights():
    """Five letters a task, each with one number, whichever input it stands in but for a weight."""
    x, y = rows("character_regression1", 3)
    for task, labels in zip(x, y, strict=True):
        letters = task.unique()
        assert len(letters) <= 5
        assert letters.min() >= 1
        assert letters.max() <= 26
        one_hot = (task[..., None] == letters).double().flatten(1)
        missed = labels[:, None] - one_hot @ torch.linalg.lstsq(one_hot, labels[:, None], driver="gelsd").solution
        assert missed.abs().max() < 0.05


@pytest.mark.parametrize(("authors", "apart"), [(False, False), (True, True)])
def test_a_label_of_a_random_transformer_depends_on_its_own_row_unless_as_the_authors_have_it(authors, apart):
    problem = RegressionProblem("transformer1", authors=authors)._problem
    x = torch.randn(1, 4, 5, generator=stream(0, "x")).double()
    other = torch.cat([x[:, :1], x[:, 1:].flip(-1)], 1)
    first, second = (problem.labels(inputs, stream(0, "layer"))[0, 0] for inputs in (x, other))
    assert (first != second) == apart


def test_the_authors_problem_of_three_inputs_has_two():
    assert RegressionProblem("regression_ni33").d_in == 3
    assert RegressionProblem("regression_ni33", authors=True).d_in == 2


@pytest.mark.parametrize("problem", MEASURED)
def test_least_squares_errs_as_has_been_measured(problem):
    assert near(problem, LinearRegression(), MEASURED[problem], 400)


def test_boosting_errs_as_has_been_measured():
    assert near("original1", GradientBoostingRegressor(random_state=0), 1.19, 60)


def near(problem, estimator, measured, tasks):
    """Within four standard errors, of ours and of a hundred tasks."""
    episode = RegressionProblem(problem).sample(tasks, stream(0, "errors"))
    errors = (from_sklearn(estimator)(episode.context, episode.xq) - episode.yq).abs()
    spread = float(errors.std()) * math.sqrt(1 / tasks + 1 / 100)
    return abs(float(errors.mean()) - measured) < 4 * spread


def test_rows_of_a_table_are_drawn_without_one_twice():
    (x, y), xq, yq = RealTable(n_context=440, n_query=2).sample(3, stream(0, "rows"))
    both = torch.cat([torch.cat([x, xq], 1), torch.cat([y, yq], 1)], -1)
    assert all(len(task.unique(dim=0)) == 442 for task in both)
    assert (both[0].sort(0).values == both[1].sort(0).values).all()
    assert not torch.equal(both[0], both[1])
    assert RealTable().features[:2] == ("age", "sex")


def test_a_table_that_is_not_there_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path))
    with pytest.raises(ArgumentError, match=r"table california must be on this machine, but is not: run sklearn"):
        RealTable("california").sample(1, stream(0, "rows"))
