"""What is typed after mesascope. A line is a command line, with a part of its sentence; the exit code is 2."""

import re
import shlex
from dataclasses import replace

import pytest
from sentences import one_sentence

from mesascope import records
from mesascope.cli.parsing import parsed
from mesascope.records import registered

# command line (R: a finished run of tiny, F: a file, N: nothing there), part of the sentence
REFUSED = r"""
rum                                         | a command must be one of .* did you mean 'run'
Run                                         | did you mean 'run'
runs                                        | did you mean 'run'
lsit                                        | did you mean 'list'
ledgers                                     | did you mean 'ledger'
reports R                                   | did you mean 'report'
--lr                                        | --lr must be a flag of mesascope, but is not
--json                                      | --json must be a flag of mesascope
-v                                          | -v must be a flag of mesascope
run                                         | mesascope run must be given a study, but is given none
run --lr 3                                  | --lr must be a flag of mesascope run, but is not
run one-stepp                               | a study must be one of .* did you mean 'one-step'
run onestep                                 | did you mean 'one-step'
run one-step extra                          | takes no words but flags, but is given extra
run one-step two-steps                      | but is given two-steps
run one-step 5                              | but is given 5
run one-step --lr 3                         | did you mean --training.learning-rate?
run one-step --learning-rate 3              | did you mean --training.learning-rate?
run one-step --learning_rate 3              | did you mean --training.learning-rate?
run one-step --lr=3                         | --lr must be a flag .* did you mean --training.learning-rate?
run one-step --training.lr 3                | did you mean --training.learning-rate?
run one-step --sizes.lr 3                   | did you mean --sizes.learning-rate?
run one-step --epochs 3                     | did you mean --training.steps?
run one-step --steps 3                      | did you mean --training.steps?
run one-step --iterations 3                 | did you mean --training.steps?
run one-step --training.stepz 3             | did you mean --training.steps?
run one-step --batch-size 3                 | did you mean --training.batch?
run one-step --batch_size 3                 | did you mean --training.batch?
run one-step --wd 0.1                       | did you mean --training.weight-decay?
run one-step --optim adam                   | did you mean --training.optimizer?
run one-step --grad-clip 1                  | did you mean --training.clip?
run one-step --warmup 10                    | did you mean --training.warmup-steps?
run one-step --eval-every 10                | did you mean --training.evaluate-every?
run one-step --save-every 10                | did you mean --training.checkpoint-every?
run one-step --num-seeds 3                  | did you mean --seeds?
run one-step --random-seed 3                | did you mean --seed?
run one-step --gpu                          | did you mean --device cuda?
run one-step --cuda                         | did you mean --device cuda?
run one-step --cpu                          | did you mean --device cpu?
run one-step --mps                          | did you mean --device mps?
run one-step --output x                     | did you mean --out?
run one-step --output-dir x                 | did you mean --out?
run one-step -o x                           | did you mean --out?
run one-step --folder x                     | did you mean --out?
run one-step --continue R                   | did you mean --resume?
run one-step --restart R                    | did you mean --resume?
run one-step --resum R                      | did you mean --resume?
run one-step --paper                        | did you mean --preset paper?
run one-step --quick                        | did you mean --preset quick?
run one-step --config paper                 | did you mean --preset?
run one-step --taks 3                       | did you mean --tasks?
run one-step --n-tasks 3                    | did you mean --tasks?
run one-step --training 3                   | --training must be a flag
run one-step --tasks                        | --tasks must have a value
run one-step --tasks many                   | --tasks must be a whole number, but is 'many': pass one, such as 5
run one-step --tasks 1.5                    | --tasks must be a whole number, but is '1.5': pass one, such as 5
run one-step --tasks=                       | --tasks must be a whole number, but is '': pass one, such as 5
run one-step --tasks 1                      | --tasks must be at least 2, but is 1
run one-step --tasks -5                     | --tasks must be at least 2, but is -5
run one-step --seeds 0                      | --seeds must be at least 1, but is 0
run one-step --seeds 1e3                    | --seeds must be a whole number, but is '1e3': pass one, such as 5
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
run one-step --training.schedule step       | --training.schedule must be one of 'constant', 'cosine', 'linear'
run one-step --training.optimizer adma      | did you mean 'adam'?
run one-step --training.momentum 0.9        | --training.momentum must be 0 for adam
run one-step --training.betas 0.9 1.5       | --training.betas must be below 1
run one-step --training.lr abc              | did you mean --training.learning-rate
run one-step --training.learning-rate abc   | --training.learning-rate must be a number, but is 'abc': pass one
run one-step --training.betas 0.9           | --training.betas must have 2 values, but has 1
run one-step --training.betas 0.9 0.9 3     | takes no words but flags, but is given 3
run one-step --tasks 5 6                    | takes no words but flags, but is given 6
run one-step --training.optimizer rmsprop   | but is 'rmsprop'\.$
run one-step --zzz 3                        | but is not: see mesascope run one-step --help\.$
run one-step --training.betas a b           | --training.betas must be a number, but is 'a': pass one, such as 5
run one-step --training.warmup-steps 999999 | --training.warmup-steps must be at most 1500
run one-step --training.decay-from 2        | --training.decay-from must be at most 1
run one-step --training.final-rate -1       | --training.final-rate must be at least 0
run one-step --training.clip 0              | --training.clip must be greater than 0
run one-step --training.clip none           | --training.clip must be a number or None, but is 'none'
run one-step --training.average -1          | --training.average must be at least 0
run one-step --training.eps 0               | --training.eps must be greater than 0
run one-step --training.weight-decay -1     | --training.weight-decay must be at least 0
run one-step --training.evaluate-every 0    | --training.evaluate-every must be at least 1
run one-step --training.checkpoint-every 0  | --training.checkpoint-every must be at least 1
run one-step --preset qick                  | --preset must be one of .* did you mean 'quick'?
run one-step --preset                       | --preset must have a value
run one-step --preset ''                    | --preset must be one of
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
run one-step --resume R                     | --resume must name a run of one-step, .* mesascope run tiny --resume
run tiny --resume R --seed 1                | --resume must stand alone, .* is given with --seed:
run tiny --resume R --seeds 3 --tasks=5     | is given with --seeds, --tasks: leave
run tiny --seeds 2 --resume R               | is given with --seeds: leave
run tiny --resume R --tasks 50              | --resume must stand alone
run tiny --resume R --preset paper          | --resume must stand alone
run tiny --resume R --out N                 | --resume must stand alone
run tiny --resume R --device cpu            | --resume must stand alone
list --all                                  | --all must be a flag of mesascope list
list list                                   | but is given list
list one-step                               | but is given one-step
report                                      | takes one folder, but is given none
report N                                    | a run directory must exist
report F                                    | a run directory must be a folder, but F is a file
report .                                    | config.json must exist in a run directory
report R R                                  | takes one folder, but is given
report R --open                             | --open must be a flag of mesascope report
report R --format json                      | --format must be a flag of mesascope report
ledger N                                    | a folder of runs must exist
ledger F                                    | a folder of runs must be a folder
ledger --json                               | did you mean --format json?
ledger --markdown                           | did you mean --format markdown?
ledger --format                             | --format must have a value
ledger --format xml                         | --format must be one of 'json', 'markdown', 'table', but is 'xml'
ledger --output-format json                 | did you mean --format?
ledger --lr 3                               | --lr must be a flag of mesascope ledger
"""
LINES = dict(map(str.strip, line.split(" | ", 1)) for line in REFUSED.strip().splitlines())


