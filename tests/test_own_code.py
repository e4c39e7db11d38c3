"""Studies and functions whose code has helpers, changes, or shares names with other code."""

import dataclasses
import functools
from dataclasses import dataclass

import numpy as np
import pytest
import tiny_study

from mesascope import nets, tasks
from mesascope.cli import main
from mesascope.cli.sweep import _setting
from mesascope.errors import ArgumentError
from mesascope.loading import from_file, own_files
from mesascope.runs import open_run
from mesascope.runs.results import code_of
from mesascope.studies import new_run, run_study
from mesascope.studies.lab import Lab
from mesascope.study import Mutation
from mesascope.sweeps import Sweep
from mesascope.training import half_mse


def test_files_import_the_helpers_of_their_own_folders(tmp_path):
    files = [tmp_path / name / "study.py" for name in ("A", "B")]
    for file in files:
        file.parent.mkdir()
        file.write_text("from own_helper import BOUND\nfrom own_package.part import WORD\n")
        (file.parent / "own_helper.py").write_text(f"BOUND = {file.parent.name!r}\n")
        (file.parent / "own_package").mkdir()
        (file.parent / "own_package" / "__init__.py").touch()
        (file.parent / "own_package" / "part.py").write_text(f"WORD = {file.parent.name!r}\n")
    for file in (*files, *files):
        assert from_file(f"{file}:BOUND") == from_file(f"{file}:WORD") == file.parent.name


def test_the_code_of_a_file_includes_the_helpers_that_it_imports(tmp_path):
    file, helper, other = (tmp_path / f"{name}.py" for name in ("mine", "helper", "other"))
    file.write_text("import numpy\nfrom helper import number\n")
    helper.write_text("import other\nnumber = 1\n")
    other.write_text("")
    (tmp_path / "stranger.py").write_text("")
    assert own_files(file) == [file, helper, other]
    before = code_of(file)
    other.write_text("changed = True\n")
    assert code_of(file) != before
    assert code_of(tmp_path / "nothing.py") is None


def test_stages_are_measured_again_after_a_helper_has_changed(tmp_path, monkeypatch):
    text = """
from dataclasses import dataclass
import own_numbers
from mesascope.evidence import Claim, above, column, ours
from mesascope.study import Study, stage
@dataclass(frozen=True)
class Settings:
    seeds: int = 2
def measure(lab, settings):
    lab.stage("first", lambda: {"v": own_numbers.numbers()})
    own_numbers.pause()
    lab.stage("second", lambda: {"v": own_numbers.numbers()})
STUDY = Study(name="helped", source="a test", presets={"quick": Settings()}, measure=measure, trainings=0, question="?",
    claims=(Claim("c", "s", stage("first")["v"], above(0.0), ours("t"), quantifier="share"),), figures=())
"""
    file, helper = tmp_path / "study.py", tmp_path / "own_numbers.py"
    file.write_text(text)
    helper.write_text("def numbers():\n    return [1.0, 1.0]\ndef pause():\n    raise KeyboardInterrupt\n")
    spec, out = f"{file}:STUDY", str(tmp_path / "run")
    assert main(["run", spec, "--out", out]) == 130
    helper.write_text("def numbers():\n    return [5.0, 5.0]\ndef pause():\n    pass\n")
    for name in [name for name in __import__("sys").modules if "own_numbers" in name or name.startswith("_mesascope_")]:
        del __import__("sys").modules[name]  # as in a new process
    assert main(["run", spec, "--resume", out]) == 0
    results = open_run(out).results
    assert [*results["first"]["v"]] == [*results["second"]["v"]] == [5.0, 5.0]


def test_a_point_that_failed_begins_again_with_other_code(tmp_path, capsys):
    file = tmp_path / "points.py"
    file.write_text("def g(settings, seed):\n    return {'v': 1.0} if seed < 2 else None\n")
    out = tmp_path / "out"
    assert main(["sweep", f"{file}:g", "--seeds", "0:4", "--out", str(out), "--retries", "0"]) == 2
    file.write_text("def g(settings, seed):\n    return {'v': 100.0}\n")
    assert main(["sweep", f"{file}:g", "--seeds", "0:4", "--out", str(out)]) == 0
    (row,) = Sweep(f"{file}:g", seeds="0:4", out=out).table()
    assert (row["value"], row["replicates"]) == (100.0, 4)
    file.write_text("def g(settings, seed):\n    return {'v': 7.0}\n")
    capsys.readouterr()
    assert main(["sweep", f"{file}:g", "--seeds", "0:4,4:5", "--out", str(out)]) == 0
    assert "1 finished point of 1 were made by other code" in capsys.readouterr().err.replace("was", "were")


def test_values_of_a_sweep_are_those_that_a_reader_sees(tmp_path):
    assert _setting("bias=True,False") == ("bias", [True, False])
    assert _setting("rate=.5,1e-3,None") == ("rate", [0.5, 1e-3, None])
    assert _setting("kind=mesa,a b") == ("kind", ["mesa", "a b"])
    file = tmp_path / "f.py"
    file.write_text("def f(settings, seed):\n    settings['a'].append(1)\n    return {'n': len(settings['a'])}\n")
    with pytest.raises(ArgumentError, match="x must have different values"):
        Sweep(f"{file}:f", {"x": [1, 1.0]})
    assert len(Sweep(f"{file}:f", {"x": [1, True]}, out=tmp_path / "o").points) == 2
    with pytest.raises(ArgumentError, match="x must have finite values"):
        Sweep(f"{file}:f", {"x": [float("nan")]})
    with pytest.raises(ArgumentError, match="settings must name each setting once"):
        Sweep(f"{file}:f", {"a-b": [1], "a_b": [2]})


