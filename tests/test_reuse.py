"""Runs that take over what another run trained."""

import dataclasses
import json

import pytest
import tiny_study

from mesascope.errors import ArgumentError, RunDirectoryError
from mesascope.studies import new_run, run_study
from mesascope.training import EnsembleState


def test_a_finished_training_is_taken_over_from_a_run_to_reuse(tmp_path, monkeypatch):
    first = new_run(tiny_study.STUDY, "quick", out=tmp_path / "first")
    run_study(tiny_study.STUDY, tiny_study.Settings(), first)
    second = new_run(tiny_study.STUDY, "paper", out=tmp_path / "second", reuse=tmp_path / "first")
    monkeypatch.setattr(EnsembleState, "update", None)  # no step can be taken
    run_study(tiny_study.STUDY, tiny_study.Settings(), second)
    for own in ("metrics.jsonl", "checkpoints/layer/8/weights.safetensors", "results/weights.npz"):
        assert (tmp_path / "second" / own).read_bytes() == (tmp_path / "first" / own).read_bytes()


def test_a_training_of_another_record_or_unfinished_is_not_taken_over(tmp_path, capsys):
    first = new_run(tiny_study.STUDY, "quick", out=tmp_path / "first")
    run_study(tiny_study.STUDY, tiny_study.Settings(), first)
    longer = dataclasses.replace(tiny_study.TRAINING, steps=7)
    for name, changes in (("seeds", {"seeds": 3}), ("steps", {"training": longer})):
        settings = dataclasses.replace(tiny_study.Settings(), **changes)
        other = new_run(tiny_study.STUDY, "quick", settings, out=tmp_path / name, reuse=tmp_path / "first")
        run_study(tiny_study.STUDY, settings, other)
        assert "taken over" not in capsys.readouterr().err


def test_curves_of_a_training_taken_over_must_be_those_that_would_be_logged(tmp_path):
    first = new_run(tiny_study.STUDY, "quick", out=tmp_path / "first")
    run_study(tiny_study.STUDY, tiny_study.Settings(), first)
    (tmp_path / "first/finished.json").unlink()
    metrics = tmp_path / "first/metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps({**row, "mse": row["mse"] + 0.1}) + "\n" for row in rows))
    second = new_run(tiny_study.STUDY, "quick", out=tmp_path / "second", reuse=tmp_path / "first")
    with pytest.raises(ArgumentError, match="reuse must name a run that logs of layer what this one does"):
        run_study(tiny_study.STUDY, tiny_study.Settings(), second)


def test_a_run_to_reuse_must_exist(tmp_path):
    with pytest.raises(RunDirectoryError):
        new_run(tiny_study.STUDY, "quick", out=tmp_path / "run", reuse=tmp_path / "none")
    assert not (tmp_path / "run").exists()
