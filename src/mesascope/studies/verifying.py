"""Verification: finished runs are judged again by today's code, and repeated."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mesascope.errors import ArgumentError, RunDirectoryError, refuse
from mesascope.evidence import Stage, Verdicts
from mesascope.evidence.tables import Table, Tabular
from mesascope.evidence.verdicts import measured_text
from mesascope.reports import counts_text
from mesascope.runs import Run, find_runs
from mesascope.runs.provenance import PACKAGES, installed
from mesascope.studies.running import judge_run, new_run, resume_run, run_study
from mesascope.studies.sources import changed_since
from mesascope.study import Study
from mesascope.text import counted

# Largest relative difference of a value, judged again, that is no change: the order of a sum may differ.
_ROUNDING = 1e-9
# Number of files or stages that a reason names.
_NAMED = 3

_Record = Mapping[str, Any]
# The compared parts of a claim, as text.
_TEXTS: dict[str, Callable[[_Record], str]] = {
    "bound": lambda claim: claim["bound"] + (" (paper)" if claim["bound_by"] == "paper" else ""),
    "rule": lambda claim: (
        f"{claim['quantifier']}, at least {claim['at_least']} {claim['over']}, "
        f"premises: {', '.join(claim['premises']) or 'none'}"
    ),
    "replicates": lambda claim: str(claim["n"]),
    "value": measured_text,
    "verdict": lambda claim: ": ".join(filter(None, (claim["verdict"], claim["reason"]))),
}


@dataclass(frozen=True, repr=False)
class Verification(Tabular):
    """Verified runs, and what changed; true if nothing did.

    Args:
        runs: one row for each run.
        changes: one row for each change, with its likely reason.
        verdicts: all claims, as judged today on the arrays of the runs.
        left_out: a sentence for each run that is unfinished or not of a study.
    """

    runs: Table
    changes: Table
    verdicts: Verdicts
    left_out: list[str]

    def table(self) -> Table:
        """The changes."""
        return self.changes

    def __bool__(self) -> bool:
        return not self.changes

    def __repr__(self) -> str:
        return self._text(repr)

    def to_markdown(self) -> str:
        """Both tables in Markdown."""
        return self._text(Table.to_markdown)

    def to_json(self) -> str:
        """All fields as JSON."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def _text(self, drawn: Callable[[Table], str]) -> str:
        found = counted(len(self.changes), "change") if self.changes else "nothing changed"
        total = f"{counted(len(self.runs), 'run')}, {counted(len(self.verdicts), 'claim')}: {found}"
        return "\n\n".join([*(drawn(table) for table in (self.runs, self.changes) if table), total])


def verify(
    folders: str | Path | Sequence[str | Path],
    *,
    since: str | None = None,
    rerun: bool = False,
    out: str | Path | None = None,
    device: str | None = None,
) -> Verification:
    """Judge finished runs of studies again, from their arrays, and compare with the claims that they stored.

    Args:
        folders: runs, or folders of runs.
        since: a commit; only runs of studies whose code has changed since then are verified.
        rerun: also repeat each run from its config.json. On the same processor and device and with the same packages,
            all numbers must be byte-identical; elsewhere, verdicts must be equal, and values within their intervals.
        out: folder for the repetitions; those that it contains are continued. If None, a temporary folder, of which
            only those that differ are kept.
        device: device of the repetitions; the run's own if None.
    """
    found, damaged = find_runs(folders)
    runs, changes, verdicts, left_out = Table(), Table(), Verdicts(), []
    changes += [{"run": one.partition(" must ")[0], **_damaged(one)} for one in damaged]
    for run in found:
        if run.config["kind"] != "study":
            left_out.append(f"{run.path} must be of a study, but is of kind {run.config['kind']}: see its folder.")
            continue
        if not run.is_finished:
            left_out.append(f"{run.path} must be finished, but is not: continue it with --resume.")
            continue
        rows, records, numbers = [], Verdicts(), "-"
        try:
            study = run.study
            if since is not None and not changed_since(study, since):
                continue
            run.check()
            records = judge_run(study, run)
            rows += _judged(study, run, records)
            if rerun:
                more, numbers = _repeated(study, run, records, None if out is None else Path(out), device)
                rows += more
        except (RunDirectoryError, OSError) as error:
            rows.append(_damaged(error))
        made = {"run": str(run.path), "study": run.config["study"], "preset": run.config["preset"]}
        again = {"run again": numbers} if rerun else {}
        runs.append({**made, "claims": counts_text(records) or "-", "changes": len(rows), **again})
        changes += ({"run": str(run.path), **row} for row in rows)
        verdicts += ({**made, **record} for record in records)
    return Verification(runs, changes, verdicts, left_out)


