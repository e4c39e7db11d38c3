"""Wrong arguments to the functions that make and read runs: calls, each with the beginning of its error."""

import math
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from cases import check_each
from sentences import one_sentence
from tiny_study import STUDY, Settings

from mesascope.errors import MesascopeError
from mesascope.evidence import Arrays
from mesascope.runs import Run, find_runs, open_run
from mesascope.streams import stream
from mesascope.studies import new_run, resume_run, run_study

ROW = {"training": "a", "step": 0, "seed": 0}
CONFIG = {"settings": {}, "seed": 0}
NAMES = {
    "math": math, "np": np, "STUDY": STUDY, "Settings": Settings, "Arrays": Arrays, "Run": Run, "find_runs": find_runs,
    "open_run": open_run, "stream": stream, "new_run": new_run, "resume_run": resume_run,
    "ROW": ROW, "CONFIG": CONFIG,
}  # fmt: skip

# call (r: a finished run, n: a path that does not exist, f: a file), beginning of the sentence
CALLS = {
    "open_run(None)": "the folder of a run must be a path, but is None (NoneType)",
    "open_run(3)": "the folder of a run must be a path, but is 3 (int)",
    "open_run('')": "the folder of a run must be a path, but is '' (str)",
    "open_run(b'runs')": "the folder of a run must be a path, but is b'runs' (bytes)",
    "open_run(['runs'])": "the folder of a run must be a path",
    "open_run('a\\0b')": "the folder of a run must be a path",
    "open_run(n)": "a run directory must exist, but",
    "open_run(str(n))": "a run directory must exist, but",
    "open_run(f)": "a run directory must be a folder, but {f} is a file: pass one that mesascope run made",
    "open_run(r / 'config.json')": "a run directory must be a folder, but {r}/config.json is a file: pass {r}.",
    "open_run('x' * 300)": "a run directory must exist, but",
    "open_run('.')": "config.json must exist in a run directory",
    "open_run(r / 'results')": "{r}/results/config.json must exist in a run directory",
    "resume_run(None)": "the folder of a run must be a path",
    "resume_run(n)": "a run directory must exist, but",
    "resume_run('')": "the folder of a run must be a path",
    "find_runs(None)": "folders must be a path or several, but is None (NoneType)",
    "find_runs(5)": "folders must be a path or several, but is 5 (int)",
    "find_runs('nowhere')": "a folder of runs must exist, but nowhere does not",
    "find_runs('')": "a folder of runs must be a path, but is ''",
    "find_runs(['.', None])": "a folder of runs must be a path, but is None",
    "find_runs([f])": "a folder of runs must be a folder, but",
    "find_runs(f)": "a folder of runs must be a folder, but",
    "find_runs([b'.'])": "a folder of runs must be a path",
    "Run.create(None, 'study', CONFIG)": "the folder of a run must be a path",
    "Run.create(n, 'studdy', CONFIG)": "kind must be one of",
    "Run.create(n, None, CONFIG)": "kind must be one of",
    "Run.create(n, 'study', CONFIG)": "config.json must fit its schema",
    "Run.create(n, 'benchmark', {})": "config.json must fit its schema",
    "Run.create(n, 'benchmark', {**CONFIG, 'seed': '0'})": "config.json must fit its schema",
    "Run.create(n, 'benchmark', {**CONFIG, 'seed': -1})": "config.json must fit its schema",
    "Run.create(n, 'benchmark', {**CONFIG, 'schema': '2'})": "config.json must fit its schema",
    "Run.create(f, 'benchmark', CONFIG)": "a new run must have an empty folder, but {f} is not",
    "Run.create(r, 'benchmark', CONFIG)": "a new run must have an empty folder, but {r} is not",
    "new_run(None, 'quick', out=n)": "study must be of type Study, but is None",
    "new_run('tiny', 'quick', out=n)": "study must be of type Study, but is 'tiny'",
    "new_run(STUDY, 'qick', out=n)": "preset must be one of 'paper', 'quick', but is 'qick': did you mean 'quick'?",
    "new_run(STUDY, None, out=n)": "preset must be one of",
    "new_run(STUDY, 'quick', {}, out=n)": "settings must be of type Settings, but is {{}}",
    "new_run(STUDY, 'quick', 5, out=n)": "settings must be of type Settings, but is 5",
    "new_run(STUDY, 'quick', Settings, out=n)": "settings must be of type Settings",
    "new_run(STUDY, 'quick', seed='0', out=n)": "seed must be an integer, but is '0'",
    "new_run(STUDY, 'quick', seed=-1, out=n)": "seed must be at least 0, but is -1",
    "new_run(STUDY, 'quick', seed=0.5, out=n)": "seed must be an integer, but is 0.5",
    "new_run(STUDY, 'quick', seed=True, out=n)": "seed must be an integer, but is True",
    "new_run(STUDY, 'quick', seed=None, out=n)": "seed must be an integer, but is None",
    "new_run(STUDY, 'quick', seed=2**70, out=n)": "seed must be at most 4.61169e+18, but is",
    "new_run(STUDY, 'quick', device='abacus', out=n)": "device must be one that torch finds",
    "new_run(STUDY, 'quick', device='cuda:99', out=n)": "device must be one that torch finds",
    "new_run(STUDY, 'quick', device=None, out=n)": "device must be one that torch finds",
    "new_run(STUDY, 'quick', device=0, out=n)": "device must be one that torch finds",
    "new_run(STUDY, 'quick', out=3)": "the folder of a run must be a path, but is 3",
    "new_run(STUDY, 'quick', out='')": "the folder of a run must be a path, but is ''",
    "new_run(STUDY, 'quick', out=r)": "a new run must have an empty folder, but {r} is not",
    "new_run(STUDY, 'quick', out=str(r))": "a new run must have an empty folder, but {r} is not",
    "new_run(STUDY, 'quick', out=f)": "a new run must have an empty folder, but {f} is not",
    "Run.create(n, 'benchmark', CONFIG).settings": "{n}/config.json must name a study that is registered, but does not",
    "Settings(seeds=0)": "seeds must be at least 1, but is 0",
    "open_run(r).curves('layr')": "training must be one of 'layer', but is 'layr': did you mean 'layer'?",
    "open_run(r).curves(None)": "training must be one of 'layer', but is None",
    "open_run(r).curves('')": "training must be one of 'layer', but is ''",
    "open_run(r).network('layr')": "training must be one of 'layer', but is 'layr'",
    "open_run(r).network(None)": "training must be one of 'layer', but is None",
    "open_run(r).network('layer', 2)": "seed must be one of 0, 1, but is 2: choose one of these.",
    "open_run(r).family('layr')": "training must be one of 'layer', but is 'layr': did you mean 'layer'?",
    "open_run(r).network('layer', -1)": "seed must be at least 0, but is -1",
    "open_run(r).network('layer', 0.5)": "seed must be an integer, but is 0.5",
    "open_run(r).network('layer', None)": "seed must be an integer, but is None",
    "open_run(r).network('layer', '0')": "seed must be an integer, but is '0'",
    "open_run(r).results['weigths']": "{r}/results/weigths.npz must be a stage of the run (layer, comparison, w",
    "open_run(r).results[None]": "the name of a stage must be non-empty text without slashes, of 200 bytes at most",
    "open_run(r).results['weights']['nrm']": "results must contain 'nrm', but contain 'norm': correct",
    "open_run(r).results['comparison']['mse', 'nobody']": "the quantity must be one of",
    "open_run(r).figure_svg('trainin')": "{r}/figures/trainin.svg must exist in a run directory",
    "open_run(r).append_metrics([{**ROW, 'mse': math.nan}])": "metrics.jsonl must fit its schema",
    "open_run(r).append_metrics([{**ROW, 'mse': math.inf}])": "metrics.jsonl must fit its schema",
    "open_run(r).append_metrics([{**ROW, 'mse': -math.inf}])": "metrics.jsonl must fit its schema",
    "open_run(r).append_metrics([{**ROW, 'mse': np.nan}])": "metrics.jsonl must fit its schema",
    "open_run(r).append_metrics([{**ROW, 'mse': np.ones(2)}])": "metrics.jsonl must fit its schema",
    "open_run(r).append_metrics([{**ROW, 'mse': '1'}])": "metrics.jsonl must fit its schema",
    "open_run(r).append_metrics([{**ROW, 'mse': True}])": "metrics.jsonl must fit its schema",
    "open_run(r).append_metrics([{**ROW, 'step': -1}])": "metrics.jsonl must fit its schema",
    "open_run(r).append_metrics([{**ROW, 'step': 0.5}])": "metrics.jsonl must fit its schema",
    "open_run(r).append_metrics([{'step': 0, 'seed': 0}])": "metrics.jsonl must fit its schema",
    "open_run(r).append_metrics(5)": "rows must be of type Iterable, but is 5",
    "open_run(r).append_metrics([{**ROW, 'training': chr(0xD800)}])": "metrics.jsonl must fit its schema",
    "open_run(r).add_time('a', -1)": "timing.json must fit its schema",
    "open_run(r).add_time('a', math.nan)": "timing.json must fit its schema",
    "open_run(r).save_claims([{'id': 1}])": "claims.json must fit its schema",
    "open_run(r).save_figure('../a', '', {'svg': b''})": "the name of a figure must be non-empty text without",
    "open_run(r).results[['layer']]": "the name of a stage must be non-empty text without slashes",
    "open_run(r).results.save(300 * 'a', Arrays({}))": "the name of a stage must be non-empty text without slash",
    "resume_run(r, 5)": "study must be of type Study or NoneType, but is 5",
    "new_run(STUDY, 'quick', out=n, command=5)": "command must be of type str, but is 5",
    "open_run(r).append_metrics([5])": "metrics.jsonl must fit its schema",
    "open_run(r).append_metrics([None])": "metrics.jsonl must fit its schema",
    "open_run(r).results.save('a/b', Arrays({}))": "the name of a stage must be non-empty text without slashes",
    "open_run(r).results.save('', Arrays({}))": "the name of a stage must be non-empty text without slashes, of 200",
    "open_run(r).results.save(None, Arrays({}))": "the name of a stage must be non-empty text without slashes",
    "open_run(r).results.save('a', {'b': 1})": "stage must be of type",
    "open_run(r).results.save('a', None)": "stage must be of type",
    "stream(None, 'a')": "seed must be an integer, but is None",
    "stream('0', 'a')": "seed must be an integer, but is '0'",
    "stream(0.5, 'a')": "seed must be an integer, but is 0.5",
    "stream(0, None)": "name must be of type str, but is None",
    "stream(0, 5)": "name must be of type str, but is 5",
    "stream(0, 'a', 0.5)": "step must be an integer, but is 0.5",
    "stream(0, 'a', '1')": "step must be an integer, but is '1'",
}  # fmt: skip


