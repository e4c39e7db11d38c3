"""The page of panels is complete and names claims and figures that exist; figures look the same for all users."""

import json
import re
import sys
from pathlib import Path

import matplotlib.figure
import numpy as np
import pytest

from mesascope import GradientDescent, LeastSquares, LinearRegression, compare, identify, open_run
from mesascope.errors import ArgumentError
from mesascope.identification import candidates
from mesascope.learners import Mean
from mesascope.records import registered
from mesascope.reports import Figure, Histogram, Line, Lines, Matrices, figure_files

PAGE = Path(__file__).parent.parent / "docs" / "panels.md"
STUDIES = registered("study")


def rows(paper=None):
    """Rows of one paper's table, or of all tables."""
    tables = PAGE.read_text().split("\n## ")[1:]
    lines = [line for table in tables if paper is None or table.startswith(paper) for line in table.splitlines()]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [row for row in cells if row[0] not in ("panel", "sentence")]


def named(cell):
    """Studies and claims of a cell, ``study claim, claim; study claim``."""
    for part in cell.split("; "):
        study, _, claims = part.partition(" ")
        if study in STUDIES:
            yield from ((study, claim) for claim in claims.split(", "))


def test_every_panel_of_the_sixteen_figures_has_a_row():
    numbers = [re.match(r"\d+", row[0]) for row in rows("Transformers")]
    assert {int(number[0]) for number in numbers if number} == set(range(1, 17))


def test_every_figure_and_table_of_chapter_three_has_a_row():
    names = [row[0] for row in rows("Mesa-optimisation")]
    figures = {int(number) for name in names for number in re.findall(r"(?<!section )\b3\.(\d+)", name.split(":")[0])}
    assert figures >= set(range(1, 14))
    assert any(name.startswith("Table 3.1") for name in names)


def test_every_proposition_and_every_figure_and_table_of_chapter_four_has_a_row():
    names = [row[0] for row in rows("Transformers")]
    assert {name.split(":")[0] for name in names} >= {f"Proposition {number}" for number in (1, 2, 3)}
    names = [row[0].split(":")[0] for row in rows("Learning where to learn")]
    for kind, numbers in (("Table 4.", range(1, 7)), ("4.", range(1, 5))):
        assert all(any(name.startswith(f"{kind}{number}") for name in names) for number in numbers)


# Numbered statements of documents that number no figures, and the last number of each kind.
NUMBERED = {
    "Poster": {"contribution": 4, "insight": 4, "linear self-attention": 3},
    "Interpreting": {"formula": 13, "operation": 3, "advantage": 4, "evidence": 3},
}
BOXES = ("setting", "box on GD++", "key takeaway", "box on nonlinear", "box on copying", "box on analyses", "box on so")


@pytest.mark.parametrize(("document", "kind"), [(name, kind) for name, own in NUMBERED.items() for kind in own])
def test_every_numbered_statement_of_poster_and_blog_has_a_row(document, kind):
    found = [int(number) for row in rows(document) for number in re.findall(rf"\b{kind} (\d+)\b", row[0])]
    assert found == list(range(1, NUMBERED[document][kind] + 1))


def test_every_box_of_the_poster_has_a_row():
    names = [row[0] for row in rows("Poster")]
    assert all(any(name.startswith(box) for name in names) for box in BOXES)


def test_every_figure_of_chapter_one_has_a_row():
    assert {row[0].split(":")[0] for row in rows("Chapter 1")} == {f"1.{number}" for number in range(1, 6)}


def test_every_figure_of_chapter_two_names_that_of_the_paper_and_the_others_are_said_to_be_omitted():
    own = {row[0].split(":")[0]: row[1] for row in rows("Chapter 2")}
    assert {f"2.{number}" for number in range(1, 13)} | {f"Proposition {number}" for number in (1, 2, 3)} <= set(own)
    restated = {int(number) for cell in own.values() for number in re.findall(r"Fig\. (\d+)", cell)}
    (ranges,) = re.findall(r"omits Figs\. (\d+) to (\d+) and (\d+) to (\d+)", PAGE.read_text())
    first, last, start, end = map(int, ranges)
    omitted = {*range(first, last + 1), *range(start, end + 1)}
    assert restated | omitted == set(range(1, 17))
    assert restated & omitted == {14}, "the chapter names Fig. 14 and refers to the paper"


def test_claims_that_a_row_calls_undecidable_are_undecided():
    undecidable = [row for row in rows() if "cannot be decided" in row[1]]
    assert undecidable
    for row in undecidable:
        for study, claim in named(row[1]):
            text = (PAGE.parent / "results" / study / "claims.json").read_text()
            (verdict,) = [one["verdict"] for one in json.loads(text) if one["id"] == claim]
            assert verdict == "undecided", f"{row[0]}: {claim} {verdict}"


