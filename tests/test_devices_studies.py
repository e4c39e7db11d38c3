"""Every study runs to its end on a device that is not the CPU, at sizes where it learns nothing.

The fixture ``hardly_tuned`` of tests/test_studies.py holds here as well.
"""

import pytest
from test_studies import SHRUNK, STUDIES, TEXT_MODEL, hardly_trained, hardly_tuned  # noqa: F401

from mesascope.studies import new_run, run_study

simulation = pytest.importorskip("simulated_device", reason="torch 2.9 has no backends in Python", exc_type=ImportError)

# The cheapest; make test-all runs the others.
IN_EVERY_SESSION = ("phase-transitions", "weights")


@pytest.fixture(autouse=True)
def computing(monkeypatch):
    monkeypatch.setattr("mesascope.studies.running.available_device", lambda name: name)
    with simulation.simulated_device() as computing:
        yield computing


@pytest.mark.parametrize(
    "name", [name if name in IN_EVERY_SESSION else pytest.param(name, marks=pytest.mark.slow) for name in STUDIES]
)
def test_studies_run_on_the_device(name, tmp_path):
    study = STUDIES[name]
    if name == "pretrained" and not TEXT_MODEL.exists():
        pytest.importorskip("test_local_model").saved(TEXT_MODEL, "bloom")
    settings = hardly_trained(study.presets["quick"], trained=4, **SHRUNK.get(name, {}))
    run = new_run(study, "quick", settings, device=simulation.DEVICE, out=tmp_path / "run")
    records = run_study(study, settings, run)
    assert [record["id"] for record in records] == [claim.id for claim in study.claims]
    assert run.is_complete
    assert run.config["device"] == simulation.DEVICE