def _change(claim: str, what: str, then: str, now: str, reason: object) -> dict[str, str]:
    return {"claim": claim, "what": what, "then": then, "now": now, "likely reason": str(reason)}


def _damaged(sentence: object) -> dict[str, str]:
    return _change("", "run", "finished", "damaged", sentence)


def _judged(study: Study, run: Run, records: Verdicts) -> list[dict[str, str]]:
    """Edited files of a run, and differences between the claims that it stored and those judged today."""
    rows = []
    for name in ("claims.json", "results/index.json"):
        try:
            run.require_unchanged(name)
        except RunDirectoryError as error:
            rows.append(_change("", name, "as the run left it", "edited", error))
    edited = " and ".join(row["what"] for row in rows)
    found = _differences(run.claims, records, lambda then, now: _close(then, now, _ROUNDING))
    versions = {"versions": {name: installed(name) for name in ("numpy", "scipy")}}
    code = "; ".join([*_code(study, run), *_made_otherwise(run.config, versions)]) if found else ""
    premises = {record["id"]: record["premises"] for record in records}
    for claim, what, then, now in found:
        causes = [f"its {part}" for one, part, *_ in found if one == claim and part not in (what, "verdict")]
        causes += [f"its premise {one}" for one, part, *_ in found if one in premises[claim] and part == "verdict"]
        reason = code or "unknown"
        if edited:
            reason = f"{edited} was edited after the run finished"
        elif what in ("claim", "bound", "rule"):
            reason = "the study states another now"
        elif what == "verdict" and causes:
            reason = f"{' and '.join(causes)} changed"
        rows.append(_change(claim, what, then, now, reason))
    return rows


def _differences(
    then: Verdicts, now: Verdicts, same: Callable[[_Record, _Record], bool]
) -> list[tuple[str, str, str, str]]:
    """Claim, changed part and both its texts; ``same`` compares the values of two records."""
    before, after, found = {one["id"]: one for one in then}, {one["id"]: one for one in now}, []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            found.append((name, "claim", *("-" if one is None else _TEXTS["verdict"](one) for one in (old, new))))
            continue
        differs = {"value": not same(old, new), "verdict": old["verdict"] != new["verdict"]}
        for part, text in _TEXTS.items():
            one, other = text(old), text(new)
            if differs.get(part, one != other):
                equal = one == other  # to the digits of a table
                found.append((name, part, *((repr(old[part]), repr(new[part])) if equal else (one, other))))
    return found


def _close(then: _Record, now: _Record, tolerance: float) -> bool:
    """True if value and interval agree to a relative tolerance."""
    pairs = [(then[key], now[key]) for key in ("value", "low", "high")]
    return all(a == b or None not in (a, b) and math.isclose(a, b, rel_tol=tolerance) for a, b in pairs)


def _within(then: _Record, now: _Record) -> bool:
    """True if one value is within the other's interval; of numbers without interval, the verdict alone is compared."""
    if None in (then["value"], now["value"]):
        return then["value"] is now["value"]
    for one, other in ((then, now), (now, then)):
        low, high = (-math.inf if one["low"] is None else one["low"]), (math.inf if one["high"] is None else one["high"])
        if low <= other["value"] <= high or low == high:
            return True
    return False


def _code(study: Study, run: Run) -> list[str]:
    """Reason in the code, if today's code hash is not that of every stage: the study's files that differ."""
    if all(run.results.is_current(name) for name in run.results):
        return []
    commit = run.config.get("git")
    try:
        files = changed_since(study, commit) if commit else []
    except ArgumentError:
        files = []
    if not commit or not files:
        return ["the code hash of its stages is another"]
    names = sorted((name.rpartition("mesascope/")[2] for name in files), key=lambda name: "studies/" not in name)
    more = f" and {counted(len(names) - _NAMED, 'other file')}" if len(names) > _NAMED else ""
    return [f"code since {commit[:8]}: {', '.join(names[:_NAMED])}{more}"]


