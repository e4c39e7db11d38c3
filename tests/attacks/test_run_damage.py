"""Files of a finished run lost, cut, or replaced, and what each command makes of it.

A line is a file; under each damage stands what `report`, `--resume` and `ledger` do, one letter each:

- r: the right result, the same bytes as the undamaged run's, or the ledger's same rows;
- s: one sentence that names the file, and exit code 2; the ledger leaves the run out, and says so;
- u: a sentence that names the file as the reason for which the ledger's claims are undecided;
- n: the run counts as not finished.
"""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from cases import check_each
from sentences import one_sentence
from tiny_study import STUDY, contents

from mesascope import records
from mesascope.errors import RunDirectoryError
from mesascope.runs import find_runs, open_run
from mesascope.studies import ledger

WEIGHTS, MANIFEST = (f"checkpoints/layer/8/{name}" for name in ("weights.safetensors", "manifest.json"))

TABLE = """
file                      missing  empty  cut   binary  folder  link
config.json               sss      sss    sss   sss     sss     sss
claims.json               rrr      rrr    rrr   rrr     ssr     rrr
finished.json             rrr      sss    sss   sss     sss     rrr
timing.json               rrr      sss    sss   sss     sss     rrr
metrics.jsonl             sss      sss    sss   sss     sss     sss
results/index.json        sru      sss    sss   sss     sss     sru
results/comparison.npz    sru      ssu    ssu   ssu     ssu     ssu
results/layer.npz         srr      ssr    ssr   ssr     ssr     ssr
figures/captions.json     rrr      ssr    ssr   ssr     ssr     rrr
figures/training.svg      rrr      rrr    rrr   rrr     ssr     rrr
figures/training.png      rrr      rrr    rrr   rrr     ssr     rrr
report.html               rrr      rrr    rrr   rrr     ssr     rrr
.lock                     rrr      rrr    rrr   rrr     ssr     ssr
checkpoints               rrr      -      -     -       -       rrr
WEIGHTS                   rrr      rrr    rrr   rrr     rrr     rrr
MANIFEST                  rrr      rrr    rrr   rrr     rrr     rrr
results                   sru      -      -     -       -       ssu
figures                   rrr      -      -     -       -       ssr
""".replace("WEIGHTS", WEIGHTS).replace("MANIFEST", MANIFEST)


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def replace_by_folder(path):
    path.unlink()
    path.mkdir()
    (path / "inside").touch()


def replace_by_link(path):
    remove(path)
    path.symlink_to("nowhere")


DAMAGE = {
    "missing": remove,
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: os.truncate(path, max(path.stat().st_size - 7, 0)),
    "binary": lambda path: path.write_bytes(bytes(range(256))),
    "folder": replace_by_folder,
    "link": replace_by_link,
}
HEAD, *ROWS = map(str.split, TABLE.strip().splitlines())
CASES = [
    (file, damage, command, outcome)
    for file, *cells in ROWS
    for damage, cell in zip(HEAD[1:], cells, strict=True)
    if cell != "-"
    for command, outcome in zip(("report", "resume", "ledger"), cell, strict=True)
]


def compared(rows):
    """Rows of the ledger but for where the run is, and how long it took."""
    return [{key: row[key] for key in row if key not in ("run", "seconds")} for row in rows]


@pytest.fixture(scope="session")
def right(whole):
    return contents(whole)


STUDIES = {"tiny": STUDY, "other": replace(STUDY, name="other", claims=())}
REGISTERED = {name: records.Registered(study, {}) for name, study in STUDIES.items()}


@pytest.fixture(scope="session")
def right_rows(whole):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(records._REGISTRY, "study", REGISTERED)
        return compared(ledger._rows(open_run(whole)))


@pytest.fixture(autouse=True)
def only_what_is_attacked(tiny, right, monkeypatch):
    """Two studies on the command line, and figures as they were drawn before: neither is under attack here."""
    monkeypatch.setitem(records._REGISTRY, "study", REGISTERED)
    drawn = {suffix: right[f"figures/training.{suffix}"] for suffix in ("svg", "png")}
    monkeypatch.setattr("mesascope.reports.figures.figure_files", lambda figure, results: drawn)


@pytest.mark.parametrize("command", ["report", "resume", "ledger"])
def test_a_damaged_run_is_refused_or_mended(command, whole, tmp_path, right, right_rows, mesascope):
    def check(case):
        file, damage, _, outcome = case
        run = Path(shutil.copytree(whole, tmp_path / file / damage))
        DAMAGE[damage](run / file)
        judge(file, command, outcome, run, right, right_rows, mesascope)

    check_each(check, [case for case in CASES if case[2] == command])


