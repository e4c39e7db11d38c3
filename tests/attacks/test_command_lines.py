"""Wrong command lines: each, after mesascope, stands beside a part of its error; the exit code is 2."""

import functools
import inspect
import re
import shlex
from dataclasses import replace

import pytest
from cases import check_each
from sentences import one_sentence

from mesascope import records
from mesascope.cli.parsing import parsed
from mesascope.records import registered

# command line (R: a finished run of tiny, F: a file, N: nothing there), part of the sentence
REFUSED = r"""
rum                                         | unrecognized options: rum; available subcommands: run, identify
--lr                                        | unrecognized options: --lr
run                                         | expected one of .*one-step
run --lr 3                                  | unrecognized options: --lr
run one-stepp                               | unrecognized options: one-stepp; available subcommands: one-step
run one-step extra                          | unrecognized options: extra
run one-step --learning-rate 3              | unrecognized options: --learning-rate, 3; perhaps you meant
run one-step --training.stepz 3             | perhaps you meant --training.steps INT
run one-step --resum R                      | perhaps you meant --resume
run one-step --inner-lr 3                   | options: --inner-lr, 3; for full helptext
run one-step --taks 3                       | perhaps you meant --tasks INT
run one-step --training 3                   | unrecognized options: --training
run one-step --tasks                        | missing value for argument '--tasks'
run one-step --tasks many                   | --tasks must be a whole number
run one-step --tasks 1.5                    | --tasks must be a whole number
run one-step --tasks 1                      | --tasks must be at least 2, but is 1
run one-step --tasks -5                     | --tasks must be at least 2, but is -5
run one-step --seeds 0                      | --seeds must be at least 1, but is 0
run one-step --seed -1                      | --seed must be at least 0, but is -1
run one-step --seed 99999999999999999999999 | --seed must be at most
run one-step --x-scale 0                    | --x-scale must be greater than 0
run one-step --x-scale nan                  | --x-scale must be finite
run one-step --x-scale inf                  | --x-scale must be finite
run one-step --init-scale -1                | --init-scale must be greater than 0
run one-step --training.steps 0             | --training.steps must be at least 1
run one-step --training.batch 0             | --training.batch must be at least 1
run one-step --training.learning-rate nan   | --training.learning-rate must be finite
run one-step --training.learning-rate 0     | --training.learning-rate must be greater than 0
run one-step --training.schedule step       | invalid choice 'step' for argument '--training.schedule': expected one of
run one-step --training.optimizer adma      | invalid choice 'adma' .* expected one of .*'adam'
run one-step --training.momentum 0.9        | --training.momentum must be 0 for adam
run one-step --training.betas 0.9 1.5       | --training.betas must be less than 1
run one-step --training.learning-rate abc   | --training.learning-rate must be a number
run one-step --training.betas 0.9           | missing value for argument '--training.betas'
run one-step --training.betas 0.9 0.9 3     | unrecognized options: 3
run one-step --tasks 5 6                    | unrecognized options: 6
run one-step --training.optimizer rmsprop   | invalid choice 'rmsprop'
run one-step --training.betas a b           | error parsing --training.betas
run one-step --training.warmup-steps 999999 | --training.warmup-steps must be at most 1500
run one-step --training.decay-from 2        | --training.decay-from must be at most 1
run one-step --training.final-rate -1       | --training.final-rate must be at least 0
run one-step --training.clip 0              | --training.clip must be greater than 0
run one-step --training.clip none           | --training.clip
run one-step --training.average -1          | --training.average must be at least 0
run one-step --training.eps 0               | --training.eps must be greater than 0
run one-step --training.weight-decay -1     | --training.weight-decay must be at least 0
run one-step --training.evaluate-every 0    | --training.evaluate-every must be at least 1
run one-step --training.checkpoint-every 0  | --training.checkpoint-every must be at least 1
run one-step --preset qick                  | invalid choice 'qick' for argument '--preset': expected one of
run one-step --preset                       | missing value for argument '--preset'
run one-step --preset ''                    | invalid choice
run one-step --preset paper --tasks 1       | --tasks must be at least 2
run one-step --device abacus                | --device must be one that torch finds
run one-step --device cuda:99               | --device must be one that torch finds
run one-step --device cuda:x                | --device must be one that torch finds
run one-step --device CPU                   | --device must be one that torch finds
run one-step --device ''                    | --device must be one that torch finds
run one-step --out R                        | a new run must have an empty folder.* continue that run with --resume
run one-step --out F                        | a new run must have an empty folder
run one-step --out F/run                    | must be readable and writable, but is not
run one-step --resume N                     | a run directory must exist
run one-step --resume F                     | a run directory must be a folder, but F is a file
run one-step --resume .                     | config.json must exist in a run directory
run one-step --resume R/results             | config.json must exist in a run directory
run one-step --resume R                     | --resume must name a run of one-step, .*: mesascope run --resume R\.
run tiny --resume R --seed 1                | --resume must stand alone, .* is given with --seed:
run tiny --resume R --seeds 3 --tasks=5     | is given with --seeds, --tasks: leave
run tiny --seeds 2 --resume R               | is given with --seeds: leave
run tiny --resume R --tasks 50              | --resume must stand alone
run tiny --resume R --preset paper          | --resume must stand alone
run tiny --resume R --out N                 | --resume must stand alone
run tiny --resume R --device tpu            | device must be one that torch finds
run tiny --workers 0                        | --workers must be at least 1
sweep                                       | the task must be a study or a function, but is left out
sweep nothing                               | the study must be one of .*'one-step'
sweep N.py:f                                | N.py must be a Python file, but cannot be read
sweep json:nothing                          | json:nothing cannot be imported
sweep json:codecs                           | json:codecs must be a study or a function
sweep one-step --set x-scale                | --set must be name=value,value, but is 'x-scale'
sweep one-step --set x-scale=0              | x_scale must be greater than 0
sweep one-step --set x-scal=1               | a setting must be one of .* did you mean 'x_scale'
sweep one-step --set x-scale=1,1            | must have different values
sweep one-step --seeds 5                    | --seeds must be blocks first:end
sweep one-step --seeds 0:5,4:6              | --seeds must be blocks first:end without overlap
sweep one-step --preset qick                | --preset must be one of
sweep one-step --workers 0                  | --workers must be at least 1
sweep one-step --retries -1                 | --retries must be at least 0
sweep one-step --queue sge                  | invalid choice 'sge' for argument '--queue'
sweep --resume N                            | sweep.json must exist
sweep --resume R --seeds 0:3                | --resume must stand alone, .* is given with --seeds
list --all                                  | unrecognized options: --all
list list                                   | unrecognized options: list
report                                      | missing from mesascope report: PATH
report N                                    | a run directory must exist
report F                                    | a run directory must be a folder, but F is a file
report .                                    | config.json must exist in a run directory
report R R                                  | unrecognized options:
report R --format json                      | unrecognized or misplaced options: --format
ledger N                                    | a folder of runs must exist
ledger F                                    | a folder of runs must be a folder
ledger --format                             | missing value for argument '--format'
ledger --format xml                         | invalid choice 'xml' for argument '--format': expected one of
ledger --lr 3                               | unrecognized options: --lr
verify                                      | a folder of runs must exist, but runs does not
verify N                                    | a folder of runs must exist
verify F                                    | a folder of runs must be a folder
verify R --format xml                       | invalid choice 'xml' for argument '--format': expected one of
verify R --since                            | missing value for argument '--since'
verify R --since nowhere                    | --since must be
verify R --device cpu                       | --device must be given with --rerun
verify R --rerun --device abacus            | --device must be one that torch finds
verify --lr 3                               | unrecognized options: --lr
"""
LINES = dict(map(str.strip, line.split(" | ", 1)) for line in REFUSED.strip().splitlines())


