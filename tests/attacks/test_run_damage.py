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
from sentences import one_sentence
from tiny_study import STUDY, contents

from mesascope import records
from mesascope.runs import open_run
from mesascope.studies import ledger

WEIGHTS, MANIFEST = (f"checkpoints/layer/8/{name}" for name in ("weights.safetensors", "manifest.json"))

TABLE = """
file                      missing  empty  cut   binary  folder  link
config.json               ssn      sss    sss   sss     sss     sss
claims.json               nrn      rrr    rrr   rrr     ssr     nrn
timing.json               rrr      sss    sss   sss     sss     rrr
metrics.jsonl             rrr      rrr    rrr   rrr     rrr     rrr
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
    pytest.param(file, damage, command, outcome, id=f"{file} {damage} {command}")
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


@pytest.fixture(scope="session")
def right_rows(whole):
    return compared(ledger._judged(STUDY, open_run(whole)))


@pytest.fixture(autouse=True)
def only_what_is_attacked(tiny, right, monkeypatch):
    """Two studies on the command line, and figures as they were drawn before: neither is under attack here."""
    studies = {"tiny": STUDY, "other": replace(STUDY, name="other", claims=())}
    monkeypatch.setitem(records._REGISTRY, "study", {name: records.Registered(s, {}) for name, s in studies.items()})
    drawn = {suffix: right[f"figures/training.{suffix}"] for suffix in ("svg", "png")}
    monkeypatch.setattr("mesascope.reports.figures.figure_files", lambda figure, results: drawn)


@pytest.mark.parametrize(("file", "damage", "command", "outcome"), CASES)
def test_a_damaged_run_is_refused_or_mended(file, damage, command, outcome, run, right, right_rows, mesascope):
    DAMAGE[damage](run / file)
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
        spared = {name for name in right if name == file or name.startswith(f"{file}/")} if "check" in file else set()
        spared |= {"metrics.jsonl"} & {file}  # of a finished run, neither is needed nor made again
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