def judge(file, command, outcome, run, right, right_rows, mesascope):
    if command == "ledger":
        code, out, err = mesascope("ledger", run, "--format", "json")
        assert code == 0
        judge_ledger(outcome, file, compared(json.loads(out)), err, right_rows)
        return
    code, _, err = mesascope(*(["report", run] if command == "report" else ["run", "tiny", "--resume", run]))
    if outcome == "s":
        assert code == 2
        said = one_sentence(err.splitlines()[-1])
        assert file.rpartition("/")[2].partition(".")[0] in said or file.partition("/")[0] in said, said
    elif outcome == "n":
        assert code == 0
        assert "has not finished" in (run / "report.html").read_text()
    else:
        assert code == 0, err
        # Checkpoints of a finished run are neither needed nor made again.
        spared = {name for name in right if name == file or name.startswith(f"{file}/")} if "check" in file else set()
        found = contents(run)
        assert {name: found.get(name) for name in right.keys() - spared} == {n: right[n] for n in right.keys() - spared}


def judge_ledger(outcome, file, rows, err, expected):
    if outcome == "s":
        assert [row["verdict"] for row in rows] == ["not yet run"] * 2
        assert Path(file).name in one_sentence(err.removeprefix("mesascope: left out: "))
    elif outcome == "n":
        assert [row["verdict"] for row in rows] == ["not yet run"] * 2
        assert err == ""
    elif outcome == "u":
        assert rows[0]["verdict"] == "undecided"
        assert "comparison.npz must" in rows[0]["reason"]
    else:
        assert rows == expected


def edited(old, new):
    """Damage that no schema sees: ``new`` in the place of ``old``."""

    def damage(path):
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))

    return damage


def without_last_line(path):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def without_weights(path):
    path.write_text(
        json.dumps({name: entry for name, entry in json.loads(path.read_text()).items() if name != "weights"})
    )


# Damages to a file of a finished run, and the remedy for each.
CHANGES = {
    "a verdict": ("claims.json", edited('"holds"', '"fails"'), "write it again by mesascope report"),
    "a claim's number": ("claims.json", edited('"value": ', '"value": 1'), "write it again by mesascope report"),
    "claims": ("claims.json", remove, "write it again by mesascope report"),
    "a logged number": ("metrics.jsonl", edited('"mse": ', '"mse": 1'), "restore it, or start a new run"),
    "a logged line": ("metrics.jsonl", without_last_line, "restore it, or start a new run"),
    "metrics": ("metrics.jsonl", remove, "restore it, or start a new run"),
    "a stage": ("results/index.json", without_weights, "delete it and --resume the run"),
    "a stage's code": ("results/index.json", edited('"code": "', '"code": "1'), "delete it and --resume the run"),
    "the index": ("results/index.json", remove, "delete it and --resume the run"),
}


def test_a_finished_run_that_was_changed_is_not_read(whole, tmp_path):
    def check(change):
        file, damage, remedy = CHANGES[change]
        run = Path(shutil.copytree(whole, tmp_path / change))
        damage(run / file)
        with pytest.raises(RunDirectoryError, match=rf"{file} must (be as the run left it|exist).*{remedy}") as error:
            open_run(run)
        one_sentence(str(error.value))

    check_each(check, CHANGES)


@pytest.mark.parametrize("change", ["a verdict", "claims", "the index", "a stage", "a stage's code"])
def test_what_was_measured_makes_a_changed_run_whole(change, run, right, mesascope):
    file, damage, _ = CHANGES[change]
    damage(run / file)
    by_report = mesascope("report", run)[0] == 0
    assert by_report == (file == "claims.json"), "a report does not take other stages for those that were measured"
    assert by_report or mesascope("run", "tiny", "--resume", run)[0] == 0
    assert contents(run) == right
    open_run(run)


def test_an_older_run_is_read_without_checksums_until_its_report_makes_them(run, right, mesascope):
    (run / "finished.json").unlink()
    assert open_run(run).is_complete
    assert mesascope("report", run)[0] == 0
    assert contents(run) == right


def test_a_folder_without_a_run_is_no_silent_part_of_the_ledger(tmp_path, mesascope):
    (tmp_path / "notes").mkdir()
    code, _, err = mesascope("ledger", tmp_path)
    assert code == 0
    assert f"{tmp_path} must be a run, or hold runs, but does not" in one_sentence(
        err.removeprefix("mesascope: left out: ")
    )
    assert find_runs([])[1] == []
