"""An interrupted run, damaged before it is resumed: it ends with the bytes of an uninterrupted one, or is refused.

It was interrupted at step 7 of 8; its last checkpoint is of step 6, and it logs every second step of two seeds.
"""

import json
import shutil

import pytest
from cases import check_each
from sentences import one_sentence
from test_run_damage import DAMAGE
from test_run_files import rewrite
from tiny_study import STUDY, contents

from mesascope import records
from mesascope.runs.checkpoints import TrainingCheckpoints
from mesascope.studies import new_run, run_study

METRICS, LAYER = "metrics.jsonl", "checkpoints/layer"
LATER = '{"training": "layer", "step": 8, "seed": 0, "mse": 0.5}\n'


def lines(change):
    """Damage that changes the lines of metrics.jsonl."""

    def damage(run):
        kept = (run / METRICS).read_text().splitlines(keepends=True)
        (run / METRICS).write_text("".join(change(kept)))

    return damage


def file(name, damage):
    return lambda run: DAMAGE[damage](run / name)


def setting(position, value):
    """Damage that edits config.json; without its hash, as older runs have none, where ``value`` is a pair."""

    def damage(run):
        rewrite(run / "config.json", position, value)

    return damage


def unhashed(run):
    config = json.loads((run / "config.json").read_text())
    del config["hash"]
    (run / "config.json").write_text(json.dumps(config))


def copied(source, target):
    def damage(run):
        one, other = run / source, run / target
        shutil.copytree(one, other) if one.is_dir() else shutil.copy(one, other)

    return damage


def both(*damages):
    return lambda run: [damage(run) for damage in damages]


