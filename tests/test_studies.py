"""Every study runs from end to end at a size where it learns nothing, and says so."""

import dataclasses
import json
import math

import numpy as np
import pytest

from mesascope.studies import STUDIES, new_run, run_study

TINY = {
    "steps": 6,
    "looped_steps": 4,
    "tune_tasks": 100,
    "batch": 32,
    "tasks": 200,
    "sweep_tasks": 60,
    "watch_tasks": 60,
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
