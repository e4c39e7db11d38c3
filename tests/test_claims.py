"""Claims without a study: judged from named numbers, in a test of one's own, and as a document for programs."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import children
import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from mesascope.errors import ArgumentError, ArgumentTypeError
from mesascope.evidence import Claim, Verdicts, below, column, judge, ours, printed, two_sided
from mesascope.evidence.schema import JudgedClaims, claims_schema

ROOT = Path(__file__).parent.parent
LOSSES = {"ours": np.linspace(0.9, 1.0, 8), "baseline": np.linspace(1.9, 2.0, 8)}
HALF = Claim(
    "half", "Ours loses | half as much", column("ours") / column("baseline"), below(0.6), ours("a test"),
    quantifier="median",
)  # fmt: skip
EQUAL = Claim("equal", "They are equal", HALF.reading, two_sided(0.01), ours("a test"), quantifier="median")
OPEN = Claim("open", "Ours is below 0.95", column("ours"), below(0.95), ours("a test"), quantifier="median")
CLAIMS = [HALF, EQUAL, OPEN]


class Frame:
    """The used part of a data frame's interface."""

    columns = tuple(LOSSES)

    def __getitem__(self, name):
        return LOSSES[name]


def structured():
    table = np.empty(8, [(name, float) for name in LOSSES])
    for name, values in LOSSES.items():
        table[name] = values
    return table


def test_claims_and_margins_are_checked(unchecked):
    with pytest.raises(ArgumentTypeError, match="each of claims must be of type Claim, but is 'x'"):
        judge({"x": 1}, LOSSES)
    with pytest.raises(ArgumentError, match=r"margin must be greater than 0, but is -0\.1"):
        two_sided(-0.1)


@pytest.mark.parametrize("make", [lambda: LOSSES, Frame, structured], ids=["mapping", "frame", "structured array"])
def test_claims_are_judged_from_named_numbers_with_replicates_as_rows(make):
    found = judge(CLAIMS, make())
    assert found["verdict"] == ["holds", "fails", "undecided"]
    assert found["measures"] == ["ours / baseline", "ours / baseline", "ours"]
    assert found[0]["value"] == pytest.approx(np.median(LOSSES["ours"] / LOSSES["baseline"]))
    assert found[2]["reason"].endswith("seeds would decide it") or "hardly decide" in found[2]["reason"]


def test_claims_are_judged_from_a_data_frame_of_pandas(tmp_path):
    pandas = pytest.importorskip("pandas")
    found = judge(CLAIMS, pandas.DataFrame(LOSSES, index=range(100, 108)))
    assert found == judge(CLAIMS, LOSSES)


def test_a_column_that_is_not_there_leaves_its_claim_undecided():
    (found,) = judge([Claim("c", "s", column("our"), below(1.0), ours("a test"), quantifier="median")], LOSSES)
    assert found["reason"] == "the column must be one of 'baseline', 'ours', but is 'our': did you mean 'ours'?"


@pytest.mark.parametrize("results", [None, 1.0, [1.0, 2.0], np.ones(3)])
def test_numbers_without_names_are_refused(results):
    with pytest.raises(
        ArgumentTypeError, match=r"results must be a mapping .*, but is .*: pass {\"loss\": losses}, sa"
    ):
        judge(CLAIMS, results)


def test_claims_with_a_bound_for_each_preset_need_the_preset():
    claim = Claim("c", "s", column("ours"), {"paper": below(2.0)}, ours("a test"), quantifier="median")
    assert judge([claim], LOSSES, "paper")[0]["verdict"] == "holds"
    with pytest.raises(ArgumentError, match="a preset with a bound of c must be one of 'paper', but is ''"):
        judge([claim], LOSSES)