def test_a_wrong_call_ends_in_a_sentence(run, tmp_path, monkeypatch, unchecked):
    monkeypatch.chdir(tmp_path)
    places = {"r": run, "n": tmp_path / "nowhere", "f": tmp_path / "file"}
    places["f"].write_text("a file")
    before = sorted(tmp_path.rglob("*"))

    def check(call):
        with pytest.raises(MesascopeError) as error:
            eval(call, NAMES | places)
        said = one_sentence(str(error.value))
        assert said.startswith(CALLS[call].format(**places)), said
        if call.startswith("Run.create(n, 'benchmark', CONFIG)."):
            shutil.rmtree(places["n"])
        assert sorted(tmp_path.rglob("*")) == before, "left behind"

    check_each(check, CALLS)


# Forms of a path: a string, a path, a relative path, one with odd marks.
@pytest.mark.parametrize("name", ["run", "two words", "[bold]x", "<b>&", "ünï", "a\nb", "-x", "#%?", "'\"", "~"])
@pytest.mark.parametrize("kind", [str, os.fspath, lambda path: path])
def test_any_path_that_the_disk_takes_is_a_run(name, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = kind(tmp_path / name)
    created = Run.create(path, "benchmark", CONFIG)
    assert open_run(path).config == created.config
    assert [found.config for found in find_runs(path)[0]] == [created.config]
    assert [found.config for found in find_runs([tmp_path])[0]] == [created.config]


def test_a_run_is_refused_by_what_only_measuring_tells_and_leaves_nothing(tmp_path, unchecked):
    def measure(lab, settings):
        stream(0.5, "never")

    study = replace(STUDY, measure=measure)
    with pytest.raises(MesascopeError, match="seed must be an integer"):
        run_study(study, Settings(), new_run(study, "quick", out=tmp_path / "run"))
    assert not list(tmp_path.iterdir())
