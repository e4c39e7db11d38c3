"""Finished runs are judged again by today's code, and repeated; what changed has a row and a likely reason."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_study

from mesascope import records
from mesascope.cli import main
from mesascope.errors import ArgumentError, NumericalError
from mesascope.records import registered
from mesascope.runs import open_run
from mesascope.runs.files import arrays_bytes, checksum, read_arrays
from mesascope.studies import new_run, run_study, verify
from mesascope.studies.sources import files_of
from mesascope.study import load_study

TINY = Path(tiny_study.__file__).read_text()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A file with the tiny study in a git repository, a module that it imports, and a finished run of it."""
    folder = tmp_path_factory.mktemp("own")
    file = folder / "mine.py"
    (folder / "bounds_beside_mine.py").write_text("MOST = 4.0\n")
    (folder / "apart.py").write_text("MOST = 5.0\n")
    text = TINY.replace('name="tiny"', 'name="mine"').replace("below(4.0)", "below(bounds_beside_mine.MOST)")
    file.write_text(text.replace("import sys\n", "import sys\nimport bounds_beside_mine\n", 1))
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "a study")
    study = load_study(f"{file}:STUDY")
    run_study(study, study.presets["quick"], new_run(study, "quick", out=folder / "runs" / "whole"))
    return folder