@pytest.fixture
def three_studies(monkeypatch):
    """A command line of three studies, which is read in a third of the time that one of all takes.

    Sources of classes, of which flags have their helps, are read once.
    """
    monkeypatch.setattr(inspect, "getsource", functools.cache(inspect.getsource))
    own = {name: records._REGISTRY["study"][name] for name in ("one-step", "two-steps", "tiny")}
    monkeypatch.setitem(records._REGISTRY, "study", own)


def test_a_wrong_command_line_ends_in_a_sentence(whole, tmp_path, monkeypatch, mesascope, three_studies):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "F").write_text("a file")
    (tmp_path / "R").symlink_to(whole)
    before = sorted(tmp_path.rglob("*"))

    def check(line):
        code, out, err = mesascope(*shlex.split(line))
        assert (code, out) == (2, "")
        assert err.startswith("mesascope: ")
        assert re.search(LINES[line], one_sentence(err)), err
        assert sorted(tmp_path.rglob("*")) == before, "a refused command leaves nothing behind"

    check_each(check, LINES)


# command line, (preset, settings that are not its own)
PARSED = {
    "": ("quick", {}),
    "--preset paper": ("paper", {}),
    "--preset=paper": ("paper", {}),
    "--preset quick --preset paper": ("paper", {}),
    "--preset paper --preset quick": ("quick", {}),
    "--preset paper --preset=quick": ("quick", {}),
    "--tasks 7 --preset paper": ("paper", {"tasks": 7}),
    "--preset paper --tasks 7 --preset quick": ("quick", {"tasks": 7}),
    "--tasks 7 --tasks 9": ("quick", {"tasks": 9}),
    "--sweep_tasks 7": ("quick", {"sweep_tasks": 7}),
    "--x-scale=1e-3": ("quick", {"x_scale": 1e-3}),
    "--out paper": ("quick", {}),
}


@pytest.mark.parametrize("study", ["one-step", "two-steps", "one_step"])
def test_settings_are_those_of_the_preset_that_is_named_but_for_what_is_given(study, three_studies):
    def check(line):
        preset, changes = PARSED[line]
        command = parsed(["run", study, *shlex.split(line)]).command
        assert command.study == study.replace("_", "-")
        assert command.preset == preset
        assert command.settings == replace(registered("study")[command.study].presets[preset], **changes)

    check_each(check, PARSED)


def test_every_flag_says_what_it_does(mesascope, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")  # where groups stand below each other, whatever their number
    every = records._REGISTRY["study"]

    def check(study):
        monkeypatch.setitem(records._REGISTRY, "study", {study: every[study], "tiny": every["tiny"]})
        code, out, _ = mesascope("run", study, "--help")
        assert code == 0
        flags = re.findall(r"\n +(--[a-z][^\n]*(?:\n +[^-\s][^\n]*)*)", out.replace("│", " "))
        assert len(flags) > 7
        for flag in flags:  # its name, its type (of betas, two), and words
            assert len(flag.partition("(default")[0].split()) >= 4, flag

    check_each(check, sorted(registered("study")))


@pytest.mark.parametrize("command", ["run --help", "run -h", "run one-step --help"])
def test_help_tells_of_resuming(command, mesascope, three_studies):
    code, out, _ = mesascope(*command.split())
    assert code == 0
    assert "--resume" in out


def test_help_ends_on_any_terminal(mesascope, monkeypatch, three_studies):
    def check(columns):
        monkeypatch.setenv("COLUMNS", columns)
        code, out, _ = mesascope("run", "tiny", "--help")
        assert code == 0
        assert "--training.learning-rate" in out

    check_each(check, ["1", "2", "3", "4", "5", "8", "39", "0", "-3", "abc", "500"])
