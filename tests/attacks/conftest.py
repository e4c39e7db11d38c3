"""Attacks: each ends in one sentence, or in the right result. `one_sentence` is what all of them ask of an error.

One run of the tiny study is made a session; an attack takes a copy of it, and damages that.
"""

import shutil
from pathlib import Path

import pytest
from sentences import one_sentence
from tiny_study import STUDY

from mesascope import records
from mesascope.cli import main
from mesascope.studies import new_run, run_study

__all__ = ["one_sentence"]


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """The tiny study stands beside mesascope's own while an attack lasts."""
    records.registered("study")
    monkeypatch.setitem(records._REGISTRY["study"], "tiny", records.Registered(STUDY, {}))


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A finished run that no attack touches."""
    path = tmp_path_factory.mktemp("whole") / "run"
    run_study(STUDY, STUDY.presets["quick"], new_run(STUDY, "quick", out=path))
    return path


@pytest.fixture
def run(whole, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.fixture
def mesascope(capsys):
    """The command line in this process: its exit code, and what it printed to either stream."""

    def call(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call
