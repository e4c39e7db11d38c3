"""Files of a run with something else in the place of what was written there: by file, position and JSON type.

A line is a position, with all that is put there. What is refused is refused in one sentence that
names the file and the place.
"""

import json
import re

import pytest
from cases import check_each
from sentences import one_sentence

from mesascope.errors import RunDirectoryError
from mesascope.runs import open_run

STEP = "checkpoints/layer/8/"

# Functions that read each file.
READERS = {
    "config.json": lambda run: open_run(run),
    "claims.json": lambda run: open_run(run).claims,
    "timing.json": lambda run: open_run(run).times,
    "metrics.jsonl": lambda run: open_run(run).metrics(),
    "results/index.json": lambda run: list(open_run(run).results),
    "figures/captions.json": lambda run: open_run(run).captions,
    STEP + "manifest.json": lambda run: open_run(run).network("layer"),
}

# file, position, values
POSITIONS = """
config.json                   schema             null "2" [] {} 2.5 true -1 1 3 99
config.json                   kind               null 5 "" "studdy" [] {}
config.json                   id                 null 5 [] {} true
config.json                   study              null 5 [] {}
config.json                   preset             null 5 [] {}
config.json                   settings           null 5 "x" [] true
config.json                   seed               null "0" -1 0.5 [] {} true 1e30
config.json                   device             null 5 [] {}
config.json                   hash               null 5 [] "0" ""
config.json                   question           null 5 [] {}
config.json                   source             null 5 []
config.json                   deviations         null 5 "x" {} [5] [null] [[]]
config.json                   command            null 5 []
config.json                   created            null 5 []
config.json                   versions           null 5 "x" [] {"torch":2}
config.json                   machine            null 5 {}
config.json                   processor          null 5 {}
config.json                   python             null 3.11
config.json                   git                5 [] {}
claims.json                   @                  null 12 "x" {} true [5] [null] ["x"] [[]] [{}]
claims.json                   0.id               null 5 [] {}
claims.json                   0.sentence         null 5 [] {}
claims.json                   0.measures         null 5
claims.json                   0.source           null 5 {}
claims.json                   0.about            null 5 "nothing"
claims.json                   0.quantifier       null 5
claims.json                   0.over             null 5 []
claims.json                   0.n                null "2" 2.5 -1 []
claims.json                   0.at_least         null "2" -1
claims.json                   0.premises         null 5 "x" {} [5]
claims.json                   0.value            "0.5" [] {} true
claims.json                   0.low              "0.5" []
claims.json                   0.high             "0.5" {}
claims.json                   0.bound            null 5 []
claims.json                   0.bound_low        "x" []
claims.json                   0.bound_high       "x" {}
claims.json                   0.bound_by         null 5 "them"
claims.json                   0.reported         5 [] {}
claims.json                   0.verdict          null 5 "held" "" "not_yet_run" []
claims.json                   0.reason           null 5 []
timing.json                   @                  null 18 "x" [] true [5]
timing.json                   comparison         null "1" -1 [] {} true
metrics.jsonl                 2                  null 5 "x" [] true {} [{}]
metrics.jsonl                 2.training         null 5 [] {}
metrics.jsonl                 2.step             null "2" -1 2.5 [] true
metrics.jsonl                 2.seed             null "0" 0.5 []
metrics.jsonl                 2.mse              "0.5" [] {} true
results/index.json            @                  null 5 "x" [] true
results/index.json            weights            null 5 "x" [] {}
results/index.json            weights.sha256     null 5 []
results/index.json            weights.settings   null 5 {}
results/index.json            weights.code       null 5 []
results/index.json            ../../weights      {"sha256":"","settings":"","code":""}
figures/captions.json         @                  null 5 "x" [] true
figures/captions.json         training           null 5 [] {}
figures/captions.json         ../../../secret    "Mine."
checkpoints/layer/8/manifest.json  @             null 5 "x" [] true
checkpoints/layer/8/manifest.json  schema        null "2" [] 2.5 99
checkpoints/layer/8/manifest.json  step          null "8" 8.5 -8 7 9 []
checkpoints/layer/8/manifest.json  key           null 5 "0"
checkpoints/layer/8/manifest.json  config        null 5 "x" [] {}
checkpoints/layer/8/manifest.json  config.seeds  null 5 "x" [0] {}
checkpoints/layer/8/manifest.json  config.network  null 5 "x" [] {}
checkpoints/layer/8/manifest.json  sha256        null 5 "0"
checkpoints/layer/8/manifest.json  versions      5 "x" []
"""

CASES = [
    (file, position, value)
    for file, position, *values in map(str.split, POSITIONS.strip().splitlines())
    for value in values
]

# Positions that may be absent; every other is missed.
OPTIONAL = {
    "hash", "question", "source", "deviations", "command", "created", "versions", "machine", "processor",
    "python", "git",
    "comparison", "weights", "training", "mse", "config.seeds",
}  # fmt: skip


def put(value, position, other):
    """``value`` with ``other`` at a position, or without it where ``other`` is ``del``."""
    if position == "@":
        return other
    steps = [position] if "/" in position else position.split(".")
    *way, last = (int(step) if step.isdigit() else step for step in steps)
    place = value
    for key in way:
        place = place[key]
    if other is del_:
        del place[last]
    else:
        place[last] = other
    return value


del_ = object()


def rewrite(path, position, other):
    if path.suffix == ".jsonl":
        rows = put([json.loads(line) for line in path.read_text().splitlines()], position, other)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text(json.dumps(put(json.loads(path.read_text()), position, other)))


def refusal(file, run):
    with pytest.raises(RunDirectoryError) as error:
        READERS[file](run)
    said = one_sentence(str(error.value))
    assert str(run) in said, said
    return said


def refusal_of(file, position, other, run):
    """The sentence for ``other`` at a position, after which the file is as it was before."""
    before = (run / file).read_bytes()
    rewrite(run / file, position, other)
    try:
        return refusal(file, run)
    finally:
        (run / file).write_bytes(before)


def test_a_wrong_value_is_refused(run):
    def check(case):
        file, position, value = case
        refusal_of(file, position, json.loads(value), run)

    check_each(check, CASES)


REQUIRED = {
    (file, position): None
    for file, position, _ in CASES
    if position != "@" and "/" not in position and position != "2" and position.split(".")[-1] not in OPTIONAL
}  # fmt: skip


def test_a_lost_value_is_missed(run):
    def check(case):
        file, position = case
        said = refusal_of(file, position, del_, run)
        assert re.search(rf"{position.split('.')[-1]}|another configuration", said), said

    check_each(check, REQUIRED)