def test_evidence_needs_no_torch_and_no_pandas():
    code = (
        "import sys, numpy; from mesascope.evidence import Claim, below, column, judge, ours; "
        "claim = Claim('c', 's', column('x'), below(2.0), ours('a test'), quantifier='median'); "
        "found = judge([claim], {'x': numpy.linspace(0, 1, 8)}); "
        "found.to_json(), found.to_markdown(), found.to_html(); "
        "print(found[0]['verdict'], sorted({'torch', 'pandas', 'matplotlib', 'pytest'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "holds []\n"


def test_verdicts_print_in_a_terminal_in_markdown_and_in_html():
    found = judge(CLAIMS, LOSSES)
    assert repr(found) == repr(found.table())
    assert found.table()["verdict"][0] == "holds"
    lines = found.to_markdown().splitlines()
    assert lines[0] == "| claim | sentence | measured, with confidence intervals | bound | verdict |"
    assert lines[2].startswith(r"| half | Ours loses \| half as much | 0.487")
    assert len(lines) == 2 + len(CLAIMS)
    assert found.to_html() == found._repr_html_()
    assert Verdicts(list(found) * 50).to_html().count("<tr>") == 151, "files have all rows"


# The schema


def test_the_shipped_schema_is_that_of_the_records():
    shipped = json.loads((ROOT / "src/mesascope/evidence/claims.schema.json").read_text())
    assert shipped == claims_schema(), "write json.dumps(claims_schema(), indent=2) to claims.schema.json"
    fields = shipped["$defs"]["JudgedClaim"]["properties"]
    assert all("description" in field for field in fields.values())
    table = (ROOT / "docs" / "claims.md").read_text().partition("| field | content |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"`(\w+)`", re.sub(r"\|[^|]*\|$", "", table, flags=re.MULTILINE))) == sorted(fields)


@given(
    values=st.lists(st.floats(-1e300, 1e300) | st.just(float("nan")), max_size=12),
    bound=st.sampled_from([below(0.0), two_sided(1.0)]),
    quantifier=st.sampled_from(["every", "median", "share"]),
)
def test_any_judged_claim_is_a_document_of_the_schema(values, bound, quantifier):
    claim = Claim("c", "s", column("x"), bound, ours("a test"), quantifier=quantifier)
    text = judge([claim], {"x": np.array(values)}).to_json()
    (record,) = msgspec.json.decode(text, type=JudgedClaims, strict=True)["claims"]
    assert {*record} == {*claims_schema()["$defs"]["JudgedClaim"]["required"], "p", "former", "unlike"}


def test_a_printed_sentence_that_fails_with_other_settings_than_its_source_is_no_refutation():
    losses = {"loss": np.linspace(1.0, 1.5, 8)}

    def judged(bound, source, preset, unlike="50,000 steps"):
        claim = Claim("small", "The loss is small", column("loss"), bound, source, quantifier="median")
        return judge([claim.completed(unlike=unlike)], losses, preset)[0]

    said = "not as its source ran it (with 50,000 steps)"
    assert judged(below(0.5), printed("Fig. 1"), "paper")["reason"].startswith(said)
    assert judged(below(0.5), printed("Fig. 1"), "quick", {"quick": "50,000 steps"})["reason"].startswith(said)
    for record in (
        judged(below(2.0), printed("Fig. 1"), "paper"), judged(below(1.2), printed("Fig. 1"), "paper"),
        judged(below(0.5), ours("a test"), "paper"),
        judged(below(0.5), printed("Fig. 1"), "paper", {"quick": "50,000 steps"}),
    ):  # fmt: skip
        assert "source ran" not in record["reason"]


# The pytest plugin

SUITE = """
import numpy as np
from mesascope.evidence import below, ours, two_sided

SEEDS = np.linspace(0.97, 1.03, 10)


def test_holds(claims):
    assert claims.judge("near", SEEDS, two_sided(0.05), source=ours("a test"))["verdict"] == "holds"


def test_fails(claims):
    claims.judge("low", SEEDS, below(0.5), source=ours("a test"), sentence="The loss is low")


def test_undecided(claims):
    claims.judge("across", SEEDS, below(1.01), source=ours("a test"))
    claims.judge("few", SEEDS[:5], below(1.01), source=ours("a test"))


def test_fails_after_undecided(claims):
    claims.judge("across", SEEDS, below(1.01), source=ours("a test"))
    claims.judge("low", SEEDS, below(0.5), source=ours("a test"))


def test_without():
    pass
"""


@pytest.fixture
def run_pytest(tmp_path, monkeypatch):
    """pytest in an empty project, where the plugin is installed by the entry point of pyproject.toml."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    installed = tmp_path / "installed" / "as_installed-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: as-installed\nVersion: 1\n")
    lines = "\n".join(f"{name} = {module}" for name, module in points.items())
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{lines}\n")
    project = tmp_path / "project"
    project.mkdir()
    (project / "test_own.py").write_text(SUITE)

    script = tmp_path / "run.py"
    path = [str(installed.parent), str(ROOT / "src")]
    script.write_text(
        f"import sys; sys.path[:0] = {path}; import pytest; code = pytest.main(sys.argv[1:]); "
        "print('torch' in sys.modules); sys.exit(code)"
    )

    def run(*arguments, alone=False, **environment):
        """Run pytest; with ``alone``, in a new process, for tests to which packages imported before matter."""
        monkeypatch.chdir(project)
        line = [script, "-W", "error", *arguments]
        if alone:
            done = subprocess.run(
                [sys.executable, *map(str, line)], capture_output=True, text=True, env={**os.environ, **environment}
            )
        else:
            imported = ["-W", "ignore:Module already imported"]  # before pytest, as in no process of a user
            done = children.run(*line, *imported, env=environment)
        return done.returncode, done.stdout + done.stderr

    run.project = project
    return run


def test_a_test_holds_fails_or_is_undecided(run_pytest):
    code, printed = run_pytest("--claims-report", "claims.html", "--junitxml", "junit.xml", "-rA", alone=True)
    assert code == 1
    assert "2 failed, 2 passed, 1 undecided" in printed
    assert "test_own.py .FuF." in printed
    assert "low (The loss is low) fails: median of 10 seeds is 1.000 [0.970, 1.030], bound < 0.5 (set by us)" in printed
    reason = printed.partition("undecided claims")[2]
    assert "test_own.py::test_undecided: across is undecided: median of 10 seeds is 1.000 [0.970, 1.030], " in reason
    assert "seeds would decide it; few is undecided: bound < 1.01 (set by us): it needs 8 seeds, and has 5" in reason
    assert printed.endswith("False\n"), "no torch"
    page = (run_pytest.project / "claims.html").read_text()
    assert page.startswith("<!doctype html>")
    assert (page.count("<svg"), page.count("The loss is low")) == (5, 2)
    assert 'skipped="1"' in (run_pytest.project / "junit.xml").read_text()


def test_reports_are_documents_of_the_schema_with_workers_too(run_pytest):
    code, printed = run_pytest("-n", "1", "--claims-report", "claims.json", "-k", "not fails")
    assert (code, "2 passed, 1 undecided" in printed) == (0, True)
    found = msgspec.json.decode((run_pytest.project / "claims.json").read_bytes(), type=JudgedClaims)["claims"]
    assert sorted(record["id"] for record in found) == ["across", "few", "near"]
    assert {record["test"] for record in found} == {"test_own.py::test_holds", "test_own.py::test_undecided"}


def test_claims_judged_by_a_fixture_of_a_test_are_reported(run_pytest):
    body = """
import pytest


@pytest.fixture
def trained(claims):
    claims.judge("across", SEEDS, below(1.01), source=ours("a test"))


@pytest.fixture
def broken(claims):
    claims.judge("low", SEEDS, below(0.5), source=ours("a test"))


def test_open(trained):
    pass


def test_broken(broken):
    pass


@pytest.mark.xfail(strict=True)
def test_known(claims):
    claims.judge("known", SEEDS, below(0.5), source=ours("a test"))


def test_swapped(claims):
    claims.judge(SEEDS, "swapped", below(0.5), source=ours("a test"))
"""
    (run_pytest.project / "test_own.py").write_text(SUITE.partition("def test_holds")[0] + body)
    code, printed = run_pytest("--claims-report", "claims.json")
    assert (code, "1 failed, 1 xfailed, 1 error, 1 undecided" in printed) == (1, True), printed
    assert "ArgumentTypeError: id must be of type str, but is " in printed
    found = json.loads((run_pytest.project / "claims.json").read_text())["claims"]
    assert sorted(record["id"] for record in found) == ["across", "known", "low"]


def test_undecided_tests_fail_where_asked(run_pytest):
    code, printed = run_pytest("--claims-strict", "--claims-report", "claims.md", "-k", "undecided or holds")
    assert (code, "2 failed, 1 passed" in printed) == (1, True)
    assert (run_pytest.project / "claims.md").read_text().count("\n") == 2 + 5


def test_the_page_shows_what_pytest_prints(run_pytest):
    page = (ROOT / "docs" / "claims-in-tests.md").read_text()
    ((suite, shown),) = re.findall(r"```py\n(.*?)```\n\n```text\n(.*?)```", page, flags=re.DOTALL)
    (run_pytest.project / "test_own.py").unlink()
    (run_pytest.project / "test_paper.py").write_text(suite)
    printed = run_pytest("-q", COLUMNS="80", CI="")[1]
    for line in shown.splitlines():
        assert f"\n{line}" in f"\n{printed}", printed


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("claims.pdf", "--claims-report must end in .html, .md or .json, but is"),
        ("no/claims.html", "--claims-report must be in a folder that exists, but is"),
    ],
)
def test_reports_that_cannot_be_written_are_refused_before_any_test(name, message, run_pytest):
    code, printed = run_pytest("--claims-report", name)
    assert (code, message in printed, "passed" in printed) == (4, True, False)


def test_the_plugin_imports_nothing_before_it_judges(run_pytest):
    (run_pytest.project / "test_own.py").write_text(
        "import sys\n\n\ndef test_imports():\n"
        "    own = {name for name in sys.modules if name.startswith('mesascope')}\n"
        "    assert own == {'mesascope', 'mesascope.testing', 'mesascope.testing.plugin'}\n"
        "    assert not {'numpy', 'scipy', 'torch', 'msgspec'} & {*sys.modules}\n"
    )
    code, printed = run_pytest("-p", "mesascope", alone=True, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert code == 0, printed
