"""How results show themselves: in a terminal, in a notebook, to pandas and as plain numbers."""

import json
import sys
from types import ModuleType

import pytest
import torch

from mesascope.constructions import gradient_descent
from mesascope.errors import MissingPackageError
from mesascope.evidence.tables import Table
from mesascope.learners import GradientDescent, LeastSquares, Mean, Tuned
from mesascope.lenses import agreement, alignment, compare, step_sizes, sweep, weights
from mesascope.measurement import Measurement
from mesascope.streams import stream
from mesascope.tasks import Context, LinearRegression

FAMILY = LinearRegression(n_context=5, d_in=2, noise=0.3)
EPISODES = FAMILY.sample(20, stream(0, "results"))
GD = GradientDescent(1, 1.0)
NETWORK = gradient_descent(2, 1, 0.5, 5).network

RESULTS = {
    "compare": lambda: compare(GD, {"ls": LeastSquares(0.1), "mean": Mean()}, FAMILY, tasks=20),
    "agreement": lambda: agreement(GD, Mean(), EPISODES),
    "alignment": lambda: alignment(GD, Mean(), EPISODES),
    "step_sizes": lambda: step_sizes(NETWORK, 5),
    "weights": lambda: weights(NETWORK, NETWORK)[0][0],
    "sweep": lambda: sweep({"gd": GD}, FAMILY, {"noise": [0.0, 1.0]}, tasks=20),
    "measurement": lambda: Measurement(0.5, 0.01, 10),
    "tune": lambda: Tuned(GD, {"eta": [Measurement(1.0, 0.1, 20)]}, Measurement(0.5, 0.01, 20), (0.5, 0.6)),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_a_table_html_and_plain_numbers(name, monkeypatch):
    pandas = ModuleType("pandas")
    pandas.DataFrame = lambda columns: columns
    result = RESULTS[name]()
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    table = result.table()
    assert len(table) >= 1
    assert result.to_pandas() == table.to_dict() == {c: [row.get(c) for row in table] for c in table.columns}
    assert result._repr_html_().startswith("<table><tr><th>")
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()
    assert max(map(len, repr(result).splitlines())) < 300
    assert "\n" not in repr(result) or name == "compare"
    assert "tensor(" not in repr(result) or name == "step_sizes"


def test_without_pandas_the_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        MissingPackageError, match=r"^pandas must be installed for to_pandas, but is not: pip install p"
    ):
        RESULTS["measurement"]().to_pandas()


def test_a_comparison_has_numbers_for_pandas_and_numbers_with_errors_for_people():
    found = compare(GD, {"<ls>": LeastSquares(0.1)}, FAMILY, name="mine", tasks=20)
    own, other = found.table()
    row = found.rows["<ls>"]
    assert own == {"learner": "mine", "mse": row.mse_a.value, "mse stderr": row.mse_a.stderr}
    assert other["loss ratio"] == row.mse_ratio.value
    assert other["sensitivity cosine stderr"] == row.sensitivity_cosine.stderr
    assert str(found).splitlines()[1].split("  ")[0] == "mine"
    assert str(row.mse_ratio) in found._repr_html_()
    assert "&lt;ls&gt;" in found._repr_html_()


def test_long_tables_show_their_ends():
    short, long = (Table({"step": step} for step in range(n)) for n in (60, 61))
    assert len(repr(short).splitlines()) == 61
    assert repr(long).split() == ["step", "0", "1", "2", "3", "4", "...", "56", "57", "58", "59", "60"]
    assert long._repr_html_().count("<tr>") == 12
    assert len(long.to_dict()["step"]) == 61


def test_episodes_and_contexts_are_shown_by_their_shapes():
    assert repr(EPISODES) == "Episode(x (20, 5, 2), y (20, 5, 1), xq (20, 1, 2), yq (20, 1, 1))"
    assert repr(Context(torch.ones(3, 2), torch.ones(3, 1))) == "Context(x (3, 2), y (3, 1))"
