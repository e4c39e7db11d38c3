"""The command line as a person uses it: in a process of its own, down to SIGKILL."""

import json
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import children
import msgspec
import pytest
from hypothesis import given, settings as profile, strategies as st

from mesascope import records
from mesascope.cli import identify, main
from mesascope.cli.parsing import parsed
from mesascope.errors import ArgumentError
from mesascope.evidence.schema import JudgedClaims
from mesascope.records import registered

TINY = [
    *("--training.steps", "60", "--training.batch", "64", "--training.evaluate-every", "20"),
    *("--training.checkpoint-every", "15", "--tasks", "300", "--sweep-tasks", "200", "--tune-tasks", "200"),
    *("--seeds", "2"),
]


def mesascope(*arguments):
    command = [sys.executable, "-m", "mesascope", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One uninterrupted tiny run."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    done = children.run("-m", "mesascope", "run", "two-steps", *TINY, "--out", path)
    assert done.returncode == 0, done.stderr
    return path, done


@pytest.fixture
def drawn_before(finished, monkeypatch):
    """Figures of this run as they were drawn, which takes most of the time of judging it again."""
    folder = finished[0] / "figures"
    drawn = {name: {file.suffix[1:]: file.read_bytes() for file in folder.glob(f"{name}.*")}
             for name in {file.stem for file in folder.iterdir()}}  # fmt: skip
    monkeypatch.setattr("mesascope.reports.figures.figure_files", lambda figure, results: drawn[figure.name])


def contents(path):
    """All files of a run that results depend on, by relative name."""
    apart = {"config.json", "timing.json", "report.html", ".lock"}
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files if file.name not in apart}


def test_a_run_leaves_everything_it_promises(finished):
    path, done = finished
    study = registered("study")["two-steps"]
    assert f"{len(study.claims)} claims:" in done.stdout
    assert str(path / "report.html") in done.stdout
    assert "\ndevice: " in done.stdout
    config = json.loads((path / "config.json").read_text())
    assert config["settings"]["training"]["steps"] == 60
    assert (path / "metrics.jsonl").read_text().count("\n") == 2 * 4  # two seeds, every 20 steps
    assert {f"{figure.name}{suffix}" for figure in study.figures for suffix in (".svg", ".png")} == {
        file.name for file in (path / "figures").iterdir() if file.suffix != ".json"
    }
    assert (path / "checkpoints" / "looped" / "60" / "weights.safetensors").exists()
    assert not list(path.rglob("*.aside*"))


def test_a_network_that_cannot_have_converged_decides_nothing(finished):
    verdicts = {claim["id"]: claim for claim in json.loads((finished[0] / "claims.json").read_text())}
    assert verdicts["loss-matches-gd++"]["verdict"] != "holds"
    assert verdicts["loss-matches-gd++"]["reason"] == "it needs 5 seeds, and has 2"


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_killed_run_resumes_to_the_same_bytes(finished, tmp_path, kills):
    """SIGKILL at random moments, several times in a row, then --resume to the end."""
    path, chance = tmp_path / "killed", random.Random(0)
    arguments = ["run", "two-steps", *TINY, "--out", str(path)]
    for _ in range(kills):
        process = children.Popen(["-m", "mesascope", *arguments])
        while not (path / "config.json").exists() and process.poll() is None:
            time.sleep(0.02)
        time.sleep(chance.uniform(0.0, 2.0))  # of about three seconds that an uninterrupted one takes
        process.send_signal(signal.SIGKILL)
        process.wait()
        arguments = ["run", "two-steps", "--resume", str(path)]
    done = children.run("-m", "mesascope", *arguments)
    assert done.returncode == 0, done.stderr
    assert contents(path) == contents(finished[0])


def test_resuming_a_finished_run_changes_nothing(finished, drawn_before):
    before = contents(finished[0])
    for words in (
        ["two-steps", "--resume", str(finished[0])],
        ["--resume", str(finished[0])],
        [f"--resume={finished[0]}"],
    ):
        assert main(["run", *words]) == 0
    assert contents(finished[0]) == before


