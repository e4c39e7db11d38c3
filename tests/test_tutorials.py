"""Outputs of the tutorials are those of their code."""

import contextlib
import importlib.util
import io
import json
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from test_readme import words

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "notebooks.py")
NOTEBOOKS = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(NOTEBOOKS)


def test_there_are_six():
    assert len(NOTEBOOKS.TUTORIALS) == 6


def test_outputs_are_of_the_code_as_it_is():
    for path in NOTEBOOKS.TUTORIALS:
        notebook = json.loads(path.read_text())
        assert notebook["metadata"]["mesascope"]["executed"] == NOTEBOOKS.hash_of(notebook), "run make docs"


@pytest.mark.parametrize("path", NOTEBOOKS.TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_prints_its_outputs(path, monkeypatch, unchecked):
    """The code runs here, without a kernel; pictures are not compared."""
    monkeypatch.delenv("COLUMNS", raising=False)
    notebook = json.loads(path.read_text())
    printed, names = io.StringIO(), {}
    with contextlib.redirect_stdout(printed), plt.rc_context({"backend": "agg"}):
        for code in NOTEBOOKS.code_of(notebook):
            exec(compile(code, path.name, "exec"), names)
    plt.close("all")
    outputs = [one for cell in notebook["cells"] for one in cell.get("outputs", ())]
    shown = "".join("".join(one["text"]) for one in outputs if one.get("name") == "stdout")
    for got, said in zip(words(printed.getvalue()), words(shown), strict=True):
        assert got == (pytest.approx(said, rel=0.05, abs=1e-2) if isinstance(said, float) else said)
