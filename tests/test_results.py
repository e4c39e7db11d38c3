"""Results in a terminal, in a notebook, in pandas and as plain numbers."""

import io
import json
import re
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from mesascope.constructions import gradient_descent
from mesascope.errors import ArgumentError, MissingPackageError
from mesascope.evidence import Arrays, Estimates, Verdicts
from mesascope.evidence.tables import Table
from mesascope.learners import GradientDescent, LeastSquares, Mean, Tuned
from mesascope.lenses import agreement, alignment, compare, step_sizes, sweep, weights
from mesascope.measurement import Measurement
from mesascope.reports import console, print_claims
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


def test_results_show_numbers_to_the_digits_that_count():
    assert repr(RESULTS["tune"]()).endswith("mse=0.500 ± 0.01, starts=(0.5, 0.6))")
    assert repr(Tuned(GD, {}, Measurement(0.5, 0.01, 20), (1 / 3, 2.0))).endswith("starts=(0.333333, 2))")


def test_without_pandas_the_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        MissingPackageError, match=r"^pandas must be installed for to_pandas, but is not: pip install p"
    ):
        RESULTS["measurement"]().to_pandas()


def test_a_comparison_has_numbers_for_pandas_and_numbers_with_errors_for_people(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
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
    short, long = (Table({"step": step} for step in range(n)) for n in (80, 81))
    assert len(repr(short).splitlines()) == 81
    assert repr(long).split() == ["step", "0", "1", "2", "3", "4", "...", "76", "77", "78", "79", "80"]
    assert long._repr_html_().count("<tr>") == 12
    assert len(long.to_dict()["step"]) == 81


def test_a_table_has_rows_parts_and_columns():
    table = Table([{"seed": 0, "mse": 0.5}, {"seed": 1}, {"seed": 2, "mse": np.float64(0.25)}])
    assert table[-1]["mse"] == 0.25
    assert table["mse"] == table.to_dict()["mse"] == [0.5, None, 0.25]
    assert type(table[1:]) is Table
    assert table[1:].columns == ["seed", "mse"]
    with pytest.raises(
        ArgumentError, match=r"^the column must be one of 'mse', 'seed', but is 'msee': did you mean 'm"
    ):
        table["msee"]
    assert Table()["mse"] == []
    assert repr(Table()) == "(no rows)"
    assert Table()._repr_html_() == "<table><tr><th>no rows</th></tr></table>"


CLAIM = {
    "id": "sensitivity-difference-of-loops", "sentence": "x < y & z " * 9, "source": "A" * 300, "verdict": "undecided",
    "value": 0.999978, "low": 0.999971, "high": 0.999985, "bound": "in [0.999, 1.001]", "reason": "a premise fails",
}  # fmt: skip
WIDE = {
    "claims": lambda: Verdicts([CLAIM] * 3),
    "all of the claims": lambda: Table([CLAIM] * 3),
    "comparison": RESULTS["compare"],
    "numbers": lambda: Table([{f"name {index}": index / 7 for index in range(30)}]),
    "words": lambda: Table([{"a": "x" * 200, "b": "-".join("y" * 99)}]),
    "lists": lambda: Table([{"a": list(range(1000)), "b": "one\ntwo"}]),
}


@pytest.mark.parametrize("columns", [1, 40, 80, 99, 200])
@pytest.mark.parametrize("name", WIDE)
def test_a_table_is_as_wide_as_the_terminal(name, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    table = WIDE[name]()
    lines = str(table).splitlines()
    assert max(map(len, lines)) <= max(columns, 40)
    assert max(map(len, table._repr_html_().split("<td>"))) < 600


CELLS = [
    "eta = [0.128, 0.1208, 0.1138, 0.107, 0.1004], gamma = [-0.08351, -8.866]",
    "preconditioned-gradient-descent, of two steps",
    "0.999978 [0.999971, 0.999985]",
    "3.66 ± 0.4 nats, as-near-as-least-squares",
]


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_cells_break_at_spaces_and_after_commas_and_never_within_a_number_or_a_word(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    words = {*" ".join(CELLS).split()}
    for cell in CELLS:
        shown = str(Table([{"name": "x", "value": cell, "more": cell}, {"name": "y", "value": "z", "more": "z"}]))
        assert {*shown.split()} <= words | {"name", "value", "more", "x", "y", "z"}
        assert not re.search(r" [-=±]$|[^,]\n +\[", shown, re.MULTILINE)


def test_a_table_in_a_file_or_a_pipe_is_as_wide_as_it_needs(monkeypatch, capsys):
    """Tables of numbers, and those of claims, whose sentences are broken at spaces."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert [len(str(Table([{"name": "x", "value": cell}])).splitlines()) for cell in CELLS] == [2] * len(CELLS)
    long = {**CLAIM, "measures": "a number", "reported": None, "reason": "its premise " + "-".join("abcdefghijklmnop")}
    print_claims([long], console())
    shown = sys.stdout.getvalue()
    assert "0.999978 [0.999971, 0.999985]" in shown
    assert "-".join("abcdefghijklmnop") in shown


def test_claims_are_shown_with_what_decides_them(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    claims = Verdicts([CLAIM, {**CLAIM, "id": "<other>", "verdict": "holds", "reason": ""}])
    assert len(str(claims).splitlines()) < 10
    assert "0.999978 [0.999971, 0.999985]  in [0.999, 1.001]  undecided:" in str(claims)
    assert type(claims[:1]) is Verdicts
    html = claims._repr_html_()
    assert "x &lt; y &amp; z" in html
    assert "&lt;other&gt;" in html


def test_a_terminal_of_ascii_is_written_to(monkeypatch):
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", ascii_only)
    for result in (RESULTS["compare"](), Measurement(0.5, 0.01, 9), RESULTS["sweep"]().ratio("gd", "gd")):
        print(result)
    ascii_only.flush()
    assert b"0.500 +/- 0.01" in ascii_only.buffer.getvalue()


def test_stages_are_shown_in_a_line():
    names = [(quantity, f"net-{index}") for quantity in "abcdef" for index in range(6)]
    many = Estimates(names, np.zeros(36), np.eye(36), 100)
    assert repr(many) == "Estimates of a, b, c, d and 2 more of net-0, net-1, net-2, net-3 and 2 more over 100 tasks"
    assert repr(RESULTS["sweep"]()) == "Estimates of mse of gd over 20 tasks, in 2 cases of noise"
    assert repr(Arrays({name: np.ones(2) for name in "abcde"}, **dict.fromkeys("abcde", "seed"))) == (
        "Arrays of a (seed), b (seed), c (seed), d (seed) and 1 more"
    )


def test_numbers_with_errors_are_short_and_stay_what_they_are():
    found = Estimates([("mse", "a"), ("mse", "a"), ("mse", "b")], np.array([0.5, 0.25, 0.5]), np.eye(3) / 1e4, 9)
    ratio = found.ratio("a", "b")
    assert str(found["mse b"]) == str(found["mse", "b"]) == "[0.500 ± 0.01]"
    for name in ("mse", ("mse",)):
        with pytest.raises(
            ArgumentError, match=r"^the quantity must be one of 'mse a', 'mse b', but is .*'mse [ab]'\?$"
        ):
            found[name]
    assert repr(ratio) == str(ratio) == "[1.000 ± 0.03 0.500 ± 0.02]"
    assert repr(ratio - ratio) == "[0 0]"
    assert type(ratio.mean() / 2) is type(ratio[0] / 2)
    assert type(ratio[:, None].sum(1)) is type(ratio)
    assert type(np.equal(ratio, ratio)) is np.ndarray


def test_episodes_and_contexts_are_shown_by_their_shapes():
    assert repr(EPISODES) == "Episode(x (20, 5, 2), y (20, 5, 1), xq (20, 1, 2), yq (20, 1, 1))"
    assert repr(Context(torch.ones(3, 2), torch.ones(3, 1))) == "Context(x (3, 2), y (3, 1))"
