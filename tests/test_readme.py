"""The Python examples of README, CONTRIBUTING and docs run as they stand and print what is said they print."""

import contextlib
import io
import json
import math
import re
import tomllib
from pathlib import Path

import pytest
import torch

from mesascope.evidence.numbers import nominal
from mesascope.measurement import Measurement
from mesascope.runs import open_run
from mesascope.studies.language.recall import KINDS, RECALLING

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
WRITTEN = sorted(
    path for path in DOCS.rglob("*.md") if not {"results", "generated"} & {*path.relative_to(DOCS).parts[:-1]}
)
PAGES = {path.name: path.read_text() for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md")}
PAGES |= {str(path.relative_to(DOCS)): path.read_text() for path in WRITTEN}
# A page that says so is one session, of which each example goes on from those before; else each stands alone.
ONE_SESSION = "<!-- one session -->"


def sessions(page):
    """The examples of a page, code and what it prints, by sessions."""
    found = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, flags=re.DOTALL)
    return [found] if found and ONE_SESSION in page else [[example] for example in found]


SESSIONS = [
    pytest.param(examples, id=f"{name}: {examples[0][0].split(chr(10))[-2][:40]}")
    for name, page in PAGES.items()
    for examples in sessions(page)
]


def words(text):
    """Words, and numbers as numbers: their last digits may differ between machines."""
    return [
        float(word) if re.fullmatch(r"-?\d*\.?\d+(e[-+]\d+)?", word) else word
        for word in re.findall(r"[^\s,\[\]()]+", text)
    ]


def test_there_are_examples_and_each_shows_what_it_prints():
    for page in PAGES.values():
        assert sum(map(len, sessions(page))) == page.count("```python")
    assert len(SESSIONS) >= 3


def test_the_readme_is_short():
    assert len(PAGES["README.md"].splitlines()) < 120


def test_the_page_of_others_learners_says_what_the_benchmark_was_answered():
    measured = json.loads((ROOT / "benchmarks" / "results" / "learners.json").read_text())
    page = PAGES["others.md"]
    assert len(measured) == page.count("\n> ")
    for name, one in measured.items():
        assert f"| {name} | {one['is']} | {one['predictions']:,} | {one['seconds']:.0f} |" in page
        assert all(one[part] in page for part in ("like", "exactly", "departs", "description"))


def test_the_readme_counts_the_claims_that_hold_as_the_ledger_does():
    kinds = ("printed sentences", "claims of ours", "controls", "premises")
    counted = [re.search(rf"\d+ of \d+ {kind}", PAGES["README.md"]) for kind in kinds]
    head = (ROOT / "docs" / "ledger.md").read_text().partition("\n|")[0]
    assert all(one and f" {one[0]}" in head for one in counted), counted


@pytest.mark.parametrize("examples", SESSIONS)
def test_an_example_prints_what_its_page_shows(examples, monkeypatch, unchecked):
    monkeypatch.delenv("COLUMNS", raising=False)
    names = {}
    for code, shown in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), names)
        for got, said in zip(words(printed.getvalue()), words(shown), strict=True):
            assert got == (pytest.approx(said, rel=0.02, abs=1e-3) if isinstance(said, float) else said)


def test_the_table_of_extras_is_that_of_the_project():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needed = {extra: [re.split(r"[<>=\[]", one)[0] for one in names] for extra, names in extras.items()}
    rows = re.findall(r"\n\| `(\w+)` \| ([\w, -]+) \|", PAGES["install.md"])
    assert {extra: names.split(", ") for extra, names in rows} == needed


def test_the_yardstick_is_that_of_the_committed_results():
    """Means over seeds, and standard errors of those."""
    run = open_run(ROOT / "docs" / "results" / "language-recall")
    results, seeds = run.results, run.settings.seeds

    def shown(numbers):
        return str(Measurement.of(torch.from_numpy(nominal(numbers))))

    for kind, name in RECALLING.items():
        cells = [shown(results["recall"]["answered", kind])]
        if kind in KINDS:
            cells += [
                shown(results["copying"]["answered", kind]),
                shown(results["languages"]["nats", kind] - math.log(2)),
                shown(results["regression"].ratio(kind, "least-squares")),
            ]
        assert f"| {name} | {' | '.join(cells)} |" in PAGES["language.md"]
    assert f"{seeds} networks" in PAGES["language.md"]