def test_resuming_names_a_missing_folder(capsys):
    assert main(["run", "--resume", "nowhere"]) == 2
    assert "a run directory must exist, but nowhere does not" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_ended_by_a_signal_says_how_to_go_on_as_after_ctrl_c(number, monkeypatch, capsys):
    def ended(arguments):
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt as stop:
            stop.add_note("mesascope run x --resume runs/x")
            raise

    before = signal.signal(number, signal.SIG_DFL)
    try:
        with monkeypatch.context() as patch:
            patch.setattr("mesascope.cli._run", ended)
            patch.setattr(signal, "raise_signal", lambda one: signal.getsignal(one)(one, None))
            assert main(["list"]) == 130
    finally:
        signal.signal(number, before)
    said = "mesascope: the command was interrupted: continue by mesascope run x --resume runs/x.\n"
    assert capsys.readouterr().err == said


def test_a_run_prints_a_line_after_three_seconds_however_slow_its_start(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mesascope.cli.run._SILENT", 0.05)
    monkeypatch.setattr("mesascope.studies.new_run", lambda *given, **named: time.sleep(0.5) or given[99])
    with pytest.raises(IndexError):
        main(["run", "one-step", "--out", str(tmp_path)])
    assert capsys.readouterr().err == "loading torch and the study\n"


def test_report_and_ledger_read_the_run(finished, drawn_before, tmp_path, monkeypatch, capsys):
    def said(*arguments):
        assert main([*map(str, arguments)]) == 0
        return capsys.readouterr().out

    path, _ = finished
    assert said("report", path).strip() == str(path / "report.html")
    rows = json.loads(said("ledger", path.parent, "--format", "json"))
    own = [row for row in rows if row["study"] == "two-steps"]
    assert {row["preset"] for row in own} == {"quick"}
    assert "training.steps 60 (1500)" in own[0]["changed"]
    assert all(row["verdict"] == "not yet run" for row in rows if row["study"] != "two-steps")
    judged = msgspec.json.decode(said("ledger", path, "--format", "schema"), type=JudgedClaims, strict=True)["claims"]
    assert [record["id"] for record in judged] == [row["id"] for row in own], "none that is not yet run"
    one = " ".join(said("ledger", path).split())  # however lines are broken
    assert (one.count("not yet run"), f"{len(own)} claims:" in one, "copying (" in one) == (1, True, True)
    monkeypatch.chdir(tmp_path)
    assert "not yet run: continual-mnist" in said("ledger")


@pytest.fixture
def shown(capsys):
    """Standard output of a command, run in this process."""

    def call(*arguments):
        assert main([*arguments]) == 0
        return capsys.readouterr().out

    return call


def test_list_and_help(shown):
    assert "one-step: Does one trained linear self-attention layer" in shown("list")
    assert "Run a study" in shown("--help")
    assert "--version" in shown("--help")
    assert shown("--version").startswith("mesascope 0.")


def test_flags_start_from_the_preset(shown):
    assert "(default: 5000)" in shown("run", "one-step", "--preset", "paper", "--help")
    quick = shown("run", "one-step", "--help")
    assert "(default: 1500)" in quick
    assert "--training.learning-rate" in quick


def test_what_needs_no_torch_loads_none():
    commands = [["list"], ["--help"], ["run", "one-step", "--help"], ["run", "one-step", "--stepz"]]
    code = "import sys; from mesascope.cli import main\n"
    code += f"for command in {commands}: main(command); assert 'torch' not in sys.modules, command"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_study_that_is_not_known_is_answered_with_all_that_are(capsys):
    """Other wrong command lines, of three studies, stand in tests/attacks/test_command_lines.py."""
    for arguments in (["run"], ["run", "one-stepp"]):
        assert main(arguments) == 2
        said = " ".join(capsys.readouterr().err.replace("│", " ").split())
        assert "one-step" in said


def test_a_device_that_is_not_there_is_refused(tmp_path, monkeypatch, capsys):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "one-step", "--device", "cuda"]) == 2
    assert "device must be one that torch finds (cpu" in capsys.readouterr().err


