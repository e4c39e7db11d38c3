"""pytest plugin with a fixture that judges claims. It loads other modules only to judge or report claims."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mesascope.evidence import Bound, Source

Records = list[dict[str, Any]]
_JUDGED = pytest.StashKey[Records]()  # claim records of a test
_TOLD = pytest.StashKey[int]()  # number of these that a report of the test contains


class Claims:
    """Claims judged by one test. The test fails if a claim fails, and is undecided if a claim is undecided."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def judge(
        self, id: str, samples: Any, bounds: Bound, *, source: Source, sentence: str = "", quantifier: str = "median",
        measures: str = "", **options: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Judge a claim about samples ``(replicates,)`` or ``(replicates, cases)``, and return its record.

        Args:
            id: name of the claim in messages and reports.
            sentence: the claim in words; ``id`` if empty.
            quantifier: as in `mesascope.evidence.Claim`; ``every`` requires samples with standard errors.
            measures: description of the samples; ``id`` if empty.
            **options: further arguments of `mesascope.evidence.Claim`, such as ``over``, ``at_least``, ``statistic``.
        """
        from mesascope.evidence import Claim, Reading, judge

        __tracebackhide__ = True
        reading = Reading(measures or id, lambda results: results["samples"])
        claim = Claim(id, sentence or id, reading, bounds, source, quantifier=quantifier, **options)  # type: ignore[arg-type]
        (record,) = judge([claim], {"samples": samples})
        self.records.append(record)
        if record["verdict"] == "fails":
            pytest.fail(_sentence(record), pytrace=False)
        return record


@pytest.fixture
def claims(request: pytest.FixtureRequest) -> Claims:
    """Judge claims: ``claims.judge("loss-matches", losses, two_sided(0.01), source=ours("reason"))``."""
    records: Records = []
    request.node.stash[_JUDGED] = records
    return Claims(records)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line options."""
    group = parser.getgroup("mesascope", "claims of mesascope")
    group.addoption(
        "--claims-report", type=Path, metavar="FILE", help="write all judged claims to FILE: .html, .md or .json"
    )
    group.addoption("--claims-strict", action="store_true", help="fail tests with an undecided claim")


def pytest_configure(config: pytest.Config) -> None:
    """Check the command-line options."""
    path = _report(config)
    if path is not None and path.suffix not in (".html", ".md", ".json"):
        raise pytest.UsageError(f"--claims-report must end in .html, .md or .json, but is {path}: rename it.")
    if path is not None and not path.parent.is_dir():
        raise pytest.UsageError(f"--claims-report must be in a folder that exists, but is {path}: make the folder.")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Attach the records of a test to its report.

    A test that passes with an undecided claim is reported as undecided (outcome skipped), or fails with
    ``--claims-strict``.
    """
    report = yield
    told = item.stash.get(_TOLD, 0)
    ended = report.when != "setup" or report.failed
    if ended and (records := item.stash.get(_JUDGED, [])[told:]):  # a fixture may judge claims after the test
        item.stash[_TOLD] = told + len(records)
        report.claims = records  # plain values, which pytest-xdist sends from its workers
        undecided = [_sentence(record) for record in records if record["verdict"] == "undecided"]
        if undecided and report.passed and not hasattr(report, "wasxfail"):
            strict = item.config.getoption("--claims-strict")
            report.outcome = "failed" if strict else "skipped"
            report.undecided = not strict
            report.longrepr = "\n".join(undecided) if strict else (*report.location[:2], "; ".join(undecided))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport) -> Any:
    """Outcome of an undecided test."""
    return ("undecided", "u", ("UNDECIDED", {"yellow": True})) if getattr(report, "undecided", False) else None


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """List undecided tests with their reasons; write the report of claims."""
    if undecided := terminalreporter.getreports("undecided"):
        terminalreporter.section("undecided claims")
        for report in undecided:
            terminalreporter.line(f"{report.nodeid}: {report.longrepr[2]}")
    if (path := _report(config)) is not None:
        reports = [one for all_ in terminalreporter.stats.values() for one in all_ if hasattr(one, "claims")]
        path.write_text(_page(sorted(reports, key=lambda one: one.location[0]), path.suffix), encoding="utf-8")
        terminalreporter.line(f"claims: {path}")


def _report(config: pytest.Config) -> Path | None:
    """Path of the report of claims; relative paths start at the folder in which pytest was started."""
    path = config.getoption("--claims-report")
    return None if path is None else config.invocation_params.dir / path


def _page(reports: list[Any], suffix: str) -> str:
    """Text of the report of claims; in HTML, claims are grouped by test file."""
    from mesascope.evidence import Verdicts

    verdicts = Verdicts({**record, "test": report.nodeid} for report in reports for record in report.claims)
    if suffix == ".html":
        from mesascope.reports import claims_page

        files = dict.fromkeys(report.location[0] for report in reports)
        of = {file: [row for one in reports if one.location[0] == file for row in one.claims] for file in files}
        return claims_page("Claims", of)
    return f"{verdicts.to_json() if suffix == '.json' else verdicts.to_markdown()}\n"


def _sentence(record: dict[str, Any]) -> str:
    """Sentence of a claim, its interval, its bound and the reason for its verdict."""
    from mesascope.evidence.verdicts import measured_text
    from mesascope.text import counted

    said = "is undecided" if record["verdict"] == "undecided" else record["verdict"]
    named = record["id"] if record["sentence"] == record["id"] else f"{record['id']} ({record['sentence']})"
    over = counted(record["n"], record["over"].removesuffix("s"))
    measured = f"{record['quantifier']} of {over} is {measured_text(record)}, " if record["value"] is not None else ""
    bound = f"bound {record['bound']} (set by {record['bound_by']})"
    return f"{named} {said}: {measured}{bound}" + (f": {record['reason']}" if record["reason"] else "")