@pytest.fixture
def three_studies(monkeypatch):
    """A command line of three studies, which is read in a third of the time that one of all takes."""
    own = {name: records._REGISTRY["study"][name] for name in ("one-step", "two-steps", "tiny")}
    monkeypatch.setitem(records._REGISTRY, "study", own)


@pytest.mark.parametrize("line", LINES)
def test_a_wrong_command_line_ends_in_a_sentence(line, whole, tmp_path, monkeypatch, mesascope, three_studies):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "F").write_text("a file")
    (tmp_path / "R").symlink_to(whole)
    before = sorted(tmp_path.rglob("*"))
    code, out, err = mesascope(*shlex.split(line))
    assert (code, out) == (2, "")
    assert err.startswith("mesascope: ")
    assert re.search(LINES[line], one_sentence(err)), err
    assert sorted(tmp_path.rglob("*")) == before, "a refused command leaves nothing behind"


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


@pytest.mark.parametrize("line", PARSED)
@pytest.mark.parametrize("study", ["one-step", "two-steps", "one_step"])
def test_settings_are_those_of_the_preset_that_is_named_but_for_what_is_given(line, study, three_studies):
    preset, changes = PARSED[line]
    command = parsed(["run", study, *shlex.split(line)]).run
    assert command.study == study.replace("_", "-")
    assert command.preset == preset
    assert command.settings == replace(registered("study")[command.study].presets[preset], **changes)


@pytest.mark.parametrize("study", sorted(registered("study")))
def test_every_flag_says_what_it_does(study, mesascope, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")  # where groups stand below each other, whatever their number
    code, out, _ = mesascope("run", study, "--help")
    assert code == 0
    flags = re.findall(r"\n +(--[a-z][^\n]*(?:\n +[^-\s][^\n]*)*)", out.replace("│", " "))
    assert len(flags) > 7
    for flag in flags:  # its name, its type (of betas, two), and words
        assert len(flag.partition("(default")[0].split()) >= 4, flag


@pytest.mark.parametrize("command", ["run --help", "run -h", "run one-step --help"])
def test_help_tells_of_resuming(command, mesascope, three_studies):
    code, out, _ = mesascope(*command.split())
    assert code == 0
    assert "--resume" in out


@pytest.mark.parametrize("columns", ["1", "2", "3", "4", "5", "8", "39", "0", "-3", "abc", "500"])
def test_help_ends_on_any_terminal(columns, mesascope, monkeypatch, three_studies):
    monkeypatch.setenv("COLUMNS", columns)
    code, out, _ = mesascope("run", "tiny", "--help")
    assert code == 0
    assert "--training.learning-rate" in out