# Changes to the run, and the words of the refusal; none where resuming gives the right result.
CASES = {
    "nothing": (lambda run: None, None),
    "metrics missing": (file(METRICS, "missing"), "lacks step 0 of seed 0"),
    "metrics empty": (file(METRICS, "empty"), "lacks step 0 of seed 0"),
    "metrics cut": (file(METRICS, "cut"), None),
    "metrics binary": (file(METRICS, "binary"), "line 1 is damaged"),
    "metrics a folder": (file(METRICS, "folder"), "Is a directory"),
    "metrics without the first line": (lines(lambda rows: rows[1:]), "lacks step 0 of seed 0"),
    "metrics without a line": (lines(lambda rows: rows[:3] + rows[4:]), "lacks step 2 of seed 1"),
    "metrics without the last line": (lines(lambda rows: rows[:-1]), None),
    "metrics without the last step": (lines(lambda rows: rows[:-2]), None),
    "metrics without a line that the checkpoint is after": (lines(lambda rows: rows[:-3]), "lacks step 6 of seed 1"),
    "metrics with a torn line": (lines(lambda rows: [*rows, LATER[:20]]), None),
    "metrics with a torn line in the middle": (lines(lambda rows: [LATER[:20] + "\n", *rows]), "line 1 is damaged"),
    "metrics of a later step": (lines(lambda rows: [*rows[:-2], LATER]), None),
    "metrics of a later step, torn": (lines(lambda rows: [*rows[:-2], LATER, LATER[:-1]]), None),
    "metrics with a line twice": (lines(lambda rows: [rows[0], *rows]), None),
    "metrics with two values": (lines(lambda rows: [*rows, rows[0].replace("mse", "msa")]), "line 11 is another"),
    "metrics with an empty line": (lines(lambda rows: [*rows, "\n"]), "is damaged"),
    "metrics with a number": (lines(lambda rows: [*rows, "5\n"]), "Expected object, got int"),
    "metrics with nan": (lines(lambda rows: [*rows, LATER.replace("0.5", "NaN")]), "is damaged"),
    "checkpoints missing": (file("checkpoints", "missing"), "must hold the checkpoints"),
    "training missing": (file(LAYER, "missing"), "must hold the checkpoints"),
    "checkpoint missing": (file(f"{LAYER}/6", "missing"), "must hold the checkpoints"),
    "checkpoint renamed": (lambda run: (run / LAYER / "6").rename(run / LAYER / "5"), "name the step of its folder"),
    "checkpoint copied": (copied(f"{LAYER}/6", f"{LAYER}/7"), "name the step of its folder"),
    "checkpoint empty": (lambda run: (run / LAYER / "7").mkdir(), "manifest.json must exist"),
    "a file beside the checkpoint": (lambda run: (run / LAYER / "7").touch(), None),
    "a checkpoint half written": (copied(f"{LAYER}/6", f"{LAYER}/.8.aside"), None),
    "a checkpoint half removed": (lambda run: (run / LAYER / "3").mkdir(), None),
    "an unknown folder": (lambda run: (run / LAYER / "old").mkdir(), None),
    **{
        f"{name} {damage}": (file(f"{LAYER}/6/{name}", damage), name)
        for name in ("weights.safetensors", "manifest.json")
        for damage in ("missing", "empty", "cut", "binary", "folder", "link")
    },
    "weights of another step": (lambda run: (run / LAYER / "6/weights.safetensors").write_bytes(b"0" * 99), "checksum"),
    "settings edited": (setting("settings.tasks", 41), "was edited"),
    "learning rate edited": (setting("settings.training.learning_rate", 1.0), "was edited"),
    "seed edited": (setting("seed", 1), "was edited"),
    "preset edited": (setting("preset", "paper"), "was edited"),
    "device edited": (setting("device", "mps"), "was edited"),
    "study edited": (setting("study", "one-step"), "was edited"),
    "study unknown": (both(unhashed, setting("study", "none")), "must name a study that is registered"),
    "preset unknown": (both(unhashed, setting("preset", "none")), "must name a preset of tiny"),
    "device not there": (both(unhashed, setting("device", "cuda:99")), "device must be one that torch finds"),
    "device nonsense": (both(unhashed, setting("device", "abacus")), "device must be one that torch finds"),
    "kind another": (both(unhashed, setting("kind", "benchmark")), "must name a study that is registered"),
    "steps edited": (both(unhashed, setting("settings.training.steps", 9)), "made with another configuration"),
    "seed edited, no hash": (both(unhashed, setting("seed", 1)), "made with another configuration"),
    "setting unknown": (both(unhashed, setting("settings.taskz", 9)), "did you mean 'tasks'"),
    "setting of a wrong type": (both(unhashed, setting("settings.tasks", "x")), "Expected int, got str"),
    "setting out of range": (both(unhashed, setting("settings.tasks", 1)), "tasks must be at least 2"),
    "training no record": (both(unhashed, setting("settings.training", 5)), "config.json must hold settings"),
    "command edited": (setting("command", "another"), None),
    "created edited": (setting("created", "yesterday"), None),
    "timing missing": (file("timing.json", "missing"), None),
    "timing empty": (file("timing.json", "empty"), "timing.json must hold JSON"),
    "a lock left behind": (lambda run: (run / ".lock").write_text("99999"), None),
    "a report": (lambda run: (run / "report.html").write_text("old"), None),
    "another run's stages": (lambda run: (run / "results").mkdir(), None),
}  # fmt: skip


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A run that a person stopped at step 7."""
    path, save = tmp_path_factory.mktemp("interrupted") / "run", TrainingCheckpoints.save

    def stopped(self, step, tensors):
        if step == 8:
            raise KeyboardInterrupt
        save(self, step, tensors)

    run = new_run(STUDY, "quick", out=path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingCheckpoints, "save", stopped)
        with pytest.raises(KeyboardInterrupt):
            run_study(STUDY, STUDY.presets["quick"], run)
    return path


def test_a_resumed_run_is_right_or_refused(interrupted, whole, tmp_path, mesascope, monkeypatch):
    right = contents(whole)
    drawn = {suffix: right[f"figures/training.{suffix}"] for suffix in ("svg", "png")}
    monkeypatch.setattr("mesascope.reports.figures.figure_files", lambda figure, results: drawn)
    own = {name: records._REGISTRY["study"][name] for name in ("one-step", "tiny")}
    monkeypatch.setitem(records._REGISTRY, "study", own)

    def check(case):
        damage, refusal = CASES[case]
        path = shutil.copytree(interrupted, tmp_path / case)
        damage(path)
        before = contents(path)
        code, _, err = mesascope("run", "tiny", "--resume", path)
        if refusal is None:
            assert code == 0, err
            assert {name: data for name, data in contents(path).items() if name in right} == right
        else:
            assert code == 2, "it went on"
            said = one_sentence(err.splitlines()[-1])
            assert refusal in said, said
            assert contents(path) == before, "a refused run is left as it was"

    check_each(check, CASES)


def test_a_resumed_run_draws_the_figures_of_one_that_was_not_interrupted(interrupted, whole, tmp_path, mesascope):
    path = shutil.copytree(interrupted, tmp_path / "run")
    assert mesascope("run", "tiny", "--resume", path)[0] == 0
    right = contents(whole)
    assert {name: data for name, data in contents(path).items() if name in right} == right


@pytest.mark.parametrize("lost", ["checkpoints", LAYER, f"{LAYER}/8"])
def test_a_finished_run_without_checkpoints_is_not_trained_again(lost, run, mesascope):
    shutil.rmtree(run / lost)
    before = contents(run)
    code, _, err = mesascope("run", "tiny", "--resume", run)
    assert code == 0
    assert "those of layer are missing or damaged: the finished run keeps" in one_sentence(err.splitlines()[-1])
    assert contents(run) == before
    (run / "results" / "weights.npz").unlink()
    code, _, err = mesascope("run", "tiny", "--resume", run)
    assert code == 2
    assert "must hold the checkpoints of this training, but is missing" in one_sentence(err.splitlines()[-1])
    assert (run / "metrics.jsonl").read_bytes() == before["metrics.jsonl"]
    assert (run / "claims.json").read_bytes() == before["claims.json"]
