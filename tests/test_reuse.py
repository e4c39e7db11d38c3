"""Runs that take over what another run trained."""

import dataclasses
import json

import pytest
import tiny_study
import torch

from mesascope.errors import NumericalError, RunDirectoryError
from mesascope.meta import ContinualState, SparseLaMAML
from mesascope.nets import ClassifierConfig, InContextRegressorConfig, TransformerConfig
from mesascope.runs.checkpoints import TrainingCheckpoints
from mesascope.studies import Lab, new_run, run_study
from mesascope.studies.sparse.following import follow
from mesascope.tasks import LinearRegression, RotatedDigits
from mesascope.training import EnsembleState, half_mse


def test_a_finished_training_is_taken_over_from_a_run_to_reuse(tmp_path, monkeypatch, capsys):
    first = new_run(tiny_study.STUDY, "quick", out=tmp_path / "first")
    run_study(tiny_study.STUDY, tiny_study.Settings(), first)
    second = new_run(tiny_study.STUDY, "paper", out=tmp_path / "second", reuse=tmp_path / "first")
    monkeypatch.setattr(EnsembleState, "update", None)  # no step can be taken
    monkeypatch.chdir(tmp_path)
    run_study(tiny_study.STUDY, tiny_study.Settings(), second)
    assert "training layer: taken over from first/checkpoints/layer\n" in capsys.readouterr().err
    for own in ("metrics.jsonl", "checkpoints/layer/8/weights.safetensors", "results/weights.npz"):
        assert (tmp_path / "second" / own).read_bytes() == (tmp_path / "first" / own).read_bytes()


def test_a_training_of_another_record_or_unfinished_is_not_taken_over(tmp_path, capsys):
    first = new_run(tiny_study.STUDY, "quick", out=tmp_path / "first")
    run_study(tiny_study.STUDY, tiny_study.Settings(), first)
    longer = dataclasses.replace(tiny_study.TRAINING, steps=7)
    why = {
        "seeds": "seeds is [0, 1] there and [0, 1, 2] here\n",
        "steps": "training.steps is 8 there and 7 here\n",
    }
    for name, changes in (("seeds", {"seeds": 3}), ("steps", {"training": longer})):
        settings = dataclasses.replace(tiny_study.Settings(), **changes)
        other = new_run(tiny_study.STUDY, "quick", settings, out=tmp_path / name, reuse=tmp_path / "first")
        run_study(tiny_study.STUDY, settings, other)
        said = capsys.readouterr().err
        assert "taken over" not in said
        assert f"training layer anew: {tmp_path}/first/checkpoints/layer differs: {why[name]}" in said


def test_curves_of_a_training_taken_over_must_be_those_that_would_be_logged(tmp_path, capsys):
    first = new_run(tiny_study.STUDY, "quick", out=tmp_path / "first")
    run_study(tiny_study.STUDY, tiny_study.Settings(), first)
    (tmp_path / "first/finished.json").unlink()
    metrics = tmp_path / "first/metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps({**row, "mse": row["mse"] + 0.1}) + "\n" for row in rows))
    second = new_run(tiny_study.STUDY, "quick", out=tmp_path / "second", reuse=tmp_path / "first")
    run_study(tiny_study.STUDY, tiny_study.Settings(), second)
    assert "training layer anew" in capsys.readouterr().err
    assert (tmp_path / "second/metrics.jsonl").read_bytes() != metrics.read_bytes()


def test_a_run_to_reuse_that_is_gone_trains_anew(tmp_path, capsys):
    first = new_run(tiny_study.STUDY, "quick", out=tmp_path / "first")
    run_study(tiny_study.STUDY, tiny_study.Settings(), first)
    second = new_run(tiny_study.STUDY, "quick", out=tmp_path / "second", reuse=tmp_path / "first")
    (tmp_path / "first").rename(tmp_path / "elsewhere")
    run_study(tiny_study.STUDY, tiny_study.Settings(), second)
    assert "training layer anew: a run directory must exist" in capsys.readouterr().err


