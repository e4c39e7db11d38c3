"""Pages and tables for readers: sentences agree with numbers, and settings, terms and omitted runs are shown."""

import io
import re
import shutil

import numpy as np
import pytest
from hypothesis import given, strategies as st
from rich.console import Console
from tiny_study import STUDY

from mesascope import records
from mesascope.cli import main
from mesascope.evidence.tables import Table
from mesascope.measurement import Measurement
from mesascope.records import registered
from mesascope.reports import (
    Figure,
    Grid,
    Line,
    Lines,
    ledger_markdown,
    plotted,
    print_claims,
    print_ledger,
    write_report,
)
from mesascope.reports.html import found_text, used_terms
from mesascope.reports.tables import counts_text, over_text
from mesascope.runs import open_run
from mesascope.studies import new_run, run_study

CLAIM = {
    "id": "one", "sentence": "a loss is small", "source": "Fig. 1", "measures": "loss", "premises": [],
    "value": 1.00026, "low": 0.99993, "high": 1.0006, "bound": "in [0.999, 1.001]", "bound_low": 0.999,
    "bound_high": 1.001, "bound_by": "us", "reported": None, "verdict": "holds",
    "reason": "", "figure": "", "n": 5, "over": "seeds",
}  # fmt: skip
VERDICTS = st.sampled_from(["holds", "fails", "undecided"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run of the tiny study."""
    path = tmp_path_factory.mktemp("reports") / "run"
    run_study(STUDY, STUDY.presets["quick"], new_run(STUDY, "quick", out=path))
    return path


@given(findings=st.lists(VERDICTS, max_size=4), premises=st.lists(VERDICTS, max_size=3))
def test_sentences_agree_with_their_numbers(findings, premises):
    claims = [CLAIM | {"id": f"premise-{index}", "verdict": verdict} for index, verdict in enumerate(premises)]
    needed = [claim["id"] for claim in claims]
    claims += [CLAIM | {"id": f"f{i}", "verdict": v, "premises": needed} for i, v in enumerate(findings)]
    text = " ".join(found_text(claims)) if findings else counts_text(claims)
    assert not re.search(r"\b1 (hold|fail|are|claims|findings|premises)\b", text)
    assert not re.search(r"\b(0|[2-9]|\d\d+) (holds|fails|is|claim|finding|premise)\b", text)
    for claim in claims if findings else ():
        if claim["verdict"] != "holds":
            assert re.search(rf"\b{claim['id']}\b", text), "what does not hold is named"
    assert ("fail" in text) == ("fails" in [claim["verdict"] for claim in claims])


def test_replicates_are_counted_in_singular_and_plural():
    assert over_text({"n": 1, "over": "algorithms"}) == "1 algorithm"
    assert over_text({"n": 6, "over": "learners"}) == "6 learners"
    study = {"study": "x", "run": "r", "preset": "quick", "changed": [], "command": "c", "machine": "m", "seconds": 1}
    page = ledger_markdown([study | CLAIM | {"deviations": [], "n": 1, "over": "algorithms"}])
    assert "1 claim: 1 holds; holding: 1 of 1 printed sentence." in page
    assert "| 1 algorithm |" in page


@pytest.mark.parametrize("study", sorted(registered("study")))
def test_a_study_says_in_a_few_sentences_what_tasks_and_networks_it_has(study):
    method = registered("study")[study].method
    assert 50 < len(method) < 700
    assert not method.startswith(("ICML paper", "Thesis"))


@pytest.mark.parametrize(
    ("change", "outside"),
    [
        ({"reported": "1.0026, 1.0006 (authors' code, 3 runs)"}, True),
        ({"reported": "1.0006, 1 (2 runs)"}, False),
        ({"reported": "1.0026", "bound_by": "paper"}, False),
        ({"reported": "3e-5", "bound_low": None}, False),
        ({"reported": "-2 (printed)", "bound_low": None}, False),
        ({"reported": "twice", "bound_low": None}, False),
    ],
)
def test_a_report_explains_a_reported_value_outside_our_bound(change, outside, whole, tmp_path):
    run = open_run(shutil.copytree(whole, tmp_path / "run"))
    run.save_claims([open_run(whole).claims[0] | CLAIM | change])
    page = write_report(run).read_text()
    assert ("outside our bound" in page) == outside
    assert "so it may lie outside a bound that we set" in page


def test_a_report_is_for_readers(whole):
    page = (whole / "report.html").read_text()
    assert re.search(r"<span class='number'>[\d.]+ \[[-\d.]+, [\d.]+\]</span>", page), "an interval stays in one line"
    assert re.search(r"<td>seeds</td><td>2</td>", page)
    assert re.search(r'<th>training</th>.*<td>steps</td><td class="number">8</td>', page)
    assert '"steps": 8' not in page, "settings are no JSON"
    assert "<dt>seed</dt>" in page
    assert "<dt>nats</dt>" not in page
    assert "2 seeds" in page
    for needed in ("prefers-color-scheme: dark", "@media print"):
        assert needed in page
    assert "http" not in page
    page = write_report(
        open_run(whole), {"Errors": Table([{"learner": "a-b", "mse": Measurement(0.5, 0.1, 9)}])}
    ).read_text()
    assert "<td>0.50&nbsp;±&nbsp;0.1</td>" in page


def test_terms_are_found_as_words():
    assert list(used_terms("GD++ and W_KQ of 2 seeds")) == ["seed", "W_KQ, W_PV", "GD++"]
    assert "ridge" not in used_terms("a bridge")


def test_an_interval_is_not_broken_in_a_table():
    screen = Console(width=100, file=io.StringIO())
    print_claims([CLAIM | {"value": 0.99992424, "low": 0.99992382, "high": 0.99992466}], screen)
    assert "0.99992424 [0.99992382, 0.99992466]" in screen.file.getvalue()


def test_an_answer_without_a_preset_has_a_title_of_its_own():
    row = CLAIM | {"study": "identify", "run": "runs/cli1", "preset": "", "changed": []}
    screen = Console(width=120, file=io.StringIO())
    print_ledger([row], screen)
    assert screen.file.getvalue().startswith("identify: runs/cli1")
    more = {"deviations": [], "command": "", "machine": "x86_64", "seconds": 0.0}
    page = ledger_markdown([row | more])
    assert "****" not in page
    assert "``" not in page


def test_a_ledger_names_each_run_that_it_leaves_out(whole, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setitem(records._REGISTRY["study"], "tiny", records.Registered(STUDY, {}))
    for name in ("a", "b", "unfinished"):
        shutil.copytree(whole, tmp_path / name)
    for file in ("claims.json", "finished.json"):
        (tmp_path / "unfinished" / file).unlink()
    (tmp_path / "notes.txt").write_text("a plain text file")
    (tmp_path / "no run").mkdir()
    assert main(["ledger", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert f"tiny, quick: {tmp_path / 'b'}" in out
    assert err.splitlines() == [
        f"mesascope: left out: {tmp_path / 'a'} must be the newest run of its settings, but is not: pass it alone.",
        f"mesascope: left out: {tmp_path / 'unfinished'} must be finished, but is not: continue it with --resume.",
    ]
    monkeypatch.delitem(records._REGISTRY["study"], "tiny")
    assert main(["ledger", str(tmp_path / "a")]) == 0
    assert "tiny, quick, but claims are as judged when the run finished" in capsys.readouterr().out


def test_long_names_large_grids_and_single_points_stay_readable():
    x = np.arange(4.0)

    def legend_of(name):
        figure = Figure("f", "c", (Lines("", "x", "y", [Line(x, x, "gd", name)]),))
        canvas = plotted((figure,), "f", {})
        canvas.canvas.draw()
        (axes,) = canvas.axes
        return axes.get_legend().get_window_extent().y1 < axes.get_window_extent().y0

    assert not legend_of("short")
    assert legend_of("a name of a learner that is longer than fifty letters in all")
    for size, written in ((3, 9), (20, 0)):
        names = [*map(str, range(size))]
        heat = Figure("g", "c", (Lines("", "x", "y", [Grid(np.ones((size, size)), names, names)]),))
        assert len(plotted((heat,), "g", {}).axes[0].texts) == written
    alone = Figure("f", "c", (Lines("", "x", "y", [Line(x[:1], x[:1], "trained", "one point")]),))
    assert plotted((alone,), "f", {}).axes[0].lines[0].get_marker() == "o"
