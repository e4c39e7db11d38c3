"""Every study runs from end to end at a size where it learns nothing, and says so."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from mesascope.studies.icl_gd.phase_transitions import rise_and_fall

from mesascope.reports import ledger_markdown, ledger_rows
from mesascope.runs import find_runs
from mesascope.studies import STUDIES, new_run, run_study

TINY = {
    "steps": 6,
    "looped_steps": 4,
    "tune_tasks": 100,
    "batch": 32,
    "tasks": 200,
    "sweep_tasks": 60,
    "watch_tasks": 60,
    "members": 2,
    "grok_members": 2,
    "grok_steps": 4,
}


@pytest.fixture(scope="module", params=[name for name in STUDIES if name != "one-step"])
def finished(request, tmp_path_factory):
    """A tiny run of two seeds; the study of one step is run in tests/test_cli.py."""
    study = STUDIES[request.param]
    preset = study.presets["quick"]
    fields = {field.name for field in dataclasses.fields(preset)}
    settings = dataclasses.replace(preset, **{name: value for name, value in TINY.items() if name in fields})
    out = tmp_path_factory.mktemp("studies") / study.name
    directory = new_run(study, "quick", settings, seed=0, seeds=2, device="cpu", out=out, command="test")
    return study, directory, run_study(study, settings, directory)


def test_every_claim_is_judged(finished):
    study, directory, records = finished
    assert [record["id"] for record in records] == [claim.id for claim in study.claims]
    assert all(record["verdict"] in ("holds", "fails", "undecided") for record in records)
    assert any(record["verdict"] == "fails" for record in records), "claims of learning must fail without any"
    assert directory.claims() == json.loads(json.dumps(records))


def test_every_figure_has_a_caption_and_its_data(finished):
    _, directory, _ = finished
    captions = directory.captions()
    assert captions
    for name, caption in captions.items():
        assert caption.endswith(".")
        assert directory.results(name), f"the arrays of figure {name} must have its name"
        assert f'download="{name}.npz"' in (directory.path / "report.html").read_text()


def test_results_are_finite_where_a_loss_is(finished):
    _, directory, _ = finished
    for path in (directory.path / "results").iterdir():
        for key, array in (directory.results(path.stem) or {}).items():
            assert array.dtype != object
            if "mse" in key and np.issubdtype(array.dtype, np.number):
                assert math.isfinite(np.nansum(array)), f"{path.stem}/{key} must be finite"


def test_a_rise_on_the_plateau_and_a_late_fall_are_read_from_curves():
    step = np.arange(0, 100, 10)
    test = np.array([1.0, 0.98, 1.1, 1.2, 1.2, 1.2, 0.5, 0.42, 0.44, 0.5])
    train = np.array([1.0, 0.87, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.3, 0.3])
    rise, excess, delay = rise_and_fall(step=step, test=test, train=train, limit=0.4)
    assert rise == pytest.approx(100 * (1.2 / 0.98 - 1))
    assert excess == pytest.approx(5.0)
    assert delay == 6.0


def test_overfitting_after_the_fall_is_no_rise_and_a_plateau_never_left_no_fall():
    step = np.arange(0, 60, 10)
    overfit = np.array([1.0, 0.99, 0.5, 0.42, 0.6, 0.69])
    assert rise_and_fall(step, overfit, overfit, limit=0.4)[0] == 0
    rising = np.array([1.0, 1.0, 1.05, 1.1, 1.2, 1.3])
    rise, excess, delay = rise_and_fall(step, rising, 0.9 * rising.min() - 0.1 * step / 50, limit=0.4)
    assert rise > 20
    assert excess > 100
    assert math.isnan(delay)


def test_the_ledger_is_that_of_the_committed_results(monkeypatch):
    root = Path(__file__).parent.parent
    monkeypatch.chdir(root)
    claims = {name: study.claims for name, study in STUDIES.items()}
    page = ledger_markdown(ledger_rows(claims, find_runs([Path("docs/results")])))
    assert page == (root / "docs" / "ledger.md").read_text()
