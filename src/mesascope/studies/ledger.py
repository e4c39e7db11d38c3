"""The ledger: all claims, judged on the arrays of the newest run of each study, preset and settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mesascope.errors import MesascopeError, RunDirectoryError
from mesascope.evidence import Verdicts, controlled
from mesascope.records import registered
from mesascope.runs import Run
from mesascope.runs.results import record_hash
from mesascope.studies.running import changed_settings, judge_run


def ledger_rows(runs: Sequence[Run]) -> tuple[Verdicts, list[str]]:
    """One row for each claim of each study, preset and settings, judged anew; and a sentence for each damaged run.

    Results of `identify` come first, one claim each. Verdicts are corrected for the number of claims: see `controlled`.

    If several finished runs of a study have the same preset and settings, the last of ``runs`` counts. Claims of a
    registered study without finished runs are *not yet run*. If a study cannot be imported, its rows are the claims
    that the run stored when it finished, and the column ``changed`` gives the reason.
    """
    newest: dict[tuple[str, ...], Run] = {}
    for run in runs:
        if run.config["kind"] == "study" and run.is_finished:
            of = [run.config[key] for key in ("study", "preset")]
            newest[*of, record_hash(run.config["settings"]), run.config.get("defined_in", "")] = run
    damaged: list[str] = []

    def of_each(chosen: Iterable[Run], read: Callable[[Run], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        found = []
        for run in chosen:
            try:
                found += read(run)
            except (MesascopeError, OSError) as error:
                damaged.append(str(error))
        return found

    answers = (run for run in runs if run.config["kind"] == "identification" and run.is_finished)
    rows, studies = Verdicts(of_each(answers, _identified)), registered("study")
    for name in dict.fromkeys([*studies, *sorted(of for of, *_ in newest)]):
        rows += of_each((run for (of, *_), run in sorted(newest.items()) if of == name), _rows) or [
            {"study": name, "id": claim.id, "sentence": claim.sentence, "verdict": "not yet run"}
            for claim in (studies[name].claims if name in studies else ())
        ]
    return controlled(rows), damaged


def _rows(run: Run) -> list[dict[str, Any]]:
    """Claims of a run, judged anew, or as stored if its study cannot be imported, with columns about the run."""
    try:
        study = run.study
    except RunDirectoryError as error:
        run.require_unchanged("metrics.jsonl", "claims.json")
        changed = [f"claims are as judged when the run finished: {str(error).rstrip('.')}"]
        records = run.claims
    else:
        run.require_unchanged("metrics.jsonl")
        changed, records = changed_settings(study, run), judge_run(study, run)
    made = {
        "study": run.config["study"],
        "preset": run.config["preset"],
        "changed": changed,
        "deviations": run.config.get("deviations", []),
        "run": str(run.path),
        "command": run.config.get("command", ""),
        "machine": ", then ".join(filter(None, map(run.config.get, ("begun_on", "machine")))),
        "seconds": sum(run.times.values()),
    }
    return [{**made, **record} for record in records]


def _identified(run: Run) -> list[dict[str, Any]]:
    from mesascope.identification.reporting import claims, read

    run.require_unchanged()
    made = {"study": "identify", "preset": "", "changed": [], "deviations": [], "run": str(run.path), "seconds": 0.0}
    made |= {name: run.config.get(name, "") for name in ("command", "machine")}
    return [{**made, **record} for record in claims(read(run))]
