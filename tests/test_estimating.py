"""Estimates of what a study takes, from a few of its steps."""

import os

from mesascope.cli import main
from mesascope.records import registered
from mesascope.studies import estimate


def test_an_estimate_names_each_training_with_its_steps_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "two-steps", "--estimate", "--training.steps", "7000", "--seeds", "2", "--device", "cpu"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in table[1:-1]] == [["looped", "7000"]]
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
