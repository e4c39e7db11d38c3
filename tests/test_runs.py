import dataclasses
import errno
import json

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mesascope.errors import ArgumentError, RunDirectoryError
from mesascope.measurement import Measurement
from mesascope.reports import ledger_markdown, ledger_rows, write_report
from mesascope.runs import Bound, Claim, RunDirectory, find_runs, judge
from mesascope.runs.files import write_aside

CONFIG = {"study": "one-step", "preset": "quick", "settings": {}, "seed": 0, "seeds": 1, "device": "cpu"}
CLAIM = Claim("c", "a statement with <b>", "Fig. 1", {"quick": Bound(high=1.0)}, reference=0.7)


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "run", CONFIG)


def test_a_run_reads_back_what_it_wrote(run):
    run.append_metrics([{"training": "a", "step": 0, "seed": 0, "mse": 1.0}])
    run.save_results("x", {"values": np.arange(4.0), "name": np.array(["a", "b"])})
    run.save_claims([judge(CLAIM, "quick", Measurement(0.5, 0.01, 9))])
    again = RunDirectory.open(run.path)
    assert again.config["study"] == "one-step"
    assert again.metrics("a") == [{"training": "a", "step": 0, "seed": 0, "mse": 1.0}]
    assert again.metrics("b") == []
    assert again.results("x")["values"].tolist() == [0, 1, 2, 3]
    assert again.results("y") is None
    assert again.claims()[0]["verdict"] == "holds"


def test_the_same_arrays_give_the_same_bytes(run):
    for name in ("a", "b"):
        run.save_results(name, {"v": np.linspace(0, 1, 5), "w": np.eye(2)})
    assert (run.path / "results" / "a.npz").read_bytes() == (run.path / "results" / "b.npz").read_bytes()


def test_a_torn_last_line_is_passed_over_and_mended(run):
    run.append_metrics([{"training": "a", "step": s, "seed": 0} for s in (0, 5, 10)])
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write('{"training": "a", "st')
    assert [row["step"] for row in run.metrics()] == [0, 5, 10]
    run.rewind_metrics("a", 5)
    assert (run.path / "metrics.jsonl").read_text().count("\n") == 2
    run.append_metrics([{"training": "a", "step": 7, "seed": 0}])
    assert [row["step"] for row in run.metrics()] == [0, 5, 7]


def test_damage_is_named_with_its_file(run):
    (run.path / "metrics.jsonl").write_text('{"a": 1}\nnonsense\n{"a": 2}\n')
    with pytest.raises(
        RunDirectoryError, match=r"metrics.jsonl must hold one JSON object a line, but line 2 is damaged"
    ):
        run.metrics()
    run.save_results("x", {"v": np.ones(3)})
    file = run.path / "results" / "x.npz"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(RunDirectoryError, match=r"x.npz must be an .npz archive, but is damaged"):
        run.results("x")
    (run.path / "config.json").write_text("{")
    with pytest.raises(RunDirectoryError, match=r"config.json must hold JSON, but is damaged"):
        RunDirectory.open(run.path)
    (run.path / "config.json").write_text("{}")
    with pytest.raises(RunDirectoryError, match=r"config.json must describe a run"):
        RunDirectory.open(run.path)


def test_a_newer_schema_and_a_used_folder_are_refused(run):
    with pytest.raises(RunDirectoryError, match="a new run must have an empty folder"):
        RunDirectory.create(run.path, CONFIG)
    (run.path / "config.json").write_text(json.dumps({**CONFIG, "schema": 99}))
    with pytest.raises(RunDirectoryError, match="must be of schema 1 or older, but is of schema 99"):
        RunDirectory.open(run.path)
    with pytest.raises(RunDirectoryError, match="a run directory must exist"):
        RunDirectory.open(run.path / "nowhere")


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_aside(path, b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_aside(path, b"new and longer")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_claims_hold_fail_or_stay_undecided():
    bound = Bound(low=0.95, high=1.05)
    assert bound.verdict(1.0, 0.01) == "holds"
    assert bound.verdict(1.0, 0.03) == "undecided"
    assert bound.verdict(1.06, 0.01) == "undecided"
    assert bound.verdict(1.1, 0.01) == "fails"
    assert bound.verdict(float("nan"), 0.0) == "fails"
    assert bound.verdict(float("inf"), 0.0) == "fails"
    assert str(bound) == "in [0.95, 1.05]"


@given(value=st.floats(-10, 10), stderr=st.floats(0, 5), low=st.floats(-5, 0), high=st.floats(0.5, 5))
def test_a_claim_is_decided_only_beyond_two_standard_errors(value, stderr, low, high):
    verdict = Bound(low, high).verdict(value, stderr)
    clear = min(abs(value - low), abs(value - high)) > 2 * stderr
    if verdict == "holds":
        assert clear
        assert low < value < high
    elif verdict == "fails":
        assert clear
        assert not low <= value <= high


def test_a_bound_that_excludes_nothing_is_refused():
    for low, high in ((-np.inf, np.inf), (1.0, 1.0), (2.0, 1.0)):
        with pytest.raises(ArgumentError, match="a bound must exclude something"):
            Bound(low, high)


def test_reports_show_claims_figures_and_escape_text(run):
    run.save_figure(
        "plot", "What <it> shows.", {"svg": b'<?xml version="1.0"?><svg viewBox="0 0 1 1"></svg>', "png": b""}
    )
    run.save_results("plot", {"v": np.ones(2)})
    unfinished = write_report(run).read_text()
    assert "has not finished" in unfinished
    run.save_claims([judge(CLAIM, "quick", Measurement(1.2, 0.01, 9))])
    html = write_report(run).read_text()
    assert "1 fails" in html
    assert "a statement with &lt;b&gt;" in html
    assert '<svg viewBox="0 0 1 1">' in html
    assert 'download="plot.npz"' in html
    assert "What &lt;it&gt; shows." in html
    assert "http" not in html.replace("http://www.w3.org", "")


def test_the_ledger_shows_the_newest_verdict_and_what_was_never_run(tmp_path):
    for index, value in enumerate((2.0, 0.5)):
        run = RunDirectory.create(tmp_path / f"run{index}", {**CONFIG, "created": f"2026-01-0{index + 1}"})
        run.save_claims([judge(CLAIM, "quick", Measurement(value, 0.0, 9))])
    other = dataclasses.replace(CLAIM, id="d")
    rows = ledger_rows({"one-step": [CLAIM, other], "two": [CLAIM]}, find_runs([tmp_path]))
    assert [(row["study"], row["id"], row["verdict"]) for row in rows] == [
        ("one-step", "c", "holds"),
        ("one-step", "d", "not yet run"),
        ("two", "c", "not yet run"),
    ]
    assert rows[0]["value"] == 0.5
    page = ledger_markdown(rows)
    assert "3 claims: 1 holds, 2 not yet run" in page
    assert f"[{tmp_path / 'run1'}]" in page
    assert "0 minutes" in page
    assert page.count("| c: a statement") == 2
