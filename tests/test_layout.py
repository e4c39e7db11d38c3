"""Allowed imports, packages that importing mesascope must not load, and first words of docstrings."""

import ast
import functools
import itertools
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import mesascope

SOURCE = Path(mesascope.__file__).parent

# From the ground up: each may import itself and whatever stands before it, but for those named in APART.
ORDER = [
    "errors",
    "validate",
    "modes",
    "files",
    "loading",
    "records",
    "text",
    "progress",
    "evidence",
    "shapes",
    "streams",
    "modules",
    "tensors",
    "measurement",
    "ops",
    "data",
    "tasks",
    "learners",
    "nets",
    "constructions",
    "adapters",
    "training",
    "meta",
    "runs",
    "language",
    "reports",
    "lenses",
    "identification",
    "study",
    "studies",
    "sweeps",
    "testing",
    "explore",
    "cli",
    "__main__",
]
# Modules that import torch, and that code for reading runs must not import.
TORCH = {
    "streams",
    "modules",
    "tensors",
    "measurement",
    "ops",
    "data",
    "tasks",
    "learners",
    "nets",
    "constructions",
    "adapters",
    "training",
    "meta",
    "language",
    "lenses",
    "identification",
}
APART = {
    "evidence": {"records"},
    "ops": {"tasks", "measurement", "evidence"},
    "data": {"ops", "measurement", "evidence"},
    "runs": TORCH - {"training", "modules"},
    "reports": {"shapes", *TORCH},
}
MOST_LINES = 400


@functools.cache
def nodes(file):
    """All nodes of a module's syntax tree, which take seconds to walk for all modules."""
    return [*ast.walk(ast.parse(file.read_text()))]


def test_imports_point_towards_the_ground():
    for file in SOURCE.rglob("*.py"):
        part = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        allowed = set(ORDER[: ORDER.index(part) + 1]) - APART.get(part, set())
        typing = {id(node) for branch in nodes(file) if isinstance(branch, ast.If) and "TYPE_CHECKING" in
                  ast.unparse(branch.test) for node in ast.walk(branch)}  # fmt: skip
        for node in nodes(file):
            if id(node) in typing:
                continue
            modules = []
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mesascope."):
                modules = [node.module]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names if alias.name.startswith("mesascope.")]
            for module in modules:
                assert module.split(".")[1] in allowed, f"{file.relative_to(SOURCE)} must not import {module}"


def test_modules_stay_short():
    for file in SOURCE.rglob("*.py"):
        assert file.read_text().count("\n") <= MOST_LINES, f"{file.relative_to(SOURCE)} is too long"


def loaded_by(statement):
    code = f"import sys; {statement}; print(' '.join(sorted({{m.split('.')[0] for m in sys.modules}})))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_reading_a_run_loads_no_torch():
    assert "torch" not in loaded_by("import mesascope, mesascope.reports, mesascope.runs")


def test_importing_everything_loads_no_optional_package():
    optional = {
        "hypothesis",
        "pytest",
        "beartype",
        "tokenizers",
        "pyarrow",
        "transformers",
        "openai",
        "pandas",
        "nnsight",
        "bokeh",
        "dask",
        "distributed",
    }
    assert not loaded_by("import mesascope.cli, mesascope.studies, mesascope.testing") & optional


def test_every_public_name_is_there():
    names = set(dir(mesascope))
    assert {"compare", "train", "tune", "LinearRegression"} <= names
    for name in names:
        assert getattr(mesascope, name) is not None


def test_help_tells_of_every_public_name_in_a_few_screens():
    """And not of all that classes inherit from torch."""
    text = pydoc.plain(pydoc.render_doc(mesascope))
    assert len(text.splitlines()) < 80
    words = set(re.findall(r"\w+", text))
    assert {name for name in dir(mesascope) if not name.startswith("_")} <= words


def test_no_public_name_is_a_module_beside_it():
    """Such a name would mean the function or the module, depending on what was imported before."""
    for stub in SOURCE.rglob("__init__.pyi"):
        modules = {path.stem for path in stub.parent.glob("*.py")} | {path.name for path in stub.parent.iterdir()}
        names = {
            alias.name
            for node in ast.parse(stub.read_text()).body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        assert not names & modules, stub


def test_the_page_of_the_architecture_is_that_of_the_code():
    path = SOURCE.parents[1] / "docs" / "architecture.py"
    found = {"__name__": "architecture", "__file__": str(path)}
    exec(compile(path.read_text(), path, "exec"), found)
    assert path.with_suffix(".md").read_text() == found["page"]()
    drawn = re.findall(r"<!-- (\w+) -->", path.with_suffix(".svg").read_text())
    assert {*drawn} == found["graph"]().keys()


def test_docstrings_and_help_texts_begin_with_a_noun_or_an_imperative():
    """A clause may not stand for a noun, except in the question of a study. The same holds for comments."""
    clauses = {"What", "Whether", "How", "Of", "By", "Where", "Which", "Those", "As", "That", "Who"}
    begins, root = re.compile(r'^ *r?"""(.+)|^    \w+: .+  # (.+)|^ *# (.+)', re.MULTILINE), SOURCE.parents[1]
    for file in itertools.chain(*((root / folder).rglob("*.py") for folder in ("src", "tests", "benchmarks", "docs"))):
        for line in map("".join, begins.findall(file.read_text())):
            first = line.split()[0].strip(',:"')
            assert first not in clauses or line.rstrip('"').endswith("?"), f"{file.relative_to(root)}: {line}"
