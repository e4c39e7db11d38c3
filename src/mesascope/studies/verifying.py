"""Verification: finished runs are judged again by today's code, and repeated."""

from __future__ import annotations

import math
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mesascope.errors import ArgumentError, MesascopeError, RunDirectoryError
from mesascope.evidence import Stage, Verdicts
from mesascope.evidence.tables import Table, Tabular
from mesascope.evidence.verdicts import measured_text
from mesascope.progress import tell
from mesascope.reports import counts_text
from mesascope.runs import Run, find_runs
from mesascope.runs.provenance import available_device, installed
from mesascope.studies.running import close, differences, judge_run, new_run, run_study
from mesascope.studies.sources import changed_since
from mesascope.study import Study
from mesascope.text import counted

# Largest relative difference that is not reported as a change: the order of a sum may differ.
_ROUNDING = 1e-9
_INTERVAL = ("value", "low", "high")
# Maximum number of files or stages that a reason names.
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
    """Verified runs and the changes found; true if nothing changed.

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

    def _text(self, drawn: Callable[[Table], str]) -> str:
        found = counted(len(self.changes), "change") if self.changes else "nothing changed"
        total = f"{counted(len(self.runs), 'run')}, {counted(len(self.verdicts), 'claim')}: {found}"
        return "\n\n".join([*(drawn(table) for table in (self.runs, self.changes) if table), total])


def verify(
    folders: str | Path | Sequence[str | Path],
    *,
    since: str | None = None,
    rerun: bool = False,
    device: str | None = None,
) -> Verification:
    """Judge finished runs of studies again, from their arrays, and compare with the claims that they stored.

    Args:
        folders: runs, or folders of runs.
        since: a commit; only runs of studies whose code has changed since then are verified.
        rerun: also repeat each run from its config.json, in a temporary folder, which is kept if there are changes. On
            the same processor and device and with the same packages, all numbers must be byte-identical; elsewhere,
            verdicts must be equal, and values within their intervals.
        device: device of the repetitions; the run's own if None.

    Raises:
        ArgumentError: ``folders`` is empty, torch does not find ``device``, or git does not know ``since`` or the code
            of a study.
    """
    if device is not None:
        available_device(device)
    found, damaged = find_runs(folders)
    if not (found or damaged):
        raise ArgumentError("folders must name at least one folder of runs, but is empty: pass 'runs', for example.")
    runs, changes, verdicts, left_out = Table(), Table(), Verdicts(), []
    changes += [{"run": one.partition(" must ")[0], **_damaged(one)} for one in damaged]
    for run in found:
        if run.config["kind"] != "study" or not run.is_finished:
            state = "not finished" if run.config["kind"] == "study" else f"of kind {run.config['kind']}"
            left_out.append(f"{run.path} must be a finished run of a study, but is {state}: leave it out.")
            continue
        rows, records, numbers = [], Verdicts(), "-"
        try:
            study = run.study
            if since is not None and not changed_since(study, since):
                continue
            run.check()
            records = judge_run(study, run)
            rows += _judged(study, run, records)
            if not rows:
                list(run.results.values())  # read the stages that no claim reads, too
            if rerun:
                more, numbers = _repeated(study, run, records, device)
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
    return _change("", "run", "", "damaged", sentence)


def _judged(study: Study, run: Run, records: Verdicts) -> list[dict[str, str]]:
    """Edited files of a run, and differences between the claims that it stored and those judged today."""
    rows = []
    for name in ("claims.json", "results/index.json"):
        try:
            run.require_unchanged(name)
        except RunDirectoryError as error:
            rows.append(_change("", name, "as the run left it", "edited", error))
    edited = " and ".join(row["what"] for row in rows)
    found = _differences(run.claims, records, partial(close, keys=_INTERVAL, tolerance=_ROUNDING))
    versions = {name: installed(name) for name in ("numpy", "scipy")}
    code = "; ".join([*_code(study, run), *_made_otherwise(run.config, {"versions": versions})]) if found else ""
    premises = {record["id"]: record["premises"] for record in records}
    for claim, what, then, now in found:
        causes = [f"its {part}" for one, part, *_ in found if one == claim and part not in (what, "verdict")]
        causes += [
            f"its premise {one}" for one, part, *_ in found if one in premises.get(claim, ()) and part == "verdict"
        ]
        reason = code or "unknown"
        if edited:
            reason = f"{edited} was edited after the run finished"
        elif what in ("claim", "bound", "rule"):
            reason = f"the study states another {what} now"
        elif what == "verdict" and causes:
            reason = f"{' and '.join(causes)} changed"
        elif "its rule" in causes:
            reason = "its rule changed"
        rows.append(_change(claim, what, then, now, reason))
    return rows


def _differences(then: Verdicts, now: Verdicts, same: Callable[[_Record, _Record], bool]) -> list[tuple[str, ...]]:
    """Changes of claims: claim, part, old text and new text; ``same`` compares the values of two records."""
    before, after, found = {one["id"]: one for one in then}, {one["id"]: one for one in now}, []
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            found.append((name, "claim", *(_TEXTS["verdict"](one) if one else "-" for one in (old, new))))
            continue
        differs = {"value": not same(old, new), "verdict": old["verdict"] != new["verdict"]}
        for part, text in _TEXTS.items():
            one, other = text(old), text(new)
            if differs.get(part, one != other):  # values may differ beyond the digits that a table shows
                found.append((name, part, *((one, other) if one != other else (repr(old[part]), repr(new[part])))))
    return found


def _within(then: _Record, now: _Record) -> bool:
    """True if either value is in the other's interval, or an interval is missing: then only verdicts count."""

    def inside(value: float, low: float | None, high: float | None) -> bool:
        return (-math.inf if low is None else low) <= value <= (math.inf if high is None else high) or low == high

    if None in (then["value"], now["value"]):
        return then["value"] is now["value"]
    return any(inside(a["value"], b["low"], b["high"]) for a, b in ((then, now), (now, then)))