OF_BATCH = "a batch must fit into memory, but Net ran out of it with accumulate=1"
OF_TASKS = "the tasks must fit into memory, but Net ran out of it on 9 tasks"


@pytest.mark.parametrize(
    ("study", "said", "remedy"),
    [
        ("language-mesa", OF_BATCH, "double --accumulate"),
        ("softmax", OF_BATCH, "halve --training.batch or --two-heads.training.batch"),
        ("softmax", OF_TASKS, "halve --tasks, --sweep-tasks or --tune-tasks"),
        ("language-mesa", OF_TASKS, "lower --width, --context or --seeds"),
        ("language-mesa --training.batch 1", OF_BATCH, "lower --width, --context or --seeds"),
        ("language-mesa --training.batch 4 --accumulate 4", OF_BATCH, "lower --width, --context or --seeds"),
        ("sparse-maml --training.batch 1", OF_BATCH, "lower --width or --seeds"),
        ("sparse-maml --training.batch=1 --order 2", OF_BATCH, "lower --width, --inner-steps or --seeds"),
        ("softmax --training.batch 1", OF_BATCH, "halve --two-heads.training.batch"),
        ("softmax --training.batch 1 --two-heads.training.batch 1", OF_BATCH, "lower --seeds"),
    ],
)
def test_memory_that_runs_out_names_the_flags_that_reduce_it(study, said, remedy, tmp_path, monkeypatch, capsys):
    def without_memory(*given):
        raise ArgumentError(f"{said}: pass at most 4.") from MemoryError("can't allocate memory")

    monkeypatch.setattr("mesascope.studies.run_study", without_memory)
    assert main(["run", *study.split(), "--device", "cpu", "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == f"mesascope: {said}: {remedy}.\n"


def test_memory_that_runs_out_elsewhere_names_the_flags_of_batches_and_tasks(tmp_path, monkeypatch, capsys):
    def without_memory(*given):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee")

    monkeypatch.setattr("mesascope.studies.run_study", without_memory)
    assert main(["run", "two-steps", "--device", "cpu", "--out", str(tmp_path / "run")]) == 2
    said = "but are not (CUDA out of memory. Tried to allocate 2.00 GiB): halve --training.batch, or halve --t"
    assert said in capsys.readouterr().err


def test_resuming_with_another_version_says_so(finished, drawn_before, tmp_path, capsys):
    path = tmp_path / "older"
    shutil.copytree(finished[0], path)
    config = json.loads((path / "config.json").read_text())
    config["versions"]["torch"] = "2.9.0"
    (path / "config.json").write_text(json.dumps(config))
    assert main(["run", "two-steps", "--resume", str(path)]) == 0
    assert "was begun with torch 2.9.0 and goes on with" in capsys.readouterr().err


@dataclass(frozen=True)
class Kinds:
    """Settings of every type that a flag can have."""

    count: int = 1
    rate: float = 0.5
    clip: float | None = 1.0
    name: str = "a"
    tuned: bool = False
    schedule: Literal["linear", "cosine"] = "linear"
    betas: tuple[float, float] = (0.9, 0.99)
    widths: tuple[int, ...] = (25, 50)
    rates: tuple[float, ...] = (0.1, 0.2, 0.3)
    domains: tuple[str, ...] = ("mnist", "digits")
    sizes: list[int] = field(default_factory=lambda: [1])


NUMBERS, WORDS = st.floats(allow_nan=False), st.text(min_size=1).filter(lambda word: word[0] != "-")
VALUES = {
    "count": st.integers(), "rate": NUMBERS, "clip": st.none() | NUMBERS, "name": st.text(), "tuned": st.booleans(),
    "schedule": st.sampled_from(["linear", "cosine"]), "betas": st.tuples(NUMBERS, NUMBERS),
    "widths": st.lists(st.integers(), min_size=1).map(tuple), "rates": st.lists(NUMBERS, min_size=1).map(tuple),
    "domains": st.lists(WORDS, min_size=1).map(tuple), "sizes": st.lists(st.integers(), min_size=1),
}  # fmt: skip


@pytest.fixture(scope="module")
def kinds():
    """A command line of two studies, one of these settings."""
    studies = registered("study")
    study = replace(studies["two-steps"], name="kinds", presets={"quick": Kinds()})
    own = {"kinds": records.Registered(study, {}), "copying": records.Registered(studies["copying"], {})}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(records._REGISTRY, "study", own)
        yield


@profile(max_examples=25)
@given(given=st.fixed_dictionaries({}, optional=VALUES), attached=st.booleans())
def test_a_flag_takes_values_of_its_type_in_any_spelling(kinds, given, attached):
    """Lists of any length, negative numbers and scientific notation, with spaces or an = sign."""
    arguments = ["run", "kinds"]
    for name, value in given.items():
        if name == "tuned":
            arguments.append("--tuned" if value else "--no-tuned")
            continue
        first, *rest = map(str, value if isinstance(value, tuple | list) else [value])
        # only an attached value may look like a flag
        arguments += [f"--{name}={first}", *rest] if attached or name == "name" else [f"--{name}", first, *rest]
    assert {one.name for one in fields(Kinds)} == set(VALUES)
    assert parsed(arguments).command.settings == replace(Kinds(), **given)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--widths 25 b", "error parsing --widths"),
        ("--betas 0.9", "missing value for argument '--betas'"),
        ("--clip none", "error parsing --clip"),
        ("--tuned yes", "unrecognized options: yes"),
        ("--schedule cubic", "invalid choice 'cubic' for argument '--schedule': expected one of ('linear', 'cosine')"),
        ("--coumt 3", "unrecognized options: --coumt, 3; perhaps you meant --count INT; for full helptext, run"),
    ],
)
def test_a_wrong_value_is_refused_with_its_flag(line, sentence, kinds):
    with pytest.raises(ArgumentError) as error:
        parsed(["run", "kinds", *shlex.split(line)])
    assert sentence in str(error.value)