def test_a_take_over_that_was_killed_is_taken_up(tmp_path, monkeypatch):
    first = new_run(tiny_study.STUDY, "quick", out=tmp_path / "first")
    run_study(tiny_study.STUDY, tiny_study.Settings(), first)
    second = new_run(tiny_study.STUDY, "quick", out=tmp_path / "second", reuse=tmp_path / "first")
    with monkeypatch.context() as patch:
        patch.setattr(TrainingCheckpoints, "copy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_study(tiny_study.STUDY, tiny_study.Settings(), second)
    monkeypatch.setattr(EnsembleState, "update", None)
    run_study(tiny_study.STUDY, tiny_study.Settings(), second)
    assert (tmp_path / "second/metrics.jsonl").read_bytes() == (tmp_path / "first/metrics.jsonl").read_bytes()


def interrupted(*arguments):
    raise KeyboardInterrupt


def test_a_training_that_starts_from_another_is_taken_over_with_it_alone(tmp_path, monkeypatch):
    """The record contains only the name of the start."""
    family, config = LinearRegression(n_context=4, d_in=3), InContextRegressorConfig(TransformerConfig(width=4))

    def trained(folder, reuse=None, **others):
        run = new_run(tiny_study.STUDY, "quick", out=tmp_path / folder, reuse=reuse)
        lab, plan = Lab(run, 2), tiny_study.TRAINING
        started = {name: lab.train(name, config, family, dataclasses.replace(plan, **others)) for name in ("start",)}
        return [one.w_pv for net in lab.train("next", config, family, plan, start=("start", started["start"]))
                for one in net.products()]  # fmt: skip

    whole = trained("first")
    with monkeypatch.context() as patch:
        patch.setattr(EnsembleState, "update", None)
        for one, other in zip(trained("second", tmp_path / "first"), whole, strict=True):
            assert torch.equal(one, other)
    other_start = trained("third", learning_rate=1e-2)
    for one, other in zip(trained("fourth", tmp_path / "first", learning_rate=1e-2), other_start, strict=True):
        assert torch.equal(one, other)


def test_a_run_to_reuse_must_exist(tmp_path):
    with pytest.raises(RunDirectoryError):
        new_run(tiny_study.STUDY, "quick", out=tmp_path / "run", reuse=tmp_path / "none")
    first = new_run(tiny_study.STUDY, "quick", out=tmp_path / "first")
    with pytest.raises(RunDirectoryError, match="reuse must name a run with its checkpoints"):
        new_run(tiny_study.STUDY, "quick", out=tmp_path / "run", reuse=first.path)
    assert not (tmp_path / "run").exists()


def half_exploding(ensemble, batch):
    losses = half_mse(ensemble, batch)
    return losses * torch.tensor([1.0, torch.inf])


@pytest.mark.filterwarnings("ignore:members")
def test_a_network_that_diverged_is_not_judged(tmp_path):
    """It keeps the weights of before, which look like any others."""
    family, config = LinearRegression(n_context=4, d_in=3), InContextRegressorConfig(TransformerConfig(width=4))
    run = new_run(tiny_study.STUDY, "quick", out=tmp_path / "run", seed=5)
    said = "training layer must not diverge, but the network of seed 6 did at step 1: start anew"
    for _ in ("trained", "loaded"):
        with pytest.raises(NumericalError, match=said):
            Lab(run, 2).train("layer", config, family, tiny_study.TRAINING, loss=half_exploding)


def test_a_stream_that_was_followed_is_taken_over_with_what_was_logged_along_it(tmp_path, monkeypatch, capsys):
    net, family = ClassifierConfig("mlp", width=20, size=8, classes=10), RotatedDigits(20, 30)

    def followed(folder, **options):
        run = new_run(tiny_study.STUDY, "quick", out=tmp_path / folder, **options)
        return follow(Lab(run, 2), "stream", net, SparseLaMAML(glances=1), family, 3, batch=5)

    first = followed("first")
    monkeypatch.setattr(ContinualState, "update", None)  # no step can be taken
    second = followed("second", reuse=tmp_path / "first")
    assert "training stream: taken over" in capsys.readouterr().err
    for name in ("learned", "retained", "closed"):
        assert (first[name] == second[name]).all()