def test_a_study_of_a_package_is_swept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "own_pack"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "word.py").write_text("QUESTION = 'Packed?'\n")
    text = tiny_study.__loader__.get_source(tiny_study.__name__).replace('name="tiny"', 'name="packed"')
    (package / "study.py").write_text(text.replace("import sys\n", "import sys\nfrom .word import QUESTION\n", 1))
    assert Sweep("own_pack.study:STUDY", out=tmp_path / "o").is_study


def test_figures_that_a_study_no_longer_has_leave_the_report(tmp_path):
    study = tiny_study.STUDY
    run = new_run(study, "quick", out=tmp_path / "run")
    run_study(study, study.presets["quick"], run)
    assert len(run.captions) > 0
    run_study(dataclasses.replace(study, figures=()), study.presets["quick"], open_run(run.path))
    assert open_run(run.path).captions == {}


def test_bugs_are_planted_where_the_study_lies_and_must_exist(tmp_path):
    file = tmp_path / "bugged.py"
    file.write_text("def number():\n    return 1\n")
    number, module = from_file(f"{file}:number"), from_file(f"{file}:number").__globals__
    with Mutation("100 is added", "bugged:number", lambda old: lambda: 100 + old()).planted():
        assert module["number"]() == 101
    assert module["number"] is number
    for target in ("bugged:nothing", "nowhere:number", "bugged:number.more.name"):
        with pytest.raises(ArgumentError, match="the target of a bug must be module:name"):
            Mutation("none", target, lambda old: old).check()


@dataclass(frozen=True)
class More(tiny_study.Settings):
    more: int = 1


def test_presets_are_of_one_class_and_can_be_read_back(tmp_path):
    with pytest.raises(ArgumentError, match="preset paper must be a Settings, as quick is"):
        dataclasses.replace(tiny_study.STUDY, presets={"quick": tiny_study.Settings(), "paper": More()})

    @dataclass(frozen=True)
    class Odd:
        seeds: int = 2
        rate: int = 3.0

    @dataclass(frozen=True)
    class Infinite:
        seeds: int = 2
        rate: float = float("inf")

    for settings in (Odd(), Infinite()):
        study = dataclasses.replace(tiny_study.STUDY, presets={"quick": settings})
        with pytest.raises(ArgumentError, match="settings of tiny must be readable from a record"):
            new_run(study, "quick", out=tmp_path / "run")


def _power(exponent):
    def loss(model, batch):
        return half_mse(model, batch) ** exponent

    return loss


def _third(model, batch, factor=3.0):
    return half_mse(model, batch) / factor


def test_losses_and_watches_of_two_trainings_are_not_mixed_up(tmp_path):
    study, family = tiny_study.STUDY, tasks.LinearRegression(n_context=4, d_in=3)
    config = nets.InContextRegressorConfig(nets.TransformerConfig(width=4, init_scale=0.02))
    lab = Lab(new_run(study, "quick", out=tmp_path / "run"), 2)
    train = functools.partial(lab.train, network=config, family=family, training=tiny_study.TRAINING)
    train("one", loss=_power(1))
    with pytest.raises(ArgumentError, match="loss must have a name of its own, but is 'loss'"):
        train("two", loss=_power(4))
    train("third", loss=functools.partial(_third, factor=2.0))
    train("fourth", loss=functools.partial(_third, factor=4.0))
    assert {path.name for path in (lab.run.path / "checkpoints").iterdir()} == {"one", "third", "fourth"}
    for name, number in (("a", 1.0), ("b", 2.0), ("c", 1.0)):
        train(name, watch=lambda net, number=number: {"mse": number})
    assert np.all(lab.run.results["b"]["mse"] == 2.0)
    assert np.all(lab.run.results["c"]["mse"] == 1.0)
    assert not (lab.run.path / "checkpoints" / "c").exists()


def test_mistakes_of_own_studies_and_functions_are_told(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = tiny_study.__loader__.get_source(tiny_study.__name__).replace('name="tiny"', 'name="named"')
    (tmp_path / "s.py").write_text(
        text.replace("    seeds: int = 2\n", "    seeds: int = 2\n    device: str = ''\n", 1)
    )
    assert main(["run", "s.py:STUDY"]) == 2
    assert "must not have the names of flags of mesascope run, but have device" in " ".join(
        capsys.readouterr().err.split()
    )
    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text("def f(settings, seed):\n    raise KeyboardInterrupt\n")
    assert main(["sweep", "a.py:f", "--retries", "0"]) == 2
    assert "raises KeyboardInterrupt" in capsys.readouterr().err
    assert main(["sweep", "b.py:f"]) == 2
    assert "out must be given" in capsys.readouterr().err


def test_a_study_file_that_exits_is_an_error(tmp_path, capsys):
    (tmp_path / "s.py").write_text("import sys\nsys.exit(0)\n")
    assert main(["run", f"{tmp_path}/s.py:STUDY", "--out", f"{tmp_path}/r"]) == 2
    assert "must run, but raises SystemExit at line 2" in " ".join(capsys.readouterr().err.split())