def _code(study: Study, run: Run) -> list[str]:
    """Missing stages, or changed files of the study if the code hash of some stage differs; empty if neither."""
    missing = [f"{name}.npz is missing" for name in run.results.missing()]
    if missing:
        return missing[:_NAMED]
    if all(run.results.is_current(name) for name in run.results):
        return []
    commit = run.config.get("git") or ""
    try:
        files = changed_since(study, commit) if commit else []
    except ArgumentError:
        files = []
    if not files:
        return ["the code hash of its stages has changed"]
    names = sorted((name.rpartition("mesascope/")[2] for name in files), key=lambda name: "studies/" not in name)
    more = f" and {counted(len(names) - _NAMED, 'other file')}" if len(names) > _NAMED else ""
    return [f"code since {commit[:8]}: {', '.join(names[:_NAMED])}{more}"]


def _made_otherwise(then: _Record, now: _Record) -> list[str]:
    """Differences in device, machine, processor and versions of packages."""
    found = differences(then, {key: now[key] for key in ("device", "machine", "processor", "versions") if key in now})
    named = ((name.removeprefix("versions."), *values) for name, *values in found)
    began = [f"the run began on {then['begun_on']}"] if "begun_on" in then else []
    changed = [f"{name} {old or 'not recorded'}, now {new}" for name, old, new in named if new and name != "mesascope"]
    return began + changed


def _repeated(study: Study, run: Run, records: Verdicts, device: str | None) -> tuple[list[dict[str, str]], str]:
    """Changes found by repeating a run, and a summary of the differences of numbers."""
    folder = Path(tempfile.gettempdir()) / f"mesascope-verify-{uuid.uuid4().hex[:8]}"
    tell(f"running again: {run.path} in {folder}")
    try:
        again = _run_again(study, run, folder, device or run.config["device"])
    except (MesascopeError, OSError) as error:
        return [_change("", "run again", "finished", "failed", error)], "failed"
    elsewhere = _made_otherwise(run.config, again.config)
    reason = "; ".join([*_code(study, run), *elsewhere]) or "random draws or sums that the seed does not determine"
    same = _within if elsewhere else partial(close, keys=_INTERVAL, tolerance=0.0)
    found = _differences(records, judge_run(study, again), same)
    rows = [_change(claim, f"{part}, run again", then, now, reason) for claim, part, then, now in found]
    numbers, most = _numbers(run, again)
    if math.isinf(most) or (most >= 0 and not elsewhere):
        rows.append(_change("", "numbers, run again", "", numbers, reason))
    if rows:
        return rows, f"{numbers}; in {folder}"
    shutil.rmtree(folder)
    return rows, numbers


def _run_again(study: Study, run: Run, folder: Path, device: str) -> Run:
    """Repeat a run in ``folder`` on the same number of threads."""
    import torch

    config, threads = run.config, torch.get_num_threads()
    if then := re.search(r"threads: (\d+)$", config.get("machine", "")):
        torch.set_num_threads(int(then[1]))
    try:
        settings = run.settings_of(study)
        again = new_run(study, config["preset"], settings, seed=config["seed"], device=device, out=folder)
        run_study(study, settings, again)
    finally:
        torch.set_num_threads(threads)
    return again


def _numbers(run: Run, again: Run) -> tuple[str, float]:
    """Comparison of all stages and curves of two runs in words, and the largest difference; -1 if byte-identical."""

    def of(one: Run) -> dict[str, Stage]:
        return {**one.results, **{f"curves of {name}": one.curves(name) for name in one.trainings}}

    then, now = of(run), of(again)
    apart = {name: _apart(then.get(name), now.get(name)) for name in {**then, **now}}
    differ = sorted((name for name in apart if apart[name] >= 0), key=lambda name: -apart[name])
    if not differ:
        return f"all {counted(len(apart), 'stage')} byte-identical", -1.0
    listed = ", ".join(f"{name} by {apart[name]:.1g}" for name in differ[:_NAMED])
    text = f"{len(differ)} of {counted(len(apart), 'stage')} changed (relative to the largest number: {listed})"
    return text, apart[differ[0]]


def _apart(then: Stage | None, now: Stage | None) -> float:
    """Largest difference of two stages / array's largest number; -1 if byte-identical, inf if shape or type differs."""
    one, other = (stage.to_arrays() if stage else {} for stage in (then, now))
    most = -1.0
    for a, b in ((np.asarray(one.get(name)), np.asarray(other.get(name))) for name in {**one, **other}):
        if (a.shape, a.dtype, a.tobytes()) != (b.shape, b.dtype, b.tobytes()):
            if a.shape != b.shape or a.dtype != b.dtype or a.dtype.kind not in "biuf":
                return math.inf
            a, b = a.astype(float), b.astype(float)
            gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf))
            most = max(most, float(gap.max() / max(np.nanmax(np.abs(a)), 1e-300)))
    return most
