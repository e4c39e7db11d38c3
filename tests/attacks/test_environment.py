"""The command line's environment: terminals, streams, variables, permissions. Few tests start a process."""

import errno
import io
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from sentences import one_sentence
from test_run_damage import compared
from test_run_files import READERS, STEP
from tiny_study import contents

from mesascope.cli import main
from mesascope.errors import RunDirectoryError
from mesascope.reports import write_report
from mesascope.runs import find_runs, open_run, provenance

MESASCOPE = f"{sys.executable} -m mesascope"

# command of a shell, exit codes, sentence or words that it prints
PROCESSES = {
    f"{MESASCOPE} list >/dev/full": ((2,), "standard output must be writable, but is not"),
    f"{MESASCOPE} --version >/dev/full": ((2,), "standard output must be writable, but is not"),
    f"{MESASCOPE} list >&-": ((2,), "standard output must be open, but is closed"),
    f"{MESASCOPE} rum 2>/dev/full": ((2,), ""),
    f"{MESASCOPE} list >&- 2>&-": ((2,), ""),
    f"PYTHONOPTIMIZE=2 LANG=C LC_ALL=C PYTHONIOENCODING=ascii {MESASCOPE} run one-step --lr 3": (
        (2,), "unrecognized options: --lr, 3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("command", PROCESSES)
def test_a_process_ends_in_a_sentence_and_its_code(command):
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    codes, said = PROCESSES[command]
    assert done.returncode in codes, done
    assert said in done.stdout + done.stderr
    if done.stderr:
        one_sentence(done.stderr)


# variables that change nothing
SAME = [
    {"MPLBACKEND": "nonsense"},
    {"MPLBACKEND": "TkAgg"},
    {"MPLBACKEND": ""},
    {"COLUMNS": "1"},
    {"COLUMNS": "abc"},
    {"COLUMNS": "-5"},
    {"TERM": "dumb"},
    {"TERM": "unknown"},
    {"NO_COLOR": "1"},
    {"FORCE_COLOR": "1"},
    {"LANG": "C", "LC_ALL": "C"},
    {"TZ": "Nowhere/Nothing"},
    {"HOME": "/nowhere"},
    {"TMPDIR": "/nowhere"},
    {"GIT_DIR": "/nowhere"},
    {"PYTHONHASHSEED": "5"},
]  # fmt: skip


@pytest.fixture
def rows(whole):
    return ledger(whole)


def ledger(run):
    """The ledger's output for the tiny study, printed to a stream of ASCII."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
        assert main(["ledger", str(run), "--format", "json"]) == 0
        sys.stdout.seek(0)
        return compared(row for row in json.loads(sys.stdout.read()) if row["study"] == "tiny")


@pytest.mark.parametrize("variables", SAME, ids=str)
def test_a_variable_changes_no_result(variables, run, rows, monkeypatch, mesascope):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    before = (run / "figures" / "training.svg").read_bytes()
    assert mesascope("report", run)[0] == 0
    assert (run / "figures" / "training.svg").read_bytes() == before
    assert ledger(run) == rows


@pytest.mark.parametrize("form", ["table", "markdown", "json"])
@pytest.mark.parametrize("columns", ["20", "79", "80", "99", "100", "200"])
def test_the_ledger_is_printed_on_any_terminal(form, columns, whole, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main(["ledger", str(whole), "--format", form]) == 0
    sys.stdout.seek(0)
    lines = re.sub("\x1b\\[[0-9;]*m", "", sys.stdout.read()).splitlines()
    assert any("better" in line for line in lines)
    if form == "table":
        assert max(map(len, lines)) <= max(int(columns), 40)


def test_marks_in_paths_and_names_are_printed_as_they_are(run, tmp_path, mesascope, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    path = run.rename(tmp_path / "[red]x <b>&")
    code, out, _ = mesascope("ledger", path)
    assert code == 0
    assert "[red]x <b>&" in out.replace("\n", "")
    code, _, err = mesascope("report", f"{path}\n")
    assert code == 2
    one_sentence(err)


def test_a_report_escapes_what_it_shows(run, mesascope):
    (run / "config.json").write_text((run / "config.json").read_text().replace("an example", "<script>x</script>"))
    captions = json.loads((run / "figures/captions.json").read_text())
    (run / "figures/captions.json").write_text(json.dumps(captions | {"training": "<i>&</i>"}))
    (run / "figures/training.svg").write_bytes(b"<svg onload='x()'><script>y()</script></svg>")
    records = [claim | {"id": "<u>", "over": "<s>", "bound": "<1", "reason": "<q>"} for claim in open_run(run).claims]
    open_run(run).save_claims(records)
    html = write_report(open_run(run)).read_text()
    for raw in ("<script>", "<i>", "<u>", "<s>", "<q>", "onload"):
        assert raw not in html


def interrupted(descriptor):
    raise KeyboardInterrupt


def full(descriptor):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("stop", "code", "said"), [(interrupted, 130, "interrupted"), (full, 2, "its disk is full")])
def test_the_advice_of_a_stopped_run_works_as_printed(stop, code, said, whole, tmp_path, mesascope):
    path, syncs = tmp_path / "two words", itertools.count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: stop(descriptor) if next(syncs) > 12 else None)
        found, _, err = mesascope("run", "tiny", "--out", path)
    sentence = one_sentence(err.splitlines()[-1])
    assert (found, said in sentence) == (code, True), sentence
    command = sentence.partition("continue by mesascope ")[2].removesuffix(".")
    assert mesascope(*shlex.split(command))[0] == 0
    assert contents(path) == contents(whole)


@pytest.fixture
def nobody(run):
    """A copy of the run that a person without rights may enter, while this process is that person."""
    if os.geteuid() != 0:
        yield run
        return
    with tempfile.TemporaryDirectory() as name:
        path = Path(shutil.copytree(run, Path(name) / "run"))
        os.chmod(name, 0o755)
        os.seteuid(65534)
        try:
            yield path
        finally:
            os.seteuid(0)


UNREADABLE = READERS | {
    "results/weights.npz": lambda run: open_run(run).results["weights"],
    "figures/training.svg": lambda run: open_run(run).figure_svg("training"),
    STEP + "weights.safetensors": lambda run: open_run(run).network("layer"),
}


def changed_mode(path, mode):
    euid = os.geteuid()
    os.seteuid(os.getuid())
    os.chmod(path, mode)
    os.seteuid(euid)


@pytest.mark.parametrize("file", UNREADABLE)
def test_a_file_without_permission_is_named(file, nobody):
    changed_mode(nobody / file, 0)
    with pytest.raises(RunDirectoryError) as error:
        UNREADABLE[file](nobody)
    assert f"{nobody / file} must be a file that can be read, but is not (Permission denied)" in str(error.value)
    one_sentence(str(error.value))


@pytest.mark.parametrize("command", ["report", "run tiny --resume"])
def test_a_folder_without_permission_is_named(command, nobody, mesascope):
    changed_mode(nobody, 0o555)
    before = sorted(nobody.rglob("*"))
    code, _, err = mesascope(*command.split(), nobody)
    assert code == 2
    assert str(nobody) in one_sentence(err.splitlines()[-1])
    assert sorted(nobody.rglob("*")) == before


def test_a_folder_of_runs_without_permission_is_named(nobody):
    changed_mode(nobody, 0)
    with pytest.raises(RunDirectoryError, match="must be a folder that can be read"):
        find_runs(nobody)


def test_the_commit_of_a_run_is_that_of_mesascopes_own_code(tmp_path, monkeypatch):
    """And not of a project that it happens to be installed in."""

    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(["git", "-C", tmp_path, *who, *words], capture_output=True, text=True, check=True).stdout

    own = tmp_path / "provenance.py"
    own.touch()
    monkeypatch.setattr("mesascope.runs.provenance.__file__", str(own))
    git("init")
    git("commit", "--allow-empty", "-m", "a project")
    assert provenance._commit() is None
    git("add", "provenance.py")
    git("commit", "-m", "mesascope")
    assert provenance._commit() == git("rev-parse", "HEAD").strip()
