"""Every study runs to its end on a device that is not the CPU, at sizes where it learns nothing.

The fixture ``hardly_tuned`` of tests/test_studies.py holds here as well.
"""

import dataclasses
import shutil

import pytest
import torch
from test_studies import SHRUNK, STUDIES, TEXT_MODEL, hardly_trained, hardly_tuned  # noqa: F401

from mesascope.language import prepare
from mesascope.studies import Lab, new_run, run_study

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
def test_studies_run_on_the_device(name, tmp_path, monkeypatch):
    """Trained weights are there; batches, too, as the simulated device refuses tensors of two devices."""
    study, resumed, places = STUDIES[name], Lab.resumed, set()

    def looked_at(lab, training, *given):
        ensemble = resumed(lab, training, *given)
        places.update((training, weight.device.type) for weight in ensemble.weights.values())
        return ensemble

    monkeypatch.setattr(Lab, "resumed", looked_at)
    if name == "pretrained" and not TEXT_MODEL.exists():
        pytest.importorskip("test_local_model").saved(TEXT_MODEL, "bloom")
    settings = hardly_trained(study.presets["quick"], trained=4, **SHRUNK.get(name, {}))
    run = new_run(study, "quick", settings, device=simulation.DEVICE, out=tmp_path / "run")
    records = run_study(study, settings, run)
    assert [record["id"] for record in records] == [claim.id for claim in study.claims]
    assert run.is_complete
    assert run.config["device"] == simulation.DEVICE
    assert {device for _, device in places} <= {torch.device(simulation.DEVICE).type}
    assert bool(places) == any(stage.startswith("train ") for stage in run.times)


@pytest.mark.slow
def test_language_models_of_the_largest_preset_take_ten_steps(tmp_path):
    """Networks are as wide and as deep as in the preset; windows are few and short."""
    study, text = STUDIES["language-mesa"], tmp_path / "text.txt"
    text.write_text("\n\n".join(f"{number} times {number} is {number**2}." for number in range(2000)))
    prepare([text], tmp_path / "tokens", delimiter="\n\n", validation=0.2)
    settings = hardly_trained(
        study.presets["paper"], trained=10, corpus=str(tmp_path / "tokens"), context=32, windows=4, watch_windows=2,
        accumulate=2, seeds=1,
    )  # fmt: skip
    settings = dataclasses.replace(settings, training=dataclasses.replace(settings.training, batch=2))
    run = new_run(study, "paper", settings, device=simulation.DEVICE, out=tmp_path / "run")
    run_study(study, settings, run)
    assert run.is_complete
    shutil.rmtree(run.path)  # two gigabytes