def _made_otherwise(then: _Record, now: _Record, unknown: bool = False) -> list[str]:
    """Differences in device, machine, processor and versions of packages; ``unknown`` adds what was not recorded."""
    before, after = ({**one, **one.get("versions", {})} for one in (then, now))
    names = [name for name in ("device", "machine", "processor", *PACKAGES) if name in after]
    lost = [name for name in names if name not in before]
    found = [f"{name} {before[name]}, now {after[name]}" for name in names if before.get(name, after[name]) != after[name]]
    return [*found, *([f"not recorded then: {', '.join(lost)}"] if lost and unknown else [])]


def _repeated(
    study: Study, run: Run, records: Verdicts, out: Path | None, device: str | None
) -> tuple[list[dict[str, str]], str]:
    """Changes in a repetition of a run, and how its numbers compare, in words."""
    folder = (out or Path(tempfile.mkdtemp(prefix="mesascope-verify-"))) / run.path.resolve().name
    print(f"running again: {run.path} in {folder}", file=sys.stderr, flush=True)
    again = _run_again(study, run, folder, device or run.config["device"])
    elsewhere = _made_otherwise(run.config, again.config, unknown=True)
    reason = "; ".join([*_code(study, run), *elsewhere]) or "draws or sums that do not follow from the seed"
    found = _differences(records, judge_run(study, again), _within if elsewhere else lambda a, b: _close(a, b, 0.0))
    rows = [_change(claim, f"{part}, run again", then, now, reason) for claim, part, then, now in found]
    numbers, most = _numbers(run, again)
    if math.isinf(most) or (most >= 0 and not elsewhere):
        rows.append(_change("", "numbers, run again", "", numbers, reason))
    if rows or out is not None:
        return rows, f"{numbers}; in {folder}"
    shutil.rmtree(folder.parent)
    return rows, numbers


def _run_again(study: Study, run: Run, folder: Path, device: str) -> Run:
    """Finished repetition of a run, on as many threads; continued if the folder contains it."""
    import torch

    then, threads = run.config, torch.get_num_threads()
    if asked := re.search(r"threads: (\d+)$", then.get("machine", "")):
        torch.set_num_threads(int(asked[1]))
    try:
        if (folder / "config.json").exists():
            _, settings, again = resume_run(folder, study)
            if any(again.config[key] != then[key] for key in ("study", "preset", "settings", "seed")):
                refuse("out", f"have no other run in the place of {run.path}", str(folder), "choose another folder")
        else:
            settings = run.settings_of(study)
            again = new_run(study, then["preset"], settings, seed=then["seed"], device=device, out=folder)
        run_study(study, settings, again)
    finally:
        torch.set_num_threads(threads)
    return again


def _numbers(run: Run, again: Run) -> tuple[str, float]:
    """Comparison of all stages and curves of two runs in words, and the largest difference; -1 if byte-identical."""
    then, now = (
        {**one.results, **{f"curves of {name}": one.curves(name) for name in {row["training"] for row in one.metrics()}}}
        for one in (run, again)
    )
    apart = {name: _apart(then.get(name), now.get(name)) for name in dict.fromkeys([*then, *now])}
    differ = sorted((name for name in apart if apart[name] >= 0), key=lambda name: -apart[name])
    if not differ:
        return f"all {counted(len(apart), 'stage')} byte-identical", -1.0
    named = [f"{name} {'of other shape or type' if math.isinf(apart[name]) else f'{apart[name]:.1g}'}" for name in differ]
    listed = f"{', '.join(named[:_NAMED])}{', ...' if len(named) > _NAMED else ''}"
    return f"{len(differ)} of {counted(len(apart), 'stage')} differ, relative to their size: {listed}", apart[differ[0]]


def _apart(then: Stage | None, now: Stage | None) -> float:
    """Largest difference of two stages, relative to the largest number of its array; -1 if byte-identical."""
    one, other = ({} if stage is None else stage.to_arrays() for stage in (then, now))
    most = -1.0
    for name in one.keys() | other.keys():
        a, b = one.get(name), other.get(name)
        if a is None or b is None or (a.shape, a.dtype) != (b.shape, b.dtype):
            return math.inf
        if a.tobytes() != b.tobytes():
            if a.dtype.kind not in "biuf" or not np.array_equal(np.isfinite(a), np.isfinite(b)):
                return math.inf
            a, b = (np.nan_to_num(each.astype(float)) for each in (a, b))
            most = max(most, float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-300)))
    return most