def test_claims_and_figures_of_panels_exist():
    for panel, claims, figures in rows():
        found = list(named(claims))
        assert found or claims.startswith("no "), panel
        assert bool(found) == bool(figures), panel
        for study, claim in found:
            assert claim in [one.id for one in STUDIES[study].claims], f"{panel}: {study} {claim}"
        for study, figure in (name.split("/") for name in figures.split(", ") if name):
            assert figure in [one.name for one in STUDIES[study].figures], f"{panel}: {study}/{figure}"


def test_claims_that_the_paper_prints_are_of_a_panel_or_of_the_text():
    told = {pair for row in rows() for pair in named(row[1])} | {
        ("one-step", "with-query"),
        ("curvature", "text-inputs"),
    }
    for name, study in STUDIES.items():
        premises = {premise for claim in study.claims for premise in claim.premises}
        for claim in study.claims:
            if claim.source.kind == "printed" and claim.id not in premises:
                assert (name, claim.id) in told, f"{name} {claim.id} ({claim.source}) is of no row"


def test_a_figure_shows_each_claim_of_its_panels():
    for name, study in STUDIES.items():
        shown = {claim.id for figure in study.figures for claim in figure.claims}
        for row in rows():
            missing = [claim for of, claim in named(row[1]) if of == name and claim not in shown]
            assert not missing, f"{name}: {missing} in no figure"


HOSTILE = """
backend: TkAgg
text.usetex: True
text.latex.preamble: \\\\nonsense
font.size: 40
font.family: no such font
figure.figsize: 1, 1
figure.dpi: 7
figure.autolayout: True
savefig.dpi: 3
savefig.bbox: tight
savefig.transparent: True
svg.fonttype: none
axes.prop_cycle: cycler("linestyle", ["--"])
axes.unicode_minus: False
lines.linestyle: none
xtick.labelsize: 33
"""


def test_figures_have_our_style_whatever_a_users_matplotlibrc_says(tmp_path):
    """usetex without LaTeX would stop a report after hours of training."""
    panels = (
        Lines("Loss", "$x$", "-y_1", lambda r: [Line([1, 2, 30], [[1.0, 2, 3], [2.0, 3, 4]], "trained", "a_b")], "x"),
        Histogram("Values", "v", "count", lambda r: {"a": np.arange(1.0, 9)}, np.geomspace(1, 10, 5)),
    )
    figures = [
        Figure("panels", "Two panels.", panels),
        Figure("matrices", "A matrix.", Matrices(lambda r: {"W": np.eye(3) - 0.5})),
    ]
    ours = [figure_files(figure, {}) for figure in figures]
    (tmp_path / "matplotlibrc").write_text(HOSTILE)
    with matplotlib.rc_context(fname=tmp_path / "matplotlibrc"):
        before = dict(matplotlib.rcParams)
        assert [figure_files(figure, {}) for figure in figures] == ours
        assert dict(matplotlib.rcParams) == before, "and a user's own figures keep theirs"


def test_results_are_plotted_as_figures_that_a_notebook_shows(monkeypatch):
    monkeypatch.chdir(Path(__file__).parent.parent)
    run = open_run("docs/results/one-step")
    figure = run.plot("weights")
    assert isinstance(figure, matplotlib.figure.Figure)
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
    with pytest.raises(ArgumentError, match=r"figure must be one of .*, but is 'wieghts': did you mean 'weights'"):
        run.plot("wieghts")
    family = LinearRegression(n_context=6, d_in=2, noise=0.5)
    learner, others = GradientDescent(1, 1.0), {"mean": Mean(), "ridge": LeastSquares(0.1)}
    compared = compare(learner, others, family, tasks=200)
    ratio, difference = compared.plot().axes
    assert [tick.get_text() for tick in ratio.get_xticklabels()] == ["mean", "ridge"]
    drawn = ratio.containers[0][0].get_ydata()
    assert list(drawn) == [compared.rows[name].mse_ratio.value for name in others]
    assert (ratio.get_ylabel(), difference.get_ylabel()) == ("loss ratio", "prediction difference")
    few = [one for one in candidates(sklearn=False) if one.name in ("gradient-descent", "mean")]
    found = identify(learner, family, few, 2000)
    rows = [tick.get_text() for tick in found.plot().axes[0].get_yticklabels()]
    assert rows == [row.candidate for row in found.rows]
    assert found.plot("lengths").axes[0].get_xlabel() == "pairs"