@pytest.mark.parametrize(("line", "tuned"), [("--tuned", True), ("--tuned --count 3", True), ("--no-tuned", False)])
def test_a_switch_stands_alone(line, tuned, kinds):
    assert parsed(["run", "kinds", *line.split()]).command.settings.tuned is tuned


@pytest.mark.parametrize("names", [[], ["looped"], ["looped", "3"]])
@pytest.mark.parametrize("folder", ["r1", "C:\\runs\\r1", "d:x/r 1", "a:b:c"])
def test_the_folder_of_a_learner_may_hold_colons_and_spaces(folder, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(identify, "_network", lambda place, _, *names: ("", (place, *names), None))
    (tmp_path / folder).mkdir(parents=True)
    assert identify.learner_of(":".join([folder, *names]))[1] == (folder, *names)


@pytest.mark.parametrize("place", ["my rules.py", "d:x/mine.py", "json.py"])
def test_a_learner_may_be_of_a_file(place, tmp_path, monkeypatch):
    """Also of one that is named as a module of Python's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("class Rules:\n    def step(context, xq):\n        return 3\n")
    name, learner, family = identify.learner_of(f"{place}:Rules.step")
    assert (name, learner(None, None), family) == ("Rules.step", 3, None)


@pytest.mark.parametrize(
    "words", ["C:\\runs\\r1:looped:0", "d:x/r:looped:0", "./r1", "no.py:name", "json", "json:", "r1:"]
)
def test_a_learner_that_is_not_there_is_refused_with_all_that_there_could_be(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError) as error:
        identify.learner_of(words)
    said = "LEARNER must be RUN, RUN:TRAINING, RUN:TRAINING:SEED, FILE.py:NAME or MODULE:NAME, but is "
    assert str(error.value).startswith(f"{said}{words} (")


def test_a_process_exits_with_code_2_and_no_traceback():
    done = mesascope("run", "one-step", "--seeds", "0")
    assert done.returncode == 2
    assert done.stderr == "mesascope: --seeds must be at least 1, but is 0: pass a larger whole number.\n"


def test_a_reader_that_leaves_early_gets_no_complaint():
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m mesascope list | head -n 1"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout.count("\n"), done.stderr) in ((0, 1, ""), (1, 1, ""))