@pytest.fixture
def own(finished, tmp_path, monkeypatch):
    """A copy of it in a folder of its own, whose run names the copied file."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "whole"
    edit(run / "config.json", lambda config: config.update(defined_in=f"{tmp_path / 'mine.py'}:STUDY"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "bounds_beside_mine", raising=False)
    return run


def git(folder, *words):
    author = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    return subprocess.run(["git", "-C", folder, *author, *words], check=True, capture_output=True, text=True).stdout


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def rows(found):
    return [(row["claim"], row["what"], row["then"], row["now"]) for row in found.changes]


def test_a_run_that_is_as_it_was_changes_nothing(own, capsys):
    found = verify(own)
    assert (rows(found), found.left_out, bool(found), found.verdicts["id"]) == ([], [], True, ["better", "small"])
    assert found.runs["claims"] == ["2 hold"]
    assert main(["verify"]) == 0
    assert "1 run, 2 claims: nothing changed" in capsys.readouterr().out


def test_an_edited_verdict_is_found(own, capsys):
    edit(own / "claims.json", lambda claims: claims[1].update(verdict="fails", reason="so it is"))
    found = verify(own)
    assert rows(found) == [
        ("", "claims.json", "as the run left it", "edited"),
        ("small", "verdict", "fails: so it is", "holds: worst of 2 seeds"),
    ]
    assert found.changes["likely reason"][1] == "claims.json was edited after the run finished"
    assert main(["verify", str(own), "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["changes"] == list(found.changes)
    assert main(["verify", str(own), "--format", "markdown"]) == 1
    assert "| small | verdict | fails: so it is | holds: worst of 2 seeds |" in capsys.readouterr().out


def test_edited_arrays_are_found_though_their_checksums_were_edited_too(own):
    path = own / "results" / "weights.npz"
    arrays = read_arrays(path.read_bytes())
    path.write_bytes(arrays_bytes({**arrays, "norm": arrays["norm"] + 2.0}))
    edit(own / "results" / "index.json", lambda index: index["weights"].update(sha256=checksum(path)))
    found = verify(own)
    assert [row[:2] for row in rows(found)] == [("", "results/index.json"), ("small", "value"), ("small", "verdict")]
    assert found.changes["likely reason"][1] == "results/index.json was edited after the run finished"


def test_another_bound_is_found_with_the_verdict_that_it_turns(own):
    (own.parents[1] / "bounds_beside_mine.py").write_text("MOST = 1e-3\n")
    file = own.parents[1] / "mine.py"
    file.write_text(file.read_text().replace('"weights stay small"', '"weights stay tiny"'))  # words alone
    found = verify(own)
    assert rows(found)[0] == ("better", "bound", "< 4", "< 0.001")
    assert [row[:2] for row in rows(found)[1:]] == [("better", "verdict"), ("small", "verdict")]
    assert found.changes["likely reason"] == [
        "the study states another bound now",
        "its bound changed",
        "its premise better changed",
    ]


def test_another_reading_is_named_by_the_files_that_changed(own):
    commit = git(own.parents[1], "rev-parse", "HEAD").strip()
    edit(own / "config.json", lambda config: config.update(git=commit))
    file = own.parents[1] / "mine.py"
    file.write_text(file.read_text().replace('stage("weights")["norm"]', 'stage("weights")["norm"] * 2.0'))
    (found,) = verify(own).changes
    assert (found["claim"], found["what"]) == ("small", "value")
    assert found["likely reason"].startswith(f"code since {commit[:8]}: mine.py")


def test_claims_that_are_new_or_gone_and_more_replicates_are_found(own):
    file = own.parents[1] / "mine.py"
    text = file.read_text().replace('"small", "weights', '"smaller", "weights')
    file.write_text(text.replace('ours("an example"), at_least=2', 'ours("an example"), at_least=3', 1))
    found = verify(own)
    assert [row[:2] for row in rows(found)] == [
        ("better", "rule"), ("better", "value"), ("better", "verdict"), ("small", "claim"), ("smaller", "claim"),
    ]  # fmt: skip
    assert rows(found)[2][3] == "undecided: it needs 3 seeds, and has 2"
    assert found.changes["likely reason"][1] == "its rule changed"


def test_a_missing_stage_is_named(own):
    (own / "results" / "weights.npz").unlink()
    assert {"weights.npz is missing"} <= {*verify("runs").changes["likely reason"]}


def test_a_damaged_run_costs_its_own_row(own):
    other, third = (shutil.copytree(own, own.with_name(name)) for name in ("broken", "lost"))
    (other / "results" / "weights.npz").write_bytes(b"")
    (third / "config.json").write_text("{")
    shutil.copytree(own, own.with_name("unfinished"), ignore=shutil.ignore_patterns("claims.json", "finished.json"))
    found = verify("runs")
    assert [(row["what"], row["now"]) for row in found.changes] == [("run", "damaged")] * 2
    assert {Path(row["run"]).relative_to("runs").parts[0] for row in found.changes} == {"broken", "lost"}
    assert "weights.npz must be what this run measured, but is damaged" in found.changes["likely reason"][1]
    assert [(Path(row["run"]).name, row["changes"]) for row in found.runs] == [("broken", 1), ("whole", 0)]
    assert found.left_out == ["runs/unfinished must be a finished run of a study, but is not finished: leave it out."]


def test_a_repetition_on_the_same_machine_is_byte_identical(own, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "again"))
    (tmp_path / "again").mkdir()
    found = verify(own, rerun=True)
    assert (rows(found), found.runs["run again"]) == ([], ["all 4 stages byte-identical"])
    assert not [*(tmp_path / "again").iterdir()], "an equal repetition is removed"
    assert "running again: " in capsys.readouterr().err


def nudged(size):
    """The measurement of the tiny study, with errors of the layers and of descent larger by a share of ``size``."""

    def measure(lab, settings):
        tiny_study.measure(lab, settings)
        kept = lab.run.results["comparison"]
        arrays = {name: array * (1 + size) if name == "mean" else array for name, array in kept.to_arrays().items()}
        lab.run.results.save("comparison", type(kept).from_arrays(arrays))

    return measure


@pytest.fixture
def registered_tiny(tmp_path, monkeypatch):
    """A finished run of the tiny study; a function that puts another study in its place."""
    run_study(tiny_study.STUDY, tiny_study.Settings(), new_run(tiny_study.STUDY, "quick", out=tmp_path / "tiny"))
    registered("study")

    def put(study):
        monkeypatch.setitem(records._REGISTRY["study"], "tiny", records.Registered(study, {}))

    put(tiny_study.STUDY)
    return tmp_path / "tiny", put


def test_numbers_that_differ_on_the_same_machine_are_a_change(registered_tiny):
    run, put = registered_tiny
    put(dataclasses.replace(tiny_study.STUDY, measure=nudged(1e-6)))
    found = verify(run, rerun=True)
    assert [row[:2] for row in rows(found)] == [("better", "value, run again"), ("", "numbers, run again")]
    assert rows(found)[1][3] == "1 of 4 stages changed (relative to the largest number: comparison by 1e-06)"
    assert {*found.changes["likely reason"]} == {"random draws or sums that the seed does not determine"}
    kept = Path(found.runs["run again"][0].rpartition("; in ")[2])
    assert open_run(kept).claims["id"] == ["better", "small"]
    shutil.rmtree(kept)


@pytest.mark.parametrize(("size", "changes"), [(1e-6, []), (3.0, ["value", "verdict", "verdict"])])
def test_with_other_packages_values_must_be_within_their_intervals(size, changes, registered_tiny):
    run, put = registered_tiny
    edit(run / "config.json", lambda config: config["versions"].update(torch="2.9.0"))
    put(dataclasses.replace(tiny_study.STUDY, measure=nudged(size)))
    found = verify(run, rerun=True)
    assert [row["what"] for row in found.changes] == [f"{part}, run again" for part in changes]
    assert found.runs["run again"][0].startswith("1 of 4 stages changed")
    for row in found.changes:
        assert row["likely reason"].startswith("torch 2.9.0, now ")
    assert bool(found) is not bool(changes)


def test_a_repetition_that_fails_costs_its_own_row(registered_tiny):
    run, put = registered_tiny

    def measure(lab, settings):
        raise NumericalError("the loss must be finite, but is nan: lower the learning rate.")

    put(dataclasses.replace(tiny_study.STUDY, measure=measure))
    (row,) = verify(run, rerun=True).changes
    assert (row["what"], row["now"]) == ("run again", "failed")
    assert row["likely reason"].startswith("the loss must be finite")
    with pytest.raises(ArgumentError, match="device must be one that torch finds"):
        verify(run, rerun=True, device="abacus")


def test_only_studies_whose_code_has_changed_since_a_commit_are_verified(own, tmp_path, capsys):
    assert verify("runs", since="HEAD").runs == []
    (tmp_path / "apart.py").write_text("MOST = 6.0\n")
    assert verify("runs", since="HEAD").runs == []
    (tmp_path / "bounds_beside_mine.py").write_text("MOST = 3.0\n")
    assert len(verify("runs", since="HEAD").runs) == 1, "before it is committed"
    git(tmp_path, "commit", "--quiet", "-am", "another bound")
    assert verify("runs", since="HEAD").runs == []
    assert len(verify("runs", since="HEAD~1").runs) == 1
    for commit in ("nowhere", "--output=x", ""):
        with pytest.raises(ArgumentError, match=r"since must be a commit of .*, but is .*: pass one that"):
            verify("runs", since=commit)
    shutil.rmtree(tmp_path / ".git")
    assert main(["verify", "--since", "HEAD"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("mesascope: --since must refer to a git repository with the code of mine, but ")
    assert said.endswith("mine.py is not tracked: leave it out.\n")


def test_files_of_a_study_are_those_that_it_uses():
    files = {"/".join(path.parts[-2:]) for path in files_of(registered("study")["weights"])}
    assert {"icl_gd/weights.py", "icl_gd/shared.py", "nets/transformer.py", "studies/lab.py"} <= files
    assert {"evidence/judging.py", "training/loop.py", "lenses/reading.py", "tasks/regression.py"} <= files
    assert not {"reports/html.py", "meta/maml.py", "mesa/solve.py", "language/packing.py"} & files
    assert {"mesa/solve.py"} <= {"/".join(path.parts[-2:]) for path in files_of(registered("study")["language-mesa"])}


def test_a_stage_that_no_claim_reads_is_verified(own):
    read = {"comparison.npz", "weights.npz"}
    (unread,) = [one for one in (own / "results").glob("*.npz") if one.name not in read]
    content = bytearray(unread.read_bytes())
    content[len(content) // 2] ^= 1
    unread.write_bytes(content)
    assert [row["now"] for row in verify("runs").changes] == ["damaged"]
