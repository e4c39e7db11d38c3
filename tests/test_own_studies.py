"""A study in a user's own file runs, resumes, and stands in the ledger as mesascope's own do."""

import dataclasses
import importlib
import json
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import tiny_study
import torch
from uncertainties import ufloat

from mesascope import nets, records, tasks
from mesascope.cli import main
from mesascope.errors import ArgumentError, ArgumentTypeError, RunDirectoryError
from mesascope.evidence import Verdicts
from mesascope.loading import from_file
from mesascope.records import registered, to_record
from mesascope.reports import Figure, Line, Lines
from mesascope.runs import find_runs, open_run
from mesascope.studies import ledger_rows, new_run, resume_run, run_study
from mesascope.studies.common import late_share
from mesascope.studies.lab import by_seed
from mesascope.study import Mutation, Study, load_study
from mesascope.training import EnsembleState


@pytest.fixture
def study_file(tmp_path, monkeypatch):
    """The tiny study under another name, in a folder with a space, with a module beside it that it imports."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "own studies" / "mine.py"
    file.parent.mkdir()
    (file.parent / "beside_mine.py").write_text("QUESTION = 'Is it mine?'\n")
    text = Path(tiny_study.__file__).read_text().replace('name="tiny"', 'name="my_study"')
    file.write_text(text.replace("import sys\n", "import sys\nfrom beside_mine import QUESTION\n", 1))
    return file


def stopping_at(step):
    """A training step that is interrupted at one step."""
    update = EnsembleState.update

    def interrupted(state, batch):
        if state.step == step:
            raise KeyboardInterrupt
        return update(state, batch)

    return interrupted


def test_an_own_study_runs_resumes_and_is_listed(study_file, tmp_path, monkeypatch, capsys):
    spec = f"{study_file}:STUDY"
    options = ["--preset", "paper", "--training.steps", "7", "--device", "cpu"]
    study = load_study(spec)
    settings = dataclasses.replace(study.presets["paper"], training=dataclasses.replace(tiny_study.TRAINING, steps=7))
    run_study(study, settings, new_run(study, "paper", settings, out="whole"))
    with monkeypatch.context() as patch:
        patch.setattr(EnsembleState, "update", stopping_at(5))
        assert main(["run", spec, *options, "--out", "killed"]) == 130
    assert f"mesascope run '{spec}' --resume killed" in capsys.readouterr().err
    assert main(["run", "--resume", "killed"]) == 2
    assert f"--resume must follow the file of your own study: mesascope run '{spec}'" in capsys.readouterr().err
    assert main(["run", spec, "--resume", "killed"]) == 0
    assert tiny_study.contents("killed") == tiny_study.contents("whole")
    run = open_run("whole")
    assert (run.config["study"], run.config["preset"], run.config["defined_in"]) == ("my_study", "paper", spec)
    assert (run.settings.training.steps, run.settings.tasks, run.study.name) == (7, 50, "my_study")
    rows, left_out = ledger_rows(find_runs("whole")[0])
    own = [row for row in rows if row["study"] == "my_study"]
    assert ([row["id"] for row in own], left_out) == (["better", "small"], [])
    assert own[0]["changed"] == ["training.steps 7 (8)"]


def test_an_edited_own_study_judges_anew_and_measures_anew(study_file):
    study = load_study(f"{study_file}:STUDY")
    settings = study.presets["quick"]
    run = new_run(study, "quick", settings, out="run")
    assert [row["verdict"] for row in run_study(study, settings, run)] == ["holds", "holds"]
    study_file.write_text(study_file.read_text().replace('"), at_least=2', '"), at_least=3'))
    assert [row["verdict"] for row in ledger_rows([open_run("run")])[0][-2:]] == ["undecided"] * 2
    assert not open_run("run").results.is_current("weights")


def test_claims_of_an_own_study_that_is_gone_are_those_of_its_run(study_file, capsys):
    study = load_study(f"{study_file}:STUDY")
    before = run_study(study, study.presets["quick"], new_run(study, "quick", out="run"))
    study_file.rename(study_file.with_name("moved.py"))
    rows, left_out = ledger_rows(find_runs("run")[0])
    own = [row for row in rows if row["study"] == "my_study"]
    assert ([row["verdict"] for row in own], left_out) == ([row["verdict"] for row in before], [])
    assert "claims are as judged when the run finished" in own[0]["changed"][0]
    assert "mine.py must be a Python file, but cannot be read" in own[0]["changed"][0]
    assert main(["report", "run"]) == 0
    assert "claims are shown as judged when the run finished" in capsys.readouterr().err
    with pytest.raises(RunDirectoryError, match=r"is now by mesascope run FILE\.py:STUDY --resume run\.$"):
        resume_run("run")
    before = tiny_study.contents("run")
    assert main(["run", f"{study_file.with_name('moved.py')}:STUDY", "--resume", "run"]) == 0
    assert tiny_study.contents("run") == before
    assert (open_run("run").settings.tasks, open_run("run").study.name) == (40, "my_study")
    assert main(["report", "run"]) == 0
    assert "claims are shown" not in capsys.readouterr().err


def test_no_code_that_came_with_a_run_is_run(study_file):
    """Neither from inside the run nor from a relative place; a run from elsewhere may name any file."""
    study = load_study(f"{study_file}:STUDY")
    run = new_run(study, "quick", out="run")
    inside = shutil.copy(study_file, run.path / "mine.py")
    for place in (f"{Path(inside).resolve()}:STUDY", "own studies/mine.py:STUDY"):
        config = json.loads((run.path / "config.json").read_text()) | {"defined_in": place}
        (run.path / "config.json").write_text(json.dumps(config))
        with pytest.raises(RunDirectoryError, match="must name a file outside the run"):
            _ = open_run(run.path).study


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("x = 1\ny = 1 / 0", "STUDY", r"must run, but raises ZeroDivisionError at line 2 \(division by zero\)"),
        ("def", "STUDY", "must run, but raises SyntaxError"),
        ("import nowhere_to_be_found", "STUDY", "must run, but raises ModuleNotFoundError"),
        ("x = 1", "STUDY", "must define a Study, but defines none"),
        ("from tiny_study import STUDY", "STUDDY", "did you mean 'STUDY'?"),
        (
            "from tiny_study import STUDY",
            "",
            r"must be followed by a name, but is not: pass \S+mine.py:STUDY",
        ),
        (None, "STUDY", "must be a Python file, but cannot be read"),
    ],
)
def test_a_file_without_the_study_is_refused_in_a_sentence(text, name, said, tmp_path):
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ArgumentError, match=said):
        load_study(f"{file}:{name}" if name else str(file))


def test_a_file_edited_within_a_second_is_read_again(tmp_path):
    file = tmp_path / "numbers.py"
    for number in (1, 2):
        file.write_text(f"NUMBER = {number}\n")
        assert from_file(f"{file}:NUMBER", int) == number
    assert not (tmp_path / "__pycache__").exists()


def test_a_file_that_the_program_has_imported_is_not_run_again(tmp_path, monkeypatch):
    """A file that is imported under two names, one after an edit, may register its classes twice."""
    file, text = tmp_path / "own_registered.py", "from mesascope.records import register\n\n"
    text += "@register('learner', 'own-registered')\nclass Own:\n    pass\n"
    monkeypatch.syspath_prepend(tmp_path)
    try:
        for edit in ("", "# edited\n"):
            file.write_text(text + edit)
            first = from_file(f"{file}:Own")
        own = importlib.import_module("own_registered").Own
        assert own is not first
        assert from_file(f"{file}:Own") is own is registered("learner")["own-registered"]
    finally:
        del records._REGISTRY["learner"]["own-registered"], sys.modules["own_registered"]


def test_an_own_study_has_a_name_of_its_own(study_file, capsys):
    study_file.write_text(study_file.read_text().replace('name="my_study"', 'name="one-step"'))
    assert main(["run", f"{study_file}:STUDY"]) == 2
    assert "'one-step' is the name of a study of mesascope: rename it" in capsys.readouterr().err
    assert registered("study")["one-step"].question != "Does eight steps of training do anything?"


def test_too_few_seeds_are_told_before_training(tmp_path, capsys):
    """With the claims that they leave undecided, those whose premises are so among them."""
    better, small = tiny_study.STUDY.claims
    median = dataclasses.replace(better, id="median", quantifier="median", premises=())
    pools = dataclasses.replace(better, id="pools", over="pools", at_least=20)
    claims = (dataclasses.replace(better, at_least=5), small, median, pools)
    said = []

    def measure(lab, settings):
        said.append(capsys.readouterr().err)
        tiny_study.measure(lab, settings)

    study = dataclasses.replace(tiny_study.STUDY, claims=claims, measure=measure)
    settings = tiny_study.Settings()
    records = run_study(study, settings, new_run(study, "quick", out=tmp_path / "run"))
    line = "seeds is 2, so 3 of 4 claims cannot be decided: pass at least 5 for better, small; at least 8 for median."
    assert said == [f"mesascope: {line}\n"]
    assert {row["id"] for row in records if row["verdict"] == "undecided"} >= {"better", "small", "median"}
    run_study(tiny_study.STUDY, settings, new_run(tiny_study.STUDY, "quick", out=tmp_path / "enough"))
    assert "be decided" not in capsys.readouterr().err


def test_records_of_a_run_and_of_the_ledger_show_four_columns_to_a_person(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    study, settings = tiny_study.STUDY, tiny_study.Settings()
    run = new_run(study, "quick", out=tmp_path / "run")
    records = run_study(study, settings, run)
    rows = Verdicts([{"study": "tiny", "preset": "quick", **record} for record in records])
    assert (type(records), type(ledger_rows([])[0])) == (Verdicts, Verdicts)
    head = ["claim", "measured, with confidence intervals", "bound", "verdict"]
    for table, columns in ((records, head), (records[:1], head), (rows, ["study", "preset", *head])):
        assert all(name in repr(table).splitlines()[0] for name in columns)
        assert table._repr_html_().count("<th>") == len(columns) + 1, "and the sentence, where there is room"
    assert {"measures", "at_least", "source", "figure", "low", "high"} <= set(records.columns)
    assert records["id"] == ["better", "small"]
    assert to_record(settings) == run.config["settings"]


def test_study_is_public():
    assert load_study(f"{tiny_study.__file__}:STUDY").defined_in.endswith("tiny_study.py:STUDY")
    assert isinstance(tiny_study.STUDY, Study)


def test_an_own_figure_that_raises_costs_itself_alone(tmp_path, capsys):
    def panel(lines):
        return (Lines("Loss", "step", "loss", lines),)

    broken = {"raises": lambda r: 1 / 0, "role": lambda r: [Line([1], [1], "nobody")]}
    figures = tuple(Figure(name, "Loss.", panel(lines)) for name, lines in broken.items())
    study = dataclasses.replace(tiny_study.STUDY, figures=(*figures, *tiny_study.STUDY.figures))
    run = new_run(study, "quick", out=tmp_path / "run")
    assert len(run_study(study, tiny_study.Settings(), run)) == 2
    assert (run.is_finished, [*run.captions]) == (True, ["training"])
    said = capsys.readouterr().err
    assert "figure raises is left out, as it raises ZeroDivisionError: division by zero" in said
    assert "figure role is left out, as it raises ArgumentError: the role of a line must be one of" in said
    with pytest.raises(
        ArgumentError, match=r"the name of a figure must be non-empty text without slashes, .* but is 'a/b'"
    ):
        dataclasses.replace(study, figures=(Figure("a/b", "Loss.", ()),))


def test_a_stage_keeps_numbers_alone(unchecked):
    weights = torch.tensor([1.0, 2.0], requires_grad=True)
    kept = by_seed({"tensor": weights, "masked": np.ma.masked_equal([1, 2], 2)})
    assert (kept["tensor"].tolist(), repr(kept["masked"])) == ([1.0, 2.0], "array([ 1., nan])")
    with pytest.raises(ArgumentError, match="errors must hold plain numbers, but holds objects: keep errors as Esti"):
        by_seed({"errors": np.array([ufloat(1.0, 0.1)])})
    with pytest.raises(ArgumentTypeError, match=r"the result of a stage must be of type Mapping, but is None"):
        by_seed(None)


def test_a_bug_is_planted_for_a_while_and_leaves_no_trace():
    """On a method that the class inherits, too."""
    from mesascope.learners import GradientDescent

    own = dict(vars(GradientDescent))
    bug = Mutation("no answer", "mesascope.learners:GradientDescent.forward", lambda forward: lambda *arguments: None)
    with bug.planted():
        assert GradientDescent(1, 1.0).forward(None, None) is None
    assert dict(vars(GradientDescent)) == own


LARGER = """
def larger(compare):
    def wrong(*arguments):
        found = compare(*arguments)
        return type(found)(found.names, found.mean + 9, found.covariance, found.n)

    return wrong


