"""The ledger: what today's claims say of every run's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mesascope.errors import MesascopeError
from mesascope.evidence.tables import Table
from mesascope.records import registered
from mesascope.runs import Run
from mesascope.runs.results import record_hash
from mesascope.studies.running import changed_settings, judged

__all__ = ["ledger_rows"]


def ledger_rows(runs: Sequence[Run]) -> tuple[Table, list[str]]:
    """One row for each claim of each study, preset and settings, judged anew; and a sentence for each damaged run.

    The answers of `identify` come first, one claim each.

    Of several finished runs of the same preset and settings, the last of ``runs`` counts. A claim of a study that has
    none is *not yet run*.
    """
    newest: dict[tuple[str, str, str], Run] = {}
    for run in runs:
        if run.config["kind"] == "study" and run.is_finished:
            newest[run.config["study"], run.config["preset"], record_hash(run.config["settings"])] = run
    rows, damaged = Table(), []
    for run in runs:
        if run.config["kind"] == "identification" and run.is_finished:
            try:
                rows += _identified(run)
            except (MesascopeError, OSError) as error:
                damaged.append(str(error))
    for name, study in registered("study").items():
        own = [run for (of, _, _), run in sorted(newest.items()) if of == name]
        found: list[dict[str, Any]] = []
        for run in own:
            try:
                found += _judged(study, run)
            except (MesascopeError, OSError) as error:
                damaged.append(str(error))
        rows += found or [
            {"study": name, "id": claim.id, "sentence": claim.sentence, "verdict": "not yet run"}
            for claim in study.claims
        ]
    return rows, damaged


def _judged(study: Any, run: Run) -> list[dict[str, Any]]:
    run.require_unchanged("metrics.jsonl")
    changed = changed_settings(study, run)
    made = {
        "study": study.name,
        "preset": run.config["preset"],
        "changed": changed,
        "deviations": run.config.get("deviations", []),
        "run": str(run.path),
        "command": run.config.get("command", ""),
        "machine": run.config.get("machine", ""),
        "seconds": sum(run.times.values()),
    }
    return [{**made, **record} for record in judged(study, run)]


def _identified(run: Run) -> list[dict[str, Any]]:
    from mesascope.identification.reporting import claims, read

    run.require_unchanged()
    made = {"study": "identify", "preset": "", "changed": [], "deviations": [], "run": str(run.path), "seconds": 0.0}
    made |= {name: run.config.get(name, "") for name in ("command", "machine")}
    return [{**made, **record} for record in claims(read(run))]
