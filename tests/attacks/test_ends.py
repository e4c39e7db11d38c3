"""Ends of commands whose code, files or machine misbehave: in a sentence and a status, with nothing lost."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_study
from bokeh.document import Document
from sentences import one_sentence

from mesascope import identify
from mesascope.cli import main
from mesascope.errors import ArgumentError, RunDirectoryError
from mesascope.explore.run_list import RunList
from mesascope.explore.saving import save
from mesascope.identification import candidates
from mesascope.learners import GradientDescent
from mesascope.runs import Run, open_run
from mesascope.runs.results import record_hash
from mesascope.studies import new_run, run_study, verify
from mesascope.sweeps import Sweep
from mesascope.sweeps.points import as_task, run_point
from mesascope.tasks import LinearRegression

TINY = Path(tiny_study.__file__).read_text()


def refused(capsys, *arguments):
    """The sentence of a command that ends with status 2."""
    assert main([*map(str, arguments)]) == 2
    return one_sentence(capsys.readouterr().err.splitlines()[-1])


@pytest.fixture
def finished(tmp_path):
    run = new_run(tiny_study.STUDY, "quick", out=tmp_path / "run")
    run_study(tiny_study.STUDY, tiny_study.STUDY.presets["quick"], run)
    return run


@pytest.mark.parametrize("code", ["0", "'bye'", ""])
def test_code_that_leaves_the_process_is_an_error(tmp_path, capsys, monkeypatch, code):
    monkeypatch.chdir(tmp_path)
    Path("leaves.py").write_text(f"import sys\n\ndef learner(context, xq):\n    sys.exit({code})\n")
    text = TINY.replace('name="tiny"', 'name="leaving"')
    Path("leaves_study.py").write_text(text.replace("settings):\n", f"settings):\n    sys.exit({code})\n", 1))
    said = refused(capsys, "identify", "leaves.py:learner", "--out", "identified")
    assert said.startswith("the code that the command runs must return, but calls sys.exit(")
    said = refused(capsys, "run", "leaves_study.py:STUDY", "--device", "cpu", "--out", "run")
    assert said.startswith("the code that the command runs must return, but calls sys.exit(")


def test_a_full_standard_error_ends_no_run(tmp_path):
    command = [sys.executable, "-m", "mesascope", "run", f"{tiny_study.__file__}:STUDY", "--device", "cpu", "--out"]
    with open("/dev/full", "w") as full:
        assert subprocess.run([*command, tmp_path / "run"], stderr=full, stdout=subprocess.PIPE).returncode == 0
    assert open_run(tmp_path / "run").is_complete


def test_a_user_without_a_home_folder_is_told(tmp_path):
    code = "from mesascope.data import cache_folder; cache_folder()"
    hidden = ("HOME", "XDG_CACHE_HOME", "MESASCOPE_CACHE")
    own = {name: value for name, value in os.environ.items() if name not in hidden}
    code = f"import os; os.path.expanduser = lambda path: path\n{code}"
    done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True)
    assert "ArgumentError: MESASCOPE_CACHE must be set for a user without a home folder" in done.stderr


@pytest.mark.parametrize("values", ["[1e999]", "[[NaN]]", '"\\ud800"'])
def test_settings_of_a_sweep_that_no_file_holds_are_refused(values, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("def measured(settings, seed):\n    return {'error': 1.0}\n")
    assert "x must have finite values and UTF-8 text" in refused(
        capsys, "sweep", "own.py:measured", "--set", f"x={values}"
    )


def test_a_point_of_a_function_is_continued_by_its_sweep(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("def measured(settings, seed):\n    return {'error': 1.0}\n")
    sweep = Sweep("own.py:measured", {"size": [1]}, out="sweep")
    run_point(as_task(sweep.points[0], sweep.out.resolve()).record)
    said = refused(capsys, "run", "--resume", f"sweep/{sweep.points[0].key}")
    assert said.endswith("is a point of a sweep: continue the sweep by mesascope sweep --resume sweep.")


def test_files_that_would_never_end_are_refused(finished):
    (finished.path / "metrics.jsonl").unlink()
    os.mkfifo(finished.path / "metrics.jsonl")
    with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl must be a regular file, but is a pipe"):
        open_run(finished.path)


def test_verifying_nothing_is_no_success(finished):
    with pytest.raises(ArgumentError, match="folders must name at least one folder of runs, but is empty"):
        verify([])
    assert verify(finished.path)


def test_a_network_of_an_unfinished_training_is_named_by_its_step(finished, tmp_path, capsys):
    checkpoints = finished.path / "checkpoints" / "layer"
    manifest = json.loads((checkpoints / "8" / "manifest.json").read_text())
    manifest["config"]["training"]["steps"] = 20
    manifest["key"] = record_hash(manifest["config"])
    (checkpoints / "8" / "manifest.json").write_text(json.dumps(manifest))
    command = ["identify", f"{finished.path}:layer", "--candidates", "gradient-descent", "--budget", "300"]
    assert main([*command, "--out", str(tmp_path / "identified")]) == 0
    assert "layer of seed 0, after step 8 of 20" in capsys.readouterr().out


def test_the_folder_of_an_identification_is_checked_first(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    said = refused(capsys, "identify", "no_module:learner", "--out", tmp_path)
    assert said.startswith("a new run must have an empty folder")


def test_an_identification_that_was_cut_is_finished_by_report(tmp_path, capsys):
    family = LinearRegression(n_context=5, d_in=2)
    known = [one for one in candidates(family) if one.name == "gradient-descent"]
    run = identify(GradientDescent(1, 0.1), family, known, 300, 0).save(tmp_path / "run")
    claims = run.claims
    for name in ("claims.json", "finished.json", "report.html"):
        (run.path / name).unlink()
    main(["ledger", str(run.path)])
    assert "finish it by mesascope report" in capsys.readouterr().err
    assert main(["report", str(run.path)]) == 0
    assert open_run(run.path).claims == claims
    assert "has not finished" not in (run.path / "report.html").read_text()


def test_a_finished_run_without_claims_is_not_called_unfinished(tmp_path, capsys):
    run = Run.create(tmp_path / "run", "training", {"settings": {}, "seed": 0})
    assert main(["report", str(run.path)]) == 0
    assert "has not finished: continue it with --resume" in (run.path / "report.html").read_text()
    run.save_claims([])
    assert main(["report", str(run.path)]) == 0
    assert "has not finished" not in (run.path / "report.html").read_text()


def test_edited_verdicts_are_not_shown(finished, tmp_path):
    shutil.copytree(finished.path, tmp_path / "runs" / "edited")
    shutil.copytree(finished.path, tmp_path / "runs" / "whole")
    claims = json.loads((tmp_path / "runs" / "edited" / "claims.json").read_text())
    edited = json.dumps([{**one, "verdict": "holds"} for one in claims])
    (tmp_path / "runs" / "edited" / "claims.json").write_text(edited)
    panel = RunList([tmp_path / "runs"], Document())
    panel.later.now()
    for name in ("whole", "edited"):
        panel.menus["run"].value = name
        assert ("better" in panel.claims.text) is (len(panel.menus["claim"].options) > 1) is (name == "whole")
    assert "claims.json must be as the run left it" in panel.error.text
    panel.menus["first"].value = "edited : layer"
    assert not len(panel.sources[0].data["x"])


def test_a_saved_page_replaces_no_device_and_follows_links(tmp_path, monkeypatch):
    monkeypatch.setattr("mesascope.explore.saving.page", lambda found: "page")
    with pytest.raises(ArgumentError, match="--save must be a file in a folder that exists, but is '/dev/null'"):
        save({}, Path("/dev/null"))
    (tmp_path / "link.html").symlink_to(tmp_path / "page.html")
    save({}, tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "page.html").read_text() == "page"