BUG = Mutation("losses are larger by 9", "mesascope.lenses:measure_learners", larger)
"""


def test_bugs_of_an_own_study_are_planted_and_what_turns_is_printed(study_file, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = study_file.read_text().replace("from mesascope.study import", "from mesascope.study import Mutation,")
    text = text.replace('    name="my_study",', '    name="my_study", mutations=(BUG,), mutated={"seeds": 3},')
    study_file.write_text(text.replace("\nSTUDY = ", f"{LARGER}\n\nSTUDY = "))
    # Without premises, equal seeds and untrained networks satisfy what eight steps do.
    assert main(["mutate", f"{study_file}:STUDY", "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["study"], found["sound"]) == ("my_study", {"better": "holds", "small": "holds"})
    assert found["turned"]["losses are larger by 9"] == {"better": "fails", "small": "undecided"}
    assert found["turned"]["networks are untrained"] == {}
    assert main(["mutate", f"{study_file}:STUDY"]) == 1
    printed = capsys.readouterr().out
    assert "better (fails), small (undecided)" in printed
    assert "4 bugs, of which " in printed
    assert main(["mutate", "one-stepp"]) == 2
    assert "study must be one of" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_changed_file_is_told_on_resuming(study_file, monkeypatch, capsys):
    spec = f"{study_file}:STUDY"
    with monkeypatch.context() as patch:
        patch.setattr(EnsembleState, "update", stopping_at(5))
        assert main(["run", spec, "--device", "cpu", "--out", "killed"]) == 130
    study_file.write_text(study_file.read_text() + "\n# an edit\n")
    capsys.readouterr()
    assert main(["run", spec, "--resume", "killed"]) == 0
    assert f"{study_file} has changed since the run began: trainings that are finished" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        (lambda net: {"loss": torch.ones(())}, ""),
        (lambda net: {"loss": np.float32(np.nan)}, ""),
        (lambda net: {"loss": torch.ones(2)}, r"watch\(network\) must contain numbers, but is tensor"),
        (lambda net: {"loss": "small"}, r"watch\(network\) must contain numbers, but is 'small'"),
        (lambda net: 0.5, r"watch\(network\) must be of type Mapping, but is 0.5 \(float\)"),
    ],
)
def test_a_watch_returns_numbers(tmp_path, numbers, said):
    config = nets.InContextRegressorConfig(nets.TransformerConfig(width=4, init_scale=0.02))

    def measure(lab, settings):
        lab.train("layer", config, tasks.LinearRegression(n_context=4, d_in=3), settings.training, watch=numbers)

    study = dataclasses.replace(tiny_study.STUDY, measure=measure, claims=(), figures=())
    run = new_run(study, "quick", out=tmp_path / "watched")
    with pytest.raises((ArgumentError, ArgumentTypeError), match=said) if said else nullcontext():
        run_study(study, tiny_study.Settings(), run)


def test_names_are_new_and_name_no_other_folder(tmp_path):
    def measure(lab, settings):
        lab.stage("seen", lambda: {"x": np.zeros(len(lab.seeds))})
        lab.stage("seen", lambda: {"x": np.ones(len(lab.seeds))})

    study = dataclasses.replace(tiny_study.STUDY, measure=measure, question="Twice?")
    run = new_run(study, "quick", out=tmp_path / "twice")
    with pytest.raises(ArgumentError, match="the name of a stage must be new in its study, but is 'seen'"):
        run_study(study, tiny_study.Settings(), run)

    def outside(lab, settings):
        lab.train("../beside", None, tasks.LinearRegression(), tiny_study.TRAINING)

    study = dataclasses.replace(study, measure=outside)
    run = new_run(study, "quick", out=tmp_path / "outside")
    with pytest.raises(ArgumentError, match="the name of a training must be non-empty text without slashes"):
        run_study(study, tiny_study.Settings(), run)
    for change, said in (
        ({"name": "../x"}, "the name of a study must be non-empty text without slashes"),
        ({"presets": {"micro": tiny_study.Settings()}}, "presets must contain quick, the default"),
        ({"presets": {"quick": 3}}, "preset quick must be of a dataclass, but is 3"),
    ):
        with pytest.raises(ArgumentError, match=said):
            dataclasses.replace(tiny_study.STUDY, **change)


def test_a_loss_that_is_not_finite_is_no_late_share():
    curves = {"step": np.arange(11), "mse": np.array([[1.0, *[np.nan] * 10], np.linspace(1, 0, 11)])}
    shares = late_share(curves)
    assert np.isnan(shares[0])
    assert shares[1] == pytest.approx(0.2)
