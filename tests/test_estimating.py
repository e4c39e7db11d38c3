"""Estimates of what a study takes, from a few of its steps."""

import os

import pytest
from test_studies import hardly_trained

from mesascope.cli import main
from mesascope.records import registered
from mesascope.studies import estimate, estimating, new_run, run_study

STUDIES = registered("study")
# References come before all trainings of these, which an estimate leaves out.
AFTER_OTHERS = {"deep", "deep-mlp"}
# Studies of algorithms alone or of texts that are not at hand; or tested in test_devices_studies.py and in
# test_sparse_studies.py, as streams are, and images of the presets with other names.
ELSEWHERE = {"good-regression", "identify-calibration", "language-mesa", "pretrained", "continual-mnist"}


def test_an_estimate_names_each_training_with_its_steps_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "two-steps", "--estimate", "--training.steps", "7000", "--seeds", "2", "--device", "cpu"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0] == "device: cpu"
    assert [line.split()[:2] for line in table[2:-1]] == [["looped", "7000"]]
    assert not os.listdir()


def test_hours_are_those_of_all_steps():
    study = registered("study")["two-steps"]
    rows = {row["training"]: row for row in estimate(study, "quick")}
    done = study.presets["quick"].training.steps
    assert rows["looped"]["steps"] == done
    assert 0 < rows["looped"]["hours"] < 0.2
    assert rows["looped"]["memory (GB)"] > 0.1


def test_networks_that_learn_from_streams_are_left_out():
    names = [row["training"] for row in estimate(registered("study")["continual-online"], "quick")]
    assert names == ["before maml", "before sparse-maml", "before sparse-relu-maml"]


LARGEST = [
    (name, preset)
    for name, study in STUDIES.items()
    for preset in ("paper", "thesis")
    if preset in study.presets and name not in ELSEWHERE
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "preset"), LARGEST)
def test_networks_of_the_largest_presets_take_ten_steps(name, preset, tmp_path, monkeypatch):
    """Networks are as large as in the source; batches and tasks are few."""
    study = STUDIES[name]
    settings = hardly_trained(study.presets[preset], trained=10)
    if name in AFTER_OTHERS:
        run = new_run(study, preset, settings, out=tmp_path / "run")
        run_study(study, settings, run)
        assert run.is_complete
    else:
        monkeypatch.setattr(estimating, "steps_to_time", lambda first, seconds: 10)
        rows = estimate(study, preset, settings)
        assert all(row["steps"] == 10 for row in rows)
        count = study.trainings if isinstance(study.trainings, int) else study.trainings(settings)
        assert len(rows) == (3 if name == "continual-online" else count), "others learn from streams"
